"""The loops that touch every message, as functions over buffers; nothing above knows which engine runs them.

There are two engines of one behaviour: `odradek.engine.pure`, always there, and `odradek.engine._compiled`, built from
`rust/` where a compiler was at hand. Same bytes in, same rows out, same place to stop: what is rare - damage, cut ends,
wrappers - stops a loop and is left to the caller, so that there is one piece of code that names it.

`active` is the engine in use: the compiled one if it can be imported, unless the environment says
`ODRADEK_ENGINE=pure`. Callers look it up at every use (`engine.active.encode_run(...)`).
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import cast

from odradek.engine.interface import NO_LIMIT, Buffer, ColumnBuilder, Engine, PayloadBuilder, RecordBuilder
from odradek.engine.packed import HeaderColumns, Headers, PackedBytes

__all__ = [
    "ENGINES",
    "NO_LIMIT",
    "Buffer",
    "ColumnBuilder",
    "Engine",
    "HeaderColumns",
    "Headers",
    "PackedBytes",
    "PayloadBuilder",
    "RecordBuilder",
    "active",
    "engine",
    "use",
]

ENGINES = {"compiled": "odradek.engine._compiled", "pure": "odradek.engine.pure"}
"""Name -> module, the preferred one first."""

VARIABLE = "ODRADEK_ENGINE"


def engine(name: str) -> Engine:
    """The engine of this name. Raises ImportError: it was not built, or there is no such name."""
    if name not in ENGINES:
        raise ImportError(f"{VARIABLE}={name!r}: there is no such engine; there are {', '.join(ENGINES)}")
    return cast(Engine, import_module(ENGINES[name]))


def use(name: str) -> None:
    """Run on this engine from now on: for tests and comparisons. Do not switch while decoders are in use."""
    global active
    active = engine(name)


def _choose() -> Engine:
    if asked := os.environ.get(VARIABLE):
        return engine(asked)  # who asks for one by name wants to know that it is missing
    try:
        return engine("compiled")
    except ImportError:
        return engine("pure")


active: Engine = _choose()
