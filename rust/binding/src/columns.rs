//! Columns that Python sees as memoryviews, without a copy.

use std::ffi::{c_int, c_void};

use odradek_engine::Offsets;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyMemoryView, PyType};

use crate::buffers::{Layout, export};

/// Memory that memoryviews look at.
#[pyclass(frozen, module = "odradek.codec._compiled")]
pub struct Column {
    items: Items,
    shape: [isize; 1],
}

enum Items {
    Bytes(Vec<u8>),
    Ints(Vec<i32>),
    Longs(Vec<i64>),
}

static BYTES: Layout = Layout { format: c"B", item_bytes: 1 };
static INTS: Layout = Layout { format: c"i", item_bytes: 4 };
static LONGS: Layout = Layout { format: c"q", item_bytes: 8 };

impl Items {
    fn memory(&self) -> (*const c_void, usize, &'static Layout) {
        match self {
            Items::Bytes(items) => (items.as_ptr().cast(), items.len(), &BYTES),
            Items::Ints(items) => (items.as_ptr().cast(), items.len(), &INTS),
            Items::Longs(items) => (items.as_ptr().cast(), items.len(), &LONGS),
        }
    }
}

#[pymethods]
impl Column {
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let column = slf.get();
        let (items, _, layout) = column.items.memory();
        // SAFETY: a column is frozen: its vector and its shape stay as they are until it is dropped.
        unsafe { export(view, flags, slf.clone().into_any(), items, layout, &column.shape) }
    }
}

fn view(py: Python<'_>, items: Items) -> PyResult<Bound<'_, PyMemoryView>> {
    let shape = [items.memory().1.try_into()?];
    PyMemoryView::from(Bound::new(py, Column { items, shape })?.as_any())
}

/// A read-only memoryview of 'q'.
pub fn longs(py: Python<'_>, items: Vec<i64>) -> PyResult<Bound<'_, PyMemoryView>> {
    view(py, Items::Longs(items))
}

/// A read-only memoryview of 'i'.
pub fn ints(py: Python<'_>, items: Vec<i32>) -> PyResult<Bound<'_, PyMemoryView>> {
    view(py, Items::Ints(items))
}

/// An `odradek.codec.packed.Packed`.
pub fn packed<'py>(py: Python<'py>, data: Vec<u8>, offsets: Offsets) -> PyResult<Bound<'py, PyAny>> {
    static PACKED: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let offsets = match offsets {
        Offsets::Narrow(offsets) => ints(py, offsets)?,
        Offsets::Wide(offsets) => longs(py, offsets)?,
    };
    PACKED.import(py, "odradek.codec.packed", "Packed")?.call1((offsets, view(py, Items::Bytes(data))?))
}
