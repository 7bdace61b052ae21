"""Avro, in the values of fastavro."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from io import BytesIO
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from odradek.errors import ConfigError
from odradek.registry.schemas import Dependency, RegisteredSchema
from odradek.wire.kafka.primitives import encode_uvarint, read_uvarint

__all__ = ["AvroFormat", "parse_schemas"]


def parse_schemas(texts: Iterable[str], named: dict[str, Any] | None = None) -> list[Any]:
    """Parse schemas, each after those that it names, as fastavro does, and add their types to `named`. Raises
    ConfigError."""
    known = {} if named is None else named
    try:
        return [fastavro.parse_schema(json.loads(text), named_schemas=known) for text in texts]
    except (SchemaParseException, UnknownType, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"not an Avro schema: {error!r}") from None


def _parse(schema: RegisteredSchema) -> Any:
    """Parse a schema with what it names. Raises ConfigError.

    fastavro keeps the types that a record names beside it, but not those that a union, an array or a map names.
    """
    named: dict[str, Any] = {}
    parsed = parse_schemas((*schema.references, schema.text), named)[-1]
    return fastavro.parse_schema(_defined(parsed, named, set())) if schema.references else parsed


def _defined(schema: Any, named: Mapping[str, Any], known: set[str]) -> Any:
    """Return a parsed schema in which each type is defined where it is named first."""
    if isinstance(schema, list):
        return [_defined(each, named, known) for each in schema]
    if isinstance(schema, str):
        return _defined(named[schema], named, known) if schema in named and schema not in known else schema
    made = {key: value for key, value in schema.items() if not key.startswith("__")}  # without fastavro's notes
    if "name" in schema:
        known.add(schema["name"])
    for key in ("items", "values"):
        if key in schema:
            made[key] = _defined(schema[key], named, known)
    if "fields" in schema:
        made["fields"] = [{**field, "type": _defined(field["type"], named, known)} for field in schema["fields"]]
    return made


def _is_bytes(schema: Any) -> bool:
    return schema == "bytes" or (isinstance(schema, dict) and schema.get("type") == "bytes")


class AvroFormat:
    """The format Avro. A payload that is `bytes` alone, and no record, is in Confluent's format without their size."""

    kind = "AVRO"
    dependencies: tuple[Dependency, ...] = ()

    def __init__(self, schema: str | None) -> None:
        self.schema = schema
        self._reader = None if schema is None else parse_schemas([schema])[0]
        self.name = str(self._reader["name"]) if isinstance(self._reader, dict) and "name" in self._reader else ""

    def prefixes(self, schema: RegisteredSchema) -> tuple[bytes, ...]:
        return ()

    def encoder(self, schema: RegisteredSchema) -> Callable[[Any], bytes]:
        return partial(self._encode, _parse(schema))

    def decoder(self, schema: RegisteredSchema) -> Callable[[bytes], Any]:
        return partial(self._decode, _parse(schema))

    def _encode(self, schema: Any, value: Any) -> bytes:
        out = BytesIO()
        fastavro.schemaless_writer(out, schema, value)
        encoded = out.getvalue()
        return encoded[read_uvarint(encoded, 0)[1] :] if _is_bytes(schema) else encoded

    def _decode(self, writer: Any, payload: bytes) -> Any:
        if _is_bytes(writer):
            payload = encode_uvarint(len(payload) << 1) + payload
        rest = BytesIO(payload)
        value = fastavro.schemaless_reader(rest, writer, self._reader)
        if left := len(payload) - rest.tell():
            raise ValueError(f"{left} bytes follow the end of the record")
        return value
