//! `PayloadBuilder` and `ColumnBuilder`.

use odradek_engine::{ByteStrings, NO_LIMIT, Offsets, packed};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::buffers::{Borrowed, list_of};
use crate::columns::DecodedColumns;
use crate::{raised, run};

/// See `interface.PayloadBuilder`.
#[pyclass(module = "odradek.engine._compiled")]
#[derive(Default)]
pub struct PayloadBuilder(ByteStrings);

#[pymethods]
impl PayloadBuilder {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    #[getter]
    fn payload_bytes(&self) -> usize {
        self.0.data().len()
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn decode_run(&mut self, data: &Bound<'_, PyAny>, start: isize, stop: isize) -> PyResult<usize> {
        let borrowed = Borrowed::new(data)?;
        let (bytes, start) = borrowed.up_to(start, stop)?;
        run(data.py(), bytes.len().saturating_sub(start), || self.0.decode_run(bytes, start))
    }

    fn append(&mut self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.0.push(Borrowed::new(value)?.as_slice()).map_err(raised)
    }

    fn tolist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        match self.0.offsets() {
            Offsets::Narrow(offsets) => list_of(py, self.0.len(), packed(offsets, self.0.data())),
            Offsets::Wide(offsets) => list_of(py, self.0.len(), packed(offsets, self.0.data())),
        }
    }
}

/// See `interface.ColumnBuilder`.
#[pyclass(module = "odradek.engine._compiled")]
#[derive(Default)]
pub struct ColumnBuilder(odradek_engine::ColumnBuilder);

#[pymethods]
impl ColumnBuilder {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    #[pyo3(signature = (data, start, stop, base = 0, max_entry = NO_LIMIT))]
    fn decode_run(
        &mut self,
        data: &Bound<'_, PyAny>,
        start: isize,
        stop: isize,
        base: i64,
        max_entry: i64,
    ) -> PyResult<usize> {
        let borrowed = Borrowed::new(data)?;
        let (bytes, start) = borrowed.up_to(start, stop)?;
        let rows = &mut self.0;
        run(data.py(), bytes.len().saturating_sub(start), || rows.decode_run(bytes, start, base, max_entry))
    }

    #[pyo3(signature = (value, position, next_position, inner_index = 0))]
    fn append(
        &mut self,
        value: &Bound<'_, PyAny>,
        position: i64,
        next_position: i64,
        inner_index: i32,
    ) -> PyResult<()> {
        self.0.push(Borrowed::new(value)?.as_slice(), position, next_position, inner_index).map_err(raised)
    }

    fn add_wrapper(
        &mut self,
        py: Python<'_>,
        values: PyRef<'_, PayloadBuilder>,
        position: i64,
        next_position: i64,
    ) -> PyResult<()> {
        let (rows, strings) = (&mut self.0, &values.0);
        run(py, strings.data().len(), || rows.add_wrapper(strings, position, next_position))
    }

    fn take(&mut self) -> DecodedColumns {
        DecodedColumns::new(self.0.take())
    }
}
