"""Logs for tests: written to disk as a broker has them, or appended to a running one; and what rows they hold."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.types import StructType

from odradek import segments
from odradek.io.kafka07.broker_client import CONFIRM
from odradek.ranges.projection import COLUMNS, ERROR, HEADERS
from odradek.spark.readers import BatchReader, StreamReader
from odradek.spark.schema import SPARK_TYPES
from odradek.spark.source import OdradekSource
from odradek.testing import Kafka07Broker
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import encode_set
from odradek.wire.kafka07.requests import Produce, encode_request

from ..payloads import payload

ROW = ("topic", "broker", "partition", "offset", "index", "nextOffset", "value")


class Row(NamedTuple):
    topic: str
    broker: int | None
    partition: int
    offset: int
    index: int  # type: ignore[assignment]  # tuples have a method of this name
    nextOffset: int
    value: bytes


def write_log(log_dir: Path, topic: str, partition: int, *files: bytes) -> list[int]:
    """Segment files of these contents. Returns where each starts, and where the last one ends."""
    directory = log_dir / f"{topic}-{partition}"
    directory.mkdir(parents=True, exist_ok=True)
    starts = [0]
    for data in files:
        (directory / f"{starts[-1]:020}.kafka").write_bytes(data)
        starts.append(starts[-1] + len(data))
    return starts


def rows_of(log_dir: Path, broker: int | None = None, topic: str | None = None) -> list[Row]:
    """What the segment files say."""
    records = []
    for log in segments.logs(log_dir):
        for batch in log.batches():
            if topic in (None, log.partition.topic):
                records += [
                    Row(
                        r.topic,
                        broker,
                        log.partition.partition,
                        r.position,
                        r.inner_index,
                        r.next_position,
                        payload(r.value),
                    )
                    for r in batch
                ]
    return sorted(records, key=lambda row: row[:5])


def append(
    broker: Kafka07Broker, topic: str, values: Sequence[bytes], partition: int = 0, compression: str = "none"
) -> None:
    """Have a running broker append a message set, and show it."""
    data = encode_set(values, CompressionType.named(compression))
    with socket.create_connection((broker.host, broker.port)) as bare:
        for buffer in [*encode_request(Produce(topic, partition, data)), *CONFIRM]:
            bare.sendall(buffer)
        assert bare.recv(6, socket.MSG_WAITALL) == b"\0\0\0\2\0\0"
    broker.flush()


# ---- the source without Spark: what its processes call -------------------------------------------------------


def names(**options: object) -> dict[str, str]:
    """Options as Spark hands them over: `kafka_zk_connect=` is kafka.zk.connect."""
    return {name.replace("_", ".").lower(): str(value) for name, value in options.items()}


def whole_schema(options: Mapping[str, str]) -> StructType:
    from odradek.ranges.projection import columns

    return types_of(
        column.name
        for column in columns(headers=options.get("includeheaders") == "true", errors=options.get("corrupt") == "dead")
    )


def types_of(names: Iterable[str]) -> StructType:
    """The schema with these columns of the source."""
    schema = StructType()
    for name in names:
        schema.add(name, _TYPES[name])
    return schema


def _types() -> dict[str, Any]:
    from pyspark.sql import types as t

    struct = t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())])
    by_name = {
        "binary": t.BinaryType(),
        "string": t.StringType(),
        "int": t.IntegerType(),
        "bigint": t.LongType(),
        "timestamp": t.TimestampType(),
    }
    return {
        column.name: by_name.get(SPARK_TYPES[column.name], t.ArrayType(struct)) for column in (*COLUMNS, HEADERS, ERROR)
    }


_TYPES = _types()


def batch_reader(**options: object) -> BatchReader:
    named = names(**options)
    reader = OdradekSource(named).reader(whole_schema(named))
    assert isinstance(reader, BatchReader)
    return reader


def stream_reader(**options: object) -> StreamReader:
    named = names(**options)
    reader = OdradekSource(named).streamReader(whole_schema(named))
    assert isinstance(reader, StreamReader)
    return reader


def read_all(reader: BatchReader | StreamReader, partitions: Iterable[Any]) -> list[Row]:
    batches = [batch for partition in partitions for batch in reader.read(partition)]
    return sorted(rows_in(batches), key=lambda row: row[:5])


def rows_in(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    for batch in batches:
        yield from (Row(*row) for row in zip(*(batch.column(name).to_pylist() for name in ROW), strict=True))


def batch_rows(**options: object) -> list[Row]:
    reader = batch_reader(**options)
    return read_all(reader, reader.partitions())


def eventually(read: Callable[[], Any], is_done: Callable[[Any], bool]) -> Any:
    """What ZooKeeper tells takes a moment; the test's time-out ends this."""
    while not is_done(value := read()):
        pass
    return value


# ---- logs that are hard to cut -------------------------------------------------------------------------------


def hard_log(seed: int, messages: int, most: int, size: int = 60) -> bytes:
    """Message sets in payloads, cut off or with something behind them, among plain and compressed messages. No payload
    is larger than `most`, and what is in them is at most `size` long."""
    chance = random.Random(seed)
    parts = []
    for _ in range(messages):
        kind = chance.randrange(4)
        values = [chance.randbytes(chance.randrange(size)) for _ in range(chance.randrange(1, 9))]
        if kind == 0:
            parts.append(encode_set(values, chance.choice([CompressionType.GZIP, CompressionType.SNAPPY])))
        elif kind == 1:
            parts.append(encode_set(values))
        else:
            inner = encode_set(values) + chance.choice([b"", chance.randbytes(7), encode_set(values)[:-3]])
            parts.append(encode_set([inner[:most]]))
    return b"".join(parts)
