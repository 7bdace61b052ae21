"""Processes of the demo: their lines of JSON become events, their failure an error, and none outlives the demo."""

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

__all__ = ["ChildProcess", "ProcessFailed", "run_logged"]

MAX_LINE_BYTES = 1 << 20
STOP_SECONDS = 10.0
LOG_TAIL_BYTES = 2000


class ProcessFailed(OdradekError):
    """A process of the demo failed."""


class ChildProcess:
    """A process of this interpreter with pipes for its standard input and output.

    It runs in a session of its own, so that Ctrl-C reaches only the demo, which then stops everything in order; if the
    demo itself is killed, the child's standard input ends, and the child exits.

    Args:
        name: Its name in messages.
        arguments: The arguments of `python`.
        log: File for its standard error.
        on_event: Called with the name and the fields of each event.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], log: Path, on_event: Callable[[str, dict[str, Any]], None]
    ) -> None:
        self.name = name
        self._arguments, self._log, self._on_event = arguments, log, on_event
        self._process: Process | None = None
        self._expected = False
        self.ended = anyio.Event()
        """Set when the process has ended and its last event is handled."""

    async def start(self, tasks: TaskGroup) -> None:
        """Start it, and a task that reads its events and raises ProcessFailed if it fails."""
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
        """The process id."""
        assert self._process is not None
        return self._process.pid

    async def send_line(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self._process is not None and self._process.stdin is not None
        await self._process.stdin.send(line.encode() + b"\n")

    def kill(self) -> None:
        """Send SIGKILL."""
        self._expected = True
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def end(self) -> None:
        """Close its standard input and wait until it exits; kill it after STOP_SECONDS. Idempotent."""
        process, self._expected = self._process, True
        if process is None:
            return
        with anyio.CancelScope(shield=True):
            if process.stdin is not None:
                await process.stdin.aclose()
            with anyio.move_on_after(STOP_SECONDS):
                await process.wait()
            self.kill()
            await process.wait()

    async def _listen(self, process: Process) -> None:
        assert process.stdout is not None
        lines = BufferedByteReceiveStream(process.stdout)
        try:
            while True:
                event = json.loads(await lines.receive_until(b"\n", MAX_LINE_BYTES))
                self._on_event(event.pop("event", "ready"), event)
        except (anyio.IncompleteRead, anyio.BrokenResourceError):
            pass
        code = await process.wait()
        self.ended.set()
        if code and not self._expected:
            raise ProcessFailed(f"{self.name} ended with exit code {code}: {_log_tail(self._log)}")


async def run_logged(name: str, arguments: Sequence[str], log: Path, meanwhile: Callable[[], Awaitable[None]]) -> None:
    """Run a process of this interpreter that has no input and no events.

    The output of it and its children goes to a file: a pipe would stay open as long as any of them runs. It runs in a
    session of its own, as every process of the demo. On cancellation it is terminated, and killed after STOP_SECONDS.

    Args:
        name: Its name in messages.
        arguments: The arguments of `python`.
        log: The file.
        meanwhile: Called repeatedly while it runs, and once after it ended; must sleep between its checks.

    Raises:
        ProcessFailed: The exit code is not 0.
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
        raise ProcessFailed(f"{name} ended with exit code {process.returncode}: {_log_tail(log)}")


async def _terminate(process: Process) -> None:
    if process.returncode is not None:
        return
    with anyio.CancelScope(shield=True):
        process.terminate()
        with anyio.move_on_after(STOP_SECONDS):
            await process.wait()
            return
        process.kill()
        await process.wait()


def _log_tail(log: Path) -> str:
    """Return the end of a process's output."""
    return log.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace").strip() or "no output"
