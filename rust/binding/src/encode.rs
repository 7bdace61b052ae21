//! Records of Kafka 0.8 and later, written from lists or packed columns.

use odradek_engine::{self as engine, Error, Header, NewRecord, nullable, packed};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use crate::buffers::{BorrowedOffsets, BorrowedStrings, Writer, tuple_of};
use crate::{raised, run};

/// A column of nullable strings, held as long as they are looked at.
enum Strings<'py> {
    Packed(BorrowedStrings<'py>),
    Objects(Bound<'py, PyTuple>),
}

impl<'py> Strings<'py> {
    fn new(values: &Bound<'py, PyAny>) -> PyResult<Self> {
        let packed = if values.is_instance_of::<PyList>() { None } else { BorrowedStrings::of(values)? };
        Ok(match packed {
            Some(packed) => Strings::Packed(packed),
            None => Strings::Objects(tuple_of(values)?),
        })
    }

    fn rows(&self) -> PyResult<Vec<Option<&[u8]>>> {
        match self {
            Strings::Objects(objects) => objects
                .iter_borrowed()
                .map(|object| if object.is_none() { Ok(None) } else { object.extract::<&[u8]>().map(Some) })
                .collect::<Result<_, _>>()
                .map_err(Into::into),
            Strings::Packed(borrowed) => {
                let (data, validity) = (borrowed.data.as_slice(), borrowed.validity().unwrap_or_default());
                let rows: Result<Vec<_>, Error> = match &borrowed.offsets {
                    BorrowedOffsets::Narrow(offsets) => nullable(packed(offsets.as_slice(), data), validity).collect(),
                    BorrowedOffsets::Wide(offsets) => nullable(packed(offsets.as_slice(), data), validity).collect(),
                };
                rows.map_err(raised)
            }
        }
    }
}

/// The headers of all rows: those of row i are numbers `ends[i - 1]` to `ends[i]`.
#[derive(Default)]
struct HeaderRows<'py> {
    ends: Vec<usize>,
    pairs: Vec<(Bound<'py, PyString>, Option<Bound<'py, PyBytes>>)>,
}

impl<'py> HeaderRows<'py> {
    fn new(headers: &Bound<'py, PyAny>) -> PyResult<Self> {
        let mut made = Self::default();
        for row in headers.try_iter()? {
            for pair in row?.try_iter()? {
                made.pairs.push(pair?.extract()?);
            }
            made.ends.push(made.pairs.len());
        }
        Ok(made)
    }

    fn borrowed(&self) -> PyResult<Vec<Header<'_>>> {
        let pairs = self.pairs.iter();
        pairs
            .map(|(name, value)| Ok((name.to_str()?.as_bytes(), value.as_ref().map(|value| value.as_bytes()))))
            .collect()
    }
}

/// Integers of 8 bytes: a buffer of them, or any sequence.
fn longs(numbers: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    if numbers.is_instance_of::<PyList>() {
        return numbers.extract();
    }
    match PyBuffer::<i64>::get(numbers) {
        Ok(buffer) => buffer.to_vec(numbers.py()),
        Err(_) => numbers.extract(),
    }
}

/// The columns of records, one row after the other.
struct Rows<'a> {
    values: Vec<Option<&'a [u8]>>,
    keys: Option<Vec<Option<&'a [u8]>>>,
    timestamps: Option<Vec<i64>>,
}

impl<'a> Rows<'a> {
    fn new(values: &'a Strings<'_>, keys: Option<&'a Strings<'_>>, timestamps: Option<Vec<i64>>) -> PyResult<Self> {
        let rows = Rows { values: values.rows()?, keys: keys.map(Strings::rows).transpose()?, timestamps };
        check(rows.keys.as_ref().map(Vec::len), rows.values.len())?;
        check(rows.timestamps.as_ref().map(Vec::len), rows.values.len())?;
        Ok(rows)
    }

    fn iter(&self) -> impl Iterator<Item = NewRecord<'a>> {
        self.values.iter().enumerate().map(|(row, &value)| NewRecord {
            value,
            key: self.keys.as_ref().and_then(|keys| keys.get(row).copied().flatten()),
            timestamp: self.timestamps.as_ref().and_then(|times| times.get(row).copied()),
        })
    }
}

fn check(rows: Option<usize>, expected: usize) -> PyResult<()> {
    match rows {
        Some(rows) if rows != expected => {
            Err(PyValueError::new_err(format!("a column has {rows} rows, not {expected}")))
        }
        _ => Ok(()),
    }
}

/// Where the headers of each row are among all of them.
fn header_range(ends: &[usize], row: usize) -> std::ops::Range<usize> {
    let end = |row: usize| ends.get(row).copied().unwrap_or(0);
    row.checked_sub(1).map_or(0, end)..end(row)
}

/// See `interface.Engine.encode_records`.
#[pyfunction]
#[pyo3(signature = (values, keys = None, headers = None, timestamps = None, base_timestamp = -1))]
pub fn encode_records<'py>(
    values: &Bound<'py, PyAny>,
    keys: Option<&Bound<'py, PyAny>>,
    headers: Option<&Bound<'py, PyAny>>,
    timestamps: Option<&Bound<'py, PyAny>>,
    base_timestamp: i64,
) -> PyResult<Bound<'py, PyBytes>> {
    let py = values.py();
    let (values, keys) = (Strings::new(values)?, keys.map(Strings::new).transpose()?);
    let rows = Rows::new(&values, keys.as_ref(), timestamps.map(longs).transpose()?)?;
    let header_rows = headers.map(HeaderRows::new).transpose()?;
    check(header_rows.as_ref().map(|rows| rows.ends.len()), rows.values.len())?;
    let header_rows = header_rows.unwrap_or_default();
    let (ends, pairs) = (&header_rows.ends, header_rows.borrowed()?);
    let indexed = || rows.iter().zip(0i64..).zip(0usize..);
    let headers_of = |row| pairs.get(header_range(ends, row)).unwrap_or_default();
    let mut sum = 0usize;
    for ((record, index), row) in indexed() {
        let bytes = engine::encoded_record_bytes(record, index, base_timestamp, headers_of(row)).map_err(raised)?;
        sum = sum.checked_add(bytes).ok_or_else(|| raised(Error::Overflow))?;
    }
    let mut writer = Writer::new(py, sum)?;
    let rest = writer.rest();
    run(py, sum, || {
        indexed().try_for_each(|((record, index), row)| {
            engine::encode_record(record, index, base_timestamp, headers_of(row), rest)
        })
    })?;
    writer.finish()
}

/// See `interface.Engine.encode_messages`.
#[pyfunction]
#[pyo3(signature = (values, keys = None, timestamps = None, magic = 1, attributes = 0, offset = 0))]
pub fn encode_messages<'py>(
    values: &Bound<'py, PyAny>,
    keys: Option<&Bound<'py, PyAny>>,
    timestamps: Option<&Bound<'py, PyAny>>,
    magic: u8,
    attributes: u8,
    offset: i64,
) -> PyResult<Bound<'py, PyBytes>> {
    let py = values.py();
    let (values, keys) = (Strings::new(values)?, keys.map(Strings::new).transpose()?);
    let rows = Rows::new(&values, keys.as_ref(), timestamps.map(longs).transpose()?)?;
    let mut sum = 0usize;
    for record in rows.iter() {
        let bytes = engine::encoded_message_bytes(record, magic).map_err(raised)?;
        sum = sum.checked_add(bytes).ok_or_else(|| raised(Error::Overflow))?;
    }
    let mut writer = Writer::new(py, sum)?;
    let rest = writer.rest();
    run(py, sum, || {
        rows.iter()
            .zip(offset..)
            .try_for_each(|(record, offset)| engine::encode_message(record, magic, attributes, offset, rest))
    })?;
    writer.finish()
}
