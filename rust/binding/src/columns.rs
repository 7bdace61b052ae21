//! Rust's memory in Python: columns that are memoryviews, without a copy.

use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use odradek_engine::{Columns, Error, NullableColumn, Offsets, Rows, packed};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyMemoryView, PyType};

use crate::buffers::nullable_list_of;
use crate::{raised, run};

/// See `interface.DecodedColumns`: some rows of columns that never change.
///
/// Their sequences are made when they are asked for: a memoryview is three objects, two of which the garbage collector visits,
/// and rows of ten thousand partitions wait at a time. This object is one that it does not know.
#[pyclass(frozen, module = "odradek.engine._compiled")]
pub struct DecodedColumns {
    memory: Arc<Memory>,
    rows: Range<usize>,
}

/// When nothing refers to the columns any more, their memory is recycled.
struct Memory(Option<Columns>);

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(columns) = self.0.take() {
            columns.recycle();
        }
    }
}

/// Memory of a row beyond its payload, as read-ahead counts it: an offset, two positions and an inner index.
const ROW_BYTES: usize = 24;
/// Of each further column: an offset or integer, and a byte for its validity or type.
const COLUMN_BYTES: usize = 9;
/// Of a header beyond its name and value: two offsets, and a byte for its validity.
const HEADER_BYTES: usize = 9;

#[pymethods]
impl DecodedColumns {
    fn __len__(&self) -> usize {
        self.rows.len()
    }

    #[getter]
    fn payload_bytes(&self) -> PyResult<usize> {
        self.part().and_then(|part| part.payload_bytes()).ok_or_else(|| raised(Error::Offsets))
    }

    #[getter]
    fn is_wide(&self) -> bool {
        let wide = |strings: Strings| {
            strings.of(&self.memory).is_some_and(|column| matches!(column.offsets, Offsets::Wide(_)))
        };
        wide(Strings::Values) || wide(Strings::Keys)
    }

    #[getter]
    fn memory_bytes(&self) -> PyResult<usize> {
        let Some(Columns { keys, headers, timestamps, .. }) = &self.memory.0 else { return Ok(0) };
        let optional = [keys.is_some(), headers.is_some(), timestamps.is_some()];
        let columns = optional.iter().filter(|there| **there).count();
        let row_bytes = columns.saturating_mul(COLUMN_BYTES).saturating_add(ROW_BYTES);
        let rows = self.rows.len().saturating_mul(row_bytes);
        let pairs = self.part().and_then(|part| part.pairs()).map_or(0, |pairs| pairs.len());
        Ok(self.payload_bytes()?.saturating_add(rows).saturating_add(pairs.saturating_mul(HEADER_BYTES)))
    }

    #[getter]
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.packed(py, Strings::Values, self.rows.clone())
    }

    #[getter]
    fn positions<'py>(&self, py: Python<'py>) -> PyResult<Option<View<'py>>> {
        self.view(py, Buffer::Positions, self.rows.clone())
    }

    #[getter]
    fn next_positions<'py>(&self, py: Python<'py>) -> PyResult<Option<View<'py>>> {
        self.view(py, Buffer::NextPositions, self.rows.clone())
    }

    #[getter]
    fn inner_indexes<'py>(&self, py: Python<'py>) -> PyResult<Option<View<'py>>> {
        self.view(py, Buffer::InnerIndexes, self.rows.clone())
    }

    #[getter]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.packed(py, Strings::Keys, self.rows.clone())
    }

    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        static HEADERS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let Some(offsets) = self.view(py, Buffer::HeaderOffsets, ends(&self.rows))? else { return Ok(None) };
        let all = Strings::HeaderNames.of(&self.memory).map_or(0, |names| names.offsets.rows());
        let names = self.packed(py, Strings::HeaderNames, 0..all)?;
        let values = self.packed(py, Strings::HeaderValues, 0..all)?;
        HEADERS.import(py, "odradek.engine.packed", "HeaderColumns")?.call1((offsets, names, values)).map(Some)
    }

    #[getter]
    fn timestamps<'py>(&self, py: Python<'py>) -> PyResult<Option<View<'py>>> {
        self.view(py, Buffer::Timestamps, self.rows.clone())
    }

    #[getter]
    fn timestamp_types<'py>(&self, py: Python<'py>) -> PyResult<Option<View<'py>>> {
        self.view(py, Buffer::TimestampTypes, self.rows.clone())
    }

    fn value_list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let missing = || raised(Error::Offsets);
        let values = &self.memory.0.as_ref().ok_or_else(missing)?.values;
        let (rows, ends) = (self.rows.len(), ends(&self.rows));
        let validity = match &values.validity {
            Some(validity) => Some(validity.get(self.rows.clone()).ok_or_else(missing)?),
            None => None,
        };
        match &values.offsets {
            Offsets::Narrow(all) => {
                nullable_list_of(py, rows, packed(all.get(ends).ok_or_else(missing)?, &values.data), validity)
            }
            Offsets::Wide(all) => {
                nullable_list_of(py, rows, packed(all.get(ends).ok_or_else(missing)?, &values.data), validity)
            }
        }
    }

    /// Raises ValueError if there are no such rows.
    fn slice(&self, start: usize, stop: usize) -> PyResult<Self> {
        if start > stop || stop > self.rows.len() {
            return Err(PyValueError::new_err(format!("{start}:{stop} does not lie within {} rows", self.rows.len())));
        }
        let rows = self.rows.start.saturating_add(start)..self.rows.start.saturating_add(stop);
        Ok(DecodedColumns { memory: self.memory.clone(), rows })
    }

    #[staticmethod]
    fn concat(py: Python<'_>, parts: Vec<Bound<'_, Self>>) -> PyResult<Self> {
        let parts: Vec<Rows<'_>> = parts.iter().filter_map(|part| part.get().part()).collect();
        let bytes = parts.iter().filter_map(Rows::payload_bytes).fold(0, usize::saturating_add);
        run(py, bytes, || Columns::concat(&parts)).map(Self::new)
    }
}

impl DecodedColumns {
    pub fn new(columns: Columns) -> Self {
        let rows = 0..columns.len();
        DecodedColumns { memory: Arc::new(Memory(Some(columns))), rows }
    }

    fn part(&self) -> Option<Rows<'_>> {
        let range = self.rows.clone();
        self.memory.0.as_ref().map(|columns| Rows { columns, range })
    }

    /// A read-only memoryview of some items; None: there is no such buffer.
    fn view<'py>(&self, py: Python<'py>, buffer: Buffer, range: Range<usize>) -> PyResult<Option<View<'py>>> {
        let column = Column { memory: self.memory.clone(), buffer, shape: [range.len().try_into()?], range };
        match column.items() {
            Some(_) => PyMemoryView::from(Bound::new(py, column)?.as_any()).map(Some),
            None => Ok(None),
        }
    }

    /// Some of the strings as an `odradek.engine.packed.PackedBytes`; None: there are none.
    fn packed<'py>(
        &self,
        py: Python<'py>,
        strings: Strings,
        rows: Range<usize>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        static PACKED: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let Some(column) = strings.of(&self.memory) else { return Ok(None) };
        let data = self.view(py, Buffer::Data(strings), 0..column.data.len())?;
        let offsets = self.view(py, Buffer::Offsets(strings), ends(&rows))?;
        let class = PACKED.import(py, "odradek.engine.packed", "PackedBytes")?;
        match self.view(py, Buffer::Validity(strings), rows)? {
            Some(validity) => class.call1((offsets, data, validity)).map(Some),
            None => class.call1((offsets, data)).map(Some),
        }
    }
}

/// A read-only memoryview of some bytes, whose memory is recycled.
pub fn view_of(py: Python<'_>, data: Vec<u8>) -> PyResult<View<'_>> {
    let all = 0..data.len();
    let values = NullableColumn { data, offsets: Offsets::Narrow(Vec::new()), validity: None };
    let (positions, next_positions) = (Vec::new(), Vec::new());
    let (inner_indexes, keys, headers, timestamps) = (None, None, None, None);
    let columns = Columns { values, positions, next_positions, inner_indexes, keys, headers, timestamps };
    DecodedColumns::new(columns).view(py, Buffer::Data(Strings::Values), all)?.ok_or_else(|| raised(Error::Offsets))
}

pub type View<'py> = Bound<'py, PyMemoryView>;

/// The offsets of these rows: one more than there are rows.
fn ends(rows: &Range<usize>) -> Range<usize> {
    rows.start..rows.end.saturating_add(1)
}

/// Where byte strings are.
#[derive(Clone, Copy)]
enum Strings {
    Values,
    Keys,
    HeaderNames,
    HeaderValues,
}

impl Strings {
    /// None: there are none.
    fn of(self, memory: &Memory) -> Option<&NullableColumn> {
        let columns = memory.0.as_ref()?;
        match self {
            Strings::Values => Some(&columns.values),
            Strings::Keys => columns.keys.as_ref(),
            Strings::HeaderNames => columns.headers.as_ref().map(|headers| &headers.names),
            Strings::HeaderValues => columns.headers.as_ref().map(|headers| &headers.values),
        }
    }
}

/// One buffer of columns.
#[derive(Clone, Copy)]
enum Buffer {
    Data(Strings),
    Offsets(Strings),
    Validity(Strings),
    Positions,
    NextPositions,
    InnerIndexes,
    HeaderOffsets,
    Timestamps,
    TimestampTypes,
}

/// The exporter of a memoryview: some items of a buffer. It never changes.
#[pyclass(frozen, module = "odradek.engine._compiled")]
pub struct Column {
    memory: Arc<Memory>,
    buffer: Buffer,
    range: Range<usize>,
    shape: [isize; 1],
}

enum Items<'a> {
    Bytes(&'a [u8]),
    Ints(&'a [i32]),
    Longs(&'a [i64]),
    Signed(&'a [i8]),
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

impl Items<'_> {
    fn memory(&self) -> (*const c_void, &'static Layout) {
        match self {
            Items::Bytes(items) => (items.as_ptr().cast(), &BYTES),
            Items::Ints(items) => (items.as_ptr().cast(), &INTS),
            Items::Longs(items) => (items.as_ptr().cast(), &LONGS),
            Items::Signed(items) => (items.as_ptr().cast(), &SIGNED),
        }
    }
}

impl Column {
    /// None: there is no such buffer, or it is shorter.
    fn items(&self) -> Option<Items<'_>> {
        let (columns, range) = (self.memory.0.as_ref()?, self.range.clone());
        let strings = |strings: Strings| strings.of(&self.memory);
        Some(match self.buffer {
            Buffer::Data(which) => Items::Bytes(strings(which)?.data.get(range)?),
            Buffer::Validity(which) => Items::Bytes(strings(which)?.validity.as_ref()?.get(range)?),
            Buffer::Offsets(which) => match &strings(which)?.offsets {
                Offsets::Narrow(offsets) => Items::Ints(offsets.get(range)?),
                Offsets::Wide(offsets) => Items::Longs(offsets.get(range)?),
            },
            Buffer::Positions => Items::Longs(columns.positions.get(range)?),
            Buffer::NextPositions => Items::Longs(columns.next_positions.get(range)?),
            Buffer::InnerIndexes => Items::Ints(columns.inner_indexes.as_ref()?.get(range)?),
            Buffer::HeaderOffsets => Items::Ints(columns.headers.as_ref()?.offsets.get(range)?),
            Buffer::Timestamps => Items::Longs(columns.timestamps.as_ref()?.0.get(range)?),
            Buffer::TimestampTypes => Items::Signed(columns.timestamps.as_ref()?.1.get(range)?),
        })
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
        let items = column.items().ok_or_else(|| raised(Error::Offsets))?;
        let (items, Layout { format, strides: strides @ [item_bytes] }) = items.memory();
        let [count] = column.shape;
        // SAFETY: the interpreter passes a view to be filled. Its contents belong to the column or are static,
        // and the view holds a reference to the column, which is frozen and holds the memory: its vectors stay as they
        // are until they are dropped. There are `count` items, that is how long the range is. A consumer of a read-only
        // buffer does not write.
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
