"""A process the demo starts: its lines of JSON come in as events, its end is noticed, and it never outlives us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process, TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream

from odradek.errors import OdradekError

__all__ = ["Child", "Died"]

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

    async def terminate(self) -> None:
        """As `end`, for one that does not read its standard input: with SIGTERM."""
        if self._process is not None and self._process.returncode is None:
            self._expected = True
            self._process.terminate()
        await self.end()

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
            raise Died(f"{self.name} ended with exit code {code}: {self._last_words()}")

    def _last_words(self) -> str:
        return self._log.read_bytes()[-LOG_BYTES:].decode("utf-8", "replace").strip() or "it said nothing"
