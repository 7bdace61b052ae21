"""The options and columns of the sink, and rows by where they go."""

from __future__ import annotations

import pickle
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.errors import ConfigError, Unsupported
from odradek.ranges.projection import HEADERS
from odradek.ranges.request import ClusterConnection
from odradek.spark.options import SINK_REFUSED_KAFKA, SinkOptions, parse_sink
from odradek.spark.schema import BadRow, DestinationRows, RowLayout, layout
from odradek.types import KiB, MiB, TopicPartition

ZK = {"kafka.zk.connect": "zk1,zk2/kafka"}


def test_defaults() -> None:
    sink = parse_sink(ZK)
    assert sink == SinkOptions(ClusterConnection("kafka07+zk://zk1,zk2/kafka"))
    assert (sink.topic, sink.compression, sink.deliver_within_s, sink.buffer_bytes) == (
        "",
        "none",
        120.0,
        64 * MiB,
    )


def test_every_option() -> None:
    options = {
        "Kafka.Broker.List": "3:h:9092",
        "topic": "t",
        "compression": "Snappy",
        "deliverwithin": "90s",
        "maxMessageBytes": "64k",
        "bufferBytes": "1m",
        "reportPath": "/tmp/r",
    }
    expected = SinkOptions(ClusterConnection("kafka07://3@h:9092"), "t", "snappy", 90.0, 64 * KiB, MiB, "/tmp/r")
    assert parse_sink(options) == pickle.loads(pickle.dumps(expected)) == expected


def test_spark_adds_its_own_options() -> None:
    options = {**ZK, "checkpointlocation": "/c", "queryname": "q"}
    assert parse_sink(options) == parse_sink(ZK)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topci": "t"}, "unknown option 'topci': did you mean topic"),
        ({"startingOffsets": "earliest"}, "unknown option 'startingOffsets'"),
        ({"subscribe": "t"}, "option subscribe: that is read from"),
        ({"kafka.acks": "all"}, "every produce is confirmed"),
        ({"kafka.compression.codec": "gzip"}, "use compression"),
        ({"includeHeaders": "true"}, "neither keys nor headers nor timestamps"),
        ({"path": "/p"}, "rows go to a cluster"),
        ({"compression": "lz4"}, "must be none or gzip or snappy"),
        ({"compression": "lz4:3"}, "must be none or gzip or snappy"),
        ({"compression": "gzip:0"}, "option compression='gzip:0': .*levels of gzip are 1 to 9"),
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
        parse_sink({**ZK, **options})


def test_a_cluster_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.zk\.connect, kafka\.broker\.list is required: the cluster"):
        parse_sink({"topic": "t"})


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
    parsed = parse_sink(options)
    assert parsed.cluster.url == "kafka://b:9092"
    assert (parsed.acks, parsed.compression, parsed.deliver_within_s) == (1, "zstd", 30.0)
    assert (parsed.max_message_bytes, parsed.buffer_bytes) == (2_000_000, 32 * MiB)
    assert not parsed.cluster.connect().driver.logs.names_brokers
    own = {"compression": "lz4", "maxMessageBytes": "1m", "bufferBytes": "16m", "deliverWithin": "1m"}
    other = parse_sink({**options, **own})
    assert (other.compression, other.max_message_bytes) == ("lz4", 1 * MiB)
    assert (other.buffer_bytes, other.deliver_within_s) == (16 * MiB, 60.0)
    assert parse_sink({**options, "kafka.compression.type": " ZSTD:15 "}).compression == "zstd:15"


@pytest.mark.parametrize("name", sorted(SINK_REFUSED_KAFKA))
def test_options_of_sparks_own_sink_that_cannot_be_honoured_say_what_to_do_instead(name: str) -> None:
    with pytest.raises(ConfigError, match=f"option {name}: ") as caught:
        parse_sink({"kafka.bootstrap.servers": "b:9092", "topic": "t", name: "1"})
    assert SINK_REFUSED_KAFKA[name] in str(caught.value)


# ---- columns and rows ----------------------------------------------------------------------------------------


NUMBERED = ("broker", "partition")
ALL = RowLayout("", ("key",), NUMBERED)
PLAIN = RowLayout("t")


def batch(rows: list[tuple[Any, ...]], value: pa.DataType | None = None) -> pa.RecordBatch:
    kinds = {"value": value or pa.binary(), "topic": pa.string(), "key": pa.binary(), "broker": pa.int32()}
    columns = zip(*rows, strict=True) if rows else [[]] * 5
    named = zip((*kinds, "partition"), columns, strict=True)
    return pa.record_batch({name: pa.array(list(cells), kinds.get(name, pa.int32())) for name, cells in named})


def rows_of(group: DestinationRows) -> list[tuple[Any, ...]]:
    target = (None, None) if group.partition is None else (group.partition.broker, group.partition.partition)
    columns = [group.rows[name].to_pylist() for name in ("value", "key")]
    return [(value, group.topic, key, *target) for value, key in zip(*columns, strict=True)]


TARGETS = st.one_of(st.just((None, None)), st.tuples(st.integers(0, 2), st.integers(0, 2)))
ROWS = st.lists(
    st.tuples(st.binary(max_size=3), st.sampled_from("tuv"), st.none() | st.binary(max_size=2), TARGETS).map(
        lambda row: (*row[:3], *row[3])
    ),
    max_size=40,
)


@given(st.lists(ROWS, min_size=1, max_size=3))
def test_each_row_is_in_the_group_of_its_place_and_groups_keep_the_order(parts: list[list[tuple[Any, ...]]]) -> None:
    groups = ALL.groups([batch(rows) for rows in parts], 0)
    expected: dict[Any, list[tuple[Any, ...]]] = defaultdict(list)
    for row in (row for rows in parts for row in rows):
        expected[row[1], row[3], row[4]].append(row)
    assert len(groups) == len(expected)
    assert sorted(map(rows_of, groups), key=repr) == sorted(expected.values(), key=repr)
    assert sum(group.bytes for group in groups) == sum(len(row[0]) for rows in parts for row in rows)


def test_rows_of_one_topic_are_not_copied() -> None:
    values = pa.array([b"a", b"b"])
    (group,) = PLAIN.groups([pa.record_batch({"value": values})], 0)
    assert (group.topic, group.partition) == ("t", None)
    kept: Any = group.rows["value"]
    assert kept.chunk(0).buffers()[2].address == values.buffers()[2].address  # type: ignore[union-attr]


def test_the_option_goes_before_the_column() -> None:
    rows = [(b"a", None, None, 1, 0), (b"b", "u", None, 1, 0)]
    (group,) = RowLayout("t", ("key",), NUMBERED).groups([batch(rows)], 0)
    assert (group.topic, group.partition, len(group.rows)) == ("t", TopicPartition("t", 0, 1), 2)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.large_binary(), pa.binary()])
def test_values_of_every_form_of_spark(kind: pa.DataType) -> None:
    values = pa.array([b"a", "\u00e4".encode()]).cast(kind)
    for column in (values, values.dictionary_encode()):
        (group,) = PLAIN.groups([pa.record_batch({"value": column})], 0)
        assert group.rows["value"].cast(pa.binary()).to_pylist() == [b"a", "\u00e4".encode()]
        assert group.bytes == 3


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ((None, "t", None, 1, 0), "value is null"),
        ((b"", None, None, 1, 0), "topic is null"),
        ((b"", "t", None, None, 0), "broker and partition must both be null, or neither"),
        ((b"", "t", None, 1, None), "broker and partition must both be null, or neither"),
        ((b"", "t", None, -1, 0), "invalid broker: -1"),
        ((b"", "t", None, 1, -7), "invalid partition: -7"),
    ],
)
def test_a_row_that_cannot_be_written_is_named(row: tuple[Any, ...], says: str) -> None:
    good = (b"", "t", None, 1, 0)
    with pytest.raises(BadRow, match=f"row 1003 of the task: {says}") as caught:
        ALL.groups([batch([good] * 2), batch([good, row, row])], 1000)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.row, str(again)) == (1003, str(caught.value))


@pytest.mark.parametrize("bad", [{"key": None, "value": b"v"}, None], ids=["name", "header"])
def test_a_header_without_a_name_is_an_error_of_its_row(bad: Any) -> None:
    good = [{"key": "a", "value": None}, {"key": "b", "value": b"v"}]
    rows = [
        pa.record_batch({"value": pa.array([b""] * len(headers)), "headers": pa.array(headers, HEADERS.arrow)})
        for headers in ([good, [], None], [None, good, [*good, bad]])
    ]
    with pytest.raises(BadRow, match="row 1005 of the task: the name of a header is null"):
        RowLayout("t", ("headers",)).groups(rows, 1000)
    (group,) = RowLayout("t", ("headers",)).groups(rows[:1], 0)
    assert group.rows["headers"].to_pylist() == [good, [], None]


def test_what_is_no_partition_of_an_int_is_refused_in_a_bigint_too() -> None:
    row = {"value": [b""], "broker": [1], "partition": [1 << 40]}
    with pytest.raises(BadRow, match="invalid partition: 1099511627776"):
        RowLayout("t", (), NUMBERED).groups([pa.record_batch(row)], 0)


@pytest.mark.parametrize(
    ("fields", "topic", "expected"),
    [
        ("value binary", "t", RowLayout("t")),
        ("value string, topic string", "", RowLayout("")),
        ("topic varchar(10), value char(3), key string", "t", RowLayout("t", ("key",))),
        ("partition bigint, broker smallint, value string collate UNICODE", "t", RowLayout("t", (), NUMBERED)),
        ("value string, partition int", "t", RowLayout("t", (), ("partition",))),
        ("value string, offset bigint, timestamp timestamp, nextOffset bigint", "t", RowLayout("t")),
    ],
)
def test_columns_that_can_be_written(fields: str, topic: str, expected: RowLayout) -> None:
    split = [(name, kind) for name, _, kind in (field.partition(" ") for field in fields.split(", "))]
    result = layout(split, topic, by_broker=True, values_only=True)
    assert result == pickle.loads(pickle.dumps(result)) == expected


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ("topic string", "the query must have a column named .value"),
        ("value string", "no target topic"),
        ("value string, topic string, value string", "value is named twice"),
        ("value int, topic string", "column value is int: cast it to binary or string"),
        ("value string, topic binary", "column topic is binary: cast it to string"),
        ("value string, topic string, key struct<a:int>", "column key is"),
        ("value string, topic string, broker int", "column broker needs column partition"),
        ("value string, topic string, broker string, partition int", "column broker is string: cast it to int"),
    ],
)
def test_columns_that_cannot(fields: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        split = [(name, kind) for name, _, kind in (field.partition(" ") for field in fields.split(", "))]
        layout(split, "", by_broker=True, values_only=True)


def test_headers_are_refused_by_0_7_and_written_later() -> None:
    fields = [("value", "string"), ("headers", "array<struct<key:string,value:binary>>")]
    with pytest.raises(Unsupported, match=r"column headers .* 0.7 does not store it, so leave it out"):
        layout(fields, "t", by_broker=True, values_only=True)
    assert layout(fields, "t", by_broker=False, values_only=False) == RowLayout("t", ("headers",), nullable=True)
