//! Records of Kafka 0.8 and later on their way into columns (specification 3.2 and 3.3).

use crate::buffer_pool::{reserve, trim};
use crate::nullable::{NullableColumn, NullableStrings};
use crate::varint::Cursor;
use crate::{ByteStrings, Error, Offsets};

/// In place of a timestamp and of its type: there is none.
const NONE: i64 = -1;
const NO_TYPE: i8 = -1;

/// Bytes of a record without key, value and headers.
const LEAST_RECORD: usize = 7;
/// Bytes of a message of magic 0 without them.
const LEAST_MESSAGE: usize = 26;

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

/// What records become: parallel, one element a record.
#[derive(Debug, PartialEq, Eq)]
pub struct RecordColumns {
    /// Values.
    pub values: NullableColumn,
    /// Offsets.
    pub positions: Vec<i64>,
    /// Where to resume behind each record.
    pub next_positions: Vec<i64>,
    /// Keys; None: there are none.
    pub keys: Option<NullableColumn>,
    /// Headers; None: there are none.
    pub headers: Option<HeaderColumn>,
    /// Timestamps and their types; None: no record's format has them.
    pub timestamps: Option<(Vec<i64>, Vec<i8>)>,
}

/// Headers of all rows: those of row i are numbers `offsets[i]` to `offsets[i + 1]`.
#[derive(Debug, PartialEq, Eq)]
pub struct HeaderColumn {
    /// One more than there are rows.
    pub offsets: Vec<i32>,
    /// UTF-8.
    pub names: (Vec<u8>, Offsets),
    /// As many.
    pub values: NullableColumn,
}

#[derive(Debug)]
struct HeaderStrings {
    offsets: Vec<i32>,
    names: ByteStrings,
    values: NullableStrings,
}

impl HeaderStrings {
    /// No headers for so many rows.
    fn empty(rows: usize) -> Result<Self, Error> {
        let mut offsets = Vec::new();
        let ends = rows.saturating_add(1);
        reserve(&mut offsets, ends)?;
        offsets.resize(ends, 0);
        Ok(HeaderStrings { offsets, names: ByteStrings::default(), values: NullableStrings::default() })
    }

    fn push(&mut self, headers: Headers<'_>) -> Result<(), Error> {
        let Headers { count, mut fields } = headers;
        for _ in 0..count {
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

    /// Forget the headers of all but the first rows.
    fn truncate(&mut self, rows: usize) {
        self.offsets.truncate(rows.saturating_add(1));
        let count = self.offsets.last().and_then(|&end| usize::try_from(end).ok()).unwrap_or(0);
        self.names.truncate(count);
        self.values.truncate(count);
    }
}

/// One record's headers, already looked at.
#[derive(Clone, Copy)]
struct Headers<'a> {
    count: usize,
    fields: Cursor<'a>,
}

const NO_HEADERS: Headers<'static> = Headers { count: 0, fields: Cursor::EMPTY };

fn header<'a>(fields: &mut Cursor<'a>) -> Option<(&'a [u8], Option<&'a [u8]>)> {
    Some((fields.string()??, fields.string()?))
}

/// One row.
struct Row<'a> {
    value: Option<&'a [u8]>,
    key: Option<&'a [u8]>,
    headers: Headers<'a>,
    position: i64,
    next_position: i64,
    timestamp: i64,
    kind: i8,
}

/// A record of magic 2.
struct Record<'a> {
    time_delta: i64,
    offset_delta: i32,
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
    headers: Headers<'a>,
}

/// The record at the start of a cursor; None for one that is damaged.
#[inline]
fn record<'a>(from: &mut Cursor<'a>) -> Option<Record<'a>> {
    let len = usize::try_from(from.varint()?).ok()?;
    let mut fields = Cursor::new(from.bytes(len)?);
    fields.byte()?; // attributes, which mean nothing
    let (time_delta, offset_delta) = (fields.varlong()?, fields.varint()?);
    let (key, value) = (fields.string()?, fields.string()?);
    let count = usize::try_from(fields.varint()?).ok()?;
    let headers = Headers { count, fields };
    if count > 0 {
        if count > fields.left() / 2 {
            return None;
        }
        for _ in 0..count {
            header(&mut fields)?;
        }
    }
    (fields.left() == 0).then_some(Record { time_delta, offset_delta, key, value, headers })
}

/// What the header of a batch of magic 2 says of its records.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// How many records there are.
    pub count: i64,
    /// What offset deltas count from.
    pub base_offset: i64,
    /// The largest offset delta.
    pub last_delta: i64,
    /// Records with a lower offset are left out.
    pub first_offset: i64,
    /// What timestamp deltas count from, or every timestamp.
    pub timestamp: i64,
    /// The broker set it.
    pub append_time: bool,
}

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

    /// The records of a batch. Gives the index behind the last good one, how many they are, and the highest of their
    /// offsets + 1.
    pub fn decode_batch(&mut self, data: &[u8], start: usize, batch: Batch) -> Result<(usize, i64, i64), Error> {
        let before = self.len();
        let decoded = self.add_records(data.get(start..).unwrap_or_default(), batch);
        let Ok((left, count, behind)) = decoded else {
            self.truncate(before);
            return decoded.map(|_| (0, 0, 0));
        };
        if left == 0 && count == batch.count && self.len() > before {
            if let Some(next) = self.next_positions.last_mut() {
                *next = batch.base_offset.saturating_add(batch.last_delta).saturating_add(1);
            }
        }
        Ok((data.len().saturating_sub(left), count, behind))
    }

    fn add_records(&mut self, data: &[u8], batch: Batch) -> Result<(usize, i64, i64), Error> {
        let most = data.len() / LEAST_RECORD;
        self.reserve(data.len(), usize::try_from(batch.count).unwrap_or(0).min(most))?;
        let (mut from, mut count, mut behind) = (Cursor::new(data), 0i64, batch.base_offset);
        while count < batch.count {
            let mut next = from;
            let Some(record) = record(&mut next) else { break };
            let delta = i64::from(record.offset_delta);
            if delta < 0 || delta > batch.last_delta {
                break;
            }
            from = next;
            count = count.saturating_add(1);
            let position = batch.base_offset.saturating_add(delta);
            let next_position = position.saturating_add(1);
            behind = behind.max(next_position);
            if position >= batch.first_offset {
                let time_delta = if batch.append_time { 0 } else { record.time_delta };
                self.push_row(Row {
                    value: record.value,
                    key: record.key,
                    headers: record.headers,
                    position,
                    next_position,
                    timestamp: batch.timestamp.wrapping_add(time_delta),
                    kind: i8::from(batch.append_time),
                })?;
            }
        }
        Ok((from.left(), count, behind))
    }

    /// A run of plain batches of magic 2: not compressed, not of a transaction, without damage. Gives the index behind
    /// it, and the offset behind the last batch.
    pub fn decode_batches(
        &mut self,
        data: &[u8],
        start: usize,
        first_offset: i64,
        max_entry: i64,
    ) -> Result<(usize, i64), Error> {
        let before = self.len();
        let decoded = self.add_batches(data, start, first_offset, max_entry);
        if decoded.is_err() {
            self.truncate(before);
        }
        decoded
    }

    fn add_batches(
        &mut self,
        data: &[u8],
        start: usize,
        first_offset: i64,
        max_entry: i64,
    ) -> Result<(usize, i64), Error> {
        let (mut at, mut behind) = (start, i64::MIN);
        while let Some((batch, end)) = plain_batch(data, at, first_offset, max_entry) {
            let before = self.len();
            if at == start {
                let left = data.len().saturating_sub(at);
                let alike = left.checked_div(end.saturating_sub(at)).unwrap_or(0);
                let rows = usize::try_from(batch.count).unwrap_or(0).saturating_mul(alike);
                self.reserve(left, rows.min(left / LEAST_RECORD))?;
            }
            let body = at.saturating_add(BATCH_HEADER_BYTES);
            let (index, count, _) = self.decode_batch(data.get(..end).unwrap_or_default(), body, batch)?;
            if index != end || count != batch.count {
                self.truncate(before);
                break;
            }
            at = end;
            behind = batch.base_offset.saturating_add(batch.last_delta).saturating_add(1);
        }
        Ok((at, behind))
    }

    /// A run of plain messages of magic 0 and 1. Gives the index behind it, and the highest offset + 1.
    pub fn decode_messages(&mut self, data: &[u8], start: usize, run: MessageRun) -> Result<(usize, i64), Error> {
        let before = self.len();
        let decoded = self.add_messages(data, start, run);
        if decoded.is_err() {
            self.truncate(before);
        }
        decoded
    }

    fn add_messages(&mut self, data: &[u8], start: usize, run: MessageRun) -> Result<(usize, i64), Error> {
        let (mut at, mut behind) = (start, i64::MIN);
        while let Some((entry, end)) = entry_at(data, at) {
            let Some(message) = entry.message().filter(|_| entry.bytes <= run.max_entry) else { break };
            let Some(position) = entry.offset.checked_add(run.shift).filter(|&at| (0..i64::MAX).contains(&at)) else {
                break;
            };
            let next_position = position.saturating_add(1);
            behind = behind.max(next_position);
            if at == start {
                let left = data.len().saturating_sub(at);
                self.reserve(left, left / LEAST_MESSAGE)?;
            }
            at = end;
            if position >= run.first_offset {
                let (timestamp, kind) = run.append_time.map_or((message.timestamp, message.kind), |time| (time, 1));
                let Message { key, value, .. } = message;
                self.push_row(Row { value, key, headers: NO_HEADERS, position, next_position, timestamp, kind })?;
            }
        }
        Ok((at, behind))
    }

    /// A row that is no record.
    pub fn push(&mut self, value: &[u8], position: i64, next_position: i64) -> Result<(), Error> {
        let before = self.len();
        let (key, headers, timestamp, kind) = (None, NO_HEADERS, NONE, NO_TYPE);
        let pushed = self.push_row(Row { value: Some(value), key, headers, position, next_position, timestamp, kind });
        if pushed.is_err() {
            self.truncate(before);
        }
        pushed
    }

    #[inline]
    fn push_row(&mut self, row: Row<'_>) -> Result<(), Error> {
        let rows = self.positions.len();
        self.values.push(row.value)?;
        match &mut self.keys {
            Some(keys) => keys.push(row.key)?,
            None if row.key.is_some() => {
                let mut keys = NullableStrings::nulls(rows)?;
                keys.push(row.key)?;
                self.keys = Some(keys);
            }
            None => {}
        }
        match &mut self.headers {
            Some(headers) => headers.push(row.headers)?,
            None if row.headers.count > 0 => {
                let mut headers = HeaderStrings::empty(rows)?;
                headers.push(row.headers)?;
                self.headers = Some(headers);
            }
            None => {}
        }
        if rows == self.positions.capacity() {
            self.reserve_numbers(1)?;
        }
        self.next_positions.push(row.next_position);
        self.timestamps.push(row.timestamp);
        self.types.push(row.kind);
        self.positions.push(row.position);
        Ok(())
    }

    /// Make room for so many more rows, which have so many bytes at most.
    fn reserve(&mut self, bytes: usize, rows: usize) -> Result<(), Error> {
        self.values.reserve(bytes, rows)?;
        self.reserve_numbers(rows)
    }

    fn reserve_numbers(&mut self, rows: usize) -> Result<(), Error> {
        reserve(&mut self.next_positions, rows)?;
        reserve(&mut self.timestamps, rows)?;
        self.types.try_reserve(rows)?;
        reserve(&mut self.positions, rows)
    }

    /// Forget all but the first rows.
    fn truncate(&mut self, rows: usize) {
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
    pub fn take(&mut self) -> RecordColumns {
        let mut taken = std::mem::take(self);
        trim(&mut taken.positions);
        trim(&mut taken.next_positions);
        trim(&mut taken.timestamps);
        taken.types.shrink_to_fit();
        let timed = taken.types.iter().any(|&kind| kind != NO_TYPE);
        RecordColumns {
            values: taken.values.into_column(),
            positions: taken.positions,
            next_positions: taken.next_positions,
            keys: taken.keys.map(NullableStrings::into_column),
            headers: taken.headers.map(|headers| HeaderColumn {
                offsets: headers.offsets,
                names: headers.names.into_parts(),
                values: headers.values.into_column(),
            }),
            timestamps: timed.then_some((taken.timestamps, taken.types)),
        }
    }
}

const BATCH_HEADER_BYTES: usize = 61;

/// Attributes of a batch that a run leaves to the caller: a codec, a transaction, a control batch.
const NOT_PLAIN: i16 = 7 | 16 | 32;
const APPEND_TIME: i16 = 8;

/// The plain batch at an index, and the index behind it. Its records are not looked at.
fn plain_batch(data: &[u8], at: usize, first_offset: i64, max_entry: i64) -> Option<(Batch, usize)> {
    let mut head = Cursor::new(data.get(at..)?);
    let base_offset = i64::from_be_bytes(head.array()?);
    let length = i32::from_be_bytes(head.array()?);
    if i64::from(length).saturating_add(12) > max_entry {
        return None;
    }
    let mut rest = Cursor::new(head.bytes(usize::try_from(length).ok()?)?);
    let _leader_epoch: [u8; 4] = rest.array()?;
    if rest.byte()? != 2 {
        return None;
    }
    let crc = u32::from_be_bytes(rest.array()?);
    let covered = rest.bytes(rest.left())?;
    let mut fields = Cursor::new(covered);
    let attributes = i16::from_be_bytes(fields.array()?);
    let last_delta = i64::from(i32::from_be_bytes(fields.array()?));
    let base_timestamp = i64::from_be_bytes(fields.array()?);
    let max_timestamp = i64::from_be_bytes(fields.array()?);
    let _producer: [u8; 14] = fields.array()?;
    let count = i64::from(i32::from_be_bytes(fields.array()?));
    let plausible = base_offset >= 0 && last_delta >= 0 && count >= 0;
    base_offset.checked_add(last_delta)?.checked_add(2)?;
    if !plausible || attributes & NOT_PLAIN != 0 || crate::crc32c(covered, 0) != crc {
        return None;
    }
    let append_time = attributes & APPEND_TIME != 0;
    let timestamp = if append_time { max_timestamp } else { base_timestamp };
    let end = at.checked_add(HEAD_BYTES)?.checked_add(usize::try_from(length).ok()?)?;
    Some((Batch { count, base_offset, last_delta, first_offset, timestamp, append_time }, end))
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
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
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
    let body = entry.bytes(entry.left())?;
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
        let good = fields.left() == 0 && crc32fast::hash(self.body) == self.crc;
        good.then_some(Message { key, value, timestamp, kind })
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
