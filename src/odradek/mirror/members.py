"""The tasks of a process that shares a mirror with others: those whose partitions of the mirror's topic its group gives
it. Nothing of that topic is consumed."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

import anyio

from odradek.core.interfaces import Assignment, Subscription
from odradek.errors import Fenced, OdradekError
from odradek.mirror.planning import ClusterTopics
from odradek.mirror.run import Tasks
from odradek.mirror.stored import CopiedTopic, StoredState
from odradek.mirror.task import MirrorTask, TaskSettings
from odradek.types import TopicPartition

__all__ = ["MemberTasks"]

log = logging.getLogger(__name__)

REVOKE_S = 15.0
"""Time that a task may take to abort its transaction before another process begins it (s)."""

NOTICED_S = 60.0
"""Time in which a member hears that its group has given a task to another one: more than a session (s)."""


class MemberTasks(Tasks):
    """The tasks of one member of the mirror's group. Implements `core.interfaces.RebalanceListener`.

    A task that is taken away is cancelled, and given up when its transaction is aborted. One that the group has given
    away without asking is fenced by the process that has it now, as any task by its successor.

    Args:
        settings: What all tasks share.
        finished: Called with the number of each task that is at its ends.
    """

    def __init__(self, settings: TaskSettings, finished: Callable[[int], object] = lambda _: None) -> None:
        super().__init__(settings)
        self._finished = finished
        self._owned: dict[int, anyio.CancelScope] = {}
        self._locks: defaultdict[int, anyio.Lock] = defaultdict(anyio.Lock)  # of tasks that run, or end

    def _begin(self, copied: Sequence[CopiedTopic], *, follow: bool) -> None:
        super()._begin(copied, follow=follow)
        self._start(self._join)

    def _owns(self, number: int) -> bool:
        return number in self._owned

    async def _copy(self, number: int, task: MirrorTask) -> None:
        if self._tasks.get(number) is not task:
            return  # it was taken away before it began
        scope = self._owned[number]
        async with self._locks[number]:
            with scope:
                await self._copy_owned(number, task, scope)

    async def _copy_owned(self, number: int, task: MirrorTask, scope: anyio.CancelScope) -> None:
        try:
            await task.run()
            self._finished(number)
        except OdradekError as error:
            if isinstance(error, Fenced):
                await anyio.sleep(NOTICED_S)  # which is cancelled if the task is another member's now
            if not scope.cancel_called:
                raise
            log.info("mirror %s: task %d was given up: %s", self._config.name, number, error)

    # ---- the group -----------------------------------------------------------------------------------------------

    async def _join(self) -> None:
        """Be a member of the group until cancelled."""
        config, driver = self._config, self._settings.clusters.target.driver
        membership = driver.membership(Subscription(config.group, {config.topic: 1}, revoke_within=REVOKE_S))
        try:
            await membership.run(self)
        finally:
            with anyio.move_on_after(REVOKE_S, shield=True):
                await self.revoke([TopicPartition(config.topic, number) for number in self._owned])
                try:
                    await membership.leave()
                except OdradekError as error:
                    log.warning("mirror %s: leaving group %s: %s", config.name, config.group, error)

    async def assign(self, assignment: Assignment) -> None:
        """Copy these tasks, too."""
        self._owned |= {partition.partition: anyio.CancelScope() for partition in assignment.partitions}
        self._add(())

    async def revoke(self, partitions: Collection[TopicPartition]) -> None:
        """Cancel tasks, and wait until their transactions are aborted."""
        self.lost(partitions)
        for partition in partitions:
            async with self._locks[partition.partition]:
                pass

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Cancel tasks, which other members may have begun."""
        for partition in partitions:
            self._tasks.pop(partition.partition, None)
            if (scope := self._owned.pop(partition.partition, None)) is not None:
                scope.cancel()

    # ---- new partitions ------------------------------------------------------------------------------------------

    async def _decide(self, state: StoredState, taken: ClusterTopics) -> Sequence[CopiedTopic]:
        """The owner of the first task decides; the others read later what it has decided."""
        if not self._owns(0):
            return [state.topics[name] for name in taken.source if name in state.topics]
        try:
            return await super()._decide(state, taken)
        except Fenced as error:
            log.info("mirror %s: another process decides where new partitions go: %s", self._config.name, error)
            return ()
