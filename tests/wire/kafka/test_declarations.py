"""The declarations against what Kafka's own classes say of themselves (`fields.csv`, `api_table.csv`) and what brokers
offer (`api_versions.csv`)."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.kafka.apis import APIS
from tests.conformance.kafka.json_form import camel_case

from odradek.wire.kafka.headers import header_version
from odradek.wire.kafka.schema import Array, Field, Kind, Message, Nested, Primitive, Struct, fields_of

CORPUS = Path(__file__).parents[2] / "conformance" / "kafka" / "corpus"
Row = dict[str, str]

TYPES = {
    "boolean": "bool", "int8": "i8", "int16": "i16", "uint16": "u16", "int32": "i32", "uint32": "u32", "int64": "i64",
    "float64": "f64", "string": "str", "bytes": "bytes", "records": "records", "uuid": "uuid",
}  # fmt: skip
RENAMED = {
    (52, "topics.partitions.candidateId"): "topics.partitions.replicaId",
    (52, "topics.partitions.candidateEpoch"): "topics.partitions.replicaEpoch",
    (52, "topics.partitions.candidateDirectoryId"): "topics.partitions.replicaDirectoryId",
    (74, "clientMetricsResources"): "configResources",
    (74, "clientMetricsResources.name"): "configResources.resourceName",
}
NOT_FINAL = (87, "response")  # version 0 of 3.9 lacks leaderEpoch, and never became final


def table(name: str) -> list[Row]:
    with (CORPUS / name).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def versions(text: str) -> set[int]:
    """`3-5` or `3` or nothing."""
    first, _, last = text.partition("-")
    return set(range(int(first), int(last or first) + 1)) if text else set()


def flattened(cls: type[Struct], path: str, inside: set[int]) -> Iterator[tuple[str, Field, set[int], set[int]]]:
    """Every field with its path in Kafka's names, the versions that have it, and those that have its struct."""
    for field in fields_of(cls):
        name = f"{path}{camel_case(field.name)}"
        present = {version for version in inside if field.is_in(version)}
        yield name, field, present, inside
        kind = field.kind.element if isinstance(field.kind, Array) else field.kind
        if isinstance(kind, Nested):
            yield from flattened(kind.type, f"{name}.", present)


def type_name(kind: Kind) -> str:
    if isinstance(kind, Array):
        return f"[{type_name(kind.element)}]"
    return TYPES[kind.name] if isinstance(kind, Primitive) else "struct"


def default_name(field: Field) -> str:
    value: Any = field.default
    if isinstance(value, Struct):
        return "struct defaults"
    if isinstance(value, bool):
        return str(value).lower()
    names: dict[Any, str] = {None: "null", (): "[]", "": "''", b"": "empty bytes", bytes(16): "A" * 22}
    return names.get(value, str(value)) if isinstance(value, str | bytes | tuple | None) else str(value)


def declared(row: Row) -> type[Message]:
    api = APIS[int(row["key"])]
    return api.request if row["side"] == "request" else api.response


ROWS = [row for row in table("fields.csv") if row["key"] != "-1" and row["field"]]


def test_every_field_of_kafka_is_declared_with_the_same_properties() -> None:
    fields: dict[tuple[int, str, str], tuple[Field, set[int], set[int]]] = {}
    for api in APIS.values():
        for cls in (api.request, api.response):
            first, last = cls.SPEC.versions
            for name, field, present, inside in flattened(cls, "", set(range(first, last + 1))):
                fields[api.key, cls.SPEC.side, name] = field, present, inside
    api_table = {(row["source"], row["key"]): row for row in table("api_table.csv")}

    for row in ROWS:
        key = int(row["key"])
        known = api_table[row["source"], row["key"]]
        in_source = versions(f"{known['request_min']}-{known['request_max']}")
        name = RENAMED.get((key, row["field"]), row["field"]) if row["source"] == "3.9.1" else row["field"]
        field, present, inside = fields[key, row["side"], name]
        in_source &= inside
        if (key, row["side"]) == NOT_FINAL:
            in_source -= {0}
        assert present & in_source == versions(row["present"]) & in_source, row
        nullable = {version for version in present & in_source if field.is_nullable(version)}
        assert nullable == versions(row["nullable"]) & in_source, row
        assert type_name(field.kind) == row["type"].partition("struct")[0] + (
            "struct" + "]" * row["type"].startswith("[") if "struct" in row["type"] else ""
        ), row
        assert ("" if field.tag is None else str(field.tag)) == row["tag"], row
        assert default_name(field) == row["default"].strip('"'), row
        if row["absent_ignored"] or row["absent_rejected"]:
            assert field.ignorable == bool(row["absent_ignored"]), row
    assert len(ROWS) > 3000


def test_no_field_is_declared_that_kafka_does_not_have() -> None:
    named = {(int(row["key"]), row["side"], RENAMED.get((int(row["key"]), row["field"]), row["field"])) for row in ROWS}
    for api in APIS.values():
        for cls in (api.request, api.response):
            for name, *_ in flattened(cls, "", set(range(100))):
                assert (api.key, cls.SPEC.side, name) in named


@pytest.mark.parametrize("row", [row for row in table("api_table.csv") if row["request_min"]])
def test_versions_and_headers_are_those_of_kafka(row: Row) -> None:
    api = APIS[int(row["key"])]
    if row["source"] == "4.3.1":
        assert api.name == row["name"]
    for cls, headers in ((api.request, "request_header_versions"), (api.response, "response_header_versions")):
        for pair in row[headers].split():
            version, header = map(int, pair.split(":"))
            assert header_version(cls, version) == header
    assert api.versions[0] <= int(row["request_min"])
    assert api.versions[1] >= int(row["request_max"])
    assert api.request.SPEC.stable[1] >= int(row["stable_max"])
    assert api.request.SPEC.versions == api.response.SPEC.versions


def test_every_version_that_a_release_offers_is_declared_and_stable() -> None:
    rows = table("api_versions.csv")
    for row in rows:
        api = APIS[int(row["api_key"])]
        first, last = api.request.SPEC.stable
        assert first <= int(row["min"])
        assert int(row["max"]) <= last
        flexible = row["first_flexible_version"]
        assert api.request.SPEC.flexible == (int(flexible) if flexible else None), row
    assert {int(row["api_key"]) for row in rows} <= set(APIS) == set(range(93))
