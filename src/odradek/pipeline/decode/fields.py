"""Types of fields: how Spark's DDL writes them, which numbers they take, and which texts, parsed without changing them.

    columns = name [":"] type ["not" "null"] ["comment" 'text'] { "," ... }
    type    = a word of TYPES | decimal[(precision[, scale])] | array<type> | map<type, type> | struct<columns>

Words are case-insensitive; a name in backticks may have any characters.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, DivisionByZero, Inexact, InvalidOperation, Overflow
from difflib import get_close_matches
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt

from odradek.errors import ConfigError
from odradek.pipeline.decode.dead import Convert, DeadReason, UndecodableError
from odradek.pipeline.layout import TIME

__all__ = [
    "DAY_US", "MAX_DEPTH", "MICROSECONDS", "MILLISECONDS", "TIME", "decimal_of_bytes", "limits_of", "parse_ddl",
    "parse_string", "text_parser", "type_name",
]  # fmt: skip

TYPES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(), "byte": pa.int8(), "smallint": pa.int16(), "short": pa.int16(),
    "int": pa.int32(), "integer": pa.int32(), "bigint": pa.int64(), "long": pa.int64(),
    "float": pa.float32(), "real": pa.float32(), "double": pa.float64(),
    "string": pa.string(), "binary": pa.binary(), "date": pa.date32(),
    "timestamp": TIME, "timestamp_ltz": TIME, "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip

DECIMAL = ("decimal", "dec", "numeric")
NESTED = ("array", "map", "struct")

MAX_DEPTH = 50  # of types: decoders follow them by recursion, and no table format needs more

MAX_CHARACTERS = 100_000

_NAMES = {kind: word for word, kind in reversed([*TYPES.items()])}


def parse_ddl(ddl: str) -> pa.Schema:
    """Return the Arrow schema of fields in Spark's DDL.

    Raises:
        ConfigError: It is not DDL, names a type that no table has, or a name twice. The message has the position.
    """
    if len(ddl) > MAX_CHARACTERS:
        raise ConfigError(f"fields have {len(ddl)} characters; the maximum is {MAX_CHARACTERS}")
    parser = _DdlParser(ddl)
    fields = parser.columns(0)
    parser.read(r"\Z", "a comma or the end")
    return pa.schema(fields)


class _DdlParser:
    """The text, and how many characters of it are read."""

    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        self._at = self._start = 0

    def read(self, pattern: str, needed: str = "") -> str:
        """Read what matches a pattern, after spaces, or nothing. Raises ConfigError if it is needed."""
        match = re.compile(rf"\s*({pattern})", re.IGNORECASE).match(self._ddl, self._at)
        if match is not None:
            self._start, self._at = match.start(1), match.end()
            return match[1]
        if needed:
            self._start = len(self._ddl) - len(self._ddl[self._at :].lstrip())
            raise self._error(f"expected {needed}")
        return ""

    def columns(self, depth: int) -> list[pa.Field[Any]]:
        """Read columns up to the end or the closing bracket."""
        fields: dict[str, pa.Field[Any]] = {}
        while True:
            name = self.read(r"\w+|`(?:[^`]|``)+`", "the name of a field")
            name = name[1:-1].replace("``", "`") if name.startswith("`") else name
            if name.casefold() in fields:
                raise self._error(f"the name {name} comes twice; most readers ignore case")
            self.read(":")
            kind, nullable = self._type(depth), not self.read(r"not\b")
            if not nullable:
                self.read(r"null\b", "NULL after NOT")
            if self.read(r"comment\b"):
                self.read(r"'[^']*'|\"[^\"]*\"", "a quoted text after COMMENT")
            fields[name.casefold()] = pa.field(name, kind, nullable)
            if not self.read(","):
                return list(fields.values())

    def _type(self, depth: int) -> pa.DataType:
        name = self.read(r"\w+", "a type")
        word = name.lower()
        if word in TYPES:
            return TYPES[word]
        if word in DECIMAL:
            return self._decimal()
        if word not in NESTED:
            near = get_close_matches(word, [*TYPES, *DECIMAL, *NESTED], n=1)
            raise self._error(f"unknown type {name!r}" + (f"; did you mean {near[0]}?" if near else ""))
        if depth >= MAX_DEPTH:
            raise self._error(f"more than {MAX_DEPTH} levels of types")
        self.read("<", "'<'")
        if word == "struct":
            kind: pa.DataType = pa.struct(self.columns(depth + 1))
        elif word == "array":
            kind = pa.list_(self._type(depth + 1))
        else:
            key = self._type(depth + 1)
            self.read(",", "','")
            kind = pa.map_(key, self._type(depth + 1))
        self.read(">", "'>'")
        return kind

    def _decimal(self) -> pa.DataType:
        start, precision, scale = self._start, 10, 0
        if self.read(r"\("):
            precision = int(self.read(r"[0-9]{1,3}\b", "a number of digits"))
            if self.read(","):
                scale = int(self.read(r"[0-9]{1,3}\b", "a number of digits"))
            self.read(r"\)", "')'")
        if not (1 <= precision <= 38 and 0 <= scale <= precision):
            self._start = start
            raise self._error(f"decimal({precision}, {scale}) does not exist: the precision is 1 to 38 digits")
        return pa.decimal128(precision, scale)

    def _error(self, why: str) -> ConfigError:
        where = "at the end" if self._start == len(self._ddl) else f"at character {self._start + 1}"
        return ConfigError(f"fields, {where}: {why}")


def type_name(kind: Any) -> str:
    """Return a type as DDL writes it, or Arrow's name if DDL has none."""
    if isinstance(kind, pa.StructType):
        return f"struct<{', '.join(f'{field.name}: {type_name(field.type)}' for field in kind)}>"
    if isinstance(kind, pa.MapType):
        return f"map<{type_name(kind.key_type)}, {type_name(kind.item_type)}>"
    if isinstance(kind, pa.ListType):
        return f"array<{type_name(kind.value_type)}>"
    if pt.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    return _NAMES.get(kind, str(kind))


# ---- values: the vectorized conversions of `columns` accept only what these accept, and give the same ---------

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY_US = 86_400_000_000
DAYS: Final = (date.min.toordinal() - _EPOCH_DAY, date.max.toordinal() - _EPOCH_DAY)  # of the years 1 to 9999
MICROSECONDS: Final = (DAYS[0] * DAY_US, DAYS[1] * DAY_US + DAY_US - 1)  # of the same years, in UTC
MILLISECONDS: Final = (pa.time32("ms"), pa.timestamp("ms"), pa.timestamp("ms", tz="UTC"))  # types of such numbers

_TIMESTAMP = re.compile(
    r"\d{4}-\d\d-\d\d"
    r"(?:[T ](?P<hour>\d\d)(?::\d\d(?::\d\d(?:\.(?P<fraction>\d{1,9}))?)?)?(?P<zone>Z|[+-]\d\d(?::?\d\d)?)?)?",
    re.ASCII,
)
_DECIMAL = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_EXACT = Context(prec=76, traps=[InvalidOperation, Inexact, Overflow, DivisionByZero])


def limits_of(kind: Any, per_unit: int = 1) -> tuple[int, int]:
    """Return the first and last number of a column of integers or times; in units of so many microseconds, but for a
    date."""
    if pt.is_date(kind):
        return DAYS
    if pt.is_timestamp(kind):
        return MICROSECONDS[0] // per_unit, MICROSECONDS[1] // per_unit
    if pt.is_time(kind):
        return 0, DAY_US // per_unit - 1
    maximum = (1 << (kind.bit_width - 1)) - 1
    return -maximum - 1, maximum


def _parse_date(text: str) -> int:
    """Return the days since the epoch of `YYYY-MM-DD`."""
    if (match := _TIMESTAMP.fullmatch(text)) is None or match["hour"]:
        raise UndecodableError(DeadReason.TYPE, "a date is YYYY-MM-DD")
    return _parse_timestamp(text, zoned=False) // DAY_US


def _parse_timestamp(text: str, *, zoned: bool) -> int:
    """Return the microseconds of a point in time, in UTC if it has no offset, or of a local time, which has none."""
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise UndecodableError(DeadReason.TYPE, "a timestamp is ISO 8601 like 2026-01-31T23:59:59.123456Z")
    if match["zone"] and not zoned:
        raise UndecodableError(DeadReason.TYPE, "a timestamp_ntz has no time zone; declare the field as timestamp")
    if (match["fraction"] or "")[6:].strip("0"):
        why = "timestamps keep six digits of a second; declare the field as string"
        raise UndecodableError(DeadReason.PRECISION, why)
    try:
        if match["hour"] == "24":  # which newer versions of Python take for the next day
            raise ValueError("hour must be in 0..23")
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise UndecodableError(DeadReason.RANGE, f"{error}; years are 1 to 9999, times up to 23:59:59") from None
    number = ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)
    if not MICROSECONDS[0] <= number <= MICROSECONDS[1]:
        raise UndecodableError(DeadReason.RANGE, "timestamps are of the years 1 to 9999 in UTC")
    return number


def _parse_decimal(text: str, kind: Any) -> Decimal:
    """Return a decimal with the scale of its type, without rounding."""
    if _DECIMAL.fullmatch(text) is None:
        raise UndecodableError(DeadReason.TYPE, "not a decimal number")
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise UndecodableError(DeadReason.RANGE, "the exponent is too large") from None
    before = kind.precision - kind.scale
    if number and number.adjusted() >= before:
        raise UndecodableError(DeadReason.RANGE, f"it has more than {before} digits before the point")
    try:
        return number.quantize(Decimal((0, (1,), -kind.scale)), context=_EXACT)
    except Inexact:
        raise UndecodableError(DeadReason.PRECISION, f"it has more than {kind.scale} digits after the point") from None


def _parse_base64(text: str) -> bytes:
    """Return the bytes of base64 (RFC 4648, section 4), which must be padded and canonical."""
    with suppress(ValueError):
        data = binascii.a2b_base64(text)
        if binascii.b2a_base64(data, newline=False).decode() == text:
            return data
    raise UndecodableError(DeadReason.TYPE, "binary is base64 in its canonical form, with padding")


def parse_string(text: str) -> str:
    """Return a text if it is whole: JSON can have half of a surrogate pair. Raises UndecodableError."""
    if not text.isascii() and _SURROGATE.search(text):
        raise UndecodableError(DeadReason.UNICODE, "has half of a surrogate pair, which is no character")
    return text


def decimal_of_bytes(data: bytes, kind: Any) -> Decimal:
    """Return the decimal of a big-endian number in two's complement. Raises UndecodableError."""
    number = int.from_bytes(data, "big", signed=True)
    if abs(number) >= 10**kind.precision:
        raise UndecodableError(DeadReason.RANGE, f"has more than {kind.precision} digits")
    return Decimal(number).scaleb(-kind.scale, _EXACT)


_TEXTS: Mapping[pa.DataType, Convert] = {
    pa.string(): parse_string, pa.binary(): _parse_base64, pa.date32(): _parse_date,
    pa.timestamp("us"): partial(_parse_timestamp, zoned=False), TIME: partial(_parse_timestamp, zoned=True),
}  # fmt: skip


def text_parser(kind: pa.DataType) -> Convert:
    """Return what parses texts of a column of strings, decimals, bytes or times. Raises KeyError for other columns."""
    return partial(_parse_decimal, kind=kind) if pt.is_decimal(kind) else _TEXTS[kind]
