//! The loops that touch every message of a set and every record of a batch, over plain byte slices.
//!
//! `src/odradek/engine/interface.py` defines what each of them means; the pure engine beside it is the other
//! implementation, and tests compare the two. This crate knows no interpreter, does not panic, and has no `unsafe`
//! block.

#![forbid(unsafe_code)]

mod batch;
mod buffer_pool;
mod byte_strings;
mod columns;
mod decompress;
mod encode;
mod encode_records;
mod entry;
mod lz4;
mod messages;
mod murmur2;
mod nullable;
mod packed;
mod records;
mod rows;
mod varint;

pub use batch::{Batch, BatchLimits, check_batches};
pub use buffer_pool::{Item, recycle};
pub use byte_strings::{ByteStrings, Offset, Offsets};
pub use columns::{Columns, Rows};
pub use encode::{Sink, encode_frame, encode_run, encoded_bytes, frame_bytes};
pub use encode_records::{
    BATCH_HEADER_BYTES, Header, NewBatch, NewRecord, NewRecords, encode_message, encoded_message_bytes,
};
pub use entry::{NO_LIMIT, check_run, crc32};
pub use lz4::{Lz4Block, lz4_content, lz4_most};
pub use messages::{MessageRun, scan_messages};
pub use murmur2::murmur2;
pub use nullable::{NullableColumn, NullableStrings};
pub use packed::{Limits, fit, nullable, packed};
pub use records::{HeaderColumn, RecordBuilder};
pub use rows::ColumnBuilder;

/// Return the CRC-32C of `data`, continued from `before`, the CRC of the bytes before it.
#[must_use]
pub fn crc32c(data: &[u8], before: u32) -> u32 {
    ::crc32c::crc32c_append(before, data)
}

/// The reason why a call failed. A failed call has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// There is no memory for the result.
    Memory,
    /// A number does not fit into its field.
    Overflow,
    /// Offsets do not ascend within their data.
    Offsets,
    /// Compressed data is damaged.
    Damaged,
}

impl From<std::collections::TryReserveError> for Error {
    fn from(_: std::collections::TryReserveError) -> Self {
        Error::Memory
    }
}

impl From<std::num::TryFromIntError> for Error {
    fn from(_: std::num::TryFromIntError) -> Self {
        Error::Overflow
    }
}
