"""The examples of the how-to page about writing from Spark run as printed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from odradek.testing import Kafka07Broker

from .made import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "spark-write.md"


def test_the_page(
    spark: SparkSession, odradek_chroot: str, odradek_kafka07_broker: Callable[..., Kafka07Broker], tmp_path: Path
) -> None:
    broker = odradek_kafka07_broker(config={"log.flush.interval": "1"})
    names: dict[str, Any] = {"spark": spark}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    for block in blocks:
        for printed, here in {"zk1:2181/kafka": odradek_chroot, '"/': f'"{tmp_path}/'}.items():
            block = block.replace(printed, here)
        exec(compile(block, PAGE.name, "exec"), names)
    counts = Counter(row.topic for row in rows_of(broker.log_dir))
    assert counts == {"numbers": 1000, "clicks": 2, "views": 1, "short": 100, "long": 900}
    assert names["written"] == {"long": 900, "short": 100}
