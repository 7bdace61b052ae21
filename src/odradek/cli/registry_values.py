"""Keys and values in Confluent's wire format as JSON, whatever their schemas in the registry are."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from odradek.errors import ConfigError, DeserializationError
from odradek.serde import Deserializer, Field, SerdeContext, deserialize
from odradek.types import Record

if TYPE_CHECKING:
    from odradek.registry import SchemaRegistry
    from odradek.registry.schemas import RegisteredSchema

__all__ = ["record_decoder"]


@asynccontextmanager
async def record_decoder(url: str, fields: Collection[Field]) -> AsyncIterator[Callable[[Record], Awaitable[Record]]]:
    """Yield a function that makes JSON of these parts of a record, by the schemas of a registry. It raises
    DeserializationError for what cannot be decoded, and RegistryError if the registry refuses or does not answer.

    Raises:
        ConfigError: The URL is none, or a package is missing.
    """
    from odradek.registry import RegistryError, SchemaRegistry

    async with SchemaRegistry(url) as registry:
        texts = _JsonTexts(registry)

        async def decode(record: Record) -> Record:
            context = SerdeContext(record.topic, "value", [*record.headers])
            for field in fields:
                try:
                    text = await deserialize(texts, record, field, context)
                except DeserializationError as error:
                    raise (error.__cause__ if isinstance(error.__cause__, RegistryError) else error) from None
                record = record._replace(key=text) if field == "key" else record._replace(value=text)
            return record

        yield decode


class _JsonTexts(Deserializer[bytes]):
    """Makes JSON of what any serializer of a registry has written.

    Args:
        registry: The registry.
    """

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._known: dict[object, Deserializer[Any]] = {}

    async def deserialize(self, data: bytes, context: SerdeContext, /) -> bytes:
        """Return the value as JSON. Raises PayloadError, RegistryError."""
        from odradek.registry.framing import FramingError, message_path, split
        from odradek.registry.schemas import PayloadError

        try:
            frame = split(data, context.headers, context.field)
        except FramingError as error:
            raise PayloadError(str(error)) from None
        schema = await self._registry.schema(frame.schema)
        if schema is None:
            raise PayloadError(f"the registry has no schema {frame.schema}", frame.schema)
        path = message_path(frame.indexes or frame.payload) if schema.kind == "PROTOBUF" else ()
        made = self._known.get((frame.schema, path))
        if made is None:
            made = self._known[frame.schema, path] = await self._deserializer(frame.schema, schema, path)
        value: Any = made.deserialize(data, context)
        value = await value if hasattr(value, "__await__") else value
        if schema.kind == "PROTOBUF":
            from google.protobuf.json_format import MessageToDict

            pool = value.DESCRIPTOR.file.pool  # has the types of what an Any holds
            value = MessageToDict(value, preserving_proto_field_name=True, descriptor_pool=pool)
        return _json(value).encode()

    async def _deserializer(self, key: int | str, schema: RegisteredSchema, path: tuple[int, ...]) -> Deserializer[Any]:
        if schema.kind == "PROTOBUF":
            serialized = await self._registry.schema(key, serialized=True)
            return self._registry.protobuf(_message_class(serialized or schema, path))
        return self._registry.avro() if schema.kind == "AVRO" else self._registry.json_schema()


def _json(value: object) -> str:
    """Return a value as JSON: NaN and Infinity, for which it has no numbers, as texts, as Protobuf has them."""
    try:
        return json.dumps(value, ensure_ascii=False, default=_plain, allow_nan=False)
    except ValueError:
        numbered = json.dumps(value, default=_plain)
        return json.dumps(json.loads(numbered, parse_constant=str), ensure_ascii=False)


def _plain(value: object) -> str:
    """Return the JSON of a value that JSON has no form for: bytes in base64, times as ISO 8601, decimals as texts."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)


def _message_class(schema: RegisteredSchema, path: tuple[int, ...]) -> type[Any]:
    """Return the class of the messages at a path in a file of Protobuf. Raises ConfigError."""
    from google.protobuf import descriptor_pool, message_factory

    pool, name = descriptor_pool.DescriptorPool(), ""
    try:
        for imported, text in [*zip(schema.names, schema.references, strict=True), ("", schema.text)]:
            name = imported or "schema of this message"
            if not _has_file(pool, name):
                _add_file(pool, name, b64decode(text, validate=True))
        messages = list(pool.FindFileByName(name).message_types_by_name.values())
        descriptor = messages[path[0]]
        for number in path[1:]:
            descriptor = descriptor.nested_types[number]
    except ConfigError:
        raise
    except Exception as error:  # whatever protobuf raises
        why = "the registry returned no descriptors for format=serialized, or they lack a file or a message"
        raise ConfigError(f"{why}: {error}") from None
    return message_factory.GetMessageClass(descriptor)


def _has_file(pool: Any, name: str) -> bool:
    try:
        pool.FindFileByName(name)
    except KeyError:
        return False
    return True


def _add_file(pool: Any, name: str, data: bytes) -> None:
    """Add a file, under the name by which others import it, and what it imports of what every registry has."""
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto.FromString(data)
    file.name = name
    for imported in file.dependency:
        if imported.startswith(("google/", "confluent/")) and not _has_file(pool, imported):
            _add_file(pool, imported, _built_in(imported))
    pool.AddSerializedFile(file.SerializeToString())


_CONFLUENT = {
    "confluent/meta.proto": "",  # options alone, which change no bytes
    "confluent/types/decimal.proto": 'dependency: "confluent/type/decimal.proto" public_dependency: 0',
    "confluent/type/decimal.proto": """
        package: "confluent.type" syntax: "proto3" message_type {
            name: "Decimal"
            field { name: "value" number: 1 type: TYPE_BYTES label: LABEL_OPTIONAL }
            field { name: "precision" number: 2 type: TYPE_UINT32 label: LABEL_OPTIONAL }
            field { name: "scale" number: 3 type: TYPE_INT32 label: LABEL_OPTIONAL }
        }""",
    "confluent/type/variant.proto": """
        package: "confluent.type" syntax: "proto3" message_type {
            name: "Variant"
            field { name: "metadata" number: 1 type: TYPE_BYTES label: LABEL_OPTIONAL }
            field { name: "value" number: 2 type: TYPE_BYTES label: LABEL_OPTIONAL }
        }""",
}
"""Files that Confluent's registry has, as text of their descriptors."""


def _built_in(name: str) -> bytes:
    """Return the descriptor of a file that schemas import without a reference. Raises ConfigError."""
    from google.protobuf import descriptor_pb2, text_format

    if name in _CONFLUENT:
        return text_format.Parse(_CONFLUENT[name], descriptor_pb2.FileDescriptorProto()).SerializeToString()
    try:
        module = import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    except ImportError:
        hint = ": pip install googleapis-common-protos" if name.startswith("google/type/") else ""
        raise ConfigError(f"a schema imports {name}, which neither the registry nor this machine has{hint}") from None
    descriptor: bytes = module.DESCRIPTOR.serialized_pb
    return descriptor
