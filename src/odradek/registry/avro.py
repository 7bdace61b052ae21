"""Avro, in the values of fastavro."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from io import BytesIO
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from odradek.errors import ConfigError
from odradek.registry.schemas import Dependency, RegisteredSchema
from odradek.wire.kafka.primitives import encode_uvarint, read_uvarint

__all__ = ["AvroFormat", "decode_defaults", "parse_schemas", "without_logical_types"]


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


def decode_defaults(schema: Any, named: Mapping[str, Any]) -> bool:
    """Make the defaults of a parsed schema what its records have, in place: fastavro gives them to records as they are
    in JSON. One that its type cannot have stays so. Return True if one is a list, map or record, which records share.

    Args:
        schema: The schema.
        named: Types by their names, among which those are that it names.
    """
    fields = {id(field): field for field in _fields(schema) if "default" in field}.values()
    values = [_default(field["type"], field["default"], named) for field in fields]
    for field, value in zip(fields, values, strict=True):
        field["default"] = value
    return any(isinstance(value, list | dict) for value in values)


def _fields(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield the fields of all records of a parsed schema, also of those that fastavro keeps beside it."""
    if isinstance(schema, list):
        for each in schema:
            yield from _fields(each)
    elif isinstance(schema, dict):
        yield from schema.get("fields", ())
        for key in ("type", "items", "values", "fields"):
            yield from _fields(schema.get(key))
        yield from _fields([*schema.get("__named_schemas", {}).values()])


def _default(schema: Any, value: Any, named: Mapping[str, Any]) -> Any:
    """Return a default as records have it."""
    whole, out = _defined(schema, named, set()), BytesIO()
    try:
        fastavro.schemaless_writer(out, without_logical_types(whole), _of_json(schema, value, named))
        return fastavro.schemaless_reader(BytesIO(out.getvalue()), whole, None)
    except Exception:  # whatever fastavro raises, such as for "" as a UUID
        return value


def _of_json(schema: Any, value: Any, named: Mapping[str, Any]) -> Any:
    """Return a default without logical types: bytes are texts in JSON, and fields may have defaults of their own."""
    if isinstance(schema, list):  # the first type that it may have
        return None if value is None else _of_json(next(each for each in schema if each != "null"), value, named)
    if isinstance(schema, str):
        if schema == "bytes":
            return value.encode("latin-1") if isinstance(value, str) else value
        return _of_json(named[schema], value, named) if schema in named else value
    match schema["type"]:
        case "record" if isinstance(value, dict):
            fields = {each["name"]: each for each in schema["fields"]}
            values = {name: value.get(name, each.get("default")) for name, each in fields.items()}
            return {name: _of_json(fields[name]["type"], each, named) for name, each in values.items()}
        case "array" if isinstance(value, list):
            return [_of_json(schema["items"], each, named) for each in value]
        case "map" if isinstance(value, dict):
            return {key: _of_json(schema["values"], each, named) for key, each in value.items()}
        case "fixed" | "bytes":
            return _of_json("bytes", value, named)
    return value


def without_logical_types(schema: Any) -> Any:
    """Return a schema whose values are those that are written."""
    if isinstance(schema, dict):
        return {key: without_logical_types(value) for key, value in schema.items() if key != "logicalType"}
    return [without_logical_types(each) for each in schema] if isinstance(schema, list) else schema


def _is_bytes(schema: Any) -> bool:
    return schema == "bytes" or (isinstance(schema, dict) and schema.get("type") == "bytes")


class AvroFormat:
    """The format Avro. A payload that is `bytes` alone, and no record, is in Confluent's format without their size."""

    kind = "AVRO"
    dependencies: tuple[Dependency, ...] = ()

    def __init__(self, schema: str | None) -> None:
        self.schema = schema
        named: dict[str, Any] = {}
        self._reader = None if schema is None else parse_schemas([schema], named)[0]
        self._shares_defaults = decode_defaults(self._reader, named)
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
        return deepcopy(value) if self._shares_defaults else value
