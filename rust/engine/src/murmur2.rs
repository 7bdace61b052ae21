//! The hash by which Kafka's own producer chooses the partition of a key.

const MULTIPLIER: u32 = 0x5bd1_e995;

/// Return the 32-bit murmur2 hash of `data`, with the seed of Kafka's `Utils.murmur2`.
#[must_use]
pub fn murmur2(data: &[u8]) -> u32 {
    let words = data.chunks_exact(4);
    let rest = words.remainder();
    // Java's length is an i32; a key of 4 GiB cannot be sent.
    let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
    let mut hash = 0x9747_b28c ^ length;
    for word in words {
        let word = little_endian(word).wrapping_mul(MULTIPLIER);
        hash = hash.wrapping_mul(MULTIPLIER) ^ (word ^ (word >> 24)).wrapping_mul(MULTIPLIER);
    }
    if !rest.is_empty() {
        hash = (hash ^ little_endian(rest)).wrapping_mul(MULTIPLIER);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(MULTIPLIER);
    hash ^ (hash >> 15)
}

fn little_endian(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |word, &byte| (word << 8) | u32::from(byte))
}
