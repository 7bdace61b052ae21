"""Connections of this process, which end with each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from odradek.ranges import process


@pytest.fixture(autouse=True)
def disconnected() -> Iterator[None]:
    """Connections that a test made in this process do not outlive what they lead to."""
    yield
    process.disconnect()
