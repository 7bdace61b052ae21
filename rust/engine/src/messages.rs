//! Message sets of magic 0 and 1 (specification 3.2).

use crate::Error;
use crate::records::{Fields, NO_TYPE, NONE, RecordBuilder};
use crate::varint::Cursor;

/// Bytes of a message of magic 0 without key and value.
const LEAST_MESSAGE: usize = 26;

/// How messages of magic 0 and 1 are read.
#[derive(Clone, Copy, Debug)]
pub struct MessageRun {
    /// Messages with a lower offset are left out.
    pub first_offset: i64,
    /// Added to the offset of each.
    pub shift: i64,
    /// The timestamp of all, if the broker set it.
    pub append_time: Option<i64>,
    /// Limit for a whole entry.
    pub max_entry: i64,
}

impl RecordBuilder {
    /// A run of plain messages of magic 0 and 1. Gives the index behind it, and the highest offset + 1.
    pub fn decode_messages(&mut self, data: &[u8], start: usize, run: MessageRun) -> Result<(usize, i64), Error> {
        self.all_or_none(|rows| rows.add_messages(data, start, run))
    }

    fn add_messages(&mut self, data: &[u8], start: usize, run: MessageRun) -> Result<(usize, i64), Error> {
        let (mut at, mut behind) = (start, i64::MIN);
        while let Some((entry, end)) = entry_at(data, at) {
            let Some(message) = entry.message().filter(|_| entry.bytes <= run.max_entry) else { break };
            let Some(position) = entry.offset.checked_add(run.shift).filter(|&at| (0..i64::MAX).contains(&at)) else {
                break;
            };
            behind = behind.max(position.saturating_add(1));
            if at == start {
                let left = data.len().saturating_sub(at);
                self.reserve(left, left / LEAST_MESSAGE)?;
            }
            at = end;
            if position >= run.first_offset {
                let (timestamp, kind) = run.append_time.map_or((message.timestamp, message.kind), |time| (time, 1));
                self.push_fields(message.fields, position, timestamp)?;
                self.complete(kind)?;
            }
        }
        Ok((at, behind))
    }
}

/// An entry of a message set with a plausible length.
struct Entry<'a> {
    offset: i64,
    /// All of it.
    bytes: i64,
    crc: u32,
    /// What the CRC is of: all from the magic on.
    body: &'a [u8],
}

/// A plain message of magic 0 or 1.
struct Message<'a> {
    fields: Fields<'a>,
    timestamp: i64,
    kind: i8,
}

const HEAD_BYTES: usize = 12;
const LEAST_LENGTH: i32 = 14;

/// The plain entry at an index, and the index behind it. Its CRC and fields are not looked at.
#[inline]
fn entry_at(data: &[u8], at: usize) -> Option<(Entry<'_>, usize)> {
    let mut head = Cursor::new(data.get(at..)?);
    let offset = i64::from_be_bytes(head.array()?);
    let length = i32::from_be_bytes(head.array()?);
    if length < LEAST_LENGTH {
        return None;
    }
    let mut entry = Cursor::new(head.bytes(usize::try_from(length).ok()?)?);
    let crc = u32::from_be_bytes(entry.array()?);
    let body = entry.rest();
    let (&magic, &attributes) = (body.first()?, body.get(1)?);
    if magic > 1 || attributes & 7 != 0 {
        return None;
    }
    let bytes = i64::from(length).saturating_add(12);
    let end = at.checked_add(HEAD_BYTES)?.checked_add(usize::try_from(length).ok()?)?;
    Some((Entry { offset, bytes, crc, body }, end))
}

impl<'a> Entry<'a> {
    /// Its fields, if they and the CRC are right.
    #[inline]
    fn message(&self) -> Option<Message<'a>> {
        let mut fields = Cursor::new(self.body);
        let (magic, attributes) = (fields.byte()?, fields.byte()?);
        let (timestamp, kind) = if magic == 0 {
            (NONE, NO_TYPE)
        } else {
            (i64::from_be_bytes(fields.array()?), i8::from(attributes & 8 != 0))
        };
        let (key, value) = (fields.sized()?, fields.sized()?);
        let good = fields.rest().is_empty() && crc32fast::hash(self.body) == self.crc;
        good.then_some(Message { fields: Fields { value, key, headers: &[] }, timestamp, kind })
    }
}

/// The index behind the plain messages at the start, how many they are, and the offset field of the last one.
#[must_use]
pub fn scan_messages(data: &[u8]) -> (usize, usize, i64) {
    let (mut at, mut count, mut last) = (0usize, 0usize, 0i64);
    while let Some((entry, end)) = entry_at(data, at) {
        (at, count, last) = (end, count.saturating_add(1), entry.offset);
    }
    (at, count, last)
}
