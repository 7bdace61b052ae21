"""Dead letters: records that cannot be decoded, each with the reason, and where in the value it was found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

__all__ = [
    "DEAD_FIELDS", "Convert", "DeadLetter", "DeadReason", "UndecodableError", "list_of", "map_of", "shorten",
    "struct_of",
]  # fmt: skip

Convert: TypeAlias = Callable[[Any], Any]  # of what a record has to a value of a column, or raises UndecodableError

SHOWN = 40  # maximum characters of a value in a message: the whole value is in its own column


class DeadReason(StrEnum):
    """Codes of the reasons why records are dead. They are counted and compared, so they do not change."""

    CORRUPT = "corrupt"  # the log's entry is damaged, according to the reader of the log
    TOMBSTONE = "tombstone"  # the value is null, which only raw rows can have
    EMPTY = "empty"  # the value has no bytes, and its kind needs some
    UNICODE = "unicode"  # text that is not UTF-8, or has half of a surrogate pair
    SYNTAX = "syntax"  # bytes that are not of the kind at all, or end too early
    TRAILING = "trailing"  # bytes after the end of the record
    TYPE = "type"  # a value of another type than the field has
    RANGE = "range"  # a number or a time that the field's type cannot have
    PRECISION = "precision"  # a value with more digits than the field keeps
    MISSING = "missing"  # no value, or null, in a field that must have one
    DUPLICATE = "duplicate"  # a field, or a key of a map, that comes twice
    FRAMING = "framing"  # no header of the Confluent wire format
    TIME = "time"  # no time in the field with the record's time, or one that no calendar has
    SCHEMA = "schema"  # a schema id that the registry does not know, or a schema that does not fit the fields


class DeadLetter(NamedTuple):
    """The reason why a record is dead."""

    reason: DeadReason
    message: str
    field: str | None = None  # the path, like `items[2].price`; None: the record as a whole
    expected: str | None = None  # the declared type, as DDL writes it
    position: int | None = None  # bytes from the start of the value; None: not known


class UndecodableError(Exception):
    """A value cannot be decoded.

    A decoder of a field's value does not know where it is in the record: each decoder around it adds its own step
    to the path. The message is the path, and `why` after it.
    """

    def __init__(self, reason: DeadReason, why: str, expected: str | None = None, position: int | None = None) -> None:
        super().__init__(reason, why)
        self.reason, self.why, self.expected, self.position = reason, why, expected, position
        self.steps: list[str | int] = []  # names of fields, keys of maps and indexes of items, the outermost first
        self._path = ""

    def inside(self, step: str | int, shown: str = "") -> UndecodableError:
        """Add the outermost step, which the path shows as `.price` or `[2]`, or otherwise if `shown` says so."""
        self.steps.insert(0, step)
        self._path = (shown or (f"[{step}]" if isinstance(step, int) else f".{step}")) + self._path
        return self

    def inside_map(self, key: Any) -> UndecodableError:
        """Add a key of a map, as `["a b"]`."""
        return self.inside(key, f'["{shorten(str(key))}"]')

    @property
    def letter(self) -> DeadLetter:
        """The dead letter of the record."""
        path = self._path.removeprefix(".")
        message = f"{path} {self.why}" if path else self.why
        return DeadLetter(self.reason, message, path or None, self.expected, self.position)


def struct_of(getters: Iterable[tuple[str, Convert]], source: Any) -> dict[str, Any]:
    """Return the fields of a struct, each as its function takes it from the source."""
    fields: dict[str, Any] = {}
    for name, get in getters:
        try:
            fields[name] = get(source)
        except UndecodableError as error:
            raise error.inside(name) from None
    return fields


def list_of(convert: Convert, values: Iterable[Any]) -> list[Any]:
    """Return the items of a list, converted."""
    items: list[Any] = []
    for each in values:
        try:
            items.append(convert(each))
        except UndecodableError as error:
            raise error.inside(len(items)) from None
    return items


def map_of(convert: Convert, pairs: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return the pairs of a map with values converted."""
    items: list[tuple[Any, Any]] = []
    for key, each in pairs:
        try:
            items.append((key, convert(each)))
        except UndecodableError as error:
            raise error.inside_map(key) from None
    return items


DEAD_FIELDS = (
    pa.field("value", pa.binary()),
    pa.field("reason", pa.string(), nullable=False),
    pa.field("field", pa.string()),
    pa.field("expected", pa.string()),
    pa.field("position", pa.int64()),
    pa.field("message", pa.string(), nullable=False),
)
"""Columns of dead letters, after those of the record."""


def shorten(text: str) -> str:
    """Return text in printable ASCII for a message, cut after `SHOWN` characters."""
    cut = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
    return cut.encode("ascii", "backslashreplace").decode("ascii").replace("\n", "\\n").replace("\r", "\\r")
