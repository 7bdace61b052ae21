"""Real brokers, one release at a time: every test here runs on each of them."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from odradek.testing import KafkaBroker
from odradek.testing.kafka.releases import MATRIX

PARTITIONS = 3
SETTINGS = {"num.partitions": str(PARTITIONS), "auto.create.topics.enable": "true"}


@pytest.fixture(scope="session", params=MATRIX, ids=[version for version, _ in MATRIX])
def kafka(request: pytest.FixtureRequest) -> Iterator[KafkaBroker]:
    """A broker of each release of the matrix in turn."""
    version, mode = request.param
    with KafkaBroker(version, mode=mode, config=SETTINGS) as broker:
        yield broker


@pytest.fixture
def topic() -> str:
    """The name of a topic that no other test has."""
    return f"t{uuid4().hex[:12]}"


@pytest.fixture
def anyio_backend() -> str:
    """One loop is enough here: the others run the same code against scripted brokers."""
    return "asyncio"
