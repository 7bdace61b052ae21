"""The group consumer: only what is done is committed, revoked partitions stop before they are released."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from odradek.client.consumer.consumer import Consumer
from odradek.client.options import Tuning
from odradek.core.states import ConsumerState
from odradek.errors import (
    BrokerError,
    Closed,
    ConfigError,
    DeadlineError,
    GroupError,
    Unreachable,
    Unsupported,
    ZooKeeperError,
)
from odradek.io.kafka07.driver import Kafka07Driver
from odradek.types import EARLIEST, LATEST, Position
from odradek.wire.compression import CompressionType

from ..payloads import payload, payloads
from .consuming import LogDriver, tp
from .one_member import numbered, revoking, until

pytestmark = pytest.mark.anyio

SIZE = 16
"""Bytes of one entry of `numbered`."""


def make_driver(records: int = 10) -> LogDriver:
    """One partition with records, all of it for the one member."""
    driver = LogDriver(t=1)
    driver.write(tp(), numbered(records))
    driver.initial = {tp(): 0}
    return driver


def make(driver: LogDriver, **options: Any) -> Consumer:
    """Without commits in the background, unless asked for."""
    settings: dict[str, Any] = {"group": "g", "commit_every": None, "tuning": Tuning(fetch_idle=0.001), **options}
    topics = None if {"include", "exclude"} & settings.keys() else settings.pop("topics", "t")
    return Consumer(driver, topics, **settings)


# ---- what is committed --------------------------------------------------------------------------------------


async def test_inside_a_wrapper_its_start_is_committed() -> None:
    driver = LogDriver(t=1)
    driver.write(tp(), [b"first"])
    driver.write(tp(), [b"one", b"two"], CompressionType.GZIP)
    driver.initial = {tp(): 0}
    async with make(driver) as consumer:
        batch = await anext(consumer.batches(max_records=2))
        assert batch.values == [b"first", b"one"] and batch.done()
        assert await consumer.commit() == {tp(): 15}
    driver.store.stored[tp()] = Position(15)
    async with make(driver) as consumer:
        assert (await anext(consumer)).value == b"one"


async def test_pain_commits_are_coalesced() -> None:
    """A thousand marks while one commit is on its way make one more commit: the latest mark."""
    driver = make_driver(1000)
    async with make(driver, commit_every=0.001) as consumer:
        driver.store.gate = gate = anyio.Event()
        batches = consumer.batches(max_records=1)
        (await anext(batches)).done()
        await until(lambda: driver.store.in_flight)
        for _ in range(999):
            (await anext(batches)).done()
        commits = len(driver.store.commits)
        gate.set()
        await until(lambda: driver.store.stored.get(tp()) == 1000 * SIZE)
        assert len(driver.store.commits) == commits + 2


# ---- rebalances ---------------------------------------------------------------------------------------------


async def test_a_commit_on_its_way_ends_with_the_session() -> None:
    driver = make_driver()
    async with make(driver) as consumer, anyio.create_task_group() as tasks:
        await consumer.commit()
        (await anext(consumer.batches())).done()
        driver.store.gate = anyio.Event()
        outcome: list[object] = []

        async def commit() -> None:
            outcome.append(await consumer.commit())

        tasks.start_soon(commit)
        await until(lambda: driver.store.in_flight)
        await driver.member.expire()
        await until(lambda: outcome)
        driver.store.gate.set()
    assert outcome == [{}] and driver.store.stored == {tp(): 0}


async def test_a_failing_commit_does_not_stop_a_rebalance(caplog: pytest.LogCaptureFixture) -> None:
    driver = make_driver()
    async with make(driver) as consumer:
        (await anext(consumer.batches())).done()
        driver.store.error = ZooKeeperError("no quorum")
        await driver.member.revoke()
        driver.store.error = None
    assert driver.member.steps == ["assigned", "released", "left"] and "no quorum" in caplog.text


# ---- positions that are gone, seek, streams -----------------------------------------------------------------


@pytest.mark.parametrize(("start", "expected"), [(EARLIEST, 2), (LATEST, 10)])
async def test_a_position_that_is_gone_is_reset_and_stored_at_once(start: Any, expected: int) -> None:
    driver = make_driver()
    driver.store.stored[tp()] = Position(9999)
    driver.starts[tp()] = 2 * SIZE
    async with make(driver, start=start) as consumer:
        await until(lambda: driver.store.stored == {tp(): expected * SIZE})
        driver.write(tp(), [b"new"])
        record = await anext(consumer)
        assert record.position == expected * SIZE


async def test_reset_fail_raises_instead() -> None:
    driver = make_driver()
    driver.store.stored[tp()] = Position(9999)
    with pytest.raises(BrokerError, match="OffsetOutOfRange"):
        async with make(driver, reset="fail") as consumer:
            await anext(consumer)
    assert driver.store.stored == {tp(): 9999}


async def test_seek_moves_the_whole_group() -> None:
    driver = make_driver()
    async with make(driver) as consumer:
        before = await anext(consumer.batches(max_records=8))
        consumer.seek(tp(), Position(5 * SIZE))
        assert not before.done()
        assert await consumer.commit() == {tp(): 5 * SIZE}
        assert (await anext(consumer.batches())).values == numbered(5, 5)
        consumer.seek(tp(), EARLIEST)
        await until(lambda: driver.store.stored == {tp(): 0})
        assert (await anext(consumer)).value == b"000000"


async def test_a_broker_that_is_away_during_the_assignment_is_asked_later() -> None:
    driver = make_driver()
    driver.b1.down = True
    async with make(driver) as consumer:
        assert consumer.assignment == {tp(): 0}
        driver.b1.down = False
        assert (await anext(consumer)).value == b"000000"


async def test_streams_share_the_partitions() -> None:
    driver = LogDriver(t=3)
    for n in range(3):
        driver.write(tp(n), numbered(4, 4 * n))
    driver.initial = {tp(0): 0, tp(1): 0, tp(2): 1}
    async with make(driver, streams=2) as consumer:
        first, second = consumer.streams
        got = [(await anext(second)).value for _ in range(4)]
        assert got == numbered(4, 8)
        batches = first.batches()
        two = [await anext(batches) for _ in range(2)]
        assert sorted(v for batch in two for v in payloads(batch.values)) == numbered(8)
        assert all(batch.done() for batch in two)
    assert driver.store.stored == {tp(n): 4 * SIZE for n in range(3)}


async def test_pause_and_lag() -> None:
    driver = make_driver()
    async with make(driver) as consumer:
        assert (await anext(consumer)).value == b"000000"
        assert await consumer.lag() == {tp(): 9 * SIZE}
        consumer.pause()
        with anyio.move_on_after(0.02) as paused:
            await anext(consumer)
        assert paused.cancelled_caught
        await consumer.commit()
        consumer.resume()
        assert (await anext(consumer)).value == b"000001"
    assert driver.store.stored == {tp(): 2 * SIZE}


# ---- coming and going ---------------------------------------------------------------------------------------


async def test_a_cluster_without_groups_says_so_at_once() -> None:
    driver = make_driver()
    driver.groupless = True
    with pytest.raises(Unsupported, match="needs ZooKeeper"):
        async with make(driver):
            pass


async def test_pain_background_death_raises_in_async_for() -> None:
    driver = make_driver(0)
    async with make(driver) as consumer:
        driver.member.die(RuntimeError("out of order"))
        with pytest.raises(RuntimeError, match="out of order"):
            async for _ in consumer:
                pass
        assert consumer.state is ConsumerState.FAILED
        with pytest.raises(RuntimeError, match="out of order"):
            await consumer.commit()
    assert driver.member.steps[-1] == "left"


async def test_a_death_nobody_saw_is_raised_at_the_end() -> None:
    driver = make_driver(0)
    with pytest.raises(RuntimeError, match="out of order"):
        async with make(driver) as consumer:
            driver.member.die(RuntimeError("out of order"))
            await until(lambda: consumer.state is ConsumerState.FAILED)


async def test_a_group_that_cannot_be_joined_raises_at_entry_and_leaves_nothing() -> None:
    driver = make_driver()

    class Refused(type(driver.store)):  # type: ignore[misc]
        async def fetch(self, partitions: Any) -> Any:
            raise GroupError("no partitions in 4 attempts")

    driver.store = Refused()
    with pytest.raises(GroupError, match="4 attempts"):
        async with make(driver):
            pass
    assert driver.member.steps == ["left"]


async def test_joining_has_a_deadline() -> None:
    driver = make_driver()

    class Slow(type(driver.store)):  # type: ignore[misc]
        async def fetch(self, partitions: Any) -> Any:
            await anyio.sleep_forever()

    driver.store = Slow()
    with pytest.raises(DeadlineError, match="joining group g"):
        async with make(driver, join_within=0.02):
            pass
    assert driver.member.steps == ["left"]


async def test_leaving_commits_what_is_done_also_when_the_block_is_cancelled() -> None:
    driver = make_driver()
    with anyio.CancelScope() as scope:
        async with make(driver) as consumer:
            (await anext(consumer.batches(max_records=4))).done()
            await anext(consumer.batches(max_records=4))
            scope.cancel()
            await anyio.sleep_forever()
    assert driver.store.stored == {tp(): 4 * SIZE} and driver.member.steps[-1] == "left"


async def test_leaving_has_a_budget_and_says_what_did_not_work() -> None:
    driver = make_driver()
    with pytest.raises(ZooKeeperError, match="no quorum"):
        async with make(driver) as consumer:
            (await anext(consumer.batches())).done()
            driver.store.error = ZooKeeperError("no quorum")
    assert driver.member.steps[-1] == "left", "tried all the same"
    driver = make_driver()
    with pytest.raises(
        DeadlineError, match=r"leaving group g \(positions of 1 partitions not stored; 1 not released\)"
    ):
        async with make(driver, exit_within=0.02):
            driver.store.gate = anyio.Event()
            driver.member.leaving_hangs, driver.member.problem = True, "1 not released"
    assert consumer.state is ConsumerState.CLOSED


async def test_an_exception_of_the_block_is_not_masked(caplog: pytest.LogCaptureFixture) -> None:
    driver = make_driver()
    with pytest.raises(ValueError, match="mine"):
        async with make(driver) as consumer:
            (await anext(consumer.batches())).done()
            driver.store.error = ZooKeeperError("no quorum")
            raise ValueError("mine")
    assert "no quorum" in caplog.text


async def test_used_outside_its_block_it_says_closed() -> None:
    consumer = make(make_driver())
    with pytest.raises(Closed):
        await anext(consumer)
    async with consumer:
        assert repr(consumer) == "<Consumer of g RUNNING 1 partitions>" and consumer.consumer_id == "g_me"
    with pytest.raises(Closed):
        await anext(consumer)


async def test_streams_are_counted_from_one() -> None:
    with pytest.raises(ConfigError, match="streams=0: must be a whole number from 1"):
        make(make_driver(), streams=0)


async def test_pain_consumer_survives_broker_restart(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    driver = make_driver()
    async with make(driver) as consumer:
        assert (await anext(consumer.batches())).values == numbered(10)
        driver.b1.down = True
        await until(lambda: "Connection refused" in caplog.text)
        driver.live()
        await until(lambda: "no longer registered" in caplog.text)
        driver.b1.down = False
        driver.write(tp(), numbered(3, 10))
        driver.live(1)
        assert (await anext(consumer.batches())).values == numbered(3, 10)


async def test_pain_cancellation_at_every_await() -> None:
    """Whatever step a wait is cancelled at, the next wait gets what it would have got: nothing is lost."""
    driver = make_driver(100)
    got: list[bytes] = []
    async with make(driver, tuning=Tuning(fetch_idle=0.001, fetch_bytes=100)) as consumer:
        steps = 0
        while len(got) < 100:
            steps += 1
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:

                    async def cancel(after: int = steps % 5, scope: anyio.CancelScope = scope) -> None:
                        for _ in range(after):
                            await anyio.lowlevel.checkpoint()
                        scope.cancel()

                    tasks.start_soon(cancel)
                    while len(got) < 100:
                        got.append(payload((await anext(consumer)).value))
                    tasks.cancel_scope.cancel()
        assert await consumer.commit() == {tp(): 99 * SIZE}
    assert got == numbered(100) and steps > 5
    assert driver.store.stored == {tp(): 100 * SIZE}


async def test_an_unreachable_broker_is_not_the_death_of_a_consumer() -> None:
    driver = make_driver()
    async with make(driver) as consumer:
        await anext(consumer)
        driver.b1.down = True
        with pytest.raises(Unreachable):
            await consumer.lag()
        assert (await anext(consumer)).value == b"000001"


# ---- only what moves is interrupted -------------------------------------------------------------------------


async def test_an_expiry_during_a_revoke_ends_it_without_a_commit() -> None:
    driver = make_driver()
    async with make(driver, revoke_within=3600) as consumer, anyio.create_task_group() as tasks:
        await consumer.commit()
        held = await anext(consumer.batches(max_records=3))
        tasks.start_soon(driver.member.revoke)
        await until(lambda: revoking(consumer))
        await driver.member.expire()
        await until(lambda: "released" in driver.member.steps)
        assert not held.done() and await consumer.commit() == {}
    assert driver.store.stored == {tp(): 0}


async def test_a_member_that_stays_blocked_raises_whose_partitions_they_are() -> None:
    driver = make_driver()
    make_member = driver.membership

    def blocked(subscription: Any) -> Any:
        member = make_member(subscription)
        member.blocked, member.problem = True, "t/1-0 belongs to stranger-0"
        return member

    driver.membership = blocked  # type: ignore[method-assign]
    with pytest.raises(GroupError, match=r"group g: no partitions within 0\.02 s: t/1-0 belongs to stranger-0"):
        async with make(driver, join_within=0.02):
            pass
    assert driver.member.steps == ["left"]


# ---- leaving under native cancellation ----------------------------------------------------------------------


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("cancellations", [1, 2])
async def test_a_native_cancellation_while_leaving_is_raised_and_leaves_no_task(
    anyio_backend: str, cancellations: int
) -> None:
    for steps in range(25):
        before = asyncio.all_tasks()
        driver = make_driver()

        task = asyncio.ensure_future(_work_until_cancelled(driver))
        await until(lambda driver=driver: driver.store.in_flight)  # type: ignore[misc]
        for _ in range(cancellations):
            task.cancel()
            for _ in range(steps):
                await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == before
        assert driver.member.steps[-1] == "left" or cancellations == 2


async def _work_until_cancelled(driver: LogDriver) -> None:
    async with make(driver) as consumer:
        (await anext(consumer.batches())).done()
        driver.store.gate = anyio.Event()  # the last commit never ends


@pytest.mark.parametrize("group", ["", "a/b", "../x", "..", "caf\u00e9 \U0001f600", "\ud800", "a\x00b"])
def test_group_names_that_zookeeper_refuses_are_refused_at_construction(group: str) -> None:
    driver = Kafka07Driver(zookeeper="127.0.0.1:1")
    with pytest.raises(ConfigError, match="group name"):
        Consumer(driver, "t", group=group)


@pytest.mark.parametrize("topic", ["", "a/b", "..", "\ud800", b"t"])
def test_topic_names_that_cannot_exist_are_refused_at_construction(topic: Any) -> None:
    driver = Kafka07Driver(zookeeper="127.0.0.1:1")
    with pytest.raises((ConfigError, TypeError)):
        Consumer(driver, topic, group="g")


def test_more_streams_than_a_member_may_have_are_refused_at_construction() -> None:
    with pytest.raises(ConfigError, match="streams=20000: must be a whole number from 1 to 10000"):
        Consumer(Kafka07Driver(zookeeper="127.0.0.1:1"), "t", group="g", streams=20_000)
