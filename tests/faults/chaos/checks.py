"""What must hold when all is over: the logs, as librdkafka reads them, against the journals of the workers.

A record takes a byte or two here, so that an hour of records fits into some megabytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .journal import CONFIRMED, NOT_WRITTEN, REPEATED, UNKNOWN, read
from .produce import record_name
from .transform import source_of

__all__ = ["GroupResult", "Journals", "ProducedResult", "StoredRecord", "TransactionsResult", "check_group"]
__all__ += ["check_outputs", "check_produced", "events"]

StoredRecord = tuple[int, int, bytes]
"""Partition, position and value of a record in the log."""
Journals = Mapping[str, Path]
"""Name of a worker -> its journal."""

EXAMPLES = 5
"""Examples of each kind of problem that a result names."""
MANY = 255


class _Marks:
    """A small number for each of 0, 1, 2...: 0 until it is set."""

    def __init__(self) -> None:
        self._marks = bytearray()

    def __getitem__(self, number: int) -> int:
        return self._marks[number] if number < len(self._marks) else 0

    def __setitem__(self, number: int, mark: int) -> None:
        if number >= len(self._marks):
            self._marks.extend(bytes(number + 1 - len(self._marks)))
        self._marks[number] = mark

    def __len__(self) -> int:
        return len(self._marks)

    def add(self, first: int, last: int) -> None:
        """Add one to each from the first to the last."""
        for number in range(first, last + 1):
            self[number] = min(self[number] + 1, MANY)


@dataclass
class _Result:
    """Counts of one check, and examples of what is wrong."""

    problems: list[str] = field(default_factory=list)

    def example(self, kind: str, text: object) -> None:
        if sum(problem.startswith(kind) for problem in self.problems) < EXAMPLES:
            self.problems.append(f"{kind}: {text}")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


# ---- what was produced ----------------------------------------------------------------------------------------


@dataclass
class ProducedResult(_Result):
    """The log of a topic against the outcomes of its records. `doubled`: confirmed once, in the log more often."""

    confirmed: int = 0
    repeated: int = 0
    unknown: int = 0
    not_written: int = 0
    in_log: int = 0
    lost: int = 0
    doubled: int = 0
    allowed_copies: int = 0
    out_of_order: int = 0
    written_all_the_same: int = 0


def check_produced(journals: Journals, log: Iterable[StoredRecord], *, idempotent: bool) -> ProducedResult:
    """Check that no confirmed record is lost, and that none is there twice or out of order.

    Without an idempotent producer, copies are allowed of records whose outcome was unknown for a time, and those may
    come late.
    """
    result = ProducedResult()
    outcomes = _outcomes(journals)
    copies: defaultdict[int, _Marks] = defaultdict(_Marks)
    last: dict[tuple[int, int], int] = {}
    for partition, position, value in log:
        sender, number = record_name(value)
        result.in_log += 1
        first = not copies[sender][number]
        copies[sender].add(number, number)
        late = first and number < last.get((sender, partition), -1)
        last[sender, partition] = max(number, last.get((sender, partition), -1))
        if late and (idempotent or outcomes[sender][number] == CONFIRMED):
            result.out_of_order += 1
            result.example("out of order", f"{sender}|{number} at {partition}@{position}")
    for sender in outcomes.keys() | copies.keys():
        _check_sender(sender, outcomes[sender], copies[sender], idempotent, result)
    return result


def _outcomes(journals: Journals) -> defaultdict[int, _Marks]:
    """Return sender -> the outcome of each record."""
    outcomes: defaultdict[int, _Marks] = defaultdict(_Marks)
    for line in events(journals, "sent"):
        sender, first, size, outcome = map(int, line)
        for number in range(first, first + size):
            outcomes[sender][number] = outcome
    return outcomes


def _check_sender(sender: int, outcomes: _Marks, copies: _Marks, idempotent: bool, result: ProducedResult) -> None:
    for number in range(max(len(outcomes), len(copies))):
        outcome, written = outcomes[number], copies[number]
        result.confirmed += outcome in (CONFIRMED, REPEATED)
        result.repeated += outcome == REPEATED
        result.unknown += outcome == UNKNOWN
        result.not_written += outcome == NOT_WRITTEN
        if outcome in (CONFIRMED, REPEATED) and not written:
            result.lost += 1
            result.example("lost", f"{sender}|{number}")
        if outcome == NOT_WRITTEN and written:
            result.written_all_the_same += 1
            result.example("written, though said to be not written", f"{sender}|{number}")
        if written > 1 and (idempotent or outcome == CONFIRMED):
            result.doubled += 1
            result.example("doubled", f"{sender}|{number} {written} times")
        elif written > 1:
            result.allowed_copies += written - 1


# ---- what groups were given -----------------------------------------------------------------------------------


@dataclass
class GroupResult(_Result):
    """Deliveries to all members of a group. `moved_back`: commits that were confirmed behind an earlier one."""

    members: int = 0
    delivered: int = 0
    delivered_again: int = 0
    skipped: int = 0
    moved_back: int = 0
    rebalances: int = 0
    ended: dict[str, int] = field(default_factory=dict)


def check_group(journals: Journals, ends: Mapping[int, int]) -> GroupResult:
    """Check that every record was delivered to a member, and that the positions of the group never went back.

    Args:
        ends: Partition -> the end of its log, which has no holes.
    """
    result = GroupResult(members=len(journals))
    delivered = {partition: _Marks() for partition in ends}
    for line in events(journals, "delivered"):
        partition, first, last = map(int, line)
        delivered[partition].add(first, last)
        result.delivered += last + 1 - first
    for partition, end in ends.items():
        skipped = [position for position in range(end) if not delivered[partition][position]]
        result.skipped += len(skipped)
        for first, last in _spans(skipped):
            result.example("skipped", f"{partition}@{first}..{last}: {_around(journals, partition, first, last)}")
    result.delivered_again = result.delivered - sum(ends.values()) + result.skipped
    result.rebalances = sum(1 for _ in events(journals, "assigned"))
    result.ended = ended(journals)
    _check_commits(journals, result)
    return result


def _spans(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    first = 0
    for at in range(1, len(numbers) + 1):
        if at == len(numbers) or numbers[at] != numbers[at - 1] + 1:
            yield numbers[first], numbers[at - 1]
            first = at


def _around(journals: Journals, partition: int, first: int, last: int) -> str:
    """Return which members got the records before and after a span."""
    before, after = set(), set()
    for name, path in journals.items():
        for line in events({name: path}, "delivered"):
            where, start, end = map(int, line)
            if where == partition and start <= first - 1 <= end:
                before.add(name)
            if where == partition and start <= last + 1 <= end:
                after.add(name)
    return f"before it {sorted(before)}, after it {sorted(after)}"


def _check_commits(journals: Journals, result: GroupResult) -> None:
    """Find commits of a position behind one that was confirmed before this one was requested.

    Brokers refuse commits of members that lost their partition, so its owner has read on from an older position. Where
    another client's member moved it back, that is where the group continues.
    """
    commits = [
        (float(line[1]), float(line[0]), name, int(line[2]), int(line[3]))
        for name, path in journals.items()
        for line in events({name: path}, "stored")
    ]
    stored: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
    for confirmed, requested, name, partition, position in sorted(commits):
        known = stored[partition]
        before = known[at - 1][1] if (at := bisect_left(known, (requested, 0))) else 0
        newest = known[-1][1] if known else 0
        if position < before:
            result.moved_back += 1
            result.example("moved back", f"partition {partition} from {before} to {position} by {name}")
        known.append((confirmed, position if position < before else max(newest, position)))


# ---- what transactions wrote ----------------------------------------------------------------------------------


@dataclass
class TransactionsResult(_Result):
    """Outputs, as readers of committed records see them, against inputs."""

    committed: int = 0
    aborted: int = 0
    refused: int = 0
    inputs: int = 0
    outputs: int = 0
    missing: int = 0
    doubled: int = 0
    out_of_order: int = 0
    ended: dict[str, int] = field(default_factory=dict)


def check_outputs(journals: Journals, log: Iterable[StoredRecord], ends: Mapping[int, int]) -> TransactionsResult:
    """Check that each input has one output, and that those of a partition are in its order."""
    result = TransactionsResult(inputs=sum(ends.values()), ended=ended(journals))
    for kind in ("committed", "aborted", "refused"):
        setattr(result, kind, sum(1 for _ in events(journals, kind)))
    seen = {partition: _Marks() for partition in ends}
    last: dict[int, int] = {}
    for _, position, value in log:
        source, number = source_of(value)
        result.outputs += 1
        if seen[source][number]:
            result.doubled += 1
            result.example("doubled", f"of {source}@{number}, at {position}")
        elif number < last.get(source, -1):
            result.out_of_order += 1
            result.example("out of order", f"of {source}@{number}, at {position}")
        seen[source].add(number, number)
        last[source] = max(number, last.get(source, -1))
    for partition, end in ends.items():
        missing = [number for number in range(end) if not seen[partition][number]]
        result.missing += len(missing)
        for first, last_missing in _spans(missing):
            result.example("missing", f"of {partition}@{first}..{last_missing}")
    return result


# ---- journals -------------------------------------------------------------------------------------------------


def events(journals: Journals, kind: str) -> Iterator[list[str]]:
    """Yield the fields of every line of a kind."""
    for path in journals.values():
        for line in read(path):
            if line[0] == kind:
                yield line[1:]


def ended(journals: Journals) -> dict[str, int]:
    """Return how often workers ended by an error, by the beginning of its text."""
    return dict(Counter(" ".join(line)[:100] for line in events(journals, "ended")))
