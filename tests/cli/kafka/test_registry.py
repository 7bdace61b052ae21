"""`odradek cat --registry`: values of all formats, at a real broker and a registry in a thread."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator

import anyio
import pytest

import odradek as od
from odradek.registry import SchemaRegistry

from ...registry.fake import FakeRegistry, serving
from ...registry.messages import Inner, Order, make_inner, make_order
from ..conftest import Command, jsons
from .conftest import Run

AVRO = json.dumps(
    {
        "type": "record",
        "name": "Sale",
        "fields": [
            {"name": "id", "type": "int"},
            {"name": "raw", "type": "bytes"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        ],
    }
)
SALE = {"id": 5, "raw": b"\xff", "at": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)}
JSON = json.dumps({"title": "note", "type": "object"})


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with serving() as running:
        yield running


async def write(cluster: str, topic: str, url: str) -> None:
    """Write a value of each format, a tombstone, and one that names no schema."""
    async with SchemaRegistry(url) as registry, od.connect(cluster) as k:
        formats = [
            (registry.avro(AVRO), SALE),
            (registry.json_schema(JSON, subject="record"), {"a": [1]}),
            (registry.protobuf(Order, subject="record"), make_order()),
            (registry.protobuf(Inner, subject="record", framing="header"), make_inner()),
        ]
        for number, (serde, value) in enumerate(formats):
            async with k.producer(value_serializer=serde) as out:
                await out.send(topic, value, key=b"%d" % number, partition=0)
        async with k.producer() as plain:
            await plain.send(topic, None, key=b"none", partition=0)
            await plain.send(topic, b"plain", key=b"plain", partition=0)
            await plain.send(topic, b"\0\0\0\0\x63x", key=b"unknown", partition=0)
        async with k.producer(
            key_serializer=registry.avro(json.dumps("string")), value_serializer=registry.avro(AVRO)
        ) as out:
            await out.send(topic, SALE, key="the key", partition=0)


def test_values_of_every_format_are_json(
    odradek: Command, cluster: str, created: str, registry: FakeRegistry, call: Run
) -> None:
    anyio.run(write, cluster, created, registry.url)
    options = ["--registry", registry.url]
    code, output, errors = call("cat", created, *options, "--json")
    assert code == 1
    assert errors.count(f"{created}/0") == 2
    assert "not Confluent's wire format" in errors and "the registry has no schema 99" in errors
    rows = jsons(output)
    assert rows[0]["value"] == {"id": 5, "raw": "/w==", "at": "2026-01-02T00:00:00+00:00"}
    assert rows[1]["value"] == {"a": [1]}
    assert (rows[2]["value"], rows[2]["key"]) == ({"id": "7", "price": {"cents": "-250"}}, "2")
    assert [row["value"] for row in rows[3:5]] == [{"note": "hi"}, None]
    assert len(rows) == 6
    with_keys = odradek("cat", created, *options, "-o", "7", "-p", "0", "--registry-keys", "-K", "=")
    assert with_keys.startswith('"the key"={"id": 5')
    assert odradek("cat", created, *options, "-c", "1", "--grep", '"a": .1').strip() == '{"a": [1]}'


def test_a_registry_that_is_away_ends_the_command(
    call: Run, cluster: str, created: str, registry: FakeRegistry
) -> None:
    anyio.run(write, cluster, created, registry.url)
    registry.faults += 100 * [(401, b'{"message": "who are you"}')]
    code, output, errors = call("cat", created, "--registry", registry.url, "-p", "0", "-c", "1")
    assert (code, output) == (1, "") and "status 401: who are you" in errors
