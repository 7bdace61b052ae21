"""The filter over aborted transactions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from odradek.core.kafka.read_committed import ABORT_MARKER, COMMIT_MARKER, BatchHeader, visible_batches
from odradek.wire.kafka.messages.data import AbortedTransaction


def aborted(*entries: tuple[int, int]) -> list[AbortedTransaction]:
    return [AbortedTransaction(producer_id=producer, first_offset=offset) for producer, offset in entries]


def data(last_offset: int, producer: int = -1) -> BatchHeader:
    return BatchHeader(last_offset, producer, is_transactional=producer >= 0)


def marker(last_offset: int, producer: int, control_type: int) -> BatchHeader:
    return BatchHeader(last_offset, producer, is_transactional=True, control_type=control_type)


def test_two_interleaved_producers_of_which_one_aborts() -> None:
    batches = [
        data(0, 1),
        data(1, 2),
        data(2),
        data(3, 1),
        marker(4, 1, ABORT_MARKER),
        data(5, 2),
        marker(6, 2, COMMIT_MARKER),
        data(7, 1),  # the next transaction of the producer that aborted
    ]
    shown = visible_batches(batches, aborted((1, 0)), read_committed=True)
    assert list(shown) == [False, True, True, False, False, True, False, True]


def test_a_transaction_counts_from_its_first_offset_on() -> None:
    batches = [data(4, 1), marker(5, 1, COMMIT_MARKER), data(9, 1), marker(10, 1, ABORT_MARKER)]
    assert list(visible_batches(batches, aborted((1, 6)), read_committed=True)) == [True, False, False, False]


def test_entries_come_in_any_order() -> None:
    batches = [data(0, 1), marker(1, 1, ABORT_MARKER), data(2, 1), marker(3, 1, ABORT_MARKER)]
    assert list(visible_batches(batches, aborted((1, 2), (1, 0)), read_committed=True)) == [False] * 4


def test_reading_uncommitted_shows_all_data_and_no_markers() -> None:
    batches = [data(0, 1), marker(1, 1, ABORT_MARKER), data(2)]
    assert list(visible_batches(batches, aborted((1, 0)), read_committed=False)) == [True, False, True]


def test_control_batches_of_unknown_types_are_never_shown() -> None:
    assert list(visible_batches([marker(0, -1, 99)], None, read_committed=True)) == [False]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["data", "commit", "abort"])), max_size=40),
)
def test_exactly_the_data_of_aborted_transactions_is_hidden(steps: list[tuple[int, str]]) -> None:
    open_at: dict[int, list[int]] = {}
    batches: list[BatchHeader] = []
    expected: list[bool] = []
    entries: list[tuple[int, int]] = []
    for offset, (producer, step) in enumerate(steps):
        if step == "data":
            batches.append(data(offset, producer))
            open_at.setdefault(producer, []).append(offset)
            expected.append(True)
            continue
        written = open_at.pop(producer, [])
        if step == "abort" and written:
            entries.append((producer, written[0]))
            for hidden in written:
                expected[hidden] = False
        batches.append(marker(offset, producer, ABORT_MARKER if step == "abort" else COMMIT_MARKER))
        expected.append(False)
    shown = visible_batches(batches, aborted(*entries), read_committed=True)
    assert list(shown) == expected
