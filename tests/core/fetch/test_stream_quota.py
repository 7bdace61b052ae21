"""What a quota counts: it alone writes its counters, and they are always what a recount over its partitions finds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import odradek
from odradek.core.backoff import Backoff
from odradek.core.fetch.cursor import Cursor, CursorFetch
from odradek.core.fetch.partition_set import PartitionSet
from odradek.core.fetch.read_ahead import ReadAheadLimits
from odradek.core.fetch.scheduler import FetchPolicy, FetchScheduler, SchedulerCallbacks
from odradek.core.fetch.stream_quota import StreamQuota
from odradek.core.interfaces import DecoderOptions
from odradek.core.states import CursorState
from odradek.errors import BrokerError, OdradekError, OffsetOutOfRange
from odradek.types import EARLIEST, Columns, Position, TopicPartition
from odradek.wire.kafka07.message_set import MessageSetDecoder, encode_set

# ---- who writes ---------------------------------------------------------------------------------------------

SOURCES = Path(odradek.__file__).parent
OWNER = SOURCES / "core" / "fetch" / "stream_quota.py"
COUNTERS = frozenset(
    {"active", "deliverable", "full", "held", "pending_decompress", "reserved", "partitions_with_more"}
)


def written_counters(tree: ast.AST) -> Iterator[str]:
    """Every place that assigns to an attribute with the name of a counter, or deletes it, or does so by its name."""
    for node in ast.walk(tree):
        by_name = isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("setattr", "__setattr__"))
        if by_name or (
            isinstance(node, ast.Attribute) and node.attr in COUNTERS and not isinstance(node.ctx, ast.Load)
        ):
            yield ast.unparse(node)


@pytest.mark.parametrize("line", ["quota.held += 1", "del self.full", "a, b.active = c", "setattr(quota, name, 1)"])
def test_every_way_to_write_a_counter_is_found(line: str) -> None:
    assert list(written_counters(ast.parse(line)))


def test_nobody_but_a_quota_writes_its_counters() -> None:
    written, read = {}, {path: path.read_text() for path in SOURCES.rglob("*.py")}
    for path, text in read.items():
        uses_quotas = path.parent == OWNER.parent or ".quota" in text or "StreamQuota" in text
        if path != OWNER and uses_quotas:
            written[path.name] = [
                line for line in written_counters(ast.parse(text)) if "object.__setattr__(self" not in line
            ]
    assert {"cursor.py", "quota_share.py", "scheduler.py", "broker_fetcher.py", "fetcher.py"} <= written.keys()
    assert {name: lines for name, lines in written.items() if lines} == {}
    made = [node for node in ast.walk(ast.parse(read[OWNER])) if isinstance(node, ast.Attribute)]
    stored = {node.attr for node in made if isinstance(node.ctx, ast.Store)}
    assert stored >= COUNTERS, "every counter that this test looks for is one"


# ---- what they count ----------------------------------------------------------------------------------------

LIMITS = ReadAheadLimits(read_ahead_bytes=1000, fetch_bytes=200, response_bytes=400, min_bytes=20)
POLICY = FetchPolicy(idle=Backoff(first_s=1, max_s=4), retry=Backoff(first_s=1, max_s=1), reset=EARLIEST)
CALLBACKS = SchedulerCallbacks(*[lambda: None] * 4)
NUMBERS = st.integers(0, 3)
BROKERS = st.integers(0, 1)
STREAMS = 2

DATA = [
    b"",
    encode_set([b"a"]),
    encode_set([b"b" * 40] * 4),
    encode_set([b"c" * 90, b"d" * 90])[:-5],  # ends inside a message
    b"\x00\x00\x00\x0a\x00\x00\x00\x00\x00" + bytes(5),  # a wrong checksum
]
ERRORS: list[OdradekError] = [
    OffsetOutOfRange(1, "OFFSET_OUT_OF_RANGE", "fetch"),
    BrokerError(-1, "UNKNOWN", "fetch"),
]


def tp(number: int) -> TopicPartition:
    return TopicPartition("t", number, 1)


class Counting(RuleBasedStateMachine):
    """Partitions of two brokers and two streams; whatever happens to them, in any order."""

    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.set = PartitionSet(LIMITS, lambda: None)
        self.schedulers = [FetchScheduler(self.set.budget, POLICY, CALLBACKS) for _ in range(2)]
        self.made: list[Cursor] = []
        self.quotas: set[StreamQuota] = set()
        self.in_flight: list[tuple[FetchScheduler, CursorFetch]] = []
        self.decompressing: list[StreamQuota] = []
        self.taken: list[tuple[TopicPartition, Columns]] = []

    @rule(number=NUMBERS, broker=BROKERS)
    def insert(self, number: int, broker: int) -> None:
        cursor = Cursor(tp(number), 0, stream=number % STREAMS)
        self.made.append(cursor)
        self.set.insert(cursor)
        self.schedulers[broker].join(cursor)
        self.resolve(broker)

    @rule(broker=BROKERS)
    def resolve(self, broker: int) -> None:
        for cursor in self.schedulers[broker].next_to_resolve(self.now)[0]:
            at = Position(cursor.start if isinstance(cursor.start, int) else 0)
            cursor.resolved(at, MessageSetDecoder(cursor.partition, at, DecoderOptions()))
            cursor.update()
            if cursor.share.quota is not None:
                cursor.share.quota.scheduler.enqueue(cursor)

    @rule(number=NUMBERS, broker=BROKERS)
    def move(self, number: int, broker: int) -> None:
        if (cursor := self.set.cursors.get(tp(number))) is not None:
            self.schedulers[broker].join(cursor)

    @rule(broker=BROKERS)
    def send(self, broker: int) -> None:
        scheduler = self.schedulers[broker]
        for fetch in scheduler.next_fetch(self.now).fetches:
            fetch.start()
            self.in_flight.append((scheduler, fetch))

    @precondition(lambda self: self.in_flight)
    @rule(which=st.integers(0, 100), data=st.sampled_from(DATA), lost=st.booleans(), error=st.none() | BROKERS)
    def respond(self, which: int, data: bytes, lost: bool, error: int | None) -> None:
        scheduler, fetch = self.in_flight.pop(which % len(self.in_flight))
        if fetch.is_current:
            fetch.feed(memoryview(data))
            fetch.received = len(data)
        fetch.error = None if error is None else ERRORS[error]
        if fetch.cursor.complete(fetch, self.now, POLICY.reset, lost=lost):
            scheduler.requeue(fetch.cursor, self.now, 0.5)

    @rule(stream=st.integers(0, STREAMS - 1), most=st.none() | st.integers(1, 3))
    def take(self, stream: int, most: int | None) -> None:
        try:
            taken = self.set.take(stream, most, 0.0, self.now)
        except OdradekError:
            return
        if isinstance(taken, tuple):
            self.taken.append(taken)

    @rule(size=st.integers(1, 300))
    def take_some(self, size: int) -> None:
        try:
            self.taken += self.set.take_some(None, size, self.now)
        except OdradekError:
            return

    @precondition(lambda self: self.taken)
    @rule(rows=st.integers(0, 4))
    def put_back(self, rows: int) -> None:
        partition, columns = self.taken.pop()
        self.set.put_back(partition, columns, min(rows, len(columns)))

    @rule(number=NUMBERS, at=st.integers(0, 50))
    def seek(self, number: int, at: int) -> None:
        if tp(number) in self.set.cursors:
            self.set.seek(tp(number), Position(at))

    @rule(number=NUMBERS, pause=st.booleans())
    def pause_or_resume(self, number: int, pause: bool) -> None:
        if tp(number) in self.set.cursors:
            (self.set.pause if pause else self.set.resume)("user", [tp(number)])

    @rule(number=NUMBERS)
    def remove(self, number: int) -> None:
        self.set.remove([tp(number)])

    @rule(every=st.sampled_from([False, False, False, True]))
    def remove_all(self, every: bool) -> None:
        if every:
            self.set.remove_all()

    @rule(number=NUMBERS, waits=st.booleans())
    def decompress(self, number: int, waits: bool) -> None:
        cursor = self.set.cursors.get(tp(number))
        if waits and cursor is not None and cursor.share.quota is not None:
            cursor.share.quota.decompress_waits()
            self.decompressing.append(cursor.share.quota)
        elif self.decompressing and not waits:
            self.decompressing.pop().decompress_ends()

    @rule(seconds=st.floats(0.1, 5))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def counters_are_what_a_recount_finds(self) -> None:
        self.quotas |= {cursor.share.quota for cursor in self.made if cursor.share.quota is not None}
        for quota in self.quotas:
            cursors = [cursor for cursor in self.made if cursor.share.quota is quota]
            assert all(cursor.assigned for cursor in cursors)
            assert quota.held == sum(cursor.queue.memory + cursor._tail for cursor in cursors)
            assert quota.reserved == sum(fetch.reserved_bytes for _, fetch in self.in_flight if fetch.quota is quota)
            assert quota.deliverable == sum(self.times_queued(cursor) for cursor in cursors)
            assert quota.partitions_with_more == sum(cursor.share.has_more for cursor in cursors)
            assert quota.active == sum(self.is_active(cursor) for cursor in cursors)
            assert quota.pending_decompress == self.decompressing.count(quota)
        assert self.set.budget.partitions == sum(self.is_active(cursor) for cursor in self.made)

    def times_queued(self, cursor: Cursor) -> int:
        return sum(queue.count(cursor) for queue in self.set._ready.values())

    def is_active(self, cursor: Cursor) -> bool:
        waits = cursor.queue.rows > 0 or cursor.error is not None
        return cursor.assigned and (waits or cursor.state not in (CursorState.ENDED, CursorState.FAILED))


TestCounting = Counting.TestCase
