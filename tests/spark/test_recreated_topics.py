"""A topic that is deleted and made again between two micro-batches: that is data loss, whatever the new log has."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from odradek.core.interfaces import RECORDS, Extent, SplitPoint
from odradek.errors import ConfigError
from odradek.ranges.planning import DataLoss, Loss, Range, in_current_topics, of_topics, topic_ids
from odradek.spark.readers import StreamReader
from odradek.spark.source import OdradekSource
from odradek.types import Position, TopicPartition

from .made import names, types_of

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)
OLD, NEW, NEWEST = "0a" * 16, "0b" * 16, "0c" * 16
ALL = ReadAllAvailable()


class Logs:
    """The logs of `t`, which tests change."""

    unit = RECORDS

    def __init__(self, topic_id: str, *ends: int) -> None:
        self.written: dict[TopicPartition, Extent] = {}  # with open transactions
        self.make(topic_id, *ends)

    def make(self, topic_id: str, *ends: int, earliest: int = 0) -> None:
        logs = (Extent(earliest, end, (), 1, topic_id) for end in ends)
        self.now = dict(zip((P, Q), logs, strict=False))

    def extents(self) -> dict[TopicPartition, Extent]:
        return dict(self.now)

    def uncommitted(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Extent]:
        return {partition: log for partition, log in self.written.items() if partition in partitions}

    def at(self, times: object, *, ending: bool) -> dict[TopicPartition, Position]:
        return {}

    def boundaries(self, cuts: Sequence[SplitPoint]) -> dict[SplitPoint, int | None]:
        return {cut: cut.position for cut in cuts}

    def paths(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
        return {}


def stream(logs: Logs, **options: object) -> StreamReader:
    wanted = {"subscribe": "t", "startingOffsets": "earliest", **options}
    named = names(**wanted) | {"kafka.bootstrap.servers": "none:9092"}
    reader = OdradekSource(named).streamReader(types_of(["value"]))
    assert isinstance(reader, StreamReader)
    reader._logs = logs  # type: ignore[assignment]
    return reader


def offsets(topic_id: str | None, *positions: int) -> dict[str, Any]:
    topics = {"t": {str(n): position for n, position in enumerate(positions)}}
    return {"v": 1, "topics": topics, **({} if topic_id is None else {"ids": {"t": topic_id}})}


def ranges(reader: StreamReader, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Range]:
    return sorted(part for task in reader.partitions(dict(start), dict(end)) for part in task.value.ranges)


def read_row_by_row(
    reader: StreamReader, start: dict[str, Any], micro_batches: int, read: dict[TopicPartition, int]
) -> dict[str, Any]:
    """Plan micro-batches of one row, each of which begins where `read` has its partition. Return where they end."""
    for _ in range(micro_batches):
        end = reader.latestOffset(start, ReadMaxRows(1))
        for part in ranges(reader, start, end):
            assert part.start == read[part.partition]
            read[part.partition] = part.end
        start = end
    return start


def test_offsets_have_the_ids_of_their_topics() -> None:
    reader = stream(Logs(OLD, 100))
    assert reader.initialOffset() == offsets(OLD, 0)
    assert reader.latestOffset(offsets(OLD, 0), ALL) == offsets(OLD, 100)
    assert ranges(reader, offsets(OLD, 0), offsets(OLD, 100)) == [Range(P, 0, 100)]


@pytest.mark.parametrize("end", [300, 100, 40], ids=["longer", "as long", "shorter"])
def test_a_topic_that_was_made_again_is_data_loss(end: int) -> None:
    logs = Logs(OLD, 100)
    reader = stream(logs)
    logs.make(NEW, end)
    following = reader.latestOffset(offsets(OLD, 100), ALL)
    assert following == offsets(NEW, end)
    with pytest.raises(DataLoss, match=rf"t/0: the topic was deleted and made again: .* 100 on, .* \[0, {end}\)"):
        reader.partitions(offsets(OLD, 100), following)
    lenient = stream(logs, failOnDataLoss="false")
    assert ranges(lenient, offsets(OLD, 100), following) == [Range(P, 0, end)]


def test_a_topic_that_was_made_again_and_is_empty_is_data_loss_at_once() -> None:
    logs = Logs(NEW, 0)
    reader = stream(logs)
    assert reader.latestOffset(offsets(OLD, 100), ALL) == offsets(NEW, 0)
    with pytest.raises(DataLoss):
        reader.partitions(offsets(OLD, 100), offsets(NEW, 0))
    assert ranges(stream(logs, failOnDataLoss="false"), offsets(OLD, 100), offsets(NEW, 0)) == []


def test_partitions_that_a_limited_micro_batch_does_not_read_begin_in_the_new_topic_too() -> None:
    logs = Logs(NEW, 200, 200)
    reader = stream(logs, failOnDataLoss="false", maxOffsetsPerTrigger=1)
    read = {P: 0, Q: 0}
    assert read_row_by_row(reader, offsets(OLD, 100, 100), 400, read) == offsets(NEW, 200, 200)
    assert read == {P: 200, Q: 200}


def test_a_checkpoint_without_ids_is_continued_and_gets_them_with_the_next_offsets() -> None:
    logs = Logs(OLD, 100)
    reader = stream(logs)
    assert reader.latestOffset(offsets(None, 100), ALL) == offsets(None, 100), "the same text: no micro-batch"
    logs.make(OLD, 150)
    assert reader.latestOffset(offsets(None, 100), ALL) == offsets(OLD, 150)
    assert ranges(reader, offsets(None, 100), offsets(OLD, 150)) == [Range(P, 100, 150)]


def test_a_micro_batch_whose_topic_was_made_again_since_it_was_planned_is_lost_as_a_whole() -> None:
    logs = Logs(NEWEST, 500)
    with pytest.raises(DataLoss, match="no broker has this partition"):
        stream(logs).partitions(offsets(NEW, 0), offsets(NEW, 300))
    lenient = stream(logs, failOnDataLoss="false")
    assert ranges(lenient, offsets(OLD, 100), offsets(NEW, 300)) == []
    assert lenient.latestOffset(offsets(NEW, 300), ALL) == offsets(NEWEST, 500)
    assert ranges(lenient, offsets(NEW, 300), offsets(NEWEST, 500)) == [Range(P, 0, 500)]


def test_retention_between_planning_and_reading_again_is_a_gap_of_the_new_log() -> None:
    logs = Logs(NEW, 300)
    logs.make(NEW, 300, earliest=20)
    lenient = stream(logs, failOnDataLoss="false")
    assert ranges(lenient, offsets(OLD, 100), offsets(NEW, 10)) == []
    assert ranges(lenient, offsets(OLD, 100), offsets(NEW, 60)) == [Range(P, 20, 60)]


def test_tasks_know_the_topics_that_they_read() -> None:
    (task,) = stream(Logs(NEW, 10)).partitions(offsets(NEW, 0), offsets(NEW, 10))
    assert task.value.topic_ids == {"t": NEW}


def test_a_partition_that_the_new_topic_does_not_have_begins_at_its_beginning_when_it_comes() -> None:
    logs = {P: Extent(5, 30, (), 1, NEW)}
    current, gaps = in_current_topics({P: Position(9), Q: Position(70)}, {"t": OLD}, logs, topic_ids(logs))
    assert current == {P: 5, Q: 0}
    assert [(gap.partition, gap.loss, gap.start, gap.resumed) for gap in gaps] == [
        (P, Loss.RECREATED, 9, 5), (Q, Loss.RECREATED, 70, 0)
    ]  # fmt: skip


@pytest.mark.parametrize("ids", [{}, {"t": OLD}, {"other": NEW}])
def test_offsets_in_the_topics_there_are_stay_as_they_are(ids: dict[str, str]) -> None:
    logs = {P: Extent(0, 30, (), 1, OLD)}
    assert in_current_topics({P: Position(9)}, ids, logs, topic_ids(logs)) == ({P: 9}, [])
    assert of_topics(logs, ids) == logs


def test_without_ids_nothing_is_compared() -> None:
    logs = {P: Extent(0, 30)}
    assert topic_ids(logs) == {} and of_topics(logs, {"t": OLD}) == logs
    assert in_current_topics({P: Position(9)}, {"t": OLD}, logs, {}) == ({P: 9}, [])


# ---- topics that are deleted, and not made again -------------------------------------------------------------


IDS = pytest.mark.parametrize("topic_id", [OLD, ""], ids=["with id", "without id"])


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odradek.ranges.catalog.SHOWN_WITHIN_S", 0.0)


@IDS
@pytest.mark.usefixtures("impatient")
def test_a_deleted_topic_is_data_loss(topic_id: str) -> None:
    logs = Logs(topic_id, 100, 50)
    reader, start = stream(logs), offsets(topic_id or None, 100, 50)
    assert reader.latestOffset(start, ALL) == start
    logs.make(topic_id)
    with pytest.raises(DataLoss, match=r"t/0: no broker has this .* everything from 100 on; t/1: .* 50 on") as lost:
        reader.latestOffset(start, ALL)
    assert lost.value.hint.startswith("failOnDataLoss=false")


@IDS
@pytest.mark.usefixtures("impatient")
def test_a_query_goes_on_without_a_deleted_topic_if_the_options_say_so(
    topic_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    logs = Logs(topic_id, 100)
    reader, start = stream(logs, failOnDataLoss="false"), offsets(topic_id or None, 100)
    logs.make(topic_id)
    for _ in range(3):
        start = reader.latestOffset(before := start, ALL)
        assert ranges(reader, before, start) == []
    assert start == {"v": 1, "topics": {}}
    assert [record.message for record in caplog.records] == [
        "data was lost, continuing after it: t/0: no broker has this partition: wanted everything from 100 on"
    ]
    logs.make(NEW if topic_id else "", 300)
    begin = reader.latestOffset(start, ALL)
    assert ranges(reader, begin, reader.latestOffset(begin, ALL)) == [Range(P, 0, 300)]


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_topic_that_a_broker_does_not_know_for_a_moment_has_lost_nothing(strict: str) -> None:
    class NewBroker(Logs):
        answers = 2

        def extents(self) -> dict[TopicPartition, Extent]:
            self.answers -= 1
            return {} if self.answers >= 0 else super().extents()

    logs = NewBroker(OLD, 100)
    reader = stream(logs, failOnDataLoss=strict)
    assert reader.latestOffset(offsets(OLD, 95), ALL) == offsets(OLD, 100)
    logs.answers = 2
    assert ranges(reader, offsets(OLD, 95), offsets(OLD, 100)) == [Range(P, 95, 100)]


@pytest.mark.usefixtures("impatient")
def test_a_run_with_an_end_notices_a_deleted_topic() -> None:
    logs = Logs(OLD, 100)
    reader = stream(logs)
    reader.prepareForTriggerAvailableNow()
    logs.make(OLD)
    with pytest.raises(DataLoss, match="no broker has this partition"):
        reader.latestOffset(offsets(OLD, 40), ALL)


def test_a_topic_that_the_options_no_longer_name_stays_where_it_is() -> None:
    reader, start = stream(Logs(OLD, 100)), offsets(OLD, 100)
    start["topics"]["former"] = {"0": 7}
    assert reader.latestOffset(start, ALL) == start


def test_a_topic_that_the_options_name_since_the_query_was_restarted_has_to_exist(
    caplog: pytest.LogCaptureFixture,
) -> None:
    start, logs = offsets(OLD, 100), Logs(OLD, 100)
    with pytest.raises(ConfigError, match=r"nothing has mistyped now: .* subscribePattern waits"):
        stream(logs, subscribe="t,mistyped").latestOffset(start, ALL)
    lenient = stream(logs, subscribe="t,mistyped", failOnDataLoss="false")
    assert lenient.latestOffset(start, ALL) == lenient.latestOffset(start, ALL) == start
    (record,) = caplog.records
    assert record.message == "nothing has mistyped now: no live broker, and no directory"


# ---- without ids: brokers before 2.8 -------------------------------------------------------------------------


class NewLeaders(Logs):
    """Logs without an id, whose new leaders show less than they have, `answers` times (before 2.2, KIP-207)."""

    answers = 0

    def extents(self) -> dict[TopicPartition, Extent]:
        self.answers -= 1
        return {p: log._replace(latest=log.latest - 10 * (self.answers >= 0)) for p, log in self.now.items()}


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_new_leader_that_shows_less_for_a_moment_has_lost_nothing(strict: str) -> None:
    logs = NewLeaders("", 100)
    reader = stream(logs, failOnDataLoss=strict)
    logs.answers = 2
    assert reader.latestOffset(offsets(None, 95), ALL) == offsets(None, 100)
    logs.answers = 2
    assert ranges(reader, offsets(None, 95), offsets(None, 100)) == [Range(P, 95, 100)]
    logs.answers = 1
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(offsets(None, 95), ALL) == offsets(None, 95)


def test_a_log_that_was_made_again_is_data_loss_while_it_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odradek.ranges.catalog.SHOWN_WITHIN_S", 0.0)
    logs = Logs("", 0)
    reader = stream(logs)
    assert reader.latestOffset(offsets(None, 100), ALL) == offsets(None, 0)
    with pytest.raises(DataLoss, match=r"cut off at the end, .*: wanted \[100, 0\), the log now has \[0, 0\)"):
        reader.partitions(offsets(None, 100), offsets(None, 0))
    lenient = stream(logs, failOnDataLoss="false")
    assert ranges(lenient, offsets(None, 100), offsets(None, 0)) == []
    assert lenient.latestOffset(offsets(None, 0), ALL) == offsets(None, 0)
    logs.make("", 150)
    assert ranges(lenient, offsets(None, 0), lenient.latestOffset(offsets(None, 0), ALL)) == [Range(P, 0, 150)]


def test_a_log_that_was_made_again_is_read_whole_although_a_limited_micro_batch_does_not_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("odradek.ranges.catalog.SHOWN_WITHIN_S", 0.0)
    logs = Logs("", 40, 40)
    reader = stream(logs, failOnDataLoss="false", maxOffsetsPerTrigger=1)
    read = {P: 0, Q: 0}
    start = read_row_by_row(reader, offsets(None, 100, 100), 1, read)
    logs.make("", 150, 150)
    assert read_row_by_row(reader, start, 309, read) == offsets(None, 150, 150)
    assert read == {P: 150, Q: 150}


def test_a_log_of_which_open_transactions_were_read_is_not_shorter() -> None:
    """The query has read uncommitted records until now, up to 15, and continues with committed ones, which end at 5."""
    logs = Logs(OLD, 5)
    logs.written[P] = logs.now[P]._replace(latest=20)
    reader = stream(logs, kafka_isolation_level="read_committed")
    assert reader.latestOffset(offsets(OLD, 15), ALL) == offsets(OLD, 15)
    assert ranges(reader, offsets(OLD, 3), offsets(OLD, 15)) == [Range(P, 3, 15)]  # planned by the query before
    logs.make(OLD, 20)
    assert reader.latestOffset(offsets(OLD, 15), ALL) == offsets(OLD, 20)
    logs.make(OLD, 5)
    logs.written[P] = logs.now[P]._replace(latest=14)
    with pytest.raises(DataLoss, match=r"cut off at the end.*wanted \[5, 15\), the log now has \[0, 5\)"):
        reader.partitions(offsets(OLD, 3), offsets(OLD, 15))
