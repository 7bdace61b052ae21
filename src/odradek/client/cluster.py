"""`Cluster`: makes producers, consumers and readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from odradek import arguments, engine
from odradek.client.consumer.positions import resolve_positions
from odradek.client.options import (
    DRIVER,
    TUNING,
    ConsumerOptions,
    ProducerOptions,
    ReaderOptions,
    ShareConsumerOptions,
    Tuning,
    start_position,
)
from odradek.client.tasks import ShieldedTaskGroup
from odradek.core.interfaces import ClusterStatistics, ProtocolDriver
from odradek.errors import ConfigError, UsageError
from odradek.types import AtTime, Position, PositionSpec, TopicPartition

if TYPE_CHECKING:  # imported when they are first made
    from odradek.client.admin import Admin
    from odradek.client.consumer.consumer import Consumer
    from odradek.client.consumer.decoded import DecodedConsumer, DecodedReader
    from odradek.client.consumer.reader import Reader, Topics
    from odradek.client.consumer.share import ShareConsumer
    from odradek.client.producer.producer import Producer
    from odradek.client.producer.serializing import SerializingProducer
    from odradek.core.interfaces import RawResponse
    from odradek.serde import Deserializer, Serializer

__all__ = ["Cluster"]

K = TypeVar("K")
V = TypeVar("V")

_API, _VERSION = arguments.text("the name of an API"), arguments.optional(arguments.count(0, 0x7FFF))
_FIELDS = arguments.mapping(arguments.text("the name of a field"), lambda name, value: value, "a mapping of fields")
_TARGETS: dict[str, arguments.Rule] = {
    "broker": arguments.optional(arguments.count(0)),
    "controller": arguments.flag(),
    "group": arguments.optional(arguments.text("a group name", at_least=0)),
    "transactional_id": arguments.optional(arguments.text("a transactional id")),
}
_TOPIC, _MOMENT = arguments.text("a topic name"), start_position(positions=False)


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
        self.driver: ProtocolDriver = DRIVER("driver", driver)
        """The protocol of the cluster, for tools (see `core.interfaces.ProtocolDriver`)."""
        self._tuning = TUNING.rule("tuning", tuning)
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

    def statistics(self) -> ClusterStatistics:
        """Return `ClusterStatistics`. It takes some microseconds for each connection; no request is sent."""
        return self.driver.statistics()

    # ---- listings ------------------------------------------------------------------------------------------

    async def topics(self) -> frozenset[str]:
        """Return every topic that has partitions. Raises Unsupported if the cluster cannot list them. Cancellation:
        safe."""
        return await self.driver.metadata.all_topics()

    async def partitions(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return the partitions of a topic that can be read, in canonical order; none if there is no such topic.
        Cancellation: safe.

        Raises:
            ConfigError, TypeError: No topic can have this name.
            OdradekError: It could not be looked up.
        """
        table = await self.driver.metadata.table_for_topic(_TOPIC("topic", topic))
        return tuple(table.registered(topic))

    async def positions(self, topic: str, at: PositionSpec | AtTime) -> dict[TopicPartition, Position]:
        """Return where `at` is in each partition of a topic. Cancellation: safe.

        Args:
            topic: The topic.
            at: EARLIEST, LATEST, or a time: the first record of that time or later, or the end if there is none. Before
                0.10.1 brokers know only the times of their files, and it is the start of the newest segment that is
                certainly not after it, or the earliest position.

        Raises:
            TransportError, DeadlineError: One of its brokers did not answer.
            ConfigError, TypeError: An argument that cannot work.
        """
        at = _MOMENT("at", at)
        positions, errors = await resolve_positions(self.driver, dict.fromkeys(await self.partitions(topic), at))
        for error in errors.values():
            raise error
        return positions

    async def request(
        self,
        api: str,
        fields: Mapping[str, Any] | None = None,
        *,
        broker: int | None = None,
        controller: bool = False,
        group: str | None = None,
        transactional_id: str | None = None,
        version: int | None = None,
    ) -> RawResponse:
        """Send one request of Kafka's protocol, and return the response as it is: for what has no method here.

        Names of APIs and fields are those of the protocol, fields in snake_case, and differ from version to version as
        Kafka's do: this method stays, what it takes and returns may change with a release of Kafka. Requests go one
        after the other over a connection of their own to each broker. Kafka 0.8 and later.

        Args:
            api: Name of the API, such as `DescribeCluster`.
            fields: Fields of the request; those that are left out have the protocol's defaults. A struct is a mapping,
                an array a sequence.
            broker: Id of the broker that it goes to. Without any of these four it goes to any broker: to another one as
                long as it could not be sent.
            controller: To the controller.
            group: To the coordinator of this group.
            transactional_id: To the coordinator of this transactional id.
            version: The version of the request; None: the latest that both sides have, and that names topics by name.

        Raises:
            ConfigError, TypeError: There is no such API or field, or a value is of another type.
            LocalProtocolError: A number does not fit, or the version does not have a field that is set.
            Unsupported: The broker does not have the API, or this version of it; or the cluster is of 0.7.
            BrokerError: There is no such broker, controller or coordinator now.
            TransportError, DeadlineError, RemoteProtocolError: No answer; `sent` says whether it may have been applied.

        Cancellation: the request may have been applied.
        """
        from odradek.core.interfaces import RawRequest

        _check_target(broker=broker, controller=controller, group=group, transactional_id=transactional_id)
        request = RawRequest(
            _API("api", api),
            _FIELDS("fields", {} if fields is None else fields),
            _VERSION("version", version),
            broker,
            controller,
            group,
            transactional_id,
        )
        return await self.driver.request(request)

    @property
    def admin(self) -> Admin:
        """Administration of topics, configurations, groups and their positions."""
        from odradek.client.admin import Admin

        return Admin(self.driver)

    # ---- producers, consumers, readers ----------------------------------------------------------------------

    @overload
    def producer(self, **options: Unpack[ProducerOptions]) -> Producer: ...

    @overload
    def producer(
        self, *, value_serializer: Serializer[V], **options: Unpack[ProducerOptions]
    ) -> SerializingProducer[bytes, V]: ...

    @overload
    def producer(
        self, *, key_serializer: Serializer[K], value_serializer: Serializer[V], **options: Unpack[ProducerOptions]
    ) -> SerializingProducer[K, V]: ...

    @arguments.with_options(ProducerOptions)
    def producer(
        self,
        *,
        key_serializer: Serializer[Any] | None = None,
        value_serializer: Serializer[Any] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> Producer | SerializingProducer[Any, Any]:
        """Return a producer, to be used as `async with`; with a serializer, a `SerializingProducer`.

        Args:
            key_serializer: Makes bytes of keys; None: they are bytes.
            value_serializer: Makes bytes of values; None: they are bytes.

        Raises:
            ConfigError: An option that cannot work.
            TypeError: An option of the wrong type, or an unknown one.
        """
        from odradek.client.producer.producer import Producer

        serializers = _key_and_value("serializer", key_serializer, value_serializer)
        options.setdefault("tuning", self._tuning)
        raw = Producer(self.driver, **options)
        if serializers is None:
            return raw
        from odradek.client.producer.serializing import SerializingProducer

        return SerializingProducer(raw, *serializers)

    @overload
    def consumer(
        self, topics: str | Iterable[str] | Mapping[str, int] | None = None, **options: Unpack[ConsumerOptions]
    ) -> Consumer: ...

    @overload
    def consumer(
        self,
        topics: str | Iterable[str] | Mapping[str, int] | None = None,
        *,
        value_deserializer: Deserializer[V],
        **options: Unpack[ConsumerOptions],
    ) -> DecodedConsumer[bytes, V]: ...

    @overload
    def consumer(
        self,
        topics: str | Iterable[str] | Mapping[str, int] | None = None,
        *,
        key_deserializer: Deserializer[K],
        value_deserializer: Deserializer[V],
        **options: Unpack[ConsumerOptions],
    ) -> DecodedConsumer[K, V]: ...

    @arguments.with_options(ConsumerOptions)
    def consumer(
        self,
        topics: str | Iterable[str] | Mapping[str, int] | None = None,
        *,
        key_deserializer: Deserializer[Any] | None = None,
        value_deserializer: Deserializer[Any] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer | DecodedConsumer[Any, Any]:
        """Return a member of a consumer group, to be used as `async with`: a `Consumer`; with a deserializer, a
        `DecodedConsumer`.

        Args:
            topics: Topic names, or topic -> number of streams.
            key_deserializer: Makes keys of their bytes; None: they stay bytes.
            value_deserializer: Makes values of their bytes; None: they stay bytes.

        Raises:
            ConfigError: An option that cannot work.
            TypeError: An option of the wrong type, or an unknown one.
            Unsupported: The cluster has no groups: 0.7 without ZooKeeper, and brokers of 0.8.
        """
        from odradek.client.consumer.consumer import Consumer

        deserializers = _key_and_value("deserializer", key_deserializer, value_deserializer)
        options.setdefault("tuning", self._tuning)
        if options.get("dead_letter_producer") is None:
            options["dead_letter_producer"] = self._dead_letter_producer
        raw = Consumer(self.driver, topics, **options)
        if deserializers is None:
            return raw
        from odradek.client.consumer.decoded import DecodedConsumer

        return DecodedConsumer(raw, *deserializers)

    def _dead_letter_producer(self) -> Producer:
        """Return a producer of records that were read: how large they may be is said by their new topic alone, but in
        0.7, where brokers refuse nothing."""
        if self.driver.logs.values_only:
            return self.producer()
        return self.producer(max_message_bytes=(1 << 31) - 1)

    @arguments.with_options(ShareConsumerOptions)
    def share_consumer(self, topics: str | Iterable[str], **options: Unpack[ShareConsumerOptions]) -> ShareConsumer:
        """Return a member of a share group, to be used as `async with`; see `ShareConsumer` (KIP-932, Kafka 4.2; the
        preview of 4.1 works where the cluster has share.version 1).

        Args:
            topics: Topic names.

        Raises:
            ConfigError: An option that cannot work.
            TypeError: An option of the wrong type, or an unknown one.
            Unsupported: The cluster has no share groups.
        """
        from odradek.client.consumer.share import ShareConsumer

        options.setdefault("tuning", self._tuning)
        return ShareConsumer(self.driver, topics, **options)

    @overload
    def reader(self, topics: Topics, **options: Unpack[ReaderOptions]) -> Reader: ...

    @overload
    def reader(
        self, topics: Topics, *, value_deserializer: Deserializer[V], **options: Unpack[ReaderOptions]
    ) -> DecodedReader[bytes, V]: ...

    @overload
    def reader(
        self,
        topics: Topics,
        *,
        key_deserializer: Deserializer[K],
        value_deserializer: Deserializer[V],
        **options: Unpack[ReaderOptions],
    ) -> DecodedReader[K, V]: ...

    @arguments.with_options(ReaderOptions)
    def reader(
        self,
        topics: Topics,
        *,
        key_deserializer: Deserializer[Any] | None = None,
        value_deserializer: Deserializer[Any] | None = None,
        **options: Unpack[ReaderOptions],
    ) -> Reader | DecodedReader[Any, Any]:
        """Return a reader of partitions, to be used as `async with`: a `Reader`; with a deserializer, a
        `DecodedReader`.

        Args:
            topics: Topic names, or exact partitions, each with its start.
            key_deserializer: Makes keys of their bytes; None: they stay bytes.
            value_deserializer: Makes values of their bytes; None: they stay bytes.

        Raises:
            ConfigError: An option that cannot work.
            TypeError: An option of the wrong type, or an unknown one.
        """
        from odradek.client.consumer.reader import Reader

        deserializers = _key_and_value("deserializer", key_deserializer, value_deserializer)
        options.setdefault("tuning", self._tuning)
        raw = Reader(self.driver, topics, **options)
        if deserializers is None:
            return raw
        from odradek.client.consumer.decoded import DecodedReader

        return DecodedReader(raw, *deserializers)


def _check_target(**targets: Any) -> None:
    """Check where a raw request goes. Raises ConfigError, TypeError."""
    arguments.check_all(_TARGETS, **targets)
    chosen = [name for name, value in targets.items() if value is not None and value is not False]
    if len(chosen) > 1:
        raise ConfigError(f"{' and '.join(chosen)}: a request goes to one of them")


def _key_and_value(what: Literal["serializer", "deserializer"], keys: object, values: object) -> tuple[Any, Any] | None:
    """Return the serializers or deserializers of keys and values, that of bytes for one that is None; None if both are.
    Raises TypeError."""
    if keys is values is None:
        return None
    from odradek.serde import BYTES, DESERIALIZER, SERIALIZER

    rule = SERIALIZER if what == "serializer" else DESERIALIZER
    return rule(f"key_{what}", keys) or BYTES, rule(f"value_{what}", values) or BYTES
