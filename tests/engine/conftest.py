"""What the tests of the codecs share: both engines, and sets built by hand."""

from __future__ import annotations

import pytest

from odradek import engine as engines
from odradek.engine import Engine


@pytest.fixture(params=["pure", "compiled"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine in turn. One that was not built is a failure."""
    return engines.engine(request.param)
