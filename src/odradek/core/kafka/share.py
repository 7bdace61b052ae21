"""A member of a share group: the records it has acquired, and its acknowledgements (KIP-932).

The broker locks each delivered record for a time, the acquisition lock. The member accepts it (done), releases it (for
another delivery), rejects it (never again) or renews the lock; the acknowledgement travels with the next ShareFetch or
in a ShareAcknowledge. If the lock expires first, the broker delivers the record again, perhaps to another member.
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


MAX_RANGE = 1 << 20  # a broker locks at most group.share.partition.max.record.locks, 2000 by default


class AckType(IntEnum):
    """Acknowledgement types, with their wire values."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class RecordState(Enum):
    """States of an acquired record."""

    ACQUIRED = "acquired, not acknowledged yet"
    WAITING = "acknowledged, not sent yet"
    SENT = "acknowledgement sent, not answered yet"


@dataclass(slots=True)
class _Acquired:
    delivery_count: int
    locked_until: float
    state: RecordState = RecordState.ACQUIRED
    said: AckType | None = None


@dataclass(slots=True)
class Acknowledgements:
    """The acquired records of one partition.

    Args:
        lock_timeout_s: How long the broker locks a record (s), from its last response.
    """

    lock_timeout_s: float
    _records: dict[int, _Acquired] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._records)

    def acquire(self, ranges: Iterable[AcquiredRecords], present: Iterable[int], now: float) -> list[int]:
        """Add the acquired ranges of a response.

        Args:
            ranges: First and last offset, and how often each was delivered, this time included.
            present: The offsets that have a record; the others of the ranges are acknowledged as gaps.
            now: The time of the response (s).

        Returns:
            The offsets to deliver, in order.

        Raises:
            RemoteProtocolError: A range is longer than any broker locks.
        """
        exists = set(present)
        handed_out: list[int] = []
        for acquired in ranges:
            if not 0 <= acquired.last_offset - acquired.first_offset < MAX_RANGE:
                raise RemoteProtocolError(f"acquired records {acquired.first_offset} to {acquired.last_offset}")
            for offset in range(acquired.first_offset, acquired.last_offset + 1):
                record = _Acquired(acquired.delivery_count, now + self.lock_timeout_s)
                self._records[offset] = record
                if offset in exists:
                    handed_out.append(offset)
                else:
                    record.state, record.said = RecordState.WAITING, AckType.GAP
        return handed_out

    def delivery_count(self, offset: int) -> int:
        """Return how often the record was delivered, this time included. Raises LocalProtocolError if it is not
        acquired."""
        return self._get(offset).delivery_count

    def acknowledge(self, offset: int, kind: AckType) -> None:
        """Acknowledge a record; until it is sent, a later acknowledgement replaces an earlier one.

        Raises:
            LocalProtocolError: The record is not acquired (any more), or its acknowledgement has been sent.
        """
        record = self._get(offset)
        if record.state is RecordState.SENT:
            raise LocalProtocolError(f"offset {offset}: its acknowledgement has been sent")
        record.state, record.said = RecordState.WAITING, kind

    def pop_batches(self) -> list[AcknowledgementBatch]:
        """Return acknowledgements to send: runs of offsets, with one type for all or one each. They count as sent."""
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
        types = tuple(int(self._records[offset].said or 0) for offset in run)
        if len(set(types)) == 1:
            types = types[:1]
        return AcknowledgementBatch(first_offset=run[0], last_offset=run[-1], acknowledge_types=types)

    def answered(self, code: int, now: float) -> list[int]:
        """Apply the response to the acknowledgements sent.

        Args:
            code: The acknowledgement error of the partition.
            now: The time of the response (s).

        Returns:
            The offsets whose acknowledgement was not accepted: the broker delivers those records again.
        """
        sent = [offset for offset, record in self._records.items() if record.state is RecordState.SENT]
        for offset in sent:
            record = self._records[offset]
            if not code and record.said is AckType.RENEW:
                record.state, record.said = RecordState.ACQUIRED, None
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
                f"offset {offset} is not acquired: its lock expired or it is acknowledged"
            ) from None


class ShareSessionState(Enum):
    """States of the session with one broker."""

    NEW = "epoch 0: the next request opens a session"
    OPEN = "each request counts the epoch up"
    CLOSING = "epoch -1: the next request closes the session"
    CLOSED = "no further request"


class ShareSessionEvent(Enum):
    """Events of the session with one broker."""

    ANSWERED = "a request was answered"
    LOST = "the session is gone, or no answer came"
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
        """Let the next request close the session, which releases acquired records that are not acknowledged."""
        self.state, self.epoch = SHARE_SESSION.after(self.state, _E.CLOSE), -1
