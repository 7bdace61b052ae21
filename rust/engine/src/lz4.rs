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
    let mut content = Vec::new();
    reserve(&mut content, blocks.iter().fold(0, |sum: usize, block| sum.saturating_add(block.most)).min(max_bytes))?;
    for block in blocks {
        let start = content.len();
        let free = block.most.min(max_bytes.saturating_sub(start));
        let full = if free < block.most { Error::Overflow } else { Error::Damaged };
        if block.stored {
            content
                .extend_from_slice(block.bytes.get(..free).filter(|all| all.len() == block.bytes.len()).ok_or(full)?);
            continue;
        }
        content.resize(start.saturating_add(free), 0);
        let to = content.get_mut(start..).unwrap_or_default();
        let bytes = decompress_into(block.bytes, to).map_err(|_| full)?;
        content.truncate(start.saturating_add(bytes));
    }
    Ok(content)
}
