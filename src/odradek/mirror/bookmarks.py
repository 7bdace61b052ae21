"""Positions that a mirror stores, as bookmarks of readers and back."""

from __future__ import annotations

import json
from collections.abc import Mapping

from odradek.mirror.stored import SourcePosition
from odradek.types import TopicPartition

__all__ = ["bookmark_of", "positions_of"]


def bookmark_of(positions: Mapping[TopicPartition, SourcePosition]) -> str:
    """Return the bookmark (`Reader.bookmark`) of positions."""
    rows = [
        [p.topic, p.broker, p.partition, at.position, at.inner, *([] if at.topic_id is None else [at.topic_id])]
        for p, at in positions.items()
    ]
    return json.dumps({"odradek": 1, "at": rows})


def positions_of(bookmark: str) -> dict[TopicPartition, SourcePosition]:
    """Return the positions of a bookmark."""
    rows = json.loads(bookmark)["at"]
    return {TopicPartition(topic, number, broker): SourcePosition(*at) for topic, broker, number, *at in rows}
