"""`odradek offsets`."""

from __future__ import annotations

import time

from .conftest import Command, Put, jsons


def test_offsets_are_earliest_and_latest_or_at_a_time(odradek: Command, put: Put, topic: str) -> None:
    put(topic, b"one\n")
    assert jsons(odradek("offsets", topic, "--json"))[0] == {"partition": "7-0", "earliest": 0, "latest": 13}
    later = str(time.time() + 100)
    assert jsons(odradek("offsets", topic, "--json", "--at", later))[0] == {"partition": "7-0", "position": 13}
    assert odradek("offsets", topic, "--at", "-1h").splitlines()[1].split() == ["7-0", "0"]
    odradek("offsets", topic, "--at", "yesterday", code=2)
