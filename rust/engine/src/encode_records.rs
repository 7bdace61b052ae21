//! Records of Kafka 0.8 and later, written.

use crate::varint::{put_varlong, varlong_bytes};
use crate::{Error, Sink};

/// One record to write.
#[derive(Clone, Copy, Debug)]
pub struct NewRecord<'a> {
    /// None: a tombstone.
    pub value: Option<&'a [u8]>,
    /// None: there is no key.
    pub key: Option<&'a [u8]>,
    /// In milliseconds; None: that of the batch, or none.
    pub timestamp: Option<i64>,
    /// Magic 2 only.
    pub headers: &'a [Header<'a>],
}

/// One header to write.
pub type Header<'a> = (&'a [u8], Option<&'a [u8]>);

#[inline]
fn field_bytes(value: Option<&[u8]>) -> Result<usize, Error> {
    let Some(value) = value else { return Ok(1) };
    let len = i64::from(i32::try_from(value.len())?);
    varlong_bytes(len).checked_add(value.len()).ok_or(Error::Overflow)
}

#[inline]
fn put_field(value: Option<&[u8]>, sink: &mut impl Sink) -> Result<(), Error> {
    let Some(value) = value else { return put_varlong(-1, sink) };
    put_varlong(i64::try_from(value.len())?, sink)?;
    sink.put(value)
}

impl NewRecord<'_> {
    #[inline]
    fn time_delta(&self, base_timestamp: i64) -> i64 {
        self.timestamp.map_or(0, |time| time.wrapping_sub(base_timestamp))
    }

    /// Bytes of record number `index` of a batch, behind its length.
    #[inline]
    fn bytes(&self, index: i64, base_timestamp: i64) -> Result<i64, Error> {
        let numbers = varlong_bytes(self.time_delta(base_timestamp)).saturating_add(varlong_bytes(index));
        let mut sum = numbers
            .saturating_add(1)
            .checked_add(field_bytes(self.key)?)
            .and_then(|sum| sum.checked_add(varlong_bytes(i64::try_from(self.headers.len()).ok()?)))
            .ok_or(Error::Overflow)?;
        sum = sum.checked_add(field_bytes(self.value)?).ok_or(Error::Overflow)?;
        for (name, value) in self.headers {
            sum = sum.checked_add(field_bytes(Some(name))?).ok_or(Error::Overflow)?;
            sum = sum.checked_add(field_bytes(*value)?).ok_or(Error::Overflow)?;
        }
        Ok(i64::from(i32::try_from(sum)?))
    }

    #[inline]
    fn put(&self, bytes: i64, index: i64, base_timestamp: i64, sink: &mut impl Sink) -> Result<(), Error> {
        put_varlong(bytes, sink)?;
        sink.put(&[0])?; // attributes
        put_varlong(self.time_delta(base_timestamp), sink)?;
        put_varlong(index, sink)?;
        put_field(self.key, sink)?;
        put_field(self.value, sink)?;
        put_varlong(i64::try_from(self.headers.len())?, sink)?;
        for (name, value) in self.headers {
            put_field(Some(name), sink)?;
            put_field(*value, sink)?;
        }
        Ok(())
    }
}

/// The records of a batch of magic 2, measured.
#[derive(Debug)]
pub struct NewRecords<'a> {
    rows: &'a [NewRecord<'a>],
    /// Bytes of each behind its length.
    sizes: Vec<i64>,
    /// Bytes of all together.
    pub bytes: usize,
    base_timestamp: i64,
    max_timestamp: i64,
}

impl<'a> NewRecords<'a> {
    /// Overflow: a length does not fit into its field.
    pub fn new(rows: &'a [NewRecord<'a>]) -> Result<Self, Error> {
        let base_timestamp = rows.first().and_then(|row| row.timestamp).unwrap_or(-1);
        let (mut sizes, mut sum, mut max_timestamp) = (Vec::new(), 0usize, base_timestamp);
        sizes.try_reserve_exact(rows.len())?;
        for (row, index) in rows.iter().zip(0i64..) {
            let bytes = row.bytes(index, base_timestamp)?;
            sum = usize::try_from(bytes)?
                .checked_add(varlong_bytes(bytes))
                .and_then(|bytes| bytes.checked_add(sum))
                .ok_or(Error::Overflow)?;
            sizes.push(bytes);
            max_timestamp = row.timestamp.map_or(max_timestamp, |time| time.max(max_timestamp));
        }
        Ok(NewRecords { rows, sizes, bytes: sum, base_timestamp, max_timestamp })
    }

    /// Write all records.
    pub fn put(&self, sink: &mut impl Sink) -> Result<(), Error> {
        let mut rows = self.rows.iter().zip(&self.sizes).zip(0i64..);
        rows.try_for_each(|((row, &bytes), index)| row.put(bytes, index, self.base_timestamp, sink))
    }
}

/// What the header of a new batch of magic 2 says beside what its records say.
#[derive(Clone, Copy, Debug)]
pub struct NewBatch {
    /// Compression, type of the timestamps, transaction, control.
    pub attributes: i16,
    /// Offset of the first record.
    pub base_offset: i64,
    /// -1: not idempotent.
    pub producer_id: i64,
    /// With the id.
    pub producer_epoch: i16,
    /// Number of the first record among those of the producer.
    pub base_sequence: i32,
}

/// Bytes in front of the records.
pub const BATCH_HEADER_BYTES: usize = 61;

impl NewBatch {
    /// The header of a batch around these records, which take so many bytes in it. `crc` goes on from the CRC-32C of the
    /// part behind the field to that with the records behind it.
    pub fn header(
        &self,
        records: &NewRecords<'_>,
        body_bytes: usize,
        crc: impl FnOnce(u32) -> u32,
    ) -> Result<[u8; BATCH_HEADER_BYTES], Error> {
        let length = body_bytes.checked_add(BATCH_HEADER_BYTES - 12).ok_or(Error::Overflow)?;
        let count = i32::try_from(records.rows.len())?;
        let mut covered = Vec::with_capacity(40);
        covered.put(&self.attributes.to_be_bytes())?;
        covered.put(&count.saturating_sub(1).to_be_bytes())?;
        covered.put(&records.base_timestamp.to_be_bytes())?;
        covered.put(&records.max_timestamp.to_be_bytes())?;
        covered.put(&self.producer_id.to_be_bytes())?;
        covered.put(&self.producer_epoch.to_be_bytes())?;
        covered.put(&self.base_sequence.to_be_bytes())?;
        covered.put(&count.to_be_bytes())?;
        let mut header = Vec::with_capacity(BATCH_HEADER_BYTES);
        header.put(&self.base_offset.to_be_bytes())?;
        header.put(&i32::try_from(length)?.to_be_bytes())?;
        header.put(&[0xFF, 0xFF, 0xFF, 0xFF, 2])?; // the leader's epoch, which the broker sets; the magic
        header.put(&crc(crate::crc32c(&covered, 0)).to_be_bytes())?;
        header.put(&covered)?;
        header.try_into().map_err(|_| Error::Overflow)
    }
}

/// How many bytes `encode_message` makes of a record.
pub fn encoded_message_bytes(record: NewRecord<'_>, magic: u8) -> Result<usize, Error> {
    usize::try_from(message_length(record, magic)?)?.checked_add(12).ok_or(Error::Overflow)
}

fn message_length(record: NewRecord<'_>, magic: u8) -> Result<i32, Error> {
    let fixed = if magic == 0 { 14usize } else { 22 };
    let len = |value: Option<&[u8]>| value.map_or(0, <[u8]>::len);
    let sum = fixed.checked_add(len(record.key)).and_then(|sum| sum.checked_add(len(record.value)));
    Ok(i32::try_from(sum.ok_or(Error::Overflow)?)?)
}

/// A message of magic 0 or 1.
pub fn encode_message(
    record: NewRecord<'_>,
    magic: u8,
    attributes: u8,
    offset: i64,
    sink: &mut impl Sink,
) -> Result<(), Error> {
    let length = message_length(record, magic)?;
    let times = record.timestamp.unwrap_or(-1).to_be_bytes();
    let times = if magic == 0 { &[][..] } else { &times[..] };
    let sizes = [size_field(record.key)?, size_field(record.value)?];
    let [key_size, value_size] = &sizes;
    let fields: [&[u8]; 6] = [
        &[magic, attributes],
        times,
        key_size,
        record.key.unwrap_or_default(),
        value_size,
        record.value.unwrap_or_default(),
    ];
    let mut crc = crc32fast::Hasher::new();
    fields.iter().for_each(|field| crc.update(field));
    sink.put(&offset.to_be_bytes())?;
    sink.put(&length.to_be_bytes())?;
    sink.put(&crc.finalize().to_be_bytes())?;
    fields.iter().try_for_each(|field| sink.put(field))
}

fn size_field(value: Option<&[u8]>) -> Result<[u8; 4], Error> {
    Ok(value.map_or(Ok(-1), |value| i32::try_from(value.len()))?.to_be_bytes())
}
