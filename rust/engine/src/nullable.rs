//! Byte strings of which some are null.

use crate::buffer_pool::{reserve, trim};
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

impl NullableStrings {
    /// So many nulls.
    pub(crate) fn nulls(rows: usize) -> Result<Self, Error> {
        let mut strings = ByteStrings::default();
        strings.push_empty(rows)?;
        let mut validity = Vec::new();
        reserve(&mut validity, rows)?;
        validity.resize(rows, 0);
        Ok(NullableStrings { strings, validity: Some(validity) })
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
            None if value.is_none() => {
                let mut validity = Vec::new();
                reserve(&mut validity, rows.saturating_add(1))?;
                validity.resize(rows, 1);
                validity.push(0);
                self.validity = Some(validity);
            }
            None => {}
        }
        Ok(())
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
