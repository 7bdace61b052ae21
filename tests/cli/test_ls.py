"""`odradek ls`."""

from __future__ import annotations

import re

from odradek.testing import Kafka07Broker

from .conftest import Command, Put, jsons


def test_ls_lists_topics_and_partitions(odradek: Command, put: Put, topic: str, broker: Kafka07Broker) -> None:
    put(topic, b"one\n")
    assert {"topic": topic, "partitions": 2, "brokers": [7]} in jsons(odradek("ls", "--json"))
    assert re.search(rf"^{topic} +2  7$", odradek("ls"), re.MULTILINE)  # columns are as wide as other tests' topics
    first, second = jsons(odradek("ls", topic, "--json"))
    assert first == {
        "partition": "7-0",
        "broker": 7,
        "address": broker.address,
        "earliest": 0,
        "latest": 13,
        "bytes": 13,
    }
    assert (second["partition"], second["bytes"]) == ("7-1", 0)
