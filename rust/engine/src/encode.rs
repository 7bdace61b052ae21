//! Entries of magic 1, as every 0.7 writer makes them (specification 2.1).

use crate::Error;

/// Bytes of an entry before its payload.
const HEAD_BYTES: usize = 10;

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

/// The length field of an entry of `bytes`: it does not count itself.
fn length_field(bytes: usize) -> Result<i32, Error> {
    Ok(i32::try_from(bytes.saturating_sub(4))?)
}
