"""What every test can use: the loop matrix."""

from __future__ import annotations

from typing import Any

import pytest

BACKENDS = [
    pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
    pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    pytest.param(("trio", {}), id="trio"),
]


@pytest.fixture(params=BACKENDS)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Tests marked `anyio` run on asyncio, uvloop and trio."""
    return request.param
