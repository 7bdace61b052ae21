"""`odradek pipeline run` that says on standard output when a batch is about to be read, and waits for a line.

crash.py FILE.toml [here] [SECONDS]: tasks run in this process instead of on Spark; so long it tries to reach brokers.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

from tests.pipeline.workspace import in_process

import odradek.pipeline.run
from odradek.cli.app import run
from odradek.pipeline import flow
from odradek.pipeline.config import Pipeline
from odradek.pipeline.flow import FlowRun
from odradek.pipeline.source import read_request
from odradek.ranges.request import ReadRequest


def wait_before_reading() -> None:
    original = FlowRun._jobs

    def patched(self: FlowRun, *arguments: Any) -> Any:
        os.write(sys.stdout.fileno(), b"reading\n")
        sys.stdin.readline()
        return original(self, *arguments)

    setattr(FlowRun, "_jobs", patched)  # noqa: B010


def shorten_deadlines(seconds: str) -> None:
    deadline_s = float(seconds)

    def patched(pipeline: Pipeline, name: str) -> ReadRequest:
        return replace(read_request(pipeline, name), deadline_s=deadline_s, poll_deadline_s=deadline_s)

    setattr(flow, "read_request", patched)  # noqa: B010


def run_tasks_here() -> None:
    setattr(odradek.pipeline.run, "on_spark", lambda *_: in_process())  # noqa: B010


def main(file: str, *more: str) -> int:
    for word in more:
        run_tasks_here() if word == "here" else shorten_deadlines(word)
    wait_before_reading()
    return run(["pipeline", "run", file, "--master", "local[2]", "--quiet"])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
