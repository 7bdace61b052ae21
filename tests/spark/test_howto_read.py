"""The examples of the how-to page about reading from Spark run as printed, and it has all options and columns."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from odradek.ranges.projection import columns
from odradek.spark.cluster import BOOTSTRAP
from odradek.spark.options import IGNORED_KAFKA07, parse_source
from odradek.spark.values import OptionMap
from odradek.testing import Kafka07Broker, KafkaBroker

from .kafka import write
from .made import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "spark-read.md"


def first_cells(title: str) -> set[str]:
    """The names in the first column of the first table behind these words."""
    table = re.search(r"(?:^\|.*\n)+", PAGE.read_text("utf-8").partition(title)[2], re.MULTILINE)
    assert table is not None
    return {name for line in table[0].splitlines() for name in re.findall(r"`(.+?)`", line.split("|")[1])}


@pytest.mark.timeout(300)
def test_the_page(
    spark: SparkSession,
    odradek_chroot: str,
    odradek_kafka07_broker: Callable[..., Kafka07Broker],
    odradek_kafka: KafkaBroker,
    tmp_path: Path,
) -> None:
    broker = odradek_kafka07_broker(config={"log.flush.interval": "1", "brokerid": "1"})
    append(broker, "clicks", [b"one", b"two"])
    append(broker, "views", [b"three"])
    orders = f"orders{uuid4().hex[:8]}"
    odradek_kafka.create_topic(orders, 2)
    write(odradek_kafka, orders, [b"four"])
    printed = {
        "b1:9092,b2:9092": odradek_kafka.bootstrap,
        '"orders"': f'"{orders}"',
        "zk1:2181/kafka": odradek_chroot,
        "/var/kafka-logs": str(broker.log_dir),
        '"/': f'"{tmp_path}/',
    }
    names: dict[str, Any] = {"spark": spark}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        for text, here in printed.items():
            block = block.replace(text, here)
        exec(compile(block, PAGE.name, "exec"), names)
    assert {row.topic: row["count"] for row in names["counts"].collect()} == {"clicks": 2, "views": 1}
    assert sorted(tuple(row) for row in names["values"].collect()) == [
        (b"one", "clicks"), (b"three", "views"), (b"two", "clicks"),
    ]  # fmt: skip
    assert [bytes(row.value) for row in names["orders"].collect()] == [b"four"]
    assert {row.text for row in names["texts"].collect()} == {"one", "two"}
    assert {(row.broker, bytes(row.value)) for row in names["from_disk"].collect()} == {(1, b"one"), (1, b"two")}
    assert spark.read.parquet(f"{tmp_path}/tables/clicks").count() == 2
    source = names["query"].lastProgress["sources"][0]
    end, latest = (
        json.loads(text) if isinstance(text := source[name], str) else text for name in ("endOffset", "latestOffset")
    )
    assert latest["topics"] == end["topics"] == {"clicks": latest["topics"]["clicks"]}
    assert latest["metrics"]["totalBytesBehindLatest"] == 0


def test_it_has_every_option_and_every_column(monkeypatch: pytest.MonkeyPatch) -> None:
    known: set[str] = set()
    monkeypatch.setattr(OptionMap, "finish", lambda option_map: known.update(option_map._known.values()))
    parse_source({"kafka.zk.connect": "zk"}, streaming=None)
    of_later_clusters = {BOOTSTRAP, "kafka.isolation.level", "kafka.client.rack", "kafka.max.partition.fetch.bytes"}
    assert first_cells("## Options") == known - of_later_clusters - set(IGNORED_KAFKA07)
    assert first_cells("## Everything there is") == {column.name for column in columns(headers=True, errors=True)}
