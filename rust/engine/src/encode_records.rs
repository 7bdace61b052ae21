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
}

/// One header to write.
pub type Header<'a> = (&'a [u8], Option<&'a [u8]>);

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

/// Bytes of a record of magic 2 behind its length.
#[inline]
fn record_bytes(record: NewRecord<'_>, index: i64, base_timestamp: i64, headers: &[Header<'_>]) -> Result<i64, Error> {
    let since = record.timestamp.map_or(0, |time| time.wrapping_sub(base_timestamp));
    let numbers = varlong_bytes(since).saturating_add(varlong_bytes(index)).saturating_add(1);
    let mut sum = numbers
        .checked_add(field_bytes(record.key)?)
        .and_then(|sum| sum.checked_add(varlong_bytes(i64::try_from(headers.len()).ok()?)))
        .ok_or(Error::Overflow)?;
    sum = sum.checked_add(field_bytes(record.value)?).ok_or(Error::Overflow)?;
    for (name, value) in headers {
        sum = sum.checked_add(field_bytes(Some(name))?).ok_or(Error::Overflow)?;
        sum = sum.checked_add(field_bytes(*value)?).ok_or(Error::Overflow)?;
    }
    Ok(i64::from(i32::try_from(sum)?))
}

/// How many bytes `encode_record` makes of a record.
pub fn encoded_record_bytes(
    record: NewRecord<'_>,
    index: i64,
    base_timestamp: i64,
    headers: &[Header<'_>],
) -> Result<usize, Error> {
    let bytes = record_bytes(record, index, base_timestamp, headers)?;
    usize::try_from(bytes)?.checked_add(varlong_bytes(bytes)).ok_or(Error::Overflow)
}

/// A record of magic 2, number `index` of its batch.
#[inline]
pub fn encode_record(
    record: NewRecord<'_>,
    index: i64,
    base_timestamp: i64,
    headers: &[Header<'_>],
    sink: &mut impl Sink,
) -> Result<(), Error> {
    put_varlong(record_bytes(record, index, base_timestamp, headers)?, sink)?;
    sink.put(&[0])?;
    put_varlong(record.timestamp.map_or(0, |time| time.wrapping_sub(base_timestamp)), sink)?;
    put_varlong(index, sink)?;
    put_field(record.key, sink)?;
    put_field(record.value, sink)?;
    put_varlong(i64::try_from(headers.len())?, sink)?;
    for (name, value) in headers {
        put_field(Some(name), sink)?;
        put_field(*value, sink)?;
    }
    Ok(())
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
