"""Other clients, each in a process of its own: they block, warn and leave sockets behind.

usage: python foreign.py CLIENT produce|consume < pickled arguments > pickled result
"""

from __future__ import annotations

import asyncio
import importlib
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odradek.testing import KafkaBroker

__all__ = ["consume", "produce", "write_transactions"]

Row = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]], int | None]
"""Key, value, headers and timestamp."""

TIMEOUT_S = 60


def produce(client: str, kafka: KafkaBroker, topic: str, rows: Sequence[Row], compressions: Sequence[str]) -> None:
    """Write rows to partition 0, once with each compression."""
    _run(client, "produce", kafka.bootstrap, kafka.version, topic, list(rows), list(compressions))


def consume(client: str, kafka: KafkaBroker, topic: str, count: int) -> list[tuple[Any, ...]]:
    """Return key, value, headers, timestamp and offset of the first records of partition 0."""
    rows: list[tuple[Any, ...]] = _run(client, "consume", kafka.bootstrap, kafka.version, topic, count)
    return rows


def write_transactions(kafka: KafkaBroker, topic: str) -> None:
    """Write to partition 0: one transaction that is committed, one that is aborted, a record without, one left open."""
    _run("librdkafka", "transactions", kafka.bootstrap, kafka.version, topic)


def _run(client: str, verb: str, *arguments: Any) -> Any:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, client, verb],
        input=pickle.dumps(arguments),
        capture_output=True,
        check=False,
        timeout=3 * TIMEOUT_S,
    )
    assert not done.returncode, done.stderr.decode()
    return pickle.loads(done.stdout)


# ---- kafka-python ---------------------------------------------------------------------------------------------


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _kafka_python_options(bootstrap: str, version: str) -> dict[str, Any]:
    """It asks every broker for its versions, which old ones do not answer."""
    release = _number(version)
    return {"bootstrap_servers": bootstrap, **({"api_version": release[:3]} if release < (0, 10) else {})}


def _kafka_python_produces(
    bootstrap: str, version: str, topic: str, rows: list[Row], compressions: Sequence[str]
) -> None:
    client: Any = importlib.import_module("kafka")
    for name in compressions:
        kind = None if name == "none" else name
        options = _kafka_python_options(bootstrap, version)
        producer = client.KafkaProducer(**options, compression_type=kind, linger_ms=20)
        for key, value, headers, timestamp in rows:
            future = producer.send(topic, value, key, list(headers) or None, partition=0, timestamp_ms=timestamp)
        future.get(timeout=TIMEOUT_S)
        producer.close()


def _kafka_python_consumes(bootstrap: str, version: str, topic: str, count: int) -> list[tuple[Any, ...]]:
    client: Any = importlib.import_module("kafka")
    consumer = client.KafkaConsumer(**_kafka_python_options(bootstrap, version), consumer_timeout_ms=TIMEOUT_S * 1000)
    partition = client.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    rows: list[tuple[Any, ...]] = []
    while len(rows) < count:
        r = next(consumer)
        rows.append((r.key, r.value, tuple(r.headers), r.timestamp, r.offset))
    consumer.close()
    return rows


# ---- librdkafka -----------------------------------------------------------------------------------------------


def _librdkafka_options(bootstrap: str, version: str) -> dict[str, Any]:
    old = _number(version) < (0, 10)
    fallback = {"api.version.request": False, "broker.version.fallback": version} if old else {}
    return {"bootstrap.servers": bootstrap, **fallback}


def _librdkafka_produces(
    bootstrap: str, version: str, topic: str, rows: list[Row], compressions: Sequence[str]
) -> None:
    client: Any = importlib.import_module("confluent_kafka")
    for name in compressions:
        producer = client.Producer({**_librdkafka_options(bootstrap, version), "compression.type": name})
        for key, value, headers, timestamp in rows:
            options: dict[str, Any] = {"headers": list(headers)} if headers else {}
            options |= {} if timestamp is None else {"timestamp": timestamp}
            producer.produce(topic, value, key, 0, **options)
        assert not producer.flush(TIMEOUT_S)


def _librdkafka_consumes(bootstrap: str, version: str, topic: str, count: int) -> list[tuple[Any, ...]]:
    client: Any = importlib.import_module("confluent_kafka")
    consumer = client.Consumer(
        {**_librdkafka_options(bootstrap, version), "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([client.TopicPartition(topic, 0, 0)])
    rows: list[tuple[Any, ...]] = []
    while len(rows) < count:
        (r,) = consumer.consume(1, TIMEOUT_S)
        assert r.error() is None, r.error()
        rows.append((r.key(), r.value(), tuple(r.headers() or ()), r.timestamp()[1], r.offset()))
    consumer.close()
    return rows


def _librdkafka_transactions(bootstrap: str, version: str, topic: str) -> None:
    client: Any = importlib.import_module("confluent_kafka")
    plain = client.Producer({"bootstrap.servers": bootstrap})
    producer = client.Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(TIMEOUT_S)
    for name in ("committed", "aborted", "open"):
        producer.begin_transaction()
        producer.produce(topic, name.encode(), None, 0)
        assert not producer.flush(TIMEOUT_S)
        if name == "committed":
            producer.commit_transaction(TIMEOUT_S)
        if name == "aborted":
            producer.abort_transaction(TIMEOUT_S)
            plain.produce(topic, b"plain", None, 0)
            assert not plain.flush(TIMEOUT_S)


# ---- aiokafka -------------------------------------------------------------------------------------------------


def _aiokafka_produces(bootstrap: str, version: str, topic: str, rows: list[Row], compressions: Sequence[str]) -> None:
    client: Any = importlib.import_module("aiokafka")

    async def produce(name: str) -> None:
        kind = None if name == "none" else name
        async with client.AIOKafkaProducer(bootstrap_servers=bootstrap, compression_type=kind) as producer:
            for key, value, headers, timestamp in rows:
                future = await producer.send(topic, value, key, 0, timestamp, headers=list(headers) or None)
            await future

    for name in compressions:
        asyncio.run(produce(name))


def _aiokafka_consumes(bootstrap: str, version: str, topic: str, count: int) -> list[tuple[Any, ...]]:
    client: Any = importlib.import_module("aiokafka")

    async def consume() -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        async with client.AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
            partition = client.TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, 0)
            while len(rows) < count:
                r = await asyncio.wait_for(consumer.getone(), TIMEOUT_S)
                rows.append((r.key, r.value, tuple(r.headers), r.timestamp, r.offset))
        return rows

    return asyncio.run(consume())


VERBS: dict[tuple[str, str], Callable[..., Any]] = {
    ("kafka-python", "produce"): _kafka_python_produces,
    ("kafka-python", "consume"): _kafka_python_consumes,
    ("aiokafka", "produce"): _aiokafka_produces,
    ("aiokafka", "consume"): _aiokafka_consumes,
    ("librdkafka", "produce"): _librdkafka_produces,
    ("librdkafka", "consume"): _librdkafka_consumes,
    ("librdkafka", "transactions"): _librdkafka_transactions,
}

if __name__ == "__main__":
    result = VERBS[sys.argv[1], sys.argv[2]](*pickle.load(sys.stdin.buffer))
    sys.stdout.buffer.write(pickle.dumps(result))
