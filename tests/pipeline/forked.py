"""Runs of `crash.py` whose tasks need no Spark, forked from a process that has imported everything: imports would take
most of the time of a run that is killed."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Self

from ..spark.child import WAIT_S
from . import crash

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([crash.__name__])


class Forked:
    """A run of `crash.py` in a process of its own, which does not outlive the block.

    Args:
        arguments: Of `crash.py`.
        folder: For what it writes on standard error, and for its temporary files.
    """

    def __init__(self, arguments: tuple[str, ...], folder: Path) -> None:
        self.scratch = folder / "tmp"
        self.scratch.mkdir(parents=True, exist_ok=True)
        self._errors = folder / "errors.txt"
        environ = {**os.environ, "TMPDIR": str(self.scratch)}
        reader, writer = _FORKS.Pipe(duplex=False)
        with writer:
            self._process = _FORKS.Process(target=_run, args=(writer, str(self._errors), environ, arguments))
            self._process.start()
        with reader:
            self._output = os.fdopen(os.dup(reader.fileno()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()
        self._output.close()

    @property
    def errors(self) -> str:
        """What it has written on standard error."""
        return self._errors.read_text("utf-8", "replace")

    def said(self) -> str:
        """Return the next line of its standard output; "" when it has ended."""
        return self._output.readline().rstrip()

    def ended(self) -> int | None:
        """Return its exit code; None if it has not ended in time."""
        self._process.join(WAIT_S)
        return self._process.exitcode


def _run(output: Connection, errors: str, environ: Mapping[str, str], arguments: tuple[str, ...]) -> None:
    """Do what the interpreter does that runs `crash.py` as a program."""
    os.environ.clear()
    os.environ.update(environ)
    tempfile.tempdir = None
    os.dup2(output.fileno(), 1)
    output.close()
    with Path(errors).open("wb") as file:
        os.dup2(file.fileno(), 2)
    sys.exit(crash.main(*arguments))
