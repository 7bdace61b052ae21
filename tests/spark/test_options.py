"""Options: every value checked, every mistake named, and nothing ignored."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.core.interfaces import BYTES
from odradek.errors import ConfigError, OdradekError
from odradek.ranges.planning import DataLoss, Loss, PositionGap
from odradek.ranges.request import ClusterConnection, Directory, Topics
from odradek.spark.options import IGNORED_KAFKA07, SourceOptions, parse_source
from odradek.spark.values import parse_bytes, parse_seconds
from odradek.types import EARLIEST, LATEST, AtTime, TopicPartition

BASE = {"kafka.zk.connect": "zk1:2181,zk2/kafka", "subscribe": "orders"}


def parse(streaming: bool = False, /, **options: str) -> SourceOptions:
    return parse_source(BASE | {name.replace("_", "."): value for name, value in options.items()}, streaming=streaming)


def test_errors_of_ranges_name_the_options_of_spark() -> None:
    gap = PositionGap(TopicPartition("orders", 0), Loss.EXPIRED, 10, 40, 40, 100, 40)
    with pytest.raises(DataLoss, match="failOnDataLoss=false goes on behind what is missing"):
        parse().check_loss([gap])
    parse(failOnDataLoss="false").check_loss([gap])


def test_the_defaults_are_those_of_spark() -> None:
    batch, stream = parse(), parse(True)
    assert (batch.start, batch.end) == (EARLIEST, LATEST)
    assert (stream.start, stream.end) == (LATEST, LATEST)
    assert batch.topics == Topics(names=("orders",))
    assert batch.where == ClusterConnection("kafka07+zk://zk1:2181,zk2/kafka")
    assert (batch.task_size, batch.min_tasks, batch.max_tasks, batch.fetchers) == (None, 1, None, None)
    assert batch.size_tasks(2 * BYTES.task_size, BYTES) == (2, 128 << 20)
    assert (stream.max_size, stream.min_size, stream.max_delay_s) == (None, 0, 900.0)
    assert (batch.fail_on_data_loss, batch.corrupt, batch.headers) == (True, "fail", False)
    assert batch.max_entry == 1_000_010


NAMES = (
    *("kafka.zk.connect", "kafka.broker.list", "path", "subscribe", "subscribePattern", "assign"),
    *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy"),
    *("failOnDataLoss", "minPartitions", "maxPartitions", "maxFetchersPerBroker", "maxBytesPerPartition"),
    *("maxBytesPerTrigger", "minBytesPerTrigger", "maxTriggerDelay", "maxMessageBytes", "fetchBytes", "fetchAhead"),
    *("fetchOffset.deadlineMs", "kafkaConsumer.pollTimeoutMs", "corrupt", "includeHeaders"),
)


@given(st.sampled_from(NAMES), st.randoms(use_true_random=False))
def test_names_are_taken_in_any_case(name: str, chance: object) -> None:
    mixed = "".join(chance.choice([letter.lower(), letter.upper()]) for letter in name)  # type: ignore[attr-defined]
    with pytest.raises(OdradekError) as caught:
        parse_source({mixed: " "}, streaming=True)
    assert "unknown option" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("subscribPattern", "subscribePattern"),
        ("startingoffset", "startingOffsets"),
        ("maxBytesPerTriger", "maxBytesPerTrigger"),
        ("kafka.zk.conect", "kafka.zk.connect"),
        ("kafka.bootstrap.server", "kafka.bootstrap.servers"),
        ("includeHeader", "includeHeaders"),
    ],
)
def test_an_unknown_option_is_named_with_its_neighbour(name: str, near: str) -> None:
    with pytest.raises(ConfigError, match=rf"unknown option '{name}': did you mean {near}\?"):
        parse_source(BASE | {name: "1"}, streaming=True)


def test_an_unknown_option_without_a_neighbour_is_named() -> None:
    with pytest.raises(ConfigError, match=r"unknown option 'zzz'$"):
        parse(zzz="1")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"maxOffsetsPerTrigger": "1"}, "use maxBytesPerTrigger, such as 1g"),
        ({"minOffsetsPerTrigger": "1"}, "use minBytesPerTrigger"),
        ({"maxRecordsPerPartition": "1"}, "use maxBytesPerPartition"),
        ({"kafka.isolation.level": "read_committed"}, "0.7 has no transactions"),
        ({"kafka.security.protocol": "SSL"}, "0.7 has neither TLS nor SASL"),
        ({"kafka.ssl.truststore.location": "a"}, "0.7 has neither TLS nor SASL"),
        ({"kafka.sasl.mechanism": "PLAIN"}, "0.7 has neither TLS nor SASL"),
        ({"kafka.auto.offset.reset": "latest"}, "use startingOffsets"),
        ({"kafka.value.deserializer": "x"}, "cast the column"),
    ],
)
def test_options_that_cannot_be_meant_say_what_to_do_instead(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=f"option {next(iter(options))}: .*{says}"):
        parse_source(BASE | options, streaming=True)


@pytest.mark.parametrize("name", IGNORED_KAFKA07)
def test_options_of_groups_have_no_effect(name: str) -> None:
    assert parse_source(BASE | {name.lower(): "1"}, streaming=True) == parse(True)


def test_an_unknown_client_option_says_that_it_has_no_meaning_here() -> None:
    with pytest.raises(ConfigError, match=r"unknown option 'kafka.some.thing': .*has no meaning here: leave it out$"):
        parse(kafka_some_thing="1")


def test_a_request_time_out_and_a_client_id_are_those_of_the_cluster() -> None:
    where = parse(kafka_request_timeout_ms="5000", kafka_client_id="me").where
    assert isinstance(where, ClusterConnection)
    assert (where.request_timeout_s, where.client_id) == (5.0, "me")


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_streaming_query_has_no_end(name: str) -> None:
    with pytest.raises(ConfigError, match=f"option {name}: a streaming query has no end"):
        parse(True, **{name: "latest"})


def test_limits_of_micro_batches_do_not_concern_a_batch_query() -> None:
    parsed = parse(maxBytesPerTrigger="1g", minBytesPerTrigger="1m", maxTriggerDelay="1m")
    assert (parsed.start, parsed.end) == (EARLIEST, LATEST)


# ---- where and what ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("1:h:9092", "kafka07://1@h:9092"),
        ("1:h:9092, 2@g:9093", "kafka07://1@h:9092,2@g:9093"),
        ("2@[::1]:9", "kafka07://2@[::1]:9"),
    ],
)
def test_brokers_are_listed_as_in_0_7_or_as_in_urls(text: str, url: str) -> None:
    assert parse_source({"kafka.broker.list": text, "subscribe": "t"}, streaming=False).where == ClusterConnection(url)


def test_brokers_need_their_ids() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.broker\.list: each broker needs its id"):
        parse_source({"kafka.broker.list": "h:9092", "subscribe": "t"}, streaming=False)


def test_a_malformed_address_names_the_option() -> None:
    with pytest.raises(ConfigError, match=r"option kafka\.zk\.connect: invalid ZooKeeper server 'a:b' in the URL"):
        parse(kafka_zk_connect="a:b")


def test_secrets_are_not_shown() -> None:
    options = parse(kafka_zk_connect="me:secret@zk")
    assert "secret" not in repr(options)
    assert options.where == ClusterConnection("kafka07+zk://me:secret@zk")


@pytest.mark.parametrize(
    ("text", "directories"),
    [
        ("/logs", [Directory("/logs")]),
        ("0@/a, 1@/b", [Directory("/a", 0), Directory("/b", 1)]),
        ("3@/a/*/kafka-[0-9]", [Directory("/a/*/kafka-[0-9]", 3)]),
        ('["0@/a,b", "/c"]', [Directory("/a,b", 0), Directory("/c")]),
        ("file:///a", [Directory("/a")]),
        ("file:/a", [Directory("/a")]),  # as Spark's catalog writes it
        ("/with space/@x", [Directory("/with space/@x")]),
    ],
)
def test_directories_have_an_optional_broker(text: str, directories: list[Directory]) -> None:
    options = parse_source({"path": text}, streaming=False)
    assert options.where == tuple(directories)
    assert options.topics == Topics()


@pytest.mark.parametrize("text", ["/a,,/b", "[]", "[1]", "[", "0@"])
def test_a_path_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="option path="):
        parse_source({"path": text}, streaming=False)


def test_exactly_one_source_and_one_choice_of_topics() -> None:
    with pytest.raises(ConfigError, match=r"options kafka\.zk\.connect and path exclude each other"):
        parse(path="/a")
    with pytest.raises(ConfigError, match="options subscribe and assign exclude each other"):
        parse(assign='{"t":["0-1"]}')
    with pytest.raises(ConfigError, match=r"one of the options kafka\.bootstrap\.servers, kafka\.zk\.connect, "):
        parse_source({"subscribe": "t"}, streaming=False)
    with pytest.raises(ConfigError, match="one of the options subscribe, subscribePattern, assign"):
        parse_source({"kafka.zk.connect": "zk"}, streaming=False)


def test_topics_are_chosen_by_name_pattern_or_partition() -> None:
    assert [parse(subscribe="b, a,b").topics.has(topic) for topic in "abc"] == [True, True, False]
    where = {"kafka.zk.connect": "zk"}
    pattern = parse_source(where | {"subscribePattern": "a.*|b"}, streaming=False).topics
    assert [pattern.has(topic) for topic in ("a", "ab", "b", "bc", "d")] == [True, True, True, True, False]
    assigned = parse_source(where | {"assign": '{"t":["0-1"]}'}, streaming=False).topics
    assert assigned.partitions == (TopicPartition("t", 1, 0),)
    assert (assigned.has("t"), assigned.has("u")) == (True, False)
    assert Topics().has("any")
    with pytest.raises(ConfigError, match="not a regular expression of Python"):
        parse_source(where | {"subscribePattern": "*"}, streaming=False)


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        ("bcd", {"abcd"}),
        ("bcd$", {"abcd"}),
        ("^abc$", {"abc"}),
        ("ab", {"abc", "abcd"}),
        ("^bc", set()),
        ("abc", {"abc", "abcd"}),
        ("(?i)ABCD", {"abcd"}),
    ],
)
def test_a_pattern_is_found_anywhere_in_the_name_as_by_sparks_own_source(pattern: str, topics: set[str]) -> None:
    """The topics are those that the connector of Spark 4.2 has read of these two, on Spark 4.3."""
    chosen = parse_source({"kafka.zk.connect": "zk", "subscribePattern": pattern}, streaming=False).topics
    assert set(filter(chosen.has, ("abc", "abcd"))) == topics


def test_the_pattern_of_a_pipeline_matches_the_whole_name() -> None:
    assert [Topics(pattern="a|ab", whole=True).has(topic) for topic in ("a", "ab", "abc")] == [True, True, False]


# ---- from where to where -------------------------------------------------------------------------------------


def test_a_time_for_all_wins_over_times_for_each_over_offsets() -> None:
    options = {"startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"t":{"0-1":5000}}'}
    assert parse(**options).start == {TopicPartition("t", 1, 0): AtTime(5.0)}
    assert parse(**options, startingTimestamp="7000").start == AtTime(7.0)
    assert parse(endingTimestamp="9000", endingOffsets="latest").end == AtTime(9.0)


def test_errors_name_the_option_that_says_where_to_start_or_end() -> None:
    by_time = parse(startingOffsets="earliest", startingOffsetsByTimestamp='{"t":{"0-1":5000}}', endingTimestamp="9000")
    assert by_time.names[:2] == ("option startingOffsetsByTimestamp", "option endingTimestamp")
    assert parse().names[:2] == ("option startingOffsets", "option endingOffsets")


def test_a_batch_starts_nowhere_at_the_end() -> None:
    with pytest.raises(ConfigError, match="startingOffsets='latest': must be earliest or JSON"):
        parse(startingOffsets="latest")
    assert parse(True, startingOffsets="earliest").start is EARLIEST


def test_what_loses_to_a_time_is_checked_all_the_same() -> None:
    with pytest.raises(ConfigError, match="startingOffsets='newest'"):
        parse(startingTimestamp="1", startingOffsets="newest")


# ---- numbers -------------------------------------------------------------------------------------------------


def test_the_rest_is_where_it_belongs() -> None:
    options = parse(
        True,
        maxBytesPerTrigger="2g",
        minBytesPerTrigger="64m",
        maxTriggerDelay="5m",
        minPartitions="2",
        maxPartitions="16",
        maxBytesPerPartition="32m",
        maxFetchersPerBroker="4",
        failOnDataLoss="FALSE",
        maxMessageBytes="2000000",
        fetchBytes="300k",
        fetchAhead="2",
        fetchOffset_deadlineMs="5000",
        kafkaConsumer_pollTimeoutMs="7000",
        corrupt="dead",
        includeHeaders="true",
        startingOffsetsByTimestampStrategy="latest",
    )
    assert (options.max_size, options.min_size, options.max_delay_s) == (2 << 30, 64 << 20, 300.0)
    assert (options.task_size, options.min_tasks, options.max_tasks, options.fetchers) == (32 << 20, 2, 16, 4)
    assert (options.fail_on_data_loss, options.max_entry, options.fetch_bytes) == (False, 2_000_010, 300 << 10)
    assert (options.fetch_ahead, options.deadline_s, options.poll_deadline_s) == (2, 5.0, 7.0)
    assert (options.corrupt, options.headers) == ("raw", True)
    assert parse(corrupt="skip-message").corrupt == "skip"
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("failOnDataLoss", "yes"),
        ("corrupt", "skip"),
        ("startingOffsetsByTimestampStrategy", "earliest"),
        ("minPartitions", "0"),
        ("maxPartitions", "-1"),
        ("fetchAhead", "1.5"),
        ("maxBytesPerPartition", "128 parsecs"),
        ("maxBytesPerPartition", "0"),
        ("maxMessageBytes", "2g"),
        ("fetchOffset.deadlineMs", "1m"),
        ("startingTimestamp", "now"),
    ],
)
def test_a_wrong_value_is_shown_with_its_option_and_what_is_right(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}='{value}': must be .+"):
        parse_source(BASE | {name: value}, streaming=False)


def test_values_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"minPartitions \(9\) is more than maxPartitions \(8\)"):
        parse(minPartitions="9", maxPartitions="8")
    with pytest.raises(ConfigError, match=r"minBytesPerTrigger \(2147483648\) is more than maxBytesPerTrigger"):
        parse(True, minBytesPerTrigger="2g", maxBytesPerTrigger="1g")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("512k", 512 << 10),
        ("128m", 128 << 20),
        ("2G", 2 << 30),
        ("1 tb", 1 << 40),
        ("7b", 7),
        ("3MiB", 3 << 20),
    ],
)
def test_bytes(text: str, size: int) -> None:
    assert parse_bytes(text, "o") == size


@pytest.mark.parametrize("text", ["", "m", "1.5g", "-1", "0", "0k", "1x", "1bb", "1ib", "1_000"])
def test_no_bytes(text: str) -> None:
    with pytest.raises(ConfigError, match="must be a number of bytes"):
        parse_bytes(text, "o")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250", 0.25), ("250ms", 0.25), ("30s", 30), ("15m", 900), ("15 min", 900), ("2h", 7200), ("1d", 86400)],
)
def test_seconds(text: str, seconds: float) -> None:
    assert parse_seconds(text, "o") == seconds


@pytest.mark.parametrize("text", ["", "m", "1.5h", "-1s", "1w"])
def test_no_seconds(text: str) -> None:
    with pytest.raises(ConfigError, match="must be a time"):
        parse_seconds(text, "o")
