"""JSON that a JSON Schema accepts."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7

from odradek.errors import ConfigError
from odradek.registry.schemas import Dependency, RegisteredSchema
from odradek.serde import encode_json

__all__ = ["JsonFormat"]


def _validator(schema: RegisteredSchema) -> Validator:
    """Return what checks values. Raises ConfigError."""
    try:
        parsed = json.loads(schema.text)
        named = zip(schema.names, map(json.loads, schema.references), strict=True)
        known: Registry[Any] = Registry().with_resources(
            (name, Resource.from_contents(each, default_specification=DRAFT7)) for name, each in named
        )
        kind = validator_for(parsed)
        kind.check_schema(parsed)
    except (ValueError, TypeError, SchemaError) as error:
        raise ConfigError(f"not a JSON Schema: {error}") from None
    return kind(parsed, registry=known)


def _check(validator: Validator, value: Any) -> None:
    """Raise ValueError if the schema refuses a value."""
    for error in validator.iter_errors(value):
        raise ValueError(f"{error.json_path}: {error.message}")


class JsonFormat:
    """The format JSON Schema."""

    kind = "JSON"
    dependencies: tuple[Dependency, ...] = ()

    def __init__(self, schema: str | None) -> None:
        self.schema = schema
        self._own = None if schema is None else _validator(RegisteredSchema("JSON", schema))
        parsed = json.loads(schema or "{}")
        self.name = str(parsed.get("title") or "") if isinstance(parsed, dict) else ""

    def prefixes(self, schema: RegisteredSchema) -> tuple[bytes, ...]:
        return ()

    def encoder(self, schema: RegisteredSchema) -> Callable[[Any], bytes]:
        return partial(self._encode, _validator(schema))

    def decoder(self, schema: RegisteredSchema) -> Callable[[bytes], Any]:
        return partial(self._decode, self._own or _validator(schema))

    def _encode(self, validator: Validator, value: Any) -> bytes:
        _check(validator, value)
        return encode_json(value)

    def _decode(self, validator: Validator, payload: bytes) -> Any:
        value = json.loads(payload)
        _check(validator, value)
        return value
