"""Sources of a mirror that are written to, killed and cut, and what their logs have in the end."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from gzip import decompress
from pathlib import Path
from typing import Any, Protocol

import anyio
from tests.faults.chaos.logs import end_positions, stored_messages

import odradek as od
from odradek.core.interfaces import ProducerRecord
from odradek.errors import OdradekError
from odradek.testing import Kafka07Broker, KafkaBroker, ZooKeeperServer
from odradek.testing.kafka.releases import release
from odradek.types import TopicPartition

__all__ = ["PARTITIONS", "TOPIC", "Kafka07Source", "KafkaSource", "Rows", "Source", "Writer", "logs_07", "messages_of"]

TOPIC, PARTITIONS = "orders", 4
CHUNK = 250
"""Records of one partition that are written together."""

Rows = dict[int, list[int]]
"""Partition -> a hash of each record, in order."""


class Source(Protocol):
    """A cluster with topics of `PARTITIONS` partitions."""

    topics: Sequence[str]
    fields: int
    """How many of value, key, timestamp and headers its records have."""
    runs: bool
    """Its broker runs, and can be killed."""
    limit: str
    """More of the table `run` of a mirror's file."""

    @property
    def table(self) -> str:
        """The keys of its table `source`."""

    def write(self, records: int, seconds: float = 0.0) -> None:
        """Write so many records, whatever happens to the broker meanwhile, in not less than so many seconds; some of
        them more than once."""

    def restart(self, pause_s: float) -> None:
        """Kill the broker, and start it after a pause (s)."""

    def cut(self, after: int) -> bool:
        """Cut all connections, and the next one after so many bytes; return False if it cannot."""

    def heal(self) -> None:
        """Let all connections pass again."""

    def rows(self, topic: str) -> Rows:
        """Return what the logs of a topic have, read by another program than odradek."""


class _Aborted(Exception):
    pass


class Writer:
    """Writes numbered records.

    Args:
        url: The cluster.
        random_: What it writes.
        fields: See `Source`.
        broker: That of partitions of 0.7.
        topic: Where to.
        compressions: It uses one of them in each connection.
        transactions: Write in transactions, of which a quarter is aborted.
        keyed: All records have keys.
    """

    def __init__(
        self, url: str, random_: random.Random, fields: int, broker: int = -1, topic: str = TOPIC,
        compressions: Sequence[str] = ("none", "gzip"),
    ) -> None:  # fmt: skip
        self._url, self._random, self._fields, self._broker = url, random_, fields, broker
        self._topic, self._compressions = topic, compressions
        self._numbers = [0] * PARTITIONS
        self._began = round(time.time() * 1000)  # retention deletes what is old
        self.transactions = self.keyed = False

    def write(self, records: int, seconds: float = 0.0) -> None:
        anyio.run(self._write, records, seconds)

    async def _write(self, records: int, seconds: float) -> None:
        left, began = records, anyio.current_time()
        while left > 0:
            try:
                async with od.connect(self._url) as cluster, cluster.producer(**self._options()) as producer:
                    while left > 0:
                        left -= await self._write_chunk(producer, min(left, CHUNK))
                        await anyio.sleep_until(began + seconds * (1 - left / records))
            except OdradekError:
                await anyio.sleep(0.05)  # its broker is killed or cut

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"compression": self._random.choice(self._compressions)}
        if self.transactions:
            options["transactional_id"] = "writer"
        return options

    async def _write_chunk(self, producer: Any, size: int) -> int:
        unwritten = [number for number in range(PARTITIONS) if not self._numbers[number]]  # 0.7 makes no directory
        partition = self._random.choice(unwritten or range(PARTITIONS))
        longest = self._random.choice((100, 100, 2000))  # some batches are large enough to be passed on as they are
        rows = [self._record(partition, longest) for _ in range(size)]
        where = TopicPartition(self._topic, partition, self._broker) if self._broker >= 0 else partition
        if not self.transactions:
            (await producer.send_many(self._topic, rows, partition=where)).check()
            return size
        try:
            async with producer.transaction():
                (await producer.send_many(self._topic, rows, partition=where)).check()
                if not self._random.randrange(4):
                    raise _Aborted
        except _Aborted:
            return 0
        return size

    def _record(self, partition: int, longest: int) -> ProducerRecord:
        number = self._numbers[partition] = self._numbers[partition] + 1
        value = b"%d %d " % (partition, number) + b"." * self._random.randrange(longest)
        record = ProducerRecord(value)
        if self._fields > 1:
            record = record._replace(key=None if number % 5 == 0 and not self.keyed else b"k%d" % (number % 100))
            if number % 7 == 0 and record.key is not None:
                record = record._replace(value=None if number % 2 else b"")
        if self._fields > 2:
            record = record._replace(timestamp=self._began + number)
        if self._fields > 3 and number % 3 == 0:
            record = record._replace(headers=(("h", b"%d" % number), ("none", None)))
        return record


class _Running:
    """A source that runs."""

    topics: Sequence[str] = (TOPIC,)
    runs, limit = True, ""
    url: str

    @property
    def table(self) -> str:
        return f'url = "{self.url}"'


class Kafka07Source(_Running):
    """An embedded broker of 0.7, with a real ZooKeeper."""

    fields = 1

    def __init__(self, stack: ExitStack, seed: int) -> None:
        zookeeper = stack.enter_context(ZooKeeperServer())
        zookeeper.create("/kafka")
        chroot = f"{zookeeper.address}/kafka"
        config = {"num.partitions": str(PARTITIONS), "log.flush.interval": "1", "log.file.size": str(1 << 20)}
        self._broker = stack.enter_context(Kafka07Broker(zookeeper=chroot, config=config))
        self.url = f"kafka07+zk://{chroot}"
        self._writer = Writer(self.url, random.Random(seed), self.fields, self._broker.broker_id)
        self.write = self._writer.write

    def restart(self, pause_s: float) -> None:
        self._broker.kill(drop_session=True)
        time.sleep(pause_s)
        self._broker.start()

    def cut(self, after: int) -> bool:
        return False

    def heal(self) -> None:
        pass

    def rows(self, topic: str) -> Rows:
        return logs_07(self._broker.log_dir, topic)


def logs_07(folder: Path, topic: str) -> Rows:
    """Return what the logs of a topic have in the directory of a broker of 0.7."""
    folders = {number: folder / f"{topic}-{number}" for number in range(PARTITIONS)}
    return {number: [hash((value,)) for value in _messages_07(each)] for number, each in folders.items()}


def _messages_07(folder: Path) -> Iterator[bytes]:
    """Yield the values of a log of 0.7: length, magic, attributes (if magic is 1), CRC, payload."""
    for path in sorted(folder.glob("*.kafka")):
        yield from _values_07(path.read_bytes())


def _values_07(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from(">i", data, at)
        magic, attributes = data[at + 4], data[at + 5]
        payload = data[at + 4 + 5 + magic : at + 4 + length]
        if magic and attributes & 3:
            yield from _values_07(decompress(payload))
        else:
            yield payload
        at += 4 + length


class KafkaSource(_Running):
    """A real broker behind a proxy."""

    def __init__(self, stack: ExitStack, version: str, seed: int) -> None:
        self._number = release(version).number
        self._broker = stack.enter_context(KafkaBroker(version, proxied=True))
        self._broker.create_topic(TOPIC, PARTITIONS)
        self.url = f"kafka://{self._broker.bootstrap}"
        self.fields = fields_of(version)
        self._writer = Writer(f"kafka://{self._direct}", random.Random(seed), self.fields)
        self._writer.transactions = self._number >= (0, 11)
        self._version = version
        self.write = self._writer.write

    @property
    def _direct(self) -> str:
        return (
            self._broker.bootstrap
            if self._number < (0, 10, 2)
            else f"{self._broker.host}:{self._broker.plaintext_port}"
        )

    def restart(self, pause_s: float) -> None:
        self._broker.kill()
        time.sleep(pause_s)
        self._broker.launch()
        self._broker.wait_ready()

    def cut(self, after: int) -> bool:
        self._broker.proxy.cut_after(server_bytes=after)
        self._broker.proxy.cut()
        return True

    def heal(self) -> None:
        self._broker.proxy.heal()

    def rows(self, topic: str) -> Rows:
        return messages_of(self._direct, topic, self.fields, **settings_for(self._version))


def fields_of(version: str) -> int:
    """Return how many of value, key, timestamp and headers the records of a release have."""
    number = release(version).number
    return 2 + (number >= (0, 10)) + (number >= (0, 11))


def settings_for(version: str) -> dict[str, Any]:
    """Return what librdkafka has to be told of a release."""
    if release(version).number < (0, 10):
        return {"api.version.request": False, "broker.version.fallback": version}
    return {}


def messages_of(bootstrap: str, topic: str, fields: int, **settings: Any) -> Rows:
    """Return what librdkafka reads, of committed records."""
    rows: Rows = {number: [] for number in range(PARTITIONS)}
    ends = end_positions(bootstrap, topic, PARTITIONS, **settings)
    for message in stored_messages(bootstrap, topic, ends, "read_committed", **settings):
        columns = (message.value(), message.key(), message.timestamp()[1], _headers(message))
        rows[message.partition()].append(hash(columns[:fields]))
    return rows


def _headers(message: Any) -> tuple[Any, ...]:
    return tuple(message.headers() or ())
