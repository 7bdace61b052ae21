"""Serializers and deserializers: values in, values out, and records that cannot be decoded."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from typing import Any, assert_type

import anyio
import pytest
from tests.client.one_member import make_cluster, numbered, revoking, tp, until

import odradek as od
from odradek.client.consumer.decoded import DecodedConsumer, DecodedReader
from odradek.client.producer.serializing import SerializingProducer
from odradek.serde import (
    JSON,
    STRING,
    DecodedRecord,
    DeserializationError,
    Deserializer,
    Serde,
    SerdeContext,
    SerializationError,
)
from odradek.testing import MemoryCluster

pytestmark = pytest.mark.anyio


@dataclass
class Order:
    id: int


class Orders(Deserializer[Order]):
    """Asynchronous: decoding waits while `gate` is closed. Negative numbers are refused."""

    def __init__(self) -> None:
        self.gate, self.asked = anyio.Event(), 0
        self.gate.set()
        self.fails: Exception | None = None

    def shut(self) -> None:
        self.gate = anyio.Event()

    async def serialize(self, value: Order, context: SerdeContext) -> bytes:
        await self.gate.wait()
        context.headers.append(("field", context.field.encode()))
        if value.id < 0:
            raise ValueError("negative")
        return b"%06d" % value.id

    async def deserialize(self, data: bytes, context: SerdeContext) -> Order:
        self.asked += 1
        await self.gate.wait()
        if self.fails is not None:
            raise self.fails
        return Order(int(data))


class Away(Exception):
    retriable = True


def consuming(cluster: od.Cluster, serde: Orders, **options: Any) -> DecodedConsumer[bytes, Order]:
    return cluster.consumer("t", value_deserializer=serde, group="g", commit_every=None, **options)


def poisoned(*rows: int) -> MemoryCluster:
    """A partition of ten records, some of which are no numbers."""
    cluster = MemoryCluster(topics={"t": 1})
    cluster.append("t", [b"x" if n in rows else b"%06d" % n for n in range(10)], partition=0)
    return cluster


# ---- producers -----------------------------------------------------------------------------------------------


async def test_keys_and_values_arrive_as_they_were_sent() -> None:
    cluster = MemoryCluster(topics={"t": 1})
    async with cluster.connect() as k:
        async with k.producer(key_serializer=STRING, value_serializer=JSON) as out:
            ack = await out.send("t", {"\u00e4": [1, None]}, key="k1", headers=[("h", b"1")], timestamp=7)
            await out.put("t", 2, partition=0)
            await out.put("t", None, key="gone")
            await out.flush()
            assert ack.partition == tp(0) and not out.failures and out.raw.statistics().written == 3
            many = [await out.record("t", n, key=str(n)) for n in range(2)]
            (await out.raw.send_many("t", many)).check()
        async with k.reader("t", until=od.LATEST) as raw:
            records = [record async for record in raw]
        async with k.reader("t", until=od.LATEST, key_deserializer=STRING, value_deserializer=JSON) as r:
            decoded = [record async for record in r]
    assert [(x.key, x.value) for x in records[:3]] == [
        (b"k1", '{"\u00e4":[1,null]}'.encode()),
        (None, b"2"),
        (b"gone", None),
    ]
    assert [(x.key, x.value) for x in decoded] == [
        ("k1", {"\u00e4": [1, None]}), (None, 2), ("gone", None), ("0", 0), ("1", 1),
    ]  # fmt: skip
    assert [x.record for x in decoded] == records
    first = decoded[0]
    assert (first.headers, first.timestamp, first.topic) == ((("h", b"1"),), 7, "t")
    assert (first.partition, first.position) == (tp(0), records[0].position)


async def test_a_serializer_adds_headers_and_knows_its_field() -> None:
    cluster = MemoryCluster(topics={"t": 1})
    serde = Orders()
    async with cluster.connect() as k:
        async with k.producer(key_serializer=serde, value_serializer=serde) as out:
            own = [("mine", None)]
            await out.send("t", Order(2), key=Order(1), headers=own)
        assert own == [("mine", None)]
        async with k.reader("t", until=od.LATEST) as raw:
            (record,) = [record async for record in raw]
    assert (record.key, record.value) == (b"000001", b"000002")
    assert list(record.headers) == [("mine", None), ("field", b"key"), ("field", b"value")]


class NoBytes:
    def serialize(self, value: object, context: SerdeContext) -> Any:
        return value


@pytest.mark.parametrize(
    ("serializer", "value", "cause", "why"),
    [
        (Orders, Order(-1), ValueError, "ValueError: negative"),
        (JSON, float("nan"), ValueError, "ValueError: Out of range float values are not JSON compliant"),
        (STRING, 7, TypeError, "TypeError: "),
        (NoBytes(), "text", TypeError, "TypeError: the serializer returned str, not bytes"),
        (NoBytes(), bytearray(b"x"), TypeError, "TypeError: the serializer returned bytearray, not bytes"),
    ],
)
async def test_what_cannot_be_serialized_is_not_sent(serializer: Any, value: Any, cause: type, why: str) -> None:
    cluster = MemoryCluster(topics={"t": 1})
    made = serializer() if serializer is Orders else serializer
    async with cluster.connect() as k, k.producer(value_serializer=made) as out:
        for call in (out.send, out.put):
            with pytest.raises(SerializationError) as failed:
                await call("t", value)
            assert type(failed.value.__cause__) is cause and not failed.value.retriable
            assert str(failed.value).startswith(f"the value of a record for t cannot be serialized: {why}")
        assert out.raw.statistics().accepted == 0


async def test_a_serializer_that_may_succeed_later_says_so() -> None:
    cluster = MemoryCluster(topics={"t": 1})

    class Later:
        def serialize(self, value: str, context: SerdeContext) -> bytes:
            raise Away("registry")

    async with cluster.connect() as k, k.producer(key_serializer=Later(), value_serializer=STRING) as out:
        with pytest.raises(SerializationError, match="the key of a record for t") as failed:
            await out.send("t", "v", key="k")
        assert failed.value.retriable


async def test_a_send_that_is_cancelled_in_its_serializer_sends_nothing() -> None:
    serde = Orders()
    serde.shut()
    async with MemoryCluster(topics={"t": 1}).connect() as k, k.producer(value_serializer=serde) as out:
        with anyio.move_on_after(0) as scope:
            await out.send("t", Order(1))
        assert scope.cancelled_caught and out.raw.statistics().accepted == 0


async def test_a_transaction_is_that_of_the_raw_producer() -> None:
    async with MemoryCluster(topics={"t": 1}).connect() as k, k.producer(value_serializer=JSON) as out:
        with pytest.raises(od.UsageError, match="no transactions"):
            out.transaction()


async def test_bytes_stay_bytes_without_a_serializer() -> None:
    async with MemoryCluster(topics={"t": 1}).connect() as k:
        assert type(k.producer()) is od.Producer
        assert type(k.reader("t")) is od.Reader
        assert type(k.consumer("t", group="g")) is od.Consumer
        wrong: Any = "utf-8"
        for made in (
            lambda: k.producer(value_serializer=wrong),
            lambda: k.consumer("t", group="g", value_deserializer=wrong),
            lambda: k.reader("t", key_deserializer=wrong, value_deserializer=JSON),
        ):
            with pytest.raises(TypeError, match=r"erializer must be a .*such as odradek.serde.JSON"):
                made()


# ---- records that cannot be decoded -----------------------------------------------------------------------------


async def test_a_record_that_cannot_be_decoded_is_raised_in_its_place() -> None:
    async with poisoned(3, 9).connect() as k, consuming(k, Orders()) as c:
        seen: list[Any] = []
        while len(seen) < 10:
            try:
                seen.append((await anext(c)).value)
            except DeserializationError as error:
                seen.append((error.record.position, error.record.value, error.field, error.retriable))
        stored = await c.raw.commit()
    expected = [Order(n) if n not in (3, 9) else None for n in range(10)]
    assert [x if isinstance(x, Order) else None for x in seen] == expected
    assert [x[1:] for x in seen if isinstance(x, tuple)] == [(b"x", "value", False)] * 2
    assert stored[tp(0)] == seen[9][0]  # the record that was handed out last is not done


async def test_an_error_that_ends_the_block_leaves_its_record_undone() -> None:
    cluster = poisoned(3)
    for _ in range(2):  # the same again
        async with cluster.connect() as k:
            with pytest.raises(DeserializationError) as failed:
                async with consuming(k, Orders()) as c:
                    async for _ in c:
                        pass
            assert failed.value.record.value == b"x"
    async with cluster.connect() as k, k.consumer("t", group="g", commit_every=None) as raw:
        assert (await anext(raw)).value == b"x"


async def test_a_record_comes_again_if_the_error_passes() -> None:
    serde = Orders()
    async with poisoned().connect() as k, consuming(k, serde) as c:
        assert (await anext(c)).value == Order(0)
        for _ in range(3000):  # a stream that grew with each attempt would overflow
            serde.fails = Away("no answer")
            with pytest.raises(DeserializationError, match=r"t/0 at .*: the value cannot be decoded: Away: no answer"):
                await anext(c)
        serde.fails = None
        assert [(await anext(c)).value for _ in range(9)] == [Order(n) for n in range(1, 10)]


async def test_an_error_keeps_what_is_known_of_its_record_when_pickled() -> None:
    async with poisoned(0).connect() as k, consuming(k, Orders()) as c:
        with pytest.raises(DeserializationError) as failed:
            await anext(c)
    again = pickle.loads(pickle.dumps(failed.value))
    assert (again.record, again.field, again.why) == (failed.value.record, "value", failed.value.why)


async def test_the_id_of_a_schema_is_in_the_error() -> None:
    class Named(Exception):
        schema = 7

    serde = Orders()
    serde.fails = Named("bad")
    async with poisoned().connect() as k, consuming(k, serde) as c:
        with pytest.raises(DeserializationError, match="cannot be decoded with schema 7: Named: bad") as failed:
            await anext(c)
        assert failed.value.schema == 7


# ---- waits that are interrupted ---------------------------------------------------------------------------------


async def cancelled(c: DecodedConsumer[bytes, Order] | DecodedReader[bytes, Order], serde: Orders) -> None:
    """Ask for the next record, and be cancelled while it is decoded."""
    serde.shut()
    asked = serde.asked
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            await anext(c)
            raise AssertionError("was not cancelled")

        tasks.start_soon(ask)
        await until(lambda: serde.asked > asked)
        tasks.cancel_scope.cancel()
    serde.gate.set()


@pytest.mark.parametrize("before", [0, 1, 5])
async def test_a_record_whose_decoding_was_cancelled_comes_next(before: int) -> None:
    serde = Orders()
    async with poisoned().connect() as k, consuming(k, serde) as c:
        seen = [await anext(c) for _ in range(before)]
        for _ in range(2):
            await cancelled(c, serde)
        seen += [await anext(c) for _ in range(10 - before)]
        assert [x.value for x in seen] == [Order(n) for n in range(10)]


@pytest.mark.parametrize("before", [0, 1, 5])
async def test_a_record_whose_decoding_was_cancelled_is_not_committed(before: int) -> None:
    serde, cluster = Orders(), poisoned()
    async with cluster.connect() as k:
        async with consuming(k, serde) as c:
            for _ in range(before):
                await anext(c)
            await cancelled(c, serde)
        async with consuming(k, serde) as c:
            assert (await anext(c)).value == Order(before)


@pytest.mark.parametrize("before", [0, 1, 5])
async def test_a_bookmark_is_before_a_record_whose_decoding_was_cancelled(before: int) -> None:
    serde = Orders()
    async with poisoned().connect() as k:
        async with k.reader("t", value_deserializer=serde) as r:
            for _ in range(before):
                await anext(r)
            await cancelled(r, serde)
            token = r.raw.bookmark()
        async with k.reader("t", start=token, until=od.LATEST, value_deserializer=serde) as r:
            assert [x.value async for x in r] == [Order(n) for n in range(before, 10)]


@pytest.mark.parametrize("before", [0, 3])
async def test_a_seek_drops_a_record_whose_decoding_was_cancelled(before: int) -> None:
    serde = Orders()
    async with poisoned().connect() as k, consuming(k, serde) as c:
        seen = [await anext(c) for _ in range(before)]
        await cancelled(c, serde)
        c.raw.seek(tp(0), od.EARLIEST)
        assert (await anext(c)).value == Order(0)
        assert len(seen) == before
    async with poisoned().connect() as k, k.reader("t", value_deserializer=serde) as r:
        for _ in range(before):
            await anext(r)
        await cancelled(r, serde)
        r.raw.seek(tp(0), od.EARLIEST)
        assert (await anext(r)).value == Order(0)


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_record_taken_back_while_it_is_decoded_is_not_handed_out(before: int, fails: bool) -> None:
    serde = Orders()
    async with poisoned().connect() as k, consuming(k, serde) as c:
        seen = [await anext(c) for _ in range(before)]
        serde.shut()
        serde.fails = ValueError("of the former record") if fails else None
        asked = serde.asked
        async with anyio.create_task_group() as tasks:

            async def read_on() -> None:
                while len(seen) < 10:
                    seen.append(await anext(c))

            tasks.start_soon(read_on)
            await until(lambda: serde.asked > asked)
            c.raw.pause()
            serde.gate.set()
            await until(lambda: c.raw._stream._undecoded is None)
            for _ in range(10):
                await anyio.lowlevel.checkpoint()
            assert len(seen) == before
            serde.fails = None
            c.raw.resume()
        assert [x.value for x in seen] == [Order(n) for n in range(10)]


@pytest.mark.parametrize("before", [0, 3])
async def test_a_rebalance_does_not_wait_for_a_record_that_is_decoded(before: int) -> None:
    """It was not handed out: another member gets it."""
    serde, cluster = Orders(), make_cluster(10, 10)
    async with cluster.connect() as k, consuming(k, serde, revoke_within=60) as first:
        for _ in range(before):
            await anext(first)
        serde.shut()
        asked = serde.asked
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anext, first)
            await until(lambda: serde.asked > asked)
            with anyio.fail_after(20):
                async with k.consumer("t", group="g", commit_every=None) as second:
                    assert not revoking(first.raw)
                    assert len(second.partitions) == len(first.raw.partitions) == 1
                    moved = second.partitions[0]
                    value = (await anext(second)).value
            lowest = numbered(10, 10 * moved.partition)
            assert value in (lowest[0], lowest[before])
            tasks.cancel_scope.cancel()


async def test_one_task_at_a_time_asks_for_records() -> None:
    serde = Orders()
    async with poisoned().connect() as k, consuming(k, serde) as c:
        serde.shut()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anext, c)
            await until(lambda: serde.asked)
            with pytest.raises(anyio.BusyResourceError):
                await anext(c)
            tasks.cancel_scope.cancel()


# ---- batches, streams and handlers ------------------------------------------------------------------------------


async def test_batches_stay_bytes_and_decode_one_record_at_a_time() -> None:
    serde = Orders()
    async with poisoned(3).connect() as k:
        async with consuming(k, serde) as c:
            async for batch in c.batches():
                assert len(batch.values) == 10 and serde.asked == 0
                records = list(batch)
                assert (await c.decode(records[9])).value == Order(9) and serde.asked == 1
                with pytest.raises(DeserializationError):
                    await c.decode(records[3])
                assert batch.done()
                break
        async with k.reader("t", until=od.LATEST, value_deserializer=STRING) as r:
            async for plain in r.batches():
                assert (await r.decode(next(iter(plain)))).value == "000000"


async def test_each_stream_decodes_its_share() -> None:
    async with make_cluster(10, 10).connect() as k:
        async with k.consumer("t", group="g", streams=2, value_deserializer=Orders()) as c:
            firsts = [await anext(stream) for stream in c.streams]
            assert sorted(x.value.id for x in firsts if x.value) == [0, 10]
            async for again in c.streams[0]:
                assert again.value and again.value.id in (1, 11)
                break
        assert repr(c).startswith("<DecodedConsumer <Consumer of g")


async def test_each_handles_decoded_records_and_sends_the_others_away_as_they_were() -> None:
    cluster = MemoryCluster(topics={"t": 1, "dlq": 1})
    cluster.append("t", [b"x" if n == 3 else b"%06d" % n for n in range(10)], partition=0)
    seen: list[DecodedRecord[bytes, Order]] = []

    async def handle(record: DecodedRecord[bytes, Order]) -> None:
        seen.append(record)

    async with cluster.connect() as k:
        async with consuming(k, Orders()) as c, anyio.create_task_group() as tasks:

            async def work() -> None:
                await c.each(handle, dead_letter="dlq")

            tasks.start_soon(work)
            await until(lambda: len(seen) == 9)
            await until(lambda: not c.raw._owned.pools[0]._running)
            tasks.cancel_scope.cancel()
        async with k.reader("dlq", until=od.LATEST) as r:
            (dead,) = [record async for record in r]
    assert [x.value for x in seen] == [Order(n) for n in range(10) if n != 3]
    assert dead.value == b"x"
    headers = dict(dead.headers)
    error = headers["odradek.error"]
    assert headers["odradek.error_type"] == b"DeserializationError"
    assert error is not None and error.startswith(b"t/0 at 3: ")


async def test_each_waits_for_what_passes_and_sends_no_good_record_away(caplog: pytest.LogCaptureFixture) -> None:
    cluster = MemoryCluster(topics={"t": 1, "dlq": 1})
    cluster.append("t", numbered(10), partition=0)
    serde, seen = Orders(), list[object]()
    serde.fails = Away("no answer")

    async def handle(record: DecodedRecord[bytes, Order]) -> None:
        seen.append(record.value)

    async with cluster.connect() as k:
        async with consuming(k, serde) as c, anyio.create_task_group() as tasks:

            async def work() -> None:
                await c.each(handle, dead_letter="dlq", order="none", parallel=3)

            tasks.start_soon(work)
            await until(lambda: serde.asked >= 12)
            serde.fails = None
            await until(lambda: len(seen) == 10)
            tasks.cancel_scope.cancel()
        async with k.reader("dlq", until=od.LATEST) as r:
            assert [record async for record in r] == []
    assert caplog.text.count("decoding waits: t/0 at ") == 1


async def test_each_raises_what_cannot_be_decoded_without_a_place_for_it() -> None:
    seen: list[object] = []

    async def handle(record: DecodedRecord[bytes, Order]) -> None:
        seen.append(record.value)

    async with poisoned(3).connect() as k, consuming(k, Orders()) as c:
        with pytest.raises(DeserializationError) as failed:
            await c.each(handle)
        assert failed.value.record.value == b"x" and seen == [Order(0), Order(1), Order(2)]
        wrong: Any = None
        with pytest.raises(TypeError, match="handle must be a coroutine function"):
            await c.each(wrong)


async def test_a_serde_is_made_of_two_functions() -> None:
    serde: Serde[Order] = Serde(lambda order: json.dumps(order.id).encode(), lambda data: Order(json.loads(data)))
    async with MemoryCluster(topics={"t": 1}).connect() as k:
        async with k.producer(value_serializer=serde) as out:
            await out.send("t", Order(5), key=b"k")
        assert "0 failed" in repr(out)
        async with k.reader("t", until=od.LATEST, value_deserializer=serde) as r:
            assert [(x.key, x.value) async for x in r] == [(b"k", Order(5))]
            assert "Reader" in repr(r)


async def test_type_checkers_know_the_types() -> None:
    """Which mypy checks: `assert_type` does nothing when it runs."""
    async with MemoryCluster(topics={"t": 1}).connect() as k:
        async with k.producer(key_serializer=STRING, value_serializer=Orders(), latency=0.0) as out:
            assert_type(out, SerializingProducer[str, Order])
            await out.send("t", Order(1), key="k")
            with pytest.raises(SerializationError):
                await out.send("t", b"v")  # type: ignore[arg-type]
        async with k.reader("t", until=od.LATEST, value_deserializer=Orders()) as r:
            assert_type(r, DecodedReader[bytes, Order])
            async for record in r:
                assert_type(record.key, bytes | None)
                assert_type(record.value, Order | None)
        assert_type(k.consumer("t", group="g"), od.Consumer)
        c = k.consumer("t", group="g", key_deserializer=STRING, value_deserializer=JSON)
        assert_type(c, DecodedConsumer[str, Any])
