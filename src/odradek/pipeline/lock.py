"""The lock of a table: one process writes at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from odradek.pipeline.errors import TableLocked

__all__ = ["table_lock"]


@contextmanager
def table_lock(root: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the lock of the table in this directory. The system releases it when this process ends in any way.

    Raises:
        TableLocked: Another process holds it.
    """
    path = Path(root) / "_odradek" / "lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TableLocked(str(path)) from None
        yield
