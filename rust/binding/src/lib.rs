//! `odradek.engine._compiled`: the interface of `src/odradek/engine/interface.py` for Python.
//!
//! Buffers above `DETACHED_BYTES` are processed without the interpreter's lock.

mod append;
mod buffers;
mod columns;
mod encode;
mod functions;
mod records;
mod rows;

use odradek_engine::Error;
use pyo3::exceptions::{PyMemoryError, PyOverflowError, PyValueError};
use pyo3::prelude::*;

/// From this size on, releasing the interpreter's lock is worth its cost: this much is decoded in about 15 us.
const DETACHED_BYTES: usize = 64 * 1024;

/// The Python exception for an error.
fn raised(error: Error) -> PyErr {
    match error {
        Error::Memory => PyMemoryError::new_err("no memory for the result"),
        Error::Overflow => PyOverflowError::new_err("a number does not fit into its field"),
        Error::Offsets => PyValueError::new_err("offsets do not ascend within their data"),
        Error::Damaged => PyValueError::new_err("bad data"),
    }
}

/// Run this work on `bytes` of data, without the interpreter's lock if they are many.
fn run<T: Send>(py: Python<'_>, bytes: usize, work: impl FnOnce() -> Result<T, Error> + Send) -> PyResult<T> {
    if bytes < DETACHED_BYTES { work() } else { py.detach(work) }.map_err(raised)
}

/// A block of this size, allocated and freed, is what glibc learns from to keep twice as much free memory (mallopt(3),
/// M_TRIM_THRESHOLD); before, it gives back all but 128 KiB of the end of its heap. The values of a fetch, as objects of
/// Python, take about as much as they did in the last one: without this the kernel zeroes the same pages again each time.
const LARGE_BLOCK: usize = 8 << 20;

/// The loops over messages, compiled.
#[pymodule(gil_used = false)]
mod _compiled {
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        let mut block = Vec::<u8>::new();
        block.try_reserve_exact(super::LARGE_BLOCK).map_err(|_| super::raised(super::Error::Memory))?;
        drop(std::hint::black_box(block));
        Ok(())
    }

    #[pymodule_export]
    const NAME: &str = "compiled";

    #[pymodule_export]
    use super::append::{Appender, BatchBase, BufferBase};
    #[pymodule_export]
    use super::columns::DecodedColumns;
    #[pymodule_export]
    use super::encode::{encode_batch, encode_batches, encode_messages};
    #[pymodule_export]
    use super::functions::{
        check_run, crc32, crc32c, encode_frame, encode_run, fit, lz4_content, murmur2, scan_messages, unpack,
    };
    #[pymodule_export]
    use super::records::{RecordBuilder, check_batches};
    #[pymodule_export]
    use super::rows::{ColumnBuilder, PayloadBuilder};
}
