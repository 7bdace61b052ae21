//! Byte strings of which some are null.

use std::ops::Range;

use crate::buffer_pool::{recycle, reserve, trim};
use crate::{ByteStrings, Error, Offsets};

/// Byte strings, and for each a byte that is 0 for a null; none of these as long as there is no null.
#[derive(Debug, Default)]
pub struct NullableStrings {
    strings: ByteStrings,
    validity: Option<Vec<u8>>,
}

/// What `NullableStrings` become.
#[derive(Debug, PartialEq, Eq)]
pub struct NullableColumn {
    /// All strings.
    pub data: Vec<u8>,
    /// Where they are in `data`.
    pub offsets: Offsets,
    /// A byte for each string, 0 for a null; None: there is no null.
    pub validity: Option<Vec<u8>>,
}

impl NullableColumn {
    /// Keep the memory for other columns.
    pub fn recycle(self) {
        recycle(self.data);
        match self.offsets {
            Offsets::Narrow(offsets) => recycle(offsets),
            Offsets::Wide(offsets) => recycle(offsets),
        }
        if let Some(validity) = self.validity {
            recycle(validity);
        }
    }
}

impl NullableStrings {
    /// So many nulls.
    pub(crate) fn nulls(rows: usize) -> Result<Self, Error> {
        let mut strings = NullableStrings::default();
        strings.extend_nulls(rows)?;
        Ok(strings)
    }

    /// Make room for so many bytes and rows.
    pub(crate) fn reserve(&mut self, bytes: usize, rows: usize) -> Result<(), Error> {
        self.strings.reserve_rows(bytes, rows)?;
        self.validity.as_mut().map_or(Ok(()), |validity| reserve(validity, rows))
    }

    /// One more.
    #[inline(always)]
    pub(crate) fn push(&mut self, value: Option<&[u8]>) -> Result<(), Error> {
        let rows = self.strings.len();
        self.strings.push(value.unwrap_or_default())?;
        match &mut self.validity {
            Some(validity) => {
                reserve(validity, 1)?;
                validity.push(u8::from(value.is_some()));
            }
            None if value.is_none() => self.validity_of(rows, 1)?.push(0),
            None => {}
        }
        Ok(())
    }

    /// Append the strings `rows` of a column.
    pub(crate) fn extend_rows(&mut self, column: &NullableColumn, rows: Range<usize>) -> Result<(), Error> {
        let (before, more) = (self.strings.len(), rows.len());
        self.strings.extend_rows(&column.data, &column.offsets, rows.clone())?;
        if let Some(validity) = &column.validity {
            let validity = validity.get(rows).ok_or(Error::Offsets)?;
            self.validity_of(before, more)?.extend_from_slice(validity);
        } else if self.validity.is_some() {
            self.validity_of(before, more)?.resize(before.saturating_add(more), 1);
        }
        Ok(())
    }

    /// Append so many nulls.
    pub(crate) fn extend_nulls(&mut self, more: usize) -> Result<(), Error> {
        let before = self.strings.len();
        self.strings.push_empty(more)?;
        self.validity_of(before, more)?.resize(before.saturating_add(more), 0);
        Ok(())
    }

    /// The validity, of the first rows if none of them is null, with room for some more.
    #[cold]
    fn validity_of(&mut self, rows: usize, more: usize) -> Result<&mut Vec<u8>, Error> {
        let validity = self.validity.get_or_insert_default();
        reserve(validity, rows.saturating_sub(validity.len()).saturating_add(more))?;
        if validity.is_empty() {
            validity.resize(rows, 1);
        }
        Ok(validity)
    }

    /// Forget all but the first rows.
    pub(crate) fn truncate(&mut self, rows: usize) {
        self.strings.truncate(rows);
        if let Some(validity) = &mut self.validity {
            validity.truncate(rows);
        }
    }

    pub(crate) fn into_column(self) -> NullableColumn {
        let (data, offsets) = self.strings.into_parts();
        let mut validity = self.validity.filter(|validity| validity.contains(&0));
        if let Some(validity) = &mut validity {
            trim(validity);
        }
        NullableColumn { data, offsets, validity }
    }
}
