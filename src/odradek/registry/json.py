"""JSON that a JSON Schema accepts."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urljoin

from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7

from odradek.errors import ConfigError
from odradek.registry.schemas import Dependency, RegisteredSchema
from odradek.serde import encode_json

__all__ = ["JsonFormat"]


def _resource(parsed: Any) -> Resource[Any]:
    return Resource.from_contents(parsed, default_specification=DRAFT7)


def _validator(schema: RegisteredSchema) -> Validator:
    """Return what checks values. Names of other schemas are relative to the id of this one, as they are in it. Raises
    ConfigError."""
    try:
        parsed = json.loads(schema.text)
        kind = validator_for(parsed)
        kind.check_schema(parsed)
        base = _resource(parsed).id() or ""
        known: Registry[Any] = Registry().with_resources(
            (uri, _resource(json.loads(text)))
            for name, text in zip(schema.names, schema.references, strict=True)
            for uri in {name, urljoin(base, name)}
        )
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
