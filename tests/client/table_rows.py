"""The rows of Arrow tables that readers and consumers return."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
import pytest

import odradek.arrow
from odradek.client.consumer.reader import Reader
from odradek.types import TopicPartition

__all__ = ["by_partition", "tables_past_failures", "values"]


def values(table: pa.Table) -> list[bytes]:
    return [row["value"] for row in table.select(["value"]).to_pylist()]


def by_partition(*tables: pa.Table) -> dict[TopicPartition, list[bytes]]:
    """Return the values of each partition, in order, after validating the tables."""
    values: dict[TopicPartition, list[bytes]] = defaultdict(list)
    for table in tables:
        table.validate(full=True)
        for row in table.to_pylist():
            broker = -1 if row["broker"] is None else row["broker"]
            values[TopicPartition(row["topic"], row["partition"], broker)].append(row["value"])
    return values


async def tables_past_failures(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> list[pa.Table]:
    """Read to the end, and assert that after the first table three that cannot be made leave the reader where it is."""

    def fail(*_: object, **__: object) -> pa.Table:
        raise MemoryError

    tables = reader.arrow(max_bytes=100)
    before = await anext(tables)
    bookmark = reader.bookmark()
    with monkeypatch.context() as patch:
        patch.setattr(odradek.arrow, "table", fail)
        for _ in range(3):
            with pytest.raises(MemoryError):
                await anext(reader.arrow(max_bytes=50))
    assert reader.bookmark() == bookmark
    return [before] + [table async for table in reader.arrow(max_bytes=100)]
