//! Records of Kafka 0.8 and later on their way into columns (specification 3.2 and 3.3).

use std::ops::Range;

use crate::buffer_pool::{reserve, trim};
use crate::nullable::{NullableColumn, NullableStrings};
use crate::varint::Cursor;
use crate::{ByteStrings, Columns, Error};

/// In place of a timestamp and of its type: there is none.
pub(crate) const NONE: i64 = -1;
pub(crate) const NO_TYPE: i8 = -1;

/// Records with their offsets.
#[derive(Debug, Default)]
pub struct RecordBuilder {
    values: NullableStrings,
    keys: Option<NullableStrings>,
    headers: Option<HeaderStrings>,
    positions: Vec<i64>,
    next_positions: Vec<i64>,
    timestamps: Vec<i64>,
    types: Vec<i8>,
}

/// Headers of all rows: those of row i are numbers `offsets[i]` to `offsets[i + 1]`.
#[derive(Debug, PartialEq, Eq)]
pub struct HeaderColumn {
    /// One more than there are rows.
    pub offsets: Vec<i32>,
    /// UTF-8, none of them null.
    pub names: NullableColumn,
    /// As many.
    pub values: NullableColumn,
}

#[derive(Debug)]
pub(crate) struct HeaderStrings {
    offsets: Vec<i32>,
    names: ByteStrings,
    values: NullableStrings,
}

impl HeaderStrings {
    /// No headers for so many rows.
    pub(crate) fn empty(rows: usize) -> Result<Self, Error> {
        let (names, values) = (ByteStrings::default(), NullableStrings::default());
        let mut made = HeaderStrings { offsets: vec![0], names, values };
        made.extend_empty(rows)?;
        Ok(made)
    }

    /// The headers of one more row: their number, and each of them, already checked; empty: there are none.
    fn push(&mut self, headers: &[u8]) -> Result<(), Error> {
        let mut fields = Cursor::new(headers);
        for _ in 0..fields.varint().unwrap_or(0) {
            let Some((name, value)) = header(&mut fields) else { break };
            match String::from_utf8_lossy(name) {
                std::borrow::Cow::Borrowed(_) => self.names.push(name)?,
                std::borrow::Cow::Owned(name) => self.names.push(name.as_bytes())?,
            }
            self.values.push(value)?;
        }
        reserve(&mut self.offsets, 1)?;
        self.offsets.push(i32::try_from(self.names.len())?);
        Ok(())
    }

    /// Append the headers of some rows of a column, which are its headers `pairs`.
    pub(crate) fn extend_rows(
        &mut self,
        column: &HeaderColumn,
        rows: Range<usize>,
        pairs: Range<usize>,
    ) -> Result<(), Error> {
        let by = i64::try_from(self.names.len())?.saturating_sub(i64::try_from(pairs.start)?);
        let ends = column.offsets.get(rows.start.saturating_add(1)..=rows.end).ok_or(Error::Offsets)?;
        reserve(&mut self.offsets, ends.len())?;
        for &end in ends {
            self.offsets.push(i32::try_from(by.saturating_add(end.into()))?);
        }
        self.names.extend_rows(&column.names.data, &column.names.offsets, pairs.clone())?;
        self.values.extend_rows(&column.values, pairs)
    }

    /// Append rows without headers.
    pub(crate) fn extend_empty(&mut self, rows: usize) -> Result<(), Error> {
        reserve(&mut self.offsets, rows)?;
        let end = self.offsets.last().copied().unwrap_or_default();
        self.offsets.resize(self.offsets.len().saturating_add(rows), end);
        Ok(())
    }

    pub(crate) fn into_column(self) -> HeaderColumn {
        let (data, offsets) = self.names.into_parts();
        let names = NullableColumn { data, offsets, validity: None };
        HeaderColumn { offsets: self.offsets, names, values: self.values.into_column() }
    }

    /// Forget the headers of all but the first rows.
    fn truncate(&mut self, rows: usize) {
        self.offsets.truncate(rows.saturating_add(1));
        let count = self.offsets.last().and_then(|&end| usize::try_from(end).ok()).unwrap_or(0);
        self.names.truncate(count);
        self.values.truncate(count);
    }
}

pub(crate) fn header<'a>(fields: &mut Cursor<'a>) -> Option<(&'a [u8], Option<&'a [u8]>)> {
    Some((fields.string()??, fields.string()?))
}

/// What one record says, as every format has it.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    pub value: Option<&'a [u8]>,
    pub key: Option<&'a [u8]>,
    /// See `HeaderStrings::push`.
    pub headers: &'a [u8],
}

impl RecordBuilder {
    /// How many rows there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.positions.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A row that is no record.
    pub fn push(&mut self, value: &[u8], position: i64, next_position: i64) -> Result<(), Error> {
        self.all_or_none(|rows| {
            rows.push_fields(Fields { value: Some(value), key: None, headers: &[] }, position, NONE)?;
            rows.complete(NO_TYPE)?;
            rows.resume_at(next_position);
            Ok(())
        })
    }

    /// Do this work; after an error, what it appended is forgotten.
    pub(crate) fn all_or_none<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        let before = self.len();
        let done = work(self);
        if done.is_err() {
            self.truncate(before);
        }
        done
    }

    /// Append a row; `complete` adds what it lacks.
    #[inline(always)]
    pub(crate) fn push_fields(&mut self, fields: Fields<'_>, position: i64, timestamp: i64) -> Result<(), Error> {
        self.values.push(fields.value)?;
        if fields.key.is_some() || self.keys.is_some() {
            self.push_key(fields.key)?;
        }
        if !fields.headers.is_empty() || self.headers.is_some() {
            self.push_headers(fields.headers)?;
        }
        reserve(&mut self.timestamps, 1)?;
        self.timestamps.push(timestamp);
        reserve(&mut self.positions, 1)?;
        self.positions.push(position);
        Ok(())
    }

    #[inline(never)]
    fn push_key(&mut self, key: Option<&[u8]>) -> Result<(), Error> {
        match &mut self.keys {
            Some(keys) => keys.push(key),
            None => {
                let mut keys = NullableStrings::nulls(self.len())?;
                keys.push(key)?;
                self.keys = Some(keys);
                Ok(())
            }
        }
    }

    #[inline(never)]
    fn push_headers(&mut self, headers: &[u8]) -> Result<(), Error> {
        match &mut self.headers {
            Some(all) => all.push(headers),
            None => {
                let mut all = HeaderStrings::empty(self.len())?;
                all.push(headers)?;
                self.headers = Some(all);
                Ok(())
            }
        }
    }

    /// Add to the last rows what they lack: where to resume, behind each of them, and the type of their timestamps.
    pub(crate) fn complete(&mut self, kind: i8) -> Result<(), Error> {
        let rows = self.positions.get(self.next_positions.len()..).unwrap_or_default();
        reserve(&mut self.next_positions, rows.len())?;
        self.next_positions.extend(rows.iter().map(|position| position.wrapping_add(1)));
        self.types.try_reserve(rows.len())?;
        self.types.resize(self.positions.len(), kind);
        Ok(())
    }

    /// Change where the last row resumes.
    pub(crate) fn resume_at(&mut self, next_position: i64) {
        if let Some(last) = self.next_positions.last_mut() {
            *last = next_position;
        }
    }

    /// Make room for so many more rows, which have so many bytes at most.
    pub(crate) fn reserve(&mut self, bytes: usize, rows: usize) -> Result<(), Error> {
        self.values.reserve(bytes, rows)?;
        reserve(&mut self.next_positions, rows)?;
        reserve(&mut self.timestamps, rows)?;
        self.types.try_reserve(rows)?;
        reserve(&mut self.positions, rows)
    }

    /// Forget all but the first rows.
    pub(crate) fn truncate(&mut self, rows: usize) {
        self.values.truncate(rows);
        if let Some(keys) = &mut self.keys {
            keys.truncate(rows);
        }
        if let Some(headers) = &mut self.headers {
            headers.truncate(rows);
        }
        self.positions.truncate(rows);
        self.next_positions.truncate(rows);
        self.timestamps.truncate(rows);
        self.types.truncate(rows);
    }

    /// Give up all rows.
    #[must_use]
    pub fn take(&mut self) -> Columns {
        let mut taken = std::mem::take(self);
        trim(&mut taken.positions);
        trim(&mut taken.next_positions);
        trim(&mut taken.timestamps);
        taken.types.shrink_to_fit();
        let timed = taken.types.iter().any(|&kind| kind != NO_TYPE);
        Columns {
            values: taken.values.into_column(),
            positions: taken.positions,
            next_positions: taken.next_positions,
            inner_indexes: None,
            keys: taken.keys.map(NullableStrings::into_column),
            headers: taken.headers.map(HeaderStrings::into_column),
            timestamps: timed.then_some((taken.timestamps, taken.types)),
        }
    }
}
