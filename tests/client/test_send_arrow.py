"""`Producer.send_arrow` on a cluster in memory: what it takes, what it refuses, and that it keeps every promise of
`send_many`."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pyarrow as pa
import pytest
from anyio import wait_all_tasks_blocked

from odradek.client.options import Tuning
from odradek.client.producer import arrow_input
from odradek.client.producer.producer import Producer
from odradek.core.interfaces import ProducerRecord
from odradek.core.produce.batch import PACKED_OVERHEAD_BYTES
from odradek.core.produce.partitioners import KeyHash, RoundRobin
from odradek.engine import PackedBytes
from odradek.errors import ConfigError, DeadlineError, MessageTooLarge, OutcomeUnknown, Rejected, Unsupported
from odradek.types import KiB, TopicPartition

if TYPE_CHECKING:
    from tests.client.conftest import Clock, FakeDriver

pytestmark = pytest.mark.anyio

PARTITION = TopicPartition("t", 0, 1)
ROWS = [b"one", b"", b"three", "vi\u00ebr".encode()]
KINDS = [
    pa.binary(),
    pa.large_binary(),
    pa.string(),
    pa.large_string(),
    pa.binary_view(),
    pa.string_view(),
]


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
    driver: FakeDriver, kind: Any, shape: Any
) -> None:
    async with Producer(driver) as out:
        acks = await out.send_many("t", [b"the topic is known now"], partition=TopicPartition("t", 1, 2))
        acks = await out.send_arrow("t", shape(column(kind)), partition=PARTITION)
    assert acks.check().counts == {PARTITION: 4}
    assert driver.log[PARTITION] == ROWS


async def test_values_reach_the_encoder_in_the_memory_of_the_array(driver: FakeDriver) -> None:
    values = pa.array([b"%05d" % n for n in range(5000)], pa.binary())
    async with Producer(driver, tuning=Tuning(batch_bytes=8 * KiB)) as out:
        await out.send("t", b"the topic is known now", partition=TopicPartition("t", 1, 2))
        assert (await out.send_arrow("t", values, partition=PARTITION)).written == 5000
    records = [part.records for request in driver[1].requests for part in request.parts]
    assert len(records) > 8
    address = values.buffers()[2].address  # type: ignore[union-attr]
    for packed in records:
        assert isinstance(packed, PackedBytes)
        assert pa.py_buffer(packed.data).address == address
    assert driver.log[PARTITION] == values.to_pylist()


async def test_small_chunks_travel_together_in_their_order(driver: FakeDriver) -> None:
    rows = [b"%04d" % n for n in range(3000)]
    chunks = pa.chunked_array([rows[n : n + 3] for n in range(0, 3000, 3)], pa.binary())
    async with Producer(driver) as out:
        await out.send_arrow("t", chunks, partition=PARTITION)
    assert driver.log[PARTITION] == rows
    assert sum(len(request.parts) for request in driver[1].requests) < 10


async def test_nothing_is_nothing(driver: FakeDriver) -> None:
    async with Producer(driver) as out:
        for nothing in (
            pa.array([], pa.binary()),
            pa.chunked_array([], pa.string()),
            pa.table({"v": pa.array([], "string")}),
        ):
            assert (await out.send_arrow("t", nothing)).written == 0
    assert not driver.log


async def test_keys_choose_the_partition_and_a_null_is_no_key(driver: FakeDriver) -> None:
    keys = [None if n % 5 == 0 else f"k{n % 7}" for n in range(500)]
    data = pa.table({"user": pa.array(keys, pa.string()), "value": pa.array([f"{n}" for n in range(500)])})
    async with Producer(driver) as out:
        acks = await out.send_arrow("t", data, key="user")
    assert acks.written == 500
    partitions = driver.metadata.table.partitions("t")
    for n, key in enumerate(keys):
        if key is not None:
            index = KeyHash()("t", key.encode(), 4)
            assert index is not None
            assert b"%d" % n in driver.log[partitions[index]]


async def test_a_partitioner_that_looks_at_every_record_sees_every_row(driver: FakeDriver) -> None:
    async with Producer(driver, partitioner=RoundRobin()) as out:
        await out.send_many("t", [b"x"] * 4)
        acks = await out.send_arrow("t", pa.array([b"a", b"b", b"c", b"d"]))
    assert sorted(acks.counts.values()) == [1, 1, 1, 1]


async def test_compressed_topics_take_columns_too(driver: FakeDriver) -> None:
    rows = [b"%05d" % n * 20 for n in range(3000)]
    async with Producer(driver, compression="gzip") as out:
        assert (await out.send_arrow("t", pa.array(rows), partition=PARTITION)).written == 3000
    assert driver.log[PARTITION] == rows


# ---- what it refuses ---------------------------------------------------------------------------------------------

TABLE = pa.table({"a": [b"x", b"y"], "n": [1, 2], "gap": pa.array([b"x", None])})
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
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
        (TABLE["a"], {"value": "a"}, ConfigError, "value='a' names a column, and an array has none"),
        (pa.nulls(1), {}, TypeError, "the array is null: "),
        (pa.table([[b"x"], [b"y"]], ["value", "value"]), {}, ConfigError, "there is more than one column 'value'"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_what_cannot_be_sent_is_said_before_anything_is(
    driver: FakeDriver, data: Any, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    async with Producer(driver) as out:
        with pytest.raises(error, match=words):
            await out.send_arrow("t", data, **options)
        assert out.statistics().accepted == 0


async def test_damaged_offsets_reach_nobody(driver: FakeDriver) -> None:
    offsets = pa.array([0, 9, 2], pa.int32()).buffers()[1]
    damaged = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"abc")])
    async with Producer(driver) as out:
        with pytest.raises(ValueError, match="offset"):
            await out.send_arrow("t", damaged)
        await out.send("t", b"still fine")


async def test_without_pyarrow_the_error_names_the_extra(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "odradek.client.producer.arrow_input")
    monkeypatch.delattr("odradek.client.producer.arrow_input", raising=False)
    async with Producer(driver) as out:
        with pytest.raises(ConfigError, match=r"pip install 'odradek\[arrow\]'"):
            await out.send_arrow("t", TABLE)


# ---- as send_many -----------------------------------------------------------------------------------------------


async def test_rows_that_are_too_large_fail_alone_and_are_shown_as_records(driver: FakeDriver) -> None:
    async with Producer(driver, max_message_bytes=10) as out:
        acks = await out.send_arrow("t", pa.array(["fits", "x" * 11, "too", "y" * 1000]), partition=PARTITION)
    assert driver.log[PARTITION] == [b"fits", b"too"]
    assert [failed.record for failed in acks.failed] == [ProducerRecord(b"x" * 11), ProducerRecord(b"y" * 1000)]
    for failed in acks.failed:
        assert isinstance(failed.error, Rejected)
        assert isinstance(failed.error.__cause__, MessageTooLarge)


@pytest.mark.parametrize("compression", ["none", "gzip"])
async def test_rows_that_nobody_answers_are_unknown_and_shown_as_records(
    driver: FakeDriver, clock: Clock, compression: str
) -> None:
    async def late() -> None:
        await driver[1].sent(1)
        clock.now += 1
        await anyio.sleep(0.1)
        driver[1].lose(DeadlineError("produce", 10, True))

    driver[1].holding = True
    async with (
        Producer(driver, deliver_within=0.05, compression=compression) as out,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(late)
        acks = await out.send_arrow("t", pa.array(["a", "b"]), partition=PARTITION)
        assert [(failed.record, type(failed.error)) for failed in acks.failed] == [
            (ProducerRecord(b"a"), OutcomeUnknown),
            (ProducerRecord(b"b"), OutcomeUnknown),
        ]


async def test_rows_wait_for_room_and_what_they_take_is_bounded(driver: FakeDriver) -> None:
    """Nothing is ever held beyond the buffer, and all of it is given back."""
    async with Producer(driver, buffer_bytes=2000) as out:
        driver.hold()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(
                partial(out.send_arrow, "t", pa.array([b"%03d" % n for n in range(1000)]), partition=PARTITION)
            )
            await wait_all_tasks_blocked()
            most = out.statistics().buffered_bytes
            assert 2000 - (13 + 120) < most <= 2000
            assert out.statistics().buffered > 2000 // (13 + 2 * PACKED_OVERHEAD_BYTES)
            driver[1].release()
        assert out.statistics().buffered_bytes == 0
    assert driver.log[PARTITION] == [b"%03d" % n for n in range(1000)]


async def test_a_cancelled_call_leaves_its_rows_on_their_way(driver: FakeDriver) -> None:
    driver[1].holding = True
    rows = [b"%03d" % n for n in range(100)]
    async with Producer(driver, buffer_bytes=1000) as out:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(out.send_arrow, "t", pa.array(rows), partition=PARTITION))
                await wait_all_tasks_blocked()
                scope.cancel()
        accepted = out.statistics().accepted
        assert 0 < accepted < 100
        driver[1].release()
    assert driver.log[PARTITION] == rows[:accepted]
    assert not out.failures


async def test_rows_of_a_broker_that_has_gone_are_sent_elsewhere_in_their_order(driver: FakeDriver) -> None:
    driver.metadata.brokers(1)
    driver[1].holding = True
    rows = [b"%04d" % n for n in range(2000)]
    async with Producer(driver, tuning=Tuning(batch_bytes=2 * KiB)) as out, anyio.create_task_group() as tasks:
        tasks.start_soon(out.send_arrow, "t", pa.array(rows))
        await wait_all_tasks_blocked()
        driver.metadata.brokers(2)
        await wait_all_tasks_blocked()
        driver[1].holding = False
        driver[1].cut(sent=False)
    assert {partition.broker for partition in driver.log} == {2}
    assert driver.values() == rows


async def test_a_wrapper_that_is_too_large_is_split_down_to_its_rows(driver: FakeDriver) -> None:
    rows = [bytes((n * 7919 + i * i * 31 + (i * n) % 251) % 256 for i in range(40)) for n in range(40)]
    async with Producer(driver, compression="gzip", max_message_bytes=200) as out:
        acks = await out.send_arrow("t", pa.array(rows, pa.binary()), partition=PARTITION)
    assert acks.written == 40
    assert driver.log[PARTITION] == rows
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
    times = pa.array([1500, None, -1], pa.timestamp("ms", tz="UTC"))
    data = pa.table({"value": [b"x", None, b"z"], "key": ["k", "", None], "headers": headers, "time": times})
    rows = [
        ProducerRecord(b"x", b"k", (("a", b"1"), ("a", None)), 1500),
        ProducerRecord(None, b"", (), None),
        ProducerRecord(b"z", None, (), -1),
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
    assert run == [ProducerRecord(b"x", None, (("a", b"1"),)), ProducerRecord(b"y")]


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


async def test_rows_that_the_cluster_cannot_store_fail_alone(driver: FakeDriver) -> None:
    headers = pa.array([[], [("h", b"1")], None, []], HEADERS)
    times = pa.array([None, None, 5, None], pa.int64())
    data = pa.table({"value": [b"a", b"b", b"c", None], "headers": headers, "time": times})
    async with Producer(driver) as out:
        acks = await out.send_arrow("t", data, headers="headers", timestamp="time", partition=PARTITION)
    assert driver.log[PARTITION] == [b"a"]
    assert [failed.record for failed in acks.failed] == [
        ProducerRecord(b"b", None, (("h", b"1"),)),
        ProducerRecord(b"c", None, (), 5),
        ProducerRecord(None),
    ]
    assert all(isinstance(failed.error, Unsupported) for failed in acks.failed)
