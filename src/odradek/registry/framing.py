"""Confluent's wire format: how keys and values name their schema, in front of the payload or in a header.

| where | bytes |
|---|---|
| in front | 0, the id of the schema (4 bytes, big-endian), for Protobuf the position of the message type, payload |
| in front | 1, the GUID of the schema (16 bytes), the same |
| in the header `__key_schema_id` or `__value_schema_id` | the same, without the payload |

Source: Confluent's documentation, "Wire format", and the headers that confluent-kafka 2.11 and later write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from odradek.wire.kafka.primitives import encode_uvarint, read_uvarint

__all__ = [
    "HEAD_BYTES",
    "Frame",
    "FramingError",
    "guid_head",
    "header_name",
    "id_head",
    "message_path",
    "message_prefixes",
    "read_id",
    "split",
]

HEAD_BYTES = 5
"""The zero byte and the id."""
GUID_HEAD_BYTES = 17
"""The byte 1 and the GUID."""


class FramingError(ValueError):
    """The bytes name no schema."""


class Frame(NamedTuple):
    """A key or value, taken apart.

    Args:
        schema: The id (int) or GUID (str) of its schema.
        payload: What follows.
        indexes: Protobuf: the position of the message type, if a header has it; None: the payload begins with it.
    """

    schema: int | str
    payload: bytes
    indexes: bytes | None


def header_name(field: str) -> str:
    """Return the header that names the schema of the `key` or `value`."""
    return f"__{field}_schema_id"


def split(data: bytes, headers: Sequence[tuple[str, bytes | None]] = (), field: str = "value") -> Frame:
    """Take a key or value apart: its schema is in the last header of this field, or else in front. Raises
    FramingError."""
    name = header_name(field)
    for header, content in reversed(headers):
        if header == name and content is not None:
            schema, indexes = _read_head(content)
            return Frame(schema, data, indexes)
    return Frame(*_read_head(data), None)


def read_id(data: bytes) -> int:
    """Return the id of the schema that is in front. Raises FramingError, also for a GUID."""
    if len(data) < HEAD_BYTES or data[0]:
        raise _no_head(data)
    return int.from_bytes(data[1:HEAD_BYTES], "big")


def _read_head(data: bytes) -> tuple[int | str, bytes]:
    if data[:1] != b"\1":
        return read_id(data), data[HEAD_BYTES:]
    if len(data) < GUID_HEAD_BYTES:
        raise _no_head(data)
    return str(UUID(bytes=data[1:GUID_HEAD_BYTES])), data[GUID_HEAD_BYTES:]


def _no_head(data: bytes) -> FramingError:
    what = f"{len(data)} bytes" if len(data) < HEAD_BYTES else f"the byte {data[0]}"
    why = f"not Confluent's wire format: {what} instead of a zero byte and a schema id; was it sent without one?"
    return FramingError(why)


def id_head(number: int) -> bytes:
    """Return what names a schema by its id."""
    return b"\0" + number.to_bytes(4, "big")


def guid_head(guid: str) -> bytes:
    """Return what names a schema by its GUID."""
    return b"\1" + UUID(guid).bytes


def message_prefixes(file: Any, name: str) -> tuple[bytes, ...]:
    """Return what payloads of a Protobuf message type begin with: the number of indexes, and the indexes that lead to
    it in its file; empty if the file does not have it. The first is what confluent-kafka writes.

    Args:
        file: A `FileDescriptorProto`.
        name: The full name of the type.
    """
    package = f"{file.package}." if file.package else ""
    indexes, types = [], file.message_type
    for part in name.removeprefix(package).split("."):
        index = next((number for number, each in enumerate(types) if each.name == part), None)
        if index is None or not name.startswith(package):
            return ()
        indexes.append(index)
        types = types[index].nested_type
    prefix = b"".join(encode_uvarint(number << 1) for number in (len(indexes), *indexes))  # in zigzag coding
    return (b"\0", prefix) if indexes == [0] else (prefix,)  # the usual case may be written in short


def message_path(head: bytes) -> tuple[int, ...]:
    """Return the indexes in front of a Protobuf message: of its type in the file, and of nested types in that. Raises
    ValueError."""
    count, at = read_uvarint(head, 0)
    numbers = []
    for _ in range(count >> 1):  # in zigzag coding
        number, at = read_uvarint(head, at)
        numbers.append(number >> 1)
    return tuple(numbers) or (0,)
