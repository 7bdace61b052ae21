"""A server in a process of its own, for the time of a `with` block: started, killed, paused, never left behind.

POSIX only: processes are stopped and paused by signals.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

import anyio.to_thread

from odradek.errors import OdradekError, ServerError

__all__ = ["LOOPBACK", "START_SECONDS", "Lifecycle", "ServerProcess", "reserve_port"]

LOOPBACK = "127.0.0.1"
START_SECONDS = 120.0
"""Limit for a server to serve (s): a ZooKeeper takes 0.3 s on an idle machine, a broker 1 to 4 s, many times that on
a loaded one."""


class Lifecycle:
    """Base for `with` and `async with` on something with a blocking `start` and `stop`."""

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def _leave(self, error: BaseException | None) -> None:
        """End with the block, which this error ended, or none."""
        self.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(error)

    async def __aenter__(self) -> Self:
        with anyio.CancelScope(shield=True):  # a start given up half-way would leave its process or thread behind
            await anyio.to_thread.run_sync(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._leave, error)


class ServerProcess(Lifecycle):
    """One process with a log and a temporary directory. A subclass says how it is launched and when it is ready.

    The process ends with the `with` block, and also when the test process dies of any cause.
    """

    program: ClassVar[str]
    """Name of the program: of its log, and in the name of its directory."""
    error: ClassVar[type[OdradekError]] = ServerError
    """Raised when the process does not do what it should."""

    def __init__(self) -> None:
        self._scratch: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._paused = False

    @property
    def running(self) -> bool:
        if self._process is None:
            return False
        if self._process.poll() is None:
            return True
        self._dismiss_watchdog()
        return False

    @property
    def paused(self) -> bool:
        return self._paused

    def start(self) -> None:
        """Start it, on the ports and the data it had before, and wait until it serves. Raises an error with the end of
        its log when it dies instead."""
        if self._process is not None:
            raise self.error(f"{self!r} is started already")
        try:
            self.launch()
            self.wait_ready()
        except BaseException as error:
            self._leave(error)
            raise

    def stop(self) -> None:
        """Stop it and remove its temporary directory. Idempotent."""
        self.kill()
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            self._remove(scratch)

    def kill(self) -> None:
        """SIGKILL: connections die; `start` starts it again on the same ports and data."""
        self._dismiss_watchdog()  # before the server's pid is free for another process
        process, self._process, self._paused = self._process, None, False
        if process is not None:
            process.kill()
            process.wait()

    def restart(self) -> None:
        """`kill` and `start`."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers; a half-open peer."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        with suppress(ChildProcessError):  # it has died meanwhile
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)  # until all of its threads have stopped
        self._paused = True

    def resume(self) -> None:
        """Send SIGCONT. Sessions may expire whose clients the server has not heard from meanwhile."""
        self._running().send_signal(signal.SIGCONT)
        self._paused = False

    def launch(self) -> None:
        """Start the process without waiting for it."""
        command = self._command()
        with self._log_path().open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        self._watchdog = _watch(self._process.pid, self._scratch)

    def wait_ready(self, timeout: float = START_SECONDS) -> None:
        """Wait until it serves. Raises an error with the end of its log when it does not within `timeout` (s)."""
        raise NotImplementedError

    def log_tail(self, limit_bytes: int = 4000) -> str:
        """Return the end of what it printed; empty after `stop`."""
        if self._scratch is None:
            return ""
        try:
            return self._log_path().read_bytes()[-limit_bytes:].decode("utf-8", "replace").strip()
        except OSError:
            return ""

    # ---- for subclasses -------------------------------------------------------------------------------------

    def _command(self) -> Sequence[str]:
        raise NotImplementedError

    def _directory(self) -> Path:
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix=f"odradek-{self.program}-"))
        return self._scratch

    def _remove(self, directory: Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)

    def _log_path(self) -> Path:
        return self._directory() / f"{self.program}.log"

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise self.error(f"{self!r} is not running")
        return self._process

    def _dismiss_watchdog(self) -> None:
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.kill()
            watchdog.communicate()


def reserve_port(port: int = 0) -> tuple[int, socket.socket]:
    """Return a port of 127.0.0.1 (0: any) and a socket that keeps it for us until it is closed.

    Linux lets a server listen where another socket is bound, if both allow the reuse of addresses. Elsewhere the port
    is only known to have been free a moment ago.
    """
    keeper = socket.socket()
    try:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind((LOOPBACK, port))
        number: int = keeper.getsockname()[1]
    except BaseException:
        keeper.close()
        raise
    if sys.platform != "linux":
        keeper.close()
    return number, keeper


def _watch(pid: int, scratch: Path | None) -> subprocess.Popen[bytes]:
    """Kill the server and remove its directory when this process is gone: its end of the pipe closes then."""
    script = 'read -r _; kill -9 "$1"; rm -rf "$2"'
    return subprocess.Popen(
        ["sh", "-c", script, "sh", str(pid), str(scratch or "")],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
