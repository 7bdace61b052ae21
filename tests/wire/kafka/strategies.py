"""Hypothesis strategies made of the declarations."""

from __future__ import annotations

from typing import Any, TypeVar

from hypothesis import strategies as st

from odradek.wire.kafka.schema import (
    BYTES,
    RECORDS,
    STRINGS,
    UUID,
    Array,
    Field,
    Kind,
    Message,
    Nested,
    Primitive,
    Struct,
    fields_of,
)

__all__ = ["messages"]

S = TypeVar("S", bound=Struct)
M = TypeVar("M", bound=Message)

INTEGERS = {"b": (1, True), "h": (2, True), "H": (2, False), "i": (4, True), "I": (4, False), "q": (8, True)}
TAG_NUMBERS = st.integers(100, 2**31)  # above those of every declaration


def messages(cls: type[M], version: int) -> st.SearchStrategy[M]:
    """Values of a message that a version has bytes for, unknown tagged fields included."""
    return _structs(cls, version, cls.SPEC.is_flexible(version))


def _structs(cls: type[S], version: int, flexible: bool) -> st.SearchStrategy[S]:
    fields = {f.name: _field(f, version, flexible) for f in fields_of(cls) if f.is_in(version)}
    if flexible:
        fields["unknown_tags"] = _unknown_tags()
    return st.builds(cls, **fields)


def _unknown_tags() -> st.SearchStrategy[tuple[tuple[int, bytes], ...]]:
    tags = st.dictionaries(TAG_NUMBERS, st.binary(max_size=9), max_size=2)
    return st.just(()) | tags.map(lambda drawn: tuple(sorted(drawn.items())))


def _field(field: Field, version: int, flexible: bool) -> st.SearchStrategy[Any]:
    values = _values(field.kind, version, flexible)
    if field.is_nullable(version):
        values = st.none() | values
    return st.just(field.default) | values if field.tag is not None else values


def _values(kind: Kind, version: int, flexible: bool) -> st.SearchStrategy[Any]:
    match kind:
        case Nested(cls):
            return _structs(cls, version, flexible)
        case Array(element):
            return st.lists(_values(element, version, flexible), max_size=3).map(tuple)
        case Primitive(code=code) if code in INTEGERS:
            size, signed = INTEGERS[code]
            bits = 8 * size
            return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)
        case _:
            return _plain(kind)


def _plain(kind: Primitive) -> st.SearchStrategy[Any]:
    if kind in STRINGS:
        return st.text(max_size=12)
    if kind == UUID:
        return st.binary(min_size=16, max_size=16)
    if kind in (BYTES, RECORDS):
        return st.binary(max_size=200)
    return st.booleans() if kind.name == "boolean" else st.floats(allow_nan=False)
