//! One entry of a set, if it is a plain message (specification 2.1).

/// Bytes of the largest entry that a length field can express.
pub const NO_LIMIT: i64 = 4 + 0x7FFF_FFFF;

/// Bytes of the smallest entry: an empty message of magic 0.
pub(crate) const MIN_ENTRY_BYTES: usize = 9;

/// A plain message with the right CRC.
pub(crate) struct Plain<'a> {
    pub payload: &'a [u8],
    /// The index after it.
    pub end: usize,
}

/// The message at index `at`, or None if the entry is incomplete, compressed, damaged or too large.
///
/// Heads are read as 10 bytes, so an empty message of magic 0, which has 9, is not recognised at the very end.
#[inline]
pub(crate) fn plain_at(data: &[u8], at: usize, max_entry: i64) -> Option<Plain<'_>> {
    let &[a, b, c, d, magic, attributes, e, f, g, h] = data.get(at..)?.first_chunk()?;
    let length = i32::from_be_bytes([a, b, c, d]);
    if i64::from(length) > max_entry.saturating_sub(4) {
        return None;
    }
    let (head, crc) = match magic {
        1 if attributes & 3 == 0 => (10, [e, f, g, h]), // the upper bits of the attributes mean nothing
        0 => (9, [attributes, e, f, g]),                // no attributes: the CRC starts a byte earlier
        _ => return None,
    };
    let end = at.checked_add(4)?.checked_add(usize::try_from(length).ok()?)?;
    let payload = data.get(at.checked_add(head)?..end)?;
    (crc32fast::hash(payload) == u32::from_be_bytes(crc)).then_some(Plain { payload, end })
}

/// The CRC-32 of `data`, continued from `before`, the CRC-32 of the bytes before it.
#[must_use]
pub fn crc32(data: &[u8], before: u32) -> u32 {
    let mut crc = crc32fast::Hasher::new_with_initial(before);
    crc.update(data);
    crc.finalize()
}

/// The index after the run of plain messages that starts at `start`, and their number.
#[must_use]
pub fn check_run(data: &[u8], start: usize, max_entry: i64) -> (usize, usize) {
    let (mut at, mut count) = (start, 0usize);
    while let Some(message) = plain_at(data, at, max_entry) {
        at = message.end;
        count = count.saturating_add(1);
    }
    (at, count)
}
