"""What the tests of the messages share: values of every message, random but the same for the same seed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def fuzz() -> ModuleType:
    """The script next to this file."""
    path = Path(__file__).with_name("fuzz.py")
    spec = importlib.util.spec_from_file_location("kafka_fuzz", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
