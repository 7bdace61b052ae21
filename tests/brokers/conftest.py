"""Real brokers, one release at a time: every test here runs on each of them."""

from __future__ import annotations

from uuid import uuid4

import pytest

from odradek.testing import KafkaBroker

from .table import FACTS, Ran

pytest.register_assert_rewrite(f"{__package__}.dumps")

PARTITIONS = 3
"""Of every topic that is made without a number."""


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FACTS] = {}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Check the table when everything has run, in whatever order."""
    items.sort(key=lambda item: item.path.name == "test_table.py")


@pytest.fixture(scope="session")
def kafka(any_kafka: KafkaBroker) -> KafkaBroker:
    """A broker of each release in turn."""
    return any_kafka


@pytest.fixture
def ran(request: pytest.FixtureRequest, kafka: KafkaBroker) -> Ran:
    """A function that adds to the table of the documentation."""
    return Ran(request.config.stash[FACTS], kafka)


@pytest.fixture
def topic() -> str:
    """The name of a topic that no other test has."""
    return f"t{uuid4().hex[:12]}"


@pytest.fixture
def anyio_backend() -> str:
    """One loop is enough here: the others run the same code against scripted brokers."""
    return "asyncio"
