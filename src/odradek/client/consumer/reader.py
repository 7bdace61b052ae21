"""The reader: read partitions between two positions, without a group.

    async with k.reader("orders", start=od.EARLIEST, until=od.LATEST) as r:
        async for record in r:
            ...
        token = r.bookmark()                # resume with start=token

A bookmark is its whole state, exact to the message even inside compressed messages. With `group` it stores positions
under the name of a group, when `commit` is called.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

import anyio

from odradek import arguments
from odradek.arguments import resolve, with_options
from odradek.batch import Batch
from odradek.client.consumer.base import PartitionReaderBase
from odradek.client.consumer.committed import CommitsOfNoMember, check_partitions, split_positions
from odradek.client.consumer.fetch_settings import fetch_settings
from odradek.client.consumer.fetcher import Fetcher
from odradek.client.consumer.positions import missing_partitions, refresh_topic_ids, resolve_positions
from odradek.client.consumer.streams import ArrowTables, Batches, Stream
from odradek.client.options import DRIVER, ReaderOptions, StartPositions, Tuning
from odradek.client.options import partition as partition_rule
from odradek.client.options import start_position as start_position_rule
from odradek.core.fetch.cursor import Cursor
from odradek.core.fetch.read_range import ExactPosition
from odradek.core.interfaces import ProtocolDriver, RoutingTable
from odradek.core.missing_partitions import BETWEEN_READS_S, why_missing
from odradek.core.states import CursorState
from odradek.errors import ConfigError, TopicRecreated, TransportError, UsageError
from odradek.io.log_access import BACKOFF
from odradek.io.retry import retry
from odradek.types import (
    EARLIEST,
    LATEST,
    AtTime,
    CommittedPosition,
    MiB,
    Position,
    PositionSpec,
    Record,
    StartPosition,
    TopicPartition,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from odradek.client.consumer.statistics import ReaderStatistics

__all__ = ["Reader"]

log = logging.getLogger("odradek.fetch")

Topics = str | Iterable[str] | Mapping[TopicPartition, StartPosition]

_TOPICS = "a topic name, several of them, or a mapping of partitions to positions"
_TOPIC, _PARTITION, _START_POSITION = arguments.text("a topic name"), partition_rule(), start_position_rule()
_INNER = arguments.count(0, unit="a number of messages")
_EXACT = arguments.mapping(_PARTITION, _START_POSITION, _TOPICS)


class Reader(PartitionReaderBase):
    """Reads partitions from a start, forever or until an end. Made by `Cluster.reader`; used as `async with`, once.

    Iterate it for records, `batches()` for batches, or `arrow()` for Arrow tables. An error of one partition (corrupt
    message, message too large) is raised after the good records before it; iterating further continues with the other
    partitions. After a lost connection reading resumes where it was: nothing is skipped and nothing is read twice.

    Cancelling a wait never loses records.

    Args:
        driver: The cluster.
        topics: Topic names (their partitions as far as published; more are added later unless `until` is given), or
            the exact partitions, each with its start.
    """

    @with_options(ReaderOptions)
    def __init__(self, driver: ProtocolDriver, topics: Topics, **options: Unpack[ReaderOptions]) -> None:
        chosen = resolve(ReaderOptions, options)
        DRIVER("driver", driver)
        self._names, self._exact = _chosen_topics(topics)
        self._start = _PositionByPartition("start", chosen["start"], EARLIEST)
        self._until = None if chosen["until"] is None else _PositionByPartition("until", chosen["until"], LATEST)
        self._entered_at: float | None = None
        self._drops = False
        settings = fetch_settings(
            chosen["tuning"] or Tuning(),
            read_ahead_bytes=chosen["read_ahead_bytes"],
            corrupt=chosen["corrupt"],
            max_message_bytes=chosen["max_message_bytes"],
            reset=chosen["reset"],
            isolation=chosen["isolation"],
            long_poll=driver.long_poll,
            keep_encoded=chosen["keep_encoded"],
        )
        group = chosen["group"]
        self._commits: CommitsOfNoMember | None = None
        if group is not None:
            self._commits = CommitsOfNoMember(
                driver.offsets(group), lambda topic: driver.metadata.table.topic_id(topic)
            )
        fetcher = Fetcher(driver, settings, topics=self._names, on_table=self._follow_table)
        self._stream: Stream[Batch] = Stream(fetcher, Batch, endless=self._until is None)
        super().__init__(driver, fetcher, [self._stream])

    async def __aenter__(self) -> Self:
        """Look topics up and resolve start and end of every partition.

        Raises:
            ConfigError: A topic does not have a partition that was named.
            TransportError: A broker needed for that does not respond.
            OdradekError: The positions of `group` could not be read.
            TopicRecreated: The bookmark `until` is of a topic that was deleted and made again.
            Unsupported: The cluster stores no positions (0.7 without ZooKeeper, 0.8.0).
            UsageError: This reader was entered before.
        """
        self._enter_once()
        for name in dict.fromkeys(self._names):
            await self._driver.metadata.table_for_topic(name, named=True)
        for error in (await missing_partitions(self._driver, self._exact)).values():
            raise error
        await refresh_topic_ids(self._driver)
        partitions = self._registered(self._driver.metadata.table)
        untils = {} if self._until is None else await self._resolve({p: self._until.of(p) for p in partitions})
        self._check_topics_of(untils)
        committed = {} if self._commits is None else await self._commits.positions(partitions)
        starts = await self._resolve({p: committed.get(p, self._start_of(p)) for p in partitions})
        self._entered_at = int(time.time() * 1000) / 1000  # whole milliseconds, as timestamps of records
        await self._fetcher.__aenter__()
        self._fetcher.add(_cursor(p, starts[p], untils.get(p)) for p in partitions)
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
        """Iterate by batch, each of one partition: cheaper than by record.

        Args:
            max_records: Most records of a batch; None: as many as came together, 1 MiB at a time of more than 4 MiB.
            max_wait: With `max_records`: how long a batch may wait to be filled after its first record (s).

        Raises:
            TypeError, ConfigError: An argument that cannot work.
        """
        return self._stream.batches(max_records=max_records, max_wait=max_wait)

    def arrow(self, *, max_bytes: int = 16 * MiB, max_wait: float = 0.0) -> ArrowTables[pa.Table]:
        """Iterate by Arrow table, each of any number of partitions, in order within each: see `odradek.arrow` for the
        fields. The cheapest way: no object is made for a record. Needs pyarrow (`odradek[arrow]`).

        A `bookmark()` is the position right after the table that was handed out last.

        Args:
            max_bytes: Maximum payload of a table (bytes); a single message that is larger makes a table of its own.
            max_wait: How long a table may wait to be filled after its first row (s); 0: return what is there.

        Raises:
            TypeError, ConfigError: An argument that cannot work, or pyarrow is not installed.
        """
        return ArrowTables(self._stream, lambda table, _: table, max_bytes=max_bytes, max_wait=max_wait)

    def bookmark(self) -> str:
        """Return where reading continues after everything handed out so far, as a short text for `start` or `until`.

        Exact: inside a compressed message it counts the messages already handed out. Works after the block as well.
        It has the ids of topics, where brokers have them: in a topic that was made again, its positions are out of
        range.
        """
        exact = sorted(self._exact_positions().items())
        at = [[p.topic, p.broker, p.partition, *_as_json(position)] for p, position in exact if position is not None]
        import json

        return json.dumps({"odradek": 1, "at": at}, separators=(",", ":"))

    def statistics(self) -> ReaderStatistics:
        """Return `ReaderStatistics`. It takes some microseconds for each partition; no request is sent."""
        from odradek.client.consumer.statistics import ReaderStatistics

        return ReaderStatistics(**self._counters())

    async def commit(
        self, positions: Mapping[TopicPartition, Position | int | tuple[Position | int, str]] | None = None
    ) -> dict[TopicPartition, Position]:
        """Store the positions after everything handed out so far under the name of `group`, and return those that were
        not stored already. Nothing else ever stores them. The record, batch or table that is being processed counts.

        It is not a member that commits: nothing keeps another process from reading and committing the same partitions.
        Brokers refuse it while the group has members.

        Args:
            positions: Store these instead: partition -> the position to continue at (`Record.next_position`,
                `Batch.next_position`), or that and a text to be stored with it.

        Raises:
            UsageError: This reader has no `group`.
            BrokerError: The group has members (UNKNOWN_MEMBER_ID), or refuses the positions.
            ZooKeeperError, DeadlineError, TransportError: Positions that were not stored, and why.
            Unsupported: A text where only positions are stored (Kafka 0.7 to 0.8.1).
            ConfigError, TypeError: `positions` is no such mapping, or names a partition that is not read.

        Cancellation: positions being stored may be stored or not.
        """
        commits = self._commits_of_group()
        if positions is None:
            return await commits.commit(self._positions_in_present_topics())
        chosen, metadata = split_positions(positions)
        return await commits.commit({self._fetcher.cursor(p).partition: at for p, at in chosen.items()}, metadata)

    async def committed(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedPosition | None]:
        """Return what `group` has committed, with the texts stored with it; None where nothing ever was.

        Args:
            partitions: Any partitions; None: those that are read.

        Raises:
            UsageError: This reader has no `group`.
            ZooKeeperError, BrokerError, DeadlineError, TransportError: They could not be read.

        Cancellation: safe.
        """
        chosen = check_partitions(self._fetcher.cursors if partitions is None else partitions)
        return await self._commits_of_group().committed(chosen)

    def _commits_of_group(self) -> CommitsOfNoMember:
        if self._commits is None:
            raise UsageError("this reader has no group to store positions for: make it with group=...")
        return self._commits

    def _positions_in_present_topics(self) -> dict[TopicPartition, Position]:
        """Return `positions` without those in topics that were deleted and made again meanwhile."""
        topic_id = self._driver.metadata.table.topic_id
        exact = {p: at for p, at in self._exact_positions().items() if at is not None}
        return {p: at.position for p, at in exact.items() if at.topic_id in (None, topic_id(p.topic))}

    def __repr__(self) -> str:
        states = [cursor.state for cursor in self._fetcher.cursors.values()]
        ended, failed = states.count(CursorState.ENDED), states.count(CursorState.FAILED)
        return f"<Reader {len(states)} partitions, {ended} ended, {failed} failed>"

    # ---- what is read, from where to where ----

    def _registered(self, table: RoutingTable) -> list[TopicPartition]:
        return [*self._exact, *(p for name in self._names for p in table.registered(name))]

    def _start_of(self, partition: TopicPartition) -> StartPosition | ExactPosition:
        if partition in self._exact and not self._start.names(partition):
            return self._exact[partition]
        return self._start.of(partition)

    async def _resolve(
        self, positions: Mapping[TopicPartition, StartPosition | ExactPosition]
    ) -> dict[TopicPartition, ExactPosition]:
        """Resolve start positions to exact ones, concurrently."""
        topic_id = self._driver.metadata.table.topic_id  # from before the requests
        wanted = {p: at for p, at in positions.items() if isinstance(at, PositionSpec | AtTime)}
        committed = self._fetcher.settings.decoder.read_committed
        resolved, errors = await resolve_positions(self._driver, wanted, read_committed=committed)
        for error in errors.values():
            raise error
        for partition in wanted.keys() - resolved.keys():
            raise TransportError(f"{partition}: no live broker serves it")
        exact = {p: _as_exact(resolved.get(p, at)) for p, at in positions.items()}  # type: ignore[arg-type]
        return {p: at._replace(topic_id=at.topic_id or topic_id(p.topic)) for p, at in exact.items()}

    def _check_topics_of(self, untils: Mapping[TopicPartition, ExactPosition]) -> None:
        """Raise TopicRecreated for an end that is a position in a former topic."""
        topic_id = self._driver.metadata.table.topic_id
        for partition, at in untils.items():
            if None not in (at.topic_id, now := topic_id(partition.topic)) and at.topic_id != now:
                raise TopicRecreated(str(partition), at.position)

    def _follow_table(self, table: RoutingTable) -> None:
        """Add partitions that were not there when the block was entered, and drop those that are gone."""
        if self._until is None:
            new = [p for p in self._registered(table) if p not in self._fetcher.cursors and not self._is_gone(p)]
            if self._commits is None or not new:
                self._fetcher.add(_cursor(p, self._start_of_new(p)) for p in new)
            else:
                self._fetcher.spawn(self._continue_new_partitions, self._commits, new)
        gone = [c for c in self._fetcher.cursors.values() if self._is_gone(c.partition) and not c.at_end]
        if gone and not self._drops:
            self._drops = True
            self._fetcher.spawn(self._drop_gone, gone)

    async def _continue_new_partitions(self, commits: CommitsOfNoMember, new: Sequence[TopicPartition]) -> None:
        """Add partitions for which the group may have committed something while they were absent."""
        committed = await retry(lambda: commits.positions(new), BACKOFF, passes=lambda error: error.retriable)
        left = [p for p in new if p not in self._fetcher.cursors]
        self._fetcher.add(_cursor(p, committed.get(p, self._start_of_new(p))) for p in left)

    def _is_gone(self, partition: TopicPartition) -> bool:
        """Return True for a partition that its topic does not have: it was made again with fewer."""
        existing = self._driver.metadata.table.partitions(partition.topic)
        return not self._driver.logs.names_brokers and bool(why_missing(partition, existing))

    async def _drop_gone(self, cursors: Sequence[Cursor]) -> None:
        """Drop partitions that are still gone when the metadata has been read twice."""
        try:
            gone = [cursor.partition for cursor in cursors]
            missing = await retry(lambda: missing_partitions(self._driver, gone), BACKOFF)
            for cursor in cursors:
                if (error := missing.get(cursor.partition)) is not None:
                    await self._drop(cursor, error)
        finally:
            self._drops = False

    async def _drop(self, cursor: Cursor, why: ConfigError) -> None:
        """Drop one partition when what was read of it is delivered, unless that is an error."""
        if self._until is not None or self._fetcher.settings.policy.reset is None:
            cursor.lose()
            self._fetcher.on_stopped(cursor)
            return
        while cursor.queue.rows:  # noqa: ASYNC110 - nothing tells that rows were taken
            await anyio.sleep(BETWEEN_READS_S)
        if self._is_gone(cursor.partition):
            log.warning("%s is not read any more, because the topic was made again: %s", cursor.partition, why)
            self._fetcher.remove([cursor.partition])

    def _start_of_new(self, partition: TopicPartition) -> StartPosition | ExactPosition:
        """Return where to begin with a new partition: a new one is read whole. One that was merely absent, to be read
        from LATEST, begins with a segment written before the block was entered, if there is one."""
        start = self._start_of(partition)
        return AtTime(self._entered_at) if start is LATEST and self._entered_at is not None else start


class _PositionByPartition:
    """One position for all partitions, a position for each, or a bookmark.

    Args:
        option: The name of the option, for errors.
        value: Its checked value.
        default: The position of partitions that a mapping or a bookmark does not name.
    """

    def __init__(self, option: str, value: StartPositions, default: StartPosition) -> None:
        self._named: Mapping[TopicPartition, StartPosition | ExactPosition] = {}
        self._default = default
        if isinstance(value, str):
            self._named = _parse_bookmark(option, value)
            self._overrides = True
        elif isinstance(value, Mapping):
            self._named = value
            self._overrides = False
        else:
            self._default = value
            self._overrides = False

    def names(self, partition: TopicPartition) -> bool:
        """Return True if a bookmark names it: that counts more than the start given with `topics`."""
        return self._overrides and partition in self._named

    def of(self, partition: TopicPartition) -> StartPosition | ExactPosition:
        """Return the position of a partition."""
        return self._named.get(partition, self._default)


def _as_exact(at: int | ExactPosition) -> ExactPosition:
    return at if isinstance(at, ExactPosition) else ExactPosition(Position(at))


def _as_json(at: ExactPosition) -> list[int | str]:
    """Return a position as a bookmark has it."""
    return [at.position, at.inner, *([] if at.topic_id is None else [at.topic_id.hex()])]


def _cursor(
    partition: TopicPartition, start: StartPosition | ExactPosition, until: ExactPosition | None = None
) -> Cursor:
    end, inner, end_topic_id = (None, 0, None) if until is None else until
    at, skip, topic_id = start if isinstance(start, ExactPosition) else (start, 0, None)
    return Cursor(
        partition, at, skip=skip, until=end, until_inner=inner, until_topic_id=end_topic_id, topic_id=topic_id
    )


def _chosen_topics(topics: object) -> tuple[tuple[str, ...], Mapping[TopicPartition, StartPosition]]:
    """Return topic names, or exact partitions with their starts. Raises TypeError or ConfigError for anything else."""
    if isinstance(topics, Mapping):
        return (), _EXACT("topics", topics)
    if isinstance(topics, str):
        return (_TOPIC("topics", topics),), {}
    if isinstance(topics, bytes) or not isinstance(topics, Iterable):
        raise TypeError(f"topics must be {_TOPICS}, not {type(topics).__name__} {arguments.shown(topics)}")
    return tuple(dict.fromkeys(_TOPIC("topics", name) for name in topics)), {}


def _parse_bookmark(option: str, text: str) -> dict[TopicPartition, ExactPosition]:
    import json

    try:
        token = json.loads(text)
        if token["odradek"] != 1:
            raise ValueError(f"version {token['odradek']}")
        return {
            _PARTITION(option, TopicPartition(topic, number, broker)): ExactPosition(
                _START_POSITION(option, position), _INNER(option, inner), *map(bytes.fromhex, topic_id)
            )
            for topic, broker, number, position, inner, *topic_id in token["at"]
        }
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConfigError(f"{option}={text[:80]!r} is not a bookmark: {error}") from error
