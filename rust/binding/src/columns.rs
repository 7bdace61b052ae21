//! Rust's memory in Python: columns that are memoryviews, without a copy.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use odradek_engine::{HeaderColumn, NullableColumn, Offsets, recycle};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyMemoryView, PyType};

/// The exporter of a memoryview. It never changes.
#[pyclass(frozen, module = "odradek.engine._compiled")]
pub struct Column {
    items: Items,
    shape: [isize; 1],
}

enum Items {
    Bytes(Vec<u8>),
    Ints(Vec<i32>),
    Longs(Vec<i64>),
    Signed(Vec<i8>),
}

/// The items of a column in Python: the format of the `struct` module, and their size.
struct Layout {
    format: &'static CStr,
    strides: [isize; 1],
}

static BYTES: Layout = Layout { format: c"B", strides: [1] };
static SIGNED: Layout = Layout { format: c"b", strides: [1] };
static INTS: Layout = Layout { format: c"i", strides: [4] };
static LONGS: Layout = Layout { format: c"q", strides: [8] };

impl Items {
    fn memory(&self) -> (*const c_void, usize, &'static Layout) {
        match self {
            Items::Bytes(items) => (items.as_ptr().cast(), items.len(), &BYTES),
            Items::Ints(items) => (items.as_ptr().cast(), items.len(), &INTS),
            Items::Longs(items) => (items.as_ptr().cast(), items.len(), &LONGS),
            Items::Signed(items) => (items.as_ptr().cast(), items.len(), &SIGNED),
        }
    }
}

/// When no memoryview refers to the column any more, its memory is recycled.
impl Drop for Column {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.items, Items::Bytes(Vec::new())) {
            Items::Bytes(items) => recycle(items),
            Items::Ints(items) => recycle(items),
            Items::Longs(items) => recycle(items),
            Items::Signed(_) => {}
        }
    }
}

#[pymethods]
impl Column {
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let wanted = |flag: c_int| flags & flag == flag;
        if view.is_null() || wanted(ffi::PyBUF_WRITABLE) {
            return Err(PyBufferError::new_err("columns are read-only"));
        }
        let column = slf.get();
        let (items, _, Layout { format, strides: strides @ [item_bytes] }) = column.items.memory();
        let [count] = column.shape;
        // SAFETY: the interpreter passes a view to be filled. Its contents belong to the column or are static,
        // and the view holds a reference to the column, which is frozen and whose vector stays as it is until it is
        // dropped. A consumer of a read-only buffer does not write.
        unsafe {
            (*view).buf = items.cast_mut();
            (*view).len = count.saturating_mul(*item_bytes);
            (*view).itemsize = *item_bytes;
            (*view).readonly = 1;
            (*view).ndim = 1;
            (*view).format = if wanted(ffi::PyBUF_FORMAT) { format.as_ptr().cast_mut() } else { ptr::null_mut() };
            (*view).shape = if wanted(ffi::PyBUF_ND) { column.shape.as_ptr().cast_mut() } else { ptr::null_mut() };
            (*view).strides = if wanted(ffi::PyBUF_STRIDES) { strides.as_ptr().cast_mut() } else { ptr::null_mut() };
            (*view).suboffsets = ptr::null_mut();
            (*view).internal = ptr::null_mut();
            (*view).obj = slf.clone().into_ptr();
        }
        Ok(())
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

/// A read-only memoryview of 'b'.
pub fn signed(py: Python<'_>, items: Vec<i8>) -> PyResult<Bound<'_, PyMemoryView>> {
    view(py, Items::Signed(items))
}

/// An `odradek.engine.packed.PackedBytes` without nulls.
pub fn packed(py: Python<'_>, data: Vec<u8>, offsets: Offsets) -> PyResult<Bound<'_, PyAny>> {
    nullable(py, NullableColumn { data, offsets, validity: None })
}

/// An `odradek.engine.packed.PackedBytes`.
pub fn nullable(py: Python<'_>, column: NullableColumn) -> PyResult<Bound<'_, PyAny>> {
    static PACKED: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let offsets = match column.offsets {
        Offsets::Narrow(offsets) => ints(py, offsets)?,
        Offsets::Wide(offsets) => longs(py, offsets)?,
    };
    let class = PACKED.import(py, "odradek.engine.packed", "PackedBytes")?;
    let data = view(py, Items::Bytes(column.data))?;
    match column.validity {
        Some(validity) => class.call1((offsets, data, view(py, Items::Bytes(validity))?)),
        None => class.call1((offsets, data)),
    }
}

/// An `odradek.engine.packed.HeaderColumns`.
pub fn headers(py: Python<'_>, column: HeaderColumn) -> PyResult<Bound<'_, PyAny>> {
    static HEADERS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let (data, offsets) = column.names;
    let columns = (ints(py, column.offsets)?, packed(py, data, offsets)?, nullable(py, column.values)?);
    HEADERS.import(py, "odradek.engine.packed", "HeaderColumns")?.call1(columns)
}
