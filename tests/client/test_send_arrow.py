"""`Producer.send_arrow` on an in-memory cluster: what it takes, what it refuses, and that it keeps every promise of
`send_many`."""

from __future__ import annotations

import sys
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import pyarrow as pa
import pytest
from anyio import wait_all_tasks_blocked
from hypothesis import given
from hypothesis import strategies as st
from tests.client.producing import P0, P3, ProducerClock, make_cluster, producing, stored, values

from odradek.client.options import Tuning
from odradek.client.producer import arrow_input
from odradek.core.interfaces import ProducerRecord
from odradek.core.kafka.partitioners import Murmur2
from odradek.core.produce.batch import PACKED_OVERHEAD_BYTES
from odradek.core.produce.packed_records import PackedRecords
from odradek.core.produce.partitioners import RoundRobin
from odradek.engine import PackedBytes
from odradek.errors import ConfigError, DeadlineError, MessageTooLarge, OutcomeUnknown, Rejected
from odradek.testing import MemoryCluster
from odradek.types import KiB, TopicPartition

pytestmark = pytest.mark.anyio


ROWS = [b"one", b"", b"three", "vi\u00ebr".encode()]
KINDS = [
    pa.binary(),
    pa.large_binary(),
    pa.string(),
    pa.large_string(),
    pa.binary_view(),
    pa.string_view(),
]


@pytest.fixture
def cluster() -> MemoryCluster:
    return make_cluster()


def column(kind: Any) -> Any:
    return pa.array([row.decode() for row in ROWS] if "string" in str(kind) else ROWS, kind)


# ---- what it takes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(
    "shape",
    [
        lambda values: values,
        lambda values: pa.chunked_array([values[:1], values[1:1], values[1:]]),
        lambda values: pa.table({"value": values, "other": list(range(len(values)))}),
        lambda values: pa.table({"whatever": values}),
        lambda values: pa.record_batch({"other": list(range(len(values))), "value": values}),
        lambda values: pa.concat_arrays([values, values]).slice(len(values)),
    ],
    ids=["array", "chunks", "table", "only column", "record batch", "slice"],
)
async def test_binary_and_string_columns_of_every_kind_and_shape_are_sent_as_they_are(
    cluster: MemoryCluster, kind: Any, shape: Any
) -> None:
    async with producing(cluster) as out:
        acks = await out.send_many("t", [b"the topic is known now"], partition=P3)
        acks = await out.send_arrow("t", shape(column(kind)), partition=P0)
    assert acks.check().counts == {P0: 4}
    assert stored(cluster, P0) == ROWS


async def test_values_reach_the_encoder_in_the_memory_of_the_array(cluster: MemoryCluster) -> None:
    values = pa.array([b"%05d" % n for n in range(5000)], pa.binary())
    async with producing(cluster, tuning=Tuning(batch_bytes=8 * KiB)) as out:
        await out.send("t", b"the topic is known now", partition=P3)
        assert (await out.send_arrow("t", values, partition=P0)).written == 5000
    records = [part.records for request in cluster.requests("produce", broker=1) for part in request.batches]
    assert len(records) > 8
    address = values.buffers()[2].address  # type: ignore[union-attr]
    for packed in records:
        assert isinstance(packed, PackedBytes)
        assert pa.py_buffer(packed.data).address == address
    assert stored(cluster, P0) == values.to_pylist()


async def test_keys_headers_and_times_reach_the_encoder_in_columns_too(cluster: MemoryCluster) -> None:
    keys = pa.array([b"k%d" % n if n % 3 else None for n in range(3000)], pa.binary())
    headers = pa.array([[("h", b"%d" % n)] if n % 2 else None for n in range(3000)], HEADERS)
    data = pa.table({"value": [b"%05d" % n for n in range(3000)], "key": keys, "headers": headers, "time": range(3000)})
    async with producing(cluster, tuning=Tuning(batch_bytes=8 * KiB)) as out:
        await out.send("t", b"the topic is known now", partition=P3)
        acks = await out.send_arrow(
            "t", data, value="value", key="key", headers="headers", timestamp="time", partition=P0
        )
    assert acks.check().written == 3000
    records = [part.records for request in cluster.requests("produce", broker=1) for part in request.batches]
    assert len(records) > 6
    for packed in records:
        assert isinstance(packed, PackedRecords) and packed.keys is not None
        assert pa.py_buffer(packed.keys.data).address == keys.buffers()[2].address  # type: ignore[union-attr]
    assert [each.record for each in cluster.log(P0)] == [
        ProducerRecord(b"%05d" % n, b"k%d" % n if n % 3 else None, (("h", b"%d" % n),) if n % 2 else (), n)
        for n in range(3000)
    ]


async def test_small_chunks_travel_together_in_their_order(cluster: MemoryCluster) -> None:
    rows = [b"%04d" % n for n in range(3000)]
    chunks = pa.chunked_array([rows[n : n + 3] for n in range(0, 3000, 3)], pa.binary())
    async with producing(cluster) as out:
        await out.send_arrow("t", chunks, partition=P0)
    assert stored(cluster, P0) == rows
    assert sum(len(request.batches) for request in cluster.requests("produce", broker=1)) < 10


async def test_nothing_is_nothing(cluster: MemoryCluster) -> None:
    async with producing(cluster) as out:
        for nothing in (
            pa.array([], pa.binary()),
            pa.chunked_array([], pa.string()),
            pa.table({"v": pa.array([], "string")}),
        ):
            assert (await out.send_arrow("t", nothing)).written == 0
    assert not values(cluster)


async def test_keys_choose_the_partition_and_a_null_is_no_key(cluster: MemoryCluster) -> None:
    keys = [None if n % 5 == 0 else f"k{n % 7}" for n in range(500)]
    data = pa.table({"user": pa.array(keys, pa.string()), "value": pa.array([f"{n}" for n in range(500)])})
    async with producing(cluster) as out:
        acks = await out.send_arrow("t", data, key="user")
    assert acks.written == 500
    for n, key in enumerate(keys):
        if key is not None:
            index = Murmur2()("t", key.encode(), 4)
            assert index is not None
            assert b"%d" % n in stored(cluster, TopicPartition("t", index))


async def test_a_partitioner_that_looks_at_every_record_sees_every_row(cluster: MemoryCluster) -> None:
    async with producing(cluster, partitioner=RoundRobin()) as out:
        await out.send_many("t", [b"x"] * 4)
        acks = await out.send_arrow("t", pa.array([b"a", b"b", b"c", b"d"]))
    assert sorted(acks.counts.values()) == [1, 1, 1, 1]


async def test_compressed_topics_take_columns_too(cluster: MemoryCluster) -> None:
    rows = [b"%05d" % n * 20 for n in range(3000)]
    async with producing(cluster, compression="gzip") as out:
        assert (await out.send_arrow("t", pa.array(rows), partition=P0)).written == 3000
    assert stored(cluster, P0) == rows


# ---- what it refuses ---------------------------------------------------------------------------------------------

TABLE = pa.table({"a": [b"x", b"y"], "n": [1, 2], "gap": pa.array([b"x", None])})
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
LATE = pa.chunked_array([["x"] * 9000, ["y"]])
"""Values of several batches, of which the last ones may have times that cannot be sent."""


def timed(kind: Any, time: int) -> pa.Table:
    return pa.table({"value": LATE, "time": pa.chunked_array([[5] * 9000, [time]], pa.int64()).cast(kind)})


NAMELESS = pa.table({"value": [b"x"], "headers": pa.array([[(None, b"y")]], HEADERS)})


@pytest.mark.parametrize(
    ("data", "options", "error", "words"),
    [
        ([b"x"], {}, TypeError, "data must be a pyarrow Table, RecordBatch, Array or ChunkedArray, not list"),
        (TABLE, {}, ConfigError, "there is no column 'value', but a, n, gap: set value="),
        (TABLE, {"value": "b"}, ConfigError, "there is no column 'b', but a, n, gap: set value="),
        (TABLE, {"value": "a", "key": "b"}, ConfigError, "there is no column 'b', but a, n, gap: set key="),
        (TABLE, {"value": "n"}, TypeError, "column 'n' is int64: value must be binary or string, so cast it first"),
        (TABLE, {"value": "a", "key": "n"}, TypeError, "column 'n' is int64"),
        (TABLE, {"value": "a", "headers": "n"}, TypeError, "column 'n' is int64: headers must be list<struct"),
        (TABLE, {"value": "a", "headers": "gap"}, TypeError, "headers must be list"),
        (TABLE, {"value": "a", "timestamp": "a"}, TypeError, "timestamp must be a timestamp, or an integer"),
        (NAMELESS, {"value": "value", "headers": "headers"}, ValueError, "the name of a header is null"),
        (timed(pa.int64(), -7), {"timestamp": "time"}, ConfigError, "timestamp=-7: must be milliseconds"),
        (timed(pa.timestamp("ms"), -1), {"timestamp": "time"}, ConfigError, "timestamp=-1: must be milliseconds"),
        (timed(pa.timestamp("s"), 1 << 54), {"timestamp": "time"}, ValueError, "out of bounds timestamp"),
        (timed(pa.timestamp("s"), (1 << 64) // 1000 + 1), {"timestamp": "time"}, ValueError, "out of bounds timestamp"),
        (TABLE["a"], {"value": "a"}, ConfigError, "value='a' names a column, and an array has none"),
        (pa.nulls(1), {}, TypeError, "the array is null: "),
        (pa.table([[b"x"], [b"y"]], ["value", "value"]), {}, ConfigError, "there is more than one column 'value'"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_what_cannot_be_sent_is_said_before_anything_is(
    cluster: MemoryCluster, data: Any, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    async with producing(cluster) as out:
        with pytest.raises(error, match=words):
            await out.send_arrow("t", data, **options)
        assert out.statistics().accepted == 0


async def test_damaged_offsets_reach_nobody(cluster: MemoryCluster) -> None:
    offsets = pa.array([0, 9, 2], pa.int32()).buffers()[1]
    damaged = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"abc")])
    async with producing(cluster) as out:
        with pytest.raises(ValueError, match="offset"):
            await out.send_arrow("t", damaged)
        await out.send("t", b"still fine")


async def test_without_pyarrow_the_error_names_the_extra(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "odradek.client.producer.arrow_input")
    monkeypatch.delattr("odradek.client.producer.arrow_input", raising=False)
    async with producing(cluster) as out:
        with pytest.raises(ConfigError, match=r"pip install 'odradek\[arrow\]'"):
            await out.send_arrow("t", TABLE)


# ---- as send_many -----------------------------------------------------------------------------------------------


async def test_rows_that_are_too_large_fail_alone_and_are_shown_as_records(cluster: MemoryCluster) -> None:
    async with producing(cluster, max_message_bytes=10 + 10) as out:
        acks = await out.send_arrow("t", pa.array(["fits", "x" * 11, "too", "y" * 1000]), partition=P0)
    assert stored(cluster, P0) == [b"fits", b"too"]
    assert [failed.record for failed in acks.failed] == [ProducerRecord(b"x" * 11), ProducerRecord(b"y" * 1000)]
    for failed in acks.failed:
        assert isinstance(failed.error, Rejected)
        assert isinstance(failed.error.__cause__, MessageTooLarge)


@pytest.mark.parametrize("compression", ["none", "gzip"])
async def test_rows_that_nobody_answers_are_unknown_and_shown_as_records(
    cluster: MemoryCluster, producer_clock: ProducerClock, compression: str
) -> None:
    async def late() -> None:
        await cluster.wait_for_requests("produce", 1, broker=1)
        producer_clock.now += 1
        await anyio.sleep(0.1)
        cluster.cut(1, error=DeadlineError("produce", 10, True))

    cluster.hold("produce", broker=1)
    async with (
        producing(cluster, deliver_within=0.05, compression=compression) as out,
        anyio.create_task_group() as tasks,
    ):
        await out.send("t", b"the topic is known now", partition=P3)
        tasks.start_soon(late)
        acks = await out.send_arrow("t", pa.array(["a", "b"]), partition=P0)
        assert [(failed.record, type(failed.error)) for failed in acks.failed] == [
            (ProducerRecord(b"a"), OutcomeUnknown),
            (ProducerRecord(b"b"), OutcomeUnknown),
        ]


async def test_rows_wait_for_room_and_what_they_take_is_bounded(cluster: MemoryCluster) -> None:
    """Nothing is ever held beyond the buffer, and all of it is given back."""
    async with producing(cluster, buffer_bytes=2000) as out:
        cluster.hold("produce")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(out.send_arrow, "t", pa.array([b"%03d" % n for n in range(1000)]), partition=P0))
            await wait_all_tasks_blocked()
            most = out.statistics().buffered_bytes
            assert 2000 - (13 + 120) < most <= 2000
            assert out.statistics().buffered > 2000 // (13 + 2 * PACKED_OVERHEAD_BYTES)
            cluster.release("produce")
        assert out.statistics().buffered_bytes == 0
    assert stored(cluster, P0) == [b"%03d" % n for n in range(1000)]


async def test_a_cancelled_call_leaves_its_rows_on_their_way(cluster: MemoryCluster) -> None:
    cluster.hold("produce", broker=1)
    rows = [b"%03d" % n for n in range(100)]
    async with producing(cluster, buffer_bytes=1000) as out:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(out.send_arrow, "t", pa.array(rows), partition=P0))
                await wait_all_tasks_blocked()
                scope.cancel()
        accepted = out.statistics().accepted
        assert 0 < accepted < 100
        cluster.release("produce")
    assert stored(cluster, P0) == rows[:accepted]
    assert not out.failures


async def test_rows_of_a_broker_that_has_gone_are_sent_to_the_next_leader_in_their_order(
    cluster: MemoryCluster,
) -> None:
    cluster.hold("produce", broker=1)
    rows = [b"%04d" % n for n in range(2000)]
    tuning = Tuning(batch_bytes=2 * KiB)
    async with producing(cluster, tuning=tuning) as out, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(out.send_arrow, "t", pa.array(rows), partition=P0))
        await wait_all_tasks_blocked()
        cluster.stop_broker(1)
        cluster.move_leader(P0, 2)
    assert stored(cluster, P0) == rows
    assert cluster.requests("produce", broker=2)


async def test_a_wrapper_that_is_too_large_is_split_down_to_its_rows(cluster: MemoryCluster) -> None:
    rows = [bytes((n * 7919 + i * i * 31 + (i * n) % 251) % 256 for i in range(40)) for n in range(40)]
    async with producing(cluster, compression="gzip", max_message_bytes=200) as out:
        acks = await out.send_arrow("t", pa.array(rows, pa.binary()), partition=P0)
    assert acks.written == 40
    assert stored(cluster, P0) == rows
    assert len(acks.acks) > 6


async def test_views_are_copied_some_rows_at_a_time() -> None:
    values = pa.array(
        [f"a long string that is not inlined {n}" for n in range(3 * arrow_input.ROWS_AT_ONCE)], pa.string_view()
    )
    runs = list(arrow_input.runs(values, None, None))
    assert [len(run) for run in runs] == [arrow_input.ROWS_AT_ONCE] * 3
    assert [value.decode() for run in runs for value in run if isinstance(value, bytes)] == values.to_pylist()


# ---- more than values ---------------------------------------------------------------------------------------------


async def test_nulls_keys_headers_and_times_become_records() -> None:
    headers = pa.array([[("a", b"1"), ("a", None)], [], None], HEADERS)
    times = pa.array([1500, None, 0], pa.timestamp("ms", tz="UTC"))
    data = pa.table({"value": [b"x", None, b"z"], "key": ["k", "", None], "headers": headers, "time": times})
    rows = [
        ProducerRecord(b"x", b"k", (("a", b"1"), ("a", None)), 1500),
        ProducerRecord(None, b"", (), None),
        ProducerRecord(b"z", None, (), 0),
    ]
    assert list(arrow_input.runs(data, "value", "key", "headers", "time")) == [rows]
    chunked = pa.concat_tables([data, data])
    rows_back = [row for run in arrow_input.runs(chunked, "value", "key", "headers", "time") for row in run]
    assert rows_back == rows + rows


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.struct([("value", pa.string()), ("key", pa.large_string())])),
        pa.large_list(pa.struct([("key", pa.binary()), ("value", pa.large_binary())])),
    ],
    ids=str,
)
async def test_headers_of_every_kind_are_taken(kind: Any) -> None:
    rows = [[{"key": "a", "value": "1"}], None]
    data = pa.table({"value": [b"x", b"y"], "headers": pa.array(rows, kind)})
    (run,) = arrow_input.runs(data, None, None, "headers")
    assert list(run) == [ProducerRecord(b"x", None, (("a", b"1"),)), ProducerRecord(b"y")]


@pytest.mark.parametrize(
    "times",
    [
        pa.array([1500, None], pa.int64()),
        pa.array([1500, None], pa.timestamp("ms")),
        pa.array([1_500_999, None], pa.timestamp("us", tz="Europe/Berlin")),
    ],
    ids=lambda times: str(times.type),
)
async def test_times_of_every_kind_become_milliseconds(times: Any) -> None:
    (run,) = arrow_input.runs(pa.table({"value": [b"x", b"y"], "t": times}), timestamp="t")
    assert [row[3] for row in run if isinstance(row, ProducerRecord)] == [1500, None]


async def test_one_null_value_makes_records_of_all_rows() -> None:
    rows = [row for run in arrow_input.runs(pa.chunked_array([[b"x"], [b"y", None]])) for row in run]
    assert rows == [ProducerRecord(b"x"), ProducerRecord(b"y"), ProducerRecord(None)]


async def test_rows_with_headers_times_and_nulls_are_stored_and_fail_as_they_are(cluster: MemoryCluster) -> None:
    headers = pa.array([[], [("h", b"1")], None, [], [("h", b"x" * 100)]], HEADERS)
    times = pa.array([None, None, 5, None, 6], pa.int64())
    data = pa.table({"value": [b"a", b"b", b"c", None, b"d"], "headers": headers, "time": times})
    async with producing(cluster, max_message_bytes=100) as out:
        acks = await out.send_arrow("t", data, headers="headers", timestamp="time", partition=P0)
    assert [each.record for each in cluster.log(P0)] == [
        ProducerRecord(b"a"),
        ProducerRecord(b"b", None, (("h", b"1"),)),
        ProducerRecord(b"c", None, (), 5),
        ProducerRecord(None),
    ]
    (failed,) = acks.failed
    assert failed.record == ProducerRecord(b"d", None, (("h", b"x" * 100),), 6)
    assert isinstance(failed.error, Rejected)


async def test_a_row_in_columns_that_is_too_large_fails_alone(cluster: MemoryCluster) -> None:
    data = pa.table({"value": ["a", "b" * 60, "c", None], "key": ["k", "k" * 60, "l" * 200, ""]})
    async with producing(cluster, max_message_bytes=100) as out:
        acks = await out.send_arrow("t", data, key="key", partition=P0)
    assert [each.record for each in cluster.log(P0)] == [ProducerRecord(b"a", b"k"), ProducerRecord(None, b"")]
    assert [failed.record for failed in acks.failed] == [
        ProducerRecord(b"b" * 60, b"k" * 60),
        ProducerRecord(b"c", b"l" * 200),
    ]
    assert all(isinstance(failed.error, Rejected) for failed in acks.failed)


STRINGS = st.none() | st.text(max_size=6)
TABLES = st.lists(
    st.tuples(
        STRINGS, STRINGS, st.none() | st.lists(st.tuples(st.text(max_size=3), STRINGS), max_size=2), st.integers(0, 9)
    ),
    min_size=1,
    max_size=8,
)


@given(
    rows=TABLES,
    kinds=st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS)),
    lists=st.sampled_from([pa.list_, pa.large_list]),
    time=st.sampled_from([pa.int64(), pa.uint32(), pa.timestamp("s"), pa.timestamp("ms", "UTC")]),
    cuts=st.lists(st.integers(0, 8), max_size=2),
)
def test_columns_of_every_kind_and_shape_are_the_same_records(
    rows: list[tuple[Any, ...]], kinds: tuple[Any, Any], lists: Any, time: Any, cuts: list[int]
) -> None:
    def strings(column: int, kind: Any) -> Any:
        texts = [row[column] for row in rows]
        return pa.array(texts if "string" in str(kind) else [t if t is None else t.encode() for t in texts], kind)

    pairs = lists(pa.struct([("value", pa.binary()), ("key", pa.string())]))
    headers = [None if row[2] is None else [{"key": name, "value": text} for name, text in row[2]] for row in rows]
    columns = [
        strings(0, kinds[0]),
        strings(1, kinds[1]),
        pa.array(headers, pairs),
        pa.array([r[3] for r in rows], time),
    ]
    table = pa.table(columns, ["value", "key", "headers", "time"])
    ends = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    data = pa.concat_tables([table.slice(start, stop - start) for start, stop in pairwise(ends)])
    made = [row for run in arrow_input.runs(data, "value", "key", "headers", "time") for row in run]
    unit = 1000 if "[s]" in str(time) else 1
    encoded = [tuple(None if text is None else text.encode() for text in row[:2]) for row in rows]
    assert made == [
        ProducerRecord(value, key, tuple((n, t if t is None else t.encode()) for n, t in row[2] or ()), row[3] * unit)
        for (value, key), row in zip(encoded, rows, strict=True)
    ]


async def test_what_is_hidden_below_a_null_is_not_sent() -> None:
    everything: Any = pa.array([[("h", b"1")], [("hidden", b"2")], [("i", b"3")]], HEADERS)
    bits = pa.py_buffer(bytes([0b101]))
    headers = pa.Array.from_buffers(HEADERS, 3, [bits, everything.buffers()[1]], children=[everything.values])
    values = pa.Array.from_buffers(
        pa.binary(), 3, [bits, *pa.array([b"a", b"hidden", b"c"], pa.binary()).buffers()[1:]]
    )
    data = pa.table({"value": values, "headers": headers})
    for rows in data, data.slice(1):
        (run,) = arrow_input.runs(rows, None, None, "headers")
        assert isinstance(run, PackedRecords)
        assert list(run)[-2:] == [ProducerRecord(None), ProducerRecord(b"c", None, (("i", b"3"),))]


def pairs(names: Any) -> Any:
    return pa.StructArray.from_arrays([names, pa.array([b""], pa.binary())], ["key", "value"])


BYTE_NAME: Any = pa.array([b"\xff"], pa.binary())
DAMAGED_NAME: Any = pa.Array.from_buffers(pa.string(), 1, BYTE_NAME.buffers())
DAMAGED_OFFSETS = pa.array([0, 9, 1], pa.int32()).buffers()[1]


@pytest.mark.parametrize(
    "headers",
    [
        pa.ListArray.from_arrays([0, 1], pairs(BYTE_NAME)),
        pa.ListArray.from_arrays([0, 1], pairs(DAMAGED_NAME)),
        pa.Array.from_buffers(HEADERS, 2, [None, DAMAGED_OFFSETS], children=[pairs(pa.array(["h"]))]),
    ],
    ids=["bytes", "damaged name", "damaged list"],
)
async def test_names_of_headers_are_utf_8_and_damage_is_seen(cluster: MemoryCluster, headers: Any) -> None:
    data = pa.table({"value": [b"x"] * len(headers), "headers": headers})
    async with producing(cluster) as out:
        with pytest.raises(ValueError, match=r"UTF|[Oo]ffset"):
            await out.send_arrow("t", data, value="value", headers="headers")
        assert out.statistics().accepted == 0
