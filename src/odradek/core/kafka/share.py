"""Records that a member of a share group has acquired, and its acknowledgements of them (KIP-932).

The broker locks each delivered record for a time, the acquisition lock. The member accepts the record (it is done),
releases it (for another delivery), rejects it (never deliver it again) or renews the lock. The acknowledgement is
part of the next ShareFetch or of a ShareAcknowledge. If the lock expires first, the broker delivers the record again,
perhaps to another member.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from odradek.core.states import Machine
from odradek.errors import LocalProtocolError, RemoteProtocolError
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.share_groups import AcknowledgementBatch, AcquiredRecords

__all__ = [
    "SHARE_SESSION",
    "AckType",
    "Acknowledgements",
    "RecordState",
    "ShareSession",
    "ShareSessionEvent",
    "ShareSessionState",
]


MAX_ACQUIRED = 1 << 20  # per partition; brokers lock at most group.share.partition.max.record.locks, 2000 by default


class AckType(IntEnum):
    """Acknowledgement types, with their wire values."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class RecordState(Enum):
    """States of an acquired record."""

    ACQUIRED = "acquired, without an acknowledgement"
    WAITING = "acknowledgement not sent yet"
    SENT = "acknowledgement sent, without a response yet"


@dataclass(slots=True)
class _Acquired:
    delivery_count: int
    locked_until: float
    state: RecordState = RecordState.ACQUIRED
    acknowledgement: AckType | None = None


@dataclass(slots=True)
class Acknowledgements:
    """The acquired records of one partition.

    Args:
        lock_timeout_s: How long the broker locks a record, from the response that delivers it or renews its lock (s).
    """

    lock_timeout_s: float
    _records: dict[int, _Acquired] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._records)

    def acquire(self, ranges: Iterable[AcquiredRecords], present: Iterable[int], now: float) -> list[int]:
        """Add the acquired ranges of a response.

        Args:
            ranges: First and last offset, and how often their records were delivered, this time included.
            present: The offsets that have a record; the other ones of the ranges are acknowledged as gaps.
            now: The time of the response (s).

        Returns:
            The offsets to deliver, in order.

        Raises:
            RemoteProtocolError: A range ends before it begins, or more than `MAX_ACQUIRED` records would be acquired:
                more than any broker locks. Nothing was added.
        """
        exists = set(present)
        delivered: list[int] = []
        ranges = list(ranges)
        self._check(ranges)
        for acquired in ranges:
            for offset in range(acquired.first_offset, acquired.last_offset + 1):
                record = _Acquired(acquired.delivery_count, now + self.lock_timeout_s)
                self._records[offset] = record
                if offset in exists:
                    delivered.append(offset)
                else:
                    record.state, record.acknowledgement = RecordState.WAITING, AckType.GAP
        return delivered

    def _check(self, ranges: Iterable[AcquiredRecords]) -> None:
        total = len(self._records)
        for acquired in ranges:
            total += acquired.last_offset - acquired.first_offset + 1
            if acquired.first_offset > acquired.last_offset or total > MAX_ACQUIRED:
                raise RemoteProtocolError(
                    f"acquired records {acquired.first_offset} to {acquired.last_offset}: the range is empty, or the "
                    f"partition would have more than {MAX_ACQUIRED} acquired records"
                )

    def delivery_count(self, offset: int) -> int:
        """Return how often the record was delivered, this time included. Raises LocalProtocolError if it is not
        acquired."""
        return self._get(offset).delivery_count

    def acknowledge(self, offset: int, kind: AckType) -> None:
        """Acknowledge a record; until it is sent, a later acknowledgement replaces an earlier one.

        Raises:
            LocalProtocolError: The record is not acquired, or no longer, or its acknowledgement has been sent.
        """
        record = self._get(offset)
        if record.state is RecordState.SENT:
            raise LocalProtocolError(f"offset {offset}: its acknowledgement has been sent")
        record.state, record.acknowledgement = RecordState.WAITING, kind

    def pop_batches(self) -> list[AcknowledgementBatch]:
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
        return [self._batch(run) for run in runs]

    def _batch(self, run: list[int]) -> AcknowledgementBatch:
        types = tuple(int(self._records[offset].acknowledgement or 0) for offset in run)
        if len(set(types)) == 1:
            types = types[:1]
        return AcknowledgementBatch(first_offset=run[0], last_offset=run[-1], acknowledge_types=types)

    def answered(self, code: int, now: float) -> list[int]:
        """Apply the response to the acknowledgements sent.

        Args:
            code: The acknowledgement error of the partition.
            now: The time of the response (s).

        Returns:
            The offsets whose acknowledgement was refused: the broker delivers those records again.
        """
        sent = [offset for offset, record in self._records.items() if record.state is RecordState.SENT]
        for offset in sent:
            record = self._records[offset]
            if not code and record.acknowledgement is AckType.RENEW:
                record.state, record.acknowledgement = RecordState.ACQUIRED, None
                record.locked_until = now + self.lock_timeout_s
            else:
                del self._records[offset]
        return sorted(sent) if code else []

    def expire(self, now: float) -> list[int]:
        """Drop the records whose lock has expired, unless their acknowledgement is in flight; return their offsets."""
        expired = [
            offset
            for offset, record in self._records.items()
            if record.locked_until <= now and record.state is not RecordState.SENT
        ]
        for offset in expired:
            del self._records[offset]
        return sorted(expired)

    def next_deadline(self) -> float | None:
        """Return when the first lock expires; None if there is none."""
        return min((r.locked_until for r in self._records.values() if r.state is not RecordState.SENT), default=None)

    def _get(self, offset: int) -> _Acquired:
        try:
            return self._records[offset]
        except KeyError:
            raise LocalProtocolError(
                f"offset {offset} is not acquired: its lock expired, or it was acknowledged before"
            ) from None


class ShareSessionState(Enum):
    """States of the session with one broker."""

    NEW = "epoch 0: the next request opens a session"
    OPEN = "each request has the next epoch"
    CLOSING = "epoch -1: the next request closes the session"
    CLOSED = "no further request"


class ShareSessionEvent(Enum):
    """Events of the session with one broker."""

    ANSWERED = "a response arrived"
    LOST = "the broker has no such session, or the connection was lost"
    CLOSE = "close"


_S, _E = ShareSessionState, ShareSessionEvent

SHARE_SESSION: Machine[ShareSessionState, ShareSessionEvent] = Machine(
    "share session",
    _S.NEW,
    {
        (_S.NEW, _E.ANSWERED): _S.OPEN,
        (_S.NEW, _E.LOST): _S.NEW,
        (_S.NEW, _E.CLOSE): _S.CLOSED,
        (_S.OPEN, _E.ANSWERED): _S.OPEN,
        (_S.OPEN, _E.LOST): _S.NEW,
        (_S.OPEN, _E.CLOSE): _S.CLOSING,
        (_S.CLOSING, _E.ANSWERED): _S.CLOSED,
        (_S.CLOSING, _E.LOST): _S.CLOSED,
    },
)

_SESSION_ERRORS = frozenset(
    {ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH, ErrorCode.SHARE_SESSION_LIMIT_REACHED}
)


@dataclass(slots=True)
class ShareSession:
    """The epoch of the share session with one broker."""

    state: ShareSessionState = ShareSessionState.NEW
    epoch: int = 0

    def answered(self, code: int) -> bool:
        """Apply the top-level error of a response. Return True if the session continues.

        After False everything acquired from this broker is lost, and the next request opens a new session.
        """
        if code in _SESSION_ERRORS:
            self.lost()
            return False
        self.state = SHARE_SESSION.after(self.state, _E.ANSWERED)
        self.epoch = 1 if self.epoch == 0x7FFFFFFF else self.epoch + 1
        return True

    def lost(self) -> None:
        """Reset after a lost connection: the broker has closed the session with it."""
        self.state, self.epoch = SHARE_SESSION.after(self.state, _E.LOST), 0

    def close(self) -> None:
        """Close the session with the next request. That releases the acquired records without an acknowledgement."""
        self.state, self.epoch = SHARE_SESSION.after(self.state, _E.CLOSE), -1
