"""Compare the user data of the sticky assignors with one line of the corpus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odradek.core.kafka.assignors import Assignor, CooperativeStickyAssignor, StickyAssignor
from odradek.types import TopicPartition

from .case import Record

ASSIGNORS: dict[str, Assignor] = {a.name: a for a in (StickyAssignor(), CooperativeStickyAssignor())}


def check(record: Record) -> str | None:
    """Return what differs, or None."""
    return "; ".join(_differences_of(record)) or None


def _differences_of(line: Mapping[str, Any]) -> list[str]:
    assignor, theirs = ASSIGNORS[line["assignor"]], bytes.fromhex(line["hex"])
    owned = [TopicPartition(*p) for p in line["owned"]]
    claimed, generation = assignor.claims(owned, -1, theirs)
    differs = []
    if (sorted(claimed), generation) != (sorted(owned), line["generation"]):
        differs.append(f"ours {claimed} of {generation}, theirs {owned} of {line['generation']}")
    # Java groups the topics in the order of its hash map: written in that order, the bytes are the same.
    in_order = sorted(owned, key=lambda p: list(dict.fromkeys(c.topic for c in claimed)).index(p.topic))
    if (ours := assignor.user_data(in_order if not assignor.cooperative else owned, line["generation"])) != theirs:
        differs.append(f"ours {ours.hex() if ours is not None else None} theirs {theirs.hex()}")
    return differs
