"""What must hold for a client, one small program each, on every release: `test_sweep.py` runs them."""

import pytest

AREAS = ("positions", "leaders", "topics", "producing", "errors", "groups", "transactions")
"""Modules of programs, in the order of the table."""

pytest.register_assert_rewrite(*(f"{__name__}.{area}" for area in AREAS))
