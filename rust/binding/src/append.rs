//! `Appender`: the short way of a record into the open batch of its partition.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, ThreadId};

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

/// See `interface.BatchBase`.
#[pyclass(subclass, module = "odradek.engine._compiled")]
pub struct BatchBase {
    #[pyo3(get, set)]
    size: i64,
    #[pyo3(get, set)]
    max_size: i64,
    #[pyo3(get, set)]
    explicit_partition: bool,
}

#[pymethods]
impl BatchBase {
    #[new]
    #[pyo3(signature = (*_args, **_names))]
    fn new(_args: &Bound<'_, PyTuple>, _names: Option<&Bound<'_, PyDict>>) -> Self {
        BatchBase { size: 0, max_size: 0, explicit_partition: false }
    }
}

impl BatchBase {
    /// Whether a record that was sent to no explicit partition may join, and would not fill it.
    fn takes(&self, size: i64) -> bool {
        !self.explicit_partition && self.size.saturating_add(size) < self.max_size
    }
}

/// See `interface.BufferBase`.
#[pyclass(subclass, module = "odradek.engine._compiled")]
pub struct BufferBase {
    #[pyo3(get, set)]
    buffered_bytes: i64,
    limit: i64,
    thread: ThreadId,
}

#[pymethods]
impl BufferBase {
    #[new]
    #[pyo3(signature = (*_args, **_names))]
    fn new(_args: &Bound<'_, PyTuple>, _names: Option<&Bound<'_, PyDict>>) -> Self {
        BufferBase { buffered_bytes: 0, limit: 0, thread: thread::current().id() }
    }

    fn admit(&mut self, limit: i64) {
        self.limit = limit;
        self.thread = thread::current().id();
    }

    fn takes(&self, memory: i64) -> bool {
        self.buffered_bytes.saturating_add(memory) <= self.limit && self.thread == thread::current().id()
    }
}

/// See `interface.Appender`.
#[pyclass(frozen, module = "odradek.engine._compiled")]
pub struct Appender {
    topics: Py<PyDict>,
    /// None: of the other engine, whose batches are not appended to, either.
    live: Option<Py<BufferBase>>,
    key_hash: Option<KeyHash>,
    record_bytes: i64,
    key_byte: i64,
    memory_bytes: i64,
    max_record: i64,
    max_run: u32,
    run: AtomicU32,
    no_headers: Py<PyTuple>,
}

#[pymethods]
impl Appender {
    #[allow(clippy::too_many_arguments)]
    #[new]
    fn new(
        topics: &Bound<'_, PyDict>,
        live: &Bound<'_, PyAny>,
        key_hash: &str,
        record_bytes: i64,
        key_byte: i64,
        memory_bytes: i64,
        max_record: i64,
        max_run: u32,
    ) -> PyResult<Self> {
        Ok(Appender {
            topics: topics.clone().unbind(),
            live: live.cast::<BufferBase>().ok().map(|live| live.clone().unbind()),
            key_hash: KeyHash::named(key_hash)?,
            record_bytes,
            key_byte,
            memory_bytes,
            max_record,
            max_run,
            run: AtomicU32::new(0),
            no_headers: PyTuple::empty(topics.py()).unbind(),
        })
    }

    #[pyo3(signature = (topic, value, key, /))]
    fn append(
        &self,
        topic: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        key: &Bound<'_, PyAny>,
    ) -> PyResult<Option<bool>> {
        let (Ok(topic), Ok(value)) = (topic.cast_exact::<PyString>(), value.cast_exact::<PyBytes>()) else {
            return Ok(Some(false));
        };
        let key = match key.cast_exact::<PyBytes>() {
            Ok(key) => Some(key),
            Err(_) if key.is_none() => None,
            Err(_) => return Ok(Some(false)),
        };
        let Some(size) = self.size(value, key).filter(|size| *size <= self.max_record) else { return Ok(Some(false)) };
        // The caller has the interpreter's lock: nothing is added between the two accesses.
        let run = self.run.load(Ordering::Relaxed).saturating_add(1);
        if run >= self.max_run {
            self.run.store(0, Ordering::Relaxed);
            return Ok(None);
        }
        self.run.store(run, Ordering::Relaxed);
        Ok(Some(self.add(topic, value, key, size)?.is_some()))
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
        let (Some(open), Some(live)) = (self.open_batch(topic, key)?, &self.live) else { return Ok(None) };
        let records = open.getattr(intern!(py, "records"))?;
        let Ok(records) = records.cast_exact::<PyList>() else { return Ok(None) };
        let live = live.bind(py);
        let memory = size.saturating_add(self.memory_bytes);
        if !live.try_borrow()?.takes(memory) || !open.try_borrow()?.takes(size) {
            return Ok(None);
        }
        // A new tuple may start the garbage collector, and so code that uses the batch: nothing is borrowed meanwhile.
        match key {
            None => records.append(value)?,
            Some(key) => records.append((value, key, self.no_headers.bind(py), py.None()).into_pyobject(py)?)?,
        }
        let (mut batch, mut live) = (open.try_borrow_mut()?, live.try_borrow_mut()?);
        batch.size = batch.size.saturating_add(size);
        live.buffered_bytes = live.buffered_bytes.saturating_add(memory);
        Ok(Some(()))
    }

    /// The open batch of the partition of the record, if there is one.
    fn open_batch<'py>(
        &self,
        topic: &Bound<'py, PyString>,
        key: Option<&Bound<'py, PyBytes>>,
    ) -> PyResult<Option<Bound<'py, BatchBase>>> {
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
        // None: nothing is open.
        Ok(queue.getattr(intern!(py, "open"))?.cast_into::<BatchBase>().ok())
    }
}
