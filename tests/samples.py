"""The part of a test's many cases that one run takes: its random seed says which, and other runs have the rest."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeVar

import pytest

from odradek.testing.kafka.releases import MATRIX, OTHERS

__all__ = ["left_out", "one_in", "releases_of", "seed_of"]

T = TypeVar("T")


def seed_of(config: pytest.Config) -> int | None:
    """Return the random seed; None if everything is asked for, by `--brokers all` or a test's name."""
    everything = config.getoption("--brokers") == "all" or any("::" in each for each in config.args)
    return None if everything else config.getoption("randomly_seed", 0)


def one_in(count: int, cases: Sequence[T], seed: int | None) -> list[T]:
    """Return every case whose turn it is: `count` seeds that follow each other have all; None has all."""
    return [case for n, case in enumerate(cases) if seed is None or (n + seed) % count == 0]


def releases_of(brokers: str, seed: int | None) -> list[tuple[str, str]]:
    """Return releases and modes that an option `--brokers` means: `matrix` are the oldest and the newest of the matrix
    and every second one between."""
    if brokers == "matrix":
        return [MATRIX[0], *one_in(2, MATRIX[1:-1], seed), MATRIX[-1]]
    return [pair for pair in (*MATRIX, *OTHERS) if brokers == "all" or pair[0] in brokers.split(",")]


def left_out(items: Iterable[pytest.Item], seed: int | None) -> set[pytest.Item]:
    """Return cases that a run leaves out: of a test marked `sampled(n)` it takes one in `n`; if the mark names a
    parameter, one in `n` of its values with each value of the others."""
    cases = defaultdict(list)
    for item in items:
        if (marker := item.get_closest_marker("sampled")) is not None:
            cases[_group_of(item, *marker.args[1:]), marker.args[0]].append(item)
    left: set[pytest.Item] = set()
    for (group, count), several in cases.items():
        several.sort(key=lambda item: _number_of(item.nodeid))  # which mixes parameters with each other
        left.update(set(several) - set(one_in(count, several, None if seed is None else seed + _number_of(group))))
    return left


def _group_of(item: pytest.Item, parameter: str = "") -> str:
    if not parameter:
        return item.nodeid.partition("[")[0]
    return item.nodeid.replace(str(item.callspec.params[parameter]), "")  # type: ignore[attr-defined]


def _number_of(text: str) -> int:
    """Return a number that is the same in each run, and has nothing to do with what the text says."""
    return zlib.crc32(text.encode())
