"""Ordered work for parallel handlers: items of one lane are worked on one after the other, lanes side by side."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["KeyedQueues"]

T = TypeVar("T")


class KeyedQueues(Generic[T]):
    """Queues by lane. A lane is *ready* when it has work and nobody works in it."""

    def __init__(self) -> None:
        self._queues: dict[Hashable, deque[T]] = {}
        self._ready: deque[Hashable] = deque()

    @property
    def ready(self) -> int:
        """Lanes somebody could start working in now."""
        return len(self._ready)

    def put(self, lane: Hashable, item: T) -> None:
        """Queue `item` behind everything in its lane."""
        queue = self._queues.get(lane)
        if queue is None:  # neither waiting nor being worked in
            self._queues[lane] = deque((item,))
            self._ready.append(lane)
        else:
            queue.append(item)

    def take(self) -> tuple[Hashable, T] | None:
        """The first item of the lane that has been ready longest, or None. Its lane is busy until `finish`."""
        if not self._ready:
            return None
        lane = self._ready.popleft()
        return lane, self._queues[lane].popleft()

    def finish(self, lane: Hashable) -> None:
        """The work in `lane` ended."""
        if self._queues[lane]:
            self._ready.append(lane)
        else:
            del self._queues[lane]

    def drop(self) -> list[T]:
        """Give up everything that waits. Lanes being worked in stay busy."""
        waiting = [item for queue in self._queues.values() for item in queue]
        for lane in self._ready:
            del self._queues[lane]
        self._ready.clear()
        for queue in self._queues.values():
            queue.clear()
        return waiting
