"""The bridge when the line or the server fails: sessions suspended, kept, expired, closed."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import anyio
import anyio.to_thread
import pytest

from odradek.errors import Closed, ConnectionLost, DeadlineError, NodeExists, SessionExpired, Unreachable
from odradek.io import zookeeper as bridge
from odradek.io.gather import gather, gather_outcomes
from odradek.io.zookeeper import Events, Node, NodeChange, NodeEvent, SessionEvent, SessionState, ZooKeeper
from odradek.testing import FaultProxy, ZooKeeperEnsemble, ZooKeeperServer

from .limits import TimeLimit, end_once_warned

pytestmark = pytest.mark.anyio

CONNECTED = SessionEvent(SessionState.CONNECTED)
SUSPENDED = SessionEvent(SessionState.SUSPENDED)
EXPIRED = SessionEvent(SessionState.EXPIRED)
CLOSED = SessionEvent(SessionState.CLOSED)


@pytest.fixture
def proxy(zookeeper: ZooKeeperServer) -> Iterator[FaultProxy]:
    with FaultProxy(zookeeper.host, zookeeper.port) as proxy:
        yield proxy


@pytest.fixture
def newest(zookeepers: Callable[[str], ZooKeeperServer]) -> Iterator[FaultProxy]:
    """A proxy before 3.9.5 alone, for what does not depend on the server's version."""
    server = zookeepers("3.9.5")
    with FaultProxy(server.host, server.port) as proxy:
        yield proxy


@pytest.fixture
def no_thread_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if "_thread_worker" in thread.name or "zk_loop" in thread.name or "_stop" in thread.name:
            thread.join(5)
            assert not thread.is_alive(), thread


@asynccontextmanager
async def opened(address: str, timeout: float = 10.0) -> AsyncIterator[tuple[ZooKeeper, Events]]:
    """A session and its events, of which the first is taken."""
    async with ZooKeeper(address, session_timeout=5, connect_timeout=timeout) as zk:
        events = zk.events()
        assert await anext(events) == CONNECTED
        with anyio.fail_after(60):
            yield zk, events


# ---- suspended ----------------------------------------------------------------------------------------------


async def test_a_session_outlives_its_connection_and_its_watches_do_not(
    zookeeper: ZooKeeperServer, chroot: str, proxy: FaultProxy
) -> None:
    async with opened(proxy.address + chroot) as (zk, events):
        await zk.create("/e", b"", ephemeral=True)
        await zk.get("/e", watch=True)
        session = zk.session_id
        proxy.refuse()
        proxy.cut()
        assert await anext(events) == SUSPENDED
        zookeeper.set(f"{chroot}/e", b"while it was away")
        proxy.accept()
        assert await anext(events) == CONNECTED
        assert await zk.get("/e", watch=True) == Node(b"while it was away", 1, owner=session)
        assert zk.session_id == session
        await zk.set("/e", b"now")
        assert await anext(events) == NodeEvent(NodeChange.CHANGED, "/e")  # the new watch; the old one kept quiet


async def test_a_killed_and_restarted_server_keeps_the_session() -> None:
    async with ZooKeeperServer() as server, opened(server.address) as (zk, events):
        await zk.create("/e", b"", ephemeral=True)
        await anyio.to_thread.run_sync(server.restart)
        assert [await anext(events), await anext(events)] == [SUSPENDED, CONNECTED]
        assert await zk.get("/e") == Node(b"", 0, owner=zk.session_id)


async def test_calls_wait_for_a_lost_connection_to_come_back(newest: FaultProxy) -> None:
    async with opened(newest.address) as (zk, events):
        newest.refuse()
        newest.cut()
        assert await anext(events) == SUSPENDED
        results = []

        async def check() -> None:
            results.append(await zk.exists("/"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(check)
            await anyio.wait_all_tasks_blocked()
            newest.accept()
        assert results == [True]


async def test_a_read_that_dies_with_its_connection_is_repeated(newest: FaultProxy) -> None:
    async with opened(newest.address) as (zk, _), anyio.create_task_group() as tasks:
        newest.stall()
        results = []

        async def check() -> None:
            results.append(await zk.exists("/"))
            tasks.cancel_scope.cancel()

        tasks.start_soon(check)
        await anyio.wait_all_tasks_blocked()
        newest.heal()
        newest.cut()
        await anyio.sleep_forever()
    assert results == [True]


async def test_a_write_that_dies_with_its_connection_says_that_it_may_have_been_applied(newest: FaultProxy) -> None:
    async with opened(newest.address) as (zk, _), anyio.create_task_group() as tasks:
        newest.stall()

        async def write() -> None:
            with pytest.raises(ConnectionLost) as lost:
                await zk.set("/", b"")
            assert lost.value.sent
            assert lost.value.address == newest.address
            tasks.cancel_scope.cancel()

        tasks.start_soon(write)
        await anyio.wait_all_tasks_blocked()
        newest.heal()
        newest.cut()
        await anyio.sleep_forever()


async def test_a_silent_server_runs_into_the_deadline(newest: FaultProxy) -> None:
    async with opened(newest.address) as (zk, _):
        zk._timeout = 0.3  # only now: connecting may take longer
        newest.stall()
        with pytest.raises(DeadlineError, match=r"exists /: no answer within 0\.3 s"):
            await zk.exists("/")
        newest.heal()
        newest.cut()


async def test_ten_calls_for_every_slot_all_get_their_answer(newest: FaultProxy) -> None:
    async with opened(newest.address) as (zk, _):
        results = []

        async def check() -> None:
            results.append(await zk.exists("/"))

        async with anyio.create_task_group() as tasks:
            for _ in range(10 * bridge.IN_FLIGHT):
                tasks.start_soon(check)
    assert results == [True] * 10 * bridge.IN_FLIGHT


async def test_the_death_of_the_leader_of_three_is_a_short_interruption() -> None:
    async with ZooKeeperEnsemble() as ensemble, opened(ensemble.address, timeout=30) as (zk, events):
        session = zk.session_id
        await zk.create("/e", b"", ephemeral=True)
        leader = await anyio.to_thread.run_sync(ensemble.leader)
        leader.kill()
        assert await anext(events) == SUSPENDED
        while await anext(events) != CONNECTED:
            pass
        assert await zk.get("/e") == Node(b"", 0, owner=session)
        leader.launch()
        await anyio.to_thread.run_sync(leader.wait_ready)
        while await anyio.to_thread.run_sync(leader.mode) != "follower":  # noqa: ASYNC110 - another process
            await anyio.sleep(0.05)


# ---- expired ------------------------------------------------------------------------------------------------


async def test_an_expired_session_is_told_and_a_new_one_begins(
    zookeeper: ZooKeeperServer, chroot: str, proxy: FaultProxy
) -> None:
    async with opened(proxy.address + chroot) as (zk, events):
        await zk.create("/e", b"", ephemeral=True)
        session = zk.session_id
        zookeeper.expire(session)
        assert f"{chroot}/e" not in zookeeper.tree(chroot)
        assert [await anext(events), await anext(events), await anext(events)] == [SUSPENDED, EXPIRED, CONNECTED]
        await zk.create("/e", b"", ephemeral=True)
        assert await zk.get("/e") == Node(b"", 0, owner=zk.session_id)
        assert zk.session_id != session


async def test_a_call_made_in_one_session_is_not_carried_out_in_the_next(
    zookeeper: ZooKeeperServer, chroot: str, proxy: FaultProxy
) -> None:
    async with opened(proxy.address + chroot) as (zk, events), anyio.create_task_group() as tasks:
        proxy.refuse()
        proxy.cut()
        assert await anext(events) == SUSPENDED

        async def write() -> None:
            with pytest.raises(SessionExpired):
                await zk.create("/of-the-old-session", b"")

        tasks.start_soon(write)
        await anyio.wait_all_tasks_blocked()
        zookeeper.expire(zk.session_id)
        proxy.accept()
        assert [await anext(events), await anext(events)] == [EXPIRED, CONNECTED]
    assert list(zookeeper.tree(chroot)) == [chroot]


async def test_calls_between_expiry_and_the_new_session_fail_at_once(newest: FaultProxy) -> None:
    async with opened(newest.address) as (zk, events):
        zk._apply(SessionState.SUSPENDED, None)
        zk._apply(SessionState.EXPIRED, None)
        assert [await anext(events), await anext(events)] == [SUSPENDED, EXPIRED]
        assert zk.session_id == 0
        with pytest.raises(SessionExpired):
            await zk.exists("/")


# ---- beginning and end --------------------------------------------------------------------------------------


async def test_nobody_there_is_unreachable_with_hosts_and_reason(
    no_thread_left: None, newest: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest.refuse()
    limit, zk = TimeLimit(20.5, monkeypatch), ZooKeeper(newest.address, connect_timeout=20.5)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end_once_warned, limit, zk)
        with pytest.raises(Unreachable) as unreachable:
            async with zk:
                pass
    assert (unreachable.value.step, unreachable.value.address) == ("zookeeper", newest.address)
    assert "refused" in unreachable.value.why


async def test_a_server_that_comes_late_is_waited_for(newest: FaultProxy) -> None:
    newest.refuse()
    async with anyio.create_task_group() as tasks:

        async def connect() -> None:
            async with ZooKeeper(newest.address, connect_timeout=20) as zk:
                assert zk.state is SessionState.CONNECTED

        tasks.start_soon(connect)
        await anyio.wait_all_tasks_blocked()
        newest.accept()


async def test_an_abandoned_session_keeps_its_nodes_until_it_times_out(
    no_thread_left: None, zookeeper: ZooKeeperServer, chroot: str
) -> None:
    async with opened(zookeeper.address + chroot) as (zk, events):
        await zk.create("/e", b"", ephemeral=True)
        session = zk.session_id
        await zk.abandon()
        assert zookeeper.tree(f"{chroot}/e") == {f"{chroot}/e": Node(b"", 0, owner=session)}
        assert [event async for event in events] == [CLOSED]
    zookeeper.expire(session)


async def test_leaving_ends_the_session_the_streams_and_the_threads(
    no_thread_left: None, zookeeper: ZooKeeperServer, chroot: str
) -> None:
    async with opened(zookeeper.address + chroot) as (zk, events):
        await zk.create("/e", b"", ephemeral=True)
    assert list(zookeeper.tree(chroot)) == [chroot]
    assert [event async for event in events] == [CLOSED]
    assert [event async for event in events] == []
    assert zk.state is SessionState.CLOSED
    await zk.aclose()


async def test_outside_its_block_everything_is_closed(newest: FaultProxy) -> None:
    zk = ZooKeeper(newest.address)
    for _ in range(2):
        with pytest.raises(Closed):
            await zk.get("/")
        with pytest.raises(Closed):
            zk.events()
        async with ZooKeeper(newest.address) as zk:
            pass
        with pytest.raises(Closed):
            async with zk:
                pass
    never_entered = ZooKeeper(newest.address)
    await never_entered.aclose()
    with pytest.raises(Closed):
        async with never_entered:
            pass


async def test_a_call_under_way_at_the_end_is_told_so(newest: FaultProxy) -> None:
    async with opened(newest.address) as (zk, _), anyio.create_task_group() as tasks:
        newest.refuse()
        newest.cut()

        async def check() -> None:
            with pytest.raises(Closed):
                await zk.get("/", watch=True)

        tasks.start_soon(check)
        await anyio.wait_all_tasks_blocked()
        await zk.aclose()


async def test_leaving_a_server_that_does_not_answer_takes_bounded_time(
    no_thread_left: None, newest: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge, "CLOSE_S", 0.2)
    async with opened(newest.address) as (zk, _):
        newest.stall()
        with anyio.fail_after(10):
            await zk.aclose()


async def test_a_cancelled_block_still_says_goodbye(
    no_thread_left: None, zookeeper: ZooKeeperServer, chroot: str
) -> None:
    with anyio.CancelScope() as scope:
        async with opened(zookeeper.address + chroot) as (zk, _):
            await zk.create("/e", b"", ephemeral=True)
            scope.cancel()
            await anyio.sleep_forever()
    assert list(zookeeper.tree(chroot)) == [chroot]


async def test_cancelled_entry_leaves_nothing_behind(no_thread_left: None, newest: FaultProxy) -> None:
    newest.stall()
    with anyio.move_on_after(0.1) as scope:
        async with ZooKeeper(newest.address, connect_timeout=60):
            pass
    assert scope.cancelled_caught


async def test_a_cancelled_call_does_not_disturb_its_neighbours(newest: FaultProxy) -> None:
    async with opened(newest.address) as (zk, _):
        newest.delay(0.05)
        with anyio.CancelScope() as scope:
            scope.cancel()  # before the answer can be there, however late this task continues
            await zk.get("/")
        assert scope.cancelled_caught
        assert await zk.exists("/")
        assert await zk.get("/no-such-node") is None


async def test_each_change_of_state_is_one_log_line(newest: FaultProxy, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with opened(newest.address) as (_, events):
            newest.cut()
            assert [await anext(events), await anext(events)] == [SUSPENDED, CONNECTED]
    own = [record for record in caplog.records if record.name.startswith(("odradek.zookeeper", "kazoo"))]
    prefix = f"ZooKeeper {newest.address}: "
    assert [(record.levelname, record.getMessage().partition(" (")[0]) for record in own] == [
        ("INFO", f"{prefix}connected"),
        ("WARNING", f"{prefix}suspended"),
        ("INFO", f"{prefix}connected"),
        ("INFO", f"{prefix}closed"),
    ]
    assert "(Connection dropped: " in own[1].getMessage()


# ---- many calls, and calls bound to a session ---------------------------------------------------------------


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of ZooKeeper, in order: method and path."""
    asked: list[str] = []
    ask = ZooKeeper._ask

    async def counted(self: ZooKeeper, session: int, method: str, *arguments: Any) -> Any:
        asked.append(f"{method.removesuffix('_async')} {arguments[0]}")
        return await ask(self, session, method, *arguments)

    monkeypatch.setattr(ZooKeeper, "_ask", counted)
    return asked


async def test_many_nodes_below_one_missing_folder_cost_one_request_each(
    newest: FaultProxy, requests: list[str]
) -> None:
    async with opened(newest.address) as (zk, _):
        root = f"/{uuid4().hex}"
        requests.clear()
        await gather(lambda n: zk.create(f"{root}/a/b/{n}", b"", ephemeral=True, parents=True), range(300))
        assert await zk.children(f"{root}/a/b") == sorted(str(n) for n in range(300))
        assert len(requests) <= 300 + 8
        requests.clear()
        await zk.create(f"{root}/a/b/another", b"", parents=True)
        assert len(requests) == 1


async def test_a_folder_that_was_deleted_is_made_again(newest: FaultProxy) -> None:
    async with opened(newest.address) as (zk, _):
        folder = f"/{uuid4().hex}/a"
        await zk.create(f"{folder}/1", b"", parents=True)
        await zk.delete(f"{folder}/1")
        await zk.delete(folder)
        await zk.create(f"{folder}/2", b"", parents=True)
        assert await zk.children(folder) == ["2"]
        with pytest.raises(NodeExists):
            await zk.create(f"{folder}/2", b"", parents=True)


async def test_more_calls_than_fit_wait_without_a_deadline_while_the_server_answers(
    newest: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge, "IN_FLIGHT", 2)
    async with opened(newest.address) as (zk, _):
        zk._timeout = 3
        newest.delay(0.1)
        begun = anyio.current_time()
        assert await gather(zk.exists, ["/"] * 40) == [True] * 40
        assert anyio.current_time() - begun > 3


async def test_calls_that_wait_fail_together_when_the_server_does_not_answer(
    newest: FaultProxy, requests: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge, "IN_FLIGHT", 2)
    async with opened(newest.address) as (zk, _):
        zk._timeout = 0.5
        newest.stall()
        requests.clear()
        outcomes = await gather_outcomes(zk.exists, ["/"] * 40)
        assert {type(outcome) for outcome in outcomes} == {DeadlineError}
        assert len(requests) < 20, "most of them did not wait for a time limit of their own"


async def test_a_write_for_one_session_is_never_made_in_the_next(zookeeper: ZooKeeperServer, chroot: str) -> None:
    async with opened(zookeeper.address + chroot) as (zk, events):
        first = zk.session_id
        await zk.create("/mine", b"1", session=first)
        zookeeper.expire(first)
        while await anext(events) != EXPIRED:
            pass
        while await anext(events) != CONNECTED:
            pass
        for late in (
            zk.set("/mine", b"2", session=first),
            zk.delete("/mine", session=first),
            zk.create("/other", b"", session=first),
        ):
            with pytest.raises(SessionExpired):
                await late
        assert await zk.get("/mine") == Node(b"1", 0, 0) and not await zk.exists("/other")
        await zk.set("/mine", b"2", session=zk.session_id)


# ---- the stream of events -----------------------------------------------------------------------------------


async def test_every_stream_gets_every_event_and_starts_with_the_present_state(newest: FaultProxy) -> None:
    async with opened(newest.address) as (zk, one):
        newest.refuse()
        newest.cut()
        assert await anext(one) == SUSPENDED
        two = zk.events()
        newest.accept()
        assert await anext(one) == CONNECTED
        assert [await anext(two), await anext(two)] == [SUSPENDED, CONNECTED]


async def test_events_that_wait_are_not_queued_twice_and_the_last_state_is_told_last() -> None:
    a, b = NodeEvent(NodeChange.CHANGED, "/a"), NodeEvent(NodeChange.CHILDREN, "/a")
    events = Events(CONNECTED)
    for event in (a, SUSPENDED, CONNECTED, b, a, SUSPENDED, EXPIRED, CONNECTED, a, SUSPENDED, CONNECTED, CLOSED):
        events._put(event)
    assert [event async for event in events] == [a, b, EXPIRED, SUSPENDED, CONNECTED, CLOSED]


async def test_cancelling_a_wait_for_events_loses_none() -> None:
    events = Events(CONNECTED)
    taken = [await anext(events)]

    async def take() -> None:
        taken.append(await anext(events))

    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            await anyio.wait_all_tasks_blocked()
            events._put(SUSPENDED)
            scope.cancel()
    events._put(CLOSED)
    taken += [event async for event in events]
    assert taken == [CONNECTED, SUSPENDED, CLOSED]


async def test_a_forgotten_stream_costs_nothing(newest: FaultProxy) -> None:
    async with opened(newest.address) as (zk, events):
        other = zk.events()
        assert len(zk._streams) == 2
        del other
        assert list(zk._streams) == [events]
