"""Handles of the workers: processes that are killed, paused, ended and started again, and never left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from odradek.testing.process import ServerProcess

__all__ = ["Worker"]

ROOT = Path(__file__).parents[3]
START = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.faults.chaos.worker import main; main()"
LEAVE_S = 90.0
"""Limit for a worker to end after SIGTERM (s); then it is killed."""
ENDED = (0, 128 + signal.SIGTERM)
"""Exit codes of a worker that SIGTERM ended."""


class Worker(ServerProcess):
    """One worker. Its journal and its log are files of the run's directory.

    Args:
        role: See `worker.ROLES`.
        arguments: Those of the role's function, but the journal.
    """

    program = "worker"

    def __init__(self, name: str, role: str, directory: Path, **arguments: Any) -> None:
        super().__init__()
        self.name, self.role = name, role
        self.journal = directory / f"{name}.journal"
        self._home, self._arguments = directory, arguments
        self._wanted, self._written_before = False, 0

    def __repr__(self) -> str:
        return f"<Worker {self.name}>"

    @property
    def crashed(self) -> int | None:
        """The exit code of a process that ended although it should run."""
        process = self._process
        if process is None or self.running or not self._wanted:
            return None
        return process.returncode

    @property
    def foreign(self) -> bool:
        """Whether this is another client, whose mistakes are not ours."""
        return self.role in ("librdkafka", "aiokafka")

    @property
    def log_path(self) -> Path:
        """The file that has what it printed."""
        return self._log_path()

    @property
    def memory_mb(self) -> int:
        """Resident memory (MB); 0 if it does not run."""
        with suppress(psutil.Error):
            if self._process is not None:
                return int(psutil.Process(self._process.pid).memory_info().rss / 1e6)
        return 0

    def start(self) -> None:
        self._process = None
        self._wanted = True
        self._written_before = self._written()
        super().start()

    def wait_ready(self, timeout: float = 0.0) -> None:
        """Do not wait: a worker that cannot work ends."""

    def kill(self) -> None:
        self._wanted = False
        super().kill()

    def leave(self) -> str:
        """SIGTERM, and SIGKILL if that does not end it in time. Return what was wrong about its end, if anything."""
        self._wanted = False
        process = self._process
        if process is None:
            return ""
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(LEAVE_S)
        code = process.poll()
        self.kill()
        has_begun = self._written() > self._written_before
        if code in ENDED or self.foreign or (code == -signal.SIGTERM and not has_begun):
            return ""
        return f"{self.name} did not end in order: {code}, {self.log_path}"

    def _written(self) -> int:
        """Size of the journal, in which a worker first writes that it has started."""
        return self.journal.stat().st_size if self.journal.exists() else 0

    def _command(self) -> Sequence[str]:
        arguments = json.dumps({"journal": str(self.journal), **self._arguments})
        return [sys.executable, "-W", "ignore", "-c", START, self.role, arguments]

    def _log_path(self) -> Path:
        return self._home / f"{self.name}.log"
