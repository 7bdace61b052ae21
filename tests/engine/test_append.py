"""The short way of a record into an open batch: what it appends and counts, and everything it leaves to its caller."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek import engine as engines
from odradek.engine import Engine

RECORD, MEMORY, MAX_RECORD, BATCH, BUFFER = 10, 50, 40, 100, 1000


def batch(engine: Engine, **changed: Any) -> Any:
    """Return an empty batch of a subclass, as producers have."""

    class Batch(engine.BatchBase):  # type: ignore[misc, name-defined]
        records: Any

        def __init__(self, records: Any) -> None:
            self.records = records

    made = Batch(changed.pop("records", []))
    made.max_size = BATCH
    for name, value in changed.items():
        setattr(made, name, value)
    return made


class Queues:
    """Topic `t` with three partitions, the second of which is sticky, and an appender."""

    def __init__(self, engine: Engine, key_hash: str = "murmur2", key_byte: int = 1, max_run: int = 1000) -> None:
        self.batches = [batch(engine) for _ in range(3)]
        queues = [SimpleNamespace(open=each) for each in self.batches]
        self.topic = SimpleNamespace(sticky=queues[1], available_queues=queues)
        self.live = engine.BufferBase()
        self.live.admit(BUFFER)
        self.append = engine.Appender(
            {"t": self.topic}, self.live, key_hash, RECORD, key_byte, MEMORY, MAX_RECORD, max_run
        ).append

    def state(self) -> tuple[Any, ...]:
        return [(each.records, each.size) for each in self.batches], self.live.buffered_bytes


def test_a_value_joins_the_sticky_batch(engine: Engine) -> None:
    queues = Queues(engine)
    value = b"some value"
    assert queues.append("t", value, None) is True
    assert queues.append("t", b"", None) is True
    assert queues.batches[1].records == [value, b""]
    assert queues.batches[1].records[0] is value
    assert (queues.batches[1].size, queues.live.buffered_bytes) == (2 * RECORD + 10, 2 * (RECORD + MEMORY) + 10)


@pytest.mark.parametrize("key_hash", ["murmur2", "crc32"])
@pytest.mark.parametrize(("key_byte", "size"), [(1, 15), (0, 12)])
def test_a_key_chooses_the_batch(engine: Engine, key_hash: str, key_byte: int, size: int) -> None:
    for key in (b"key", b"\xff\xfe0", b"abc"):
        queues = Queues(engine, key_hash, key_byte)
        assert queues.append("t", b"va", key) is True
        index = (crc32(key) if key_hash == "crc32" else engine.murmur2(key) & 0x7FFFFFFF) % 3
        assert queues.batches[index].records == [(b"va", key, (), None)]
        assert (queues.batches[index].size, queues.live.buffered_bytes) == (size, size + MEMORY)
        assert sum(len(each.records) for each in queues.batches) == 1


class Bytes(bytes):
    pass


class Name(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("topic", "value", "key"),
    [
        ("other", b"v", None),
        (b"t", b"v", None),
        (Name("t"), b"v", None),
        ([], b"v", None),
        ("t", None, None),
        ("t", bytearray(b"v"), None),
        ("t", Bytes(b"v"), None),
        ("t", "v", None),
        ("t", b"v", "k"),
        ("t", b"v", Bytes(b"k")),
        ("t", bytes(MAX_RECORD - RECORD + 1), None),
        ("t", bytes(MAX_RECORD - RECORD), b"k"),
    ],
)
def test_what_has_to_be_looked_at_is_not_appended(engine: Engine, topic: object, value: object, key: object) -> None:
    queues = Queues(engine)
    before = queues.state()
    assert queues.append(topic, value, key) is False
    assert queues.state() == before


@pytest.mark.parametrize("key", [None, b"k"])
@pytest.mark.parametrize("changed", [None, {"explicit_partition": True}, {"records": (b"packed",)}])
def test_only_an_open_list_for_any_record_is_appended_to(engine: Engine, key: bytes | None, changed: Any) -> None:
    queues = Queues(engine)
    missing = None if changed is None else batch(engine, **changed)
    for queue in queues.topic.available_queues:
        queue.open = missing
    assert queues.append("t", b"v", key) is False
    assert queues.live.buffered_bytes == 0
    assert missing is None or missing.size == 0


def test_no_partition_and_no_hash_for_a_key(engine: Engine) -> None:
    queues = Queues(engine, "")
    assert queues.append("t", b"v", b"k") is False
    assert queues.append("t", b"v", None) is True
    queues = Queues(engine)
    queues.topic.available_queues = []
    assert queues.append("t", b"v", b"k") is False
    assert queues.append("t", b"v", None) is True
    with pytest.raises(ValueError, match="there is no hash"):
        Queues(engine, "md5")


def test_limits(engine: Engine) -> None:
    """A record of the largest size is appended, and one that leaves a byte of the batch, or none of the buffer."""
    queues = Queues(engine)
    assert queues.append("t", bytes(MAX_RECORD - RECORD), None) is True
    queues.batches[1].size = BATCH - RECORD - 2
    assert queues.append("t", b"12", None) is False
    assert queues.append("t", b"1", None) is True
    assert queues.batches[1].size == BATCH - 1
    queues.batches[1].size = 0
    queues.live.buffered_bytes = BUFFER - RECORD - MEMORY - 1
    assert queues.append("t", b"12", None) is False
    assert queues.append("t", b"1", None) is True
    assert queues.live.buffered_bytes == BUFFER
    assert [len(value) for value in queues.batches[1].records] == [MAX_RECORD - RECORD, 1, 1]


def test_a_buffer_admits_the_thread_that_says_so_or_none(engine: Engine) -> None:
    queues = Queues(engine)
    with ThreadPoolExecutor(1) as other:
        assert other.submit(queues.append, "t", b"v", None).result() is False
        assert queues.append("t", b"v", None) is True
        other.submit(queues.live.admit, BUFFER).result()
        assert other.submit(queues.append, "t", b"v", None).result() is True
        assert queues.append("t", b"v", None) is False
    queues.live.admit(0)
    assert queues.append("t", b"v", None) is False
    of_new = engine.Appender({"t": queues.topic}, engine.BufferBase(), "", RECORD, 1, MEMORY, MAX_RECORD, 9)
    assert of_new.append("t", b"v", None) is False


def test_others_have_their_turn(engine: Engine) -> None:
    """What is left to the caller for another reason does not count."""
    queues = Queues(engine, max_run=3)
    appended = [queues.append("t", b"", key) for key in (None, b"k", "k", None, None, None, None)]
    assert appended == [True, True, False, None, True, True, None]
    assert sum(len(each.records) for each in queues.batches) == 4


def test_its_classes_take_any_arguments_and_begin_with_nothing(engine: Engine) -> None:
    made = engine.BatchBase(1, two=2)
    assert (made.size, made.max_size, made.explicit_partition) == (0, 0, False)
    assert engine.BufferBase(1, two=2).buffered_bytes == 0


def test_the_compiled_engine_leaves_objects_of_others_alone() -> None:
    compiled, pure = engines.engine("compiled"), engines.engine("pure")
    queue = SimpleNamespace(open=batch(pure))
    topics = {"t": SimpleNamespace(sticky=queue, available_queues=[queue])}
    live = {engine: engine.BufferBase() for engine in (compiled, pure)}
    for each in live.values():
        each.admit(BUFFER)
    options = "murmur2", RECORD, 1, MEMORY, MAX_RECORD, 9
    assert compiled.Appender(topics, live[compiled], *options).append("t", b"v", None) is False
    queue.open = batch(compiled)
    assert compiled.Appender(topics, live[pure], *options).append("t", b"v", None) is False
    assert queue.open.records == []
    assert compiled.Appender(topics, live[compiled], *options).append("t", b"v", None) is True


def test_a_collector_that_uses_the_batch_disturbs_nothing(engine: Engine) -> None:
    """The tuple of a record with a key may start the garbage collector, and that a finalizer."""
    queues = Queues(engine)
    seen = []

    class Finalized:
        def __init__(self) -> None:
            self.cycle = self

        def __del__(self) -> None:
            seen.append([each.size for each in queues.batches])
            queues.live.buffered_bytes += 1

    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for number in range(3):
            Finalized()
            assert queues.append("t", b"v", b"%d" % number) is True
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert len(seen) == 3
    assert queues.live.buffered_bytes == 3 * (RECORD + 2 + MEMORY) + 3


@given(key=st.binary(max_size=70))
def test_the_engines_hash_alike(key: bytes) -> None:
    pure, compiled = (engines.engine(name).murmur2 for name in ("pure", "compiled"))
    assert pure(key) == compiled(key) == compiled(memoryview(bytearray(key)))


def test_the_hash_takes_bytes_alone(engine: Engine) -> None:
    with pytest.raises(TypeError):
        engine.murmur2("text")  # type: ignore[arg-type]
    with pytest.raises(BufferError):
        engine.murmur2(memoryview(bytes(8))[::2])
