"""Which columns a table can get, and what the ledger and Delta say of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.pipeline.config import load
from odradek.pipeline.errors import TableMismatch
from odradek.pipeline.evolution import check_fields, check_layout, conflicts, known_fields, type_name

from .made import ROWS, Made

INT, LONG, TEXT, FLOAT, DOUBLE = pa.int32(), pa.int64(), pa.string(), pa.float32(), pa.float64()
ONE, TWO = pa.struct([("a", INT)]), pa.struct([("a", LONG), ("b", TEXT)])


def fields(**columns: pa.DataType) -> dict[str, Any]:
    return {name: type_name(kind) for name, kind in columns.items()}


@pytest.mark.parametrize(
    ("old", "new", "parquet", "delta"),
    [
        (fields(), fields(id=INT), "", ""),
        (fields(id=INT), fields(id=INT, more=TEXT), "", ""),
        (fields(id=INT, more=TEXT), fields(id=INT), "", ""),
        (fields(id=INT), fields(id=LONG), "", "id is int in the table, and cannot become bigint"),
        (fields(x=FLOAT), fields(x=DOUBLE), "", "x is float in the table, and cannot become double"),
        (fields(id=LONG), fields(id=INT), "id is bigint in the table, and cannot become int", "same"),
        (fields(id=LONG), fields(id=TEXT), "id is bigint in the table, and cannot become string", "same"),
        (fields(id=INT), fields(id=DOUBLE), "id is int in the table, and cannot become double", "same"),
        (
            fields(id=INT),
            fields(ID=INT),
            "ID and id differ in case only, and most readers cannot distinguish them",
            "same",
        ),
        (
            fields(s=ONE),
            fields(s=TWO),
            "",
            "s is struct<a: int> in the table, and cannot become struct<a: bigint, b: s",
        ),
        (fields(s=TWO), fields(s=ONE), "s.a is bigint in the table, and cannot become int", "s is struct<a: bigint, b"),
        (fields(s=pa.list_(ONE)), fields(s=pa.list_(TWO)), "", "s is array<struct<a: int>> in the table"),
        (
            fields(m=pa.map_(TEXT, INT)),
            fields(m=pa.map_(TEXT, TEXT)),
            "m[] is int in the table",
            "m is map<string, int>",
        ),
        (fields(m=pa.map_(TEXT, INT)), fields(m=pa.map_(INT, INT)), "m is map<string, int> in the table", "same"),
        (fields(s=ONE), fields(s=LONG), "s is struct<a: int> in the table, and cannot become bigint", "same"),
        (fields(d=pa.decimal128(9, 2)), fields(d=pa.decimal128(9, 3)), "d is decimal128(9, 2) in the table", "same"),
        (fields(value=pa.binary()), fields(id=INT), "one table cannot have both raw rows and decoded rows", "same"),
        (fields(id=INT), fields(value=pa.binary()), "one table cannot have both raw rows and decoded rows", "same"),
    ],
)
def test_a_table_keeps_what_it_has(old: Any, new: Any, parquet: str, delta: str) -> None:
    for expected, is_delta in ((parquet, False), (parquet if delta == "same" else delta, True)):
        conflict = "; ".join(conflicts(old, new, delta=is_delta))
        assert conflict.startswith(expected) and bool(conflict) == bool(expected)


def _struct(kinds: dict[str, pa.DataType]) -> pa.DataType:
    return pa.struct(list(kinds.items()))


SCALARS = st.sampled_from([pa.int8(), pa.int16(), INT, LONG, FLOAT, DOUBLE, TEXT, pa.bool_()])
KINDS = st.recursive(
    SCALARS,
    lambda inner: inner.map(pa.list_) | st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(_struct),
    max_leaves=5,
)
COLUMNS = st.dictionaries(st.sampled_from("xyz"), KINDS, max_size=3)


@given(st.lists(COLUMNS, min_size=1, max_size=3))
def test_files_of_all_states_of_a_table_are_read_together(
    tmp_path_factory: pytest.TempPathFactory, states: list[dict[str, pa.DataType]]
) -> None:
    """As the how-to says: with all columns, those of the newest type; nothing is refused that could not be, and what is
    allowed can be read."""
    root = tmp_path_factory.mktemp("t")
    allowed: list[dict[str, pa.DataType]] = []
    made: list[Path] = []
    known: dict[str, Any] = {}
    for number, state in enumerate(states):
        mine = fields(**state)
        if not list(conflicts(known, mine)):
            rows = pa.table({"n": [number], **{name: pa.array([None], kind) for name, kind in state.items()}})
            made.append(root / f"{number}.parquet")
            pq.write_table(rows, made[-1])
            known = known_fields([_Entry(known), _Entry(mine)])  # type: ignore[list-item]
            allowed.append(state)
    schema = pa.unify_schemas([pq.read_schema(path) for path in made], promote_options="permissive")
    assert {name: type_name(schema.field(name).type) for name in schema.names if name != "n"} == known
    read = ds.dataset(made, schema=schema).to_table()
    assert set(read["n"].to_pylist()) == {int(path.stem) for path in made}


class _Entry:
    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields


# ---- what a run is told --------------------------------------------------------------------------------------


def test_the_error_names_line_and_key_and_what_to_do(tmp_path: Path) -> None:
    made = Made(tmp_path, decode="json")
    made.log(ROWS)
    made.run(fields=fields(id=LONG), zone="UTC")
    pipeline = load(made.file)
    assert check_fields(pipeline, "orders", made.ledger, {"id": LONG, "date": TEXT}) == {
        "id": "bigint",
        "date_": "string",
    }
    line = made.file.read_text().splitlines().index('fields = "id bigint"') + 1
    with pytest.raises(TableMismatch) as caught:
        check_fields(pipeline, "orders", made.ledger, {"id": TEXT})
    said = str(caught.value)
    assert (
        f"{made.file}:{line}: flows.orders.decode.fields: id is bigint in the table, and cannot become string" in said
    )
    assert "another flow and sink.path" in said


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('partition_by = ["topic", "date"]', 'partition_by = ["date", "topic"]', "sink.partition_by"),
        ('partition_by = ["topic", "date"]', 'partition_by = ["topic", "date"]\nzone = "Europe/Berlin"', "sink.zone"),
        ('partition_by = ["topic", "date"]', 'partition_by = ["topic", "date"]\nkind = "delta"', "sink.kind"),
    ],
)
def test_the_directory_layout_of_a_table_cannot_change(tmp_path: Path, old: str, new: str, key: str) -> None:
    made = Made(tmp_path)
    check_layout(made.pipeline, "orders", made.ledger)
    made.log(ROWS)
    made.run(zone="UTC")
    check_layout(made.pipeline, "orders", made.ledger)
    made.file.write_text(made.file.read_text().replace(old, new))
    with pytest.raises(TableMismatch, match=rf"pipeline.toml:\d+: flows.orders.{key}: the table in .* was made with"):
        check_layout(made.pipeline, "orders", made.ledger)


def test_two_fields_that_would_be_called_the_same_are_refused(tmp_path: Path) -> None:
    made = Made(tmp_path, decode="json")
    with pytest.raises(ValueError, match="the same name in the table"):
        check_fields(made.pipeline, "orders", made.ledger, {"date": TEXT, "date_": TEXT})


def test_columns_delta_cannot_store_are_refused(tmp_path: Path) -> None:
    made = Made(tmp_path, decode="json")
    made.file.write_text(made.file.read_text().replace("[flows.orders.sink]", '[flows.orders.sink]\nkind = "delta"'))
    with pytest.raises(ValueError, match=r"decode.fields: .*Time64"):
        check_fields(made.pipeline, "orders", made.ledger, {"at": pa.time64("us")})
