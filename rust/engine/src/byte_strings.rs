//! Byte strings in one buffer, in Arrow's layout.

use std::ops::Range;

use crate::Error;
use crate::buffer_pool::{Item, prepare, reserve, trim};
use crate::entry::{MIN_ENTRY_BYTES, Plain, plain_at};

/// The end of a string: an integer of 4 or 8 bytes.
pub trait Offset: Item + Into<i64> + TryFrom<i64> + TryFrom<usize> {}

impl Offset for i32 {}
impl Offset for i64 {}

/// The start of each string, and the end of the last one: one more than there are strings.
#[derive(Debug, PartialEq, Eq)]
pub enum Offsets {
    /// While all data is within 2 GiB.
    Narrow(Vec<i32>),
    /// Beyond 2 GiB.
    Wide(Vec<i64>),
}

/// Evaluate the same expression for offsets of either width.
macro_rules! either {
    ($offsets:expr, $name:ident => $body:expr) => {
        match $offsets {
            Offsets::Narrow($name) => $body,
            Offsets::Wide($name) => $body,
        }
    };
}

impl Offsets {
    /// The number of strings.
    #[must_use]
    pub fn rows(&self) -> usize {
        either!(self, ends => ends.len()).saturating_sub(1)
    }

    /// Where the strings `rows` are in their data; None: there are no such strings.
    #[must_use]
    pub fn range(&self, rows: Range<usize>) -> Option<Range<usize>> {
        either!(self, ends => data_range(ends, &rows))
    }

    #[cold]
    fn widen(&mut self) -> Result<(), Error> {
        if let Offsets::Narrow(narrow) = self {
            let mut wide = Vec::new();
            wide.try_reserve(narrow.len())?;
            wide.extend(narrow.iter().copied().map(i64::from));
            *self = Offsets::Wide(wide);
        }
        Ok(())
    }
}

/// A receiver of the positions of messages, beside their payloads.
pub(crate) trait PositionSink {
    /// Expect `rows` more, if all messages are like the first.
    fn expect(&mut self, rows: usize);
    /// Make room for `rows` more.
    fn reserve(&mut self, rows: usize) -> Result<(), Error>;
    /// The number of rows there is room for.
    fn room(&self) -> usize;
    /// Add a message that ends at this index.
    fn push(&mut self, end: usize);
}

/// Ignores all positions.
impl PositionSink for () {
    fn expect(&mut self, _: usize) {}

    fn reserve(&mut self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn room(&self) -> usize {
        usize::MAX
    }

    fn push(&mut self, _: usize) {}
}

/// Byte strings under construction.
#[derive(Debug)]
pub struct ByteStrings {
    data: Vec<u8>,
    offsets: Offsets,
    narrow_bytes: usize,
}

impl Default for ByteStrings {
    fn default() -> Self {
        Self::with_narrow_bytes(0x7FFF_FFFF)
    }
}

/// Rows to make room for when none is left.
const CHUNK_ROWS: usize = 1024;

impl ByteStrings {
    /// With offsets of 4 bytes up to `narrow_bytes` of data.
    pub(crate) fn with_narrow_bytes(narrow_bytes: usize) -> Self {
        ByteStrings { data: Vec::new(), offsets: Offsets::Narrow(vec![0]), narrow_bytes }
    }

    /// The number of strings.
    #[must_use]
    pub fn len(&self) -> usize {
        self.offsets.rows()
    }

    /// Whether there are no strings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All strings, concatenated.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The offsets of the strings in `data`.
    #[must_use]
    pub fn offsets(&self) -> &Offsets {
        &self.offsets
    }

    /// Append a string.
    #[inline(always)]
    pub fn push(&mut self, value: &[u8]) -> Result<(), Error> {
        self.reserve(value.len())?;
        let end = self.data.len().checked_add(value.len()).ok_or(Error::Overflow)?;
        either!(&mut self.offsets, ends => push_end(ends, end)?);
        self.data.extend_from_slice(value);
        Ok(())
    }

    /// Append empty strings.
    pub(crate) fn push_empty(&mut self, rows: usize) -> Result<(), Error> {
        let end = self.data.len();
        either!(&mut self.offsets, ends => {
            reserve(ends, rows)?;
            push_ends(ends, end, rows)
        })
    }

    /// Reserve memory for more bytes and strings.
    pub(crate) fn reserve_rows(&mut self, bytes: usize, rows: usize) -> Result<(), Error> {
        self.reserve(bytes)?;
        either!(&mut self.offsets, ends => reserve(ends, rows))
    }

    /// Drop all but the first strings.
    pub(crate) fn truncate(&mut self, rows: usize) {
        let end = either!(&mut self.offsets, ends => {
            ends.truncate(rows.saturating_add(1));
            last_end(ends)
        });
        self.data.truncate(end);
    }

    /// Append the strings of another.
    pub fn extend(&mut self, other: &ByteStrings) -> Result<(), Error> {
        self.extend_rows(&other.data, &other.offsets, 0..other.len())
    }

    /// Append the strings `rows` of those in `data`.
    pub(crate) fn extend_rows(&mut self, data: &[u8], offsets: &Offsets, rows: Range<usize>) -> Result<(), Error> {
        let range = offsets.range(rows.clone()).ok_or(Error::Offsets)?;
        let start = i64::try_from(range.start)?;
        let data = data.get(range).ok_or(Error::Offsets)?;
        self.reserve(data.len())?;
        let by = i64::try_from(self.data.len())?.saturating_sub(start);
        either!(&mut self.offsets, into => either!(offsets, from => {
            let ends = from.get(rows.start.saturating_add(1)..=rows.end).unwrap_or_default();
            extend_ends(into, ends, by)?;
        }));
        self.data.extend_from_slice(data);
        Ok(())
    }

    /// Append the payloads of a run of plain messages. Returns the index after the run.
    pub fn decode_run(&mut self, data: &[u8], start: usize) -> Result<usize, Error> {
        self.decode_to(data, start, crate::NO_LIMIT, &mut ())
    }

    /// The same, with the position of each message. After an error, `positions` may have too many.
    pub(crate) fn decode_to(
        &mut self,
        data: &[u8],
        start: usize,
        max_entry: i64,
        positions: &mut impl PositionSink,
    ) -> Result<usize, Error> {
        let Some(Plain { end: second, .. }) = plain_at(data, start, max_entry) else {
            return Ok(start); // without reserving anything
        };
        let size = data.len().saturating_sub(start);
        self.reserve(size)?;
        let alike = size.checked_div(second.saturating_sub(start)).unwrap_or(0);
        either!(&mut self.offsets, ends => prepare(ends, alike));
        positions.expect(alike);
        let (rows, bytes) = (self.len(), self.data.len());
        let run = Run { data, start, max_entry };
        let end = either!(&mut self.offsets, ends => run.decode(&mut self.data, ends, positions));
        if end.is_err() {
            self.data.truncate(bytes);
            either!(&mut self.offsets, ends => ends.truncate(rows.saturating_add(1)));
        }
        end
    }

    /// Make room for `bytes` more of data, and widen the offsets if they could not reach its end.
    #[inline]
    fn reserve(&mut self, bytes: usize) -> Result<(), Error> {
        reserve(&mut self.data, bytes)?;
        if self.data.len().saturating_add(bytes) > self.narrow_bytes {
            self.offsets.widen()?;
        }
        Ok(())
    }

    /// Data and offsets, with little unused capacity.
    pub(crate) fn into_parts(mut self) -> (Vec<u8>, Offsets) {
        trim(&mut self.data);
        either!(&mut self.offsets, ends => trim(ends));
        (self.data, self.offsets)
    }
}

fn data_range<O: Offset>(ends: &[O], rows: &Range<usize>) -> Option<Range<usize>> {
    let end = |row: usize| usize::try_from((*ends.get(row)?).into()).ok();
    Some(end(rows.start)?..end(rows.end)?)
}

#[inline]
fn push_end<O: Offset>(ends: &mut Vec<O>, end: usize) -> Result<(), Error> {
    let end = O::try_from(end).map_err(|_| Error::Overflow)?;
    reserve(ends, 1)?;
    ends.push(end);
    Ok(())
}

fn push_ends<O: Offset>(ends: &mut Vec<O>, end: usize, rows: usize) -> Result<(), Error> {
    let end = O::try_from(end).map_err(|_| Error::Overflow)?;
    ends.resize(ends.len().saturating_add(rows), end);
    Ok(())
}

fn last_end<O: Offset>(ends: &[O]) -> usize {
    ends.last().and_then(|&end| usize::try_from(end.into()).ok()).unwrap_or(0)
}

fn extend_ends<O: Offset, P: Offset>(into: &mut Vec<O>, from: &[P], by: i64) -> Result<(), Error> {
    into.try_reserve(from.len())?;
    let rows = into.len();
    for &end in from {
        let Some(end) = by.checked_add(end.into()).and_then(|end| O::try_from(end).ok()) else {
            into.truncate(rows);
            return Err(Error::Overflow);
        };
        into.push(end);
    }
    Ok(())
}

/// The arguments of `decode_to`.
struct Run<'a> {
    data: &'a [u8],
    start: usize,
    max_entry: i64,
}

impl Run<'_> {
    fn decode<O: Offset>(
        &self,
        into: &mut Vec<u8>,
        ends: &mut Vec<O>,
        positions: &mut impl PositionSink,
    ) -> Result<usize, Error> {
        let mut at = self.start;
        loop {
            // No more than there can be: a row takes at least 9 bytes.
            let max_rows = self.data.len().saturating_sub(at) / MIN_ENTRY_BYTES;
            let mut rows = max_rows.min(ends.capacity().saturating_sub(ends.len())).min(positions.room());
            if rows == 0 {
                rows = max_rows.min(CHUNK_ROWS);
                ends.try_reserve(rows)?;
                positions.reserve(rows)?;
            }
            for _ in 0..rows {
                let Some(message) = plain_at(self.data, at, self.max_entry) else {
                    return Ok(at);
                };
                into.extend_from_slice(message.payload);
                ends.push(O::try_from(into.len()).map_err(|_| Error::Overflow)?);
                positions.push(message.end);
                at = message.end;
            }
            if rows == 0 {
                return Ok(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{encode_run, packed};

    /// Three strings and a run of two, with narrow offsets up to `narrow_bytes`.
    fn strings(narrow_bytes: usize) -> ByteStrings {
        let mut set = Vec::new();
        encode_run([&b"four"[..], b"five"].into_iter().map(Ok), 0, &mut set).unwrap();
        let mut strings = ByteStrings::with_narrow_bytes(narrow_bytes);
        strings.push(b"one").unwrap();
        strings.push(b"").unwrap();
        strings.push(b"three").unwrap();
        assert_eq!(strings.decode_run(&set, 0), Ok(set.len()));
        strings
    }

    fn all(strings: &ByteStrings) -> Vec<&[u8]> {
        either!(&strings.offsets, ends => packed(ends, strings.data()).map(Result::unwrap).collect())
    }

    #[test]
    fn offsets_grow_wide_when_the_data_may_outgrow_them() {
        for (narrow_bytes, wide) in [(0, true), (3, true), (7, true), (8, true), (100, false)] {
            let strings = strings(narrow_bytes);
            assert_eq!(matches!(strings.offsets, Offsets::Wide(_)), wide, "{narrow_bytes}");
            assert_eq!(all(&strings), [&b"one"[..], b"", b"three", b"four", b"five"]);
        }
    }

    #[test]
    fn strings_of_any_width_extend_strings_of_any_width() {
        for into in [0, 20, 100] {
            for from in [0, 100] {
                let mut strings = strings(into);
                let more = self::strings(from);
                strings.extend(&more).unwrap();
                assert_eq!(all(&strings), [all(&more), all(&more)].concat());
            }
        }
    }
}
