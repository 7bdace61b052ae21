"""The options of the sink."""

from __future__ import annotations

import pickle

import pytest

from odradek.errors import ConfigError, Unsupported
from odradek.spark.options import ClusterOptions
from odradek.spark.sink_options import SinkOptions, parse_sink
from odradek.types import KiB, MiB

ZK = {"kafka.zk.connect": "zk1,zk2/kafka"}


def test_defaults() -> None:
    sink = parse_sink(ZK, streaming=False)
    assert sink == SinkOptions(ClusterOptions("kafka07+zk://zk1,zk2/kafka"))
    assert (sink.topic, sink.compression, sink.deliver_within_s, sink.buffer_bytes) == (
        "",
        "none",
        120.0,
        64 * MiB,
    )


def test_every_option() -> None:
    options = {
        "Kafka.Broker.List": "3:h:9092",
        "KAFKA.PROTOCOL": "0.7",
        "topic": "t",
        "compression": "Snappy",
        "deliverwithin": "90s",
        "maxMessageBytes": "64k",
        "bufferBytes": "1m",
        "reportPath": "/tmp/r",
    }
    expected = SinkOptions(ClusterOptions("kafka07://3@h:9092"), "t", "snappy", 90.0, 64 * KiB, MiB, "/tmp/r")
    assert parse_sink(options, streaming=False) == pickle.loads(pickle.dumps(expected)) == expected


def test_spark_adds_its_own_in_a_streaming_query() -> None:
    options = {**ZK, "checkpointlocation": "/c", "queryname": "q"}
    assert parse_sink(options, streaming=True) == parse_sink(ZK, streaming=True)
    with pytest.raises(ConfigError, match="unknown option 'checkpointlocation'"):
        parse_sink(options, streaming=False)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topci": "t"}, "unknown option 'topci': did you mean topic"),
        ({"startingOffsets": "earliest"}, "unknown option 'startingOffsets'"),
        ({"subscribe": "t"}, "option subscribe: that is read from"),
        ({"kafka.acks": "all"}, "every produce is confirmed"),
        ({"kafka.compression.type": "gzip"}, "use compression"),
        ({"includeHeaders": "true"}, "neither keys nor headers nor timestamps"),
        ({"path": "/p"}, "rows go to a cluster"),
        ({"compression": "lz4"}, "must be none or gzip or snappy"),
        ({"topic": " "}, "option topic is empty"),
        ({"topic": "a/b"}, "option topic='a/b'"),
        ({"deliverWithin": "soon"}, "option deliverWithin='soon'"),
        ({"deliverWithin": "0s"}, "deliverWithin must be more than 0"),
        ({"bufferBytes": "1k"}, "is smaller than maxMessageBytes"),
        ({"kafka.broker.list": "1:h:1"}, "exclude each other"),
    ],
)
def test_what_cannot_work(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_sink({**ZK, **options}, streaming=False)


def test_a_cluster_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.zk\.connect, kafka\.broker\.list is required: the cluster"):
        parse_sink({"topic": "t"}, streaming=False)


@pytest.mark.parametrize("options", [{"kafka.bootstrap.servers": "h:9092"}, {**ZK, "kafka.protocol": "modern"}])
def test_clusters_of_kafka_0_8_and_later_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(Unsupported, match=r"0\.8"):
        parse_sink(options, streaming=False)
