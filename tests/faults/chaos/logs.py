"""The logs and the positions of groups, as librdkafka reads them from the brokers, without the proxies."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from .checks import StoredRecord

__all__ = ["committed_positions", "end_positions", "stored_messages", "stored_records"]

SILENCE_S = 60.0
"""Limit for a broker to send something (s)."""
COORDINATOR_MOVES = ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR")
"""Errors of a group whose coordinator is on its way to another broker: librdkafka hands them to its caller."""


def _consumer(bootstrap: str, group: str = "checks", **settings: Any) -> Any:
    client: Any = importlib.import_module("confluent_kafka")
    common = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, "log_level": 2}
    return client.Consumer({**common, "enable.partition.eof": True, **settings})


def _partitions(topic: str, size: int) -> list[Any]:
    client: Any = importlib.import_module("confluent_kafka")
    return [client.TopicPartition(topic, number, 0) for number in range(size)]


def end_positions(bootstrap: str, topic: str, size: int, **settings: Any) -> dict[int, int]:
    """Return partition -> the end of its log."""
    consumer = _consumer(bootstrap, **settings)
    ends = {each.partition: consumer.get_watermark_offsets(each, SILENCE_S)[1] for each in _partitions(topic, size)}
    consumer.close()
    return ends


def committed_positions(bootstrap: str, group: str, topic: str, size: int) -> dict[int, int]:
    """Return partition -> the position of a group; 0 if it has none.

    Raises:
        KafkaException: The group's coordinator does not answer, or finds no broker within a minute.
    """
    client: Any = importlib.import_module("confluent_kafka")
    consumer, limit = _consumer(bootstrap, group), time.monotonic() + SILENCE_S
    try:
        while True:
            try:
                committed = consumer.committed(_partitions(topic, size), SILENCE_S)
                return {each.partition: max(each.offset, 0) for each in committed}
            except client.KafkaException as error:
                if error.args[0].name() not in COORDINATOR_MOVES or time.monotonic() > limit:
                    raise
            time.sleep(0.5)
    finally:
        consumer.close()


def stored_records(bootstrap: str, topic: str, ends: Mapping[int, int], isolation: str) -> Iterator[StoredRecord]:
    """Yield all records up to these ends. Raises TimeoutError: see `stored_messages`."""
    for message in stored_messages(bootstrap, topic, ends, isolation):
        yield message.partition(), message.offset(), message.value()


def stored_messages(
    bootstrap: str, topic: str, ends: Mapping[int, int], isolation: str, **settings: Any
) -> Iterator[Any]:
    """Yield all messages up to these ends, as librdkafka has them.

    Raises:
        TimeoutError: The brokers send nothing, or not the end: a transaction is open.
    """
    client: Any = importlib.import_module("confluent_kafka")
    consumer = _consumer(bootstrap, **{"isolation.level": isolation, **settings})
    consumer.assign(_partitions(topic, len(ends)))
    waiting, heard = {partition for partition, end in ends.items() if end}, time.monotonic()
    try:
        while waiting:
            for message in consumer.consume(1000, 1.0):
                partition, error = message.partition(), message.error()
                if error is None:
                    heard = time.monotonic()
                    yield message
                elif error.code() == client.KafkaError._PARTITION_EOF and message.offset() >= ends[partition]:
                    waiting.discard(partition)
            if time.monotonic() > heard + SILENCE_S:
                raise TimeoutError(f"{topic}: no end of the partitions {sorted(waiting)}, which end at {ends}")
    finally:
        consumer.close()
