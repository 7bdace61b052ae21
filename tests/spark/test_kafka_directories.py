"""Spark reads directories of a real broker, of every record format, as Kafka's own tool does."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from odradek import segments
from odradek.segments import KafkaLog
from odradek.testing import KafkaBroker

from ..brokers import foreign
from ..brokers.dumps import Dump, compare_rows, row_of
from .kafka import write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = ("0.9.0", "0.10.0", "2.8")
"""Formats of records that a broker of 2.8 stores: magic 0, 1 and 2."""


@pytest.mark.releases("2.8.2")
def test_directories_of_every_format_hold_what_kafka_s_own_tool_says(
    spark: SparkSession, any_kafka: KafkaBroker, tmp_path: Path
) -> None:
    topics = [f"spark{uuid4().hex[:12]}" for _ in FORMATS]
    dumps: dict[str, Dump] = {}
    for magic, (topic, version) in enumerate(zip(topics, FORMATS, strict=True)):
        any_kafka.create_topic(topic, config={"message.format.version": version})
        for compression in ("none", "gzip", "snappy", "lz4"):
            write(any_kafka, topic, [b"%d" % n for n in range(7)], compression=compression, acks=1)
        if magic == 2:
            foreign.write_transactions(any_kafka, topic)
        log = segments.open(any_kafka.data_dir / f"{topic}-0")
        assert isinstance(log, KafkaLog) and {batch.magic for batch in log.stored_batches()} == {magic}
        dumps[topic] = Dump(any_kafka, log)
        shutil.copytree(log.directory, tmp_path / log.directory.name)
    for isolation in ("read_uncommitted", "read_committed"):
        reader = spark.read.format("odradek").option("path", str(tmp_path)).option("includeHeaders", "true")
        frame = reader.option("kafka.isolation.level", isolation).load()
        read = [row.asDict(recursive=True) for row in frame.collect()]
        for topic, dump in dumps.items():
            rows = [row_of(fields) for fields in read if fields["topic"] == topic]
            compare_rows(rows, dump.data if isolation == "read_uncommitted" else dump.committed)
