"""Target against source: what is equal, the first difference of what is not, and comparisons that are interrupted."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.mirror.verifying import P0, Pair, record

from odradek.core.interfaces import ProducerRecord
from odradek.mirror import verify_partition
from odradek.mirror.planning import MirrorRefused
from odradek.mirror.run import run
from odradek.mirror.task import CopiedRecords
from odradek.mirror.verify import Difference, VerifiedMirror, VerifiedPartition, verify
from odradek.testing import MemoryCluster
from odradek.types import TopicPartition

pytestmark = pytest.mark.anyio

ROWS = [record(number) for number in range(10)]
TWO_RUNS = [[(0, 0, 4)], [(4, 4, 6)]]
"""Two transactions."""


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pair:
    """Two clusters, and chunks of one transaction each."""
    monkeypatch.setattr(verify_partition, "CHUNK_RECORDS", 1)
    monkeypatch.setattr(verify_partition, "WAIT_SECONDS", 0.0)
    return Pair(monkeypatch, tmp_path)


async def compared(pair: Pair, topics: str = "", **options: Any) -> VerifiedPartition:
    """The comparison of a mirror that has one partition."""
    [partition] = (await verify(pair.config(topics), **options)).partitions
    assert partition.done
    return partition


async def test_what_a_run_has_copied_is_equal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pair = Pair(monkeypatch, tmp_path, 3)
    for number in range(2):  # the third partition stays empty
        pair.source.append("orders", ROWS[number:], partition=number)
    config = pair.config()
    await run(config)
    result = await verify(config)
    assert result.equal
    assert (result.mirror, result.source, result.target) == ("m", "kafka://source:9092", "kafka://target:9092")
    counts = [(p.source.partition, p.source_records, p.target_records, p.not_compared) for p in result.partitions]
    assert counts == [(0, 10, 10, 0), (1, 9, 9, 0), (2, 0, 0, 0)]
    size = sum(len(row.value or b"") + len(row.key or b"") + 2 for row in ROWS)
    assert result.partitions[0].bytes == size
    hashes = {p.hash for p in result.partitions}
    assert len(hashes) == 3 and all(len(each) == 64 for each in hashes)


def _changed(number: int, **changes: Any) -> list[ProducerRecord]:
    return [*ROWS[:number], record(number, **changes), *ROWS[number + 1 :]]


@pytest.mark.parametrize(
    ("rows", "kind", "index", "position", "offset"),
    [
        (_changed(5, value=b"other"), "value", 1, 5, 5),
        (_changed(5, value=None), "value", 1, 5, 5),  # a tombstone
        (_changed(5, value=b""), "value", 1, 5, 5),
        (_changed(0, key=b"other"), "key", 0, 0, 0),
        (_changed(3, key=None), "key", 3, 3, 3),
        (_changed(9, headers=()), "headers", 5, 9, 9),
        (_changed(9, headers=(("h", None),)), "headers", 5, 9, 9),
        (_changed(9, headers=(("g", b"9"),)), "headers", 5, 9, 9),
        (_changed(4, timestamp=1), "timestamp", 0, 4, 4),
        (_changed(4, value=b"other", timestamp=1), "value, timestamp", 0, 4, 4),
        ([*ROWS[:5], *ROWS[6:]], "missing", 1, 5, None),
        (ROWS[1:], "missing", 0, 0, None),
        (ROWS[:9], "missing", 5, 9, None),
        ([*ROWS[:5], record(77), *ROWS[5:9]], "extra", 1, None, 5),
        ([record(77), *ROWS[:9]], "extra", 0, None, 0),
        ([*ROWS[:6], ROWS[7], ROWS[6], *ROWS[8:]], "order", 2, 6, 6),
    ],
)
async def test_the_first_difference_is_found(
    pair: Pair, rows: list[ProducerRecord], kind: str, index: int, position: int | None, offset: int | None
) -> None:
    pair.source.append("orders", ROWS)
    pair.copied(rows, TWO_RUNS, 10)
    partition = await compared(pair)
    assert partition.difference is not None and not partition.equal
    difference = partition.difference
    assert (difference.kind, difference.index, difference.position, difference.offset) == (
        kind,
        index,
        position,
        offset,
    )
    assert bool(difference.source) == (position is not None) and bool(difference.target) == (offset is not None)


async def test_a_difference_shows_both_records(pair: Pair) -> None:
    pair.source.append("orders", ROWS)
    pair.copied(_changed(5, value=b"x" * 500), TWO_RUNS, 10)
    difference = (await compared(pair)).difference
    assert difference is not None
    assert difference.source == ("value b'value 5', key b'key 5', headers (('h', b'5'),), timestamp 1700000000005")
    assert len(difference.target) < 250


async def test_a_record_that_the_index_does_not_know_is_missing(pair: Pair) -> None:
    pair.source.append("orders", ROWS)
    pair.copied([*ROWS[:5], *ROWS[6:]], [[(0, 0, 5)], [(6, 5, 4)]], 10)
    difference = (await compared(pair)).difference
    assert difference is not None and (difference.kind, difference.index, difference.position) == ("missing", 5, 5)


async def test_what_came_before_the_first_record_that_was_copied_is_missing(pair: Pair) -> None:
    pair.source.append("orders", ROWS)
    pair.copied(ROWS[2:], [[(2, 0, 8)]], 10)
    difference = (await compared(pair)).difference
    assert difference is not None and (difference.kind, difference.index, difference.position) == ("missing", 0, 0)


async def test_records_that_no_transaction_has_are_missing(pair: Pair) -> None:
    pair.source.append("orders", ROWS)
    pair.copied([], [], 10)
    difference = (await compared(pair)).difference
    assert difference is not None and (difference.kind, difference.index, difference.position) == ("missing", 0, 0)


async def test_one_record_more_in_a_run_is_extra(pair: Pair) -> None:
    pair.source.append("orders", ROWS)
    pair.copied([*ROWS, record(10)], [[(0, 0, 11)]], 10)
    difference = (await compared(pair)).difference
    assert difference is not None and (difference.kind, difference.index, difference.offset) == ("extra", 10, 10)


async def test_other_partitions_are_compared_all_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pair = Pair(monkeypatch, tmp_path, 6)
    for number in range(6):
        pair.source.append("orders", ROWS, partition=number)
    config = pair.config()
    await run(config)
    for number in (0, 4):
        pair.source.corrupt(TopicPartition("orders", number), 7)
    pair.target.truncate_log(TopicPartition("orders", 2), 9)
    monkeypatch.setattr(verify_partition, "WAIT_SECONDS", 0.0)
    result = await verify(config)
    assert not result.equal
    assert [partition.equal for partition in result.partitions] == [False, True, False, True, False, True]
    assert "CRC mismatch" in result.partitions[0].error
    difference = result.partitions[2].difference
    assert difference is not None and (difference.kind, difference.position) == ("missing", 9)


# ---- timestamps ----------------------------------------------------------------------------------------------


async def copied_with_times_of_the_target(pair: Pair, of_target: Collection[int]) -> None:
    """Copy ROWS; the target sets the time of those with these numbers."""
    pair.source.append("orders", ROWS)
    pair.copied(ROWS, TWO_RUNS, 10)
    pair.target.truncate_log(P0, 0)
    async with pair.target.connect() as k:
        for number, row in enumerate(ROWS):
            times = "LogAppendTime" if number in of_target else "CreateTime"
            (await k.admin.alter_topic_configs({"orders": {"message.timestamp.type": times}})).check()
            pair.target.append("orders", [row])


async def test_timestamps_that_the_target_sets_itself_do_not_count(pair: Pair) -> None:
    await copied_with_times_of_the_target(pair, range(10))
    assert (await compared(pair)).equal


async def test_of_some_records_the_timestamps_count(pair: Pair) -> None:
    await copied_with_times_of_the_target(pair, range(1, 9, 2))
    assert (await compared(pair)).equal
    pair.target.truncate_log(P0, 8)
    pair.target.append("orders", [record(8, timestamp=1), ROWS[9]])
    difference = (await compared(pair)).difference
    assert difference is not None and (difference.kind, difference.index, difference.offset) == ("timestamp", 4, 8)


# ---- records of others ---------------------------------------------------------------------------------------


async def test_records_of_other_producers_are_a_difference_unless_the_mirror_appends(pair: Pair) -> None:
    pair.source.append("orders", ROWS)
    rows = [record(70), *ROWS[:4], record(71), record(72), *ROWS[4:6], record(73), *ROWS[6:], record(74)]
    pair.copied(rows, [[(0, 1, 4)], [(4, 7, 2), (6, 10, 4)]], 10)
    appended = await compared(pair, "append = true")
    assert (appended.equal, appended.others, appended.target_records) == (True, 3, 10)
    alone = await compared(pair)
    assert alone.difference is not None and not alone.equal
    assert (alone.difference.kind, alone.difference.index, alone.difference.offset) == ("extra", 4, 5)
    assert "value 71" in alone.difference.target


async def test_headers_with_the_origin_are_the_mirrors(pair: Pair) -> None:
    pair.source.append("orders", ROWS)
    origin = [(f"odradek.{name}", b"x") for name in ("cluster", "topic", "partition", "position")]
    rows = [row._replace(headers=(*row.headers, *origin)) for row in ROWS]
    pair.copied(rows, TWO_RUNS, 10)
    assert (await compared(pair, "origin_headers = true")).equal
    difference = (await compared(pair)).difference
    assert difference is not None and difference.kind == "headers"


# ---- retention -----------------------------------------------------------------------------------------------

THREE_RUNS = [[(0, 0, 3)], [(3, 3, 3)], [(6, 6, 4)]]


@pytest.mark.parametrize(
    ("source", "target", "compared_records"), [(1, 0, 9), (0, 3, 7), (4, 1, 6), (0, 8, 2), (10, 0, 0), (3, 10, 0)]
)
async def test_comparing_begins_with_what_both_sides_still_have(
    pair: Pair, source: int, target: int, compared_records: int
) -> None:
    pair.source.append("orders", ROWS)
    pair.copied(ROWS, THREE_RUNS, 10)
    pair.source.delete_records(P0, source)
    pair.target.delete_records(P0, target)
    partition = await compared(pair)
    assert partition.equal
    assert (partition.compared, partition.not_compared) == (compared_records, 10 - compared_records)
    assert partition.source_records == partition.target_records == compared_records


@pytest.mark.parametrize("side", ["source", "target"])
async def test_records_that_are_deleted_meanwhile_are_not_compared(
    pair: Pair, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.source.append("orders", ROWS)
    pair.copied(ROWS, THREE_RUNS, 10)
    served, asked = verify_partition.served, []

    def then_deleted(*args: Any) -> Any:
        extent = served(*args)
        asked.append(1)
        if len(asked) == 2:  # both sides were asked
            getattr(pair, side).delete_records(P0, 4)
        return extent

    monkeypatch.setattr(verify_partition, "served", then_deleted)
    partition = await compared(pair)
    assert partition.equal
    assert (partition.compared, partition.not_compared) == (6, 4)


async def test_a_position_that_stays_out_of_range_is_an_error(pair: Pair) -> None:
    pair.source.append("orders", ROWS)
    pair.copied(ROWS, THREE_RUNS, 10)
    config = pair.config()
    pair.source.recreate_topic("orders")
    pair.source.append("orders", ROWS)
    id_of_before = "00000000000000000000000000000001"
    pair.copied([], THREE_RUNS, 10, topic_id=id_of_before)
    [partition] = (await verify(config)).partitions
    assert "made again" in partition.error and not partition.equal


# ---- compaction ----------------------------------------------------------------------------------------------


async def _compact(cluster: MemoryCluster, *gone: int, policy: str = "compact,delete") -> None:
    """Do what a cleaner does to the topic."""
    async with cluster.connect() as k:
        (await k.admin.alter_topic_configs({"orders": {"cleanup.policy": policy}})).check()
    log = cluster._state.logs[P0]
    log.records = [stored for stored in log.records if stored.offset not in gone]


async def test_records_that_compaction_has_removed_from_one_side_are_no_difference(pair: Pair) -> None:
    pair.source.append("orders", [record(70), *ROWS])
    pair.source.delete_records(P0, 1)
    pair.copied(ROWS, [[(1, 0, 4)], [(5, 4, 2), (7, 6, 4)]], 11)
    await _compact(pair.source, 1, 2, 8, 10)
    await _compact(pair.target, 1, 5, 6, 9)
    partition = await compared(pair)
    assert partition.equal
    assert (partition.compacted, partition.source_records, partition.target_records) == (4, 6, 6)


@pytest.mark.parametrize(("side", "kind"), [("source", "extra"), ("target", "missing")])
async def test_a_record_is_missing_where_the_topic_is_not_compacted(pair: Pair, side: str, kind: str) -> None:
    pair.source.append("orders", ROWS)
    pair.copied(ROWS, TWO_RUNS, 10)
    await _compact(pair.source)
    await _compact(pair.target)
    await _compact(getattr(pair, side), 5, policy="delete")
    difference = (await compared(pair)).difference
    assert difference is not None and (difference.kind, difference.index) == (kind, 1)


async def test_a_record_that_differs_is_found_in_a_compacted_topic(pair: Pair) -> None:
    pair.source.append("orders", ROWS)
    pair.copied(_changed(8, value=b"other"), TWO_RUNS, 10)
    await _compact(pair.source, 5)
    await _compact(pair.target, 6)
    difference = (await compared(pair)).difference
    assert difference is not None and (difference.kind, difference.position, difference.offset) == ("value", 8, 8)


# ---- while both sides move -----------------------------------------------------------------------------------


async def test_what_is_copied_meanwhile_is_not_compared(pair: Pair) -> None:
    pair.source.append("orders", ROWS)
    pair.copied(ROWS, TWO_RUNS, 10)

    def grow(_: VerifiedPartition) -> None:
        pair.source.append("orders", [record(10)])
        pair.target.append("orders", [record(99)])

    partition = await compared(pair, progress=grow)
    assert partition.equal and partition.source_records == 10


async def test_a_mirror_that_follows_can_be_verified(pair: Pair) -> None:
    config = pair.config()
    copied, grown = 0, anyio.Event()

    def count(parts: Sequence[CopiedRecords]) -> None:
        nonlocal copied, grown
        copied += sum(part.records for part in parts)
        grown.set()
        grown = anyio.Event()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(run, config, follow=True, committed=count))
        for number in range(1, 6):
            pair.source.append("orders", ROWS)
            with anyio.fail_after(30):
                while copied < 11 * number - 1:
                    await grown.wait()
            pair.source.append("orders", ROWS[:1])
            partition = await compared(pair)
            assert partition.equal and partition.source_records >= 11 * number - 1
        tasks.cancel_scope.cancel()


# ---- interruptions -------------------------------------------------------------------------------------------


class Interrupted(Exception):
    """What ends a comparison."""


CHUNKS = [[(at, at, 2)] for at in range(0, 10, 2)]


@pytest.mark.parametrize("after", range(1, 6))
async def test_an_interrupted_comparison_goes_on_after_its_last_chunk(pair: Pair, tmp_path: Path, after: int) -> None:
    pair.source.append("orders", ROWS)
    pair.copied(ROWS, CHUNKS, 10)
    whole = await compared(pair)
    state, seen = tmp_path / "state.json", []

    def interrupt(partition: VerifiedPartition) -> None:
        seen.append(partition.source_records)
        if len(seen) == after:
            raise Interrupted

    with pytest.raises(ExceptionGroup) as raised:
        await compared(pair, state=state, progress=interrupt)
    assert raised.group_contains(Interrupted)
    assert state.exists()
    pair.source.append("orders", [record(10)])  # what comes later is not part of it
    pair.copied([record(10)], [[(10, 10, 1)]], 11, records=11)
    again: list[int] = []
    partition = await compared(pair, state=state, progress=lambda each: again.append(each.source_records))
    assert partition.equal
    assert (partition.hash, partition.source_records, partition.compared) == (whole.hash, 10, 10)
    assert again[0] == min(10, 2 * after + 2)
    assert not state.exists()
    assert {path.name for path in tmp_path.rglob("*")} == {"mirror.toml"}  # noqa: ASYNC240


async def test_cancelled_at_any_wait_it_goes_on(pair: Pair, tmp_path: Path) -> None:
    pair.source.append("orders", ROWS)
    pair.copied(_changed(9, value=b"other"), CHUNKS, 10)
    state, attempts = tmp_path / "state.json", 0
    result: VerifiedMirror | None = None
    while result is None:
        attempts += 1
        with anyio.move_on_after(0.002 * attempts):
            result = await verify(pair.config(), state=state)
    [partition] = result.partitions
    assert partition.difference == Difference("value", 1, 9, 0, 9, _text(ROWS[9]), _text(record(9, value=b"other")))
    assert (partition.source_records, partition.target_records) == (10, 10)


def _text(row: ProducerRecord) -> str:
    return f"value {row.value!r}, key {row.key!r}, headers {row.headers!r}, timestamp {row.timestamp}"


async def test_a_difference_that_was_found_before_an_interruption_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pair = Pair(monkeypatch, tmp_path, 2)
    for number in range(2):
        pair.source.append("orders", ROWS, partition=number)
    await run(pair.config())
    monkeypatch.setattr(verify_partition, "WAIT_SECONDS", 0.0)
    pair.target.truncate_log(P0, 5)
    state = tmp_path / "state.json"

    def interrupt(partition: VerifiedPartition) -> None:
        if partition.source == P0 and partition.done:
            raise Interrupted

    with pytest.raises(ExceptionGroup):
        await verify(pair.config(), state=state, progress=interrupt)
    assert json.loads(state.read_bytes())["partitions"][0]["difference"]["kind"] == "missing"
    result = await verify(pair.config(), state=state)
    assert [partition.equal for partition in result.partitions] == [False, True]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no json", "is not the state of a comparison"),
        ('{"mirror": "m"}', "is not the state of a comparison"),
        ('{"mirror": "other", "source": "s", "target": "t", "started": 1}', "the mirror 'other' from s to t"),
    ],
)
async def test_the_file_of_something_else_is_refused(pair: Pair, tmp_path: Path, text: str, words: str) -> None:
    pair.source.append("orders", ROWS)
    pair.copied(ROWS, TWO_RUNS, 10)
    state = tmp_path / "state.json"
    state.write_text(text)
    with pytest.raises(MirrorRefused, match=words):
        await verify(pair.config(), state=state)
    assert state.read_text() == text


# ---- nothing to compare --------------------------------------------------------------------------------------


async def test_a_mirror_that_has_never_run_has_nothing_to_compare(pair: Pair) -> None:
    with pytest.raises(MirrorRefused, match="has copied nothing yet"):
        await verify(pair.config())


async def test_a_partition_that_was_not_copied_yet_is_equal_only_if_it_is_empty(pair: Pair) -> None:
    pair.source.append("orders", ROWS)
    pair.copied(ROWS, TWO_RUNS, 10)
    pair.source.add_partitions("orders", 3)
    pair.source.append("orders", ROWS, partition=2)
    result = await verify(pair.config())
    assert [partition.equal for partition in result.partitions] == [True, True, False]
    assert [partition.error for partition in result.partitions] == ["", "", "it has not been copied yet"]
