"""Each test runs on both engines, unless it says otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from odradek import engine as engines


@pytest.fixture(params=["pure", "compiled"])
def either_engine(request: pytest.FixtureRequest) -> Iterator[str]:
    before = engines.active.NAME
    engines.use(request.param)
    yield request.param
    engines.use(before)
