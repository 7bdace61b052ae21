"""The reader: partitions between two points, without a group.

    async with k.reader("orders", start=od.EARLIEST, until=od.LATEST) as r:
        async for record in r:
            ...
        token = r.bookmark()                # resume with start=token

It commits nothing anywhere; a bookmark is the whole state, exact to the message also inside compressed wrappers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from odradek.batch import Batch
from odradek.client.consumer.base import PartitionReaderBase
from odradek.client.consumer.cursor import Cursor, ExactPosition
from odradek.client.consumer.fetcher import Fetcher, ask_positions, fetch_settings
from odradek.client.consumer.streams import Batches, Stream
from odradek.client.consumer.tables import ArrowTables
from odradek.client.options import Tuning
from odradek.core.interfaces import ProtocolDriver, RoutingTable
from odradek.core.states import CursorState
from odradek.errors import ConfigError, TransportError
from odradek.types import EARLIEST, LATEST, AtTime, MiB, Position, PositionSpec, Record, StartPosition, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Reader"]

Topics = str | Iterable[str] | Mapping[TopicPartition, StartPosition]


class Reader(PartitionReaderBase):
    """Reads partitions from a start, on and on or until an end. Made by `Cluster.reader`; used as `async with`.

    Iterate it for records, `batches()` for batches, or `arrow()` for Arrow tables. An error of one partition (corrupt
    message, message too large) is raised after the good records before it; iterating on goes on with the other
    partitions. A connection that is lost is made again, and reading resumes where it was: nothing is left out and
    nothing comes twice.

    Cancelling a wait moves nothing.

    Args:
        era: The cluster.
        topics: Topic names (their partitions as far as published; more are picked up later unless `until` is given),
            or the exact partitions, each with its start.
        start: Where to begin: a place for all partitions, one for each, or a `bookmark()`. A partition that a mapping
            or a bookmark does not name begins at EARLIEST.
        until: Where to end: None (never) or a place for all or for each partition (unnamed ones: LATEST). LATEST
            is what it is when the block is entered. The last record is the last that starts before it; of a compressed
            wrapper that starts before it, all.
        read_ahead_bytes: Bytes of memory for what is read before it is asked for. One fetch in flight and the batch in
            hand come on top.
        corrupt: `fail` raises CorruptMessage; `skip` leaves the message out and keeps it in `reports`; `raw` hands
            the undecoded entry over, named in `Batch.corrupt`.
        max_message_bytes: A message larger than this raises MessageTooLarge (bytes).
        reset: Where to go on when the log no longer has a position; `fail` raises BrokerError OffsetOutOfRange.
        tuning: For experts.
    """

    def __init__(
        self,
        driver: ProtocolDriver,
        topics: Topics,
        *,
        start: StartPosition | Mapping[TopicPartition, StartPosition] | str = EARLIEST,
        until: StartPosition | Mapping[TopicPartition, StartPosition] | None = None,
        read_ahead_bytes: int = 64 * MiB,
        corrupt: str = "fail",
        max_message_bytes: int = 4 * MiB,
        reset: PositionSpec | Literal["fail"] = "fail",
        tuning: Tuning | None = None,
    ) -> None:
        self._names: tuple[str, ...] = ()
        self._exact: Mapping[TopicPartition, StartPosition] = {}
        if isinstance(topics, Mapping):
            self._exact = dict(topics)
        else:
            self._names = (topics,) if isinstance(topics, str) else tuple(topics)
        self._bookmark = _parse_bookmark(start) if isinstance(start, str) else {}
        self._start: StartPosition | Mapping[TopicPartition, StartPosition] = (
            EARLIEST if isinstance(start, str) else start
        )
        self._until = until
        self._entered_at: float | None = None
        settings = fetch_settings(
            tuning or Tuning(),
            read_ahead_bytes=read_ahead_bytes,
            corrupt=corrupt,
            max_message_bytes=max_message_bytes,
            reset=reset,
        )
        fetcher = Fetcher(driver, settings, on_table=self._more)
        self._stream: Stream[Batch] = Stream(fetcher, Batch, endless=until is None)
        super().__init__(driver, fetcher, [self._stream])

    async def __aenter__(self) -> Self:
        """Look topics up and fix start and end of every partition. Raises TransportError when a broker needed for
        that does not answer."""
        for name in self._names:
            await self._driver.metadata.topic(name)
        partitions = self._published(self._driver.metadata.table)
        untils = await self._resolve({p: self._until_of(p) for p in partitions})
        places = {p: self._start_of(p) for p in partitions}
        starts = await self._resolve({p: start for p, (start, _) in places.items()})
        self._entered_at = time.time()
        await self._fetcher.__aenter__()
        self._fetcher.add(
            Cursor(p, starts.get(p, start), skip=skip, until=untils.get(p)) for p, (start, skip) in places.items()
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._fetcher.__aexit__(kind, error, trace)

    def __aiter__(self) -> Stream[Batch]:
        """Records, one by one."""
        return self._stream

    async def __anext__(self) -> Record:
        return await self._stream.__anext__()

    def batches(self, *, max_records: int | None = None, max_wait: float = 0.0) -> Batches[Batch]:
        """Iterate by batch, each of one partition: the cheap way.

        Args:
            max_records: Most records of a batch; None: as many as came together.
            max_wait: With `max_records`: how long a batch may wait to be filled after its first record (s).
        """
        return self._stream.batches(max_records=max_records, max_wait=max_wait)

    def arrow(self, *, max_bytes: int = 16 * MiB, max_wait: float = 0.0) -> ArrowTables[pa.Table]:
        """Iterate by Arrow table, each of any number of partitions, in order within each: `odradek.arrow` says what is
        in it. The cheapest way of all: no object is made for a record. Needs pyarrow (`odradek[arrow]`).

        A `bookmark()` lies right behind the table that was handed out last.

        Args:
            max_bytes: Most payload of a table (bytes); a single message that is larger makes a table of its own.
            max_wait: How long a table may wait to be filled after its first row (s); 0: what is there makes a table.

        Raises:
            ConfigError: There is no pyarrow, or `max_bytes` is no room.
        """
        return ArrowTables(self._stream, lambda table, _: table, max_bytes=max_bytes, max_wait=max_wait)

    def bookmark(self) -> str:
        """Where reading goes on after everything handed out so far, as a short text for `start=`.

        Exact: inside a compressed wrapper it counts the messages already handed out. Works after the block as well.
        """
        at = [
            [p.topic, p.broker, p.partition, *place] for p, place in sorted(self._places().items()) if place is not None
        ]
        return json.dumps({"odradek": 1, "at": at}, separators=(",", ":"))

    def __repr__(self) -> str:
        states = [cursor.state for cursor in self._fetcher.cursors.values()]
        ended = states.count(CursorState.ENDED)
        return f"<Reader {len(states)} partitions, {ended} at their end, {states.count(CursorState.BROKEN)} broken>"

    # ---- what is read, from where to where ----

    def _published(self, table: RoutingTable) -> list[TopicPartition]:
        return [*self._exact, *(p for name in self._names for p in table.published(name))]

    def _start_of(self, partition: TopicPartition) -> tuple[StartPosition, int]:
        """Start and what to skip there."""
        if (place := self._bookmark.get(partition)) is not None:
            return place
        if partition in self._exact:
            return self._exact[partition], 0
        if isinstance(self._start, Mapping):
            return self._start.get(partition, EARLIEST), 0
        return self._start, 0

    def _until_of(self, partition: TopicPartition) -> StartPosition | None:
        return self._until.get(partition, LATEST) if isinstance(self._until, Mapping) else self._until

    async def _resolve(self, places: Mapping[TopicPartition, StartPosition | None]) -> dict[TopicPartition, Position]:
        """Places by meaning -> positions, all asked for at once."""
        found = {p: Position(at) for p, at in places.items() if isinstance(at, int)}
        wanted = {p: at for p, at in places.items() if isinstance(at, PositionSpec | AtTime)}
        answers, errors = await ask_positions(self._driver, wanted)
        for error in errors.values():
            raise error
        for partition in wanted.keys() - answers.keys():
            raise TransportError(f"{partition}: no live broker serves it")
        return found | answers

    def _more(self, table: RoutingTable) -> None:
        """Pick up partitions that were not there when the block was entered."""
        if self._until is None:
            self._fetcher.add(self._late(p) for p in self._published(table) if p not in self._fetcher.cursors)

    def _late(self, partition: TopicPartition) -> Cursor:
        """A new partition is read whole. One that was merely away, to be read from LATEST, begins with a segment
        written before we came, if there is one."""
        start, skip = self._start_of(partition)
        if start is LATEST and self._entered_at is not None:
            start = AtTime(self._entered_at)
        return Cursor(partition, start, skip=skip)


def _parse_bookmark(text: str) -> dict[TopicPartition, ExactPosition]:
    try:
        token = json.loads(text)
        if token["odradek"] != 1:
            raise ValueError(f"version {token['odradek']}")
        return {
            TopicPartition(str(topic), int(number), int(broker)): ExactPosition(Position(int(position)), int(inner))
            for topic, broker, number, position, inner in token["at"]
        }
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"start={text[:80]!r} is not a bookmark: {error}") from error
