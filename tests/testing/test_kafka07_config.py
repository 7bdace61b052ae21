"""Keys and values of the embedded broker's configuration."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from odradek.errors import ConfigError
from odradek.testing import Kafka07Broker
from odradek.testing.kafka07.config import BrokerConfig

# Specification section 8, and what ZooKeeper needs.
DEFAULTS: dict[str, Any] = {
    "brokerid": None,
    "port": None,
    "hostname": None,
    "log.dir": None,
    "num.partitions": 1,
    "topic.partition.count.map": {},
    "max.topic.name.length": 255,
    "max.message.size": 1_000_000,
    "max.socket.request.bytes": 104_857_600,
    "log.file.size": 1_073_741_824,
    "topic.log.file.size": {},
    "log.roll.hours": 168,
    "topic.log.roll.hours": {},
    "log.retention.hours": 168,
    "topic.log.retention.hours": {},
    "log.retention.size": -1,
    "topic.log.retention.size": {},
    "log.cleanup.interval.mins": 10,
    "log.flush.interval": 500,
    "log.default.flush.scheduler.interval.ms": 3000,
    "log.default.flush.interval.ms": None,
    "topic.flush.intervals.ms": {},
    "num.threads": None,
    "socket.send.buffer": None,
    "socket.receive.buffer": None,
    "monitoring.period.secs": 600,
    "enable.zookeeper": None,
    "zk.connect": None,
    "zk.sessiontimeout.ms": 6000,
    "zk.connectiontimeout.ms": None,
    "zk.synctime.ms": 2000,
}


def value_of(key: str, config: BrokerConfig) -> Any:
    (name,) = (field.name for field in BrokerConfig.__dataclass_fields__.values() if field.metadata["key"] == key)
    return getattr(config, name)


@pytest.mark.parametrize("key", DEFAULTS)
def test_every_key_is_known_with_the_default_of_the_code(key: str) -> None:
    assert value_of(key, BrokerConfig.parse({})) == DEFAULTS[key]


@pytest.mark.parametrize("key", DEFAULTS)
def test_every_key_takes_a_value(key: str) -> None:
    text: str = "t:8,u:16" if DEFAULTS[key] == {} else "7"
    value: Any = {"t": 8, "u": 16} if DEFAULTS[key] == {} else 7
    if key in ("hostname", "log.dir", "zk.connect"):
        value = "7"
    if key == "enable.zookeeper":
        text, value = "true", True
    assert value_of(key, BrokerConfig.parse({key: text})) == value


def test_no_other_key_is_known() -> None:
    assert {field.metadata["key"] for field in BrokerConfig.__dataclass_fields__.values()} == set(DEFAULTS)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("num.partitons", "1"),
        ("num.partitions", "0"),
        ("num.partitions", "1_0"),
        ("num.partitions", " 1"),
        ("num.partitions", "2147483648"),
        ("port", "65536"),
        ("log.retention.size", "9223372036854775808"),
        ("enable.zookeeper", "True"),
        ("enable.zookeeper", "1"),
    ],
)
def test_an_unknown_key_or_impossible_value_is_an_error_that_names_it(key: str, text: str) -> None:
    with pytest.raises(ConfigError, match=key):
        Kafka07Broker(config={key: text})


def test_malformed_items_of_a_per_topic_map_are_skipped_with_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        config = BrokerConfig.parse({"topic.partition.count.map": "a:2,b,c:x,:3,d:0,e:-1, f : 4 ,,g:1"})

    assert config.partition_counts == {"a": 2, "f": 4, "g": 1}
    assert len(caplog.records) == 5


def test_topics_have_their_own_values_and_the_rest_the_default() -> None:
    config = BrokerConfig.parse(
        {
            "num.partitions": "3",
            "topic.partition.count.map": "t:7",
            "topic.log.file.size": "t:100",
            "topic.log.roll.hours": "t:1",
            "topic.log.retention.hours": "t:2",
            "topic.flush.intervals.ms": "t:400",
            "log.default.flush.scheduler.interval.ms": "1000",
        }
    )
    assert (config.partitions("t"), config.partitions("u")) == (7, 3)
    assert (config.segment_size("t"), config.segment_size("u")) == (100, 1 << 30)
    assert (config.roll_seconds("t"), config.roll_seconds("u")) == (3600, 168 * 3600)
    assert (config.retention_seconds("t"), config.retention_seconds("u")) == (7200, 168 * 3600)
    assert (config.flush_seconds("t"), config.flush_seconds("u")) == (0.4, 1.0)


def test_keys_win_over_arguments() -> None:
    broker = Kafka07Broker("a", broker_id=1, port=1, config={"brokerid": "5", "port": "2", "log.dir": "b"})
    assert (broker.broker_id, broker.port, str(broker.log_dir)) == (5, 2, "b")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"config": {"enable.zookeeper": "true"}}, "zk.connect"),
        ({"zookeeper": "127.0.0.1:1", "host": "0.0.0.0"}, "hostname"),
    ],
)
def test_what_cannot_be_registered_is_an_error(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Kafka07Broker(**arguments)
