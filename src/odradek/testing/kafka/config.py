"""server.properties of a broker for tests: small, quick to start, quick to notice that another one died."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from odradek.testing.kafka.releases import KRAFT, Release
from odradek.testing.process import LOOPBACK

__all__ = ["CONTROLLER", "PLAINTEXT", "PROXIED", "ClusterSettings", "properties", "properties_text"]

PLAINTEXT = "PLAINTEXT"
"""Name of the listener at which brokers talk to each other."""
CONTROLLER = "CONTROLLER"
"""Name of the listener at which KRaft's controllers talk to each other."""
PROXIED = "PROXIED"
"""Name of the listener of PLAINTEXT that only clients use, through a proxy."""

SMALL = {
    "num.network.threads": 2,
    "num.io.threads": 4,
    "background.threads": 2,
    "log.cleaner.dedupe.buffer.size": 4 << 20,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 10_000,
    "group.consumer.min.heartbeat.interval.ms": 500,
    "group.consumer.heartbeat.interval.ms": 500,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "share.coordinator.state.topic.num.partitions": 4,
    "delete.topic.enable": "true",
    "controlled.shutdown.retry.backoff.ms": 200,
}
"""Properties for every version: a broker passes over the names it does not know."""

QUICK_KRAFT = {
    # Times to notice a dead broker or controller, as short as a loaded machine allows (Kafka's: 9 s, 2 s, 1 s, 2 s).
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
    "controller.quorum.election.timeout.ms": 500,
    "controller.quorum.fetch.timeout.ms": 1500,
    # A third of what an idle broker works is a record that says nothing, by default every 500 ms (KIP-835).
    "metadata.max.idle.interval.ms": 5000,
}


class ClusterSettings(NamedTuple):
    """The part of the settings that all brokers of a cluster share."""

    release: Release
    mode: str
    size: int
    zookeeper: str = ""
    """`host:port/chroot`, in ZooKeeper mode."""
    voters: Mapping[int, int] = {}
    """Broker id -> port of its controller, in KRaft mode."""


def properties(
    settings: ClusterSettings, broker_id: int, ports: Mapping[str, int], advertised: Mapping[str, int], log_dir: str
) -> dict[str, object]:
    """Return the properties of one broker.

    Args:
        ports: Name of each listener (a security protocol, CONTROLLER or PROXIED) -> its port.
        advertised: The same names -> the port that others are told to connect to.
        log_dir: Directory of its logs.
    """
    replicas = min(settings.size, 3)
    return {
        "broker.id": broker_id,
        "log.dirs": log_dir,
        **SMALL,
        **dict.fromkeys(REPLICATED, replicas),
        **dict.fromkeys(IN_SYNC, min(replicas, 2)),
        **_listeners(settings.release, ports, advertised),
        **(_kraft(settings, broker_id) if settings.mode == KRAFT else _zookeeper(settings)),
    }


REPLICATED = (
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "share.coordinator.state.topic.replication.factor",
    "default.replication.factor",
)
IN_SYNC = ("transaction.state.log.min.isr", "share.coordinator.state.topic.min.isr")


def _listeners(release: Release, ports: Mapping[str, int], advertised: Mapping[str, int]) -> dict[str, object]:
    if release.number < (0, 9):
        return {
            "host.name": LOOPBACK,
            "port": ports[PLAINTEXT],
            "advertised.host.name": LOOPBACK,
            "advertised.port": advertised[PLAINTEXT],
        }
    return {
        "listeners": _addresses(ports),
        "advertised.listeners": _addresses({name: port for name, port in advertised.items() if name != CONTROLLER}),
        "listener.security.protocol.map": ",".join(
            f"{name}:{PLAINTEXT if name in (CONTROLLER, PROXIED) else name}" for name in ports
        ),
    }


def _addresses(ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in ports.items())


def _zookeeper(settings: ClusterSettings) -> dict[str, object]:
    return {
        "zookeeper.connect": settings.zookeeper,
        "zookeeper.connection.timeout.ms": 30_000,
        "zookeeper.session.timeout.ms": 4000,
    }


def _kraft(settings: ClusterSettings, broker_id: int) -> dict[str, object]:
    return {
        "process.roles": "broker,controller",
        "node.id": broker_id,
        "controller.listener.names": CONTROLLER,
        "controller.quorum.voters": ",".join(f"{i}@{LOOPBACK}:{port}" for i, port in settings.voters.items()),
        **QUICK_KRAFT,
    }


def properties_text(values: Mapping[str, object]) -> str:
    """Return the text of a file of Java properties."""
    return "".join(f"{name}={_escaped(str(value))}\n" for name, value in values.items())


def _escaped(value: str) -> str:
    units = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").encode("utf-16-be", "surrogatepass")
    numbers = (units[i] << 8 | units[i + 1] for i in range(0, len(units), 2))
    return "".join(chr(number) if 31 < number < 127 else f"\\u{number:04x}" for number in numbers)
