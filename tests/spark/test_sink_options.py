"""The options of the sink."""

from __future__ import annotations

import pickle

import pytest

from odradek.errors import ConfigError
from odradek.spark.client_options import ClusterOptions
from odradek.spark.sink_options import KAFKA, SinkOptions, parse_sink
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


def test_the_protocol_of_later_clusters_is_named_by_its_brokers() -> None:
    with pytest.raises(ConfigError, match=r"a cluster of 0\.8 or later is named by kafka\.bootstrap\.servers"):
        parse_sink({**ZK, "kafka.protocol": "modern"}, streaming=False)


def test_options_of_sparks_own_sink_have_their_meaning() -> None:
    options = {
        "kafka.bootstrap.servers": "b:9092",
        "topic": "t",
        "kafka.acks": "1",
        "kafka.compression.type": "zstd",
        "kafka.max.request.size": "2000000",
        "kafka.delivery.timeout.ms": "30000",
        "kafka.buffer.memory": "33554432",
        "kafka.linger.ms": "5",
        "kafka.enable.idempotence": "true",
        "checkpointLocation": "/c",
    }
    parsed = parse_sink(options, streaming=True)
    assert parsed.cluster.url == "kafka://b:9092"
    assert (parsed.acks, parsed.compression, parsed.deliver_within_s) == (1, "zstd", 30.0)
    assert (parsed.max_message_bytes, parsed.buffer_bytes) == (2_000_000, 32 * MiB)
    assert not parsed.is_kafka07
    own = {"compression": "lz4", "maxMessageBytes": "1m", "bufferBytes": "16m", "deliverWithin": "1m"}
    other = parse_sink({**options, **own}, streaming=True)
    assert (other.compression, other.max_message_bytes) == ("lz4", 1 * MiB)
    assert (other.buffer_bytes, other.deliver_within_s) == (16 * MiB, 60.0)


@pytest.mark.parametrize("name", sorted(KAFKA.refused))
def test_options_of_sparks_own_sink_that_cannot_be_honoured_say_what_to_do_instead(name: str) -> None:
    with pytest.raises(ConfigError, match=f"option {name}: ") as caught:
        parse_sink({"kafka.bootstrap.servers": "b:9092", "topic": "t", name: "1"}, streaming=False)
    assert KAFKA.refused[name] in str(caught.value)
