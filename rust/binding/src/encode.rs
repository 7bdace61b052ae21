//! Records of Kafka 0.8 and later, written from lists or packed columns.

use odradek_engine::{
    self as engine, BATCH_HEADER_BYTES, Error, Header, NewBatch, NewRecord, NewRecords, Sink, nullable, packed,
};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySlice, PyString, PyTuple};

use crate::buffers::{Borrowed, BorrowedOffsets, BorrowedStrings, Writer, bytes_or_none, long_of, tuple_of};
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
            Strings::Objects(objects) => objects.iter_borrowed().map(bytes_or_none).collect(),
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
struct HeaderRows<'py> {
    ends: Vec<usize>,
    pairs: Pairs<'py>,
}

/// Names and values of headers, one row's behind the other.
enum Pairs<'py> {
    Packed { names: Strings<'py>, values: Strings<'py> },
    Objects(Vec<(Bound<'py, PyString>, Option<Bound<'py, PyBytes>>)>),
}

impl<'py> HeaderRows<'py> {
    fn new(headers: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = headers.py();
        if !headers.is_instance_of::<PyList>() {
            if let Some(names) = headers.getattr_opt(intern!(py, "names"))? {
                let (offsets, values) =
                    (headers.getattr(intern!(py, "offsets"))?, headers.getattr(intern!(py, "values"))?);
                return Self::packed(&PyBuffer::get(&offsets)?.to_vec(py)?, &names, &values);
            }
        }
        Self::of_objects(headers)
    }

    /// The columns of an `odradek.engine.packed.HeaderColumns`.
    fn packed(offsets: &[i32], names: &Bound<'py, PyAny>, values: &Bound<'py, PyAny>) -> PyResult<Self> {
        let (first, last) = (offsets.first().copied().unwrap_or(0), offsets.last().copied().unwrap_or(0));
        let ends: Result<Vec<usize>, _> =
            offsets.iter().skip(1).map(|end| usize::try_from(end.saturating_sub(first))).collect();
        let rows = PySlice::new(names.py(), isize::try_from(first)?, isize::try_from(last)?, 1);
        let (names, values) = (Strings::new(&names.get_item(&rows)?)?, Strings::new(&values.get_item(&rows)?)?);
        Ok(HeaderRows { ends: ends?, pairs: Pairs::Packed { names, values } })
    }

    fn of_objects(headers: &Bound<'py, PyAny>) -> PyResult<Self> {
        let (mut ends, mut pairs) = (Vec::new(), Vec::new());
        for row in headers.try_iter()? {
            for pair in row?.try_iter()? {
                pairs.push(pair?.extract()?);
            }
            ends.push(pairs.len());
        }
        Ok(HeaderRows { ends, pairs: Pairs::Objects(pairs) })
    }

    fn borrowed(&self) -> PyResult<Vec<Header<'_>>> {
        match &self.pairs {
            Pairs::Packed { names, values } => {
                let names = names.rows()?.into_iter().map(Option::unwrap_or_default);
                Ok(names.zip(values.rows()?).collect())
            }
            Pairs::Objects(pairs) => pairs
                .iter()
                .map(|(name, value)| Ok((name.to_str()?.as_bytes(), value.as_ref().map(|value| value.as_bytes()))))
                .collect(),
        }
    }
}

/// Integers of 8 bytes: a buffer of them, or any sequence.
fn longs(numbers: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    if !numbers.is_instance_of::<PyList>() {
        if let Ok(buffer) = PyBuffer::<i64>::get(numbers) {
            return buffer.to_vec(numbers.py());
        }
    }
    tuple_of(numbers)?.iter_borrowed().map(long_of).collect()
}

/// The columns of new records, held as long as they are looked at.
struct NewColumns<'py> {
    values: Strings<'py>,
    keys: Option<Strings<'py>>,
    headers: Option<HeaderRows<'py>>,
    timestamps: Option<Vec<i64>>,
}

impl<'py> NewColumns<'py> {
    fn new(
        values: &Bound<'py, PyAny>,
        keys: Option<&Bound<'py, PyAny>>,
        headers: Option<&Bound<'py, PyAny>>,
        timestamps: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        Ok(NewColumns {
            values: Strings::new(values)?,
            keys: keys.map(Strings::new).transpose()?,
            headers: headers.map(HeaderRows::new).transpose()?,
            timestamps: timestamps.map(longs).transpose()?,
        })
    }

    /// The headers of all rows, one row's behind the other.
    fn pairs(&self) -> PyResult<Vec<Header<'_>>> {
        self.headers.as_ref().map_or(Ok(Vec::new()), HeaderRows::borrowed)
    }

    /// Raises ValueError for columns of different lengths.
    fn rows<'a>(&'a self, pairs: &'a [Header<'a>]) -> PyResult<Vec<NewRecord<'a>>> {
        let values = self.values.rows()?;
        let keys = self.keys.as_ref().map(Strings::rows).transpose()?;
        let (timestamps, ends) = (self.timestamps.as_deref(), self.headers.as_ref().map(|rows| rows.ends.as_slice()));
        check(keys.as_ref().map(Vec::len), values.len())?;
        check(timestamps.map(<[i64]>::len), values.len())?;
        check(ends.map(<[usize]>::len), values.len())?;
        let records = values.into_iter().enumerate().map(|(row, value)| NewRecord {
            value,
            key: keys.as_ref().and_then(|keys| keys.get(row).copied().flatten()),
            timestamp: timestamps.and_then(|times| times.get(row).copied()),
            headers: ends.and_then(|ends| pairs.get(header_range(ends, row))).unwrap_or_default(),
        });
        Ok(records.collect())
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

/// The place of each row's headers among all of them.
fn header_range(ends: &[usize], row: usize) -> std::ops::Range<usize> {
    let end = |row: usize| ends.get(row).copied().unwrap_or(0);
    row.checked_sub(1).map_or(0, end)..end(row)
}

/// See `interface.Engine.encode_batch`.
#[allow(clippy::too_many_arguments)]
#[pyfunction]
#[pyo3(signature = (values, keys = None, headers = None, timestamps = None, attributes = 0, base_offset = 0,
                    producer_id = -1, producer_epoch = -1, base_sequence = -1, compress = None))]
pub fn encode_batch<'py>(
    values: &Bound<'py, PyAny>,
    keys: Option<&Bound<'py, PyAny>>,
    headers: Option<&Bound<'py, PyAny>>,
    timestamps: Option<&Bound<'py, PyAny>>,
    attributes: i16,
    base_offset: i64,
    producer_id: i64,
    producer_epoch: i16,
    base_sequence: i32,
    compress: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let py = values.py();
    let batch = NewBatch { attributes, base_offset, producer_id, producer_epoch, base_sequence };
    let columns = NewColumns::new(values, keys, headers, timestamps)?;
    let pairs = columns.pairs()?;
    let rows = columns.rows(&pairs)?;
    let records = NewRecords::new(&rows).map_err(raised)?;
    let Some(compress) = compress else {
        return plain_batch(py, &batch, &records);
    };
    let mut writer = Writer::new(py, 0, records.bytes)?;
    let rest = writer.rest();
    run(py, records.bytes, || records.put(rest))?;
    let compressed = compress.call1((writer.finish(&[])?,))?;
    let borrowed = Borrowed::new(&compressed)?;
    let body = borrowed.as_slice();
    let header = batch.header(&records, body.len(), |crc| engine::crc32c(body, crc)).map_err(raised)?;
    let mut writer = Writer::new(py, BATCH_HEADER_BYTES, body.len())?;
    writer.rest().put(body).map_err(raised)?;
    writer.finish(&header)
}

fn plain_batch<'py>(py: Python<'py>, batch: &NewBatch, records: &NewRecords<'_>) -> PyResult<Bound<'py, PyBytes>> {
    let mut writer = Writer::new(py, BATCH_HEADER_BYTES, records.bytes)?;
    let rest = writer.rest();
    let header = run(py, records.bytes, || {
        records.put(rest)?;
        batch.header(records, records.bytes, |crc| engine::crc32c(rest.written(), crc))
    })?;
    writer.finish(&header)
}

/// A record without headers, held as long as it is looked at.
struct PlainRecord<'py> {
    value: Option<Bound<'py, PyBytes>>,
    key: Option<Bound<'py, PyBytes>>,
    timestamp: i64,
}

impl<'py> PlainRecord<'py> {
    /// Of a `bytes`, or of a tuple of value, key, headers and timestamp. Raises TypeError for anything else.
    fn new(record: &Bound<'py, PyAny>, now: i64) -> PyResult<Self> {
        let Ok(fields) = record.cast::<PyTuple>() else {
            return Ok(PlainRecord { value: Some(record.cast::<PyBytes>()?.clone()), key: None, timestamp: now });
        };
        if fields.len() != 4 || fields.get_item(2)?.len()? > 0 {
            return Err(PyTypeError::new_err("a record is no value, key and timestamp without headers"));
        }
        let timestamp = fields.get_item(3)?;
        Ok(PlainRecord {
            value: bytes_object(fields.get_item(0)?)?,
            key: bytes_object(fields.get_item(1)?)?,
            timestamp: if timestamp.is_none() { now } else { long_of(timestamp.as_borrowed())? },
        })
    }

    fn borrowed(&self) -> NewRecord<'_> {
        NewRecord {
            value: self.value.as_ref().map(|value| value.as_bytes()),
            key: self.key.as_ref().map(|key| key.as_bytes()),
            timestamp: Some(self.timestamp),
            headers: &[],
        }
    }
}

/// None of None. Raises TypeError for anything else that is no `bytes`.
fn bytes_object(object: Bound<'_, PyAny>) -> PyResult<Option<Bound<'_, PyBytes>>> {
    if object.is_none() { Ok(None) } else { Ok(Some(object.cast_into::<PyBytes>()?)) }
}

/// See `interface.Engine.encode_batches`.
#[pyfunction]
pub fn encode_batches<'py>(
    runs: &Bound<'py, PyAny>,
    stamps: &Bound<'py, PyAny>,
    now: i64,
) -> PyResult<Bound<'py, PyList>> {
    let py = runs.py();
    // Tuples of our own, which no other thread can change meanwhile.
    let (runs, stamps) = (tuple_of(runs)?, tuple_of(stamps)?);
    if runs.len() != stamps.len() {
        return Err(PyValueError::new_err(format!("{} stamps for {} runs", stamps.len(), runs.len())));
    }
    let made = PyList::empty(py);
    for (run, stamp) in runs.iter().zip(&stamps) {
        let plain: Vec<PlainRecord> =
            tuple_of(&run)?.iter().map(|record| PlainRecord::new(&record, now)).collect::<Result<_, _>>()?;
        let rows: Vec<NewRecord> = plain.iter().map(PlainRecord::borrowed).collect();
        let (attributes, producer_id, producer_epoch, base_sequence) = stamp.extract()?;
        let batch = NewBatch { attributes, base_offset: 0, producer_id, producer_epoch, base_sequence };
        let records = NewRecords::new(&rows).map_err(raised)?;
        made.append(plain_batch(py, &batch, &records)?)?;
    }
    Ok(made)
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
    let columns = NewColumns::new(values, keys, None, timestamps)?;
    let rows = columns.rows(&[])?;
    let mut sum = 0usize;
    for record in &rows {
        let bytes = engine::encoded_message_bytes(*record, magic).map_err(raised)?;
        sum = sum.checked_add(bytes).ok_or_else(|| raised(Error::Overflow))?;
    }
    let mut writer = Writer::new(py, 0, sum)?;
    let rest = writer.rest();
    run(py, sum, || {
        rows.iter()
            .zip(offset..)
            .try_for_each(|(record, offset)| engine::encode_message(*record, magic, attributes, offset, rest))
    })?;
    writer.finish(&[])
}
