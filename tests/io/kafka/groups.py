"""Groups on real brokers: what their tests share."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import anyio
import anyio.to_thread

import odradek as od
from odradek.io.kafka.driver import KafkaDriver, KafkaOptions
from odradek.testing import KafkaBroker
from odradek.types import Broker

__all__ = ["ASYNCIO", "cluster", "new_topic", "until"]

ASYNCIO = ("asyncio", {"use_uvloop": False})
"""A backend of anyio."""

HEARTBEAT_S = 0.3
"""Time between heartbeats of classic members: by them they notice a rebalance."""

NUMBERS = count()


def cluster(broker: KafkaBroker, session_timeout_s: float = 30.0) -> od.Cluster:
    """A cluster whose classic members send heartbeats often."""
    host, _, port = broker.bootstrap.partition(":")
    options = KafkaOptions(heartbeat_s=HEARTBEAT_S, session_timeout_s=session_timeout_s)
    return od.Cluster(KafkaDriver([Broker(-1, host, int(port))], options), od.Tuning())


async def new_topic(broker: KafkaBroker, partitions: int) -> str:
    """Create a topic of the test's own, and return its name."""
    topic = f"group-{next(NUMBERS)}"
    await anyio.to_thread.run_sync(broker.create_topic, topic, partitions)
    return topic


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - of members whose events are not for tests
        await anyio.sleep(0.02)
