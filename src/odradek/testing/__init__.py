"""Servers for tests, your own included: a cluster in memory, a real ZooKeeper, an embedded 0.7 broker, a faulty proxy.

The names are imported when first used, because pytest loads the plugin of this package in every run of every project.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odradek.testing.kafka import KafkaBroker, KafkaCluster
    from odradek.testing.kafka07 import Kafka07Broker
    from odradek.testing.memory import MemoryCluster, MemoryRequest, StoredRecord
    from odradek.testing.proxy import FaultProxy, ProxyStatistics
    from odradek.testing.zookeeper import ZooKeeperEnsemble, ZooKeeperServer

__all__ = [
    "FaultProxy",
    "Kafka07Broker",
    "KafkaBroker",
    "KafkaCluster",
    "MemoryCluster",
    "MemoryRequest",
    "ProxyStatistics",
    "StoredRecord",
    "ZooKeeperEnsemble",
    "ZooKeeperServer",
]

_HOMES = {
    "FaultProxy": "proxy",
    "Kafka07Broker": "kafka07",
    "KafkaBroker": "kafka",
    "KafkaCluster": "kafka",
    "MemoryCluster": "memory",
    "MemoryRequest": "memory",
    "ProxyStatistics": "proxy",
    "StoredRecord": "memory",
    "ZooKeeperEnsemble": "zookeeper",
    "ZooKeeperServer": "zookeeper",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
