"""All partitions of one reader or consumer: the read-ahead they share, and the queues from which streams take.

Pure: the user's task takes what responses have left in the queues; `now` is an argument, and so is the callback that
wakes the user's task. A partition with something to deliver is in the queue of its stream once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from odradek.core.fetch.cursor import Cursor
from odradek.core.fetch.read_ahead import ReadAheadBudget, ReadAheadLimits
from odradek.errors import ConfigError
from odradek.types import Columns, StartPosition, TopicPartition

__all__ = ["PartitionSet"]


class PartitionSet:
    """The partitions that are read now.

    Args:
        limits: Bounds in bytes.
        available: Called when there is something to take, or nothing will ever come.
    """

    def __init__(self, limits: ReadAheadLimits, available: Callable[[], None]) -> None:
        self.budget = ReadAheadBudget(limits)
        self.cursors: dict[TopicPartition, Cursor] = {}
        self.delivered = 0
        """Records taken so far, without those that were put back."""
        self._available = available
        self._ready: dict[int, deque[Cursor]] = {}

    def cursor(self, partition: TopicPartition) -> Cursor:
        """Return its cursor. Raises ConfigError for a partition that is not assigned."""
        try:
            return self.cursors[partition]
        except KeyError:
            raise ConfigError(f"{partition} is not currently assigned to this reader") from None

    def insert(self, cursor: Cursor) -> None:
        """Begin to read a partition. Its former cursor is dropped."""
        # The former cursor may be in the queue of its stream, and have a fetch in flight. Neither is looked for: `pop`
        # skips it, and `complete` gives back what its fetch has reserved.
        if (former := self.cursors.get(cursor.partition)) is not None:
            self._drop(former)
        self.cursors[cursor.partition] = cursor
        cursor.assign(self.budget, self._ready.setdefault(cursor.stream, deque()))
        self._update(cursor)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop those of these partitions that are read, with everything read ahead; the others are not affected."""
        for partition in partitions:
            if (cursor := self.cursors.pop(partition, None)) is not None:
                quota = cursor.share.quota
                self._drop(cursor)
                if quota is not None:
                    quota.freed()
        self._available()

    def remove_all(self) -> None:
        """Drop every partition with everything read ahead."""
        for cursor in self.cursors.values():
            self._drop(cursor)
        self.cursors.clear()
        self._ready.clear()
        self._available()

    def _drop(self, cursor: Cursor) -> None:
        cursor.unassign()
        self._update(cursor)

    # ---- what changes ----

    def _update(self, cursor: Cursor) -> None:
        if cursor.update():
            self._available()

    def _unblock(self, cursor: Cursor) -> None:
        """Update a cursor from which something was taken, perhaps everything, or that was resumed."""
        if cursor.update():
            self._available()
        if cursor.blocked and (quota := cursor.share.quota) is not None:
            quota.scheduler.unblock(cursor)

    def pause(self, reason: str, partitions: Iterable[TopicPartition]) -> None:
        """Neither fetch nor deliver them until this reason is gone. Raises ConfigError as `cursor` does."""
        for cursor in [self.cursor(partition) for partition in partitions]:
            cursor.pause(reason)

    def resume(self, reason: str, partitions: Iterable[TopicPartition]) -> None:
        """Continue with those that were paused for no other reason. Raises ConfigError as `cursor` does."""
        for cursor in [self.cursor(partition) for partition in partitions]:
            cursor.resume(reason)
            self._unblock(cursor)
            if cursor.share.is_queued:
                self._available()

    def seek(self, partition: TopicPartition, start: StartPosition, skip: int = 0) -> None:
        """Forget what was read ahead and continue from `start`, after `skip` messages of the wrapper that starts there.
        Raises ConfigError as `cursor` does."""
        cursor = self.cursor(partition)
        cursor.seek(start, skip)
        self._unblock(cursor)

    def put_back(self, partition: TopicPartition, columns: Columns, rows: int) -> None:
        """Take the last `rows` rows of a batch back, to be delivered next."""
        self.delivered -= rows
        if rows and partition in self.cursors:
            self.cursors[partition].queue.put_back(columns, rows)
            self._update(self.cursors[partition])
            self._available()

    # ---- delivery ----

    @property
    def finished(self) -> bool:
        """Every partition is read to its end, and delivered."""
        return not self.budget.partitions

    def take(
        self, stream: int | None, max_records: int | None, max_wait: float, now: float
    ) -> tuple[TopicPartition, Columns] | float:
        """Take the next rows of one partition, round robin; or return how long at most to wait for more (s).

        Raises the error of a partition whose good records are all delivered, once; the others continue afterwards, and
        so does this one if brokers have refused the request, as soon as they allow it.
        """
        wait = math.inf
        not_ready: list[Cursor] = []
        try:
            for cursor in self._queued(stream):
                if cursor.batch_ready(max_records, max_wait, now):
                    try:
                        return cursor.partition, cursor.take(max_records, now)
                    finally:
                        self._unblock(cursor)
                # It is queued again after the loop, which would otherwise pop it again and never end.
                not_ready.append(cursor)
                wait = min(wait, cursor.queue.first_row_at + max_wait - now)
            return wait
        finally:
            for cursor in not_ready:
                self._update(cursor)

    def take_some(self, stream: int | None, max_bytes: int, now: float) -> list[tuple[TopicPartition, Columns]]:
        """Take rows of several partitions, round robin: payloads of at most `max_bytes` together, but at least one row.
        Empty when there is nothing now.

        Raises the error of a partition whose good records are all delivered, once, when nothing comes before it.
        """
        left = max_bytes
        taken: list[tuple[TopicPartition, Columns]] = []
        for cursor in self._queued(stream):
            if taken and not cursor.queue.next_fits(left):
                self._update(cursor)
                break
            try:
                taken.append((cursor.partition, cursor.take_bytes(left, now)))
            finally:
                self._unblock(cursor)
            left -= taken[-1][1].payload_bytes
        return taken

    def _queued(self, stream: int | None) -> Iterator[Cursor]:
        """Pop cursors with something to deliver, round robin over streams and over the partitions of each."""
        for number in list(self._ready) if stream is None else [stream]:
            if (queue := self._ready.pop(number, None)) is None:
                queue = deque()
            self._ready[number] = queue
            while queue:
                cursor = queue.popleft()
                if cursor.pop():
                    yield cursor
                elif (quota := cursor.share.quota) is not None:
                    # It was paused or sought after it was queued. If it was the last deliverable one, no delivery will
                    # make space now, and what waits has to go on without (`can_decompress`, `try_unblock`).
                    quota.freed()

    def seconds_until_filled(
        self, stream: int | None, max_bytes: int, max_wait: float, now: float, *, endless: bool
    ) -> float:
        """Return how long to wait until about `max_bytes` can be taken, at most `max_wait` after the first row; 0 if
        they are there, or no more will come for now. `endless`: partitions may be added."""
        cursors = [c for c in self.cursors.values() if stream in (None, c.stream)]
        ready = [c for c in cursors if c.deliverable]
        if sum([c.held_bytes for c in ready]) >= max_bytes or any(c.out_of_quota for c in ready):
            return 0.0
        if all(c.at_end for c in cursors) and (cursors or not endless):
            return 0.0
        return max(0.0, min((c.queue.first_row_at for c in ready), default=math.inf) + max_wait - now)
