"""The examples of the how-to page about writing from Spark run as printed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from odradek.testing import Kafka07Broker, KafkaBroker

from .kafka import batch, rows
from .made import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "spark-write.md"


def test_the_page(
    spark: SparkSession,
    odradek_chroot: str,
    odradek_kafka07_broker: Callable[..., Kafka07Broker],
    odradek_kafka: KafkaBroker,
    tmp_path: Path,
) -> None:
    broker = odradek_kafka07_broker(config={"log.flush.interval": "1"})
    orders = f"orders{uuid4().hex[:8]}"
    odradek_kafka.create_topic(orders, 2)
    printed = {
        "b1:9092,b2:9092": odradek_kafka.bootstrap,
        '"orders"': f'"{orders}"',
        "zk1:2181/kafka": odradek_chroot,
        '"/': f'"{tmp_path}/',
    }
    names: dict[str, Any] = {"spark": spark}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    for block in blocks:
        for text, here in printed.items():
            block = block.replace(text, here)
        exec(compile(block, PAGE.name, "exec"), names)
    counts = Counter(row.topic for row in rows_of(broker.log_dir))
    assert counts == {"numbers": 1000, "clicks": 2, "views": 1, "short": 100, "long": 900}
    reader = batch(odradek_kafka, subscribe=orders)
    assert sorted((row["key"], row["value"]) for row in rows(reader, reader.partitions())) == [
        (b"u1", b"first"),
        (b"u2", b"second"),
    ]
    assert names["written"] == {"long": 900, "short": 100}
