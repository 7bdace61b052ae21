"""What every test can use: the loop matrix, both engines, and real brokers."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from tests.loops import BOTH, on
from tests.samples import left_out, releases_of, seed_of

from odradek import engine as engine_module
from odradek.testing import KafkaBroker
from odradek.testing.kafka.releases import MATRIX

# Time limits of hypothesis say something about the machine's load, not about what is tested.
settings.register_profile(
    "odradek",
    deadline=None,
    max_examples=int(os.environ.get("ODRADEK_EXAMPLES", "50")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("odradek")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--brokers",
        default="matrix",
        help="releases of Kafka that are started: `matrix` (the random seed says which), `all`, or some: 2.8.2,4.3.1",
    )
    parser.addoption(
        "--write-broker-table",
        action="store_true",
        help="write what ran against which broker (tests/brokers) into the documentation",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "any_kafka" in metafunc.fixturenames:
        releases = releases_of(metafunc.config.getoption("--brokers"), seed_of(metafunc.config))
        if (only := metafunc.definition.get_closest_marker("releases")) is not None:
            releases = [pair for pair in MATRIX if pair[0] in only.args]
        metafunc.parametrize("any_kafka", releases, ids=map("-".join, releases), indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what runs with other random seeds have."""
    left = left_out(items, seed_of(config))
    config.hook.pytest_deselected(items=list(left))
    items[:] = [item for item in items if item not in left]


@pytest.fixture(scope="session")
def any_kafka(request: pytest.FixtureRequest) -> Iterator[KafkaBroker]:
    """A running broker of each release in turn. Tests share it: use topics and groups of your own."""
    version, mode = request.param
    with KafkaBroker(version, mode=mode, config={"num.partitions": "3", "auto.create.topics.enable": "true"}) as broker:
        yield broker


def pytest_configure() -> None:
    """Processes that tests start hear Ctrl-C, also where these tests are a shell's background job, which ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What is there before the first test stays: the garbage collector need not look through it again in each of its
    full collections, which took a tenth of the tests' processor time."""
    gc.collect()
    gc.freeze()


anyio_backend = on(BOTH)  # those that differ from this say so (see `tests.loops`)


def built(name: str) -> bool:
    try:
        engine_module.engine(name)
    except ImportError:
        return False
    return True


ENGINES = [name for name in engine_module.ENGINES if built(name)]


@pytest.fixture(scope="session")
def engines() -> list[engine_module.Engine]:
    """Those that there are."""
    return [engine_module.engine(name) for name in ENGINES]


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each engine that there is, in use."""
    before = engine_module.active.NAME
    engine_module.use(request.param)
    yield request.param
    engine_module.use(before)
