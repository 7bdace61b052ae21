"""Avro records in binary encoding, without a header: their columns, and how they are read.

fastavro reads each record and writes it again. If the bytes are the same, they can only be that record. Otherwise they
are damaged, or written in another way that the specification allows, such as arrays in several blocks or with their
sizes: then `_AvroRecord` decides, and says what is wrong and where. fastavro alone would not notice negative indexes,
which it takes from the end, or integers of more than 64 bits, which it cuts. It reads without logical types: these are
converted by column, where a value out of range is one record's and not an exception of the reader.

Source: the Avro specification 1.11, "Binary Encoding" and "Schema Resolution".
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from io import BytesIO
from operator import methodcaller
from typing import Any, NamedTuple, NoReturn

import fastavro
import pyarrow as pa

from odradek.errors import ConfigError
from odradek.pipeline.decode.columns import Array, Record, RowCollector, ValueDecoder, fit_rows
from odradek.pipeline.decode.dead import DeadReason, UndecodableError, list_of, map_of, struct_of
from odradek.pipeline.decode.fields import MAX_DEPTH, MILLISECONDS, TIME, decimal_of_bytes, limits_of, type_name
from odradek.registry.avro import decode_defaults, parse_schemas, without_logical_types

__all__ = ["AvroDecoder", "AvroNode", "AvroSchema", "parse_avro", "read_avro"]

MAX_VARINT_BYTES = 10


class AvroDecoder(ValueDecoder):
    """Decodes values that are records of a writer's schema to the columns of a reader's, by default the same."""

    def __init__(self, writer: AvroSchema, reader: AvroSchema | None = None) -> None:
        self.writer, self._reader = writer, reader
        root = (reader or writer).root
        if _lacks_fields(root):
            raise ConfigError("the Avro schema has a record without fields, and no column has none")
        super().__init__(pa.schema(list(root.column)))
        self._wide = pa.schema(list(root.wide))

    def _add(self, rows: RowCollector, indexes: Sequence[int], values: Array) -> None:
        rows.read_wide(indexes, values, self._read_fast, self._wide)

    def _read_fast(self, value: bytes) -> Record:
        """Return a record in wide types if its bytes are exactly those that fastavro writes."""
        named = self._reader is not None  # which of several records it was, or another could be written
        record: Any = fastavro.schemaless_reader(BytesIO(value), self.writer.plain, None, return_record_name=named)
        written = BytesIO()
        fastavro.schemaless_writer(written, self.writer.plain, record)
        if written.getvalue() != value:
            raise ValueError("damaged, or written in another way")
        fields: Record = record if self._reader is None else self._resolve(value, self._reader)
        return fields

    def _resolve(self, value: bytes, reader: AvroSchema) -> Any:
        return fastavro.schemaless_reader(BytesIO(value), self.writer.plain, reader.plain)

    def _read(self, value: bytes) -> Record:
        if not value and self.writer.root.size:
            raise UndecodableError(DeadReason.EMPTY, "the value is empty, which is no record of this schema")
        record = read_avro(value, self.writer.root)
        if self._reader is None:
            return record
        try:
            resolved = self._resolve(value, self._reader)
            columns = [pa.array([resolved[field.name]], field.type) for field in self._wide]
            rows, wrong = fit_rows(columns, self.schema)
            if wrong is not None:
                raise ValueError("a number is out of the range of its field")
        except Exception as error:  # such as a symbol that the reader's enum does not have
            why = f"the record does not fit the table's schema: {type(error).__name__}: {error}"
            raise UndecodableError(DeadReason.SCHEMA, why[:500]) from None
        return dict(rows.to_pylist()[0])


# ---- one record, exactly -------------------------------------------------------------------------------------


def read_avro(data: bytes, root: AvroNode) -> Record:
    """Return the fields of a record, as pyarrow takes them. Raises UndecodableError."""
    reader = _AvroRecord(data)
    record: Record = reader.value(root)
    if reader.at < len(data):
        why = f"{len(data) - reader.at} bytes follow the end of the record; was it written with this schema?"
        raise UndecodableError(DeadReason.TRAILING, why, None, reader.at)
    return record


class _AvroRecord:
    """The bytes of a record, and how many of them are read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def value(self, node: AvroNode) -> Any:
        """Read a value of a type."""
        match node.kind:
            case "null":
                return None
            case "record":
                fields = ((name, methodcaller("value", child)) for name, child in node.children.items())
                return struct_of(fields, self)
            case "array":
                return list_of(self.value, self._items(node))
            case "map":
                return map_of(self.value, self._pairs(node))
            case "optional" | "enum":
                return self._choice(node)
            case "boolean":
                return bool(self._range(self._take(1, node)[0], 0, 1, node, self.at - 1, DeadReason.SYNTAX))
            case "int" | "long":
                start, per_unit = self.at, 1000 if node.wide in MILLISECONDS else 1
                limits = limits_of(node.column, per_unit)
                return self._range(self._varint(node), *limits, node, start, DeadReason.RANGE) * per_unit
            case "float" | "double":
                return struct.unpack("<f" if node.size == 4 else "<d", self._take(node.size, node))[0]
            case "other":
                raise UndecodableError(
                    DeadReason.SCHEMA, f"is damaged, or not as fastavro writes it: {node.why}", None, self.at
                )
        return self._bytes(node)

    def _take(self, size: int, node: AvroNode) -> bytes:
        if not 0 <= size <= len(self._data) - self.at:
            self._fail(DeadReason.SYNTAX, f"is not Avro of this schema: it has no {size} bytes", node, self.at)
        self.at += size
        return self._data[self.at - size : self.at]

    def _varint(self, node: AvroNode) -> int:
        """Read an integer of 64 bits in zigzag coding, which may be longer than necessary."""
        start, number, shift, byte = self.at, 0, 0, 0x80
        while byte >= 0x80:
            if self.at - start >= MAX_VARINT_BYTES:
                self._fail(DeadReason.SYNTAX, "has an integer of more than 10 bytes", node, start)
            byte = self._take(1, node)[0]
            number |= (byte & 0x7F) << shift
            shift += 7
        if number >> 64:
            self._fail(DeadReason.RANGE, "has an integer of more than 64 bits", node, start)
        return (number >> 1) ^ -(number & 1)

    def _choice(self, node: AvroNode) -> Any:
        """Read the index of an enum's symbol, or that of a union's type and its value."""
        reason = DeadReason.RANGE if node.kind == "enum" else DeadReason.SYNTAX
        start = self.at
        symbol = node.symbols[self._range(self._varint(node), 0, len(node.symbols) - 1, node, start, reason)]
        if node.kind == "enum":
            return symbol
        return None if symbol == "null" else self.value(node.children["value"])

    def _bytes(self, node: AvroNode) -> bytes | str | Decimal:
        size = node.size if node.kind == "fixed" else self._varint(node)
        start, data = self.at, self._take(size, node)
        try:
            if node.kind == "string":
                return data.decode()
            return decimal_of_bytes(data, node.column) if pa.types.is_decimal(node.column) else data
        except UnicodeDecodeError as error:
            self._fail(DeadReason.UNICODE, f"is not UTF-8: {error.reason}", node, start + error.start)
        except UndecodableError as error:
            self._fail(error.reason, error.why, node, start)

    def _pairs(self, node: AvroNode) -> Iterator[tuple[str, AvroNode]]:
        """Yield the key and the type of each value of a map, before it is read."""
        keys: set[str] = set()
        for values in self._items(node):
            start = self.at
            key = str(self._bytes(_PRIMITIVES["string"]))
            if key in keys:
                error = UndecodableError(DeadReason.DUPLICATE, "comes twice", type_name(node.column), start)
                raise error.inside_map(key)
            keys.add(key)
            yield key, values

    def _items(self, node: AvroNode) -> Iterator[AvroNode]:
        """Yield the type of each item of an array or a map, before it is read."""
        items, start = node.children["value"], self.at
        minimum = items.size + (node.kind == "map")
        while count := self._varint(node):
            if count < 0:
                self._varint(node)  # the size of the block in bytes, for readers that skip it
            if abs(count) * minimum > len(self._data) - self.at:
                why = f"is not Avro of this schema: {abs(count)} items are more than fit in the rest of the value"
                self._fail(DeadReason.SYNTAX, why, node, start)
            for _ in range(abs(count)):
                yield items
            start = self.at

    def _range(self, number: int, minimum: int, maximum: int, node: AvroNode, at: int, reason: DeadReason) -> int:
        if not minimum <= number <= maximum:
            what = node.kind if node.kind in ("enum", "optional", "boolean") else type_name(node.column)
            self._fail(reason, f"is {number}, which {what} cannot have: it is from {minimum} to {maximum}", node, at)
        return number

    def _fail(self, reason: DeadReason, why: str, node: AvroNode, at: int) -> NoReturn:
        raise UndecodableError(reason, why, type_name(node.column), at)


# ---- schemas -------------------------------------------------------------------------------------------------


class AvroNode(NamedTuple):
    """One type of a schema."""

    kind: str  # Avro's type, with `optional` for a union with null, and `other` for a type that no column has
    column: Any  # the type of its column
    wide: Any  # the type of an array of what fastavro reads
    children: Mapping[str, AvroNode] = {}  # fields of a record by name; otherwise `value`
    size: int = 1  # bytes of a fixed; minimum bytes of all others
    symbols: tuple[str, ...] = ()  # of an enum; `null` and the name of the other type, in order, of a union
    aliases: Mapping[str, tuple[str, ...]] = {}  # other names of a record's fields, by name
    why: str = ""  # why no column has the type


class AvroSchema(NamedTuple):
    """The schema of a record."""

    root: AvroNode
    plain: Any  # without logical types, as fastavro has parsed it


def parse_avro(text: str, references: tuple[str, ...] = (), *, lenient: bool = False) -> AvroSchema:
    """Parse the schema of a record, as JSON, and the schemas of types that it names, each after those it names itself.

    Args:
        text: The schema.
        references: Those of types that it names.
        lenient: Fields may have types that no column has: the values are resolved to a schema without these fields.

    Raises:
        ConfigError: It is not the schema of a record, or has a type that tables cannot have.
    """
    named: dict[str, AvroNode | None] = {}
    types: dict[str, Any] = {}
    try:
        for schema in parse_schemas((*references, text), types):
            root = _node(schema, named, lenient=lenient)
    except ConfigError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"not an Avro schema: {error!r}") from None
    if root.kind != "record":
        raise ConfigError(f"the Avro schema must be that of a record, not {root.kind}")
    plain = without_logical_types(schema)
    decode_defaults(plain, without_logical_types(types))
    return AvroSchema(root, plain)


def _lacks_fields(node: AvroNode) -> bool:
    return (node.kind == "record" and not node.children) or any(map(_lacks_fields, node.children.values()))


_PRIMITIVES: Mapping[str, AvroNode] = {
    kind: AvroNode(kind, column, column, size=size)
    for kind, column, size in (
        ("null", pa.null(), 0), ("boolean", pa.bool_(), 1), ("long", pa.int64(), 1), ("float", pa.float32(), 4),
        ("double", pa.float64(), 8), ("bytes", pa.binary(), 1), ("string", pa.string(), 1),
    )
} | {"int": AvroNode("int", pa.int32(), pa.int64())}  # fmt: skip
_LOGICAL: Mapping[tuple[str, Any], tuple[pa.DataType, pa.DataType]] = {
    ("int", "date"): (pa.date32(), pa.int64()),
    ("int", "time-millis"): (pa.time64("us"), pa.time32("ms")),  # tables have no time of milliseconds
    ("long", "time-micros"): (pa.time64("us"), pa.int64()),
    ("long", "timestamp-millis"): (TIME, pa.timestamp("ms", tz="UTC")),
    ("long", "timestamp-micros"): (TIME, TIME),
    ("long", "local-timestamp-millis"): (pa.timestamp("us"), pa.timestamp("ms")),
    ("long", "local-timestamp-micros"): (pa.timestamp("us"), pa.timestamp("us")),
}
"""Types with a meaning: that of the column, and that of the numbers in an array."""


def _node(schema: Any, named: dict[str, AvroNode | None], depth: int = 0, *, lenient: bool = False) -> AvroNode:
    """Return the node of a schema that fastavro has parsed, whose names are full. Raises ConfigError, KeyError."""
    if depth > MAX_DEPTH:
        raise ConfigError(f"the Avro schema has more than {MAX_DEPTH} levels")
    inner = partial(_node, named=named, depth=depth + 1, lenient=lenient)
    if isinstance(schema, dict):
        return _complex(schema, named, inner, lenient=lenient)
    if isinstance(schema, str):
        node = _PRIMITIVES.get(schema) or named[schema]
        if node is None:
            raise ConfigError(f"the Avro type {schema} contains itself: no column has such a type")
        return node
    others = [each for each in schema if each != "null"]
    if len(others) != 1:
        raise ConfigError(f"a union of {len(others)} types has no column type: {json.dumps(schema)[:200]}")
    node = inner(others[0])
    kinds = tuple("null" if each == "null" else node.kind for each in schema)
    return AvroNode("optional", node.column, node.wide, {"value": node}, symbols=kinds)


def _complex(
    schema: Any, named: dict[str, AvroNode | None], inner: Callable[[Any], AvroNode], *, lenient: bool
) -> AvroNode:
    kind = schema["type"]
    match kind:
        case "array" | "map":
            child = inner(schema["items" if kind == "array" else "values"])
            if kind == "array" and not child.size:
                why = "an array of items without bytes has no column type: any number of them takes no space"
                raise ConfigError(why)
            of: Any = pa.list_ if kind == "array" else partial(pa.map_, pa.string())
            return AvroNode(kind, of(child.column), of(child.wide), {"value": child})
        case "record":
            named[schema["name"]] = None  # until it is complete
            read = partial(_or_other, inner) if lenient else inner
            children = {field["name"]: read(field["type"]) for field in schema["fields"]}
            column: Any = pa.struct([(name, child.column) for name, child in children.items()])
            wide: Any = pa.struct([(name, child.wide) for name, child in children.items()])
            aliases = {field["name"]: tuple(field.get("aliases") or ()) for field in schema["fields"]}
            size = sum(child.size for child in children.values())
            node = AvroNode(kind, column, wide, children, size, aliases=aliases)
        case "enum":
            node = AvroNode(kind, pa.string(), pa.string(), symbols=tuple(schema["symbols"]))
        case "fixed":
            node = AvroNode(kind, pa.binary(schema["size"]), pa.binary(schema["size"]), size=schema["size"])
        case _:
            node = inner(kind)
    logical = schema.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        node = node._replace(column=_decimal(schema))
    elif (kind, logical) in _LOGICAL:
        column, wide = _LOGICAL[kind, logical]
        node = node._replace(column=column, wide=wide)
    if kind in ("record", "enum", "fixed"):
        named[schema["name"]] = node
    return node


def _or_other(inner: Callable[[Any], AvroNode], kind: Any) -> AvroNode:
    """Return the node of a field's type, also of one that no column has."""
    try:
        return inner(kind)
    except ConfigError as error:
        why = error.message()
    except KeyError as error:  # a name that only such a type has defined
        why = f"the type {error} has no column type"
    return AvroNode("other", pa.null(), pa.null(), size=0, why=why)


def _decimal(schema: Any) -> pa.DataType:
    precision, scale = schema["precision"], schema.get("scale", 0)
    if not 0 < precision <= 38:
        raise ConfigError(f"a decimal of {precision} digits has no column type; the maximum is 38")
    return pa.decimal128(precision, scale)
