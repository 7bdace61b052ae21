"""A producer of keys and values that are not bytes."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar

from odradek.client.producer.producer import Producer
from odradek.client.producer.results import Ack, Failures, Purged
from odradek.client.producer.transaction import Transaction
from odradek.core.interfaces import ProducerRecord
from odradek.serde import SerdeContext, Serializer, serialize
from odradek.types import TopicPartition

__all__ = ["SerializingProducer"]

K = TypeVar("K")
V = TypeVar("V")

Headers = Sequence[tuple[str, bytes | None]]


class SerializingProducer(Generic[K, V]):
    """A producer whose keys and values go through serializers. Made by `Cluster.producer` with `value_serializer`; used
    as `async with`, like the `Producer` that it sends with.

    Args:
        raw: That producer, which has the rest: `raw.try_put`, `raw.send_many`, `raw.statistics`.
        keys, values: The serializers.
    """

    def __init__(self, raw: Producer, keys: Serializer[K], values: Serializer[V]) -> None:
        self.raw, self._keys, self._values = raw, keys, values

    async def __aenter__(self) -> Self:
        """Start, as `Producer` does."""
        await self.raw.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.raw.__aexit__(kind, error, trace)

    async def send(
        self,
        topic: str,
        value: V | None,
        *,
        key: K | None = None,
        partition: TopicPartition | int | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> Ack:
        """Serialize a record and write it, as `Producer.send` does.

        Raises:
            SerializationError: Nothing was sent.
            OdradekError: What `Producer.send` raises.
        """
        record = await self.record(topic, value, key=key, headers=headers, timestamp=timestamp)
        value_bytes, key_bytes, all_headers, _ = record
        return await self.raw.send(
            topic, value_bytes, key=key_bytes, partition=partition, headers=all_headers, timestamp=timestamp
        )

    async def put(
        self,
        topic: str,
        value: V | None,
        *,
        key: K | None = None,
        partition: TopicPartition | int | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> None:
        """Serialize a record and accept it, as `Producer.put` does.

        Raises:
            SerializationError: Nothing was accepted.
            OdradekError: What `Producer.put` raises.
        """
        record = await self.record(topic, value, key=key, headers=headers, timestamp=timestamp)
        value_bytes, key_bytes, all_headers, _ = record
        await self.raw.put(
            topic, value_bytes, key=key_bytes, partition=partition, headers=all_headers, timestamp=timestamp
        )

    async def record(
        self,
        topic: str,
        value: V | None,
        *,
        key: K | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> ProducerRecord:
        """Serialize a record without sending it, for `raw.send_many`. Raises SerializationError."""
        context = SerdeContext(topic, "key", [*headers])
        key_bytes = await serialize(self._keys, key, context)
        context.field = "value"
        value_bytes = await serialize(self._values, value, context)
        return ProducerRecord(value_bytes, key_bytes, context.headers, timestamp)

    async def flush(self) -> None:
        """Wait until everything accepted so far has an outcome: see `Producer.flush`."""
        await self.raw.flush()

    def purge(self, *, in_flight: bool = False) -> Purged:
        """Drop what has been accepted and has no outcome: see `Producer.purge`."""
        return self.raw.purge(in_flight=in_flight)

    def transaction(self) -> Transaction:
        """Return a transaction, to be used as `async with`: see `Producer.transaction`."""
        return self.raw.transaction()

    @property
    def failures(self) -> Failures:
        """Failed records without a waiting caller, as bytes: see `Failures`."""
        return self.raw.failures

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.raw!r}>"
