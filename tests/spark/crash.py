"""`odradek pipeline run` that says on standard output which step it has reached.

crash.py all FILE.toml: says each step, and goes on.
crash.py STEP FILE.toml: says so at this step, and waits for a line on standard input.
crash.py STEP FILE.toml SECONDS: as well, and so long it tries to reach brokers.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from odradek.cli.app import run
from odradek.pipeline.checkpoint import Checkpoint
from odradek.pipeline.commit import TableWriter
from odradek.pipeline.delta import DeltaLog
from odradek.pipeline.ledger import Ledger
from odradek.pipeline.run import FlowRun

Say = Callable[[], None]


def before(owner: Any, name: str, say: Say) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    @wraps(original)
    def patched(*arguments: Any, **options: Any) -> Any:
        say()
        return original(*arguments, **options)

    setattr(owner, name, patched)


def behind(owner: Any, name: str, say: Say) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    @wraps(original)
    def patched(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        say()
        return result

    setattr(owner, name, patched)


def while_staging(say: Say) -> None:
    """As soon as there is a file of the batch."""
    original = FlowRun._stage

    def patched(self: FlowRun, rows: Any, batch: Any, names: str) -> Any:
        over = threading.Event()
        threading.Thread(target=_watch, args=(self.table.root, names, over, say), daemon=True).start()
        try:
            return original(self, rows, batch, names)
        finally:
            over.set()

    FlowRun._stage = patched  # type: ignore[method-assign]


def _watch(root: Path, names: str, over: threading.Event, say: Say) -> None:
    while not any(root.rglob(f"{names}*.parquet")):
        if over.wait(0.002):
            return
    say()


STEPS: dict[str, Callable[[Say], None]] = {
    "reading": lambda say: before(FlowRun, "_stage", say),
    "begun": lambda say: behind(Checkpoint, "begin", say),
    "planned": lambda say: before(TableWriter, "commit", say),
    "staging": while_staging,
    "staged": lambda say: behind(FlowRun, "_stage", say),
    "judged": lambda say: behind(TableWriter, "_check_result", say),
    "delta": lambda say: behind(DeltaLog, "commit", say),
    "linking": lambda say: before(os, "link", say),
    "ledger": lambda say: behind(Ledger, "commit", say),
    "committed": lambda say: behind(FlowRun, "_committed", say),
}


def write_line(step: str) -> None:
    os.write(sys.stdout.fileno(), f"{step}\n".encode())


def stay(step: str) -> None:
    write_line(step)
    sys.stdin.readline()


def impatient(seconds: str) -> None:
    original = FlowRun.__post_init__

    def patched(self: FlowRun) -> None:
        original(self)
        self.options |= dict.fromkeys(("fetchOffset.deadlineMs", "kafkaConsumer.pollTimeoutMs"), f"{seconds}000")

    FlowRun.__post_init__ = patched  # type: ignore[method-assign]


def main(step: str, file: str, *seconds: str) -> int:
    if seconds:
        impatient(*seconds)
    if step == "all":
        for name, install in STEPS.items():
            install(lambda name=name: write_line(name))  # type: ignore[misc]
    else:
        STEPS[step](lambda: stay(step))
    return run(["pipeline", "run", file, "--master", "local[2]", "--quiet"])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
