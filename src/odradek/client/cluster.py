"""The front door: `connect` reads a cluster's address, `Cluster` makes producers, consumers and readers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Literal, Self, Unpack
from urllib.parse import unquote

from odradek import arguments, engine
from odradek.client.consumer.consumer import Consumer
from odradek.client.consumer.fetcher import ask_positions
from odradek.client.consumer.reader import Reader, Topics
from odradek.client.options import ProducerOptions, Tuning
from odradek.client.producer.producer import Producer
from odradek.client.tasks import ShieldedTaskGroup
from odradek.core.interfaces import ProtocolDriver
from odradek.errors import ConfigError, Unsupported
from odradek.io.connection import ConnectionOptions
from odradek.io.kafka07.broker_client import BrokerClientOptions
from odradek.io.kafka07.driver import Kafka07Driver, Kafka07Options
from odradek.types import EARLIEST, AtTime, MiB, Position, PositionSpec, StartPosition, TopicPartition

__all__ = ["Cluster", "connect"]

BROKER_PORT = 9092
"""As in the sample configuration of 0.7; the broker's own default is 6667 (specification 8)."""

ZOOKEEPER_PORT = 2181

_HOST = re.compile(r"(?:(?P<id>\d{1,9})@)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:@/?#\[\]]+)(?::(?P<port>\d{1,5}))?")


def connect(url: str, *, tuning: Tuning | None = None) -> Cluster:
    """A cluster, to be used as `async with`; nothing is opened before.

    Args:
        url: `kafka07+zk://[user:password@]zk1[:2181],zk2[:2181][/chroot]`: a 0.7 cluster over its ZooKeeper; user and
            password (percent-encoded where needed) are ZooKeeper's digest credentials.
            `kafka07://[id@]b1[:9092],[id@]b2[:9092]`: a 0.7 cluster without ZooKeeper, by all of its brokers; groups
            and topic lists do not exist then. Without ids, a broker's is its place in the list, from 0.
        tuning: For experts.

    Raises:
        ConfigError: The URL is malformed; says where.
        Unsupported: A `kafka://` cluster, which this version does not speak to.
    """
    scheme, mark, rest = url.partition("://")
    tuning = tuning or Tuning()
    if not mark:
        raise ConfigError("a cluster's URL begins with kafka07+zk:// or kafka07://")
    if scheme == "kafka07+zk":
        return Cluster(_over_zookeeper(rest, tuning), tuning)
    if scheme == "kafka07":
        return Cluster(_over_brokers(rest, tuning), tuning)
    if scheme == "kafka":
        raise Unsupported("kafka://", "the protocols of Kafka 0.8 and later; 0.7 is kafka07+zk:// or kafka07://")
    raise ConfigError(f"scheme {scheme!r} of a cluster's URL: must be kafka07+zk or kafka07")


def _over_zookeeper(rest: str, tuning: Tuning) -> Kafka07Driver:
    place, slash, chroot = rest.partition("/")
    credentials, at, hosts = place.rpartition("@")
    if slash and not re.fullmatch(r"[^/?#\s]+(/[^/?#\s]+)*/?|", chroot):
        raise ConfigError(f"chroot /{chroot}: must be /name or /name/name")
    user, colon, password = credentials.partition(":")
    if at and not (user and colon):
        raise ConfigError("credentials in a URL are user:password@")  # not shown: they are secret
    path = f"/{chroot.rstrip('/')}" if chroot.rstrip("/") else ""
    return Kafka07Driver(
        zookeeper=",".join(_hosts(hosts, "ZooKeeper server", ZOOKEEPER_PORT)) + path,
        auth=[("digest", f"{unquote(user)}:{unquote(password)}")] if at else [],
        options=_options(tuning),
    )


def _over_brokers(rest: str, tuning: Tuning) -> Kafka07Driver:
    place, _, path = rest.partition("/")
    if path:
        raise ConfigError(f"/{path} after a list of brokers: only kafka07+zk:// has a chroot")
    return Kafka07Driver(brokers=_hosts(place, "broker", BROKER_PORT), options=_options(tuning))


def _hosts(text: str, what: str, port: int) -> list[str]:
    """`host:port` or `id@host:port` each, ports filled in."""
    hosts = []
    for item in text.split(","):
        match = _HOST.fullmatch(item.strip())
        if match is None or (match["port"] is not None and not 0 < int(match["port"]) < 65536):
            raise ConfigError(f"{what} {item.strip()!r} of a cluster's URL: must be host or host:port")
        number = f"{match['id']}@" if match["id"] is not None else ""
        hosts.append(f"{number}{match['host']}:{match['port'] or port}")
    return hosts


def _options(tuning: Tuning) -> Kafka07Options:
    return Kafka07Options(
        session_timeout_s=tuning.session_timeout,
        zookeeper_timeout_s=tuning.session_timeout,  # as zk.connectiontimeout.ms of 0.7 (specification 5.3)
        connection=ConnectionOptions(tuning.connect_timeout, tuning.backoff),
        api=BrokerClientOptions(request_timeout_s=tuning.request_timeout),
    )


class Cluster:
    """A cluster, made by `connect`. Entering its block connects; everything made from it is used inside.

    A cancellation of the block reaches the cluster's own connections last, so that producers can flush and consumers
    commit on their way out.

    Args:
        era: The protocol of the cluster, and the way to its brokers.
        tuning: Passed on to all that is made.
    """

    def __init__(self, driver: ProtocolDriver, tuning: Tuning) -> None:
        self.driver = driver
        """For tools: see `core.interfaces.ProtocolDriver`."""
        self._tuning = tuning
        self._background = ShieldedTaskGroup(resource=driver)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.driver!r}, {engine.active.NAME} codec>"

    async def __aenter__(self) -> Self:
        """Connect. Raises Unreachable, ZooKeeperError or ConfigError. Cancellation: safe."""
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

    # ---- what there is -------------------------------------------------------------------------------------

    async def topics(self) -> frozenset[str]:
        """Every topic that a live broker publishes. Raises Unsupported without ZooKeeper. Cancellation: safe."""
        return await self.driver.metadata.all_topics()

    async def partitions(self, topic: str) -> tuple[TopicPartition, ...]:
        """The partitions of a topic that live brokers publish, in canonical order; none if there is no such topic.
        Cancellation: safe."""
        table = await self.driver.metadata.topic(topic)
        return tuple(table.published(topic))

    async def positions(self, topic: str, at: PositionSpec | AtTime) -> dict[TopicPartition, Position]:
        """Where `at` is in each partition of a topic: EARLIEST, LATEST, or the newest place known to be not after a
        moment (in 0.7 a segment boundary; the earliest place when there is none). Cancellation: safe.

        Raises:
            TransportError, DeadlineError: One of its brokers did not answer.
        """
        found, errors = await ask_positions(self.driver, dict.fromkeys(await self.partitions(topic), at))
        for error in errors.values():
            raise error
        return found

    # ---- what to do with it --------------------------------------------------------------------------------

    @arguments.with_options(ProducerOptions)
    def producer(self, **options: Unpack[ProducerOptions]) -> Producer:
        """Return a producer, to be used as `async with`.

        Raises:
            ConfigError: An option that cannot work.
            TypeError: An option of the wrong type, or an unknown one.
        """
        options.setdefault("tuning", self._tuning)
        return Producer(self.driver, **options)

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
