"""A process of a mirror: `python -m odradek.mirror.worker`. `processes` starts it, writes a line with its work to its
standard input, and reads lines from its standard output; when the input ends, it stops."""

from __future__ import annotations

import os
import pickle
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import anyio

import odradek as od
from odradek.errors import OdradekError
from odradek.mirror.clusters import open_clusters
from odradek.mirror.config import MirrorConfig
from odradek.mirror.members import MemberTasks
from odradek.mirror.run import Begun

__all__ = ["Work", "line_of", "main", "value_of", "work"]

Report: TypeAlias = Callable[[str, Any], object]


class Work(NamedTuple):
    """The work of one process.

    Args:
        config: The file, with the process's share of the limits.
        begun: The run.
        follow: Look for new topics and partitions.
    """

    config: MirrorConfig
    begun: Begun
    follow: bool


def line_of(value: object) -> bytes:
    """Return a value as a line, for a pipe between a process and the one that started it."""
    return b64encode(pickle.dumps(value)) + b"\n"


def value_of(line: bytes) -> Any:
    """Return the value of such a line."""
    return pickle.loads(b64decode(line))


async def work(todo: Work, report: Report) -> None:
    """Copy what the group gives this process, until cancelled.

    Args:
        todo: The work.
        report: Called with `begun`, `committed`, `lost` or `finished`, and what `TaskSettings` and `MemberTasks` say of
            that.

    Raises and cancellation: as `run`.
    """
    config, begun, follow = todo
    async with open_clusters(config) as clusters:
        kinds = ("begun", "committed", "lost")
        settings = begun.settings(config, clusters, **{kind: partial(report, kind) for kind in kinds})
        await MemberTasks(settings, partial(report, "finished")).run(begun.copied, follow=follow)


async def _work_until_stopped(todo: Work, report: Report) -> None:
    """Do it until the standard input ends, which it also does when the process that started this one is killed."""

    async def copy() -> None:
        try:
            await work(todo, report)
        except OdradekError as error:
            report("error", error)
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(copy)
        await anyio.wait_readable(0)
        group.cancel_scope.cancel()


def main() -> None:
    """Copy what the standard input says; SIGTERM ends it, too."""
    todo: Work = value_of(sys.stdin.buffer.readline())
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else is to write there

    def report(kind: str, value: Any) -> None:
        with suppress(BrokenPipeError):  # then the standard input has ended as well
            out.write(line_of((kind, value)))
            out.flush()

    od.run(_work_until_stopped, todo, report)


if __name__ == "__main__":
    main()
