//! Record batches of magic 2 (specification 3.3).

use crate::Error;
use crate::decompress::{Compression, Decompressor};
use crate::encode_records::BATCH_HEADER_BYTES;
use crate::records::{Fields, RecordBuilder, header};
use crate::varint::Cursor;

/// Bytes of a record without key, value and headers.
const LEAST_RECORD: usize = 7;

/// A record of magic 2.
struct Record<'a> {
    time_delta: i64,
    offset_delta: i32,
    fields: Fields<'a>,
}

/// The record at the start of a cursor; None for one that is damaged.
#[inline(always)] // its fields stay in registers
fn record<'a>(from: &mut Cursor<'a>) -> Option<Record<'a>> {
    let len = usize::try_from(from.varint()?).ok()?;
    let mut fields = from.part(len)?;
    fields.byte()?; // attributes, which mean nothing
    let (time_delta, offset_delta) = (fields.varlong()?, fields.varint()?);
    let (key, value) = (fields.string()?, fields.string()?);
    let headers = if fields.rest() == [0] { &[] } else { checked_headers(fields)? };
    Some(Record { time_delta, offset_delta, fields: Fields { value, key, headers } })
}

/// The headers that are the rest of a record, with their number in front; empty where there are none.
#[inline(never)]
fn checked_headers(mut fields: Cursor<'_>) -> Option<&[u8]> {
    let headers = fields.rest();
    let count = usize::try_from(fields.varint()?).ok()?;
    if count > fields.rest().len() / 2 {
        return None;
    }
    for _ in 0..count {
        header(&mut fields)?;
    }
    fields.rest().is_empty().then_some(if count > 0 { headers } else { &[] })
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

impl Batch {
    /// The offset behind the batch.
    fn end(&self) -> i64 {
        self.base_offset.saturating_add(self.last_delta).saturating_add(1)
    }
}

impl RecordBuilder {
    /// The records of a batch. Gives the index behind the last good one, how many they are, and the highest of their
    /// offsets + 1.
    pub fn decode_batch(&mut self, data: &[u8], start: usize, batch: Batch) -> Result<(usize, i64, i64), Error> {
        let before = self.len();
        let body = data.get(start..).unwrap_or_default();
        let (left, count, behind) = self.all_or_none(|rows| rows.add_records(body, batch))?;
        if left == 0 && count == batch.count && self.len() > before {
            self.resume_at(batch.end());
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
            behind = behind.max(position.saturating_add(1));
            if position >= batch.first_offset {
                let time_delta = if batch.append_time { 0 } else { record.time_delta };
                self.push_fields(record.fields, position, batch.timestamp.wrapping_add(time_delta))?;
            }
        }
        self.complete(i8::from(batch.append_time))?;
        Ok((from.rest().len(), count, behind))
    }

    /// A run of whole batches of magic 2 without damage, which are not compressed or may be decompressed here. Gives the
    /// index behind it, the highest offset behind a batch, and what counts for `max_decompressed` (bytes).
    pub fn decode_batches(
        &mut self,
        data: &[u8],
        start: usize,
        first_offset: i64,
        limits: BatchLimits,
    ) -> Result<(usize, i64, usize), Error> {
        self.all_or_none(|rows| rows.add_batches(data, start, first_offset, limits))
    }

    fn add_batches(
        &mut self,
        data: &[u8],
        start: usize,
        first_offset: i64,
        limits: BatchLimits,
    ) -> Result<(usize, i64, usize), Error> {
        let (mut at, mut behind, mut decompressed) = (start, i64::MIN, 0usize);
        let mut decompressor = Decompressor::default();
        while let Some((batch, compression, end)) = batch_at(data, at, first_offset, limits) {
            let before = self.len();
            let records = data.get(at.saturating_add(BATCH_HEADER_BYTES)..end).unwrap_or_default();
            let body = match compression {
                None => records,
                Some(compression) => {
                    let most =
                        limits.max_decompressed.saturating_sub(row_bytes(batch.count)).saturating_sub(decompressed);
                    match decompressor.content(compression, records, most) {
                        Some(body) => body,
                        None => break,
                    }
                }
            };
            if at == start {
                self.reserve_alike(batch, body.len(), data.len().saturating_sub(at), end.saturating_sub(at), limits)?;
            }
            let (index, count, _) = self.decode_batch(body, 0, batch)?;
            if index != body.len() || count != batch.count {
                self.truncate(before);
                break;
            }
            at = end;
            behind = behind.max(batch.end());
            if compression.is_some() {
                decompressed = decompressed.saturating_add(body.len()).saturating_add(row_bytes(batch.count));
            }
        }
        Ok((at, behind, decompressed))
    }

    /// Make room for batches like this one, as many as the data may have.
    fn reserve_alike(
        &mut self,
        batch: Batch,
        body: usize,
        left: usize,
        entry: usize,
        limits: BatchLimits,
    ) -> Result<(), Error> {
        let alike = left.checked_div(entry).unwrap_or(0);
        let bytes = body.saturating_mul(alike).min(left.max(limits.max_decompressed)).max(body);
        let rows = usize::try_from(batch.count).unwrap_or(0).saturating_mul(alike);
        self.reserve(bytes, rows.min(bytes / LEAST_RECORD))
    }
}

/// The run of batches that `decode_batches` takes with these limits, as far as their headers and CRCs tell. Gives the
/// index behind it, and the highest offset behind a batch.
#[must_use]
pub fn check_batches(data: &[u8], start: usize, limits: BatchLimits) -> (usize, i64) {
    let (mut at, mut behind) = (start, i64::MIN);
    while let Some((batch, _, end)) = batch_at(data, at, 0, limits) {
        at = end;
        behind = behind.max(batch.end());
    }
    (at, behind)
}

/// What ends a run of batches.
#[derive(Clone, Copy, Debug)]
pub struct BatchLimits {
    /// Maximum size of a whole entry (bytes).
    pub max_entry: i64,
    /// Maximum size of all batches that are decompressed, `ROW_BYTES` for each of their records included; 0: none is.
    pub max_decompressed: usize,
    /// Batches of transactions, too: all are delivered.
    pub transactional: bool,
    /// The CRC of each is known to be right.
    pub checked: bool,
}

impl BatchLimits {
    /// No limits; no batches that are compressed or of a transaction.
    pub const PLAIN: Self =
        BatchLimits { max_entry: crate::NO_LIMIT, max_decompressed: 0, transactional: false, checked: false };
}

/// What so many records count beyond their own bytes.
fn row_bytes(count: i64) -> usize {
    usize::try_from(count).unwrap_or(0).saturating_mul(ROW_BYTES)
}

/// Bytes that a record counts beyond its own: about those of its row in the columns.
const ROW_BYTES: usize = 64;

/// Bytes of an entry up to and with its length field, which does not count them.
const LENGTH_BYTES: usize = 12;

const COMPRESSION: i16 = 7;
const APPEND_TIME: i16 = 8;
const TRANSACTIONAL: i16 = 16;
const CONTROL: i16 = 32;

/// The batch at an index, its compression, and the index behind it. Its records are not looked at.
fn batch_at(
    data: &[u8],
    at: usize,
    first_offset: i64,
    limits: BatchLimits,
) -> Option<(Batch, Option<Compression>, usize)> {
    let mut head = Cursor::new(data.get(at..)?);
    let base_offset = i64::from_be_bytes(head.array()?);
    let length = i32::from_be_bytes(head.array()?);
    if i64::from(length).saturating_add(12) > limits.max_entry {
        return None;
    }
    let mut rest = Cursor::new(head.bytes(usize::try_from(length).ok()?)?);
    let _leader_epoch: [u8; 4] = rest.array()?;
    if rest.byte()? != 2 {
        return None;
    }
    let crc = u32::from_be_bytes(rest.array()?);
    let covered = rest.rest();
    let mut fields = Cursor::new(covered);
    let attributes = i16::from_be_bytes(fields.array()?);
    let last_delta = i64::from(i32::from_be_bytes(fields.array()?));
    let base_timestamp = i64::from_be_bytes(fields.array()?);
    let max_timestamp = i64::from_be_bytes(fields.array()?);
    let _producer: [u8; 14] = fields.array()?;
    let count = i64::from(i32::from_be_bytes(fields.array()?));
    let plausible = base_offset >= 0 && last_delta >= 0 && count >= 0;
    base_offset.checked_add(last_delta)?.checked_add(2)?;
    let compression = match attributes & COMPRESSION {
        0 => None,
        compression => Some(Compression::of(compression).filter(|_| limits.max_decompressed > 0)?),
    };
    let left_out = if limits.transactional { CONTROL } else { CONTROL | TRANSACTIONAL };
    if !plausible || attributes & left_out != 0 || !(limits.checked || crate::crc32c(covered, 0) == crc) {
        return None;
    }
    let append_time = attributes & APPEND_TIME != 0;
    let timestamp = if append_time { max_timestamp } else { base_timestamp };
    let end = at.checked_add(LENGTH_BYTES)?.checked_add(usize::try_from(length).ok()?)?;
    Some((Batch { count, base_offset, last_delta, first_offset, timestamp, append_time }, compression, end))
}
