"""Records that failed: retry topics with delays, dead letters, and records that cannot be decoded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.client.one_member import numbered, tp, until

import odradek as od
from odradek.client.consumer import each
from odradek.client.consumer.consumer import Consumer
from odradek.client.consumer.dead_letters import FailedRecord, due_at, failed_attempts, send_dead_letter
from odradek.core.backoff import Backoff
from odradek.errors import BrokerError, ConfigError, CorruptMessage, Rejected
from odradek.testing import MemoryCluster
from odradek.testing.memory.log import record_bytes
from odradek.types import Position, Record, TopicPartition

pytestmark = pytest.mark.anyio

SHORT, LONG = TopicPartition("t.5s", 0), TopicPartition("t.1m", 0)
RETRIES = {"t.5s": 5.0, "t.1m": 60.0}


class Clock:
    """The time of the process, in place of the system's."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def time(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still; delays are looked at all the time."""
    clock = Clock(1_000_000.0)
    monkeypatch.setattr(each, "time", clock)
    monkeypatch.setattr(each, "MAX_DELAY_S", 0.001)
    return clock


def make_cluster(count: int = 5) -> MemoryCluster:
    cluster = MemoryCluster(topics={"t": 1, "t.5s": 1, "t.1m": 1, "t.dlq": 1})
    cluster.append("t", numbered(count))
    return cluster


@asynccontextmanager
async def handling(
    cluster: MemoryCluster, handle: Callable[[Record], Any], *, consuming: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[Consumer]:
    """A member that handles `t` and the retry topics."""
    settings = {"group": "g", "commit_every": 0.001, **(consuming or {})}
    arguments = {"retry_topics": RETRIES, "dead_letter": "t.dlq", **options}
    async with (
        cluster.connect() as k,
        k.consumer(["t", *RETRIES], **settings) as consumer,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(lambda: consumer.each(handle, **arguments))
        yield consumer
        tasks.cancel_scope.cancel()


class Handler:
    """Fails for some values, each time; notes what it was called with."""

    def __init__(self, *failing: bytes) -> None:
        self.failing, self.seen = set(failing), list[tuple[str, bytes | None]]()

    async def __call__(self, record: Record) -> None:
        self.seen.append((record.topic, record.value))
        if record.value in self.failing:
            raise ValueError(f"no {record.value!r}")

    def of(self, topic: str) -> list[bytes | None]:
        return [value for where, value in self.seen if where == topic]


async def test_a_record_is_retried_after_each_delay_and_then_becomes_a_dead_letter(clock: Clock) -> None:
    cluster, handler = make_cluster(), Handler(b"000001")
    async with handling(cluster, handler):
        await until(lambda: cluster.committed("g").get(tp()) == 5)
        assert handler.of("t") == numbered(5), "nothing waits for the one that failed"
        await anyio.wait_all_tasks_blocked()
        assert handler.of("t.5s") == [] and cluster.committed("g").get(SHORT, 0) == 0
        clock.seconds += 5
        await until(lambda: cluster.committed("g").get(SHORT) == 1)
        clock.seconds += 59
        await anyio.wait_all_tasks_blocked()
        assert handler.of("t.5s") == [b"000001"] and handler.of("t.1m") == []
        clock.seconds += 1
        await until(lambda: cluster.committed("g").get(LONG) == 1)
    (dead,) = cluster.records("t.dlq")
    assert dict(dead.record.headers) == {
        "odradek.topic": b"t",
        "odradek.partition": b"0",
        "odradek.position": b"1",
        "odradek.error_type": b"ValueError",
        "odradek.error": b"no b'000001'",
        "odradek.attempts": b"3",
    }


async def test_what_is_retried_keeps_key_headers_and_timestamp_and_says_when_it_is_due(clock: Clock) -> None:
    cluster = make_cluster(0)
    cluster.append("t", [od.ProducerRecord(b"v", key=b"k", headers=[("trace", b"7")], timestamp=5_000)])
    async with handling(cluster, Handler(b"v"), retries=2, backoff=Backoff(0.0001, 1, 0.0001)):
        await until(lambda: cluster.records("t.5s"))
    (kept,) = cluster.records("t.5s")
    assert (kept.value, kept.key, kept.timestamp) == (b"v", b"k", 5_000)
    headers = dict(kept.record.headers)
    assert (headers["trace"], headers["odradek.attempts"]) == (b"7", b"3")
    assert headers["odradek.due"] == b"%d" % (1_000_005 * 1000)


async def test_a_record_that_is_retried_with_success_is_done(clock: Clock) -> None:
    cluster, handler = make_cluster(), Handler(b"000001")
    async with handling(cluster, handler):
        await until(lambda: cluster.committed("g").get(tp()) == 5)
        handler.failing.clear()
        clock.seconds += 5
        await until(lambda: cluster.committed("g").get(SHORT) == 1)
    assert handler.of("t.5s") == [b"000001"]
    assert cluster.records("t.1m") == [] and cluster.records("t.dlq") == []


async def test_of_one_batch_what_is_due_is_handled_and_the_rest_later(clock: Clock) -> None:
    cluster, handler = make_cluster(0), Handler()
    due = [("odradek.due", b"%d" % ((1_000_000 + n) * 1000)) for n in (-1, 0, 1, 2)]
    cluster.append("t.5s", [od.ProducerRecord(b"%d" % n, headers=[header]) for n, header in enumerate(due)])
    async with handling(cluster, handler):
        await until(lambda: handler.of("t.5s") == [b"0", b"1"])
        clock.seconds += 1
        await until(lambda: handler.of("t.5s") == [b"0", b"1", b"2"])
        clock.seconds += 1
        await until(lambda: handler.of("t.5s") == [b"0", b"1", b"2", b"3"])


async def test_records_that_wait_block_no_other_partition_however_many_they_are(clock: Clock) -> None:
    cluster, handler = make_cluster(0), Handler()
    waiting = [od.ProducerRecord(b"x" * 1000, headers=[("odradek.due", b"9999999999999")])] * 500
    cluster.append("t.5s", waiting)
    cluster.append("t.1m", waiting)
    async with handling(cluster, handler, consuming={"read_ahead_bytes": 65_536}) as consumer:
        await until(lambda: consumer.watermarks().keys() >= {SHORT, LONG})
        for n in range(20):
            cluster.append("t", [b"%d" % n + b"y" * 1000] * 50)
            await until(lambda n=n: len(handler.of("t")) == 50 * (n + 1))  # type: ignore[misc]
    assert len(handler.seen) == 1000


async def test_a_record_without_a_time_is_handled_at_once(clock: Clock) -> None:
    cluster, handler = make_cluster(0), Handler()
    odd = [od.ProducerRecord(b"odd", headers=[("odradek.due", due)]) for due in (b"soon", b"9" * 5000)]
    cluster.append("t.5s", [b"by hand", *odd])
    async with handling(cluster, handler):
        await until(lambda: handler.of("t.5s") == [b"by hand", b"odd", b"odd"])


async def test_when_each_ends_what_waited_can_be_read(clock: Clock) -> None:
    cluster = make_cluster(0)
    cluster.append("t.5s", [od.ProducerRecord(b"late", headers=[("odradek.due", b"9999999999999")])])
    async with cluster.connect() as k, k.consumer(["t", *RETRIES], group="g") as consumer:
        with anyio.move_on_after(0.05):
            await consumer.each(Handler(), retry_topics=RETRIES)
        assert (await anext(consumer)).value == b"late"


async def test_a_revoked_retry_topic_waits_again_when_it_is_back(clock: Clock) -> None:
    cluster, handler = make_cluster(0), Handler()
    cluster.append("t.5s", [od.ProducerRecord(b"late", headers=[("odradek.due", b"%d" % (1_000_005 * 1000))])])
    async with handling(cluster, handler) as consumer:
        await until(lambda: SHORT in consumer.watermarks())
        cluster.revoke("g", SHORT)
        await until(lambda: SHORT not in consumer.assignment)
        cluster.restore("g")
        await until(lambda: SHORT in consumer.watermarks())
        await anyio.wait_all_tasks_blocked()
        assert handler.seen == []
        clock.seconds += 5
        await until(lambda: handler.of("t.5s") == [b"late"])


async def test_a_record_that_cannot_be_written_to_its_retry_topic_is_not_done(clock: Clock) -> None:
    cluster = make_cluster()
    cluster.fail("produce", BrokerError(29, "TOPIC_AUTHORIZATION_FAILED"))
    async with cluster.connect() as k, k.consumer(["t", *RETRIES], group="g") as consumer:
        with pytest.raises(Rejected, match="TOPIC_AUTHORIZATION_FAILED"):
            await consumer.each(Handler(b"000001"), retry_topics=RETRIES)
    assert cluster.committed("g")[tp()] == 1


async def test_without_dead_letters_the_last_retry_raises(clock: Clock) -> None:
    cluster = make_cluster()
    async with cluster.connect() as k, k.consumer(["t", "t.5s"], group="g") as consumer:
        with pytest.raises(ValueError, match="no b'000001'"):
            await consumer.each(Handler(b"000001"), retry_topics={"t.5s": 0})
    assert cluster.committed("g")[SHORT] == 0


@pytest.mark.parametrize(
    ("retry_topics", "kind", "text"),
    [
        ({"other": 5.0}, ConfigError, "retry_topics: 'other' is not consumed: name it among the consumer's topics"),
        ({"t.5s": -1.0}, ConfigError, "retry_topics"),
        (["t.5s"], TypeError, "retry_topics must be a mapping of topics to seconds"),
    ],
)
async def test_retry_topics_that_cannot_be_are_refused(retry_topics: Any, kind: type[Exception], text: str) -> None:
    cluster = make_cluster()
    async with cluster.connect() as k, k.consumer(["t", "t.5s"], group="g") as consumer:
        with pytest.raises(kind, match=text):
            await consumer.each(Handler(), retry_topics=retry_topics)


@pytest.mark.parametrize("pattern", [{"include": r"t(\.5s)?"}, {"exclude": r"t\.1m|x.*"}])
async def test_a_retry_topic_that_no_pattern_selects_is_refused(pattern: Any) -> None:
    async with make_cluster().connect() as k, k.consumer(group="g", **pattern) as consumer:
        with pytest.raises(ConfigError, match=r"retry_topics: 't\.1m' is not consumed"):
            await consumer.each(Handler(), retry_topics={"t.5s": 5.0, "t.1m": 60.0})


@pytest.mark.parametrize(
    ("headers", "due", "attempts"),
    [
        ((), 0, 0),
        ((("odradek.due", b"5"), ("odradek.attempts", b"2")), 5, 2),
        ((("odradek.due", b"5"), ("odradek.due", b"7")), 7, 0),
        ((("odradek.due", None), ("odradek.attempts", b"-1")), 0, 0),
    ],
)
def test_what_a_retried_record_says(headers: Any, due: int, attempts: int) -> None:
    record = Record(b"v", None, headers, None, None, Position(0), Position(1), 0, SHORT)
    assert (due_at(record), failed_attempts(record)) == (due, attempts)


# ---- records that are too large with headers ---------------------------------------------------------------------

ADDED_BYTES = 250
"""At most what the headers without a text take."""


class LongError(Exception):
    def __str__(self) -> str:
        return "e" * 5000


async def limit(cluster: MemoryCluster, topic: str, size: int) -> None:
    async with cluster.connect() as k:
        await k.admin.alter_topic_configs({topic: {"max.message.bytes": str(size)}})


@pytest.mark.parametrize(
    ("extra", "added"),
    [
        (1500, {"odradek.position": b"0", "odradek.error_type": b"LongError", "odradek.error": b"e" * 1000}),
        (ADDED_BYTES, {"odradek.position": b"0", "odradek.error_type": b"LongError", "odradek.error": b""}),
        (0, {}),
    ],
)
async def test_a_dead_letter_goes_without_the_headers_that_make_it_too_large(
    clock: Clock, extra: int, added: dict[str, bytes]
) -> None:
    cluster = make_cluster(0)
    large = od.ProducerRecord(b"v" * 2000, key=b"k", headers=[("trace", b"7"), ("odradek.error", b"its own")])
    await limit(cluster, "t.dlq", record_bytes(large) + extra)
    cluster.append("t", [large, b"next"])

    async def handle(record: Record) -> None:
        if record.key == b"k":
            raise LongError

    async with handling(cluster, handle, retry_topics={}):
        await until(lambda: cluster.committed("g").get(tp()) == 2)
    (dead,) = cluster.records("t.dlq")
    assert (dead.value, dead.key, dead.record.headers[:2]) == (large.value, b"k", tuple(large.headers))
    assert {name: dict(dead.record.headers[2:])[name] for name in added} == added
    assert len(dead.record.headers) == 2 + (6 if added else 0)


@pytest.mark.parametrize("extra", [ADDED_BYTES, 0])
async def test_what_is_too_large_for_its_retry_topic_goes_there_without_a_text_or_to_the_dead_letters(
    clock: Clock, extra: int
) -> None:
    cluster = make_cluster(0)
    large = od.ProducerRecord(b"v" * 2000)
    await limit(cluster, "t.5s", record_bytes(large) + extra)
    cluster.append("t", [large, b"next"])

    async def handle(record: Record) -> None:
        if record.value == large.value:
            raise LongError

    async with handling(cluster, handle):
        await until(lambda: cluster.committed("g").get(tp()) == 2)
    (kept,) = cluster.records("t.5s" if extra else "t.dlq")
    headers = dict(kept.record.headers)
    assert headers["odradek.position"] == b"0" and headers["odradek.attempts"] == b"1"
    assert (headers["odradek.error"], "odradek.due" in headers) == ((b"", True) if extra else (b"e" * 1000, False))


async def test_a_record_that_is_too_large_for_the_dead_letters_as_it_is_ends_each_and_is_not_done(
    clock: Clock,
) -> None:
    cluster = make_cluster(1)
    await limit(cluster, "t.dlq", 10)
    async with cluster.connect() as k, k.consumer("t", group="g") as consumer:
        with pytest.raises(Rejected, match=r"MESSAGE_TOO_LARGE"):
            await consumer.each(Handler(b"000000"), dead_letter="t.dlq")
    assert cluster.committed("g")[tp()] == 0 and cluster.records("t.dlq") == []


async def test_a_dead_letter_may_be_as_large_as_its_topic_takes(clock: Clock) -> None:
    """What is read may be larger than what a producer sends by default."""
    cluster, large = make_cluster(0), b"v" * 2_000_000
    await limit(cluster, "t.dlq", 3_000_000)
    cluster.append("t", [large])
    async with handling(cluster, Handler(large), retry_topics={}):
        await until(lambda: cluster.committed("g").get(tp()) == 1)
    (dead,) = cluster.records("t.dlq")
    assert dead.value == large


async def test_a_dead_letter_goes_without_headers_to_a_topic_in_a_format_without_them(clock: Clock) -> None:
    """As brokers refuse them until 2.8, where `message.format.version` is before 0.11."""
    cluster = make_cluster(1)
    cluster.fail(
        "produce", BrokerError(43, "UNSUPPORTED_FOR_MESSAGE_FORMAT", "produce"), partition=TopicPartition("t.dlq", 0)
    )
    async with handling(cluster, Handler(b"000000"), retry_topics={}):
        await until(lambda: cluster.committed("g").get(tp()) == 1)
    (dead,) = cluster.records("t.dlq")
    assert (dead.value, dead.record.headers) == (b"000000", ())


@pytest.mark.parametrize(("topic", "retries"), [("t.5s", RETRIES), ("t.dlq", {})])
async def test_a_record_gets_the_time_of_writing_where_its_timestamp_is_refused(
    clock: Clock, topic: str, retries: dict[str, float]
) -> None:
    """As brokers of 4.x refuse what is more than an hour ahead of their time."""
    cluster, ahead = make_cluster(0), 1 << 50
    cluster.append("t", [od.ProducerRecord(b"v", headers=[("trace", b"7")], timestamp=ahead)])
    cluster.fail("produce", BrokerError(32, "INVALID_TIMESTAMP", "produce"), partition=TopicPartition(topic, 0))
    async with handling(cluster, Handler(b"v"), retry_topics=retries):
        await until(lambda: cluster.committed("g").get(tp()) == 1)
    (moved,) = cluster.records(topic)
    headers = dict(moved.record.headers)
    assert (moved.value, headers["trace"], headers["odradek.topic"]) == (b"v", b"7", b"t")
    assert moved.timestamp is not None and 0 < moved.timestamp < ahead


async def test_a_dead_letter_of_a_record_from_before_1970_gets_the_time_of_writing() -> None:
    """Brokers store such timestamps of other clients; a `Producer` sends none."""
    cluster = make_cluster(0)
    record = Record(b"v", None, (), -5, None, Position(0), Position(1), 0, tp())
    async with cluster.connect() as k, k.producer() as out:
        await send_dead_letter(out, "t.dlq", FailedRecord(record, ValueError("wrong"), 1))
    (dead,) = cluster.records("t.dlq")
    assert dead.value == b"v"
    assert dead.timestamp is not None and dead.timestamp > 0


async def test_an_error_that_has_no_text_is_a_dead_letter_like_any_other(clock: Clock) -> None:
    class Textless(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    async def handle(record: Record) -> None:
        raise Textless

    cluster = make_cluster(1)
    async with handling(cluster, handle, retry_topics={}):
        await until(lambda: cluster.committed("g").get(tp()) == 1)
    (dead,) = cluster.records("t.dlq")
    assert dict(dead.record.headers)["odradek.error"] == b"(its text failed: RuntimeError)"


async def test_an_error_with_a_long_text_is_logged_by_its_beginning(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(record: Record) -> None:
        raise ValueError("e" * 1_000_000)

    cluster = make_cluster(1)
    with caplog.at_level("INFO", "odradek.each"):
        async with handling(cluster, handle, retries=1, retry_topics={"t.5s": 0.0}):
            await until(lambda: cluster.committed("g").get(SHORT) == 1)
    texts = [record.getMessage() for record in caplog.records if "ValueError" in record.getMessage()]
    assert {text.split()[0] for text in texts} == {"attempt", "sending"} and max(map(len, texts)) < 1500


# ---- records that cannot be decoded -----------------------------------------------------------------------------


async def test_a_record_that_cannot_be_decoded_goes_to_the_dead_letters_and_its_partition_continues(
    clock: Clock,
) -> None:
    cluster, handler = make_cluster(), Handler()
    cluster.corrupt(tp(), 2, "CRC mismatch")
    async with handling(cluster, handler, consuming={"corrupt": "raw"}, key=lambda record: record.value, order="key"):
        await until(lambda: cluster.committed("g").get(tp()) == 5)
    assert handler.of("t") == [value for value in numbered(5) if value != b"000002"]
    (dead,) = cluster.records("t.dlq")
    headers = dict(dead.record.headers)
    assert (headers["odradek.error_type"], headers["odradek.attempts"]) == (b"CorruptMessage", b"0")
    assert b"CRC mismatch" in (headers["odradek.error"] or b"") and headers["odradek.position"] == b"2"
    assert cluster.records("t.5s") == [], "no delay makes it right"


@pytest.mark.parametrize("corrupt", ["raw", "fail"])
async def test_without_dead_letters_a_record_that_cannot_be_decoded_ends_each(corrupt: Any) -> None:
    cluster = make_cluster()
    cluster.corrupt(tp(), 2, "CRC mismatch")
    async with cluster.connect() as k, k.consumer("t", group="g", corrupt=corrupt) as consumer:
        with pytest.raises(CorruptMessage, match="CRC mismatch"):
            await consumer.each(Handler())
    assert cluster.committed("g")[tp()] <= 2, "nothing behind it is committed"


# ---- crashes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(15))
async def test_whatever_is_cancelled_every_record_is_handled_or_dead_in_the_end(clock: Clock, seed: int) -> None:
    chance, cluster = Random(seed), make_cluster(20)
    cluster.append("t", numbered(0))
    handled = set[bytes | None]()
    poison = set(numbered(3, 4))

    async def handle(record: Record) -> None:
        for _ in range(chance.randrange(3)):
            await anyio.lowlevel.checkpoint()
        if record.value in poison or chance.random() < 0.3:
            raise ValueError("this time")
        handled.add(record.value)

    def is_over() -> bool:
        return handled | {record.value for record in cluster.records("t.dlq")} >= set(numbered(20))

    for _ in range(8):
        with anyio.move_on_after(30), anyio.CancelScope() as scope:
            async with handling(cluster, handle, order=chance.choice(["partition", "none"])):
                for _ in range(chance.randrange(200)):
                    await anyio.lowlevel.checkpoint()
                clock.seconds += chance.choice([0, 6, 61])
                if chance.random() < 0.3:
                    cluster.expire("g")
                scope.cancel()
    async with handling(cluster, handle):
        with anyio.fail_after(60):
            while not is_over():
                clock.seconds += 10
                await anyio.lowlevel.checkpoint()
    assert {record.value for record in cluster.records("t.dlq")} >= poison and not handled & poison
