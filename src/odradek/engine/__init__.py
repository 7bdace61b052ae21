"""The loops over messages, as functions over buffers. No caller depends on which engine runs them.

There are two engines with one behaviour: `odradek.engine.pure`, which is always available, and
`odradek.engine._compiled`, built from `rust/` if a compiler is installed. The same bytes give the same rows, and both
stop at the same index: rare entries - damaged, cut off, compressed - stop a loop and are left to the caller, so that
one implementation handles them.

`active` is the engine in use: the compiled one if it can be imported, unless the environment says
`ODRADEK_ENGINE=pure`. Callers look it up at every use (`engine.active.encode_run(...)`).
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, cast

from odradek.engine.interface import (
    NO_LIMIT,
    Appender,
    Buffer,
    ColumnBuilder,
    DecodedColumns,
    Engine,
    PayloadBuilder,
    RecordBuilder,
)
from odradek.engine.packed import HeaderColumns, Headers, PackedBytes

__all__ = [
    "ENGINES",
    "NO_LIMIT",
    "Appender",
    "BatchBase",
    "Buffer",
    "BufferBase",
    "ColumnBuilder",
    "DecodedColumns",
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
    """Return the engine with this name. Raises ImportError if it was not built or the name is unknown."""
    if name not in ENGINES:
        raise ImportError(f"{VARIABLE}={name!r}: there is no such engine; choose one of {', '.join(ENGINES)}")
    return cast(Engine, import_module(ENGINES[name]))


def use(name: str) -> None:
    """Use this engine from now on: for tests and comparisons. Do not switch while decoders are in use."""
    global active
    active = engine(name)


def _choose() -> Engine:
    if name := os.environ.get(VARIABLE):
        return engine(name)  # an engine chosen by name must not be replaced silently
    try:
        return engine("compiled")
    except ImportError:
        return engine("pure")


active: Engine = _choose()

if TYPE_CHECKING:
    from odradek.engine.pure import BatchBase, BufferBase
else:  # classes have one base: `use` does not change it, and an `Appender` of the other engine may append nothing
    BatchBase, BufferBase = active.BatchBase, active.BufferBase
