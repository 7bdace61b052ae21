"""Avro, in the values of fastavro."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from io import BytesIO
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from odradek.errors import ConfigError
from odradek.registry.schemas import Dependency, RegisteredSchema

__all__ = ["AvroFormat", "parse_schemas"]


def parse_schemas(texts: Iterable[str]) -> list[Any]:
    """Parse schemas, each after those that it names, as fastavro does. Raises ConfigError."""
    known: dict[str, Any] = {}
    try:
        return [fastavro.parse_schema(json.loads(text), named_schemas=known) for text in texts]
    except (SchemaParseException, UnknownType, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"not an Avro schema: {error!r}") from None


class AvroFormat:
    """The format Avro."""

    kind = "AVRO"
    prefixes: tuple[bytes, ...] = ()
    dependencies: tuple[Dependency, ...] = ()

    def __init__(self, schema: str | None) -> None:
        self.schema = schema
        self._reader = None if schema is None else parse_schemas([schema])[0]
        self.name = str(self._reader["name"]) if isinstance(self._reader, dict) and "name" in self._reader else ""

    def encoder(self, schema: RegisteredSchema) -> Callable[[Any], bytes]:
        return partial(self._encode, parse_schemas((*schema.references, schema.text))[-1])

    def decoder(self, schema: RegisteredSchema) -> Callable[[bytes], Any]:
        return partial(self._decode, parse_schemas((*schema.references, schema.text))[-1])

    def _encode(self, schema: Any, value: Any) -> bytes:
        out = BytesIO()
        fastavro.schemaless_writer(out, schema, value)
        return out.getvalue()

    def _decode(self, writer: Any, payload: bytes) -> Any:
        rest = BytesIO(payload)
        value = fastavro.schemaless_reader(rest, writer, self._reader)
        if left := len(payload) - rest.tell():
            raise ValueError(f"{left} bytes follow the end of the record")
        return value
