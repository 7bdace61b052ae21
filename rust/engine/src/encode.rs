//! Entries of magic 1, as every 0.7 writer makes them (specification 2.1).

use crate::Error;

/// Bytes of an entry before its payload.
const HEAD_BYTES: usize = 10;

/// Bytes of a length field.
const LENGTH_BYTES: usize = 4;

/// A receiver of encoded bytes, with room for them.
pub trait Sink {
    /// Append these bytes. An error means that there is no room for them.
    fn put(&mut self, bytes: &[u8]) -> Result<(), Error>;
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.try_reserve(bytes.len())?;
        self.extend_from_slice(bytes);
        Ok(())
    }
}

/// The bytes that `encode_run` makes of these payloads. Overflow: one is too long for its length field.
pub fn encoded_bytes<'a>(values: impl Iterator<Item = Result<&'a [u8], Error>>) -> Result<usize, Error> {
    let mut sum = 0usize;
    for value in values {
        let bytes = value?.len().checked_add(HEAD_BYTES).ok_or(Error::Overflow)?;
        length_field(bytes)?;
        sum = sum.checked_add(bytes).ok_or(Error::Overflow)?;
    }
    Ok(sum)
}

/// Encode the payloads as consecutive entries.
pub fn encode_run<'a>(
    values: impl Iterator<Item = Result<&'a [u8], Error>>,
    attributes: u8,
    sink: &mut impl Sink,
) -> Result<(), Error> {
    for value in values {
        let value = value?;
        let [a, b, c, d] = length_field(value.len().saturating_add(HEAD_BYTES))?.to_be_bytes();
        let [e, f, g, h] = crc32fast::hash(value).to_be_bytes();
        sink.put(&[a, b, c, d, 1, attributes, e, f, g, h])?;
        sink.put(value)?;
    }
    Ok(())
}

/// The bytes of a frame of several runs, each behind its head: `head` is what precedes all of them inside the frame.
/// None: the entries of a run have more than `max_run` bytes. Overflow: a length does not fit into its field.
pub fn frame_bytes<'a>(
    head: &[u8],
    runs: impl Iterator<Item = (&'a [u8], &'a [&'a [u8]])>,
    max_run: i64,
) -> Result<Option<usize>, Error> {
    let mut sum = head.len().checked_add(LENGTH_BYTES).ok_or(Error::Overflow)?;
    for (head, values) in runs {
        let bytes = encoded_bytes(values.iter().map(|value| Ok(*value)))?;
        if i64::try_from(bytes)? > max_run {
            return Ok(None);
        }
        i32::try_from(bytes)?;
        sum = sum.checked_add(bytes).and_then(|sum| sum.checked_add(head.len())).ok_or(Error::Overflow)?;
        sum = sum.checked_add(LENGTH_BYTES).ok_or(Error::Overflow)?;
    }
    length_field(sum)?;
    Ok(Some(sum))
}

/// Encode the runs as one frame of `bytes`, which `frame_bytes` has said: its length, which does not count itself, the
/// head, and for each run its own head, its length and its entries.
pub fn encode_frame<'a>(
    bytes: usize,
    head: &[u8],
    runs: impl Iterator<Item = (&'a [u8], &'a [&'a [u8]])>,
    sink: &mut impl Sink,
) -> Result<(), Error> {
    sink.put(&length_field(bytes)?.to_be_bytes())?;
    sink.put(head)?;
    for (head, values) in runs {
        let rows = values.iter().map(|value| Ok(*value));
        sink.put(head)?;
        sink.put(&i32::try_from(encoded_bytes(rows.clone())?)?.to_be_bytes())?;
        encode_run(rows, 0, sink)?;
    }
    Ok(())
}

/// The length field of an entry of `bytes`: it does not count itself.
fn length_field(bytes: usize) -> Result<i32, Error> {
    Ok(i32::try_from(bytes.saturating_sub(4))?)
}
