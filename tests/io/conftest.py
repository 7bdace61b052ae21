"""Real ZooKeepers, one of each version per session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from uuid import uuid4

import pytest

from odradek.testing import ZooKeeperServer


@pytest.fixture(scope="session")
def zookeepers() -> Iterator[Callable[[str], ZooKeeperServer]]:
    """The session's server of a version, started when first asked for."""
    with ExitStack() as stack:
        yield cache(lambda version: stack.enter_context(ZooKeeperServer(version)))


@pytest.fixture(params=["3.9.5", "3.4.14", "3.3.6"])
def zookeeper(request: pytest.FixtureRequest, zookeepers: Callable[[str], ZooKeeperServer]) -> ZooKeeperServer:
    """Each version in turn. Tests share it: they keep to `chroot`."""
    return zookeepers(request.param)


@pytest.fixture
def chroot(zookeeper: ZooKeeperServer) -> str:
    """An empty node for this test alone."""
    path = f"/{uuid4().hex}"
    zookeeper.create(path)
    return path
