"""Ordered work for parallel handlers: items with the same key are processed one after the other, keys in parallel."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["KeyedQueues"]

T = TypeVar("T")


class KeyedQueues(Generic[T]):
    """One queue per key. A key is *ready* when items wait in its queue and none of it is being processed."""

    def __init__(self) -> None:
        self._queues: dict[Hashable, deque[T]] = {}
        self._ready: deque[Hashable] = deque()

    @property
    def ready(self) -> int:
        """The number of keys whose next item can be processed now."""
        return len(self._ready)

    def put(self, key: Hashable, item: T) -> None:
        """Add `item` to the end of the queue of its key."""
        queue = self._queues.get(key)
        if queue is None:  # nothing of it waits or is being processed
            self._queues[key] = deque((item,))
            self._ready.append(key)
        else:
            queue.append(item)

    def pop(self) -> tuple[Hashable, T] | None:
        """Return the first item of the key that has been ready longest, or None. Its key is busy until `finish`."""
        if not self._ready:
            return None
        key = self._ready.popleft()
        return key, self._queues[key].popleft()

    def finish(self, key: Hashable) -> None:
        """Make a busy key ready again: the processing of its item ended."""
        if self._queues[key]:
            self._ready.append(key)
        else:
            del self._queues[key]

    def drop(self, unwanted: Callable[[T], bool]) -> list[T]:
        """Remove the waiting items that are `unwanted`, and return them. Busy keys stay busy."""
        dropped: list[T] = []
        for queue in self._queues.values():
            items = list(queue)
            queue.clear()
            for item in items:
                (dropped if unwanted(item) else queue).append(item)
        for key in list(self._ready):
            if not self._queues[key]:
                del self._queues[key]
        self._ready = deque(key for key in self._ready if key in self._queues)
        return dropped
