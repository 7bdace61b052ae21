"""Clusters of each release in turn, and the behaviours that are tried on them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from odradek.testing import KafkaCluster
from odradek.testing.kafka.releases import release

from . import AREAS
from .behaviour import PROXIED, Stand, behaviours_of
from .releases import RELEASES, chosen_releases, is_tried
from .table import HELD

for area in AREAS:
    import_module(f"{__package__}.{area}")  # which registers its behaviours

SETTINGS = {
    "auto.create.topics.enable": "false",
    "auto.leader.rebalance.enable": "false",
    "broker.session.timeout.ms": "3000",
    "controlled.shutdown.enable": "true",
    "group.consumer.session.timeout.ms": "45000",
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
    "replica.lag.time.max.ms": "3000",
    "zookeeper.session.timeout.ms": "3000",
}


def pytest_configure(config: pytest.Config) -> None:
    config.stash[HELD] = {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "checked" in metafunc.fixturenames:
        brokers, seed = metafunc.config.getoption("--brokers"), metafunc.config.getoption("randomly_seed", 0)
        pairs = [
            (version, each)
            for version in chosen_releases(brokers)
            for each in behaviours_of(release(version).number)
            if is_tried(brokers, version, each, seed)
        ]
        ids = [f"{version}-{each.name}" for version, each in pairs]
        metafunc.parametrize(("stand", "checked"), pairs, ids=ids, indirect=["stand"], scope="session")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run one release after the other, and check the page when all have run."""
    items.sort(key=_sort_key)


def _sort_key(item: pytest.Item) -> tuple[int, int]:
    """Sort by release, and there quick behaviours before retention before what restarts brokers: a broker deletes
    nothing in its first 30 s."""
    if item.path.parent != Path(__file__).parent:
        return -1, 0
    call = getattr(item, "callspec", None)
    if call is None:
        return len(RELEASES), 0
    checked = call.params["checked"]
    last = 0 if not checked.slow else 1 if checked.name.startswith("retention") else 2
    return list(RELEASES).index(call.params["stand"]), last


@pytest.fixture(scope="session")
def stand(request: pytest.FixtureRequest) -> Iterator[Stand]:
    """Three brokers of a release."""
    version = request.param
    with KafkaCluster(version, 3, config=SETTINGS, proxied=release(version).number >= PROXIED) as cluster:
        yield Stand(cluster)
