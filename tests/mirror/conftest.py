"""A real broker for the tests of mirrors, and names that no other test uses there."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from odradek.testing import KafkaBroker

__all__: list[str] = []

CONFIG = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.session.timeout.ms": "3000",  # a process that is killed is soon gone
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
}


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    with KafkaBroker(config=CONFIG) as broker:
        yield broker


@pytest.fixture
def name() -> str:
    return f"m-{uuid4().hex[:8]}"
