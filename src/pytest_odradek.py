"""The pytest plugin: fixtures for code that talks to Kafka. Loaded by pytest through its entry point.

Everything is imported when a fixture is used, and the module stands beside the package: pytest loads it in every run of
any project that has odradek installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from odradek.testing import FaultProxy, Kafka07Broker, KafkaBroker, KafkaCluster, ZooKeeperServer

__all__ = [
    "odradek_chroot",
    "odradek_fault_proxy",
    "odradek_kafka",
    "odradek_kafka07_broker",
    "odradek_kafka_broker",
    "odradek_kafka_cluster",
    "odradek_zookeeper",
]

_STARTED: pytest.StashKey[list[KafkaBroker | KafkaCluster]] = pytest.StashKey()
"""Stash of what the fixtures below started for one test."""


@pytest.fixture(scope="session")
def odradek_zookeeper() -> Iterator[ZooKeeperServer]:
    """One real ZooKeeper for the whole test session. Tests share it: do not stop it, and keep to a chroot."""
    from odradek.testing import ZooKeeperServer

    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def odradek_chroot(odradek_zookeeper: ZooKeeperServer) -> str:
    """`host:port/chroot` on the session's ZooKeeper, with a fresh empty node for this test alone."""
    chroot = f"/{uuid4().hex}"
    odradek_zookeeper.create(chroot)
    return odradek_zookeeper.address + chroot


@pytest.fixture
def odradek_kafka07_broker(odradek_chroot: str) -> Iterator[Callable[..., Kafka07Broker]]:
    """A function: `odradek_kafka07_broker(broker_id=2)` is a running broker at `odradek_chroot`, stopped after
    this test. Takes what Kafka07Broker takes; each broker of a test needs an id of its own."""
    from odradek.testing import Kafka07Broker

    with ExitStack() as stack:

        def start(**options: Any) -> Kafka07Broker:
            return stack.enter_context(Kafka07Broker(zookeeper=odradek_chroot, **options))

        yield start


@pytest.fixture(scope="session")
def odradek_kafka() -> Iterator[KafkaBroker]:
    """One real broker of the newest Kafka for the whole test session. Tests share it: do not stop it, and use topics
    and groups of your own."""
    from odradek.testing import KafkaBroker

    with KafkaBroker() as broker:
        yield broker


@pytest.fixture
def odradek_kafka_broker(request: pytest.FixtureRequest) -> Iterator[Callable[..., KafkaBroker]]:
    """A function: `odradek_kafka_broker("0.11.0.3")` is a running broker, stopped after this test. Takes what
    KafkaBroker takes; each call makes a cluster of its own."""
    from odradek.testing import KafkaBroker

    yield from _starter(request, KafkaBroker)


@pytest.fixture
def odradek_kafka_cluster(request: pytest.FixtureRequest) -> Iterator[Callable[..., KafkaCluster]]:
    """A function: `odradek_kafka_cluster("4.3.1", 3)` is a running cluster, stopped after this test. Takes what
    KafkaCluster takes."""
    from odradek.testing import KafkaCluster

    yield from _starter(request, KafkaCluster)


def _starter(request: pytest.FixtureRequest, kind: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    started = request.node.stash.setdefault(_STARTED, [])
    with ExitStack() as stack:

        def start(*args: Any, **options: Any) -> Any:
            started.append(stack.enter_context(kind(*args, **options)))
            return started[-1]

        yield start


@pytest.fixture
def odradek_fault_proxy() -> Iterator[Callable[[str, int], FaultProxy]]:
    """A function: `odradek_fault_proxy(host, port)` is a running FaultProxy in front of that server, for this test."""
    from odradek.testing import FaultProxy

    with ExitStack() as stack:
        yield lambda host, port: stack.enter_context(FaultProxy(host, port))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the logs of the real brokers that a failed test used; its report shows where they are and how they end."""
    report = yield
    if report.failed and "odradek.testing.kafka" in sys.modules:
        for broker in _brokers_of(item):
            report.sections.append((f"{broker!r}, log kept: {broker.keep_log()}", broker.log_tail()))
    return report


def _brokers_of(item: pytest.Item) -> Iterator[KafkaBroker]:
    from odradek.testing import KafkaBroker, KafkaCluster

    for value in [*getattr(item, "funcargs", {}).values(), *item.stash.get(_STARTED, [])]:
        if isinstance(value, KafkaBroker):
            yield value
        elif isinstance(value, KafkaCluster):
            yield from value.brokers
