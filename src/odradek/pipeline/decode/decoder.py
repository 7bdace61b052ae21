"""Decoding of records, a batch at a time: good rows with columns of their own, and dead letters with reasons.

    decoder = Decoding("json", fields=parse_ddl("id bigint, user string")).decoder()
    rows, dead = decoder.decode(batch)

No record fails a batch: each is in the rows or in the dead letters, in the order of the batch. Only what concerns all
records, such as a schema registry that cannot be reached, is an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import pyarrow as pa

from odradek.errors import ConfigError
from odradek.pipeline.decode.columns import Array, ValueDecoder, Values, pc
from odradek.pipeline.decode.dead import DEAD_FIELDS, DeadLetter, DeadReason
from odradek.pipeline.layout import RECORD_TIME

__all__ = ["RESERVED", "Decoded", "Decoder", "Decoding", "Kind", "stored_name"]

Kind: TypeAlias = Literal["raw", "json", "avro", "confluent", "protobuf"]

RESERVED = frozenset((
    "key", "topic", "partition", "offset", "timestamp", "timestampType", "broker", "index", "nextOffset", "headers",
    "record_time", "date", "hour",
))  # fmt: skip
"""Names of a table's own columns, which decoded fields cannot have."""
_RESERVED = frozenset(name.casefold() for name in RESERVED)

ERROR = "error"  # column of the reader: why an entry of the log is damaged, or null


def stored_name(name: str) -> str:
    """Return a field's name in the table; names of the table's own columns, in any case, get an underscore: most
    readers ignore case."""
    return f"{name}_" if name.casefold() in _RESERVED else name


class Decoded(NamedTuple):
    """A decoded batch. Rows and dead letters together are its records, each in order."""

    rows: pa.RecordBatch  # the record's columns except `value` and `error`, the decoded fields, and times if asked for
    dead: pa.RecordBatch  # the record's columns except `error`, and `DEAD_FIELDS`


@dataclass(frozen=True)
class Decoding:
    """The decoding of records' values. A plain value, which is pickled into tasks.

    Args:
        kind: The format of the values.
        fields: json: the columns. protobuf: the fields to take; None: all.
        schema: avro: the writer's schema, as JSON. confluent: the reader's.
        references: Schemas of types that it names, each after those that it names itself.
        descriptors: protobuf: the descriptor file that protoc wrote.
        message: protobuf: full name of the message.
        registry: confluent: settings of the schema registry's client, as confluent-kafka calls them, such as `url`.

    A payload of kind confluent is what its options say: Avro with `schema`, protobuf with `descriptors`, or JSON with
    `fields` alone.
    """

    kind: Kind
    fields: pa.Schema | None = None
    schema: str = ""
    descriptors: bytes = field(default=b"", repr=False)
    message: str = ""
    registry: Mapping[str, str] = field(default_factory=dict, repr=False)  # which may have a password
    references: tuple[str, ...] = ()

    def with_newest_schema(self, topics: Iterable[str]) -> Decoding:
        """Return the decoding with the registry's newest schema of the topics' values, if it has none of its own.

        Raises:
            ConfigError: There is none, or the topics have different ones.
            SchemaRegistryError: The registry does not answer.
        """
        if self.kind != "confluent" or self.schema or self.descriptors or self.fields is not None:
            return self
        from odradek.pipeline.decode.confluent import connect_registry

        newest = connect_registry(self.registry).newest(topics)
        return replace(self, schema=newest.text, references=newest.references)

    def decoder(self) -> Decoder:
        """Return a decoder for one task. Raises ConfigError if the options do not fit the kind."""
        return Decoder(self.value_decoder(self.kind))

    def value_decoder(self, kind: str) -> ValueDecoder:  # which imports the libraries of a kind only where it is used
        """Return a decoder of values, or of the payloads in them, of a kind. Raises ConfigError."""
        match kind:
            case "raw":
                return RawDecoder(pa.schema([pa.field("value", pa.binary())]))
            case "json":
                from odradek.pipeline.decode.json import JsonDecoder

                if not self.fields:
                    raise ConfigError("kind json needs fields")
                return JsonDecoder(self.fields)
            case "avro":
                from odradek.pipeline.decode.avro import AvroDecoder, parse_avro

                return AvroDecoder(parse_avro(self.schema, self.references))
            case "protobuf":
                from odradek.pipeline.decode.protobuf import ProtobufDecoder

                return ProtobufDecoder(self.descriptors, self.message, self.fields, indexed=self.kind == "confluent")
            case "confluent":
                from odradek.pipeline.decode.confluent import ConfluentDecoder, connect_registry

                return ConfluentDecoder(self, connect_registry(self.registry))
        raise ConfigError(f"unknown kind {kind!r}; choose from {', '.join(sorted(get_args(Kind)))}")


class RawDecoder(ValueDecoder):
    """Decoder that keeps values, null included, in a column `value`."""

    def decode(self, values: Array) -> Values:
        """Return the values; none of them is dead."""
        return Values(pa.RecordBatch.from_arrays([values.cast(pa.binary())], names=["value"]), {})


class Decoder:
    """Decodes batches of records."""

    def __init__(self, values: ValueDecoder) -> None:
        self._values = values
        self._keeps_null = isinstance(values, RawDecoder)
        self.schema = pa.schema([each.with_name(stored_name(each.name)) for each in values.schema])
        lower = [name.casefold() for name in self.schema.names]
        if twice := sorted({name for name in self.schema.names if lower.count(name.casefold()) > 1}):
            raise ConfigError(f"two fields would have the same name in the table, ignoring case: {', '.join(twice)}")

    def decode(self, records: pa.RecordBatch, times_of: Callable[[pa.RecordBatch], Array] | None = None) -> Decoded:
        """Decode a batch with a column `value`, and maybe a column `error`.

        `times_of` returns the times of rows, which become a column `RECORD_TIME`; rows without one are dead.
        """
        values: Array = records["value"]
        dead = self._dead_at_once(records)
        positions: Sequence[int] = range(records.num_rows)
        if dead:
            positions = [row for row in positions if row not in dead]
            values = values.take(pa.array(positions, pa.int64()))
        fields, undecodable = self._values.decode(values)
        dead.update({positions[index]: letter for index, letter in undecodable.items()})
        own = records.select([name for name in records.schema.names if name not in ("value", ERROR)])
        kept = own.filter(pa.array([row not in dead for row in range(own.num_rows)])) if dead else own
        rows = _beside(kept, fields.columns, self.schema)
        if times_of is not None:
            times = times_of(rows)
            rows = rows.append_column(RECORD_TIME, times)
            if times.null_count:
                good = [row for row in range(records.num_rows) if row not in dead]
                letter = DeadLetter(DeadReason.TIME, "no time")
                dead |= {good[row]: letter for row in pc.indices_nonzero(times.is_null()).to_pylist()}
                rows = rows.filter(times.is_valid())
        letters = [dead[row] for row in sorted(dead)]
        which = pa.array(sorted(dead), pa.int64())
        columns: list[Array] = [records["value"].take(which).cast(pa.binary())]
        columns += [pa.array([getattr(letter, each.name) for letter in letters], each.type) for each in DEAD_FIELDS[1:]]
        return Decoded(rows, _beside(own.take(which), columns, DEAD_FIELDS))

    def _dead_at_once(self, records: pa.RecordBatch) -> dict[int, DeadLetter]:
        """Return the records that have nothing to decode."""
        dead: dict[int, DeadLetter] = {}
        values: Array = records["value"]
        if values.null_count and not self._keeps_null:
            why = "the value is null, which deletes the key in a compacted topic; only kind raw keeps such a record"
            tombstone = DeadLetter(DeadReason.TOMBSTONE, why)
            dead = dict.fromkeys(pc.indices_nonzero(values.is_null()).to_pylist(), tombstone)
        if ERROR in records.schema.names:
            errors: Array = records[ERROR]
            for row in pc.indices_nonzero(errors.is_valid()).to_pylist():
                dead[row] = DeadLetter(DeadReason.CORRUPT, f"the entry of the log is damaged: {errors[row]}")
        return dead


def _beside(own: pa.RecordBatch, columns: list[Array], fields: Iterable[pa.Field[Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*own.columns, *columns], schema=pa.schema([*own.schema, *fields]))
