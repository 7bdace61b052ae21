"""`Cluster`: makes producers, consumers and readers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Literal, Self

from odradek import engine
from odradek.client.consumer.consumer import Consumer
from odradek.client.consumer.fetcher import ask_positions
from odradek.client.consumer.reader import Reader, Topics
from odradek.client.options import Tuning
from odradek.client.producer.producer import Producer
from odradek.client.tasks import ShieldedTaskGroup
from odradek.core.interfaces import ProtocolDriver
from odradek.core.produce.partitioners import Partitioner
from odradek.errors import UsageError
from odradek.types import EARLIEST, AtTime, MiB, Position, PositionSpec, StartPosition, TopicPartition

__all__ = ["Cluster"]


class Cluster:
    """A cluster, made by `connect`. Entering its block connects; everything made from it is used inside.

    A cancellation of the block reaches the connections of the cluster last, so that producers can flush and consumers
    commit while they exit. Enter and leave the block in the same task, once, and use it in the thread and event loop
    in which it was entered: anything else raises UsageError where it is noticed.

    Args:
        driver: Speaks the protocol of the cluster, and holds the connections to its brokers.
        tuning: For everything made from it.
    """

    def __init__(self, driver: ProtocolDriver, tuning: Tuning) -> None:
        self.driver = driver
        """The protocol of the cluster, for tools (see `core.interfaces.ProtocolDriver`)."""
        self._tuning = tuning
        self._entered = False
        self._background = ShieldedTaskGroup(resource=driver)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.driver!r}, {engine.active.NAME} engine>"

    async def __aenter__(self) -> Self:
        """Connect. Cancellation: safe.

        Raises:
            Unreachable, ZooKeeperError, ConfigError: There is no such cluster.
            UsageError: This cluster was entered before, even if that failed: call `connect` again.
        """
        if self._entered:
            raise UsageError(f"{self!r} was entered before: call connect() again for another block")
        self._entered = True
        await self._background.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._background.stop()
        except Exception as closing:
            if error is None:
                raise
            error.add_note(f"closing the cluster failed as well: {closing}")

    # ---- listings ------------------------------------------------------------------------------------------

    async def topics(self) -> frozenset[str]:
        """Return every topic that has partitions. Raises Unsupported if the cluster cannot list them. Cancellation:
        safe."""
        return await self.driver.metadata.all_topics()

    async def partitions(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return the partitions of a topic that can be read, in canonical order; none if there is no such topic.
        Cancellation: safe."""
        table = await self.driver.metadata.topic(topic)
        return tuple(table.published(topic))

    async def positions(self, topic: str, at: PositionSpec | AtTime) -> dict[TopicPartition, Position]:
        """Return where `at` is in each partition of a topic. Cancellation: safe.

        Args:
            topic: The topic.
            at: EARLIEST, LATEST, or a time: the newest position known not to be after it (in 0.7 the start of a
                segment), or the earliest one if there is none.

        Raises:
            TransportError, DeadlineError: One of its brokers did not answer.
        """
        found, errors = await ask_positions(self.driver, dict.fromkeys(await self.partitions(topic), at))
        for error in errors.values():
            raise error
        return found

    # ---- producers, consumers, readers ----------------------------------------------------------------------

    def producer(
        self,
        *,
        latency: float = 0.01,
        buffer_bytes: int = 64 * MiB,
        deliver_within: float = 30,
        exit_within: float = 10,
        compression: str = "none",
        compression_by_topic: Mapping[str, str] | None = None,
        partitioner: Partitioner | None = None,
        confirm: bool = True,
        reorder: bool = False,
        max_message_bytes: int = 1_000_000,
    ) -> Producer:
        """A producer, to be used as `async with`.

        Args:
            latency: How long a record may wait for company (s). With nothing under way it is sent at once if somebody
                waits for its outcome (`send`, `send_many`), or if nothing was sent to its broker for as long.
            buffer_bytes: Room for records without an outcome (bytes): their size on the wire and what Python adds.
            deliver_within: A record without an outcome after this long fails (s). Waiting for room has the same bound
                of its own.
            exit_within: How long the end of the block may flush (s).
            compression: `none`, `gzip` or `snappy` (which 0.7.0 does not know), for all topics.
            compression_by_topic: Topic -> compression, for those that differ.
            partitioner: Which partition a record goes to; by default `KeyHash` (crc32 of the key), and records
                without a key fill one randomly chosen partition's batch after the other.
            confirm: Have the broker confirm every request. False: a record counts as written once it is handed to the
                network, as with 0.7's own producers, and a broker that refuses or dies loses it silently.
            reorder: Records sent again after a failure may be overtaken by newer ones of their partition.
            max_message_bytes: The brokers' max.message.size (bytes): they drop larger messages without a word. With a
                codec it applies to what is compressed together, which is split until it fits.

        Raises:
            ConfigError: An option that cannot work.
        """
        return Producer(
            self.driver,
            latency=latency,
            buffer_bytes=buffer_bytes,
            deliver_within=deliver_within,
            exit_within=exit_within,
            compression=compression,
            compression_by_topic=compression_by_topic,
            partitioner=partitioner,
            confirm=confirm,
            reorder=reorder,
            max_message_bytes=max_message_bytes,
            tuning=self._tuning,
        )

    def consumer(
        self,
        topics: str | Iterable[str] | Mapping[str, int] | None = None,
        *,
        group: str,
        include: str | None = None,
        exclude: str | None = None,
        start: PositionSpec = EARLIEST,
        reset: PositionSpec | Literal["start", "fail"] = "start",
        streams: int = 1,
        read_ahead_bytes: int = 64 * MiB,
        commit_every: float | None = 1.0,
        revoke_within: float = 3.0,
        join_within: float = 60.0,
        exit_within: float = 10.0,
        consumer_id: str | None = None,
        corrupt: str = "fail",
        max_message_bytes: int = 4 * MiB,
        dead_letter_producer: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
    ) -> Consumer:
        """A member of a consumer group, to be used as `async with`: see `Consumer` for everything.

        Args:
            dead_letter_producer: Makes the producer for `each(dead_letter=...)`; by default this cluster's `producer`.

        Raises:
            ConfigError: An option that cannot work.
            Unsupported: Without ZooKeeper there are no groups.
        """
        return Consumer(
            self.driver,
            topics,
            group=group,
            include=include,
            exclude=exclude,
            start=start,
            reset=reset,
            streams=streams,
            read_ahead_bytes=read_ahead_bytes,
            commit_every=commit_every,
            revoke_within=revoke_within,
            join_within=join_within,
            exit_within=exit_within,
            consumer_id=consumer_id,
            corrupt=corrupt,
            max_message_bytes=max_message_bytes,
            dead_letter_producer=dead_letter_producer or self.producer,
            tuning=self._tuning,
        )

    def reader(
        self,
        topics: Topics,
        *,
        start: StartPosition | Mapping[TopicPartition, StartPosition] | str = EARLIEST,
        until: StartPosition | Mapping[TopicPartition, StartPosition] | None = None,
        read_ahead_bytes: int = 64 * MiB,
        corrupt: str = "fail",
        max_message_bytes: int = 4 * MiB,
        reset: PositionSpec | Literal["fail"] = "fail",
    ) -> Reader:
        """A reader of partitions from a start, on and on or until an end, to be used as `async with`: see `Reader`
        for everything.

        Raises:
            ConfigError: An option that cannot work.
        """
        return Reader(
            self.driver,
            topics,
            start=start,
            until=until,
            read_ahead_bytes=read_ahead_bytes,
            corrupt=corrupt,
            max_message_bytes=max_message_bytes,
            reset=reset,
            tuning=self._tuning,
        )
