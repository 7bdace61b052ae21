"""JSON that a JSON Schema accepts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from typing import Any
from urllib.parse import urljoin

from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import Draft7Validator, extend, validator_for
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7

from odradek.errors import ConfigError
from odradek.registry.schemas import Dependency, RegisteredSchema
from odradek.serde import encode_json

__all__ = ["JsonFormat"]


def _resource(parsed: Any) -> Resource[Any]:
    return Resource.from_contents(parsed, default_specification=DRAFT7)


def _multiple_of(validator: Validator, divisor: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    """Check `multipleOf` by the decimal numbers that were written: 19.99 is a multiple of 0.01, and not as floats."""
    if validator.is_type(value, "number") and not (
        math.isfinite(value) and (Fraction(str(value)) / Fraction(str(divisor))).denominator == 1
    ):
        yield ValidationError(f"{value!r} is not a multiple of {divisor}")


def _validator(schema: RegisteredSchema) -> Validator:
    """Return what checks values. Names of other schemas are relative to the id of this one, as they are in it. One that
    does not say its draft is of draft 7, as for registries. Raises ConfigError."""
    try:
        parsed = json.loads(schema.text)
        kind = validator_for(parsed, default=Draft7Validator)
        kind.check_schema(parsed)
        base = _resource(parsed).id() or ""
        known: Registry[Any] = Registry().with_resources(
            (uri, _resource(json.loads(text)))
            for name, text in zip(schema.names, schema.references, strict=True)
            for uri in {name, urljoin(base, name)}
        )
    except (ValueError, TypeError, SchemaError) as error:
        raise ConfigError(f"not a JSON Schema: {error}") from None
    checks: Validator = extend(kind, {"multipleOf": _multiple_of})(parsed, registry=known)  # type: ignore[no-untyped-call]
    return checks


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
