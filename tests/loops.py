"""The event loops that tests run on."""

from __future__ import annotations

import pytest

__all__ = ["EVERY_LOOP", "LOOPS"]

_ASYNCIO = pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio")
_UVLOOP = pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop")
_TRIO = pytest.param(("trio", {}), id="trio")

LOOPS = [_ASYNCIO, _TRIO]
"""Of tests marked `anyio`, but for those of `io`."""

EVERY_LOOP = [_ASYNCIO, _UVLOOP, _TRIO]
"""Of tests of `io`: uvloop differs from asyncio's own loop in its transports, which nothing above `io` sees."""
