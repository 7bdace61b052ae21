"""JSON records: Arrow's reader for whole slices, and Python's json for single records.

A slice of values is decoded in up to three steps:

1. Arrow's reader takes all of it. This is the usual case.
2. If it refuses, msgspec tells which records have other types than declared, and Arrow reads the others.
3. `read_json` decides about each record that is left, and says what is wrong with it.

The result for a record depends on nothing but the record: what one step accepts the next one accepts with the same
values. Fields with maps, which Arrow's reader does not have, are read in step 3.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from math import isinf
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.json
import pyarrow.types as pt

from odradek.errors import ConfigError
from odradek.pipeline.decode.columns import Array, Record, RowCollector, ValueDecoder, fit_rows, pc
from odradek.pipeline.decode.dead import Convert, DeadReason, UndecodableError, list_of, map_of, shorten
from odradek.pipeline.decode.fields import limits_of, parse_string, text_parser, type_name

__all__ = ["JsonDecoder", "parse_fields", "read_json"]

WIDE_DECIMAL = pa.decimal256(76, 38)
MAX_INTEGER_CHARACTERS = 20


class JsonDecoder(ValueDecoder):
    """Decodes values that are JSON objects with declared fields: all that DDL has, maps with keys that are strings."""

    def __init__(self, schema: pa.Schema) -> None:  # raises ConfigError
        super().__init__(schema)
        self._node = parse_fields(schema)
        self._wide = pa.schema(list(self._node.wide))
        self._read_wide = partial(read_json, node=parse_fields(self._wide))
        self._has_maps = any(_has_map(field.type) for field in schema)
        self._parse = msgspec.json.Decoder(self._node.hint).decode

    def _add(self, rows: RowCollector, indexes: Sequence[int], values: Array) -> None:
        columns = None if self._has_maps else _read_arrow(values, self._wide)
        if columns is None and not self._has_maps:
            usual = pa.array([self._is_usual(value) for value in values.to_pylist()], pa.bool_())
            indexes, values = rows.keep(usual, indexes, values)
            columns = _read_arrow(values, self._wide)
        if columns is None:
            rows.read_wide(indexes, values, self._read_wide, self._wide)
        else:
            rows.add_columns(indexes, values, columns, finite=True)

    def _is_usual(self, value: bytes) -> bool:
        """Return False for a record that Arrow's reader could refuse. This one does not notice duplicates."""
        try:
            self._parse(value.decode())
        except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
            return False
        return True

    def _read(self, value: bytes) -> Record:
        """Read a record exactly. Arrow's reader alone has no limit of levels, and takes Inf for Infinity."""
        try:
            return read_json(value, self._node)
        except UndecodableError as error:
            is_odd = error.reason is DeadReason.SYNTAX and (error.position is None or b"Inf" in value)
            if is_odd and not self._has_maps and (columns := _read_arrow(pa.array([value]), self._wide)) is not None:
                rows, wrong = fit_rows(columns, self.declared, finite=True)
                if wrong is None:
                    return dict(rows.to_pylist()[0])
            raise


# ---- Arrow's reader ------------------------------------------------------------------------------------------


def _read_arrow(values: Array, wide: pa.Schema) -> list[Array] | None:
    """Return the columns of records, or None if Arrow's reader refuses one, or could take it for something else.

    Arrow's reader finds records by their syntax, so it could take two for one. Between braces it cannot: the closing
    brace of a value, a line feed and the opening brace of the next one are only possible where a record begins, since
    strings have no line feeds. Each value is then at least one record, and the number of rows says whether each is
    exactly one. It also prevents a crash of the reader on a record that is `null`.
    """
    try:
        texts = pc.ascii_trim(values.cast(pa.string()), characters=" \t\n\r")  # the cast refuses what is not UTF-8
        if not pc.all(pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))).as_py():  # also if there are none
            return None
        data = pc.binary_join_element_wise(texts, pa.scalar(""), pa.scalar("\n")).buffers()[2].to_pybytes()
        if b"\0" in data:  # which is no JSON, and the end of all records for Arrow's reader
            return None
        reader: Any = pa.BufferReader(data)
        table = pyarrow.json.read_json(
            reader,
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=pyarrow.json.ParseOptions(explicit_schema=wide, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid:
        return None
    return [table[field.name].combine_chunks() for field in wide] if table.num_rows == len(values) else None


# ---- one record, exactly -------------------------------------------------------------------------------------


class _Object(list[tuple[str, Any]]):  # the members, duplicates included
    __slots__ = ()


class _Number(str):  # its text
    __slots__ = ()


class _NoNumber(str):  # NaN, Infinity or -Infinity
    __slots__ = ()


_DECODER = json.JSONDecoder(object_pairs_hook=_Object, parse_int=_Number, parse_float=_Number, parse_constant=_NoNumber)
_KINDS: Mapping[type, str] = {
    str: "a string", _Object: "an object", list: "an array", bool: "a boolean", type(None): "null",
    _Number: "a number", _NoNumber: "a number",
}  # fmt: skip
_SPACE = re.compile(r"[ \t\n\r]*")
_UNUSABLE = re.compile(r'["\\\x00-\x1f]')


def read_json(value: bytes, node: JsonNode) -> Record:
    """Return the declared fields of a record, null where one is absent: what they are is defined here.

    Python's json reads the record and keeps the text of each number and all members of each object. Fields that are
    not declared count for their syntax only: no number, surrogate or duplicate in them makes a record dead, and neither
    do NaN and Infinity, which are not JSON but written by many.

    Raises:
        UndecodableError: The record is dead. Without a position it has too many levels, about a thousand.
    """
    if not value:
        raise UndecodableError(DeadReason.EMPTY, "the value is empty, which is no JSON")
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        why = f"not UTF-8: {error.reason} at byte {error.start}; JSON is UTF-8"
        raise UndecodableError(DeadReason.UNICODE, why, None, error.start) from None
    start = _after_space(text, 0)
    try:
        parsed, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise UndecodableError(DeadReason.SYNTAX, f"not JSON: {error.msg}", None, _bytes(text, error.pos)) from None
    except RecursionError:
        why = "not JSON that can be read: it has too many levels of objects and arrays"
        raise UndecodableError(DeadReason.SYNTAX, why) from None
    if not isinstance(parsed, _Object):
        why = f"the record is {_KINDS[type(parsed)]}, not an object; use kind raw for records that are no objects"
        raise UndecodableError(DeadReason.TYPE, why, "an object", _bytes(text, start))
    end = _after_space(text, end)
    if end < len(text):
        why = f"{shorten(text[end : end + 100])} follows the end of the object; send one record a message"
        raise UndecodableError(DeadReason.TRAILING, why, None, _bytes(text, end))
    try:
        record: Record = node.convert(parsed)
    except UndecodableError as error:
        error.position = _bytes(text, _locate(text, start, error.steps))
        raise
    return record


def _after_space(text: str, at: int) -> int:
    match = None if text[at : at + 1] > " " else _SPACE.match(text, at)
    return match.end() if match else at


def _bytes(text: str, characters: int) -> int:
    return len(text[:characters].encode())


def _locate(text: str, at: int, steps: list[str | int]) -> int:
    """Return where the value at a path begins, or the object that does not have it. The text is JSON."""
    for step in steps:
        at = next((inner for key, inner in _members(text, at) if key == step), at)
    return at


def _members(text: str, at: int) -> Iterator[tuple[str | int, int]]:
    """Yield the key or the number, and the position, of each value in the object or array that begins at `at`."""
    is_object, number = text[at] == "{", 0
    at = _after_space(text, at + 1)
    while text[at] not in "}]":
        key: str | int = number
        if is_object:
            key, at = _DECODER.raw_decode(text, at)
            at = _after_space(text, _after_space(text, at) + 1)  # and the colon
        yield key, at
        at = _after_space(text, _DECODER.raw_decode(text, at)[1])
        if text[at] == ",":
            at = _after_space(text, at + 1)
        number += 1


# ---- declared fields -----------------------------------------------------------------------------------------


class JsonNode(NamedTuple):
    """Declared values, as each reader takes them."""

    wide: Any  # the type in which Arrow's reader gives them
    hint: Any  # the type that makes msgspec check their kinds, and nothing else
    convert: Convert  # of what Python's json gives


def parse_fields(fields: Iterable[pa.Field[Any]], prefix: str = "") -> JsonNode:
    """Return the declared fields of an object. Raises ConfigError."""
    nodes: dict[str, JsonNode] = {}
    for field in fields:
        if _UNUSABLE.search(field.name):
            why = "the name of a JSON field has no quote, backslash or control character here"
            raise ConfigError(f"{prefix + field.name!r}: {why}")
        nodes[field.name] = _node(field, f"{prefix}{field.name}")
    converters = [(name, node.convert) for name, node in nodes.items()]

    def convert(value: _Object) -> Record:
        members = dict(value)
        if len(members) < len(value):
            _check_unique([key for key, _ in value if key in nodes], UndecodableError.inside)
        record = {}
        for name, inner in converters:
            try:
                record[name] = inner(members.get(name))
            except UndecodableError as error:
                raise error.inside(name) from None
        return record

    hints = [(f"field_{number}", node.hint, None) for number, node in enumerate(nodes.values())]
    rename = {f"field_{number}": name for number, name in enumerate(nodes)}
    hint = msgspec.defstruct("Record", hints, rename=rename, gc=False)
    return JsonNode(pa.struct([pa.field(name, node.wide) for name, node in nodes.items()]), hint, convert)


def _node(field: pa.Field[Any], path: str) -> JsonNode:
    """Return the values of a field, null included. Raises ConfigError."""
    expected, nullable = type_name(field.type), field.nullable
    types, (wide, hint, parse) = _values(field.type, path)

    def convert(value: Any) -> Any:
        if type(value) not in types:
            if value is None and nullable:
                return None
            raise _mismatch(value, expected)
        try:
            return parse(value)
        except UndecodableError as error:
            if not error.steps:  # it is this value, and none inside of it
                error.expected = expected
                if error.reason is not DeadReason.UNICODE:
                    error.why = f"is {_shown(value)}, which {expected} cannot have: {error.why}"
            raise

    return JsonNode(wide, hint | None, convert)


def _values(kind: Any, path: str) -> tuple[tuple[type, ...], JsonNode]:
    """Return the classes of values that a column takes from Python's json, and the values without null."""
    if isinstance(kind, pa.StructType):
        return (_Object,), parse_fields(kind, f"{path}.")
    if isinstance(kind, pa.ListType):
        items = _node(kind.value_field, f"{path}[]")
        hint: Any = list[items.hint]  # type: ignore[name-defined]
        return (list,), JsonNode(pa.list_(items.wide), hint, partial(list_of, items.convert))
    if isinstance(kind, pa.MapType):
        if not pt.is_string(kind.key_type):
            raise ConfigError(f"{path}: the keys of a JSON object are strings, not {type_name(kind.key_type)}")
        items = _node(kind.item_field, f"{path}[]")
        return (_Object,), JsonNode(pa.map_(pa.string(), items.wide), dict, partial(_map, items.convert))
    if pt.is_boolean(kind):
        return (bool,), JsonNode(kind, bool, bool)
    if pt.is_signed_integer(kind):
        return (_Number,), JsonNode(pa.int64(), int, partial(_integer, limits_of(kind)))
    if pt.is_floating(kind):
        return (_Number,), JsonNode(kind, float, partial(_float, None if kind == pa.float64() else kind))
    try:
        parse = text_parser(kind)
    except KeyError:
        raise ConfigError(f"{path}: JSON cannot have a field of type {kind}") from None
    if pt.is_decimal(kind):
        return (_Number, str), JsonNode(WIDE_DECIMAL, Decimal, parse)
    return (str,), JsonNode(pa.string(), str, parse)


def _has_map(kind: Any) -> bool:
    return pt.is_map(kind) or any(_has_map(kind.field(number).type) for number in range(kind.num_fields))


def _map(convert: Convert, value: _Object) -> list[tuple[str, Any]]:
    keys = [parse_string(key) for key, _ in value]
    _check_unique(keys, UndecodableError.inside_map)
    return map_of(convert, value)


def _check_unique(keys: list[str], inside: Callable[[UndecodableError, str], UndecodableError]) -> None:
    for key, times in Counter(keys).items() if len(set(keys)) < len(keys) else ():
        if times > 1:
            raise inside(UndecodableError(DeadReason.DUPLICATE, f"comes {times} times"), key)


def _mismatch(value: Any, expected: str) -> UndecodableError:
    if value is None:
        return UndecodableError(DeadReason.MISSING, "is null or missing, and the field is not null", expected)
    if type(value) is _NoNumber:
        return UndecodableError(DeadReason.SYNTAX, f"is {value}, which is no JSON", expected)
    example = f", {_shown(value)}" if isinstance(value, str | bool) else ""
    why = f"is {_KINDS[type(value)]}{example}; expected {expected}: send that, or declare the field otherwise"
    return UndecodableError(DeadReason.TYPE, why, expected)


def _shown(value: Any) -> str:
    return shorten(value if type(value) is _Number else json.dumps(value, ensure_ascii=False))


def _integer(limits: tuple[int, int], text: str) -> int:
    if not (text.isdigit() or text[1:].isdigit()):
        raise UndecodableError(DeadReason.TYPE, "an integer has no fraction and no exponent")
    if len(text) <= MAX_INTEGER_CHARACTERS and limits[0] <= (number := int(text)) <= limits[1]:
        return number
    raise UndecodableError(DeadReason.RANGE, f"it is from {limits[0]} to {limits[1]}")


def _float(shorter: pa.DataType | None, text: str) -> float:
    """Round the text once, for a shorter type than 64 bits not to these before."""
    number: float = float(text) if shorter is None else pa.scalar(str(text)).cast(shorter).as_py()
    if isinf(number):
        raise UndecodableError(DeadReason.RANGE, "it is too large")
    return number
