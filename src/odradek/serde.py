"""Serializers and deserializers: values of a program <-> bytes of records.

    from odradek.serde import JSON

    async with k.producer(value_serializer=JSON) as out: ...
    async with k.consumer("orders", group="billing", value_deserializer=JSON) as c: ...

Both may be asynchronous. None is not passed to either: a record without a key has the key None, and a tombstone the
value None, whatever the type.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from odradek import arguments
from odradek.errors import DeserializationError, OdradekError, SerializationError
from odradek.types import Headers, Position, Record, TopicPartition

__all__ = [
    "BYTES",
    "DESERIALIZER",
    "JSON",
    "SERIALIZER",
    "STRING",
    "DecodedRecord",
    "DeserializationError",
    "Deserializer",
    "Field",
    "Serde",
    "SerdeContext",
    "SerializationError",
    "Serializer",
    "deserialize",
    "encode_json",
    "serialize",
]

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)

Field = Literal["key", "value"]


@dataclass(slots=True)
class SerdeContext:
    """The record of a key or value, as far as serializers and deserializers know it.

    Args:
        topic: Its topic.
        field: Which part of the record this is.
        headers: Its headers. What a serializer adds is sent with the record.
    """

    topic: str
    field: Field
    headers: list[tuple[str, bytes | None]]


class Serializer(Protocol[T_contra]):
    """Interface of what makes bytes of keys or values."""

    def serialize(self, value: T_contra, context: SerdeContext, /) -> bytes | Awaitable[bytes]:
        """Return the bytes, or an awaitable of them. An exception becomes the cause of a SerializationError.

        Cancellation: nothing is sent.
        """
        ...


class Deserializer(Protocol[T_co]):
    """Interface of what makes keys or values of bytes. A class whose method is `async def` names its type for type
    checkers: `class OrderDeserializer(Deserializer[Order])`."""

    def deserialize(self, data: bytes, context: SerdeContext, /) -> T_co | Awaitable[T_co]:
        """Return the value, or an awaitable of it. An exception becomes the cause of a DeserializationError, which is
        retriable if the exception has an attribute `retriable` that is true.

        Cancellation: the record is decoded again when it is delivered next.
        """
        ...


@dataclass(frozen=True, slots=True)
class DecodedRecord(Generic[K, V]):
    """A record whose key and value are decoded.

    Args:
        record: As it was read.
        key: Its key; None: it has none.
        value: Its value; None: it is a tombstone.
    """

    record: Record
    key: K | None
    value: V | None

    @property
    def headers(self) -> Headers:
        return self.record.headers

    @property
    def timestamp(self) -> int | None:
        """Milliseconds since the epoch, or None."""
        return self.record.timestamp

    @property
    def position(self) -> Position:
        return self.record.position

    @property
    def partition(self) -> TopicPartition:
        return self.record.partition

    @property
    def topic(self) -> str:
        return self.record.topic


class Serde(Generic[T]):
    """A serializer and deserializer of two functions: `Serde(Order.to_bytes, Order.from_bytes)`."""

    def __init__(self, encode: Callable[[T], bytes], decode: Callable[[bytes], T]) -> None:
        self._encode, self._decode = encode, decode

    def serialize(self, value: T, context: SerdeContext, /) -> bytes:
        return self._encode(value)

    def deserialize(self, data: bytes, context: SerdeContext, /) -> T:
        return self._decode(data)


BYTES: Serde[bytes] = Serde(bytes, bytes)
"""Bytes as they are."""

STRING: Serde[str] = Serde(str.encode, bytes.decode)
"""Texts as UTF-8."""


def encode_json(value: Any) -> bytes:
    """Return JSON as UTF-8, without spaces. Raises ValueError, TypeError."""
    import json

    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _decode_json(data: bytes) -> Any:
    import json

    return json.loads(data)


JSON: Serde[Any] = Serde(encode_json, _decode_json)
"""JSON as UTF-8, without spaces."""

SERIALIZER = arguments.optional(arguments.having("serialize", "a serializer, such as odradek.serde.JSON"))
DESERIALIZER = arguments.optional(arguments.having("deserialize", "a deserializer, such as odradek.serde.JSON"))


async def serialize(serializer: Serializer[Any], value: Any, context: SerdeContext) -> bytes | None:
    """Return the bytes of a key or value. Raises SerializationError."""
    if value is None:
        return None
    try:
        data: Any = serializer.serialize(value, context)
        if not isinstance(data, bytes) and hasattr(data, "__await__"):
            data = await data
        if not isinstance(data, bytes):
            raise TypeError(f"the serializer returned {type(data).__name__}, not bytes")
    except Exception as error:
        failed = SerializationError(context.topic, context.field, _reason(error))
        failed.retriable = _is_retriable(error)
        raise failed from error
    return data


async def deserialize(deserializer: Deserializer[T], record: Record, field: Field, context: SerdeContext) -> T | None:
    """Return the key or value of a record. Raises DeserializationError."""
    data = record.value if field == "value" else record.key
    if data is None:
        return None
    context.field = field
    try:
        value: Any = deserializer.deserialize(data, context)
        made: T = await value if hasattr(value, "__await__") else value
    except Exception as error:
        failed = DeserializationError(record, field, _reason(error), getattr(error, "schema", None))
        failed.retriable = _is_retriable(error)
        raise failed from error
    return made


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, OdradekError) else f"{type(error).__name__}: {error}"


def _is_retriable(error: Exception) -> bool:
    return getattr(error, "retriable", False) is True
