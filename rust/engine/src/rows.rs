//! Columns under construction.

use std::iter::repeat_n;

use crate::buffer_pool::{prepare, reserve, trim};
use crate::byte_strings::PositionSink;
use crate::{ByteStrings, Columns, Error, NullableColumn};

/// Messages with their positions.
#[derive(Debug, Default)]
pub struct ColumnBuilder {
    values: ByteStrings,
    positions: Vec<i64>,
    next_positions: Vec<i64>,
    /// None while all of them are 0.
    inner_indexes: Option<Vec<i32>>,
}

impl ColumnBuilder {
    /// The number of messages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.positions.len()
    }

    /// Whether there are no messages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Append a run of plain messages; `base` is the position of `data[0]`. Returns the index after the run.
    pub fn decode_run(&mut self, data: &[u8], start: usize, base: i64, max_entry: i64) -> Result<usize, Error> {
        base.checked_add(i64::try_from(data.len())?).ok_or(Error::Overflow)?;
        let before = self.len();
        let mut run = RunPositions {
            base,
            positions: &mut self.positions,
            next_positions: &mut self.next_positions,
            inner_indexes: self.inner_indexes.as_mut(),
        };
        let end = self.values.decode_to(data, start, max_entry, &mut run);
        match end {
            Ok(_) => self.add_starts(before, position(base, start)),
            Err(_) => self.next_positions.truncate(before),
        }
        end
    }

    /// Each message of a run starts where the one before it ends. The vector has room already.
    fn add_starts(&mut self, before: usize, first: i64) {
        let Some((_, starts)) = self.next_positions.get(before..).and_then(<[i64]>::split_last) else {
            return;
        };
        self.positions.push(first);
        self.positions.extend_from_slice(starts);
        if let Some(inner) = &mut self.inner_indexes {
            inner.resize(self.positions.len(), 0);
        }
    }

    /// Append one message.
    pub fn push(&mut self, value: &[u8], position: i64, next_position: i64, inner_index: i32) -> Result<(), Error> {
        self.reserve(1, inner_index != 0)?;
        self.values.push(value)?;
        self.positions.push(position);
        self.next_positions.push(next_position);
        if let Some(inner) = &mut self.inner_indexes {
            inner.push(inner_index);
        }
        Ok(())
    }

    /// Append the messages of one entry: all but the last resume where it starts.
    pub fn add_wrapper(&mut self, values: &ByteStrings, position: i64, next_position: i64) -> Result<(), Error> {
        let rows = values.len();
        let Some(others) = rows.checked_sub(1) else {
            return Ok(());
        };
        let indexes = 0..i32::try_from(rows)?;
        self.reserve(rows, others != 0)?;
        self.values.extend(values)?;
        self.positions.extend(repeat_n(position, rows));
        self.next_positions.extend(repeat_n(position, others));
        self.next_positions.push(next_position);
        if let Some(inner) = &mut self.inner_indexes {
            inner.extend(indexes);
        }
        Ok(())
    }

    /// Make room for the positions of `rows` more, and for inner indexes from now on if `inner`.
    fn reserve(&mut self, rows: usize, inner: bool) -> Result<(), Error> {
        reserve(&mut self.positions, rows)?;
        reserve(&mut self.next_positions, rows)?;
        if let Some(inner) = &mut self.inner_indexes {
            reserve(inner, rows)?;
        } else if inner {
            let mut zeros = Vec::new();
            zeros.try_reserve(self.positions.len().saturating_add(rows))?;
            zeros.resize(self.positions.len(), 0);
            self.inner_indexes = Some(zeros);
        }
        Ok(())
    }

    /// Take all rows out.
    #[must_use]
    pub fn take(&mut self) -> Columns {
        let ColumnBuilder { values, mut positions, mut next_positions, mut inner_indexes } = std::mem::take(self);
        let (data, offsets) = values.into_parts();
        trim(&mut positions);
        trim(&mut next_positions);
        if let Some(inner) = &mut inner_indexes {
            trim(inner);
        }
        let values = NullableColumn { data, offsets, validity: None };
        Columns { values, positions, next_positions, inner_indexes, keys: None, headers: None, timestamps: None }
    }
}

/// The position of an index; the caller has checked that it fits.
#[inline]
fn position(base: i64, index: usize) -> i64 {
    base.saturating_add_unsigned(u64::try_from(index).unwrap_or(u64::MAX))
}

/// The receiver of the positions of a run.
struct RunPositions<'a> {
    base: i64,
    positions: &'a mut Vec<i64>,
    next_positions: &'a mut Vec<i64>,
    inner_indexes: Option<&'a mut Vec<i32>>,
}

impl PositionSink for RunPositions<'_> {
    fn expect(&mut self, rows: usize) {
        prepare(self.next_positions, rows);
        prepare(self.positions, rows);
        if let Some(inner) = &mut self.inner_indexes {
            prepare(inner, rows);
        }
    }

    fn reserve(&mut self, rows: usize) -> Result<(), Error> {
        self.next_positions.try_reserve(rows)?;
        // The others are still as they were before the run, and will become as long as this.
        let run = self.next_positions.len().saturating_add(rows).saturating_sub(self.positions.len());
        self.positions.try_reserve(run)?;
        if let Some(inner) = &mut self.inner_indexes {
            inner.try_reserve(run)?;
        }
        Ok(())
    }

    fn room(&self) -> usize {
        let others =
            self.inner_indexes.as_ref().map_or(usize::MAX, |inner| inner.capacity()).min(self.positions.capacity());
        others.min(self.next_positions.capacity()).saturating_sub(self.next_positions.len())
    }

    #[inline]
    fn push(&mut self, end: usize) {
        self.next_positions.push(position(self.base, end));
    }
}
