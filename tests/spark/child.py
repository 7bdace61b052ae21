"""A run of a pipeline in processes of its own, and ways to end them: all, or one of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

import odradek

from .classes import STARTUP, spark_environ

SOURCES = str(Path(odradek.__file__).parents[1])
PATHS = os.pathsep.join([str(STARTUP), SOURCES, str(Path(__file__).parents[2])])
"""For imports of odradek, and of `tests`, by processes that start quickly."""

SCRIPT = Path(__file__).with_name("crash.py")
WAIT_S = 240.0
"""What a run may take that does what it should, on a machine that does much else."""


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for it."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited for: {what}"
        time.sleep(0.02)  # a look at a tree of processes takes as long


class Child:
    """A Python process with what it starts. At the end of the block none of it runs any more.

    Args:
        arguments: For Python.
        scratch: A directory for what it writes on standard error, and for its temporary files.
    """

    def __init__(self, arguments: Sequence[str], scratch: Path) -> None:
        self.scratch = scratch / "tmp"
        self.scratch.mkdir(parents=True, exist_ok=True)
        self._errors = scratch / "errors.txt"
        own = {"PYTHONPATH": PATHS, "TMPDIR": str(self.scratch), **spark_environ()}
        environment = {**os.environ, **own}
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, process_group=0,
            )  # fmt: skip

    @classmethod
    def reading(cls, file: Path, *more: str) -> Child:
        """`crash.py`."""
        return cls([str(SCRIPT), str(file), *more], file.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def errors(self) -> str:
        """What it has written on standard error."""
        return self._errors.read_text("utf-8", "replace")

    def said(self) -> str:
        """The next line of its standard output; "" when it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().rstrip()

    def go_on(self) -> None:
        """From the step at which it is."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def ended(self) -> int:
        """Its exit code, once it has ended, with everything that it has started until now."""
        tree = self._below()
        code = self.process.wait(WAIT_S)
        until(lambda: not any(map(_runs, tree)), f"the end of {tree}")
        return code

    def kill_driver(self) -> None:
        """SIGKILL for the process itself; the others end by themselves."""
        tree = self._below()
        self.process.kill()
        self.process.wait(WAIT_S)
        until(lambda: not any(map(_runs, tree)), f"the end of {tree}")

    def java(self) -> psutil.Process | None:
        """Spark's; None: it has not begun."""
        return next((each for each in self._below() if "".join(_command(each)[:1]).endswith("/java")), None)

    def workers(self) -> list[psutil.Process]:
        """Python processes that do Spark's tasks: those that pyspark's daemon for them has forked."""
        workers = [each for each in self._below() if _command(each)[-2:] == ["pyspark.daemon", "pyspark.worker"]]
        pids = {each.pid for each in workers}
        return [each for each in workers if _parent(each) in pids]

    def kill(self) -> None:
        """SIGKILL for every process of the tree. They are stopped first, so that none sees the end of another and none
        is born meanwhile."""
        stopped: set[psutil.Process] = set()
        while new := self._below() - stopped:
            for process in new:
                with suppress(psutil.NoSuchProcess):
                    process.suspend()
            stopped |= new
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(WAIT_S)
        assert self.process.stdin is not None and self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        until(lambda: not any(map(_runs, stopped)), f"the end of {stopped}")

    def _below(self) -> set[psutil.Process]:
        if self.process.poll() is not None:
            return set()
        root = psutil.Process(self.process.pid)
        return {root, *root.children(recursive=True)}


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it has just ended
        return []


def _parent(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except psutil.NoSuchProcess:  # it has just ended
        return None


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
