//! The functions: over buffers, lists of `bytes`, and `PackedBytes`.

use std::iter;

use odradek_engine::{self as engine, Error, Limits, Lz4Block, NO_LIMIT, Sink, packed};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySequence, PyTuple};

use crate::buffers::{Borrowed, BorrowedOffsets, BorrowedStrings, Writer, bytes_of, nullable_list_of, tuple_of};
use crate::columns::{View, view_of};
use crate::{raised, run};

/// Evaluate an expression with the strings of a range of rows, for offsets of either width.
macro_rules! strings {
    ($borrowed:expr, $values:ident => $body:expr) => {{
        let data = $borrowed.data.as_slice();
        match &$borrowed.offsets {
            BorrowedOffsets::Narrow(offsets) => {
                let $values = |rows| packed(offsets.as_slice().get(rows).unwrap_or_default(), data);
                $body
            }
            BorrowedOffsets::Wide(offsets) => {
                let $values = |rows| packed(offsets.as_slice().get(rows).unwrap_or_default(), data);
                $body
            }
        }
    }};
}

/// See `interface.Engine.check_run`.
#[pyfunction]
#[pyo3(signature = (data, start, stop, max_entry = NO_LIMIT))]
pub fn check_run(data: &Bound<'_, PyAny>, start: isize, stop: isize, max_entry: i64) -> PyResult<(usize, usize)> {
    let borrowed = Borrowed::new(data)?;
    let (bytes, start) = borrowed.up_to(start, stop)?;
    run(data.py(), bytes.len().saturating_sub(start), || Ok(engine::check_run(bytes, start, max_entry)))
}

/// See `interface.Engine.crc32`.
#[pyfunction]
#[pyo3(signature = (data, before = 0, /))]
pub fn crc32(data: &Bound<'_, PyAny>, before: u32) -> PyResult<u32> {
    let borrowed = Borrowed::new(data)?;
    let bytes = borrowed.as_slice();
    run(data.py(), bytes.len(), || Ok(engine::crc32(bytes, before)))
}

/// See `interface.Engine.crc32c`.
#[pyfunction]
#[pyo3(signature = (data, before = 0, /))]
pub fn crc32c(data: &Bound<'_, PyAny>, before: u32) -> PyResult<u32> {
    let borrowed = Borrowed::new(data)?;
    let bytes = borrowed.as_slice();
    run(data.py(), bytes.len(), || Ok(engine::crc32c(bytes, before)))
}

/// See `interface.Engine.murmur2`.
#[pyfunction]
#[pyo3(signature = (data, /))]
pub fn murmur2(data: &Bound<'_, PyAny>) -> PyResult<i32> {
    Ok(i32::from_ne_bytes(engine::murmur2(Borrowed::new(data)?.as_slice()).to_ne_bytes()))
}

/// See `interface.Engine.scan_messages`.
#[pyfunction]
pub fn scan_messages(data: &Bound<'_, PyAny>) -> PyResult<(usize, usize, i64)> {
    let borrowed = Borrowed::new(data)?;
    let bytes = borrowed.as_slice();
    run(data.py(), bytes.len(), || Ok(engine::scan_messages(bytes)))
}

/// See `interface.Engine.encode_run`.
#[pyfunction]
#[pyo3(signature = (values, attributes = 0))]
pub fn encode_run<'py>(values: &Bound<'py, PyAny>, attributes: u8) -> PyResult<Bound<'py, PyBytes>> {
    let packed = if values.is_instance_of::<PyList>() { None } else { BorrowedStrings::of(values)? };
    if let Some(borrowed) = packed {
        if borrowed.validity().is_some_and(|validity| validity.contains(&0)) {
            strings!(borrowed, all => engine::encoded_bytes(all(0..=borrowed.len()))).map_err(raised)?;
            return Err(PyTypeError::new_err("a payload is None"));
        }
        return strings!(borrowed, all => encoded(values.py(), all(0..=borrowed.len()), attributes));
    }
    let rows = rows_of(values)?;
    let rows: Vec<&[u8]> = rows.iter_borrowed().map(FromPyObject::extract).collect::<Result<_, _>>()?;
    encoded(values.py(), rows.iter().map(|row| Ok(*row)), attributes)
}

/// See `interface.Engine.encode_frame`.
#[pyfunction]
pub fn encode_frame<'py>(
    head: &Bound<'py, PyBytes>,
    heads: &Bound<'py, PyAny>,
    runs: &Bound<'py, PyAny>,
    tail: &Bound<'py, PyBytes>,
    max_run: i64,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    // Tuples of our own, which no other thread can change meanwhile; of the runs, which are many, the payloads alone.
    let (heads, runs) = (tuple_of(heads)?, tuple_of(runs)?);
    let heads: Vec<&[u8]> = heads.iter_borrowed().map(FromPyObject::extract).collect::<Result<_, _>>()?;
    if heads.len() != runs.len() {
        return Err(PyValueError::new_err(format!("{} heads for {} runs", heads.len(), runs.len())));
    }
    let (mut payloads, mut ends) = (Vec::new(), Vec::with_capacity(runs.len()));
    for run in runs.iter_borrowed() {
        for record in run.try_iter()? {
            payloads.push(payload_of(record?)?);
        }
        ends.push(payloads.len());
    }
    let values: Vec<&[u8]> = payloads.iter().map(PyBytesMethods::as_bytes).collect();
    let starts = iter::once(0).chain(ends.iter().copied());
    let rows = starts.zip(&ends).map(|(start, &end)| values.get(start..end).unwrap_or_default());
    let parts: Vec<(&[u8], &[&[u8]])> = heads.into_iter().zip(rows).collect();
    let (py, head, tail) = (head.py(), head.as_bytes(), tail.as_bytes());
    let Some(bytes) = engine::frame_bytes(head, parts.iter().copied(), max_run).map_err(raised)? else {
        return Ok(None);
    };
    let mut writer = Writer::new(py, 0, bytes.checked_add(tail.len()).ok_or_else(|| raised(Error::Overflow))?)?;
    let rest = writer.rest();
    run(py, bytes, || {
        engine::encode_frame(bytes, head, parts.iter().copied(), rest)?;
        rest.put(tail)
    })?;
    writer.finish(&[]).map(Some)
}

/// The payload of a record: itself, or what it begins with. Raises TypeError if that is no `bytes`.
fn payload_of(record: Bound<'_, PyAny>) -> PyResult<Bound<'_, PyBytes>> {
    let payload = match record.cast::<PyTuple>() {
        Ok(fields) => fields.get_item(0)?,
        Err(_) => record,
    };
    Ok(payload.cast_into::<PyBytes>()?)
}

/// All of these as `bytes`, in a tuple of our own, which no other thread can change meanwhile.
fn rows_of<'py>(values: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    let rows = tuple_of(values)?;
    if rows.iter_borrowed().all(|row| row.is_instance_of::<PyBytes>()) {
        return Ok(rows);
    }
    let copies = PyList::empty(values.py());
    for row in &rows {
        copies.append(bytes_of(values.py(), Borrowed::new(&row)?.as_slice())?)?;
    }
    tuple_of(&copies)
}

fn encoded<'py, 'a>(
    py: Python<'py>,
    values: impl Iterator<Item = Result<&'a [u8], Error>> + Clone + Send,
    attributes: u8,
) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = engine::encoded_bytes(values.clone()).map_err(raised)?;
    let mut writer = Writer::new(py, 0, bytes)?;
    let rest = writer.rest();
    run(py, bytes, || engine::encode_run(values, attributes, rest))?;
    writer.finish(&[])
}

/// See `interface.Engine.fit`.
#[pyfunction]
#[pyo3(signature = (values, start, stop, max_bytes, row_bytes, max_row, nullable = false))]
pub fn fit(
    values: &Bound<'_, PyAny>,
    start: isize,
    stop: isize,
    max_bytes: i64,
    row_bytes: i64,
    max_row: i64,
    nullable: bool,
) -> PyResult<(usize, usize)> {
    let limits = Limits { max_bytes, row_bytes, max_row };
    let (start, stop) = range(start, stop, values.len()?)?;
    let of_null = nullable.then_some(0);
    let fitting = if let Ok(list) = values.cast::<PyList>() {
        let lengths = (start..stop).map(|row| Ok(list.get_item(row).ok().and_then(|row| length_of(&row, of_null))));
        engine::fit(lengths, limits)
    } else if let Some(borrowed) = BorrowedStrings::of(values)? {
        let validity = borrowed.validity().and_then(|validity| validity.get(start..stop)).unwrap_or_default();
        strings!(borrowed, some => {
            let strings = engine::nullable(some(start..=stop), validity);
            engine::fit(strings.map(|row| Ok(row?.map_or(of_null, |row| Some(row.len())))), limits)
        })
    } else {
        let rows = values.cast::<PySequence>()?.get_slice(start, stop)?;
        engine::fit(rows.try_iter()?.map(|row| Ok(row.ok().and_then(|row| length_of(&row, of_null)))), limits)
    };
    let (rows, bytes) = fitting.map_err(raised)?;
    Ok((start.saturating_add(rows), bytes))
}

/// The length of a `bytes`, or what a null counts.
fn length_of(row: &Bound<'_, PyAny>, of_null: Option<usize>) -> Option<usize> {
    match row.cast_exact::<PyBytes>() {
        Ok(bytes) => Some(bytes.as_bytes().len()),
        Err(_) if row.is_none() => of_null,
        Err(_) => None,
    }
}

fn range(start: isize, stop: isize, len: usize) -> PyResult<(usize, usize)> {
    match (usize::try_from(start), usize::try_from(stop)) {
        (Ok(first), Ok(last)) if first <= last && last <= len => Ok((first, last)),
        _ => Err(PyValueError::new_err(format!("{start}:{stop} does not lie within {len} values"))),
    }
}

/// See `interface.Engine.lz4_content`.
#[pyfunction]
pub fn lz4_content<'py>(
    py: Python<'py>,
    blocks: Vec<(Bound<'py, PyAny>, bool, usize)>,
    max_bytes: usize,
) -> PyResult<View<'py>> {
    let borrowed: Vec<Borrowed<'_>> =
        blocks.iter().map(|(bytes, _, _)| Borrowed::new(bytes)).collect::<Result<_, _>>()?;
    let parts = borrowed.iter().zip(&blocks);
    let parts: Vec<_> =
        parts.map(|(bytes, &(_, stored, most))| Lz4Block { bytes: bytes.as_slice(), stored, most }).collect();
    view_of(py, run(py, engine::lz4_most(&parts), || engine::lz4_content(&parts, max_bytes))?)
}

/// See `interface.Engine.unpack`.
#[pyfunction]
#[pyo3(signature = (offsets, data, validity = None))]
pub fn unpack<'py>(
    offsets: &Bound<'py, PyAny>,
    data: &Bound<'py, PyAny>,
    validity: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    let borrowed = BorrowedStrings::new(offsets, data, validity)?;
    let (py, rows) = (offsets.py(), borrowed.len());
    strings!(borrowed, all => nullable_list_of(py, rows, all(0..=rows), borrowed.validity()))
}
