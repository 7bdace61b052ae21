//! `RecordBuilder`.

use odradek_engine::{Batch, BatchLimits, MessageRun, NO_LIMIT};
use pyo3::prelude::*;

use crate::buffers::Borrowed;
use crate::columns::DecodedColumns;
use crate::{raised, run};

/// Decompressing a byte takes so much longer than decoding one.
const EXPANDED: usize = 4;

/// See `interface.Engine.check_batches`.
#[pyfunction]
pub fn check_batches(
    data: &Bound<'_, PyAny>,
    start: isize,
    stop: isize,
    max_entry: i64,
    max_decompressed: usize,
    transactional: bool,
) -> PyResult<(usize, i64)> {
    let borrowed = Borrowed::new(data)?;
    let (bytes, start) = borrowed.up_to(start, stop)?;
    let limits = BatchLimits { max_entry, max_decompressed, transactional, checked: false };
    run(data.py(), bytes.len().saturating_sub(start), || Ok(odradek_engine::check_batches(bytes, start, limits)))
}

/// See `interface.RecordBuilder`.
#[pyclass(module = "odradek.engine._compiled")]
#[derive(Default)]
pub struct RecordBuilder(odradek_engine::RecordBuilder);

#[pymethods]
impl RecordBuilder {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    #[allow(clippy::too_many_arguments)]
    fn decode_batch(
        &mut self,
        data: &Bound<'_, PyAny>,
        start: isize,
        stop: isize,
        count: i64,
        base_offset: i64,
        last_delta: i64,
        first_offset: i64,
        timestamp: i64,
        append_time: bool,
    ) -> PyResult<(usize, i64, i64)> {
        let borrowed = Borrowed::new(data)?;
        let (bytes, start) = borrowed.up_to(start, stop)?;
        let batch = Batch { count, base_offset, last_delta, first_offset, timestamp, append_time };
        let rows = &mut self.0;
        run(data.py(), bytes.len().saturating_sub(start), || rows.decode_batch(bytes, start, batch))
    }

    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (data, start, stop, first_offset, max_entry = NO_LIMIT, max_decompressed = 0,
                        transactional = false, checked = false))]
    fn decode_batches(
        &mut self,
        data: &Bound<'_, PyAny>,
        start: isize,
        stop: isize,
        first_offset: i64,
        max_entry: i64,
        max_decompressed: usize,
        transactional: bool,
        checked: bool,
    ) -> PyResult<(usize, i64, usize)> {
        let borrowed = Borrowed::new(data)?;
        let (bytes, start) = borrowed.up_to(start, stop)?;
        let limits = BatchLimits { max_entry, max_decompressed, transactional, checked };
        let work = bytes.len().saturating_sub(start).saturating_mul(if max_decompressed > 0 { EXPANDED } else { 1 });
        let rows = &mut self.0;
        run(data.py(), work, || rows.decode_batches(bytes, start, first_offset, limits))
    }

    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (data, start, stop, first_offset, shift = 0, append_time = None, max_entry = NO_LIMIT))]
    fn decode_messages(
        &mut self,
        data: &Bound<'_, PyAny>,
        start: isize,
        stop: isize,
        first_offset: i64,
        shift: i64,
        append_time: Option<i64>,
        max_entry: i64,
    ) -> PyResult<(usize, i64)> {
        let borrowed = Borrowed::new(data)?;
        let (bytes, start) = borrowed.up_to(start, stop)?;
        let messages = MessageRun { first_offset, shift, append_time, max_entry };
        let rows = &mut self.0;
        run(data.py(), bytes.len().saturating_sub(start), || rows.decode_messages(bytes, start, messages))
    }

    fn append(&mut self, value: &Bound<'_, PyAny>, position: i64, next_position: i64) -> PyResult<()> {
        self.0.push(Borrowed::new(value)?.as_slice(), position, next_position).map_err(raised)
    }

    fn take(&mut self) -> DecodedColumns {
        DecodedColumns::new(self.0.take())
    }
}
