//! `Appender`: the short way of a record into the open batch of its partition.

use odradek_engine as engine;
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

/// How the key of a record chooses its partition.
#[derive(Clone, Copy)]
enum KeyHash {
    Murmur2,
    Crc32,
}

impl KeyHash {
    fn named(name: &str) -> PyResult<Option<Self>> {
        match name {
            "" => Ok(None),
            "murmur2" => Ok(Some(KeyHash::Murmur2)),
            "crc32" => Ok(Some(KeyHash::Crc32)),
            _ => Err(PyValueError::new_err(format!("there is no hash {name:?}"))),
        }
    }

    fn index(self, key: &[u8], count: usize) -> Option<usize> {
        let hash = match self {
            KeyHash::Murmur2 => engine::murmur2(key) & 0x7fff_ffff,
            KeyHash::Crc32 => engine::crc32(key, 0),
        };
        usize::try_from(hash).ok()?.checked_rem(count)
    }
}

/// See `interface.Appender`.
#[pyclass(frozen, module = "odradek.engine._compiled")]
pub struct Appender {
    topics: Py<PyDict>,
    live: Py<PyAny>,
    key_hash: Option<KeyHash>,
    record_bytes: i64,
    key_byte: i64,
    memory_bytes: i64,
    max_record: i64,
    batch_bytes: i64,
    buffer_bytes: i64,
    no_headers: Py<PyTuple>,
}

#[pymethods]
impl Appender {
    #[allow(clippy::too_many_arguments)]
    #[new]
    fn new(
        topics: &Bound<'_, PyDict>,
        live: Py<PyAny>,
        key_hash: &str,
        record_bytes: i64,
        key_byte: i64,
        memory_bytes: i64,
        max_record: i64,
        batch_bytes: i64,
        buffer_bytes: i64,
    ) -> PyResult<Self> {
        Ok(Appender {
            topics: topics.clone().unbind(),
            live,
            key_hash: KeyHash::named(key_hash)?,
            record_bytes,
            key_byte,
            memory_bytes,
            max_record,
            batch_bytes,
            buffer_bytes,
            no_headers: PyTuple::empty(topics.py()).unbind(),
        })
    }

    #[pyo3(signature = (topic, value, key, /))]
    fn append(&self, topic: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let (Ok(topic), Ok(value)) = (topic.cast_exact::<PyString>(), value.cast_exact::<PyBytes>()) else {
            return Ok(false);
        };
        let key = match key.cast_exact::<PyBytes>() {
            Ok(key) => Some(key),
            Err(_) if key.is_none() => None,
            Err(_) => return Ok(false),
        };
        match self.size(value, key) {
            Some(size) if size <= self.max_record => Ok(self.add(topic, value, key, size)?.is_some()),
            _ => Ok(false),
        }
    }
}

impl Appender {
    /// The bytes of a record on the wire.
    fn size(&self, value: &Bound<'_, PyBytes>, key: Option<&Bound<'_, PyBytes>>) -> Option<i64> {
        let length = |bytes: &Bound<'_, PyBytes>| i64::try_from(bytes.as_bytes().len()).ok();
        let of_key = key.map_or(Some(0), |key| length(key)?.checked_mul(self.key_byte))?;
        self.record_bytes.checked_add(length(value)?)?.checked_add(of_key)
    }

    /// Append, or return None.
    fn add<'py>(
        &self,
        topic: &Bound<'py, PyString>,
        value: &Bound<'py, PyBytes>,
        key: Option<&Bound<'py, PyBytes>>,
        size: i64,
    ) -> PyResult<Option<()>> {
        let py = topic.py();
        let Some(batch) = self.open_batch(topic, key)? else { return Ok(None) };
        let live = self.live.bind(py);
        let batch_size: i64 = batch.getattr(intern!(py, "size"))?.extract()?;
        let buffered: i64 = live.getattr(intern!(py, "buffered_bytes"))?.extract()?;
        let (batch_size, buffered) =
            (batch_size.saturating_add(size), buffered.saturating_add(size).saturating_add(self.memory_bytes));
        if batch_size >= self.batch_bytes || buffered > self.buffer_bytes {
            return Ok(None);
        }
        let records = batch.getattr(intern!(py, "records"))?;
        let Ok(records) = records.cast_exact::<PyList>() else { return Ok(None) };
        match key {
            None => records.append(value)?,
            Some(key) => records.append((value, key, self.no_headers.bind(py), py.None()).into_pyobject(py)?)?,
        }
        batch.setattr(intern!(py, "size"), batch_size)?;
        live.setattr(intern!(py, "buffered_bytes"), buffered)?;
        Ok(Some(()))
    }

    /// The batch that the record joins, if its partition has an open one that may have it.
    fn open_batch<'py>(
        &self,
        topic: &Bound<'py, PyString>,
        key: Option<&Bound<'py, PyBytes>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = topic.py();
        let Some(topic) = self.topics.bind(py).get_item(topic)? else { return Ok(None) };
        let queue = match key {
            None => topic.getattr(intern!(py, "sticky"))?,
            Some(key) => {
                let queues = topic.getattr(intern!(py, "available_queues"))?;
                let (Some(hash), Ok(queues)) = (self.key_hash, queues.cast_exact::<PyList>()) else { return Ok(None) };
                let Some(index) = hash.index(key.as_bytes(), queues.len()) else { return Ok(None) };
                queues.get_item(index)?
            }
        };
        let batch = queue.getattr(intern!(py, "open"))?;
        if batch.is_none() || batch.getattr(intern!(py, "explicit_partition"))?.is_truthy()? {
            return Ok(None);
        }
        Ok(Some(batch))
    }
}
