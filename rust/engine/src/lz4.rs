//! What blocks of LZ4 frames hold.

use lz4_flex::block::decompress_into;

use crate::Error;
use crate::buffer_pool::reserve;

/// A block of a frame.
#[derive(Clone, Copy, Debug)]
pub struct Lz4Block<'a> {
    /// Its bytes, as they are in the frame.
    pub bytes: &'a [u8],
    /// These are what it holds: it is not compressed.
    pub stored: bool,
    /// The most bytes that it may hold.
    pub most: usize,
}

/// What these blocks hold, one behind the other; `Overflow` if that is more than `max_bytes`.
pub fn lz4_content(blocks: &[Lz4Block<'_>], max_bytes: usize) -> Result<Vec<u8>, Error> {
    let (mut made, bytes) = (Vec::new(), lz4_most(blocks).min(max_bytes));
    reserve(&mut made, bytes)?;
    made.resize(bytes, 0);
    let len = content(blocks, &mut made)?;
    made.truncate(len);
    Ok(made)
}

/// The most bytes that these blocks may hold.
#[must_use]
pub fn lz4_most(blocks: &[Lz4Block<'_>]) -> usize {
    blocks.iter().fold(0, |sum: usize, block| sum.saturating_add(block.most))
}

/// Write what these blocks hold to the start of `to`, and give how much that is; `Overflow` if it is too much.
pub(crate) fn content(blocks: &[Lz4Block<'_>], to: &mut [u8]) -> Result<usize, Error> {
    let mut end = 0usize;
    for block in blocks {
        let free = to.get_mut(end..).unwrap_or_default();
        let full = if free.len() < block.most { Error::Overflow } else { Error::Damaged };
        let most = free.len().min(block.most);
        let free = free.get_mut(..most).unwrap_or_default();
        let bytes = if block.stored {
            free.get_mut(..block.bytes.len()).ok_or(full)?.copy_from_slice(block.bytes);
            block.bytes.len()
        } else {
            decompress_into(block.bytes, free).map_err(|_| full)?
        };
        end = end.saturating_add(bytes);
    }
    Ok(end)
}
