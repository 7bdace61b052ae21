"""What the tests of the codecs share: both engines, and sets built by hand."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from odradek import engine as engines
from odradek.engine import Engine


@pytest.fixture(params=["pure", "compiled"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine in turn. One that was not built is a failure."""
    return engines.engine(request.param)


@pytest.fixture(scope="session")
def fuzz() -> ModuleType:
    """`fuzz.py` beside this file, which is a script too."""
    spec = importlib.util.spec_from_file_location("odradek_codec_fuzz", Path(__file__).with_name("fuzz.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
