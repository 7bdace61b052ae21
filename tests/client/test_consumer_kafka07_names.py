"""Names of groups and topics that ZooKeeper and brokers of 0.7 do not take are refused before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.client.consumer.consumer import Consumer
from odradek.errors import ConfigError
from odradek.io.kafka07.driver import Kafka07Driver


@pytest.mark.parametrize("group", ["", "a/b", "../x", "..", "caf\u00e9 \U0001f600", "\ud800", "a\x00b"])
def test_group_names_that_zookeeper_refuses_are_refused_at_construction(group: str) -> None:
    driver = Kafka07Driver(zookeeper="127.0.0.1:1")
    with pytest.raises(ConfigError, match="group name"):
        Consumer(driver, "t", group=group)


@pytest.mark.parametrize("topic", ["", "a/b", "..", "\ud800", b"t"])
def test_topic_names_that_cannot_exist_are_refused_at_construction(topic: Any) -> None:
    driver = Kafka07Driver(zookeeper="127.0.0.1:1")
    with pytest.raises((ConfigError, TypeError)):
        Consumer(driver, topic, group="g")
