"""`odradek pipeline run` that says on standard output when a batch is about to be read.

crash.py all FILE.toml: says so, and goes on.
crash.py reading FILE.toml: says so, and waits for a line on standard input.
crash.py reading FILE.toml SECONDS: as well, and so long it tries to reach brokers.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from odradek.cli.app import run
from odradek.pipeline.flow import FlowRun


def say_when_reading(*, wait: bool) -> None:
    original = FlowRun._jobs

    def patched(self: FlowRun, *arguments: Any) -> Any:
        os.write(sys.stdout.fileno(), b"reading\n")
        if wait:
            sys.stdin.readline()
        return original(self, *arguments)

    setattr(FlowRun, "_jobs", patched)  # noqa: B010


def shorten_deadlines(seconds: str) -> None:
    original = FlowRun.__post_init__

    def patched(self: FlowRun) -> None:
        self.options = dict.fromkeys(("fetchOffset.deadlineMs", "kafkaConsumer.pollTimeoutMs"), f"{seconds}000")
        original(self)

    FlowRun.__post_init__ = patched  # type: ignore[method-assign]


def main(step: str, file: str, *seconds: str) -> int:
    if seconds:
        shorten_deadlines(*seconds)
    say_when_reading(wait=step == "reading")
    return run(["pipeline", "run", file, "--master", "local[2]", "--quiet"])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
