"""What a partition requests, by what it has learned of its entries."""

from __future__ import annotations

import pytest

from odradek.core.fetch.fetch_size import ENTRY_HEAD_BYTES
from odradek.core.fetch.quota_share import QuotaShare
from odradek.core.fetch.read_ahead import ReadAheadBudget, ReadAheadLimits
from odradek.types import KiB, MiB

HEAD = ENTRY_HEAD_BYTES


def learned(*entries: int, received: int = MiB, read_ahead: int = 64 * MiB, limit: int = 16 * MiB) -> QuotaShare:
    """Return the share of a partition that was read before, and each of whose responses ended in one of these entries
    (bytes; 0: with one)."""
    budget = ReadAheadBudget(ReadAheadLimits(read_ahead, limit))
    budget.partitions = 1
    share = QuotaShare()
    share.assign(budget)
    share.observe_expansion(MiB, MiB)
    for entry in entries:
        share.received(received, received, entry)
    return share


@pytest.mark.parametrize(
    ("entries", "wanted"),
    [
        ((), MiB),
        ((0,), MiB),
        ((960 * KiB,), 2 * 960 * KiB + HEAD),
        ((256 * KiB,), 4 * 256 * KiB + HEAD),
        ((400_000,), 3 * 400_000 + HEAD),
        ((1000,), 1049 * 1000 + HEAD),
        ((3 * MiB,), 3 * MiB + HEAD),
        ((900_000, 100_000), 100_000 + 900_000 + 900_000 + HEAD),
        ((900_000, 100_000, 0), MiB),
        ((900_000, 1000, 1000, 1000, 1000), 1049 * 1000 + HEAD),
    ],
)
def test_it_requests_whole_entries(entries: tuple[int, ...], wanted: int) -> None:
    """At least what is usual, and the head of the next one: sizes are those of the latest four."""
    assert learned(*entries).wanted_bytes(0) == wanted


def test_it_requests_no_more_entries_than_there_is_memory_for() -> None:
    """An entry that is larger than its share is requested as before anything was known."""
    share = learned(300_000, read_ahead=MiB)
    assert share.wanted_bytes(0) == 900_000 + HEAD
    assert share.wanted_bytes(500_000) == 300_000 + HEAD
    share = learned(960 * KiB, read_ahead=MiB)
    assert share.wanted_bytes(400_000) == MiB - 400_000
    assert learned(600_000, limit=MiB).wanted_bytes(0) == 600_000 + HEAD
    assert learned(MiB - 1, limit=MiB).wanted_bytes(0) == MiB


def test_what_is_left_of_a_log_is_no_reason_to_request_more() -> None:
    share = learned(300_000)
    share.received(100_000, MiB)
    assert share.wanted_bytes(0) == 200_000


def test_sizes_are_forgotten_when_it_is_read_from_elsewhere() -> None:
    share = learned(960 * KiB)
    share.forget_fetches()
    share.observe_expansion(MiB, MiB)
    assert share.wanted_bytes(0) == MiB
