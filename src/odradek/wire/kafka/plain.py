"""Messages as plain values: dict, list, str, int, float, bool, bytes and None, with the names of the declarations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeVar

from odradek.errors import ConfigError
from odradek.wire.kafka import messages
from odradek.wire.kafka.schema import BOOL, STRINGS, Array, Kind, Nested, Primitive, Request, Struct, fields_of

__all__ = ["from_plain", "request_type", "request_types", "to_plain"]

S = TypeVar("S", bound=Struct)

_FLOAT_CODE = "d"
_BUFFERS = (bytes, bytearray, memoryview)


@cache
def request_types() -> Mapping[str, type[Request[Any]]]:
    """Return the name of each API, such as `DescribeCluster`, and its request."""
    modules = [import_module(f"{messages.__name__}.{module.name}") for module in iter_modules(messages.__path__)]
    declared = {cls for module in modules for cls in vars(module).values() if isinstance(cls, type)}
    requests = [cls for cls in declared if issubclass(cls, Request) and cls is not Request]
    return {cls.SPEC.name: cls for cls in sorted(requests, key=lambda cls: cls.SPEC.key)}


def request_type(name: str) -> type[Request[Any]]:
    """Return the request of an API. Raises ConfigError, with the names of all, if there is none."""
    try:
        return request_types()[name]
    except KeyError:
        raise ConfigError(f"api={name!r}: there is no such API; there are {', '.join(request_types())}") from None


def from_plain(cls: type[S], fields: object, where: str = "fields") -> S:
    """Return a message, or a part of one, with these fields; others have their defaults.

    Whether numbers fit, null is allowed, and a version has a field is checked when the message is encoded.

    Args:
        cls: Its type.
        fields: Name -> value: a mapping for a struct, a sequence for an array.
        where: What `fields` is, in errors.

    Raises:
        ConfigError: There is no such field.
        TypeError: A value is of another type.
    """
    if not isinstance(fields, Mapping):
        raise _wrong(where, fields, "a mapping of fields")
    declared = {field.name: field.kind for field in fields_of(cls)}
    for name in fields:
        if name not in declared:
            raise ConfigError(f"{where}: {cls.__name__} has no field {name!r}; it has {', '.join(declared) or 'none'}")
    return cls(**{name: _value(declared[name], value, f"{where}.{name}") for name, value in fields.items()})


def _value(kind: Kind, value: object, where: str) -> Any:
    if value is None:
        return None
    if isinstance(kind, Nested):
        return from_plain(kind.type, value, where)
    if isinstance(kind, Array):
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise _wrong(where, value, "a sequence")
        return tuple(_value(kind.element, each, f"{where}[{index}]") for index, each in enumerate(value))
    types, allowed = _types(kind)
    if not isinstance(value, types) or isinstance(value, bool) is not (kind is BOOL):
        raise _wrong(where, value, allowed)
    return value


def _types(kind: Primitive) -> tuple[tuple[type, ...], str]:
    """Return the types of a primitive's values, and what errors call them."""
    if kind is BOOL:
        return (bool,), "True or False"
    if kind in STRINGS:
        return (str,), "a str"
    if kind.code == _FLOAT_CODE:
        return (int, float), "a number"
    if kind.code and not kind.code.endswith("s"):
        return (int,), "an int"
    return _BUFFERS, "bytes"


def _wrong(where: str, value: object, allowed: str) -> TypeError:
    return TypeError(f"{where} must be {allowed}, not {type(value).__name__}")


def to_plain(value: Any, version: int) -> Any:
    """Return a message, or a value in one, as plain values: the fields that this version has.

    Tagged fields that the declaration does not know are under `unknown_tags`, as pairs of number and bytes.
    """
    if isinstance(value, Struct):
        present = [field.name for field in fields_of(type(value)) if field.is_in(version)]
        fields = {name: to_plain(getattr(value, name), version) for name in present}
        return {**fields, "unknown_tags": list(value.unknown_tags)} if value.unknown_tags else fields
    if isinstance(value, tuple):
        return [to_plain(each, version) for each in value]
    return bytes(value) if isinstance(value, bytearray | memoryview) else value
