"""Compare the murmur2 partitioner with one line of the corpus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odradek.core.kafka.partitioners import Murmur2, murmur2, positive

from .case import Record


def check(record: Record) -> str | None:
    """Return what differs, or None."""
    return "; ".join(_differences_of(record)) or None


def _differences_of(line: Mapping[str, Any]) -> list[str]:
    key = bytes.fromhex(line["key"])
    ours = {"murmur2": murmur2(key), "positive": positive(murmur2(key))}
    differs = [f"{name}: ours {value} theirs {line[name]}" for name, value in ours.items() if value != line[name]]
    for count, partition in line["partition"].items():
        if (chosen := Murmur2()("topic", key, int(count))) != partition:
            differs.append(f"of {count} partitions: ours {chosen} theirs {partition}")
    return differs
