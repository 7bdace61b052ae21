"""The event loops that tests run on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

__all__ = ["ASYNCIO", "BOTH", "EVERY_LOOP", "on"]

_ASYNCIO = pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio")
_UVLOOP = pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop")
_TRIO = pytest.param(("trio", {}), id="trio")

ASYNCIO = [_ASYNCIO]
"""Of tests above `io` that go through sockets: what differs there is in `io`, which is tested on both."""

BOTH = [_ASYNCIO, _TRIO]
"""Of all other tests marked `anyio`: cancellation and the order of tasks differ."""

EVERY_LOOP = [_ASYNCIO, _UVLOOP, _TRIO]
"""Of tests of transports, and of one file of each folder of `io`: uvloop differs from asyncio's own loop in its
transports, which nothing above `io/transport.py` sees."""


def on(loops: Sequence[Any]) -> Any:
    """Return the fixture for a module, or a folder's `conftest.py`: `anyio_backend = on(EVERY_LOOP)`."""

    @pytest.fixture(params=loops)
    def anyio_backend(request: pytest.FixtureRequest) -> Any:
        return request.param

    return anyio_backend
