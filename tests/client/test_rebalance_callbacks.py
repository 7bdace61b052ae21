"""`on_assigned`, `on_revoked` and `on_lost`: when they are called, where the user begins, and how they fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.client.one_member import consuming, make_cluster, numbered, revoking, tp, until

import odradek as od
from odradek.client.consumer.consumer import Consumer
from odradek.core.states import ConsumerState
from odradek.errors import ConfigError, DeadlineError, OdradekError
from odradek.testing import MemoryCluster
from odradek.types import StartPosition, TopicPartition

pytestmark = pytest.mark.anyio


class Calls:
    """Functions that note their calls."""

    def __init__(self) -> None:
        self.made: list[tuple[str, list[TopicPartition]]] = []
        self.starts: dict[TopicPartition, StartPosition] | None = None

    async def on_assigned(self, partitions: list[TopicPartition]) -> dict[TopicPartition, StartPosition] | None:
        self.made.append(("assigned", partitions))
        return self.starts

    async def on_revoked(self, partitions: list[TopicPartition]) -> None:
        self.made.append(("revoked", partitions))

    async def on_lost(self, partitions: list[TopicPartition]) -> None:
        self.made.append(("lost", partitions))

    @property
    def options(self) -> dict[str, Any]:
        return {"on_assigned": self.on_assigned, "on_revoked": self.on_revoked, "on_lost": self.on_lost}


def owned(cluster: MemoryCluster) -> frozenset[TopicPartition]:
    """What the only member owns."""
    (partitions,) = cluster.members("g").values()
    return partitions


# ---- when they are called -------------------------------------------------------------------------------------


async def test_only_partitions_that_move_are_named_and_at_the_end_all_that_are_left() -> None:
    cluster, calls = make_cluster(3, 3), Calls()
    async with consuming(cluster, **calls.options):
        assert calls.made == [("assigned", [tp(0), tp(1)])]
        cluster.revoke("g", tp(1))
        await until(lambda: len(calls.made) == 2)
        await until(lambda: owned(cluster) == {tp(0)})
        cluster.restore("g")
        await until(lambda: len(calls.made) == 3)
    assert calls.made[1:] == [("revoked", [tp(1)]), ("assigned", [tp(1)]), ("revoked", [tp(0), tp(1)])]


async def test_an_assignment_without_partitions_is_no_call() -> None:
    cluster, calls = make_cluster(), Calls()
    cluster.revoke("g", tp())
    async with consuming(cluster, **calls.options) as consumer:
        assert consumer.state is ConsumerState.RUNNING
    assert calls.made == []


async def test_nothing_is_delivered_before_on_assigned_has_returned() -> None:
    cluster, entered, go_on = make_cluster(), anyio.Event(), anyio.Event()
    cluster.revoke("g", tp())

    async def on_assigned(partitions: list[TopicPartition]) -> None:
        entered.set()
        await go_on.wait()

    async with consuming(cluster, on_assigned=on_assigned) as consumer:
        cluster.restore("g")
        await entered.wait()
        assert consumer.assignment == {tp(): 0} and consumer.partitions == []
        with anyio.move_on_after(0.02) as nothing_comes:
            await anext(consumer)
        assert nothing_comes.cancelled_caught
        go_on.set()
        assert (await anext(consumer)).value == numbered(1)[0]


async def test_a_partition_that_is_paused_in_on_assigned_begins_paused() -> None:
    cluster = make_cluster(3, 3)

    async def on_assigned(partitions: list[TopicPartition]) -> None:
        consumer.pause(*partitions)
        consumer.resume(tp(1))
        with pytest.raises(ConfigError, match=r"t/0 is being assigned or revoked: on_assigned returns where"):
            consumer.seek(tp(0), 2)

    async with cluster.connect() as k:
        consumer = k.consumer("t", group="g", on_assigned=on_assigned)
        async with consumer:
            assert [(await anext(consumer)).partition for _ in range(3)] == [tp(1)] * 3
            with anyio.move_on_after(0.02) as nothing_comes:
                await anext(consumer)
            assert nothing_comes.cancelled_caught
            consumer.resume()
            assert (await anext(consumer)).partition == tp(0)


async def test_all_partitions_can_be_paused_and_resumed_while_one_is_revoked_which_forgets_it() -> None:
    cluster, in_on_revoked, go_on = make_cluster(3, 3), anyio.Event(), anyio.Event()

    async def on_revoked(partitions: list[TopicPartition]) -> None:
        in_on_revoked.set()
        await go_on.wait()

    async with consuming(cluster, on_revoked=on_revoked) as consumer:
        cluster.revoke("g", tp(1))
        await in_on_revoked.wait()
        assert consumer.assignment.keys() == {tp(0), tp(1)} and consumer.partitions == [tp(0)]
        consumer.pause(*consumer.assignment)
        consumer.pause(tp(1))
        go_on.set()
        await until(lambda: owned(cluster) == {tp(0)})
        cluster.restore("g")
        await until(lambda: len(consumer.partitions) == 2)
        assert [(await anext(consumer)).partition for _ in range(3)] == [tp(1)] * 3
        consumer.resume(tp(0))
        assert (await anext(consumer)).partition == tp(0)


async def test_in_on_revoked_batches_in_hand_can_be_finished_and_are_committed_before_the_release() -> None:
    cluster = make_cluster()
    in_hand: list[od.GroupBatch] = []
    committed: list[dict[TopicPartition, int]] = []

    async def on_revoked(partitions: list[TopicPartition]) -> None:
        assert owned(cluster) == {tp()}, "called before the release"
        assert all(batch.done() for batch in in_hand)
        committed.append({**await consumer.commit()})

    async with consuming(cluster, on_revoked=on_revoked, revoke_within=30) as consumer:
        batches = consumer.batches(max_records=3)
        in_hand += [await anext(batches), await anext(batches)]
        cluster.revoke("g", tp())
        await until(lambda: not owned(cluster))
        assert committed == [{tp(): 6}]
        assert cluster.committed("g") == {tp(): 6}


async def test_on_revoked_comes_after_the_handlers_of_each() -> None:
    cluster, calls, begun, go_on = make_cluster(), Calls(), anyio.Event(), anyio.Event()

    async def handle(record: od.Record) -> None:
        begun.set()
        await go_on.wait()

    async with (
        consuming(cluster, **calls.options, revoke_within=30) as consumer,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(consumer.each, handle)
        await begun.wait()
        cluster.revoke("g", tp())
        await until(lambda: revoking(consumer))
        await anyio.wait_all_tasks_blocked()
        assert calls.made == [("assigned", [tp()])]
        go_on.set()
        await until(lambda: not owned(cluster))
        assert calls.made[1:] == [("revoked", [tp()])] and cluster.committed("g") == {tp(): 1}
        tasks.cancel_scope.cancel()


async def test_when_the_block_ends_its_batches_can_be_finished_and_committed_in_on_revoked() -> None:
    cluster = make_cluster()
    committed: list[dict[TopicPartition, int]] = []

    async def on_revoked(partitions: list[TopicPartition]) -> None:
        batch.done()
        committed.append({**await consumer.commit()})

    async with consuming(cluster, on_revoked=on_revoked) as consumer:
        batch = await anext(consumer.batches(max_records=3))
    assert committed == [{tp(): 3}] and cluster.committed("g") == {tp(): 3}


@pytest.mark.parametrize("has_on_lost", [True, False])
async def test_lost_partitions_are_named_to_on_lost_or_else_to_on_revoked_before_they_come_again(
    has_on_lost: bool,
) -> None:
    cluster, calls = make_cluster(), Calls()
    options = calls.options if has_on_lost else {**calls.options, "on_lost": None}
    async with consuming(cluster, **options) as consumer:
        batch = await anext(consumer.batches(max_records=3))
        cluster.expire("g")
        await until(lambda: len(calls.made) == 3)
        assert not batch.done()
    name = "lost" if has_on_lost else "revoked"
    assert calls.made == [("assigned", [tp()]), (name, [tp()]), ("assigned", [tp()]), ("revoked", [tp()])]


async def test_partitions_lost_while_on_assigned_runs_are_named_to_on_lost_when_it_has_returned() -> None:
    cluster, calls, entered, go_on = make_cluster(), Calls(), anyio.Event(), anyio.Event()
    cluster.revoke("g", tp())

    async def on_assigned(partitions: list[TopicPartition]) -> None:
        await calls.on_assigned(partitions)
        entered.set()
        await go_on.wait()

    async with consuming(cluster, **{**calls.options, "on_assigned": on_assigned}) as consumer:
        cluster.restore("g")
        await entered.wait()
        cluster.expire("g")
        await anyio.wait_all_tasks_blocked()
        assert calls.made == [("assigned", [tp()])]
        go_on.set()
        await until(lambda: consumer.partitions == [tp()])
    assert calls.made == [("assigned", [tp()]), ("lost", [tp()]), ("assigned", [tp()]), ("revoked", [tp()])]


async def test_an_expiry_while_on_revoked_runs_is_not_told_twice() -> None:
    cluster, calls, entered, go_on = make_cluster(), Calls(), anyio.Event(), anyio.Event()

    async def on_revoked(partitions: list[TopicPartition]) -> None:
        await calls.on_revoked(partitions)
        entered.set()
        await go_on.wait()

    async with consuming(cluster, **{**calls.options, "on_revoked": on_revoked}) as consumer:
        batch = await anext(consumer.batches(max_records=3))
        batch.done()
        cluster.revoke("g", tp())
        await entered.wait()
        cluster.expire("g")
        assert consumer.assignment == {}
        go_on.set()
        cluster.restore("g")
        await until(lambda: consumer.partitions == [tp()])
        assert cluster.committed("g") == {}, "nothing is committed of what was lost"
    assert calls.made == [("assigned", [tp()]), ("revoked", [tp()]), ("assigned", [tp()]), ("revoked", [tp()])]


# ---- where the user begins ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "first"), [(4, 4), (od.LATEST, 10), (od.EARLIEST, 0), (od.AtTime(4e9), 10), (None, 7)]
)
async def test_on_assigned_says_where_to_begin_whatever_the_group_has_committed(
    start: StartPosition | None, first: int
) -> None:
    cluster, calls = make_cluster(), Calls()
    async with cluster.connect() as k:
        await k.admin.reset_positions("g", {tp(): 7})
    calls.starts = None if start is None else {tp(): start}
    async with consuming(cluster, **calls.options) as consumer:
        cluster.append("t", [b"new"])
        batch = await anext(consumer.batches())
        assert batch.position == first
        batch.done()
    assert cluster.committed("g") == {tp(): 11}


async def test_the_position_that_on_assigned_chose_is_committed_for_the_whole_group() -> None:
    cluster, calls = make_cluster(10, 10), Calls()
    calls.starts = {tp(1): 4}
    async with consuming(cluster, **calls.options) as consumer:
        assert await consumer.commit() == {tp(0): 0, tp(1): 4}


async def test_a_position_that_no_broker_names_in_time_is_asked_for_again() -> None:
    cluster, calls = make_cluster(), Calls()
    calls.starts = {tp(): od.LATEST}
    cluster.fail("positions", OdradekError("not now"), times=1)
    async with consuming(cluster, **calls.options) as consumer:
        await until(lambda: consumer.positions() == {tp(): 10})


@pytest.mark.parametrize(
    ("starts", "kind", "text"),
    [
        ({tp(5): 1}, ConfigError, "the result of on_assigned names t/5, which it was not called with"),
        ({tp(): -1}, ConfigError, "the result of on_assigned"),
        ({tp(): "earliest"}, TypeError, "the result of on_assigned"),
        ([tp()], TypeError, "the result of on_assigned must be a mapping of partitions to positions, or None"),
    ],
)
async def test_a_start_that_cannot_be_is_an_error(starts: Any, kind: type[Exception], text: str) -> None:
    cluster, calls = make_cluster(), Calls()
    calls.starts = starts
    with pytest.raises(kind, match=text):
        async with consuming(cluster, **calls.options):
            pass
    assert cluster.committed("g") == {} and cluster.members("g") == {}


# ---- how they fail --------------------------------------------------------------------------------------------


async def raising(partitions: list[TopicPartition]) -> None:
    raise ValueError("no database")


async def hanging(partitions: list[TopicPartition]) -> None:
    await anyio.sleep_forever()


def plain(partitions: list[TopicPartition]) -> str:
    return "done"


async def cancelled_elsewhere(partitions: list[TopicPartition]) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


FAILURES: list[Any] = [
    (raising, ValueError, "no database"),
    (hanging, DeadlineError, "on_.* of group g: no answer within 0.02 s"),
    (plain, TypeError, "on_.* must be a coroutine function that takes a list of partitions: it returned 'done'"),
]


@pytest.mark.parametrize(("callback", "kind", "text"), FAILURES)
async def test_entering_raises_the_error_of_on_assigned_and_nothing_is_delivered(
    callback: Any, kind: type[Exception], text: str
) -> None:
    cluster, calls = make_cluster(), Calls()
    options = {**calls.options, "on_assigned": callback, "callback_within": 0.02}
    with pytest.raises(kind, match=text):
        async with consuming(cluster, **options):
            pass
    assert calls.made == [], "the others are for partitions whose on_assigned has returned"
    assert cluster.committed("g") == {} and cluster.members("g") == {}


@pytest.mark.parametrize(("callback", "kind", "text"), FAILURES)
async def test_after_an_error_of_on_revoked_the_rebalance_ends_and_the_next_use_raises_it(
    callback: Any, kind: type[Exception], text: str
) -> None:
    cluster = make_cluster(10, 10)
    async with consuming(cluster, on_revoked=callback, callback_within=0.02) as consumer:
        batch = await anext(consumer.batches(max_records=3))
        batch.done()
        cluster.revoke("g", batch.partition)
        await until(lambda: batch.partition not in owned(cluster))
        assert cluster.committed("g")[batch.partition] == 3, "what is done is committed"
        with pytest.raises(kind, match=text):
            await anext(consumer)


@pytest.mark.parametrize(("callback", "kind", "text"), FAILURES)
async def test_an_error_of_on_lost_is_raised_by_the_next_use(callback: Any, kind: type[Exception], text: str) -> None:
    cluster = make_cluster()
    async with consuming(cluster, on_lost=callback, callback_within=0.02) as consumer:
        cluster.expire("g")
        with pytest.raises(kind, match=text):
            async for _ in consumer.batches():
                pass


async def test_an_error_in_a_call_that_the_end_of_the_block_makes_is_raised_from_it_after_the_commit() -> None:
    cluster = make_cluster()
    with pytest.raises(ValueError, match="no database"):
        async with consuming(cluster, on_revoked=raising) as consumer:
            (await anext(consumer.batches(max_records=3))).done()
    assert cluster.committed("g") == {tp(): 3} and cluster.members("g") == {}


async def test_the_error_of_the_block_is_raised_rather_than_that_of_a_call_at_its_end() -> None:
    cluster = make_cluster()
    with pytest.raises(KeyError, match="mine"):
        async with consuming(cluster, on_revoked=raising):
            raise KeyError("mine")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_call_that_awaits_something_cancelled_elsewhere_has_failed(anyio_backend: str) -> None:
    cluster = make_cluster()
    with pytest.raises(OdradekError, match="on_assigned awaited something that was cancelled elsewhere"):
        async with consuming(cluster, on_assigned=cancelled_elsewhere):
            pass


async def test_each_ends_with_the_error_of_a_callback() -> None:
    cluster = make_cluster(10, 10)

    async def handle(record: od.Record) -> None:
        if record.position == 0:
            cluster.revoke("g", tp(1))

    async with consuming(cluster, on_revoked=raising) as consumer:
        with pytest.raises(ValueError, match="no database"):
            await consumer.each(handle)


# ---- leaving while they run ------------------------------------------------------------------------------------


async def test_leaving_cancels_on_assigned_and_does_not_call_on_revoked_for_it() -> None:
    cluster, calls, entered = make_cluster(10, 10), Calls(), anyio.Event()
    cluster.revoke("g", tp(1))
    ended = False

    async def on_assigned(partitions: list[TopicPartition]) -> None:
        nonlocal ended
        await calls.on_assigned(partitions)
        if partitions == [tp(1)]:
            entered.set()
            try:
                await anyio.sleep_forever()
            finally:
                ended = True

    async with consuming(cluster, **{**calls.options, "on_assigned": on_assigned}):
        cluster.restore("g")
        await entered.wait()
    assert ended
    assert calls.made == [("assigned", [tp(0)]), ("assigned", [tp(1)]), ("revoked", [tp(0)])]


async def test_leaving_lets_on_revoked_end_and_calls_it_for_the_others() -> None:
    cluster, entered, go_on = make_cluster(10, 10), anyio.Event(), anyio.Event()
    ended: list[list[TopicPartition]] = []

    async def on_revoked(partitions: list[TopicPartition]) -> None:
        entered.set()
        await go_on.wait()
        ended.append(partitions)

    async with anyio.create_task_group() as tasks, consuming(cluster, on_revoked=on_revoked) as consumer:
        cluster.revoke("g", tp(1))
        await entered.wait()

        async def release() -> None:
            await until(lambda: consumer.state is ConsumerState.LEAVING)
            await anyio.wait_all_tasks_blocked()
            assert ended == []
            go_on.set()

        tasks.start_soon(release)
    assert ended == [[tp(1)], [tp(0)]]


async def test_leaving_takes_no_longer_than_exit_within_whatever_on_revoked_does() -> None:
    cluster = make_cluster()
    with pytest.raises(DeadlineError, match="leaving group g"), anyio.fail_after(5):
        async with consuming(cluster, on_revoked=hanging, exit_within=0.02, callback_within=60) as consumer:
            (await anext(consumer.batches(max_records=3))).done()
    assert cluster.members("g") == {}


async def test_a_cancelled_block_calls_on_revoked() -> None:
    cluster, calls = make_cluster(), Calls()

    async def on_revoked(partitions: list[TopicPartition]) -> None:
        await anyio.lowlevel.checkpoint()
        await calls.on_revoked(partitions)

    with anyio.CancelScope() as scope:
        async with consuming(cluster, on_assigned=calls.on_assigned, on_revoked=on_revoked):
            scope.cancel()
            await anyio.sleep_forever()
    assert calls.made == [("assigned", [tp()]), ("revoked", [tp()])]


def steps(chance: Random, cluster: MemoryCluster) -> list[Callable[[], object]]:
    """Things that happen to a member, in a random order."""
    happens: list[Callable[[], object]] = [
        lambda: cluster.revoke("g", tp(chance.randrange(3))),
        lambda: cluster.restore("g"),
        lambda: cluster.expire("g"),
    ]
    return [chance.choice(happens) for _ in range(chance.randrange(6))]


async def live(seed: int) -> None:
    """A member to which things happen, and which is cancelled at a random step."""
    chance, cluster = Random(seed), make_cluster(5, 5, 5)
    held: set[TopicPartition] = set()
    in_call = 0

    async def call(partitions: list[TopicPartition], *, begins: bool) -> None:
        nonlocal in_call
        assert in_call == 0, "one call at a time"
        in_call += 1
        try:
            for _ in range(chance.randrange(4)):
                await anyio.lowlevel.checkpoint()
        finally:
            in_call -= 1
            (held.update if begins else held.difference_update)(partitions)

    async def on_assigned(partitions: list[TopicPartition]) -> None:
        assert not held.intersection(partitions)
        try:
            await call(partitions, begins=True)
        except BaseException:
            held.difference_update(partitions)
            raise

    async def on_ended(partitions: list[TopicPartition]) -> None:
        assert held.issuperset(partitions)
        await call(partitions, begins=False)

    async def consume(consumer: Consumer) -> None:
        async for batch in consumer.batches(max_records=2):
            assert batch.partition in held or batch.partition not in consumer.assignment
            batch.done()

    with anyio.move_on_after(30), anyio.CancelScope() as scope:
        async with (
            consuming(cluster, on_assigned=on_assigned, on_revoked=on_ended, on_lost=on_ended, revoke_within=0.01) as c,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consume, c)
            for step in steps(chance, cluster):
                for _ in range(chance.randrange(12)):
                    await anyio.lowlevel.checkpoint()
                step()
            scope.cancel()
    assert scope.cancelled_caught and not held and in_call == 0


@pytest.mark.parametrize("seed", range(60))
async def test_whatever_happens_every_partition_that_was_given_is_taken_again_exactly_once(seed: int) -> None:
    await live(seed)
