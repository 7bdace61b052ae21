"""Two checkouts measured in turns: each has a process that lives through the whole run and does the same work.

A machine that is busy with other things disturbs both alike. `ratio` is the median over the rounds of now over before:
less than 1 is better now.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from subprocess import PIPE, Popen

__all__ = ["HEADING", "ROOT", "Rounds", "Worker", "kafka", "measure_rounds", "ratio_row"]

ROOT = Path(__file__).parent.parent

Rounds = list[list[list[float]]]
"""Round -> before and now -> what a worker has measured."""


HEADING = f"{'us a record':44} {'before':>9} {'now':>9} {'ratio':>7} {'quartiles':>14}"


class Worker:
    """A process that measures one of the two.

    Args:
        script: Reads names from its input, and prints for each a list of what it has measured, as JSON.
        tree: The checkout whose odradek it uses.
        arguments: Of the script.
    """

    def __init__(self, script: str, tree: Path, *arguments: str) -> None:
        environment = os.environ | {"PYTHONPATH": str(tree / "src")}
        self._process = Popen([sys.executable, script, *arguments], env=environment, stdin=PIPE, stdout=PIPE, text=True)

    def ask(self, name: str) -> list[float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(name, file=self._process.stdin, flush=True)
        measured: list[float] = json.loads(self._process.stdout.readline())
        return measured

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def measure_both(workers: Sequence[Worker], names: Sequence[str], round_number: int) -> dict[str, list[list[float]]]:
    """Have both measure each of these once; who begins changes from round to round."""
    order = workers if round_number % 2 else workers[::-1]
    measured = {}
    for name in names:
        by_worker = {worker: worker.ask(name) for worker in order}
        measured[name] = [by_worker[worker] for worker in workers]
    return measured


def measure_rounds(
    workers: Sequence[Worker], names: Sequence[str], count: int, after_round: Callable[[], object] = lambda: None
) -> dict[str, Rounds]:
    """Have both measure each of these in so many rounds, after one that warms up, and end the workers."""
    seen: dict[str, Rounds] = {name: [] for name in names}
    for round_number in range(count + 1):
        measured = measure_both(workers, names, round_number)
        if round_number:
            for name, rounds in seen.items():
                rounds.append(measured[name])
        after_round()
    for worker in workers:
        worker.close()
    return seen


def ratio_row(title: str, rounds: Rounds, which: int = 0) -> str:
    """Return one line: the medians of before and now, the median of the ratios, and their quartiles."""
    ratios = sorted(now[which] / before[which] for before, now in rounds)
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    before, now = (median(one[side][which] for one in rounds) for side in (0, 1))
    return f"{title:44} {before:9.4g} {now:9.4g} {median(ratios):7.3f} {f'{low:.2f} to {high:.2f}':>14}"


@contextmanager
def kafka(version: str, counts: Sequence[int]) -> Iterator[tuple[str, Callable[[], object]]]:
    """Start a real broker with topics `of-N` of N partitions; yield its URL, and what empties them (nothing does: it
    rolls and deletes segments by itself)."""
    import anyio

    from odradek import connect
    from odradek.testing import KafkaBroker

    async def create(url: str) -> None:
        async with connect(url) as k:
            await k.admin.create_topics({f"of-{count}": count for count in counts})

    with KafkaBroker(version) as started:
        url = f"kafka://{started.bootstrap}"
        anyio.run(create, url)
        yield url, lambda: None
