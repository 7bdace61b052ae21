"""Schema evolution: whether a table can take the columns of a run, decided before anything is read.

Every file of a table must be readable with the columns of the newest state; columns that a file lacks are null. So a
field may be added or dropped, and, in Parquet, an integer or a float may become wider and a struct may get more fields.
A change after which old rows would mean something else, or could not be read together with new ones, is refused: it
needs a new table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, TypeAlias

import pyarrow as pa

from odradek.errors import ConfigError
from odradek.pipeline.config import Pipeline
from odradek.pipeline.decode import stored_name
from odradek.pipeline.delta import refused
from odradek.pipeline.errors import TableMismatch
from odradek.pipeline.ledger import Fields, Ledger, LedgerEntry

__all__ = ["arrow_type", "check_fields", "check_layout", "conflicts", "known_fields", "type_name"]

Kind: TypeAlias = Any
"""A type as the ledger writes it: a word, or {"struct": fields}, {"array": kind}, {"map": [kind, kind]}."""

WIDENINGS: Mapping[str, tuple[str, ...]] = {
    "tinyint": ("smallint", "int", "bigint"), "smallint": ("int", "bigint"), "int": ("bigint",), "float": ("double",)
}  # fmt: skip

DDL_NAMES: Mapping[pa.DataType, str] = {
    pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint", pa.float32(): "float",
    pa.float64(): "double", pa.bool_(): "boolean", pa.string(): "string", pa.binary(): "binary", pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz", pa.timestamp("us", tz="UTC"): "timestamp",
}  # fmt: skip
"""Type names of Spark's DDL, as in pipeline files. Other types have their Arrow names."""

SPARK: Mapping[str, pa.DataType] = {
    **{word: kind for kind, word in DDL_NAMES.items()},
    "byte": pa.int8(), "short": pa.int16(), "integer": pa.int32(), "long": pa.int64(),
}  # fmt: skip

RAW: Fields = {"value": "binary"}


# ---- before a run --------------------------------------------------------------------------------------------


def check_layout(pipeline: Pipeline, name: str, ledger: Ledger) -> None:
    """Check that a flow keeps the directory layout of its table. Raises TableMismatch."""
    newest = next((entry for entry in reversed(ledger.entries()) if entry.kind == "append" and entry.files), None)
    if newest is None:
        return
    sink = pipeline.flows[name].sink
    kind = "delta" if (ledger.root / "_delta_log").is_dir() else "parquet"
    old_columns = [part.partition("=")[0] for part in PurePosixPath(newest.files[0].path).parts[:-1]]
    dated = {"date", "hour"} & set(old_columns)
    for key, old, new in (
        ("kind", kind, sink.kind),
        ("partition_by", old_columns, sink.partition_by),
        ("zone", newest.zone if dated else sink.zone, sink.zone),
    ):
        if old != new:
            where = pipeline.where("flows", name, "sink", key)
            raise TableMismatch(where, f"the table in {sink.path} was made with {old!r}, not {new!r}")


def check_fields(pipeline: Pipeline, name: str, ledger: Ledger, columns: Mapping[str, pa.DataType]) -> Fields:
    """Check that decoded columns fit a flow's table.

    Args:
        pipeline, name: The flow.
        ledger: The ledger of its table.
        columns: The decoded columns, by their names in the records.

    Returns:
        The fields, for the ledger.

    Raises:
        TableMismatch: This table cannot have these columns.
        ConfigError: No table can have them.
    """
    flow = pipeline.flows[name]
    key = {"json": "fields", "avro": "schema_file"}.get(flow.decode.kind, "kind")
    where = pipeline.where("flows", name, "decode", key)
    stored = {stored_name(column): type_name(kind) for column, kind in columns.items()}
    if len(stored) < len(columns):
        raise ConfigError(f"{where}: two fields would have the same name in the table: {', '.join(columns)}")
    delta = flow.sink.kind == "delta"
    if delta and (why := refused(columns)):
        raise ConfigError(f"{where}: {why}")
    wrong = list(conflicts(known_fields(ledger.entries()), stored, delta=delta))
    if wrong:
        raise TableMismatch(where, "; ".join(wrong))
    return stored


def arrow_type(kind: Any) -> pa.DataType:
    """Return the table's type for a type of Spark. Raises ConfigError for a type that a table cannot have."""
    match kind.typeName():
        case "struct":
            return pa.struct([pa.field(field.name, arrow_type(field.dataType)) for field in kind.fields])
        case "array":
            return pa.list_(arrow_type(kind.elementType))
        case "map":
            return pa.map_(arrow_type(kind.keyType), arrow_type(kind.valueType))
        case "decimal":
            return pa.decimal128(kind.precision, kind.scale)
        case word if word in SPARK:
            return SPARK[word]
    raise ConfigError(f"a table cannot have a column of type {kind.simpleString()}")


def type_name(kind: pa.DataType) -> Kind:
    """Return a type as the ledger writes it."""
    if isinstance(kind, pa.StructType):
        return {"struct": {field.name: type_name(field.type) for field in kind}}
    if isinstance(kind, pa.ListType):
        return {"array": type_name(kind.value_type)}
    if isinstance(kind, pa.MapType):
        return {"map": [type_name(kind.key_type), type_name(kind.item_type)]}
    return DDL_NAMES.get(kind, str(kind))


def known_fields(entries: Iterable[LedgerEntry]) -> dict[str, Kind]:
    """Return the fields of a table's files, each in its current type."""
    fields: dict[str, Kind] = {}
    for entry in entries:
        fields = _merged(fields, entry.fields)
    return fields


def _merged(old: Mapping[str, Kind], new: Mapping[str, Kind]) -> dict[str, Kind]:
    return {**old, **{name: _both(old[name], kind) if name in old else kind for name, kind in new.items()}}


def _both(old: Kind, new: Kind) -> Kind:
    """Return the type after a change: a struct keeps the fields that are no longer written."""
    match old, new:
        case {"struct": before}, {"struct": after}:
            return {"struct": _merged(before, after)}
        case {"array": before}, {"array": after}:
            return {"array": _both(before, after)}
        case {"map": [key, before]}, {"map": [_, after]}:
            return {"map": [key, _both(before, after)]}
    return new


def conflicts(old: Fields, new: Fields, *, delta: bool = False) -> Iterator[str]:
    """Describe why a table with the fields `old` cannot get files with the fields `new`; yield nothing if it can.

    Args:
        old: Fields of the existing files.
        new: Fields of the new files.
        delta: True for a Delta table, where a column keeps its exact type.
    """
    if old and (old == RAW) != (new == RAW):
        yield "one table cannot have both raw rows and decoded rows"
        return
    spelled = {name.casefold(): name for name in old}
    for name, kind in new.items():
        other = spelled.setdefault(name.casefold(), name)
        if other != name:
            yield f"{name} and {other} differ in case only, and most readers cannot distinguish them"
        elif name in old:
            yield from _changes(name, old[name], kind, delta)


def _changes(where: str, old: Kind, new: Kind, delta: bool) -> Iterator[str]:
    """Yield the reasons why a change of one field is not allowed."""
    if old == new:
        return
    match old, new:
        case {"struct": before}, {"struct": after} if not delta:
            for name in (name for name in after if name in before):
                yield from _changes(f"{where}.{name}", before[name], after[name], delta)
        case {"array": before}, {"array": after} if not delta:
            yield from _changes(f"{where}[]", before, after, delta)
        case {"map": [key, before]}, {"map": [same, after]} if key == same and not delta:
            yield from _changes(f"{where}[]", before, after, delta)
        case str(), str() if new in WIDENINGS.get(old, ()) and not delta:
            return
        case _:
            yield f"{where} is {_shown(old)} in the table, and cannot become {_shown(new)}"


def _shown(kind: Kind) -> str:
    match kind:
        case {"struct": fields}:
            return f"struct<{', '.join(f'{name}: {_shown(each)}' for name, each in fields.items())}>"
        case {"array": each}:
            return f"array<{_shown(each)}>"
        case {"map": [key, each]}:
            return f"map<{_shown(key)}, {_shown(each)}>"
    return str(kind)
