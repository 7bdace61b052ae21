"""A process the demo starts: its lines of JSON come in as events, its end is noticed, and it never outlives us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process, TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream

from odradek.errors import OdradekError

__all__ = ["Child", "Died", "run_logged"]

LINE_BYTES = 1 << 20
END_SECONDS = 10.0
LOG_BYTES = 2000


class Died(OdradekError):
    """A process of the demo failed."""


class Child:
    """One process of this interpreter, started with a pipe at both ends.

    It is in a session of its own, so that Ctrl-C reaches the demo alone, which then ends everything in order; when the
    demo itself is killed, the child's standard input ends, and with it the child.

    Args:
        name: What it is called in messages.
        arguments: What follows `python`.
        log: A file for its standard error.
        on_event: Called with each event: its name, and the rest.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], log: Path, on_event: Callable[[str, dict[str, Any]], None]
    ) -> None:
        self.name = name
        self._arguments, self._log, self._on_event = arguments, log, on_event
        self._process: Process | None = None
        self._expected = False
        self.ended = anyio.Event()
        """Set when it has ended and everything it told was heard."""

    async def start(self, tasks: TaskGroup) -> None:
        """Start it, and a task that listens to it and raises Died when it fails."""
        with self._log.open("ab") as errors:
            self._process = await anyio.open_process(
                [sys.executable, *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        tasks.start_soon(self._listen, self._process)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def tell(self, line: str) -> None:
        """A line on its standard input."""
        assert self._process is not None and self._process.stdin is not None
        await self._process.stdin.send(line.encode() + b"\n")

    def kill(self) -> None:
        """SIGKILL."""
        self._expected = True
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def end(self) -> None:
        """Close its standard input and wait until it is gone; after a while, kill it. Idempotent."""
        process, self._expected = self._process, True
        if process is None:
            return
        with anyio.CancelScope(shield=True):
            if process.stdin is not None:
                await process.stdin.aclose()
            with anyio.move_on_after(END_SECONDS):
                await process.wait()
            self.kill()
            await process.wait()

    async def _listen(self, process: Process) -> None:
        assert process.stdout is not None
        lines = BufferedByteReceiveStream(process.stdout)
        try:
            while True:
                event = json.loads(await lines.receive_until(b"\n", LINE_BYTES))
                self._on_event(event.pop("event", "ready"), event)
        except (anyio.IncompleteRead, anyio.BrokenResourceError):
            pass
        code = await process.wait()
        self.ended.set()
        if code and not self._expected:
            raise Died(f"{self.name} ended with exit code {code}: {last_words(self._log)}")


async def run_logged(name: str, arguments: Sequence[str], log: Path, meanwhile: Callable[[], Awaitable[None]]) -> None:
    """Run a process of this interpreter that takes no orders and tells nothing but its exit code.

    What it and those that it starts print goes into a file: a pipe would stay open for as long as any of them lives. It
    is in a session of its own, as every process of the demo. Cancelled, it is terminated, and after a while killed.

    Args:
        name: What it is called in messages.
        arguments: What follows `python`.
        log: The file.
        meanwhile: Called again and again while it runs, and once more when it has ended; takes its time.

    Raises:
        Died: It failed.
    """
    with log.open("ab") as file:
        command = [sys.executable, *arguments]
        process = await anyio.open_process(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    try:
        while process.returncode is None:
            await meanwhile()
        await meanwhile()
    finally:
        await _terminate(process)
    if process.returncode:
        raise Died(f"{name} ended with exit code {process.returncode}: {last_words(log)}")


async def _terminate(process: Process) -> None:
    if process.returncode is not None:
        return
    with anyio.CancelScope(shield=True):
        process.terminate()
        with anyio.move_on_after(END_SECONDS):
            await process.wait()
            return
        process.kill()
        await process.wait()


def last_words(log: Path) -> str:
    """The end of what a process has printed."""
    return log.read_bytes()[-LOG_BYTES:].decode("utf-8", "replace").strip() or "it said nothing"
