"""Members of a group that run other clients, each in a process of its own: Java's, librdkafka's and aiokafka's.

usage: python foreign_member.py librdkafka|aiokafka BOOTSTRAP TOPIC GROUP STRATEGY

It writes a line for each record: its partition and its value. SIGTERM has it leave the group and end.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from odradek.testing import KafkaBroker

__all__ = ["ForeignMember"]

CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
JAVA_ASSIGNORS = {
    "range": "RangeAssignor",
    "roundrobin": "RoundRobinAssignor",
    "sticky": "StickyAssignor",
    "cooperative-sticky": "CooperativeStickyAssignor",
}
AIOKAFKA_ASSIGNORS = {
    "range": "range.RangePartitionAssignor",
    "roundrobin": "roundrobin.RoundRobinPartitionAssignor",
    "sticky": "sticky.sticky_assignor.StickyPartitionAssignor",
}
CONSUMER = "consumer"
"""The strategy of a member for which the brokers assign (KIP-848)."""


class ForeignMember:
    """A running member; a context manager, at whose end it is killed.

    Args:
        client: `java`, `librdkafka` or `aiokafka`.
        broker: Of its group.
        topic: What it consumes, from the start where its group has no position.
        strategy: An assignor, or `consumer`.

    Attributes:
        records: Partition and value of each record that it has delivered.
    """

    def __init__(self, client: str, broker: KafkaBroker, topic: str, strategy: str) -> None:
        self.records: list[tuple[int, bytes]] = []
        if client == "java":
            command = _java_command(broker, topic, strategy)
        else:
            command = [sys.executable, "-W", "ignore", __file__, client, broker.bootstrap, topic, topic, strategy]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._errors: list[bytes] = []
        self._readers = [threading.Thread(target=read) for read in (self._read_records, self._read_errors)]

    def __enter__(self) -> Self:
        for reader in self._readers:
            reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()

    def check(self) -> None:
        """Raise AssertionError if it has ended by itself."""
        assert self._process.poll() is None, b"".join(self._errors).decode()

    def leave(self) -> None:
        """Have it leave the group, and wait until it has."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)

    def kill(self) -> None:
        """End it without a chance to leave."""
        self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join()

    def _read_records(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            partition, _, value = line.rstrip(b"\n").partition(b"\t")
            self.records.append((int(partition.removeprefix(b"Partition:")), value))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)


def _java_command(broker: KafkaBroker, topic: str, strategy: str) -> Sequence[str]:
    properties = {"auto.offset.reset": "earliest", "session.timeout.ms": "6000", "heartbeat.interval.ms": "300"}
    if strategy == CONSUMER:
        properties = {"auto.offset.reset": "earliest", "group.protocol": CONSUMER}
    else:
        properties["partition.assignment.strategy"] = f"org.apache.kafka.clients.consumer.{JAVA_ASSIGNORS[strategy]}"
    options = [text for name, value in properties.items() for text in ("--command-property", f"{name}={value}")]
    return [
        *broker.java_command(CONSOLE_CONSUMER),
        *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--group", topic, *options),
        *("--formatter-property", "print.partition=true"),
    ]


# ---- in the process ---------------------------------------------------------------------------------------------


def _write(partition: int, value: bytes) -> None:
    os.write(1, b"%d\t%s\n" % (partition, value))


def _librdkafka(bootstrap: str, topic: str, group: str, strategy: str) -> None:
    client: Any = importlib.import_module("confluent_kafka")
    options: dict[str, Any] = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    if strategy == CONSUMER:
        options["group.protocol"] = CONSUMER
    else:
        options |= {"session.timeout.ms": 6000, "heartbeat.interval.ms": 300, "partition.assignment.strategy": strategy}
    consumer = client.Consumer(options)
    consumer.subscribe([topic])
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    while not ended.is_set():
        message = consumer.poll(0.1)
        if message is not None and not message.error():
            _write(message.partition(), message.value())
    consumer.close()


def _aiokafka(bootstrap: str, topic: str, group: str, strategy: str) -> None:
    client: Any = importlib.import_module("aiokafka")
    module, _, name = AIOKAFKA_ASSIGNORS[strategy].rpartition(".")
    assignor = getattr(importlib.import_module(f"aiokafka.coordinator.assignors.{module}"), name)

    async def consume() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        consumer = client.AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            partition_assignment_strategy=[assignor],
            session_timeout_ms=6000,
            heartbeat_interval_ms=300,
        )
        try:
            await consumer.start()
            async for record in consumer:
                _write(record.partition, record.value)
        except asyncio.CancelledError:
            pass
        finally:
            await consumer.stop()

    asyncio.run(consume())


if __name__ == "__main__":
    {"librdkafka": _librdkafka, "aiokafka": _aiokafka}[sys.argv[1]](*sys.argv[2:])
