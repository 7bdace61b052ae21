"""Records in Confluent's wire format: a zero byte, the id of a schema (4 bytes, big-endian), and the payload.

The schemas come from a registry. Avro is read with the writer's schema and resolved to the reader's, which is that of
the table; JSON and protobuf are decoded by their own decoders, so the registry only says whether the id is theirs, and
for protobuf where in its writer's file the message type is.

Each schema is asked for once. An id that the registry does not know is an answer; no answer, or a refusal, is an error
that stops the batch: the records may be good.

Source: Confluent's documentation, "Wire format". Versions of it that put the id into a header are not supported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any, cast

import pyarrow as pa

from odradek.errors import ConfigError
from odradek.pipeline.decode.avro import AvroDecoder, AvroNode, parse_avro
from odradek.pipeline.decode.columns import Array, RowCollector, ValueDecoder
from odradek.pipeline.decode.dead import DeadLetter, DeadReason
from odradek.pipeline.decode.decoder import Decoding
from odradek.pipeline.errors import SchemaRegistryError
from odradek.registry.framing import HEAD_BYTES, FramingError, read_id
from odradek.registry.schemas import MISSING_CODES, Reference, RegisteredSchema, Schema, complete

__all__ = ["ConfluentDecoder", "RegisteredSchema", "Registry", "connect_registry"]

MAX_IDS = 10_000  # that are remembered, unknown ones as well: damaged values can have four billion


class ConfluentDecoder(ValueDecoder):
    """Decodes values in Confluent's wire format. The decoding says which columns and which kind of payloads."""

    def __init__(self, decoding: Decoding, registry: Registry) -> None:  # raises ConfigError
        self._registry = registry
        self._kind = "AVRO" if decoding.schema else "PROTOBUF" if decoding.descriptors else "JSON"
        if self._kind == "JSON" and decoding.fields is None:
            raise ConfigError("kind confluent needs schema (Avro), descriptors and message (protobuf) or fields (JSON)")
        self._payloads = decoding.value_decoder(self._kind.lower())
        super().__init__(self._payloads.schema)
        self._decoder_of = lru_cache(MAX_IDS)(self._ask_registry)

    def _add(self, rows: RowCollector, indexes: Sequence[int], values: Array) -> None:
        """Decode a slice of the values. Raises SchemaRegistryError."""
        groups: dict[bytes, dict[int, bytes]] = {}
        for index, value in zip(indexes, values.to_pylist(), strict=True):
            groups.setdefault(value[:HEAD_BYTES], {})[index] = value[HEAD_BYTES:]
        for head, payloads in groups.items():
            decoder = self._decoder(head)
            if isinstance(decoder, DeadLetter):
                rows.dead.update(dict.fromkeys(payloads, decoder))
                continue
            mine = list(payloads)
            good, dead = decoder.decode(pa.array(payloads.values(), pa.binary()))
            for row, letter in dead.items():
                position = None if letter.position is None else letter.position + HEAD_BYTES
                rows.dead[mine[row]] = letter._replace(position=position)
            rows.add([index for row, index in enumerate(mine) if row not in dead], good)

    def _decoder(self, head: bytes) -> ValueDecoder | DeadLetter:
        if not head:
            return DeadLetter(DeadReason.EMPTY, "the value is empty, without a schema id")
        try:
            return self._decoder_of(read_id(head))
        except FramingError as error:
            return DeadLetter(DeadReason.FRAMING, str(error), position=0)

    def _ask_registry(self, number: int) -> ValueDecoder | DeadLetter:
        schema = self._registry.schema(number, serialized=self._kind == "PROTOBUF")
        why = f"the schema registry has no schema {number}; it was deleted, or the value is damaged"
        if schema is not None:
            try:
                return self._payload_decoder(schema)
            except ConfigError as error:
                why = f"schema {number}: {error.message()}"
        return DeadLetter(DeadReason.SCHEMA, why, position=1)

    def _payload_decoder(self, registered: RegisteredSchema) -> ValueDecoder:
        """Return a decoder of payloads of a schema. Raises ConfigError if it cannot have these columns."""
        if registered.kind != self._kind:
            raise ConfigError(f"it is of type {registered.kind}, and the table's fields are of type {self._kind}")
        if self._kind == "PROTOBUF":
            from odradek.pipeline.decode.protobuf import ProtobufDecoder

            return cast(ProtobufDecoder, self._payloads).of_writer(registered.text)
        if not isinstance(self._payloads, AvroDecoder):
            return self._payloads  # any schema of its kind
        writer, reader = parse_avro(registered.text, registered.references, lenient=True), self._payloads.writer
        if writer.root == reader.root:
            return self._payloads
        _check_meaning(writer.root, reader.root, "")
        return AvroDecoder(writer, reader)


def _check_meaning(writer: AvroNode, reader: AvroNode, path: str) -> None:
    """Raise ConfigError if a number would mean something else, such as milliseconds read as microseconds."""
    writer, reader = (node.children["value"] if node.kind == "optional" else node for node in (writer, reader))
    for name, child in reader.children.items():
        names = [each for each in (name, *reader.aliases.get(name, ())) if each in writer.children]
        if names:
            step = f".{name}" if reader.kind == "record" else "[]"
            _check_meaning(writer.children[names[0]], child, path + step)
    if writer.kind == "other":
        raise ConfigError(f"{path.removeprefix('.')}: {writer.why}")
    old, new = _meaning(writer), _meaning(reader)
    if old != new:
        what = f"{old or writer.kind}, and {new or reader.kind}"
        raise ConfigError(f"{path.removeprefix('.')} is {what} in the table's schema")


def _meaning(node: AvroNode) -> str:
    """Name a logical type; empty for numbers, texts and bytes as they are."""
    if pa.types.is_decimal(node.column):
        return str(node.column)
    return f"{node.column} of {node.wide}" if pa.types.is_temporal(node.column) else ""


# ---- the registry --------------------------------------------------------------------------------------------

NO_SUCH_FORM = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)

TIMEOUT_S = 10  # for one request: by default the client would wait forever


class Registry:
    """Schemas of one registry, from a client of confluent-kafka; the URL is for errors."""

    def __init__(self, client: Any, url: str) -> None:
        self._client, self._url = client, url

    def schema(self, number: int, *, serialized: bool = False) -> RegisteredSchema | None:
        """Return the schema with an id, or None if the registry has none. Raises SchemaRegistryError.

        Args:
            number: The id.
            serialized: The texts of Protobuf are descriptors in Base64, instead of the source, where the registry makes
                them.
        """
        try:
            schema = self._ask(self._client.get_schema, number, **({"fmt": "serialized"} if serialized else {}))
        except SchemaRegistryError as error:
            if not serialized or getattr(error.__cause__, "http_status_code", None) not in NO_SUCH_FORM:
                raise
            return self.schema(number)
        return None if schema is None else self._complete(schema)

    def newest(self, topics: Iterable[str]) -> RegisteredSchema:
        """Return the newest Avro schema of the values of topics. Raises ConfigError, SchemaRegistryError."""
        newest: set[RegisteredSchema] = set()
        for subject in (f"{topic}-value" for topic in topics):
            version = self._ask(self._client.get_version, subject, "latest")
            if version is None:
                raise ConfigError(f"the schema registry has no subject {subject}; give the schema in schema_file")
            schema = self._complete(version.schema)
            if schema.kind != "AVRO":
                why = "give fields" if schema.kind == "JSON" else "give descriptors and message"
                raise ConfigError(f"the newest schema of {subject} is of type {schema.kind}: {why}")
            newest.add(schema)
        if len(newest) != 1:
            raise ConfigError(f"the topics have {len(newest) or 'no'} schemas; give that of the table in schema_file")
        return newest.pop()

    def _complete(self, schema: Any) -> RegisteredSchema:
        """Return a schema with what it names."""
        steps = complete(_plain(schema))
        try:
            wanted = next(steps)
            while True:
                wanted = steps.send(self._version(wanted))
        except StopIteration as end:
            made: RegisteredSchema = end.value
            return made

    def _version(self, wanted: Reference) -> Schema:
        version = self._ask(self._client.get_version, wanted.subject, wanted.version)
        if version is None:
            why = f"there is no version {wanted.version} of {wanted.subject}, which a schema needs"
            raise SchemaRegistryError(self._url, why)
        return _plain(version.schema)

    def _ask(self, call: Any, *arguments: Any, **more: Any) -> Any:
        try:
            return call(*arguments, **more)
        except Exception as error:
            # Without a status, it is an error of the HTTP client, which the library does not hide.
            status, code = (getattr(error, name, None) for name in ("http_status_code", "error_code"))
            if status == HTTPStatus.NOT_FOUND and code in MISSING_CODES:
                return None
            why = f"{type(error).__name__}: {error}" if status is None else str(error)
            raise SchemaRegistryError(self._url, why) from error


def _plain(schema: Any) -> Schema:
    references = tuple(Reference(each.name, each.subject, each.version) for each in schema.references or ())
    return Schema(schema.schema_type or "AVRO", schema.schema_str, references)


def connect_registry(settings: Mapping[str, str]) -> Registry:
    """Return a registry by settings of confluent-kafka's client: `url`, `ssl.ca.location` ... Raises ConfigError."""
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as error:
        raise ConfigError(f"a schema registry needs odradek[pipeline-registry] ({error})") from None
    numbers = {"max.retries": int, "timeout": float, "cache.capacity": int}
    try:
        typed = {name: numbers.get(name, str)(value) for name, value in settings.items()}
        client = SchemaRegistryClient.new_client({"timeout": TIMEOUT_S, **typed})
    except (ValueError, TypeError, OSError) as error:
        raise ConfigError(f"schema registry: {error}") from None
    return Registry(client, settings.get("url", "").rpartition("@")[2])
