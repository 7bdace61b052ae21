"""Serializers and deserializers whose schemas are in a registry."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, NamedTuple, Protocol, TypedDict, TypeVar

from odradek import arguments
from odradek.arguments import Option
from odradek.errors import ConfigError
from odradek.registry.framing import Frame, FramingError, guid_head, header_name, id_head, split
from odradek.registry.schemas import (
    Dependency,
    PayloadError,
    Reference,
    RegisteredSchema,
    RegistryError,
    Schema,
    SchemaId,
)
from odradek.serde import SerdeContext

if TYPE_CHECKING:
    from odradek.registry.client import SchemaRegistry

__all__ = ["Format", "RegistrySerde", "SerdeOptions", "load_format"]

T = TypeVar("T")
U = TypeVar("U")

NEWEST_S = 60.0
"""Time for which records are written by the newest schema of a subject, before it is looked up again (s)."""


class SerdeOptions(TypedDict, total=False):
    """Options of `SchemaRegistry.avro`, `json_schema` and `protobuf`."""

    subject: Annotated[
        Literal["topic", "record", "topic-record"],
        Option(
            "topic",
            arguments.choice("topic", "record", "topic-record"),
            "The subject of a schema: `TOPIC-value` or `TOPIC-key`; the full name of the record; or `TOPIC-NAME`.",
        ),
    ]
    registration: Annotated[
        Literal["auto", "off", "latest"],
        Option(
            "auto",
            arguments.choice("auto", "off", "latest"),
            "`auto`: the schema is registered when the first record is serialized. `off`: it must be registered "
            "already. `latest`: records are written by the newest schema of the subject, looked up once a minute.",
        ),
    ]
    framing: Annotated[
        Literal["prefix", "header"],
        Option(
            "prefix",
            arguments.choice("prefix", "header"),
            "`prefix`: the id of the schema goes in front of the payload. `header`: its GUID goes into a header, where "
            "the registry has GUIDs (Confluent Platform 8.0 and later). Both are read.",
        ),
    ]


class Format(Protocol):
    """Interface of what Avro, JSON Schema and Protobuf do each in their way."""

    kind: str
    schema: str | None
    """The schema as it is registered, or None."""
    name: str
    """The full name of the records; empty if they have none."""
    dependencies: tuple[Dependency, ...]
    """The schemas that must be registered before."""

    def prefixes(self, schema: RegisteredSchema) -> tuple[bytes, ...]:
        """Return what payloads under a schema begin with, the first of which is written; empty: nothing. A schema of
        Protobuf may have further message types, in another order."""
        ...

    def encoder(self, schema: RegisteredSchema) -> Callable[[Any], bytes]:
        """Return what encodes payloads by a schema. Raises any exception if it is none."""
        ...

    def decoder(self, schema: RegisteredSchema) -> Callable[[bytes], Any]:
        """Return what decodes payloads that were written by a schema. Raises any exception if it is none."""
        ...


def load_format(module: str, name: str, schema: object) -> Format:
    """Return a format, whose packages are imported only now. Raises ConfigError."""
    try:
        kind = getattr(importlib.import_module(f"odradek.registry.{module}"), name)
    except ImportError as error:
        raise ConfigError(f"{module} needs more packages: pip install odradek[registry] ({error})") from error
    made: Format = kind(schema)
    return made


class _SubjectWriter(NamedTuple):
    """How the records of a subject are written, until when (s, monotonic)."""

    schema: SchemaId
    encode: Callable[[Any], bytes]
    indexes: bytes
    until: float


class RegistrySerde(Generic[T]):
    """A serializer and deserializer, made by `SchemaRegistry`.

    A look-up that fails is a SerializationError or DeserializationError whose cause is the RegistryError, and which is
    retriable if another attempt may succeed.
    """

    def __init__(self, registry: SchemaRegistry, format: Format, options: SerdeOptions) -> None:
        self._registry, self._format, self._options = registry, format, options
        chosen: SerdeOptions = arguments.resolve(SerdeOptions, options)
        self._subject, self._registration = chosen["subject"], chosen["registration"]
        self._framing = chosen["framing"]
        if self._subject != "topic" and not format.name:
            raise ConfigError(f"subject={self._subject!r} needs a schema that has a name")
        self._encode: Callable[[T], Any] | None = None
        self._decode: Callable[[Any], T] | None = None
        self._writers: dict[str, _SubjectWriter] = {}
        self._decoders: dict[int | str, tuple[Callable[[bytes], Any], tuple[bytes, ...]]] = {}

    def convert(self, decode: Callable[[Any], U], encode: Callable[[U], Any]) -> RegistrySerde[U]:
        """Return the same for values of another type: `registry.avro(SCHEMA).convert(lambda d: Order(**d), asdict)`.

        Args:
            decode: Makes such a value of one that this deserializer returns.
            encode: Makes one that this serializer takes.
        """
        made: RegistrySerde[U] = RegistrySerde(self._registry, self._format, self._options)
        made._decode, made._encode = decode, encode
        return made

    # ---- writing ---------------------------------------------------------------------------------------------

    def serialize(self, value: T, context: SerdeContext, /) -> bytes | Awaitable[bytes]:
        """Return the bytes of a value; an awaitable if its schema has to be looked up first."""
        subject = self._subject_of(context)
        writer = self._writers.get(subject)
        if writer is None or writer.until <= time.monotonic():
            return self._fetch_and_serialize(value, context, subject)
        return self._frame(writer, value, context)

    async def _fetch_and_serialize(self, value: T, context: SerdeContext, subject: str) -> bytes:
        if self._registration == "latest":
            newest = await self._registry.latest(subject)
            if newest is None:
                raise PayloadError(f"the registry has no subject {subject}")
            if newest[1].kind != self._format.kind:
                raise PayloadError(f"the newest schema of {subject} is of type {newest[1].kind}", newest[0].id)
            encode, prefixes = self._format.encoder(newest[1]), await self._prefixes(newest[0].id, newest[1])
            writer = _SubjectWriter(newest[0], encode, b"".join(prefixes[:1]), time.monotonic() + NEWEST_S)
        else:
            schema = Schema(self._format.kind, self._own_schema(), await self._references(self._format.dependencies))
            own = RegisteredSchema(schema.kind, schema.text)
            indexes, known = b"".join(self._format.prefixes(own)[:1]), await self._publish(subject, schema)
            writer = _SubjectWriter(known[0], self._format.encoder(own), indexes, math.inf)
        self._writers[subject] = writer
        return self._frame(writer, value, context)

    def _frame(self, writer: _SubjectWriter, value: T, context: SerdeContext) -> bytes:
        plain = value if self._encode is None else self._encode(value)
        payload, indexes = writer.encode(plain), writer.indexes
        name = header_name(context.field)
        context.headers[:] = [each for each in context.headers if each[0] != name]  # of a record that is passed on
        if self._framing == "prefix":
            return id_head(writer.schema.id) + indexes + payload
        if writer.schema.guid is None:
            raise PayloadError('this registry has no GUIDs: use framing="prefix"', writer.schema.id)
        context.headers.append((name, guid_head(writer.schema.guid) + indexes))
        return payload

    def _subject_of(self, context: SerdeContext) -> str:
        if self._subject == "topic":
            return f"{context.topic}-{context.field}"
        return self._format.name if self._subject == "record" else f"{context.topic}-{self._format.name}"

    def _own_schema(self) -> str:
        if self._format.schema is None:
            raise PayloadError('nothing says how to write this: give a schema, or registration="latest"')
        return self._format.schema

    async def _publish(self, subject: str, schema: Schema) -> tuple[SchemaId, int]:
        """Return the id and the version of a schema, which is registered if it may be."""
        if self._registration == "auto":
            known = await self._registry.register(subject, schema)
            if not schema.references and self._framing == "prefix":
                return known, 0
        registered = await self._registry.find(subject, schema)
        if registered is None:
            raise PayloadError(f"the schema is not registered under the subject {subject}")
        return registered

    async def _references(self, dependencies: tuple[Dependency, ...]) -> tuple[Reference, ...]:
        """Register what a schema refers to, as confluent-kafka does: under the name of the file."""
        made = []
        for name, text, inner in dependencies:
            schema = Schema(self._format.kind, text, await self._references(inner))
            if self._registration == "auto":
                await self._registry.register(name, schema)
            registered = await self._registry.find(name, schema)
            if registered is None:
                raise PayloadError(f"the schema is not registered under the subject {name}")
            made.append(Reference(name, name, registered[1]))
        return tuple(made)

    # ---- reading ---------------------------------------------------------------------------------------------

    def deserialize(self, data: bytes, context: SerdeContext, /) -> T | Awaitable[T]:
        """Return the value; an awaitable of it if its schema has to be looked up first."""
        try:
            frame = split(data, context.headers, context.field)
        except FramingError as error:
            raise PayloadError(str(error)) from None
        known = self._decoders.get(frame.schema)
        return self._fetch_and_read(frame) if known is None else self._read(*known, frame)

    async def _fetch_and_read(self, frame: Frame) -> T:
        number = frame.schema
        schema = await self._schema(number)
        if schema is None:
            raise PayloadError(f"the registry has no schema {number}; it was deleted, or the bytes are damaged", number)
        if schema.kind != self._format.kind:
            raise PayloadError(f"schema {number} is of type {schema.kind}, not {self._format.kind}", number)
        try:
            decode = self._format.decoder(schema)
        except Exception as error:  # whatever its library raises
            raise PayloadError(f"schema {number} cannot be used: {type(error).__name__}: {error}", number) from error
        known = self._decoders[number] = decode, await self._prefixes(number, schema)
        return self._read(*known, frame)

    async def _schema(self, number: int | str, *, serialized: bool = False) -> RegisteredSchema | None:
        try:
            return await self._registry.schema(number, serialized=serialized)
        except RegistryError as error:
            error.schema = number
            raise

    async def _prefixes(self, number: int | str, schema: RegisteredSchema) -> tuple[bytes, ...]:
        """Return what payloads under a registered schema begin with. Raises RegistryError if that may pass: a registry
        may have no descriptors."""
        if self._format.kind == "PROTOBUF":
            try:
                schema = await self._schema(number, serialized=True) or schema
            except RegistryError as error:
                if error.retriable:
                    raise
        return self._format.prefixes(schema)

    def _read(self, decode: Callable[[bytes], Any], prefixes: tuple[bytes, ...], frame: Frame) -> T:
        payload = frame.payload
        if prefixes:
            if frame.indexes is not None:
                payload = frame.indexes + payload
            prefix = next((each for each in prefixes if payload.startswith(each)), None)
            if prefix is None:
                raise PayloadError("it is a message of another type, or damaged", frame.schema)
            payload = payload[len(prefix) :]
        try:
            value = decode(payload)
            made: T = value if self._decode is None else self._decode(value)
        except Exception as error:  # whatever its library raises
            raise PayloadError(f"{type(error).__name__}: {error}", frame.schema) from error
        return made
