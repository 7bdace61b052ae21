"""Prove that a table is complete: read the log again and compare.

For each checked batch it proves: the rows of the table and the dead letters, plus skipped messages and recorded gaps,
are exactly the messages that the log has in the batch's ranges. Rows are compared by position, index and, if the table
keeps it, the hash of the payload: Python's own of bytes (SipHash, 64 bits) with the random key of this process. For
decoded columns it proves that each message has its row, not that it was decoded correctly.

The log is read in order. Whenever `MAX_ROWS` of its messages are in memory, they are compared with the rows that the
table has of the same parts of the logs: about 50 bytes for each message, and what the table's format needs to read.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, chain, zip_longest
from typing import Any

import pyarrow as pa
import pyarrow.compute

from odradek._arrays import binaries
from odradek.core.interfaces import Extent
from odradek.errors import ConfigError
from odradek.pipeline.commits import Commit, to_positions
from odradek.pipeline.committed import IDENTITY, KINDS, CommittedTable, by_log, constant, parted
from odradek.pipeline.config import Pipeline
from odradek.pipeline.source import LogReader
from odradek.ranges.planning import Range
from odradek.types import Columns, TopicPartition

__all__ = ["Finding", "VerifyResult", "verify"]

pc: Any = pyarrow.compute

MAX_ROWS = 1 << 20
"""Messages of the log that are compared at a time."""

MAX_EXAMPLES = 5
"""Maximum number of rows that a finding names."""

COUNTS = ("log", "corrupt", "rows", "dead")
"""Counts of a row: in the log, among its corrupt messages, in the table, and in the dead letters."""

SUMS = (*COUNTS, "hash")
"""Sums of a row. The hashes of its payloads cancel out if the log and the table have the same."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be.

    The kinds are `record`: the records of batches do not fit together; `log`: not the log that the table was made from;
    `missing`, `extra` and `different` rows; `skipped`: corrupt messages that were left out where the record has no gap;
    `dead`: their number is not that of the records.
    """

    kind: str
    where: str  # the log, or the batches
    what: str
    rows: int | None = None  # number of affected rows, where it is known


@dataclass(slots=True)
class VerifyResult:
    """The result of `verify` for one table. Sizes of log are in `unit`."""

    flow: str
    batches: int  # compared with the log
    of: int  # number of all batches
    unit: str  # `bytes`, or `records` of 0.8 and later
    gaps: int  # size of log in the recorded gaps
    compared: str  # parts of a row: `position, payload`, or `position` if the table does not keep the payload
    findings: list[Finding]  # everything that is wrong; the table is complete if there are none
    ranges: int = 0  # ranges of logs that were read again
    size: int = 0  # of log in them
    rows: int = 0  # in the table
    dead: int = 0  # rows in the dead letters
    skipped: int = 0  # corrupt messages of the log that are in neither
    expired: int = 0  # size of log that retention has deleted since, or that is gone with its topic: it is not compared
    compacted: int = 0  # rows whose records compaction has removed from the log since: a later one has the same key
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.findings

    def as_dict(self) -> dict[str, Any]:
        """Return the result as an object for JSON."""
        return {"ok": self.ok, **asdict(self)}


def verify(
    pipeline: Pipeline,
    table: CommittedTable,
    chosen: Sequence[Commit] | None = None,
    advance: Callable[[int], None] = lambda size: None,
) -> VerifyResult:
    """Check the records of a table's batches, and the rows of the chosen ones (None: all) against the log.

    `advance` is called with the size of log that was read, in the pipeline's unit, from time to time.

    Raises:
        OdradekError: The log cannot be read.
        OSError: A file of the table cannot be read.
    """
    if table.table.options.merge is not None:
        raise ConfigError(f"flow {table.name}: its table keeps the last rows, or one of each id: the log has more")
    begun = time.monotonic()
    compared = table.batches if chosen is None else chosen
    result = VerifyResult(
        table.name, len(compared), len(table.batches), pipeline.unit,
        gaps=sum(gap.size for commit in compared for gap in commit.gap_ranges()),
        compared="position, payload" if table.keeps_payload else "position",
        findings=list(_of_records(table.commits)),
    )  # fmt: skip
    if partitions := {part.partition for commit in compared for part in commit.ranges()}:
        skips_loss = pipeline.flows[table.name].data_loss == "skip"
        _Comparison(table, compared, result, advance, skips_loss=skips_loss).run(LogReader(pipeline, partitions))
    result.seconds = time.monotonic() - begun
    return result


def _of_records(commits: Sequence[Commit]) -> Iterator[Finding]:
    """Yield findings where a batch does not begin where the one before it has ended, unless the log was made again."""
    reached: dict[TopicPartition, int] = {}
    for commit in commits:
        remade = {(gap.topic, gap.partition, gap.start) for gap in commit.gaps if gap.size <= 0}  # another log since
        for partition, start in to_positions(commit.start).items():
            before = reached.get(partition, start)
            if start != before and (partition.topic, partition.name, before) not in remade:
                what = f"batch {commit.batch} does not start where the last one ended"
                yield Finding("record", f"{partition} [{before}, {start})", what)
        reached = {each: at for each, at in reached.items() if (each.topic, each.name, at) not in remade}
        reached.update(to_positions(commit.end))


def _of_former_logs(commits: Sequence[Commit]) -> list[Range]:
    """Return the ranges that were read of logs which were made again before the newest batch, in canonical order.

    Where topics have no ids, a log that has begun again counts as one. Records of earlier versions have none either:
    they are of the topics that the next record with ids names.
    """
    newest, ids = commits[-1].topic_ids, dict[str, str]()
    former: list[Range] = []
    again: set[tuple[str, str]] = set()
    for commit in reversed(commits):
        ids.update(commit.topic_ids)
        others = {topic for topic, known in ids.items() if newest.get(topic, known) != known}
        former += (
            part for part in commit.ranges()
            if part.partition.topic in others or (part.partition.topic, part.partition.name) in again
        )  # fmt: skip
        again |= {
            (gap.topic, gap.partition) for gap in commit.gaps if gap.size <= 0 and gap.topic not in commit.topic_ids
        }
    return sorted(former)


_NO_LOG = "no live broker, and no directory, has this log"
_OTHER_LOG = "the topic was deleted and made again: the table was made from another log"


class _Comparison:
    """A comparison of the log with some batches of a table. Used once."""

    def __init__(
        self,
        table: CommittedTable,
        chosen: Sequence[Commit],
        result: VerifyResult,
        advance: Callable[[int], None],
        *,
        skips_loss: bool,
    ) -> None:
        self._table, self._chosen, self._result, self._advance = table, chosen, result, advance
        self._skips_loss = skips_loss
        self._value = ("value",) if table.keeps_payload else ()
        self._messages: list[pa.Table] = []
        self._waiting = 0
        self._compared: dict[TopicPartition, int] = {}
        self._last: dict[TopicPartition, int] = {}
        self._compacted: Any  # topics, as an array

    def run(self, logs: LogReader) -> None:
        """Compare. Raises OdradekError when the log cannot be read, OSError when a file cannot."""
        groups = _groups(self._clip_to_logs(logs.extents(), missing_is_deleted=logs.missing_is_deleted))
        topics = {part.partition.topic for part in chain(*groups)}
        self._compacted = pa.array(sorted(logs.compacted(topics)), pa.string())
        self._result.ranges, self._result.size = sum(map(len, groups)), sum(part.size for part in chain(*groups))
        for group in groups:
            self._compared = {part.partition: part.start for part in group}
            for partition, columns in logs.read(group):
                self._take(partition, columns)
            self._compare({part.partition: part.end for part in group})
        if len(self._chosen) == len(self._table.batches):
            self._find_unread()
        self._count_dead()

    def _clip_to_logs(self, extents: Mapping[TopicPartition, Extent], *, missing_is_deleted: bool) -> Iterator[Range]:
        """Yield the parts of the ranges that the log still has. A missing end is a finding; a beginning has expired,
        and so has what was read of a log that was made again: its rows are not told from later ones. A flow that goes
        on behind lost data has lost nothing of a topic that was deleted."""
        short: dict[TopicPartition, str] = {}
        newest, former = self._table.commits[-1].topic_ids, _of_former_logs(self._table.commits)
        for commit in self._chosen:
            gaps = commit.gap_ranges()
            ranges = [part for whole in commit.ranges() for part in _without(whole, former)]
            self._result.expired += commit.log_size - sum(part.size for part in ranges)
            for part in ranges:
                extent = extents.get(part.partition)
                topic = part.partition.topic
                is_other = extent is not None and extent.topic_id not in ("", newest.get(topic, extent.topic_id))
                if extent is None or is_other:
                    if self._skips_loss and (is_other or missing_is_deleted):
                        self._result.expired += part.size
                    else:
                        short[part.partition] = _OTHER_LOG if is_other else _NO_LOG
                    continue
                for lost in _without(part, sorted([*gaps, Range(part.partition, extent.earliest, extent.latest)])):
                    if lost.start < extent.earliest:
                        self._result.expired += lost.size
                    else:
                        short[part.partition] = f"it ends at {extent.latest}, and the table has read up to {part.end}"
                start, end = max(part.start, extent.earliest), min(part.end, extent.latest)
                if start < end:
                    yield part._replace(start=start, end=end)
        self._result.findings += (Finding("log", str(partition), what) for partition, what in short.items())

    def _take(self, partition: TopicPartition, columns: Columns) -> None:
        self._messages.append(_of_log(partition, columns, payload=bool(self._value)))
        self._waiting += len(columns.values)
        self._last[partition] = columns.positions[-1]  # of which more messages of a wrapper may follow
        if self._waiting >= MAX_ROWS:
            self._compare(self._last)
        self._advance(columns.next_positions[-1] - columns.positions[0])

    def _compare(self, ends: Mapping[TopicPartition, int]) -> None:
        """Compare the messages of the log in memory, up to these positions, with what the table has there."""
        parts = [Range(partition, self._compared[partition], end) for partition, end in ends.items()]
        messages, rest = parted(pa.concat_tables([*self._messages, _NOTHING]), parts)
        table = (_counted(rows, "rows") for rows in self._table.rows(parts, self._value))
        letters = (_counted(rows, "dead") for rows in self._table.rows(parts, self._value, dead=True))
        everything = pa.concat_tables([messages, *table, *letters])
        sums = everything.group_by(list(IDENTITY), use_threads=False).aggregate([(name, "sum") for name in SUMS])
        self._result.rows += pc.sum(sums["rows_sum"]).as_py() or 0
        self._result.dead += pc.sum(sums["dead_sum"]).as_py() or 0
        more = pc.subtract(pc.add(sums["rows_sum"], sums["dead_sum"]), sums["log_sum"])
        self._see(sums.append_column("more", more).filter((pc.field("more") != 0) | (pc.field("hash_sum") != 0)))
        self._messages, self._waiting, self._last = [rest], 0, {}
        self._compared.update(ends)

    # ---- findings ----

    def _see(self, wrong: pa.Table) -> None:
        """Sort rows that the table has more or less often than the log, or with another payload, into findings. Records
        that a compacted topic does not have any more were removed since: a later record has the same key."""
        more, in_log, corrupt = pc.field("more"), pc.field("log_sum") > 0, pc.field("corrupt_sum") > 0
        self._leave_out(wrong.filter((more < 0) & corrupt))
        self._find("missing", "of the log are not in the table", wrong.filter((more < 0) & ~corrupt))
        self._find("extra", "are in the table more than once", wrong.filter((more > 0) & in_log))
        absent = wrong.filter((more > 0) & ~in_log)
        removed = pc.and_(pc.is_in(absent["topic"], self._compacted), pc.equal(absent["more"], 1))
        self._result.compacted += pc.sum(removed).as_py() or 0
        self._find("extra", "are not in the log", absent.filter(pc.invert(removed)))
        self._find("different", "have another payload than in the log", wrong.filter(more == 0))

    def _leave_out(self, corrupt: pa.Table) -> None:
        """Count corrupt messages that are neither in the table nor among the dead letters: the record needs a gap."""
        self._result.skipped += corrupt.num_rows
        gaps = _groups(gap for commit in self._chosen for gap in commit.gap_ranges())
        what = "are corrupt messages, neither in the table nor dead letters, and the record has no gap here"
        self._find("skipped", what, _outside(corrupt, gaps))

    def _find(self, kind: str, what: str, rows: pa.Table) -> None:
        """Add a finding for each log of these rows."""
        for partition, mine in by_log(rows):
            count = pc.sum(pc.max_element_wise(pc.abs(mine["more"]), 1)).as_py()
            examples = [f"{row['offset']}:{row['index']}" for row in mine.slice(0, MAX_EXAMPLES).to_pylist()]
            named = ", ".join(examples) + (", ..." if mine.num_rows > MAX_EXAMPLES else "")
            batch = self._batch(partition, mine["offset"][0].as_py())
            text = f"{count} rows of batch {batch} {what}: at {named} (position:index)"
            self._result.findings.append(Finding(kind, str(partition), text, count))

    def _batch(self, partition: TopicPartition, position: int) -> int:
        """Return the batch that has read a position."""
        here = Range(partition, position, position + 1)
        return next((commit.batch for commit in self._chosen if not _without(here, commit.ranges())), 0)

    def _find_unread(self) -> None:
        """Add findings for rows outside of all ranges that were read."""
        known = _groups(part for commit in self._table.commits for part in commit.ranges())
        oldest = self._table.commits[0]
        if oldest.batch > 1:  # what is before it was read by batches that the log of the table has forgotten
            begins = {**to_positions(oldest.end), **to_positions(oldest.start)}
            known.append([Range(partition, 0, start) for partition, start in begins.items()])
        for rows in chain(self._table.rows(None), self._table.rows(None, dead=True)):
            for partition, unread in by_log(_outside(rows, known)):
                what = f"{unread.num_rows} rows that no batch has read"
                self._result.findings.append(Finding("extra", str(partition), what, unread.num_rows))

    def _count_dead(self) -> None:
        """Compare the number of dead letters with that of the records, if nothing else is wrong."""
        expected = sum(commit.dead for commit in self._chosen)
        if self._result.dead != expected and not (self._result.findings or self._result.expired):
            where = f"batches {self._chosen[0].batch} to {self._chosen[-1].batch}"
            what = f"{self._result.dead} dead letters; the records say {expected}"
            self._result.findings.append(Finding("dead", where, what, abs(self._result.dead - expected)))


def _without(whole: Range, gaps: Iterable[Range]) -> list[Range]:
    """Return a range without some gaps, which are in canonical order."""
    inside = [gap for gap in gaps if gap.partition == whole.partition and gap.start < whole.end]
    starts = accumulate([whole.start, *(gap.end for gap in inside)], max)
    ends = [*(gap.start for gap in inside), whole.end]
    left = (whole._replace(start=start, end=end) for start, end in zip(starts, ends, strict=True))
    return [part for part in left if part.start < part.end]


def _groups(ranges: Iterable[Range]) -> list[list[Range]]:
    """Return ranges, adjacent ones merged, in groups that have at most one of each log."""
    logs: dict[TopicPartition, list[Range]] = defaultdict(list)
    for part in sorted(ranges):
        mine = logs[part.partition]
        if mine and part.start <= mine[-1].end:
            mine[-1] = mine[-1]._replace(end=max(mine[-1].end, part.end))
        else:
            mine.append(part)
    return [list(filter(None, group)) for group in zip_longest(*logs.values())]


# ---- rows ----------------------------------------------------------------------------------------------------


def _outside(rows: pa.Table, groups: Iterable[Sequence[Range]]) -> pa.Table:
    """Return the rows that are in none of these ranges."""
    for ranges in groups:
        if rows.num_rows:
            _, rows = parted(rows, ranges)
    return rows


def _of_log(partition: TopicPartition, columns: Columns, *, payload: bool) -> pa.Table:
    """Return messages of a decoder, counted."""
    rows = len(columns.values)
    arrays = {name: constant(value, KINDS[name], rows) for name, value in partition._asdict().items()}
    arrays |= {"offset": pa.array(columns.positions, pa.int64()), "index": columns.inner_indexes or [0] * rows}
    if payload:
        arrays["value"] = binaries(columns.values)
    messages = _counted(pa.table(arrays), "log")
    corrupt: Any = pa.array([row in columns.corrupt for row in range(rows)] if columns.corrupt else [False] * rows)
    return messages.set_column(messages.schema.get_field_index("corrupt"), "corrupt", corrupt.cast(pa.int8()))


def _counted(rows: pa.Table, where: str) -> pa.Table:
    """Return what identifies rows, one of `COUNTS` that is 1, and the hash of the payload, in the log negated."""
    hashes = constant(0, pa.int64(), rows.num_rows)
    if "value" in rows.schema.names:
        hashes = pa.array(list(map(hash, rows["value"].to_pylist())), pa.int64())
    counts = {name: constant(int(name == where), pa.int8(), rows.num_rows) for name in COUNTS}
    identity = {name: rows[name].cast(KINDS[name]) for name in IDENTITY}
    return pa.table({**identity, **counts, "hash": pc.negate(hashes) if where == "log" else hashes})


_NOTHING = pa.schema({**KINDS, **dict.fromkeys(COUNTS, pa.int8()), "hash": pa.int64()}).empty_table()
