"""MirrorMaker 2 of a release, in a process of its own, started from its jars: all of its settings are in this file.

It runs as `connect-mirror-maker.sh` of its release starts it: with that script's heap and collector, and a properties
file. Everything that the file names is documented by Kafka: the README of `connect/mirror`, and the configurations of
Connect, of producers and of consumers.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import NamedTuple

import psutil

from odradek.java import find_java
from odradek.testing.jars import maven_jars
from odradek.testing.process import LOOPBACK, ServerProcess, reserve_port

__all__ = ["MirrorMaker", "Mirroring"]

MAIN = "org.apache.kafka.connect.mirror.MirrorMaker"
JAVA = (
    "-Xms256M",
    "-Xmx2G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
)
"""Options of Java, those of the script."""

LOG4J = {
    "2": ("log4j:log4j:1.2.17",),
    "4": ("org.apache.logging.log4j:log4j-core:2.25.1", "org.apache.logging.log4j:log4j-api:2.25.1"),
}
"""Jars of classes that Connect of a generation names, although another one writes its log here."""

FACTORS = (
    "replication.factor",
    "checkpoints.topic.replication.factor",
    "heartbeats.topic.replication.factor",
    "offset-syncs.topic.replication.factor",
    "offset.storage.replication.factor",
    "status.storage.replication.factor",
    "config.storage.replication.factor",
)
"""Each cluster has one broker."""

PRODUCER = {
    "acks": "all",
    "batch.size": "262144",
    "linger.ms": "10",
    "buffer.memory": "67108864",
    "max.request.size": "8388608",
}
CONSUMER = {
    "max.poll.records": "5000",
    "max.partition.fetch.bytes": "4194304",
    "fetch.max.bytes": "67108864",
    "receive.buffer.bytes": "1048576",
}
EXACTLY_ONCE = {
    "transaction.boundary": "interval",
    "transaction.boundary.interval.ms": "1000",
}
"""Of the connector: by default every poll is a transaction of its own."""


class Mirroring(NamedTuple):
    """What is mirrored, and how.

    Args:
        source, target: `host:port` of brokers.
        topic: Name of the topic on the source.
        alias: Name of the source: the topic on the target is `ALIAS.TOPIC`.
        partitions: Number of partitions.
        compression: Of records on the target.
    """

    source: str
    target: str
    topic: str
    alias: str
    partitions: int
    compression: str

    @property
    def copied_to(self) -> str:
        return f"{self.alias}.{self.topic}"


class MirrorMaker(ServerProcess):
    """A MirrorMaker 2 that copies a topic, from the start of the `with` block to its end.

    Args:
        version: A release from 2.4 on.
        mirroring: What it copies.
        exactly_once: Write with the transactions of Connect (3.5 and later), and read committed records.
    """

    program = "mirror-maker"

    def __init__(self, version: str, mirroring: Mirroring, *, exactly_once: bool = False) -> None:
        super().__init__()
        self.version, self.mirroring, self.exactly_once = version, mirroring, exactly_once
        self._keeper: socket.socket | None = None

    def __repr__(self) -> str:
        return f"<MirrorMaker {self.version}>"

    @property
    def process(self) -> psutil.Process:
        """The process, once it was started."""
        return psutil.Process(self._running().pid)

    def wait_ready(self, timeout: float = 0) -> None:
        """Wait for nothing: who started it sees the records come."""

    def stop(self) -> None:
        super().stop()
        if self._keeper is not None:
            self._keeper.close()

    def _command(self) -> Sequence[str]:
        file = self._directory() / "mm2.properties"
        file.write_text("".join(f"{name} = {value}\n" for name, value in self.properties().items()))
        jars = [
            *maven_jars((f"org.apache.kafka:connect-mirror:{self.version}", "org.slf4j:slf4j-simple:1.7.36")),
            *maven_jars(LOG4J[self.version[0]], transitive=False),
        ]
        return [find_java(None), *JAVA, "-cp", os.pathsep.join(map(str, jars)), MAIN, str(file)]

    def properties(self) -> dict[str, str]:
        """Return all that its file says."""
        m = self.mirroring
        flow = f"{m.alias}->target"
        settings = {
            "clusters": f"{m.alias}, target",
            f"{m.alias}.bootstrap.servers": m.source,
            "target.bootstrap.servers": m.target,
            f"{flow}.enabled": "true",
            f"{flow}.topics": m.topic,
            "tasks.max": str(m.partitions),
            "sync.topic.acls.enabled": "false",  # brokers without an authorizer have none
            "emit.heartbeats.enabled": "false",  # with them, a second set of Connect runs for the way back
            **dict.fromkeys(FACTORS, "1"),
            **{f"target.producer.{name}": value for name, value in PRODUCER.items()},
            "target.producer.compression.type": m.compression,
            **{f"{flow}.consumer.{name}": value for name, value in CONSUMER.items()},
        }
        if self.exactly_once:
            port, self._keeper = reserve_port()
            settings |= {
                "target.exactly.once.source.support": "enabled",
                f"{flow}.consumer.isolation.level": "read_committed",
                "dedicated.mode.enable.internal.rest": "true",
                "listeners": f"http://{LOOPBACK}:{port}",
                **{f"{flow}.{name}": value for name, value in EXACTLY_ONCE.items()},
            }
        return settings
