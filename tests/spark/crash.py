"""A run of a pipeline that ends with SIGKILL for all of its processes, at a step that is named.

crash.py FILE.toml STEP
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from odradek.pipeline.checkpoint import Checkpoint
from odradek.pipeline.commit import Table
from odradek.pipeline.config import load
from odradek.pipeline.delta import DeltaLog
from odradek.pipeline.ledger import Ledger
from odradek.pipeline.run import FlowRun, run


def kill() -> None:
    """Spark's Java, its workers, and this process, so that nothing of it does anything any more."""
    tree = psutil.Process().children(recursive=True)
    for process in [*tree, psutil.Process()]:
        os.kill(process.pid, signal.SIGKILL)


def before(owner: Any, name: str) -> None:
    def patched(*_: Any, **__: Any) -> None:
        kill()

    setattr(owner, name, patched)


def behind(owner: Any, name: str) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    def patched(*arguments: Any, **options: Any) -> None:
        original(*arguments, **options)
        kill()

    setattr(owner, name, patched)


def while_staging(*_: Any) -> None:
    """As soon as there is a file of the batch."""
    original = FlowRun._stage

    def patched(self: FlowRun, rows: Any, batch: Any, names: str) -> Any:
        threading.Thread(target=_kill_at_file, args=(self.table.root, names), daemon=True).start()
        return original(self, rows, batch, names)

    FlowRun._stage = patched  # type: ignore[method-assign]


def _kill_at_file(root: Path, names: str) -> None:
    while not any(root.rglob(f"{names}*.parquet")):
        time.sleep(0.002)
    kill()


STEPS: dict[str, Callable[[], None]] = {
    "begun": lambda: behind(Checkpoint, "begin"),
    "planned": lambda: before(Table, "commit"),
    "staging": lambda: while_staging(),
    "staged": lambda: behind(FlowRun, "_stage"),
    "judged": lambda: behind(Table, "_judge"),
    "delta": lambda: behind(DeltaLog, "commit"),
    "linking": lambda: before(os, "link"),
    "ledger": lambda: behind(Ledger, "commit"),
    "committed": lambda: behind(FlowRun, "_committed"),
    "never": lambda: None,
}

if __name__ == "__main__":
    STEPS[sys.argv[2]]()
    summary = run(load(sys.argv[1]), sys.argv[1], lambda _flow, _batch: None, master="local[2]")
    sys.exit("; ".join(flow.error for flow in summary.flows if flow.error) or 0)
