"""The pure engine's part for single records: the hash of a key, and the short way into an open batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import iter_unpack
from threading import get_ident
from typing import Any, Self
from zlib import crc32

from odradek.engine.interface import Buffer, BufferBase

__all__ = ["PythonAppender", "PythonBatch", "PythonBuffer", "murmur2"]

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: Buffer, /) -> int:
    """Return the murmur2 hash (see `interface.Engine.murmur2`)."""
    view = memoryview(data)
    if view.format not in ("B", "c") or not view.c_contiguous:
        raise BufferError("a view with gaps, or of items other than bytes")
    whole = len(view) & ~3
    h = _SEED ^ len(view)
    for (k,) in iter_unpack("<I", view[:whole]):
        k = k * _MULTIPLIER & _MASK
        k = (k ^ k >> 24) * _MULTIPLIER & _MASK
        h = h * _MULTIPLIER & _MASK ^ k
    if whole != len(view):
        h = (h ^ int.from_bytes(view[whole:], "little")) * _MULTIPLIER & _MASK
    h = (h ^ h >> 13) * _MULTIPLIER & _MASK
    h ^= h >> 15
    return h - (1 << 32) if h >> 31 else h


def _positive_murmur2(key: bytes) -> int:
    return murmur2(key) & 0x7FFFFFFF


_HASHES: Mapping[str, Callable[[bytes], int] | None] = {"": None, "murmur2": _positive_murmur2, "crc32": crc32}


class PythonBatch:
    """Attributes of a batch that appenders use (see `interface.BatchBase`)."""

    __slots__ = ("explicit_partition", "max_size", "size")
    size: int
    max_size: int
    explicit_partition: bool

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        made = super().__new__(cls)
        made.size = made.max_size = 0
        made.explicit_partition = False
        return made


class PythonBuffer:
    """The part of the buffer that appenders use (see `interface.BufferBase`)."""

    __slots__ = ("_limit", "_thread", "buffered_bytes")
    buffered_bytes: int

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        made = super().__new__(cls)
        made.buffered_bytes = made._limit = made._thread = 0
        return made

    def admit(self, limit: int) -> None:
        """Let this thread append (see `interface.BufferBase`)."""
        self._limit, self._thread = limit, get_ident()

    def takes(self, memory: int) -> bool:
        """Return True if this thread may take so many bytes more (see `interface.BufferBase`)."""
        return self.buffered_bytes + memory <= self._limit and self._thread == get_ident()


class PythonAppender:
    """Appends records to open batches (see `interface.Appender`)."""

    __slots__ = ("_bytes", "_hash", "_live", "_max_record", "_max_run", "_run", "_topics")

    def __init__(
        self,
        topics: dict[str, Any],
        live: BufferBase,
        key_hash: str,
        record_bytes: int,
        key_byte: int,
        memory_bytes: int,
        max_record: int,
        max_run: int,
    ) -> None:
        if key_hash not in _HASHES:
            raise ValueError(f"there is no hash {key_hash!r}")
        self._topics, self._live, self._hash = topics, live, _HASHES[key_hash]
        self._bytes = record_bytes, key_byte, memory_bytes
        self._max_record, self._run, self._max_run = max_record, 0, max_run

    def append(self, topic: object, value: object, key: object, /) -> bool | None:
        """Append a record if that is simple (see `interface.Appender`)."""
        if type(topic) is not str or type(value) is not bytes or not (key is None or type(key) is bytes):
            return False
        record_bytes, key_byte, memory_bytes = self._bytes
        size = record_bytes + len(value) + (0 if key is None else key_byte * len(key))
        if size > self._max_record:
            return False
        self._run += 1
        if self._run >= self._max_run:
            self._run = 0
            return None
        batch, memory = self._open_batch(topic, key), size + memory_bytes
        if batch is None or not self._live.takes(memory):
            return False
        if batch.size + size >= batch.max_size or type(batch.records) is not list:
            return False
        batch.records.append(value if key is None else (value, key, (), None))
        batch.size += size
        self._live.buffered_bytes += memory
        return True

    def _open_batch(self, name: str, key: bytes | None) -> Any:
        topic = self._topics.get(name)
        if topic is None:
            return None
        if key is None:
            batch = topic.sticky.open
        elif self._hash is None or not topic.available_queues:
            return None
        else:
            batch = topic.available_queues[self._hash(key) % len(topic.available_queues)].open
        return None if batch is None or batch.explicit_partition else batch
