//! The loops that touch every message of a 0.7 message set, over plain byte slices.
//!
//! `src/odradek/engine/interface.py` defines what each of them means; the pure engine beside it is the other
//! implementation, and tests compare the two. This crate knows no interpreter, does not panic, and has no `unsafe`
//! block.

#![forbid(unsafe_code)]

mod buffer_pool;
mod byte_strings;
mod encode;
mod entry;
mod packed;
mod rows;

pub use buffer_pool::{Item, recycle};
pub use byte_strings::{ByteStrings, Offset, Offsets};
pub use encode::{Sink, encode_run, encoded_bytes};
pub use entry::{NO_LIMIT, check_run, crc32};
pub use packed::{Limits, fit, nullable, packed};
pub use rows::{ColumnBuilder, Columns};

/// The reason why a call failed. A failed call has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// There is no memory for the result.
    Memory,
    /// A number does not fit into its field.
    Overflow,
    /// Offsets do not ascend within their data.
    Offsets,
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
