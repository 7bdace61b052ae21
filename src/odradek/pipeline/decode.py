"""Decoding of records to columns, a batch at a time, with a reason for each row that cannot be decoded.

The input is rows of the data source. Spark decodes JSON itself before (`from_json`); Avro is decoded here, by fastavro.
Spark accepts any text that begins like JSON, so pydantic checks here that all of it is JSON.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute
import pyarrow.types as pt
from pydantic_core import from_json

from odradek.errors import ConfigError
from odradek.pipeline.times import TIME, times_of

__all__ = [
    "IDENTITY",
    "POSITION_COLUMNS",
    "RECORD_TIME",
    "DeadReason",
    "DecodeJob",
    "Decoded",
    "avro_fields",
    "decode",
    "load_avro",
    "stored_name",
]

pc: Any = pyarrow.compute
Array: TypeAlias = Any
"""A pyarrow array. The stubs have a type per kind of values, but here the kinds depend on the data."""

IDENTITY = ("topic", "broker", "partition", "offset", "index")
"""Columns of every table: the row's position in the log."""

POSITION_COLUMNS = (*IDENTITY, "nextOffset")
"""The identity of a row, and the position after it."""

RECORD_TIME = "record_time"

RESERVED = {*POSITION_COLUMNS, RECORD_TIME, "date", "hour"}

PARSED_COLUMN, MALFORMED = "record", "_odradek_malformed"
"""Spark's columns for JSON: one with the fields, and in it a field with the text if it does not match the schema."""


class DeadReason:
    """The reasons why records are dead; short, because they are counted."""

    CORRUPT = "corrupt message"
    EMPTY = "empty"
    TEXT = "not UTF-8"
    JSON = "not JSON of these fields"
    AVRO = "not Avro of this schema"
    TIME = "no time that can be used"
    BEHIND = "time too long before it was read"
    AHEAD = "time too long after it was read"


class DecodeJob(NamedTuple):
    """The decoding of a batch's values. Pickled into tasks.

    Args:
        kind: `raw`, `json` or `avro`.
        schema: Avro: the writer's schema, as JSON.
        time: The field with the record's time; None: there is none.
        time_format: As in the pipeline file.
        read_at: When the batch was planned (us since the epoch); the time of records that have none.
        behind, ahead: Maximum distance of a record's time before and after that (us); None: no limit.
    """

    kind: str
    schema: str = ""
    time: str | None = None
    time_format: str = "ms"
    read_at: int = 0
    behind: int | None = None
    ahead: int | None = None


class Decoded(NamedTuple):
    """The decoded rows of a batch.

    Args:
        names, columns: The decoded columns; null in dead rows.
        times: Times of the records.
        reasons: Why a row is dead; null if it is not.
    """

    names: Sequence[str]
    columns: Sequence[Array]
    times: Array
    reasons: Array


def stored_name(field: str) -> str:
    """Return a field's name in the table; names of the table's own columns get an underscore."""
    return f"{field}_" if field in RESERVED else field


def decode(job: DecodeJob, batch: pa.RecordBatch) -> Decoded:
    """Decode the rows of a batch."""
    reasons: Array = pa.nulls(batch.num_rows, pa.string())
    for name in ("error", "headers"):  # in 0.7, only corrupt messages have headers
        if name in batch.schema.names:
            reasons = _dead(reasons, pc.is_valid(batch[name]), DeadReason.CORRUPT)
    fields, reasons = _DECODERS[job.kind](job, batch, reasons)
    times: Array
    if job.time is None:
        times = pa.repeat(pa.scalar(job.read_at, pa.int64()), batch.num_rows).cast(TIME)
    else:
        times = times_of(fields[job.time], job.time_format)
        reasons = _dead(reasons, pc.is_null(times), DeadReason.TIME)
        reasons = _bounded(job, times, reasons)
    return Decoded([stored_name(name) for name in fields], list(fields.values()), times, reasons)


def _bounded(job: DecodeJob, times: Array, reasons: Array) -> Array:
    """Add reasons for times out of bounds: from wrong units, or clocks that were never set."""
    since: Array = pc.subtract(times.cast(pa.int64()), job.read_at)
    for limit, sign, why in ((job.behind, -1, DeadReason.BEHIND), (job.ahead, 1, DeadReason.AHEAD)):
        if limit is not None:
            far = pc.greater(pc.multiply(since, sign), limit)
            reasons = _dead(reasons, pc.fill_null(far, False), why)
    return reasons


def _dead(reasons: Array, which: Array, why: str) -> Array:
    """Set a reason for some rows; an earlier reason of a row stays."""
    return pc.if_else(pc.and_(which, pc.is_null(reasons)), pa.scalar(why), reasons)


Fields = tuple[Mapping[str, Array], Array]


def _raw(_job: DecodeJob, batch: pa.RecordBatch, reasons: Array) -> Fields:
    return {"value": batch["value"]}, reasons


def _json(_job: DecodeJob, batch: pa.RecordBatch, reasons: Array) -> Fields:
    values: Array = batch["value"]
    reasons = _dead(reasons, pc.fill_null(pc.equal(pc.binary_length(values), 0), True), DeadReason.EMPTY)
    record: Array = batch[PARSED_COLUMN]
    fields = dict(zip((field.name for field in record.type), record.flatten(), strict=True))
    malformed = fields.pop(MALFORMED)
    reasons = pc.coalesce(reasons, pa.array(map(_unsound, values.to_pylist()), pa.string()))
    reasons = _dead(reasons, pc.or_(pc.is_null(record), pc.is_valid(malformed)), DeadReason.JSON)
    return {name: _in_utc(column) for name, column in fields.items()}, reasons


def _unsound(value: bytes | None) -> str | None:
    """Return why a value is not exactly one JSON text (RFC 8259), or None if it is."""
    if value is None:
        return DeadReason.EMPTY
    try:
        from_json(value, allow_inf_nan=False, cache_strings="keys")
    except ValueError:
        return DeadReason.JSON if _is_utf8(value) else DeadReason.TEXT
    return None


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _in_utc(column: Array) -> Array:
    """Convert times to UTC: they come in the zone of Spark's session, which differs between machines."""
    zoned = pt.is_timestamp(column.type) and column.type.tz is not None
    return column.cast(TIME) if zoned else column


def _avro(job: DecodeJob, batch: pa.RecordBatch, reasons: Array) -> Fields:
    read = _avro_reader(job.schema)
    fields = avro_fields(job.schema)
    wanted: Array = pc.is_null(reasons)
    values: Array = batch["value"]
    records = [
        read(value) if want and value is not None else None
        for value, want in zip(values.to_pylist(), wanted.to_pylist(), strict=True)
    ]
    columns: dict[str, Array] = {}
    for name, kind in fields.items():
        columns[name] = pa.array([None if record is None else record[name] for record in records], kind)
    reasons = _dead(reasons, pa.array([record is None for record in records], pa.bool_()), DeadReason.AVRO)
    return columns, reasons


_DECODERS: Mapping[str, Callable[[DecodeJob, pa.RecordBatch, Array], Fields]] = {
    "raw": _raw, "json": _json, "avro": _avro
}  # fmt: skip


# ---- Avro ----------------------------------------------------------------------------------------------------


def _avro_reader(schema: str) -> Callable[[bytes], Mapping[str, Any] | None]:
    import fastavro

    parsed = fastavro.parse_schema(json.loads(schema))

    def read(value: bytes) -> Mapping[str, Any] | None:
        data = io.BytesIO(value)
        try:
            record = fastavro.schemaless_reader(data, parsed, None)
        except Exception:  # hostile bytes raise many kinds of errors
            return None
        return record if data.tell() == len(value) else None  # type: ignore[return-value]

    return read


def load_avro(path: str | Path) -> str:
    """Read a schema file.

    Raises:
        ConfigError: It cannot be read, is not the schema of a record, or has types that tables cannot have.
    """
    try:
        text = Path(path).read_text("utf-8")
        avro_fields(text)
    except (OSError, ValueError) as error:  # ConfigError is a ValueError
        raise ConfigError(f"schema_file {path}: {error}") from None
    return text


def avro_fields(schema: str) -> dict[str, pa.DataType]:
    """Return the Arrow type of each field. Raises ConfigError for a field that has none."""
    import fastavro
    from fastavro.schema import SchemaParseException, UnknownType

    try:
        root: Any = fastavro.parse_schema(json.loads(schema))  # every name in full
    except (SchemaParseException, UnknownType) as error:
        raise ConfigError(f"not a schema: {error!r}") from None
    if not isinstance(root, dict) or root.get("type") != "record":
        raise ConfigError("the schema must be that of a record")
    named: dict[str, Any] = {}
    kind: Any = _avro_type(root, named)
    return {field.name: field.type for field in kind}


_PRIMITIVES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "bytes": pa.binary(), "string": pa.string(), "null": pa.null(),
}  # fmt: skip
_LOGICAL: Mapping[str, pa.DataType] = {
    "date": pa.date32(), "timestamp-millis": TIME, "timestamp-micros": TIME,
    "local-timestamp-millis": pa.timestamp("us"), "local-timestamp-micros": pa.timestamp("us"),
    "time-millis": pa.time32("ms"), "time-micros": pa.time64("us"),
}  # fmt: skip


def _avro_type(node: Any, named: dict[str, pa.DataType]) -> pa.DataType:
    if isinstance(node, list):
        kinds = [kind for kind in node if kind != "null"]
        if len(kinds) != 1:
            raise ConfigError(f"a union of {len(kinds)} types has no column type: {node}")
        return _avro_type(kinds[0], named)
    if isinstance(node, str):
        if node in _PRIMITIVES:
            return _PRIMITIVES[node]
        if node not in named:
            raise ConfigError(f"type {node!r} is not known here, or contains itself")
        return named[node]
    return _avro_complex(node, named)


def _avro_complex(node: Mapping[str, Any], named: dict[str, pa.DataType]) -> pa.DataType:
    kind: pa.DataType
    match node["type"]:
        case "record":
            kind = pa.struct([pa.field(field["name"], _avro_type(field["type"], named)) for field in node["fields"]])
        case "enum":
            kind = pa.string()
        case "fixed" if node.get("logicalType") != "decimal":
            kind = pa.binary(node["size"])
        case "array":
            kind = pa.list_(_avro_type(node["items"], named))
        case "map":
            kind = pa.map_(pa.string(), _avro_type(node["values"], named))
        case _ if node.get("logicalType") == "decimal":
            kind = pa.decimal128(node["precision"], node.get("scale", 0))
        case _ if node.get("logicalType") in _LOGICAL:
            kind = _LOGICAL[node["logicalType"]]
        case inner:
            kind = _avro_type(inner, named)
    if "name" in node:
        named[node["name"]] = kind
    return kind
