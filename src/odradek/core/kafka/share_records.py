"""Records that a member of a share group has acquired, and its acknowledgements of them (KIP-932).

The broker locks each delivered record for a time, the acquisition lock. The member accepts the record (it is done),
releases it (for another delivery), rejects it (it is never delivered again) or renews the lock. If the lock expires
first, the broker delivers the record again, perhaps to another member.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from odradek.core.interfaces import AckType
from odradek.errors import OdradekError, RemoteProtocolError
from odradek.types import Columns, Position, TopicPartition
from odradek.wire.decoding import DecodingOptions
from odradek.wire.kafka.messages.share_groups import AcknowledgementBatch, AcquiredRecords
from odradek.wire.kafka.records.decoder import RecordDecoder

__all__ = ["AcquiredPartition", "AcquiredRows", "RecordState", "decode_acquired"]

MAX_ACQUIRED = 1 << 20
"""Acquired records of one partition; brokers lock at most group.share.partition.max.record.locks, 2000 by default."""


class RecordState(Enum):
    """States of an acquired record."""

    ACQUIRED = "acquired, without an acknowledgement"
    WAITING = "acknowledgement not sent yet"
    SENT = "acknowledgement sent, without a response yet"


@dataclass(slots=True)
class _Acquired:
    acquisition: int
    locked_until: float
    state: RecordState = RecordState.ACQUIRED
    acknowledgement: AckType = AckType.GAP
    after_renewal: AckType | None = None  # to be sent once the renewal that was sent is answered

    @property
    def is_unsent(self) -> bool:
        """True if an acknowledgement of a record is to be sent."""
        return self.state is RecordState.WAITING and self.acknowledgement is not AckType.GAP


@dataclass(frozen=True, slots=True)
class AcquiredRows:
    """Records of one partition that were acquired together.

    Args:
        columns: The records, in order.
        delivery_counts: How often each was delivered, this time included.
        error: The reason why the records after these could not be decoded.
        is_whole: False: there may be records after these.
    """

    columns: Columns
    delivery_counts: Sequence[int]
    error: OdradekError | None
    is_whole: bool


def decode_acquired(
    partition: TopicPartition, data: memoryview, ranges: Sequence[AcquiredRecords], options: DecodingOptions
) -> AcquiredRows:
    """Return the acquired records of a response. A response has whole batches: other records of these are left out.

    Args:
        partition: For errors.
        data: Record batches.
        ranges: First and last offset of what was acquired, and how often that was delivered.
        options: Limits of decoding (bytes).

    Raises:
        RemoteProtocolError: See `check_ranges`.
    """
    check_ranges(ranges)
    decoder = RecordDecoder(partition, Position(ranges[0].first_offset), options)
    decoder.start_response()
    decoder.feed(data)
    is_whole = decoder.error is None and not decoder.is_full
    columns = decoder.take()
    counts: list[int] = []
    rows: list[int] = []
    following = iter(ranges)
    current = next(following)
    for row, offset in enumerate(columns.positions):
        while offset > current.last_offset and (later := next(following, None)) is not None:
            current = later
        if current.first_offset <= offset <= current.last_offset:
            rows.append(row)
            counts.append(current.delivery_count)
    return AcquiredRows(columns if len(rows) == len(columns) else columns.pick(rows), counts, decoder.error, is_whole)


def check_ranges(ranges: Iterable[AcquiredRecords], held: int = 0) -> None:
    """Check the acquired ranges of one partition.

    Args:
        ranges: Of a response.
        held: Records that are acquired already.

    Raises:
        RemoteProtocolError: A range ends before it begins, ranges are not in order, or there would be more than
            `MAX_ACQUIRED` records: more than any broker locks.
    """
    last = -1
    for acquired in ranges:
        held += acquired.last_offset - acquired.first_offset + 1
        if not last < acquired.first_offset <= acquired.last_offset or held > MAX_ACQUIRED:
            raise RemoteProtocolError(
                f"acquired records {acquired.first_offset} to {acquired.last_offset}: the range is empty or out of "
                f"order, or the partition would have more than {MAX_ACQUIRED} acquired records"
            )
        last = acquired.last_offset


@dataclass(slots=True)
class AcquiredPartition:
    """The acquired records of one partition, until the broker has taken their acknowledgements."""

    _records: dict[int, _Acquired] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._records)

    def acquire(
        self, ranges: Sequence[AcquiredRecords], rows: AcquiredRows, locked_until: float, acquisition: int = 0
    ) -> int:
        """Add the acquired ranges of a response.

        Offsets without a record (compacted away, or control records) are acknowledged as gaps. Those behind an error of
        decoding, or behind all that may be decompressed at once, are released, because their records are not known.

        Args:
            ranges: As the broker sent them.
            rows: The records among them.
            locked_until: When the lock expires (s).
            acquisition: Tells one delivery of a record from the next one.

        Returns:
            How many acknowledgements of an earlier delivery had yet to be sent: the locks had expired before.

        Raises:
            RemoteProtocolError: See `check_ranges`. Nothing was added.
        """
        check_ranges(ranges, len(self._records))
        late = 0
        exists = set(rows.columns.positions)
        behind = max(exists, default=-1)
        for acquired in ranges:
            for offset in range(acquired.first_offset, acquired.last_offset + 1):
                late += (before := self._records.get(offset)) is not None and before.is_unsent
                record = self._records[offset] = _Acquired(acquisition, locked_until)
                if offset not in exists:
                    undecoded = not rows.is_whole and offset > behind
                    record.state = RecordState.WAITING
                    record.acknowledgement = AckType.RELEASE if undecoded else AckType.GAP
        return late

    def acknowledge(self, offset: int, kind: AckType, acquisition: int = 0) -> bool:
        """Acknowledge a record; until it is sent, a later acknowledgement replaces an earlier one. One that comes while
        a renewal is in flight is sent after the answer to that.

        Returns:
            False: the record is not acquired any more, or was acquired again since then, or its acknowledgement has
                been sent.
        """
        record = self._records.get(offset)
        if record is None or record.acquisition != acquisition:
            return False
        if record.state is not RecordState.SENT:
            record.state, record.acknowledgement = RecordState.WAITING, kind
        elif record.acknowledgement is AckType.RENEW:
            record.after_renewal = kind
        else:
            return False
        return True

    @property
    def has_waiting(self) -> bool:
        """True if an acknowledgement is to be sent."""
        return any(record.state is RecordState.WAITING for record in self._records.values())

    @property
    def renews(self) -> bool:
        """True if one of those to be sent renews a lock."""
        return any(
            record.state is RecordState.WAITING and record.acknowledgement is AckType.RENEW
            for record in self._records.values()
        )

    @property
    def has_unanswered(self) -> bool:
        """True if an acknowledgement is to be sent, or was sent and has no response yet."""
        return any(record.state is not RecordState.ACQUIRED for record in self._records.values())

    def pop_batches(self) -> tuple[AcknowledgementBatch, ...]:
        """Return the acknowledgements to send, as runs of offsets, and mark them as sent.

        A run has one type for all its records, or else one type for each.
        """
        waiting = sorted(offset for offset, record in self._records.items() if record.state is RecordState.WAITING)
        runs: list[list[int]] = []
        for offset in waiting:
            if runs and runs[-1][-1] == offset - 1:
                runs[-1].append(offset)
            else:
                runs.append([offset])
            self._records[offset].state = RecordState.SENT
        return tuple(self._batch(run) for run in runs)

    def _batch(self, run: list[int]) -> AcknowledgementBatch:
        types = tuple(int(self._records[offset].acknowledgement) for offset in run)
        if len(set(types)) == 1:
            types = types[:1]
        return AcknowledgementBatch(first_offset=run[0], last_offset=run[-1], acknowledge_types=types)

    def answered(self, code: int, locked_until: float) -> int:
        """Apply the response to the acknowledgements sent.

        Args:
            code: The acknowledgement error of the partition.
            locked_until: When a lock that was renewed expires (s).

        Returns:
            How many acknowledgements the broker refused: it delivers those records again. Gaps do not count.
        """
        refused = 0
        for offset, record in [item for item in self._records.items() if item[1].state is RecordState.SENT]:
            if not code and record.acknowledgement is AckType.RENEW:
                record.state, record.locked_until = RecordState.ACQUIRED, locked_until
                if record.after_renewal is not None:
                    self.acknowledge(offset, record.after_renewal, record.acquisition)
                    record.after_renewal = None
            else:
                refused += bool(code) and record.acknowledgement is not AckType.GAP
                del self._records[offset]
        return refused

    def expire(self, now: float) -> int:
        """Drop the records whose lock has expired, unless their acknowledgement is in flight. Return how many of them
        had an acknowledgement that was not sent."""
        expired = [o for o, r in self._records.items() if r.locked_until <= now and r.state is not RecordState.SENT]
        unsent = [self._records.pop(offset) for offset in expired]
        return sum(record.is_unsent for record in unsent)
