"""Batches of records: which columns rows and dead letters have, and records that have nothing to decode."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odradek.arrow import record_batch
from odradek.errors import ConfigError
from odradek.pipeline.decode import DEAD_FIELDS, RESERVED, DeadReason, Decoding, parse_ddl, stored_name
from odradek.ranges.projection import COLUMNS, ERROR, HEADERS
from odradek.types import Columns, TopicPartition

from .records import batch, check_partition, dead_of, outcomes


def json_decoding(ddl: str) -> Decoding:
    return Decoding("json", parse_ddl(ddl))


def test_raw_keeps_every_value_and_null() -> None:
    values = [b"a", None, b"", b"\xff" * 100]
    made = Decoding("raw").decoder()
    decoded = made.decode(batch(values))
    check_partition(values, decoded)
    assert made.schema == pa.schema([pa.field("value", pa.binary())])
    assert decoded.rows.schema.names == ["key", "topic", "offset", "value"]
    assert decoded.rows["value"].to_pylist() == values


@pytest.mark.parametrize(
    "decoding",
    [
        json_decoding("id int"),
        Decoding("avro", schema='{"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}'),
    ],
)
def test_tombstones_and_empty_values_are_dead(decoding: Decoding) -> None:
    assert outcomes(decoding.decoder(), [None, b""]) == [("tombstone", None, None, None), ("empty", None, None, None)]


def test_all_columns_of_the_record_are_kept() -> None:
    values = [b'{"id": 1}', b"{", None]
    columns = Columns(positions=[5, 6, 7], next_positions=[6, 7, 8], values=values, timestamps=[1, 2, 3])
    records = record_batch(TopicPartition("orders", 3), columns)
    rows, dead = json_decoding("id int").decoder().decode(records)
    own = [name for name in records.schema.names if name != "value"]
    assert rows.schema.names == [*own, "id"]
    assert dead.schema.names == [*own, *(field.name for field in DEAD_FIELDS)]
    assert rows.select(own) == records.slice(0, 1).select(own)
    assert dead.select(own).to_pylist() == records.slice(1).select(own).to_pylist()
    assert dead["value"].to_pylist() == [b"{", None]
    assert dead["reason"].to_pylist() == ["syntax", "tombstone"]


def test_damaged_entries_of_the_log_are_dead_and_headers_are_no_damage() -> None:
    one = {
        "topic": "t",
        "partition": 0,
        "offset": 1,
        "value": b'{"id": 1}',
        "headers": [{"key": "error", "value": b"x"}],
    }
    schema = pa.schema([pa.field(column.name, column.arrow) for column in (*COLUMNS, HEADERS, ERROR)])
    records = pa.RecordBatch.from_pylist(
        [one, {**one, "error": "bad checksum"}, {**one, "value": None, "error": "x"}], schema
    )
    rows, dead = json_decoding("id int").decoder().decode(records)
    assert rows["id"].to_pylist() == [1]
    assert rows["headers"].to_pylist() == [one["headers"]]
    assert "error" not in rows.schema.names
    assert "error" not in dead.schema.names
    assert dead["reason"].to_pylist() == ["corrupt", "corrupt"]
    assert dead["message"][0].as_py() == "the entry of the log is damaged: bad checksum"
    raw_rows, raw_dead = Decoding("raw").decoder().decode(records)
    assert (raw_rows.num_rows, raw_dead.num_rows) == (1, 2)


def test_fields_named_like_columns_of_the_table_get_an_underscore() -> None:
    made = json_decoding("offset string, key string, value string, id int, date string").decoder()
    assert made.schema.names == ["offset_", "key_", "value", "id", "date_"]
    rows, _ = made.decode(batch([b'{"offset": "a", "key": "b", "value": "c", "id": 1, "date": "d"}']))
    assert rows.to_pylist() == [
        {"key": None, "topic": "t", "offset": 0, "offset_": "a", "key_": "b", "value": "c", "id": 1, "date_": "d"}
    ]
    for name in RESERVED:
        for written in (name, name.upper(), name.capitalize()):
            assert stored_name(written) == f"{written}_"


@pytest.mark.parametrize("kind", ["raw", "json"])
def test_an_empty_batch_has_the_columns_of_all_others(kind: Any) -> None:
    made = Decoding(kind, parse_ddl("id int")).decoder()
    some, none = made.decode(batch([b'{"id": 1}', b'{"id": 2}'])), made.decode(batch([]))
    assert none.rows.schema == some.rows.schema
    assert none.dead.schema == some.dead.schema
    assert (none.rows.num_rows, none.dead.num_rows) == (0, 0)
    sliced = made.decode(batch([b"{", b'{"id": 1}', b'{"id": 2}']).slice(1, 1))
    assert sliced.rows["offset"].to_pylist() == [1]


def test_a_batch_of_dead_letters_has_the_columns_of_rows() -> None:
    made = json_decoding("id int, at timestamp").decoder()
    rows, dead = made.decode(batch([b"{", None]))
    assert rows.schema == made.decode(batch([b"{}"])).rows.schema
    assert (rows.num_rows, dead.num_rows) == (0, 2)


def test_large_binary_values_are_decoded() -> None:
    records = batch([b'{"id": 1}', b"{"])
    large = records.set_column(1, "value", records["value"].cast(pa.large_binary()))
    rows, dead = json_decoding("id int").decoder().decode(large)
    assert rows["id"].to_pylist() == [1]
    assert dead.schema.field("value").type == pa.binary()


def test_a_decoding_can_be_pickled() -> None:
    decoding = pickle.loads(pickle.dumps(json_decoding("id int not null, m map<string, timestamp>")))
    assert outcomes(decoding.decoder(), [b'{"id": 1}'])[0] == {"id": 1, "m": None}


def test_rows_with_fields_that_are_not_null_can_be_written(tmp_path: Any) -> None:
    ddl = "id int not null, s struct<a: int not null>, l array<struct<b: string not null>>"
    values = [b'{"id": 1, "s": null}', b'{"id": 2, "s": {"a": 1}, "l": [null, {"b": "x"}]}', b'{"id": 3, "s": {}}']
    rows, dead = json_decoding(ddl).decoder().decode(batch(values))
    assert dead["field"].to_pylist() == ["s.a"]
    pq.write_table(pa.Table.from_batches([rows]), tmp_path / "rows.parquet")
    assert pq.read_table(tmp_path / "rows.parquet").to_pylist() == rows.to_pylist()


def test_reasons_are_the_codes_of_the_documentation() -> None:
    assert {str(reason) for reason in DeadReason} == {
        "corrupt", "tombstone", "empty", "unicode", "syntax", "trailing", "type", "range", "precision", "missing",
        "duplicate", "framing", "time", "schema",
    }  # fmt: skip


def test_messages_are_short_and_printable() -> None:
    letter = dead_of(json_decoding("id int").decoder(), b'{"id": "' + "\u00e9\u4e2d".encode() * 10_000 + b'"}')
    assert letter["message"].isascii()
    assert len(letter["message"]) < 500


def test_two_fields_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two fields would have the same name in the table, ignoring case: offset_"):
        json_decoding("offset int, offset_ int").decoder()
    schema = pa.schema([("a", pa.int32()), ("A", pa.int32())])
    with pytest.raises(ConfigError, match="ignoring case: A, a"):
        Decoding("json", schema).decoder()


def test_a_decoding_does_not_show_the_password_of_its_registry() -> None:
    decoding = Decoding("confluent", schema="{}", registry={"url": "http://x", "basic.auth.user.info": "me:secret"})
    assert "secret" not in repr(decoding)


def test_an_unknown_kind_is_refused() -> None:
    kind: Any = "xml"
    with pytest.raises(ConfigError, match="unknown kind 'xml'; choose from avro, confluent, json, protobuf, raw"):
        Decoding(kind).decoder()
