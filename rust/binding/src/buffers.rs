//! Python's memory in Rust: borrowed from objects, or in objects under construction.

use std::ptr;

use odradek_engine::{Error, Sink, nullable};
use pyo3::buffer::{Element, PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyBytesMethods, PyList, PyTuple};
use pyo3::{ffi, intern};

/// Bytes borrowed from a Python object for as long as this lives.
pub enum Borrowed<'py> {
    /// Bytes never change.
    Bytes(Bound<'py, PyBytes>),
    /// The owner of a buffer cannot move or free it meanwhile.
    Buffer(PyBuffer<u8>),
}

impl<'py> Borrowed<'py> {
    /// Raises TypeError for an object without a buffer, BufferError for one that is not contiguous bytes.
    pub fn new(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Borrowed::Bytes(bytes.clone()));
        }
        let buffer = PyBuffer::get(object)?;
        if buffer.dimensions() == 1 && buffer.is_c_contiguous() {
            return Ok(Borrowed::Buffer(buffer));
        }
        Err(PyBufferError::new_err("a contiguous buffer of bytes is needed"))
    }

    /// The bytes must not change while they are read: the interface requires that of callers.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Borrowed::Bytes(bytes) => bytes.as_bytes(),
            Borrowed::Buffer(buffer) => items(buffer),
        }
    }

    /// `[..stop]`, with `start` checked to be within it. Raises ValueError.
    pub fn up_to(&self, start: isize, stop: isize) -> PyResult<(&[u8], usize)> {
        let data = self.as_slice();
        let range = usize::try_from(start).ok().zip(usize::try_from(stop).ok()).and_then(|(start, stop)| {
            let data = data.get(..stop)?;
            data.get(start..).map(|_| (data, start))
        });
        range.ok_or_else(|| {
            PyValueError::new_err(format!("{start}:{stop} does not lie within {} bytes of data", data.len()))
        })
    }
}

/// The buffers of an `odradek.engine.packed.PackedBytes`, or of any object with the same attributes.
pub struct BorrowedStrings<'py> {
    pub data: Borrowed<'py>,
    pub offsets: BorrowedOffsets,
    validity: Option<Borrowed<'py>>,
}

pub enum BorrowedOffsets {
    Narrow(Offsets<i32>),
    Wide(Offsets<i64>),
}

/// None: an empty buffer, whose address may be anything.
pub struct Offsets<T: Element>(Option<PyBuffer<T>>);

impl<T: Element> Offsets<T> {
    fn new(buffer: PyUntypedBuffer) -> PyResult<Self> {
        Ok(Offsets(if buffer.item_count() > 0 { Some(buffer.into_typed()?) } else { None }))
    }

    pub fn as_slice(&self) -> &[T] {
        self.0.as_ref().map_or(&[], items)
    }
}

impl<'py> BorrowedStrings<'py> {
    /// None: this object has no such buffers.
    pub fn of(object: &Bound<'py, PyAny>) -> PyResult<Option<Self>> {
        let (offsets, data) = (intern!(object.py(), "offsets"), intern!(object.py(), "data"));
        match (object.getattr_opt(offsets)?, object.getattr_opt(data)?) {
            (Some(offsets), Some(data)) => {
                let validity = object.getattr_opt(intern!(object.py(), "validity"))?.filter(|buffer| !buffer.is_none());
                Self::new(&offsets, &data, validity.as_ref()).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Raises TypeError or BufferError if these are not contiguous buffers of 'i' or 'q', of bytes, and of bytes;
    /// ValueError if there is not one byte of `validity` for each row.
    pub fn new(
        offsets: &Bound<'py, PyAny>,
        data: &Bound<'py, PyAny>,
        validity: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(offsets)?;
        let (format, bytes) = (buffer.format(), buffer.item_size());
        let offsets = if buffer.dimensions() != 1 || !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("a contiguous buffer of offsets is needed"));
        } else if i32::is_compatible_format(format) && bytes == size_of::<i32>() {
            BorrowedOffsets::Narrow(Offsets::new(buffer)?)
        } else if i64::is_compatible_format(format) && bytes == size_of::<i64>() {
            BorrowedOffsets::Wide(Offsets::new(buffer)?)
        } else {
            return Err(PyBufferError::new_err("offsets are 'i' or 'q'"));
        };
        let data = Borrowed::new(data)?;
        let strings = BorrowedStrings { data, offsets, validity: validity.map(Borrowed::new).transpose()? };
        match &strings.validity {
            Some(validity) if validity.as_slice().len() != strings.len() => Err(PyValueError::new_err(format!(
                "validity is for {} rows, not {}",
                validity.as_slice().len(),
                strings.len()
            ))),
            _ => Ok(strings),
        }
    }

    /// A byte for each row, 0 for a null; None: no row is null.
    pub fn validity(&self) -> Option<&[u8]> {
        self.validity.as_ref().map(Borrowed::as_slice)
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        match &self.offsets {
            BorrowedOffsets::Narrow(offsets) => offsets.as_slice().len(),
            BorrowedOffsets::Wide(offsets) => offsets.as_slice().len(),
        }
        .saturating_sub(1)
    }
}

/// The elements of a contiguous buffer; no elements of any other.
fn items<T: Element>(buffer: &PyBuffer<T>) -> &[T] {
    match buffer.as_slice_ptr() {
        // SAFETY: the buffer is held, so that its memory stays where it is; it is contiguous, and aligned and of items
        // of this type, or `PyBuffer::get` had refused it. The caller promises that nothing writes into it meanwhile
        // (`engine/interface.py`); if that is broken, the result is garbage but memory-safe, as every index is checked
        // where it is used.
        Some(items) if buffer.item_count() > 0 => unsafe { items.as_ref() },
        _ => &[],
    }
}

/// A new `bytes`. Raises MemoryError.
#[inline]
pub fn bytes_of<'py>(py: Python<'py>, value: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let len = value.len().try_into()?;
    // SAFETY: the pointer is to `len` readable bytes, which are copied; what comes back is a new `bytes` or null with
    // an exception set.
    unsafe {
        let made = ffi::PyBytes_FromStringAndSize(value.as_ptr().cast(), len);
        Ok(Bound::from_owned_ptr_or_err(py, made)?.cast_into_unchecked())
    }
}

/// A tuple of the items of an iterable.
pub fn tuple_of<'py>(values: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    // SAFETY: takes any object; what comes back is a tuple or null with an exception set.
    unsafe {
        let made = ffi::PySequence_Tuple(values.as_ptr());
        Ok(Bound::from_owned_ptr_or_err(values.py(), made)?.cast_into_unchecked())
    }
}

/// A list of exactly `count` items: a `bytes` for each value, or None. The garbage collector does not look into it: it
/// would visit each of the values that are alive, again and again, and none of them refers to anything.
pub fn list_of<'py, 'a, V: Into<Option<&'a [u8]>>>(
    py: Python<'py>,
    count: usize,
    values: impl Iterator<Item = Result<V, Error>>,
) -> PyResult<Bound<'py, PyList>> {
    let len = count.try_into()?;
    // SAFETY: a new list or null with an exception set. Its items are null until they are set, which the interpreter
    // allows while no Python code sees the list.
    let list = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyList_New(len))?.cast_into_unchecked::<PyList>() };
    // SAFETY: the list is tracked, since it is new. Its deallocation allows for one that is not.
    unsafe { ffi::PyObject_GC_UnTrack(list.as_ptr().cast()) };
    let mut indexes = 0..len;
    for (value, index) in values.zip(&mut indexes) {
        let item = match value.map_err(crate::raised)?.into() {
            Some(value) => bytes_of(py, value)?.into_ptr(),
            None => py.None().into_ptr(),
        };
        // SAFETY: the index is within the list and its item is null; the list takes the reference over.
        unsafe { ffi::PyList_SetItem(list.as_ptr(), index, item) };
    }
    if indexes.is_empty() { Ok(list) } else { Err(crate::raised(Error::Offsets)) }
}

/// The same of strings, with None for each row whose byte of `validity` is 0.
pub fn nullable_list_of<'py, 'a>(
    py: Python<'py>,
    count: usize,
    strings: impl Iterator<Item = Result<&'a [u8], Error>> + Clone,
    validity: Option<&'a [u8]>,
) -> PyResult<Bound<'py, PyList>> {
    match validity {
        None => list_of(py, count, strings),
        Some(validity) => list_of(py, count, nullable(strings, validity)),
    }
}

/// The bytes of a `bytes`; None of None. Raises TypeError for any other object.
#[inline]
pub fn bytes_or_none<'a>(object: pyo3::Borrowed<'a, '_, PyAny>) -> PyResult<Option<&'a [u8]>> {
    if object.is_none() {
        return Ok(None);
    }
    let (mut at, mut len) = (ptr::null_mut(), 0);
    // SAFETY: takes any object and raises if it is no `bytes`; the pointers are to two variables.
    if unsafe { ffi::PyBytes_AsStringAndSize(object.as_ptr(), &raw mut at, &raw mut len) } != 0 {
        return Err(PyErr::fetch(object.py()));
    }
    // SAFETY: that many bytes are at the pointer, and stay there while the object is borrowed: a `bytes` never changes.
    Ok(Some(unsafe { std::slice::from_raw_parts(at.cast_const().cast(), usize::try_from(len)?) }))
}

/// An integer of 8 bytes. Raises OverflowError or TypeError.
#[inline]
pub fn long_of(object: pyo3::Borrowed<'_, '_, PyAny>) -> PyResult<i64> {
    // SAFETY: takes any object; -1 may mean that an exception is set.
    let number = unsafe { ffi::PyLong_AsLongLong(object.as_ptr()) };
    if number == -1 { PyErr::take(object.py()).map_or(Ok(number), Err) } else { Ok(number) }
}

/// A `bytes` under construction: a head, which is written last, and the rest.
pub struct Writer<'py> {
    object: Bound<'py, PyBytes>,
    rest: Rest,
}

/// The part of it behind the head.
pub struct Rest {
    begin: *mut u8,
    at: *mut u8,
    left: usize,
}

// SAFETY: the memory belongs to an object that no other code has a reference to yet.
unsafe impl Send for Rest {}

impl<'py> Writer<'py> {
    /// A `bytes` of exactly `head + len` bytes. Raises MemoryError.
    pub fn new(py: Python<'py>, head: usize, len: usize) -> PyResult<Self> {
        let size = head.checked_add(len).ok_or_else(|| crate::raised(Error::Overflow))?;
        // SAFETY: without a source, this gives a new `bytes` with bytes not yet written, or null with an exception set;
        // until it is handed to other code, its creator may write them. The head lies within it.
        unsafe {
            let made = ffi::PyBytes_FromStringAndSize(ptr::null(), size.try_into()?);
            let object: Bound<'py, PyBytes> = Bound::from_owned_ptr_or_err(py, made)?.cast_into_unchecked();
            let begin: *mut u8 = ffi::PyBytes_AsString(object.as_ptr()).cast::<u8>().add(head);
            Ok(Writer { object, rest: Rest { begin, at: begin, left: len } })
        }
    }

    /// The part behind the head, to write into.
    pub fn rest(&mut self) -> &mut Rest {
        &mut self.rest
    }

    /// The object, once all behind the head has been written. The head has the length it was announced with.
    pub fn finish(self, head: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let written = self.rest.written().len();
        if self.rest.left > 0 || self.object.len()? != head.len().saturating_add(written) {
            return Err(crate::raised(Error::Offsets));
        }
        // SAFETY: so many bytes precede the rest, as was just checked, and no other code has access to them.
        unsafe { ptr::copy_nonoverlapping(head.as_ptr(), self.rest.begin.sub(head.len()), head.len()) };
        Ok(self.object)
    }
}

impl Rest {
    /// What has been written.
    pub fn written(&self) -> &[u8] {
        let bytes = self.at.addr().saturating_sub(self.begin.addr());
        // SAFETY: `put` has written these bytes, and nothing else changes them while this borrows the writer.
        unsafe { std::slice::from_raw_parts(self.begin, bytes) }
    }
}

impl Sink for Rest {
    #[inline]
    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        // Only values that change while they are encoded have other lengths than before.
        self.left = self.left.checked_sub(bytes.len()).ok_or(Error::Offsets)?;
        // SAFETY: at least that many bytes are left at `at`, and no other code has access to them.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.at, bytes.len());
            self.at = self.at.add(bytes.len());
        }
        Ok(())
    }
}
