"""The user's functions that a consumer calls when its group gives it partitions, or takes them away."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, cast

import anyio

from odradek import arguments
from odradek.client.options import CALLBACK
from odradek.client.options import partition as partition_rule
from odradek.client.options import start_position as start_position_rule
from odradek.errors import ConfigError, DeadlineError, OdradekError
from odradek.io.cancellation import is_cancelled
from odradek.types import StartPosition, TopicPartition

__all__ = ["RebalanceCallbacks"]

Callback = Callable[[list[TopicPartition]], Awaitable[Any]] | None

_STARTS = arguments.mapping(partition_rule(), start_position_rule(), "a mapping of partitions to positions, or None")


class RebalanceCallbacks:
    """Calls them: one at a time, and each bounded in time.

    For each partition for which `on_assigned` has returned, one of the others is called once: `on_revoked`, or
    `on_lost`, if the group gave the partition away without asking.

    Args:
        group: Name of the group, for errors.
        on_assigned: See `ConsumerOptions`, as the next three.
        on_revoked: See there.
        on_lost: See there; None: `on_revoked`.
        within: How long a call may take (s).
        spawn: Runs a coroutine function in the background, until the consumer has left.
        failed: Called with the error of a call.
    """

    def __init__(
        self,
        group: str,
        *,
        on_assigned: Callback,
        on_revoked: Callback,
        on_lost: Callback,
        within: float,
        spawn: Callable[[Callable[[], Awaitable[None]]], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._group, self._within, self._spawn, self._failed = group, within, spawn, failed
        self._assigned, self._revoked = ("on_assigned", on_assigned), ("on_revoked", on_revoked)
        self._lost = self._revoked if on_lost is None else ("on_lost", on_lost)
        self._announced: set[TopicPartition] = set()  # `on_assigned` has returned for them, and no other was called yet
        self._lost_partitions: deque[list[TopicPartition]] = deque()  # `on_lost` is still to be called with them
        self._one_at_a_time = anyio.Lock()
        self._assigning: anyio.CancelScope | None = None
        self._closed = False

    @property
    def before_release(self) -> bool:
        """True if a function is called before partitions are released."""
        return self._revoked[1] is not None

    async def assigned(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, StartPosition] | None:
        """Call `on_assigned`, after calls of `on_lost` that are still to be made. Return where the user wants to begin;
        None: it has failed, or the consumer leaves. Cancellation: the call ends."""
        async with self._one_at_a_time:
            await self._call_lost()
            if self._closed:
                return None
            with anyio.CancelScope() as self._assigning:
                starts: Mapping[TopicPartition, StartPosition] | None
                starts = await self._call(self._assigned, partitions, self._checked_starts)
                if starts is not None:
                    self._announced.update(partitions)
                return starts
        return None  # ended by `close`

    async def revoked(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Call `on_revoked` with those of these partitions, or of all, that were passed to `on_assigned`. Cancellation:
        the call ends."""
        async with self._one_at_a_time:
            await self._call_lost()
            if known := self._forget(self._announced if partitions is None else partitions):
                await self._call(self._revoked, known)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Call `on_lost` with those of these partitions that were passed to `on_assigned`, in the background."""
        if known := self._forget(partitions):
            self._lost_partitions.append(known)
            self._spawn(self.drain)

    def close(self) -> None:
        """Cancel a call of `on_assigned`, and make no other one."""
        self._closed = True
        if self._assigning is not None:
            self._assigning.cancel()

    async def drain(self) -> None:
        """Wait for the call that is being made, and make those of `on_lost` that are still to be made."""
        async with self._one_at_a_time:
            await self._call_lost()

    async def _call_lost(self) -> None:
        while self._lost_partitions:
            await self._call(self._lost, self._lost_partitions.popleft())

    def _forget(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        known = sorted(self._announced.intersection(partitions))
        self._announced.difference_update(known)
        return known

    async def _call(
        self,
        callback: tuple[str, Callback],
        partitions: Collection[TopicPartition],
        check: Callable[[object, Collection[TopicPartition]], Any] = lambda result, partitions: None,
    ) -> Any:
        """Call one of the functions. Return its checked result; None if there is none, or if it has failed."""
        name, function = callback
        if function is None or not partitions:
            return check(None, partitions)
        try:
            with anyio.move_on_after(self._within) as limit:
                return check(await self._awaited(name, function, sorted(partitions)), partitions)
            assert limit.cancelled_caught
            raise DeadlineError(f"{name} of group {self._group}", self._within)
        except Exception as error:
            self._failed(error)
            return None

    async def _awaited(self, name: str, function: Callable[..., Any], partitions: list[TopicPartition]) -> object:
        awaitable = function(partitions)
        if not inspect.isawaitable(awaitable):
            raise TypeError(f"{name} must be {CALLBACK}: it returned {arguments.shown(awaitable)}")
        try:
            return await awaitable
        except anyio.get_cancelled_exc_class() as cancelled:
            if is_cancelled():
                raise
            raise OdradekError(f"{name} awaited something that was cancelled elsewhere") from cancelled

    def _checked_starts(
        self, starts: object, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, StartPosition]:
        checked = {} if starts is None else _STARTS("the result of on_assigned", starts)
        if others := sorted(checked.keys() - set(partitions)):
            raise ConfigError(f"the result of on_assigned names {others[0]}, which it was not called with")
        return cast(dict[TopicPartition, StartPosition], checked)
