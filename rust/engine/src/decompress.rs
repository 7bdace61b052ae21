//! What the records of compressed batches are (specification 3.4), as nearly all writers compress them.
//!
//! Anything else, damage included, is left to the caller: gzip, and frames that other writers could make.

use crate::buffer_pool::{recycle, reserve};
use crate::lz4::{self, Lz4Block};
use crate::varint::Cursor;

/// A compression whose content is read here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    Snappy,
    Lz4,
    Zstd,
}

impl Compression {
    /// The compression of this number in the attributes of a batch.
    pub fn of(number: i16) -> Option<Self> {
        match number {
            2 => Some(Compression::Snappy),
            3 => Some(Compression::Lz4),
            4 => Some(Compression::Zstd),
            _ => None,
        }
    }
}

/// Decompresses one batch after the other into the same memory.
#[derive(Default)]
pub(crate) struct Decompressor {
    content: Vec<u8>,
    zstd: Option<zstd_safe::DCtx<'static>>,
}

impl Drop for Decompressor {
    fn drop(&mut self) {
        recycle(std::mem::take(&mut self.content));
    }
}

impl Decompressor {
    /// What the bytes hold; None if that is left to the caller, or is more than `max_bytes`.
    pub fn content(&mut self, compression: Compression, bytes: &[u8], max_bytes: usize) -> Option<&[u8]> {
        let len = match compression {
            Compression::Snappy => self.snappy(bytes, max_bytes),
            Compression::Lz4 => self.lz4(bytes, max_bytes),
            Compression::Zstd => self.zstd(bytes, max_bytes),
        }?;
        self.content.get(..len)
    }

    /// Memory for so many bytes; what is in it has no meaning.
    fn space(&mut self, bytes: usize) -> Option<&mut [u8]> {
        if self.content.len() < bytes {
            self.content.clear();
            reserve(&mut self.content, bytes).ok()?;
            self.content.resize(bytes, 0);
        }
        self.content.get_mut(..bytes)
    }

    /// Blocks behind the header of snappy-java's streams, or one block alone.
    fn snappy(&mut self, bytes: &[u8], max_bytes: usize) -> Option<usize> {
        let mut blocks = Vec::new();
        if let Some(stream) = bytes.strip_prefix(SNAPPY_HEADER) {
            let mut rest = Cursor::new(stream);
            while !rest.rest().is_empty() {
                let size = usize::try_from(i32::from_be_bytes(rest.array()?)).ok()?;
                blocks.push(rest.bytes(size)?);
            }
        } else if bytes.starts_with(SNAPPY_MAGIC) {
            return None;
        } else {
            blocks.push(bytes);
        }
        let mut sizes = Vec::with_capacity(blocks.len());
        for block in &blocks {
            let size = snap::raw::decompress_len(block).ok()?;
            sizes.push(Some(size).filter(|&size| !block.is_empty() && size <= most_of_snappy(block.len()))?);
        }
        let whole = sizes.iter().fold(0, |sum: usize, &size| sum.saturating_add(size));
        let mut free = self.space(Some(whole).filter(|&whole| whole <= max_bytes)?)?;
        for (block, size) in blocks.into_iter().zip(sizes) {
            let (to, rest) = free.split_at_mut_checked(size)?;
            snap::raw::Decoder::new().decompress(block, to).ok().filter(|&made| made == size)?;
            free = rest;
        }
        Some(whole)
    }

    /// A frame with the header that Kafka's own writers make.
    fn lz4(&mut self, bytes: &[u8], max_bytes: usize) -> Option<usize> {
        let mut rest = Cursor::new(bytes.strip_prefix(LZ4_HEADER)?);
        let mut blocks = Vec::new();
        loop {
            let size = u32::from_le_bytes(rest.array()?);
            if size == 0 {
                break;
            }
            let (stored, len) = (size & LZ4_STORED != 0, usize::try_from(size & !LZ4_STORED).ok()?);
            if len > LZ4_BLOCK {
                return None;
            }
            let most = if stored { len } else { len.saturating_mul(255).saturating_add(64).min(LZ4_BLOCK) };
            blocks.push(Lz4Block { bytes: rest.bytes(len)?, stored, most });
        }
        if !rest.rest().is_empty() {
            return None;
        }
        lz4::content(&blocks, self.space(lz4::lz4_most(&blocks).min(max_bytes))?).ok()
    }

    /// One frame, without a dictionary, and with a window that every reader has memory for.
    fn zstd(&mut self, bytes: &[u8], max_bytes: usize) -> Option<usize> {
        let &[_, _, _, _, flags, window, ..] = bytes else { return None };
        let is_single = flags & ZSTD_SINGLE_SEGMENT != 0;
        let is_usual = flags & ZSTD_DICTIONARY == 0 && (is_single || window <= ZSTD_MAX_WINDOW);
        if !is_usual || zstd_safe::find_frame_compressed_size(bytes) != Ok(bytes.len()) {
            return None;
        }
        let most = usize::try_from(zstd_safe::decompress_bound(bytes).ok()?).ok()?;
        let mut context = match self.zstd.take() {
            Some(context) => context,
            None => zstd_safe::DCtx::try_create()?,
        };
        let made = context.decompress(self.space(most.min(max_bytes))?, bytes).ok();
        self.zstd = Some(context);
        made
    }
}

/// Bits of a frame's first byte, and the byte of a window of 128 MiB (RFC 8878, section 3.1.1.1).
const ZSTD_SINGLE_SEGMENT: u8 = 0x20;
const ZSTD_DICTIONARY: u8 = 3;
const ZSTD_MAX_WINDOW: u8 = 17 << 3;

const SNAPPY_MAGIC: &[u8] = b"\x82SNAPPY\0";
/// Version 1, readable by version 1.
const SNAPPY_HEADER: &[u8] = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01";

/// The most bytes that a block of snappy can stand for: a copy of 64 bytes takes 3.
fn most_of_snappy(block: usize) -> usize {
    block.saturating_mul(22)
}

/// Version 1, independent blocks of up to 64 KiB, no checksums, no content size; and the checksum of that.
const LZ4_HEADER: &[u8] = b"\x04\x22\x4d\x18\x60\x40\x82";
const LZ4_BLOCK: usize = 1 << 16;
const LZ4_STORED: u32 = 1 << 31;
