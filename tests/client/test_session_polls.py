"""Long polls of all quiet partitions in a fetch session, by a reader that does other things meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable

import anyio
import pytest

from odradek.client.consumer import fetch_settings
from odradek.client.consumer.reader import Reader
from odradek.client.options import Tuning
from odradek.core.backoff import Backoff
from odradek.core.fetch import scheduler
from odradek.errors import BrokerError
from odradek.testing import MemoryCluster
from odradek.types import KiB, Position

from .one_member import make_cluster, numbered, tp, until
from .reading import held, next_values, reading
from .sessions import Sessions

pytestmark = pytest.mark.anyio

QUICK = Tuning(backoff=Backoff(first_s=0.0001, max_s=0.001))
QUIET = 20


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Sessions:
    monkeypatch.setattr(fetch_settings, "LONG_POLL_S", 0.02)
    monkeypatch.setattr(scheduler, "MANY_PARTITIONS", 1)
    return Sessions(monkeypatch)


async def until_all_are_polled(sessions: Sessions, partitions: int = QUIET) -> None:
    """Wait for another poll of all partitions."""
    before = len(sessions.polls)
    await until(lambda: list(range(partitions)) in sessions.polls[before:])


async def until_polled(sessions: Sessions, times: int) -> None:
    """Wait for so many polls."""
    before = len(sessions.polls)
    await until(lambda: len(sessions.polls) >= before + times)


async def append_everywhere(cluster: MemoryCluster, reader: Reader, *, first: int = 0) -> None:
    """Append a record to every partition, and read them."""
    values = numbered(QUIET, first)
    for number, value in enumerate(values):
        cluster.append("t", [value], partition=number)
    assert sorted(await next_values(reader, QUIET)) == values


async def test_quiet_partitions_are_in_one_poll_and_each_is_delivered_when_it_has_something(sessions: Sessions) -> None:
    cluster = make_cluster(*[0] * QUIET)
    async with reading(cluster) as reader:
        await until_all_are_polled(sessions)
        for number in range(QUIET):
            cluster.append("t", numbered(1, number), partition=number)
            assert await next_values(reader, 1) == numbered(1, number)
        await append_everywhere(cluster, reader)
        await until_all_are_polled(sessions)


def pause_and_resume(cluster: MemoryCluster, reader: Reader) -> None:
    reader.pause(tp(1), tp(2))
    reader.resume(tp(1), tp(2))


def pause_for_long(cluster: MemoryCluster, reader: Reader) -> None:
    reader.pause(tp(1), tp(2))


def seek(cluster: MemoryCluster, reader: Reader) -> None:
    for number in (1, 2):
        reader.seek(tp(number), Position(0))


def move(cluster: MemoryCluster, reader: Reader) -> None:
    for number in (1, 2):
        cluster.move_leader(tp(number), 2)


def restart(cluster: MemoryCluster, reader: Reader) -> None:
    cluster.stop_broker(1)
    cluster.start_broker(1)


def cut(cluster: MemoryCluster, reader: Reader) -> None:
    cluster.cut(1)


def fail(cluster: MemoryCluster, reader: Reader) -> None:
    cluster.fail("fetch", BrokerError(6, "NOT_LEADER_OR_FOLLOWER", retriable=True, refresh_metadata=True), times=3)


def prefer(cluster: MemoryCluster, reader: Reader) -> None:
    cluster.prefer_replica(tp(1), 2)


@pytest.mark.parametrize("change", [pause_and_resume, pause_for_long, seek, move, restart, cut, fail, prefer])
async def test_no_partition_is_lost_whatever_happens_to_it_in_a_poll(
    sessions: Sessions, change: Callable[[MemoryCluster, Reader], None]
) -> None:
    cluster = MemoryCluster(topics={"t": QUIET}, brokers=2)
    for number in range(QUIET):
        cluster.move_leader(tp(number), 1)
    async with reading(cluster, tuning=QUICK) as reader:
        await until_all_are_polled(sessions)
        for first in (0, QUIET):
            change(cluster, reader)
            await until_polled(sessions, 3)
            reader.resume(tp(1), tp(2))
            if change is seek and first:
                assert sorted(await next_values(reader, 2)) == numbered(2, 1)
            await append_everywhere(cluster, reader, first=first)


async def test_partitions_that_wait_for_the_next_poll_of_a_broker_that_leaves_are_fetched_from_another_one(
    sessions: Sessions,
) -> None:
    cluster = MemoryCluster(topics={"t": QUIET}, brokers=2)
    for number in range(QUIET):
        cluster.move_leader(tp(number), 1)
    async with reading(cluster, tuning=QUICK) as reader:
        await until_all_are_polled(sessions)
        scheduler = reader._fetcher._brokers[1].scheduler
        scheduler._next_poll_at = math.inf
        await until(lambda: not scheduler._long_poll_in_flight)
        assert len(scheduler._quotas[0].polled) == QUIET
        cluster.stop_broker(1)
        for number in range(QUIET):
            cluster.move_leader(tp(number), 2)
        await append_everywhere(cluster, reader)


async def test_without_sessions_partitions_are_polled_as_before_and_again_together_with_the_next_one(
    sessions: Sessions,
) -> None:
    cluster = make_cluster(*[0] * QUIET)
    async with reading(cluster) as reader:
        await until_all_are_polled(sessions)
        sessions.granted = False
        await append_everywhere(cluster, reader)
        broker = reader._fetcher._brokers[1]
        await until(lambda: not broker.scheduler.in_session)
        polls, fetches = len(sessions.polls), broker.fetches
        await until(lambda: broker.fetches > fetches + 10)
        assert len(sessions.polls) == polls and broker._last_poll is None
        await append_everywhere(cluster, reader, first=QUIET)
        sessions.granted = True
        await until_all_are_polled(sessions)
        await append_everywhere(cluster, reader, first=2 * QUIET)


async def test_what_polls_bring_stays_within_the_read_ahead_of_a_user_who_takes_nothing(sessions: Sessions) -> None:
    cluster = make_cluster(*[0] * QUIET)
    async with reading(cluster, read_ahead_bytes=64 * KiB, tuning=Tuning(fetch_bytes=4 * KiB)) as reader:
        await until_all_are_polled(sessions)
        for _ in range(200):
            for number in range(QUIET):
                cluster.append("t", [bytes(100)], partition=number)
            await anyio.lowlevel.checkpoint()
            assert held(reader) <= 64 * KiB
        await until(lambda: reader._fetcher._brokers[1].scheduler._quotas[0].full)
        assert held(reader) <= 64 * KiB
        rows = 0
        with anyio.fail_after(60):
            while rows < 200 * QUIET:
                rows += len(await anext(reader.batches()))
        await until_all_are_polled(sessions)


@pytest.mark.parametrize("moment", ["in a poll", "between two polls"])
async def test_a_reader_that_is_closed_ends_its_polls(sessions: Sessions, moment: str) -> None:
    async with make_cluster(*[0] * QUIET).connect() as k:
        async with k.reader("t") as reader:
            await until_all_are_polled(sessions)
            scheduler = reader._fetcher._brokers[1].scheduler
            if moment == "between two polls":
                scheduler._next_poll_at = math.inf
            await until(lambda: scheduler._long_poll_in_flight is (moment == "in a poll"))
        polls = len(sessions.polls)
        await anyio.sleep(0.1)
        assert len(sessions.polls) == polls and not sessions._in_flight
