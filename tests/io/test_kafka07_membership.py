"""Group membership and positions on a real ZooKeeper, as the Scala consumer would see and leave them."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import anyio
import pytest

from odradek.core.interfaces import Assignment, Membership, RebalanceListener, Subscription
from odradek.core.kafka07.znodes import StaticRegistration, parse_registration
from odradek.errors import Closed, ConfigError, GroupError, NodeExists, OdradekError, SessionExpired, ZooKeeperError
from odradek.io.kafka07.member_nodes import MemberNodes
from odradek.io.kafka07.membership import RebalanceOptions, ZooKeeperMembership
from odradek.io.kafka07.offsets import LIST_FROM, ZooKeeperOffsets
from odradek.io.zookeeper import NodeEvent, ZooKeeper
from odradek.testing import FaultProxy, ZooKeeperServer
from odradek.types import Position, TopicPartition, by_broker

pytestmark = pytest.mark.anyio

BACKOFF = 0.1


@pytest.fixture
def server(zookeepers: Callable[[str], ZooKeeperServer]) -> ZooKeeperServer:
    """The newest alone; `zookeeper` of conftest.py is every version in turn."""
    return zookeepers("3.9.5")


@pytest.fixture
def root(server: ZooKeeperServer) -> str:
    """An empty node for this test alone."""
    path = f"/{uuid4().hex}"
    server.create(path)
    return path


def tp(partition: int, topic: str = "t", broker: int = 1) -> TopicPartition:
    return TopicPartition(topic, partition, broker)


async def until(condition: Callable[[], bool]) -> None:
    """For what happens inside one object and is announced to nobody."""
    with anyio.fail_after(20):
        while True:
            if condition():
                return
            await anyio.sleep(0.005)


def was_turned_away(membership: ZooKeeperMembership) -> bool:
    """It found partitions that belong to another member, and tries again, or has given up trying for now."""
    return "BACKING_OFF" in repr(membership) or "DEGRADED" in repr(membership)


class Recorder:
    """A listener that records its calls, and commits `done` when partitions are revoked."""

    def __init__(self, membership: ZooKeeperMembership) -> None:
        self.membership = membership
        self.calls: list[str] = []
        self.current: dict[TopicPartition, int] | None = None
        self.committed: dict[TopicPartition, Position | None] = {}
        self.generation = 0
        self.done: dict[TopicPartition, Position] = {}
        self.before_commit: Callable[[], Awaitable[None]] | None = None
        self.in_assign: Callable[[], Awaitable[None]] | None = None
        self.revoke_error: OdradekError | None = None
        self._called = anyio.Event()

    async def revoke(self, partitions: Collection[TopicPartition]) -> None:
        self._record("revoke", dict.fromkeys(partitions, 0))
        assert self.current is not None and self.current.keys() >= set(partitions)
        if self.before_commit is not None:
            await self.before_commit()
        try:
            await self.membership.commit({p: at for p, at in self.done.items() if p in partitions})
        except OdradekError as error:
            self.revoke_error = error
        self._remove(partitions)

    async def assign(self, assignment: Assignment) -> None:
        current = self.current or {}
        assert not current.keys() & assignment.partitions.keys(), "assigned twice"
        self._record("assign", assignment.partitions)
        assert assignment.generation > self.generation
        self.generation = assignment.generation
        self.current = {**current, **assignment.partitions}
        self.committed = {**self.committed, **assignment.committed}
        self._notify()
        if self.in_assign is not None:
            await self.in_assign()

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        self._record("lost", dict.fromkeys(partitions, 0))
        assert self.current is not None and self.current.keys() == set(partitions)
        self._remove(partitions)

    def _record(self, name: str, partitions: Mapping[TopicPartition, int]) -> None:
        ordered = sorted(partitions.items(), key=lambda item: by_broker(item[0]))
        self.calls.append(" ".join([name, *(f"{p.name}:{stream}" for p, stream in ordered)]))

    def _remove(self, partitions: Collection[TopicPartition]) -> None:
        self.current = {p: stream for p, stream in (self.current or {}).items() if p not in partitions}
        self.done = {p: at for p, at in self.done.items() if p not in partitions}
        self._notify()

    def _notify(self) -> None:
        self._called.set()
        self._called = anyio.Event()

    async def owns(self, expected: Mapping[TopicPartition, int]) -> dict[TopicPartition, Position | None]:
        """Wait until exactly these are assigned. Returns their positions."""
        with anyio.fail_after(20):
            while self.current != expected:
                await self._called.wait()
        return {p: self.committed[p] for p in expected}


class Member:
    """A running membership with its own session."""

    def __init__(self, zk: ZooKeeper, membership: ZooKeeperMembership, listener: Recorder) -> None:
        self.zk, self.membership, self.listener = zk, membership, listener
        self.owns = listener.owns


@asynccontextmanager
async def opened(address: str) -> AsyncIterator[ZooKeeper]:
    async with ZooKeeper(address, session_timeout=5, connect_timeout=10) as zk:
        yield zk


@asynccontextmanager
async def member(
    address: str, name: str, topics: Mapping[str, int] | None = None, include: str | None = None
) -> AsyncIterator[Member]:
    """Joined until the block ends; then it leaves."""
    wanted = {"t": 1} if topics is None and include is None else topics
    async with opened(address) as zk:
        subscription = Subscription("g", wanted, include, consumer_id=name)
        membership = ZooKeeperMembership(zk, subscription, RebalanceOptions(4, BACKOFF))
        listener = Recorder(membership)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(membership.run, listener)
            with anyio.fail_after(30):
                yield Member(zk, membership, listener)
            tasks.cancel_scope.cancel()
        await membership.leave()


async def topic(zk: ZooKeeper, name: str, count: int, broker: int = 1) -> None:
    await zk.create(f"/brokers/topics/{name}/{broker}", str(count).encode(), ephemeral=True, parents=True)


async def owners(zk: ZooKeeper, name: str = "t") -> dict[str, str]:
    path = f"/consumers/g/owners/{name}"
    stored = {}
    for child in await zk.children(path) or []:
        node = await zk.get(f"{path}/{child}")
        stored[child] = (node.data or b"").decode() if node else ""
    return stored


async def text(zk: ZooKeeper, path: str) -> str | None:
    node = await zk.get(path)
    assert node is not None, path
    return None if node.data is None else node.data.decode()


# ---- the cases of specification section 10 ------------------------------------------------------------------


async def test_case_38_nodes_are_exactly_those_of_the_specification(zookeeper: ZooKeeperServer, chroot: str) -> None:
    address = zookeeper.address + chroot
    async with opened(address) as outside:
        await topic(outside, "t", 2)
        await topic(outside, "u", 1)
        async with member(address, "a", {"t": 2, "u": 1}) as a:
            same: Membership = a.membership
            listener: RebalanceListener = a.listener
            await a.owns({tp(0): 0, tp(1): 1, tp(0, "u"): 0})
            await a.membership.commit({tp(0): Position(56), tp(0, "u"): Position(0)})
            tree = {p.removeprefix(chroot): n for p, n in zookeeper.tree(f"{chroot}/consumers").items()}
            me = a.zk.session_id
        assert {path: (node.data, node.owner) for path, node in tree.items()} == {
            **dict.fromkeys(["/consumers", "/consumers/g", "/consumers/g/ids"], (None, 0)),
            **dict.fromkeys([f"/consumers/g/o{x}" for x in ("wners", "wners/t", "wners/u")], (None, 0)),
            **dict.fromkeys([f"/consumers/g/o{x}" for x in ("ffsets", "ffsets/t", "ffsets/u")], (None, 0)),
            "/consumers/g/ids/g_a": (b'{ "t": 2,"u": 1 }', me),
            "/consumers/g/owners/t/1-0": (b"g_a-0", me),
            "/consumers/g/owners/t/1-1": (b"g_a-1", me),
            "/consumers/g/owners/u/1-0": (b"g_a-0", me),
            "/consumers/g/offsets/t/1-0": (b"56", 0),
            "/consumers/g/offsets/u/1-0": (b"0", 0),
        }
        parsed = parse_registration("ids", tree["/consumers/g/ids/g_a"].data)
        assert parsed == StaticRegistration({"t": 2, "u": 1})
        assert (same.consumer_id, listener) == ("g_a", a.listener)
        assert await owners(outside) == {}
        assert await outside.children("/consumers/g/ids") == []


async def test_case_39_a_second_member_takes_its_range_with_the_positions_of_the_first(
    zookeeper: ZooKeeperServer, chroot: str
) -> None:
    address = zookeeper.address + chroot
    async with opened(address) as outside:
        await topic(outside, "t", 3)
        async with member(address, "a", {"t": 2}) as a:
            first = await a.owns({tp(0): 0, tp(1): 0, tp(2): 1})
            assert set(first.values()) == {None}
            a.listener.done = {tp(0): Position(10), tp(1): Position(20), tp(2): Position(30)}
            async with member(address, "b") as b:
                taken = await b.owns({tp(2): 0})
                assert taken == {tp(2): Position(30)}
                kept = await a.owns({tp(0): 0, tp(1): 1})
                assert kept == {tp(0): None, tp(1): Position(20)}, "1-0 was never interrupted"
                assert await owners(outside) == {"1-0": "g_a-0", "1-1": "g_a-1", "1-2": "g_b-0"}
                b.listener.done = {tp(2): Position(31)}
                await b.membership.commit(b.listener.done)
            back = await a.owns({tp(0): 0, tp(1): 0, tp(2): 1})
            assert back[tp(2)] == Position(31)
            assert a.listener.calls == [
                "assign 1-0:0 1-1:0 1-2:1",
                "revoke 1-1:0 1-2:0",
                "assign 1-1:1",
                "revoke 1-1:0",
                "assign 1-1:0 1-2:1",
            ]


async def test_case_40_eleven_partitions_over_three_members_sort_as_strings(server: ZooKeeperServer, root: str) -> None:
    address = server.address + root
    async with opened(address) as outside:
        await topic(outside, "t", 11)
        async with member(address, "a") as a, member(address, "b") as b, member(address, "c") as c:
            await a.owns(dict.fromkeys(map(tp, (0, 1, 10, 2)), 0))
            await b.owns(dict.fromkeys(map(tp, (3, 4, 5, 6)), 0))
            await c.owns(dict.fromkeys(map(tp, (7, 8, 9)), 0))


async def test_case_41_a_member_blocked_by_a_foreign_owner_waits_for_it_and_says_so(
    server: ZooKeeperServer, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After four attempts it waits for the owner: its node may belong to a dead member with a long session."""
    address = server.address + root
    async with opened(address) as outside, opened(address) as zk:
        await topic(outside, "t", 3)
        await outside.create("/consumers/g/owners/t/1-1", b"stranger-0", parents=True)
        membership = ZooKeeperMembership(zk, Subscription("g", {"t": 1}, consumer_id="a"), RebalanceOptions(4, BACKOFF))
        listener = Recorder(membership)
        begun = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(membership.run, listener)
            await until(lambda: "DEGRADED" in repr(membership))
            assert anyio.current_time() - begun >= 3 * BACKOFF
            assert membership.problem == "t/1-1 belongs to stranger-0"
            assert await owners(outside) == {"1-1": "stranger-0"}, "other claims are released"
            assert await outside.children("/consumers/g/ids") == ["g_a"], "it stays registered"
            assert listener.calls == []
            await outside.delete("/consumers/g/owners/t/1-1")
            await listener.owns(dict.fromkeys(map(tp, range(3)), 0))
            assert membership.problem == ""
            tasks.cancel_scope.cancel()
        await membership.leave()
        await membership.leave()
        assert await outside.children("/consumers/g/ids") == []
    lines = [r.getMessage() for r in caplog.records if r.name == "odradek.group" and r.levelname == "WARNING"]
    assert lines == ["g_a cannot get its partitions: t/1-1 belongs to stranger-0"]


async def test_case_41_a_foreign_owner_that_goes_in_time_costs_no_back_off(server: ZooKeeperServer, root: str) -> None:
    address = server.address + root
    async with opened(address) as outside, opened(address) as zk:
        await topic(outside, "t", 2)
        await outside.create("/consumers/g/owners/t/1-1", b"stranger-0", parents=True)
        membership = ZooKeeperMembership(zk, Subscription("g", {"t": 1}, consumer_id="a"), RebalanceOptions(4, 3600))
        listener = Recorder(membership)
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(membership.run, listener)
                await until(lambda: "BACKING_OFF" in repr(membership))
                assert await owners(outside) == {"1-0": "g_a-0", "1-1": "stranger-0"}, "claims are kept meanwhile"
                await outside.delete("/consumers/g/owners/t/1-1")
                await listener.owns({tp(0): 0, tp(1): 0})
                tasks.cancel_scope.cancel()
        assert repr(membership) == "<ZooKeeperMembership g_a OWNING owns=2>"
        await membership.leave()


async def test_case_42_a_reset_position_replaces_the_stored_one_whatever_it_was(
    server: ZooKeeperServer, root: str
) -> None:
    async with opened(server.address + root) as zk:
        store = ZooKeeperOffsets(zk, "g")
        await store.commit({tp(0): Position(1 << 40)})
        assert await store.fetch([tp(0), tp(1)]) == {tp(0): Position(1 << 40), tp(1): None}
        await store.commit({tp(0): Position(0)})
        assert await text(zk, "/consumers/g/offsets/t/1-0") == "0"


async def test_case_43_an_expired_session_loses_everything_and_joins_again_under_the_same_id(
    zookeeper: ZooKeeperServer, chroot: str
) -> None:
    address = zookeeper.address + chroot
    async with opened(address) as outside:
        await topic(outside, "t", 2)
        async with member(address, "a") as a:
            await a.owns({tp(0): 0, tp(1): 0})
            await a.membership.commit({tp(0): Position(13)})
            a.listener.done = {tp(0): Position(26)}  # processed, not committed
            session = a.zk.session_id
            zookeeper.expire(session)
            await until(lambda: len(a.listener.calls) == 3)
            again = await a.owns({tp(0): 0, tp(1): 0})
            assert again == {tp(0): Position(13), tp(1): None}  # since then: delivered again
            assert a.listener.calls == ["assign 1-0:0 1-1:0", "lost 1-0:0 1-1:0", "assign 1-0:0 1-1:0"]
            node = await outside.get("/consumers/g/ids/g_a")
            assert node is not None and node.owner == a.zk.session_id != session
            assert await owners(outside) == {"1-0": "g_a-0", "1-1": "g_a-0"}


async def test_case_44_a_whitelist_picks_up_a_new_topic(zookeeper: ZooKeeperServer, chroot: str) -> None:
    address = zookeeper.address + chroot
    async with opened(address) as outside:
        await topic(outside, "seg", 1)
        await topic(outside, "segment", 1)
        async with member(address, "a", include="big.*, seg") as a:
            await a.owns({tp(0, "seg"): 0})
            assert await text(outside, "/consumers/g/ids/g_a") == "*1*big.*|seg"
            await topic(outside, "bigger", 2)
            await a.owns({tp(0, "seg"): 0, tp(0, "bigger"): 0, tp(1, "bigger"): 0})
            assert await owners(outside, "bigger") == {"1-0": "g_a-0", "1-1": "g_a-0"}


async def test_an_expiry_interrupts_a_revoke_and_nothing_is_committed_in_the_next_session(
    server: ZooKeeperServer, root: str
) -> None:
    """The rest of that rebalance would happen in the next session: none of it is committed, assigned or left behind."""
    address = server.address + root
    async with opened(address) as outside:
        await topic(outside, "t", 2)
        async with member(address, "a") as a:
            await a.owns({tp(0): 0, tp(1): 0})
            session = a.zk.session_id
            a.listener.done = {tp(1): Position(77)}

            async def expire() -> None:
                a.listener.before_commit = None
                await until(lambda: was_turned_away(b.membership))
                server.expire(session)
                await until(lambda: "lost 1-0:0 1-1:0" in a.listener.calls)
                await until(lambda: a.zk.session_id not in (0, session))
                a.listener.done = {tp(1): Position(77)}

            a.listener.before_commit = expire
            async with member(address, "b") as b:
                assert await b.owns({tp(1): 0}) == {tp(1): None}
                await a.owns({tp(0): 0})
                assert isinstance(a.listener.revoke_error, SessionExpired)
                assert a.listener.calls == ["assign 1-0:0 1-1:0", "revoke 1-1:0", "lost 1-0:0 1-1:0", "assign 1-0:0"]
                assert await outside.children("/consumers/g/offsets") is None, "nothing was committed"
                for path, owner in (("ids/g_a", a), ("owners/t/1-0", a), ("owners/t/1-1", b)):
                    node = await outside.get(f"/consumers/g/{path}")
                    assert node is not None and node.owner == owner.zk.session_id, path


async def test_a_member_commits_only_what_it_owns_and_only_in_its_session(server: ZooKeeperServer, root: str) -> None:
    address = server.address + root
    async with opened(address) as outside:
        await topic(outside, "t", 1)
        async with member(address, "a") as a:
            await a.owns({tp(0): 0})
            await a.membership.commit({tp(0): Position(5)})
            with pytest.raises(GroupError, match="t/1-7 does not belong to g_a"):
                await a.membership.commit({tp(0): Position(6), tp(7): Position(1)})
            assert await a.membership.committed([tp(0), tp(7)]) == {tp(0): 5, tp(7): None}
        with pytest.raises(SessionExpired, match="not committed"):
            await a.membership.commit({tp(0): Position(6)})


async def test_joining_committing_and_leaving_cost_about_one_request_a_partition(
    server: ZooKeeperServer, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[str] = Counter()
    ask = ZooKeeper._ask

    async def counted(self: ZooKeeper, session: int, method: str, *arguments: object) -> object:
        asked[method] += 1
        return await ask(self, session, method, *arguments)

    address, count = server.address + root, 200
    async with opened(address) as outside:
        await topic(outside, "t", count)
        monkeypatch.setattr(ZooKeeper, "_ask", counted)
        async with member(address, "a") as a:
            everything = dict.fromkeys(map(tp, range(count)), 0)
            await a.owns(everything)
            assert asked.total() <= count + 20
            asked.clear()
            await a.membership.commit(dict.fromkeys(everything, Position(1)))
            assert asked.total() <= count + 10
            asked.clear()
            await a.membership.commit(dict.fromkeys(everything, Position(2)))
            assert asked["set_async"] == count, asked
            assert asked.total() <= count + 10
            asked.clear()
        assert asked.total() <= count + 10


async def test_a_node_that_now_belongs_to_another_member_is_not_deleted(server: ZooKeeperServer, root: str) -> None:
    address, count = server.address + root, LIST_FROM
    node = f"/consumers/g/owners/t/{tp(3).name}"
    async with opened(address) as outside:
        await topic(outside, "t", count)
        async with member(address, "a") as a:
            await a.owns(dict.fromkeys(map(tp, range(count)), 0))
            await outside.delete(node)
            await outside.create(node, b"g_b-0", ephemeral=True)
        assert await owners(outside) == {tp(3).name: "g_b-0"}


async def test_what_leave_could_not_release_is_released_in_the_background(server: ZooKeeperServer, root: str) -> None:
    """The session lives on with the cluster: without that nobody would get these partitions until it is closed."""
    with FaultProxy(server.host, server.port) as proxy:
        async with (
            opened(server.address + root) as outside,
            opened(proxy.address + root) as zk,
            anyio.create_task_group() as background,
        ):
            await topic(outside, "t", 3)

            def spawn(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
                background.start_soon(work)

            membership = ZooKeeperMembership(
                zk, Subscription("g", {"t": 1}, consumer_id="a"), RebalanceOptions(4, BACKOFF), spawn
            )
            listener = Recorder(membership)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(membership.run, listener)
                await listener.owns(dict.fromkeys(map(tp, range(3)), 0))
                tasks.cancel_scope.cancel()
            proxy.stall()
            with anyio.move_on_after(0.1) as budget:
                await membership.leave()
            assert budget.cancelled_caught
            assert membership.problem == (
                "3 partitions (t/1-0 and 2 more) are not released yet; continuing in the background"
            )
            assert len(await owners(outside)) == 3
            proxy.heal()
            proxy.cut()
            with anyio.fail_after(30):
                events = outside.events()
                while await outside.children("/consumers/g/ids", watch=True):
                    await anext(events)
            assert await owners(outside) == {}, "released before the ids node is deleted"


async def test_an_expiry_that_is_noticed_before_it_is_announced_is_one_expiry(
    server: ZooKeeperServer, root: str
) -> None:
    address = server.address + root
    async with opened(address) as outside, opened(address) as zk:
        await topic(outside, "t", 1)
        membership = ZooKeeperMembership(zk, Subscription("g", {"t": 1}, consumer_id="a"), RebalanceOptions(4, BACKOFF))
        listener = Recorder(membership)
        session = zk.session_id

        async def change_and_expire() -> None:
            listener.in_assign = None
            events = zk.events()
            await outside.set("/brokers/topics/t/1", b"2")
            async for event in events:
                if isinstance(event, NodeEvent):
                    break
            server.expire(session)
            await until(lambda: zk.session_id not in (0, session))

        listener.in_assign = change_and_expire
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(membership.run, listener)
            await listener.owns({tp(0): 0, tp(1): 0})
            await until(lambda: "OWNING" in repr(membership))
            await topic(outside, "t", 1, broker=2)
            await listener.owns({tp(0): 0, tp(1): 0, tp(0, broker=2): 0})
            tasks.cancel_scope.cancel()
        assert listener.calls == [
            "assign 1-0:0",
            "lost 1-0:0",
            "assign 1-0:0 1-1:0",
            "assign 2-0:0",
        ]
        node = await outside.get("/consumers/g/ids/g_a")
        assert node is not None and node.owner == zk.session_id


# ---- how members treat each other ---------------------------------------------------------------------------


async def test_positions_are_read_after_the_claim_so_that_a_late_commit_is_not_missed(
    server: ZooKeeperServer, root: str
) -> None:
    address = server.address + root
    async with opened(address) as outside:
        await topic(outside, "t", 2)
        async with member(address, "a") as a:
            await a.owns({tp(0): 0, tp(1): 0})

            async def until_the_other_was_turned_away() -> None:
                await until(lambda: was_turned_away(b.membership))
                a.listener.done = {tp(1): Position(77)}

            a.listener.before_commit = until_the_other_was_turned_away
            async with member(address, "b") as b:
                taken = await b.owns({tp(1): 0})
                assert taken == {tp(1): Position(77)}
                a.listener.before_commit = None


async def test_what_is_kept_keeps_its_owners_node(server: ZooKeeperServer, root: str) -> None:
    address = server.address + root
    async with opened(address) as outside:
        await topic(outside, "t", 2)
        async with member(address, "a") as a:
            await a.owns({tp(0): 0, tp(1): 0})
            await outside.set("/consumers/g/owners/t/1-0", b"g_a-0")  # its version tells old from new
            async with member(address, "b") as b:
                await b.owns({tp(1): 0})
                await a.owns({tp(0): 0})
                node = await outside.get("/consumers/g/owners/t/1-0")
                assert node is not None and node.version == 1


async def test_an_event_that_changes_nothing_interrupts_nobody(server: ZooKeeperServer, root: str) -> None:
    address = server.address + root
    async with opened(address) as outside:
        await topic(outside, "t", 1)
        async with member(address, "a") as a:
            await a.owns({tp(0): 0})
            await outside.set("/brokers/topics/t/1", b"1")
            await outside.set("/brokers/topics/t/1", b"2")
            await a.owns({tp(0): 0, tp(1): 0})
            assert a.listener.calls == ["assign 1-0:0", "assign 1-1:0"]


async def test_members_come_and_go_and_every_partition_ends_up_with_one_of_them(
    server: ZooKeeperServer, root: str
) -> None:
    address = server.address + root
    async with opened(address) as outside:
        await topic(outside, "t", 7)
        async with member(address, "b") as b:
            async with member(address, "a") as a, member(address, "c", {"t": 2}) as c:
                await a.owns({tp(0): 0, tp(1): 0})
                await b.owns({tp(2): 0, tp(3): 0})
                await c.owns({tp(4): 0, tp(5): 0, tp(6): 1})
            await b.owns(dict.fromkeys(map(tp, range(7)), 0))
            assert set((await owners(outside)).values()) == {"g_b-0"}


async def test_two_members_of_one_process_share_a_session_and_nothing_else(server: ZooKeeperServer, root: str) -> None:
    address = server.address + root
    async with opened(address) as outside, opened(address) as zk:
        await topic(outside, "t", 2)
        pair = [ZooKeeperMembership(zk, Subscription("g", {"t": 1}), RebalanceOptions(4, BACKOFF)) for _ in range(2)]
        listeners = [Recorder(membership) for membership in pair]
        order = sorted(range(2), key=lambda i: pair[i].consumer_id)
        async with anyio.create_task_group() as tasks:
            for membership, listener in zip(pair, listeners, strict=True):
                tasks.start_soon(membership.run, listener)
            await listeners[order[0]].owns({tp(0): 0})
            await listeners[order[1]].owns({tp(1): 0})
            tasks.cancel_scope.cancel()
        await pair[order[0]].leave()
        assert list(await owners(outside)) == ["1-1"]
        await pair[order[1]].leave()
        assert await owners(outside) == {}


async def test_a_member_that_could_not_register_leaves_the_node_of_its_namesake_alone(
    server: ZooKeeperServer, root: str
) -> None:
    """Two consumers of one cluster with the same `consumer_id` have the same session, and ids nodes that are alike."""
    address = server.address + root
    async with opened(address) as outside, opened(address) as zk:
        await topic(outside, "t", 1)
        subscription = Subscription("g", {"t": 1}, consumer_id="a")
        first, second = (ZooKeeperMembership(zk, subscription, RebalanceOptions(2, BACKOFF)) for _ in range(2))
        listener = Recorder(first)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first.run, listener)
            await listener.owns({tp(0): 0})
            async with anyio.create_task_group() as others:
                others.start_soon(second.run, Recorder(second))
                await until(lambda: "DEGRADED" in repr(second))
                others.cancel_scope.cancel()
            await second.leave()
            assert await outside.children("/consumers/g/ids") == ["g_a"]
            tasks.cancel_scope.cancel()
        await first.leave()
        assert not await outside.children("/consumers/g/ids")


async def test_a_member_whose_creation_was_not_answered_does_not_take_the_node_of_its_namesake_for_its_own(
    server: ZooKeeperServer, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(server.address + root) as zk:
        await topic(zk, "t", 1)
        registration = StaticRegistration({"t": 1})
        first, second = (MemberNodes(zk, "g", "a", registration, zk.session_id) for _ in range(2))
        assert await first.register()
        assert await first.claim({tp(0): "g_a-0"}) == {}
        for attempt in (second.register, lambda: second.claim({tp(0): "g_a-0"})):
            with monkeypatch.context() as patched, anyio.move_on_after(0.01):
                patched.setattr(zk, "create", lambda *_, **__: anyio.sleep_forever())
                await attempt()
        assert not await second.register()
        assert await second.claim({tp(0): "g_a-0"}) == {tp(0): "g_a-0"}
        await second.release_all()
        assert await zk.children("/consumers/g/ids") == ["a"]
        assert list(await owners(zk)) == ["1-0"]
        await first.release_all()
        assert await zk.children("/consumers/g/ids") == []
        assert await owners(zk) == {}
        assert await second.register()


async def test_a_node_left_by_an_earlier_process_with_the_same_id_is_waited_for(
    server: ZooKeeperServer, root: str
) -> None:
    address = server.address + root
    async with opened(address) as outside:
        await topic(outside, "t", 1)
        async with opened(address) as earlier:
            await earlier.create("/consumers/g/ids/g_a", b'{ "t": 1 }', ephemeral=True, parents=True)
            await earlier.create("/consumers/g/owners/t/1-0", b"g_a-0", ephemeral=True, parents=True)
            async with member(address, "a") as a:
                await until(lambda: "DEGRADED" in repr(a.membership))
                assert a.membership.problem == "/consumers/g/ids/g_a belongs to another session"
                assert await earlier.exists("/consumers/g/ids/g_a"), "untouched"
                await earlier.delete("/consumers/g/ids/g_a")
                await until(lambda: "belongs to g_a-0" in a.membership.problem)
                await earlier.aclose()  # the old session ends at last
                await a.owns({tp(0): 0})


async def test_a_later_conflict_leaves_what_could_be_kept_and_is_solved_when_the_owner_goes(
    server: ZooKeeperServer, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    address = server.address + root
    async with opened(address) as outside:
        await topic(outside, "t", 1)
        async with member(address, "a") as a:
            await a.owns({tp(0): 0})
            await outside.create("/consumers/g/owners/t/1-1", b"stranger-0")
            await outside.set("/brokers/topics/t/1", b"3")
            await until(lambda: "DEGRADED" in repr(a.membership))
            await a.owns({tp(0): 0})
            assert await owners(outside) == {"1-0": "g_a-0", "1-1": "stranger-0"}
            await outside.delete("/consumers/g/owners/t/1-1")
            await a.owns({tp(0): 0, tp(1): 0, tp(2): 0})
    lines = [r.getMessage() for r in caplog.records if r.name == "odradek.group" and r.levelname == "WARNING"]
    assert lines == ["g_a cannot get its partitions: t/1-1 belongs to stranger-0"]


async def test_a_member_whose_ids_node_was_deleted_registers_again(server: ZooKeeperServer, root: str) -> None:
    address = server.address + root
    async with opened(address) as outside:
        await topic(outside, "t", 1)
        async with member(address, "a") as a:
            await a.owns({tp(0): 0})
            await outside.delete("/consumers/g/ids/g_a")
            events = outside.events()
            await outside.exists("/consumers/g/ids/g_a", watch=True)
            async for event in events:
                if isinstance(event, NodeEvent):
                    break
            await until(lambda: "OWNING" in repr(a.membership))
            assert a.listener.calls == ["assign 1-0:0"]


async def test_an_unreadable_member_is_left_out_with_a_line_in_the_log(
    server: ZooKeeperServer, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It must not keep anyone from joining. If it claims partitions all the same, its owners nodes protect them."""
    address = server.address + root
    async with opened(address) as outside:
        await topic(outside, "t", 2)
        await outside.create("/consumers/g/ids/g_z", b"nonsense", parents=True)
        async with member(address, "a") as a:
            await a.owns({tp(0): 0, tp(1): 0})
            async with member(address, "b") as b:
                await b.owns({tp(1): 0})
                await a.owns({tp(0): 0})
    lines = {r.getMessage() for r in caplog.records if r.name == "odradek.group" and r.levelname == "WARNING"}
    assert (
        "group g: ignored a member: /consumers/g/ids/g_z: not topics and stream counts: 'nonsense'; "
        "delete the node if no consumer uses it"
    ) in lines


async def test_a_lost_connection_interrupts_nobody_while_the_session_lives(server: ZooKeeperServer, root: str) -> None:
    with FaultProxy(server.host, server.port) as proxy:
        async with opened(server.address + root) as outside:
            await topic(outside, "t", 2)
            async with member(proxy.address + root, "a") as a:
                await a.owns({tp(0): 0, tp(1): 0})
                proxy.refuse()
                proxy.cut()
                await until(lambda: "SUSPENDED" in repr(a.membership))
                assert a.listener.current is not None
                await topic(outside, "t", 1, broker=2)  # unheard
                proxy.accept()
                await a.owns({tp(0): 0, tp(1): 0, tp(0, broker=2): 0})
                assert a.listener.calls == ["assign 1-0:0 1-1:0", "assign 2-0:0"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_connection_may_break_anywhere_in_a_join(server: ZooKeeperServer, root: str) -> None:
    """Every create whose answer was lost is recognised as our own; nothing stays behind."""
    async with opened(server.address + root) as outside:
        await topic(outside, "t", 3)
        for passed in range(40, 1500, 181):
            with FaultProxy(server.host, server.port) as proxy:
                async with member(proxy.address + root, f"m{passed}") as a:
                    proxy.cut_after(server_bytes=passed)
                    proxy.cut()  # the next connection is the one that breaks
                    await a.owns(dict.fromkeys(map(tp, range(3)), 0))
            assert await owners(outside) == {}
            assert await outside.children("/consumers/g/ids") == []


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_cancellation_anywhere_leaves_what_leave_cleans_up(server: ZooKeeperServer, root: str) -> None:
    address = server.address + root
    async with opened(address) as outside, opened(address) as zk:
        await topic(outside, "t", 4)
        for n in range(12):
            subscription = Subscription("g", {"t": 1}, consumer_id=f"m{n}")
            membership = ZooKeeperMembership(zk, subscription, RebalanceOptions(4, BACKOFF))
            with anyio.move_on_after(n / 1000):
                await membership.run(Recorder(membership))
            await membership.leave()
            assert await owners(outside) == {}
            assert not await outside.children("/consumers/g/ids")


async def test_a_closed_session_ends_the_membership(server: ZooKeeperServer, root: str) -> None:
    address = server.address + root
    async with opened(address) as outside, opened(address) as zk:
        await topic(outside, "t", 1)
        membership = ZooKeeperMembership(zk, Subscription("g", {"t": 1}))
        listener = Recorder(membership)
        with pytest.raises(ExceptionGroup) as caught:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(membership.run, listener)
                await listener.owns({tp(0): 0})
                await zk.aclose()
        assert isinstance(caught.value.exceptions[0], Closed)
        await membership.leave()  # the nodes went with the session


async def test_chroot_and_digest(zookeeper: ZooKeeperServer, chroot: str) -> None:
    address = zookeeper.address + chroot
    auth = [("digest", "user:secret")]
    async with opened(address) as outside, ZooKeeper(address, auth=auth, connect_timeout=10) as zk:
        await topic(outside, "t", 1)
        membership = ZooKeeperMembership(zk, Subscription("g", {"t": 1}, consumer_id="a"))
        listener = Recorder(membership)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(membership.run, listener)
            await listener.owns({tp(0): 0})
            await membership.commit({tp(0): Position(5)})
            with pytest.raises(ConfigError, match="credentials"):
                await outside.set("/consumers/g/offsets/t/1-0", b"6")
            with pytest.raises(NodeExists):
                await zk.create("/consumers/g/offsets/t/1-0", b"7")
            tasks.cancel_scope.cancel()
        await membership.leave()


# ---- positions and subscriptions ----------------------------------------------------------------------------


async def test_a_partial_commit_stores_the_rest_and_names_what_failed(server: ZooKeeperServer, root: str) -> None:
    async with opened(server.address + root) as outside:
        await outside.create("/consumers/g/offsets/t/1-1/child", None, parents=True)
        await outside.delete("/consumers/g/offsets/t/1-1/child")
        store = ZooKeeperOffsets(outside, "g")
        bad = TopicPartition("\ud800", 0, 1)
        with pytest.raises(ZooKeeperError) as caught:
            await store.commit({tp(0): Position(1), bad: Position(2), tp(1): Position(3)})
        assert str(caught.value).startswith(f"group g: 1 of 3 positions not stored: {bad} (")
        assert await store.fetch([tp(0), tp(1)]) == {tp(0): 1, tp(1): 3}


async def test_a_commit_in_a_session_that_has_ended_says_what_is_not_stored(server: ZooKeeperServer, root: str) -> None:
    async with opened(server.address + root) as zk:
        store = ZooKeeperOffsets(zk, "g")
        with pytest.raises(
            SessionExpired, match=r"^group g: 2 of 2 positions not stored: the ZooKeeper session .* expired"
        ):
            await store.commit({tp(0): Position(1), tp(1): Position(2)}, session=zk.session_id + 1)
        assert await store.fetch([tp(0), tp(1)]) == {tp(0): None, tp(1): None}


async def test_a_malformed_position_is_an_error_that_names_the_node(server: ZooKeeperServer, root: str) -> None:
    async with opened(server.address + root) as zk:
        await zk.create("/consumers/g/offsets/t/1-0", b"many", parents=True)
        with pytest.raises(ZooKeeperError, match=r"^/consumers/g/offsets/t/1-0: not a number"):
            await ZooKeeperOffsets(zk, "g").fetch([tp(0)])


async def test_concurrent_commits_of_a_new_partition_both_end_well(server: ZooKeeperServer, root: str) -> None:
    async with opened(server.address + root) as zk:
        store = ZooKeeperOffsets(zk, "g")
        async with anyio.create_task_group() as tasks:
            for n in range(5):
                tasks.start_soon(store.commit, {tp(p): Position(n) for p in range(20)})
        stored = await store.fetch([tp(p) for p in range(20)])
        assert all(position in range(5) for position in stored.values())


def test_generated_ids_have_scalas_form() -> None:
    zk = ZooKeeper("127.0.0.1:1")
    first, second = (ZooKeeperMembership(zk, Subscription("g", {"t": 1})).consumer_id for _ in range(2))
    assert first != second
    host, ms, hex8 = first.removeprefix("g_").rsplit("-", 2)
    assert host and len(ms) == 13 and len(hex8) == 8 and int(hex8, 16) >= 0


@pytest.mark.parametrize(
    "subscription",
    [
        Subscription("g"),
        Subscription("g", {}),
        Subscription("g", {"t": 0}),
        Subscription("g", {"t": 1}, include="a"),
        Subscription("g", include="a", exclude="b"),
        Subscription("g", include="a", streams=0),
        Subscription("g", include="("),
        Subscription("", {"t": 1}),
        Subscription("a/b", {"t": 1}),
        Subscription("g", {"t": 1}, consumer_id="a/b"),
    ],
)
def test_subscriptions_that_make_no_sense_are_refused(subscription: Subscription) -> None:
    with pytest.raises(ConfigError):
        ZooKeeperMembership(ZooKeeper("127.0.0.1:1"), subscription)
