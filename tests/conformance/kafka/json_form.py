"""Kafka's JSON form of a message, made of a value and its declaration; names are mapped by rule."""

from __future__ import annotations

import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from typing import Any

from odradek.wire.kafka.schema import UUID, Array, Field, Kind, Nested, Struct, fields_of

__all__ = ["camel_case", "json_form", "recorded_tags", "unknown_tags"]


def json_form(value: Struct, version: int) -> dict[str, Any]:
    """Return what Kafka's JsonConverter writes: a tagged field only when it differs from its default."""
    shown = ((field, getattr(value, field.name)) for field in fields_of(type(value)) if field.is_in(version))
    return {
        camel_case(field.name): _json(field.kind, content, version)
        for field, content in shown
        if field.tag is None or content != field.default
    }


def _json(kind: Kind, value: Any, version: int) -> Any:
    if value is None:
        return None
    if isinstance(kind, Nested):
        return json_form(value, version)
    if isinstance(kind, Array):
        return [_json(kind.element, element, version) for element in value]
    if kind == UUID:
        return urlsafe_b64encode(value).decode().rstrip("=")
    return b64encode(value).decode() if isinstance(value, bytes | memoryview) else value


Tags = list[tuple[str, int, str]]


def recorded_tags(record: dict[str, Any]) -> Tags:
    """Return the unknown tags of a line of the corpus as (path, number, hexadecimal), sorted."""
    return sorted((tag["path"], tag["tag"], tag["hex"]) for tag in record["unknown_tags"])


def unknown_tags(value: Struct, version: int) -> Tags:
    """Return the tagged fields that the schema does not know, everywhere in a value, like `recorded_tags`."""
    return sorted(_unknown_tags(value, version, ""))


def _unknown_tags(value: Struct, version: int, path: str) -> Iterator[tuple[str, int, str]]:
    for number, content in value.unknown_tags:
        yield path, number, content.hex()
    for field in fields_of(type(value)):
        if field.is_in(version):
            for inner, where in _structs(field, getattr(value, field.name)):
                yield from _unknown_tags(inner, version, f"{path}.{where}".lstrip("."))


def _structs(field: Field, value: Any) -> Iterator[tuple[Struct, str]]:
    name = camel_case(field.name)
    if isinstance(value, Struct):
        yield value, name
    elif isinstance(value, tuple):
        yield from ((item, f"{name}[{index}]") for index, item in enumerate(value) if isinstance(item, Struct))


def camel_case(name: str) -> str:
    """A field's name in Kafka: `topicId` for `topic_id`."""
    return re.sub("_([a-z])", lambda letter: letter[1].upper(), name)
