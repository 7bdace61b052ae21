"""The next batch of a flow: what a run reads, what is missing, what was lost."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.core.interfaces import BYTES, RECORDS, Extent, PositionUnit, SplitPoint
from odradek.pipeline.commits import Commit, to_offsets, to_positions
from odradek.pipeline.committed import open_committed
from odradek.pipeline.config import Pipeline, SourceConfig
from odradek.pipeline.errors import InexactRead
from odradek.pipeline.source import LogReader, PlannedBatch, backlogs, coverage, next_batch
from odradek.pipeline.status import status
from odradek.pipeline.verify import verify
from odradek.ranges.planning import Range, within
from odradek.types import Position, TopicPartition

from .test_flow import numbers
from .workspace import Workspace

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def positions_of(*ends: int) -> dict[TopicPartition, Position]:
    """Return positions of both partitions."""
    return dict(zip((P0, P1), map(Position, ends), strict=False))


def at(position: int) -> dict[TopicPartition, Position]:
    return {P0: Position(position)}


def planned(
    reached: dict[TopicPartition, Position],
    extents: dict[TopicPartition, Extent],
    *,
    target: dict[TopicPartition, int] | None = None,
    most: int | None = None,
) -> PlannedBatch | None:
    current = extents if target is None else within(extents, target)
    return next_batch(reached, current, most, RECORDS, lambda cuts: {cut: cut.position for cut in cuts})


@pytest.mark.parametrize(
    "source", [SourceConfig(kafka="kafka://a:9092"), SourceConfig(brokers="1@a:9092,2@b:9092,3@c:9092")]
)
def test_logs_of_many_brokers_are_read_with_as_many_fetches(
    source: SourceConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not partitions name their broker: those of 0.8 and later do not."""
    partitions = [TopicPartition("t", n, -1 if source.kafka else n % 3 + 1) for n in range(12)]
    reader = LogReader(Pipeline.model_construct(source=source), partitions)
    extents = {partition: Extent(0, 5, (), partition.partition % 3 + 1) for partition in partitions}
    monkeypatch.setattr(reader._logs, "extents", lambda: extents)
    assert reader.extents() == extents
    assert reader._request.fetch_ahead == 3 * source.fetchers_per_broker


@pytest.mark.parametrize(
    ("source", "unit"), [(SourceConfig(kafka="kafka://a:9092"), RECORDS), (SourceConfig(brokers="1@a:9092"), BYTES)]
)
def test_a_batch_is_divided_into_tasks_by_the_unit_of_its_positions(source: SourceConfig, unit: PositionUnit) -> None:
    reader = LogReader(Pipeline.model_construct(source=source), [])
    assert reader._logs.unit == unit
    assert reader._request.size_tasks(2 * unit.task_size, unit) == (2, unit.task_size)


def size_of(batch: PlannedBatch) -> int:
    return sum(batch.end[partition] - start for partition, start in batch.start.items())


def test_a_batch_is_from_the_end_of_the_table_to_the_end_of_the_log() -> None:
    assert planned(at(10), {P0: Extent(0, 30)}) == PlannedBatch(positions_of(10), positions_of(30))


def test_there_is_no_batch_without_anything_new() -> None:
    assert planned(at(30), {P0: Extent(0, 30)}) is None


def test_a_new_partition_is_read_from_its_beginning_at_once() -> None:
    batch = planned(at(30), {P0: Extent(0, 30), P1: Extent(5, 8)})
    assert batch == PlannedBatch({P1: Position(5)}, positions_of(30, 8))


def test_a_missing_partition_stays_where_it_is_and_has_no_known_lag() -> None:
    reached = {P0: Position(10), P1: Position(7)}
    assert planned(reached, {P0: Extent(0, 30)}) == PlannedBatch(positions_of(10), positions_of(30, 7))
    present, missing = backlogs(reached, {P0: Extent(0, 30)})
    assert present.waiting == 20
    assert (missing.partition, missing.waiting, missing.latest) == (P1, None, -1)


def test_a_topic_that_the_flow_does_not_have_any_more_is_no_problem_and_goes_on_when_it_has_it_again(
    tmp_path: Path,
) -> None:
    work, file = Workspace(tmp_path), tmp_path / "pipeline.toml"
    with_all = file.read_text()
    work.append(numbers(0, 10))
    work.append(numbers(0, 10), "clicks")
    assert not work.run().failed
    work.append(numbers(10, 5), "clicks")
    work.append(numbers(10, 5))
    file.write_text(with_all.replace('".*"', '"orders"'))
    (flow,) = work.run().flows
    assert (flow.rows, flow.lag_after, flow.failed, list(flow.partitions)) == (5, 0, False, ["orders/1-0"])
    assert not status(work.pipeline, "orders").problems
    file.write_text(with_all)
    assert [flow.rows for flow in work.run().flows] == [5]


def test_a_run_stops_where_the_logs_ended_at_its_start() -> None:
    target = {P0: 20}
    later = {P0: Extent(0, 30), P1: Extent(0, 9)}
    assert planned(at(10), later, target=target) == PlannedBatch(positions_of(10), positions_of(20))
    assert planned(at(20), later, target=target) is None


def test_a_batch_is_no_larger_than_allowed() -> None:
    reached = {P0: Position(0), P1: Position(0)}
    extents = {P0: Extent(0, 300), P1: Extent(0, 100)}
    batch = planned(reached, extents, most=40)
    assert batch is not None and size_of(batch) == 40 and batch.end == {P0: 30, P1: 10}


def test_what_retention_has_deleted_fails_or_is_a_gap(tmp_path: Path) -> None:
    assert backlogs(at(10), {P0: Extent(20, 30)})[0].gap is not None
    work = Workspace(tmp_path)
    work.append(numbers(0, 10))
    assert not work.run().failed
    work.append(numbers(10, 90))
    file = tmp_path / "logs" / "orders-0" / f"{0:020}.kafka"
    file.with_name(f"{320:020}.kafka").write_bytes(file.read_bytes()[320:])
    file.unlink()
    assert "data was lost: orders/1-0: deleted by retention: wanted [160, 320)" in work.error()
    work.more = 'data_loss = "skip"'
    work.write_file()
    assert work.run().flows[0].rows == 80
    assert [(gap.start, gap.end, gap.reason) for gap in work.newest.gaps] == [(160, 320, "the log no longer had it")]


def test_a_log_that_was_recreated_fails_or_is_read_from_its_beginning(tmp_path: Path) -> None:
    batch = planned(at(50), {P0: Extent(0, 20)})
    assert batch is not None and (batch.start, batch.end) == ({P0: 50}, {P0: 20})
    work = Workspace(tmp_path)
    work.append(numbers(0, 10))
    assert not work.run().failed
    shutil.rmtree(tmp_path / "logs" / "orders-0")
    work.append(numbers(10, 3))
    assert "cut off at the end, or the log was created again: wanted [160, 48)" in work.error()
    work.more = 'data_loss = "skip"'
    work.write_file()
    summary = work.run().flows[0]
    assert summary.rows == 3 and work.values() == numbers(0, 13)
    assert (summary.log_size, summary.lag_before, summary.lag_after) == (48, 48, 0)
    assert (work.newest.log_size, work.newest.start) == (48, {"orders": {"1-0": 0}})
    assert [(gap.start, gap.end) for gap in work.newest.gaps] == [(160, 48)]
    findings = verify(work.pipeline, open_committed(work.pipeline, "orders")).findings
    assert "record" not in {finding.kind for finding in findings}


def test_a_log_that_was_recreated_and_is_empty_fails_or_is_a_gap_at_once(tmp_path: Path) -> None:
    work = Workspace(tmp_path)
    work.append(numbers(0, 10))
    assert not work.run().failed
    log = tmp_path / "logs" / "orders-0" / f"{0:020}.kafka"
    log.write_bytes(b"")
    assert "cut off at the end, or the log was created again: wanted [160, 0)" in work.error()
    work.more = 'data_loss = "skip"'
    work.write_file()
    assert not work.run().failed
    assert [(gap.start, gap.end) for gap in work.newest.gaps] == [(160, 0)]
    work.append(numbers(10, 20))  # more than there was
    assert work.run().flows[0].rows == 20 and work.values() == numbers(0, 30)


# ---- what was read -------------------------------------------------------------------------------------------

BATCH = PlannedBatch({P0: Position(10)}, {P0: Position(30), P1: Position(7)})


def test_ranges_that_were_read_in_pieces_cover_a_batch() -> None:
    assert coverage("f", BATCH, [Range(P0, 20, 30), Range(P0, 10, 20)], "") == []


@pytest.mark.parametrize(
    ("covered", "gaps"),
    [
        ([], [(10, 30)]),
        ([Range(P0, 12, 30)], [(10, 12)]),
        ([Range(P0, 10, 14), Range(P0, 16, 29)], [(14, 16), (29, 30)]),
    ],
)
def test_what_was_not_read_is_a_gap(covered: list[Range], gaps: list[tuple[int, int]]) -> None:
    assert [(gap.start, gap.end) for gap in coverage("f", BATCH, covered, "why")] == gaps


@pytest.mark.parametrize(
    ("covered", "words"),
    [
        ([Range(P0, 10, 20), Range(P0, 19, 30)], "positions 19-20 were read twice, or are not in this batch"),
        ([Range(P0, 10, 31)], "positions 30-31 were read twice, or are not in this batch"),
        ([Range(P0, 10, 30), Range(P1, 0, 7)], "which is not in this batch"),
    ],
)
def test_what_was_read_twice_or_outside_is_an_error(covered: list[Range], words: str) -> None:
    with pytest.raises(InexactRead, match=words):
        coverage("f", BATCH, covered, "")


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(1, 6))
def test_batches_of_any_size_read_each_position_once(added: list[int], most: int) -> None:
    reached: dict[TopicPartition, Position] = at(0)
    end = 0
    read: list[int] = []
    for size in added:
        end += size
        while (batch := planned(reached, {P0: Extent(0, end)}, most=most)) is not None:
            assert size_of(batch) <= most
            read += range(batch.start[P0], batch.end[P0])
            reached = dict(batch.end)
    assert read == list(range(end))


def test_positions_in_bytes_are_moved_to_where_a_message_begins() -> None:
    moved: list[int] = []

    def boundaries(cuts: Sequence[SplitPoint]) -> dict[SplitPoint, int | None]:
        moved.extend(cut.position + 17 for cut in cuts)
        return dict(zip(cuts, moved, strict=True))

    batch = next_batch(at(0), {P0: Extent(0, 100 << 20)}, 32 << 20, BYTES, boundaries)
    assert batch is not None and [batch.end[P0]] == moved


def test_a_record_of_a_batch_has_its_ranges() -> None:
    names = TopicPartition("orders", 0, 2)
    end = to_offsets({names: Position(9), P1: Position(3)})
    commit = Commit("f", 1, start=to_offsets({names: Position(5)}), end=end)
    assert commit.ranges() == [Range(names, 5, 9)]
    assert to_positions(commit.end) == {names: 9, P1: 3}
