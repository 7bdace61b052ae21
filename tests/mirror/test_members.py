"""Processes that share a mirror as members of a group, here as tasks of one process, on clusters in memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import odradek.mirror.members as members_module
from odradek.errors import Fenced, OdradekError
from odradek.mirror.config import MirrorConfig
from odradek.mirror.members import MemberTasks
from odradek.mirror.run import Begun, begin
from odradek.mirror.task import CopiedRecords, MirrorTask, TaskSettings
from odradek.testing import MemoryCluster

from .mirrors import config_of, opened, same
from .test_copy import filled, rows, run_mirror, until

pytestmark = pytest.mark.anyio

GROUP = "odradek-mirror-m"
TASKS = 4


class Shared:
    """A mirror, and the members that copy it."""

    def __init__(self, partitions: int = 6, **run: Any) -> None:
        self.source, self.target = filled({"t": partitions}, 12), MemoryCluster()
        run = {"tasks": TASKS, "transaction_bytes": 100, "refresh_seconds": 60, **run}
        self.config: MirrorConfig = config_of(topics={"pattern": "[tu]"}, run=run)
        self.finished: set[int] = set()
        self.records: Counter[str] = Counter()
        self.errors: list[OdradekError] = []
        self.begun: Begun

    async def begin(self, *, follow: bool = True, joins: bool = False) -> None:
        async with opened(self.source, self.target) as clusters:
            self.begun = await begin(self.config, clusters, follow=follow, joins=joins)

    async def member(self, name: str = "") -> None:
        def committed(copied: Any) -> None:
            self.records[name] += sum(each.records for each in copied if isinstance(each, CopiedRecords))

        async with opened(self.source, self.target) as clusters:
            begun = self.begun
            settings = TaskSettings(
                self.config, clusters, begun.exactly_once, begun.source, ends=begun.ends, committed=committed
            )
            try:
                await MemberTasks(settings, self.finished.add).run(begun.copied, follow=begun.ends is None)
            except OdradekError as error:
                self.errors.append(error)

    def owned(self) -> list[int]:
        """Return how many tasks each member has."""
        return sorted(len(partitions) for partitions in self.target.members(GROUP).values())

    def append(self, seed: int) -> None:
        for number in range(6):
            self.source.append("t", rows(7, 1000 * seed), partition=number)

    def same(self) -> bool:
        return same(self.source, self.target, "t")


async def test_members_share_the_tasks_until_all_are_at_their_ends() -> None:
    shared = Shared()
    await shared.begin(follow=False)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(shared.member, str(number))
            await until(lambda: shared.finished == set(range(TASKS)) and shared.owned() == [1, 1, 2])
            group.cancel_scope.cancel()
    assert shared.same() and shared.errors == []
    assert shared.records.total() == 72
    assert shared.target.members(GROUP) == {}, "they have left"


async def test_a_member_that_leaves_hands_its_tasks_on() -> None:
    shared = Shared()
    await shared.begin()
    async with anyio.create_task_group() as group:
        async with anyio.create_task_group() as first:
            first.start_soon(shared.member, "first")
            await until(lambda: shared.owned() == [TASKS] and shared.records["first"])
            group.start_soon(shared.member, "second")
            await until(lambda: shared.owned() == [2, 2])
            first.cancel_scope.cancel()
        assert shared.owned() in ([2], [TASKS])
        shared.append(2)
        await until(lambda: shared.owned() == [TASKS] and shared.same())
        group.cancel_scope.cancel()
    assert shared.errors == []


async def test_a_session_that_expires() -> None:
    shared = Shared()
    await shared.begin()
    async with anyio.create_task_group() as group:
        for number in range(2):
            group.start_soon(shared.member, str(number))
        await until(lambda: shared.owned() == [2, 2])
        for number in range(3):
            shared.append(2 + number)
            shared.target.expire(GROUP, sorted(shared.target.members(GROUP))[0])
            await until(lambda: shared.owned() == [2, 2] and shared.same())
        group.cancel_scope.cancel()
    assert shared.errors == []


@pytest.mark.parametrize("seed", range(2))
async def test_members_that_come_and_go(seed: int) -> None:
    random, shared = Random(seed), Shared()
    await shared.begin()

    async def passing(name: str) -> None:
        requests = len(shared.target.requests("produce"))
        async with anyio.create_task_group() as group:
            group.start_soon(shared.member, name)
            await shared.target.wait_for_requests("produce", requests + random.randrange(1, 4))
            for _ in range(random.randrange(80)):
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(shared.member, "stays")
            for number in range(4):
                shared.append(2 + number)
                await passing(str(number))
                if random.randrange(2):
                    shared.target.expire(GROUP)
            await until(lambda: shared.owned() == [TASKS] and shared.same())
            group.cancel_scope.cancel()
    assert shared.errors == []


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("seed", range(2))
async def test_members_that_are_cancelled_natively(seed: int, anyio_backend: str) -> None:
    random, shared = Random(seed), Shared()
    await shared.begin()
    for number in range(5):
        shared.append(2 + number)
        requests = len(shared.target.requests("produce"))
        tasks = [asyncio.get_running_loop().create_task(shared.member(str(each))) for each in range(2)]
        with anyio.fail_after(60):
            await shared.target.wait_for_requests("produce", requests + random.randrange(1, 4))
        for _ in range(random.randrange(80)):
            await anyio.lowlevel.checkpoint()
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(outcome, asyncio.CancelledError)
        await until(lambda: shared.target.members(GROUP) == {})
    await run_mirror(shared.source, shared.target, shared.config)
    assert shared.same() and shared.errors == []


async def test_a_task_is_given_up_when_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    running: Counter[int] = Counter()
    most: Counter[int] = Counter()
    ending, may_end = anyio.Event(), anyio.Event()

    async def run(task: MirrorTask) -> None:
        number = task._number
        running[number] += 1
        most[number] = max(most[number], running[number])
        try:
            await anyio.sleep_forever()
        finally:
            ending.set()
            with anyio.CancelScope(shield=True):
                await may_end.wait()
            running[number] -= 1

    monkeypatch.setattr(MirrorTask, "run", run)
    shared = Shared()
    await shared.begin()
    async with anyio.create_task_group() as group:
        group.start_soon(shared.member)
        await until(lambda: running.total() == TASKS)
        group.start_soon(shared.member)
        await ending.wait()
        await until(lambda: len(shared.target.members(GROUP)) == 2)
        assert shared.owned() == [0, TASKS], "the first one still ends what it has to give up"
        may_end.set()
        await until(lambda: shared.owned() == [2, 2] and running.total() == TASKS)
        group.cancel_scope.cancel()
    assert set(most.values()) == {1}


async def test_a_run_without_the_group_ends_the_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members_module, "NOTICED_S", 0.01)
    shared = Shared()
    await shared.begin()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(shared.member)
            await until(lambda: shared.owned() == [TASKS] and shared.same())
            await run_mirror(shared.source, shared.target, shared.config)
            shared.append(2)
            await until(lambda: shared.errors)
    assert isinstance(shared.errors[0], Fenced)
    assert "another process began to run this mirror" in str(shared.errors[0])
    assert shared.target.members(GROUP) == {}


async def test_processes_that_join_fence_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members_module, "NOTICED_S", 0.01)
    shared = Shared()
    await shared.begin(joins=True)
    async with anyio.create_task_group() as group:
        group.start_soon(shared.member, "here")
        await until(lambda: shared.owned() == [TASKS] and shared.same())
        shared.append(2)
        await shared.begin(joins=True)
        shared.append(3)
        await until(shared.same)
        assert shared.errors == []
        await shared.begin(joins=False)
        shared.append(4)
        await until(lambda: shared.errors)
        group.cancel_scope.cancel()
    assert isinstance(shared.errors[0], Fenced)


async def test_processes_that_begin_at_the_same_time() -> None:
    shared = Shared()
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(partial(shared.begin, joins=True))
    assert len(shared.begun.copied) == 1


async def test_new_topics_and_partitions() -> None:
    shared = Shared(1, tasks=2, refresh_seconds=0.1)
    await shared.begin()
    async with anyio.create_task_group() as group:
        for name in "abc":
            group.start_soon(shared.member, name)
        await until(lambda: shared.owned() == [0, 1, 1] and shared.same())
        shared.source.add_partitions("t", 6)
        shared.source.create_topic("u", 3)
        shared.append(2)
        for number in range(3):
            shared.source.append("u", rows(9), partition=number)
        await until(lambda: shared.same() and same(shared.source, shared.target, "u"))
        group.cancel_scope.cancel()
    assert shared.errors == []


@pytest.mark.parametrize("operation", ["produce", "commit_transaction"])
async def test_another_process_decides_where_new_partitions_go(
    operation: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "odradek.mirror.members")
    shared = Shared(1, refresh_seconds=0.1)
    await shared.begin()
    async with anyio.create_task_group() as group:
        group.start_soon(shared.member)
        await until(lambda: shared.owned() == [TASKS] and shared.same())
        shared.target.hold(operation)
        shared.source.create_topic("u")
        await shared.target.wait_for_held(operation)  # of what decides
        async with shared.target.connect() as k, k.producer(transactional_id="odradek-mirror-m"):
            shared.target.release(operation)
        await until(lambda: "another process decides where new partitions go" in caplog.text)
        shared.source.append("u", rows(9))
        await until(lambda: same(shared.source, shared.target, "u"))
        group.cancel_scope.cancel()
    assert shared.errors == []


async def test_a_group_that_does_not_take_members_ends_the_run() -> None:
    shared = Shared()
    await shared.begin()
    shared.target.fail("join", OdradekError("no"))
    with anyio.fail_after(60):
        await shared.member()
    assert [str(each) for each in shared.errors] == ["no"]


async def test_a_member_that_cannot_say_that_it_leaves() -> None:
    shared = Shared()
    await shared.begin()
    async with anyio.create_task_group() as group:
        group.start_soon(shared.member)
        await until(lambda: shared.owned() == [TASKS] and shared.same())
        shared.target.fail("leave", OdradekError("no"))
        group.cancel_scope.cancel()
    assert shared.errors == []
