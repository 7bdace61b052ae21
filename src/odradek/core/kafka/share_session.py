"""The share session with one broker (KIP-932): which request is next, and what its response means.

A session counts its requests, ShareFetch and ShareAcknowledge together, so that one of them at most is in flight. Epoch
0 opens it, -1 closes it and releases everything that is acquired. The broker forgets it with its connection. Another
session in its place releases nothing: after an error it is closed first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf

from odradek.core.interfaces import AckType
from odradek.core.kafka.member_states import MAX_UNKNOWN_ERRORS
from odradek.core.kafka.share_records import AcquiredPartition, AcquiredRows, decode_acquired
from odradek.core.states import Machine
from odradek.types import TopicPartition
from odradek.wire.decoding import DecodingOptions
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.share_groups import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchForgottenTopic,
    ShareFetchPartition,
    ShareFetchPartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopic,
    ShareLeaderIdAndEpoch,
)

__all__ = [
    "SHARE_SESSION",
    "Acquisition",
    "PartitionProblem",
    "RefusedAcknowledgements",
    "ShareAnswer",
    "ShareLimits",
    "ShareSession",
    "ShareSessionEvent",
    "ShareSessionState",
]

MAX_EPOCH = (1 << 31) - 1
BATCH_OPTIMIZED, RECORD_LIMIT = 0, 1
"""Values of `share_acquire_mode`: whole batches, or no record more than `max_records` (KIP-1206, Kafka 4.2)."""

BATCH_SIZE = 50
"""Records that brokers of 4.1, which have no `RECORD_LIMIT`, acquire together again after they were released."""

DEFAULT_LOCK_S = 30.0
"""The duration of locks unless a response says otherwise (group.share.record.lock.duration.ms)."""

EXPIRED = "their locks had expired"
"""The reason why acknowledgements that come too late do not count."""


class ShareSessionState(Enum):
    """States of the session with one broker."""

    NEW = "epoch 0: the next request opens a session"
    OPEN = "each request has the next epoch"
    REFUSED = "epoch -1: after an error, the next request closes it, and another one is opened"
    CLOSING = "epoch -1: the request in flight closes the session"
    CLOSED = "no further request"


class ShareSessionEvent(Enum):
    """Events of the session with one broker."""

    ANSWERED = "a response arrived"
    LOST = "the broker has no such session, or the connection was lost"
    REFUSE = "an error of a whole response"
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
        **{(state, _E.REFUSE): _S.REFUSED for state in (_S.NEW, _S.OPEN)},
        **{(_S.REFUSED, event): _S.NEW for event in (_E.ANSWERED, _E.LOST, _E.REFUSE)},
        (_S.REFUSED, _E.CLOSE): _S.CLOSING,
        **{(_S.CLOSING, event): _S.CLOSED for event in (_E.ANSWERED, _E.LOST, _E.REFUSE)},
        (_S.CLOSED, _E.CLOSE): _S.CLOSED,
    },
)

_NO_SESSION = frozenset({ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.SHARE_SESSION_LIMIT_REACHED})

_PASSING = frozenset({ErrorCode.FENCED_STATE_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND})
"""Errors of a partition that pass although the error table does not say so: the broker reads the state of the group
again."""

NO_LEADER = ShareLeaderIdAndEpoch(leader_id=-1, leader_epoch=-1)

Key = tuple[bytes, int]
"""Topic id and number of a partition: records of a topic that was made again are acknowledged by its own id."""


@dataclass(frozen=True, slots=True)
class ShareLimits:
    """Limits of one ShareFetch.

    Args:
        max_wait_s: How long the broker may wait for a record (s).
        max_bytes: Most bytes of a response.
        max_records: About how many records to acquire.
        exact: Acquire no record more, where brokers can (4.2 and later), even if that divides a batch.
    """

    max_wait_s: float = 0.5
    max_bytes: int = 8 << 20
    max_records: int = 500
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Acquisition:
    """Records of one partition that the session has acquired.

    Args:
        partition: Where they come from.
        key: The same by the id of its topic.
        rows: The records.
        number: Tells it from the acquisitions of other responses.
    """

    partition: TopicPartition
    key: Key
    rows: AcquiredRows
    number: int


@dataclass(frozen=True, slots=True)
class RefusedAcknowledgements:
    """Acknowledgements that do not count: the broker delivers these records again.

    Args:
        partition: Where they are.
        count: How many.
        why: What happened.
    """

    partition: TopicPartition
    count: int
    why: str


@dataclass(frozen=True, slots=True)
class PartitionProblem:
    """An error of one partition.

    Args:
        partition: Which.
        code: The error code.
        text: The broker's own text, if there is one.
        leader: The leader that the response names; id -1: none.
        passes: A later request may succeed.
    """

    partition: TopicPartition
    code: int
    text: str = ""
    leader: ShareLeaderIdAndEpoch = NO_LEADER
    passes: bool = True


@dataclass(slots=True)
class ShareAnswer:
    """The meaning of a response.

    Args:
        acquired: New records.
        refused: Acknowledgements that do not count.
        problems: Errors of partitions.
        code: Error code of the response as a whole, which has ended the session, or NETWORK_EXCEPTION without one; 0 if
            the session goes on.
        text: The broker's own text for it.
        passes: A new session may go on after that error.
    """

    acquired: list[Acquisition] = field(default_factory=list)
    refused: list[RefusedAcknowledgements] = field(default_factory=list)
    problems: list[PartitionProblem] = field(default_factory=list)
    code: int = 0
    text: str = ""
    passes: bool = True


class ShareSession:
    """The session with one broker, and what it has acquired.

    Args:
        group: The group.
        member_id: The member.
        limits: Of one ShareFetch.
        options: Limits of decoding.
        has_renewal: The broker can renew locks, and acquire a number of records exactly (ShareFetch 2).
    """

    def __init__(
        self, group: str, member_id: str, limits: ShareLimits, options: DecodingOptions, has_renewal: bool = True
    ) -> None:
        self._group, self._member_id, self._limits, self._options = group, member_id, limits, options
        self.has_renewal = has_renewal
        self.state, self.epoch = SHARE_SESSION.start, 0
        self.wanted: Mapping[TopicPartition, bytes] = {}
        """The partitions to read from this broker, each with the id of its topic."""
        self._at_broker: set[Key] = set()  # the partitions that the broker reads for this session
        self._failed: set[Key] = set()  # those of them that had an error in the last response
        self._acquired: dict[Key, AcquiredPartition] = {}
        self._acquisitions = 0  # responses that may have brought some
        self._max_records = limits.max_records  # of the next ShareFetch
        self._names: dict[bytes, str] = {}
        self._sent_at, self.lock_s = 0.0, DEFAULT_LOCK_S
        self._closes = False  # the next request is the last one
        self._unknown_errors = 0  # in a row
        self._unknown_errors_of: dict[Key, int] = {}  # the same for partitions

    def __repr__(self) -> str:
        return f"<ShareSession {self.state.name}, epoch {self.epoch}, {self.acquired} acquired>"

    @property
    def acquired(self) -> int:
        """Number of records that are acquired, and not yet acknowledged to the broker."""
        return sum(map(len, self._acquired.values()))

    @property
    def has_unanswered(self) -> bool:
        """True if an acknowledgement is to be sent, or waits for its response."""
        return any(records.has_unanswered for records in self._acquired.values())

    def acknowledge(self, key: Key, offset: int, kind: AckType, number: int) -> bool:
        """Acknowledge a record of an acquisition with the next request. Return False if it is not acquired any more, or
        was acquired again since then, or its acknowledgement was sent, or the last request was."""
        records = None if self.state is _S.CLOSING else self._acquired.get(key)
        return records is not None and records.acknowledge(offset, kind, number)

    def expire(self, now: float) -> list[RefusedAcknowledgements]:
        """Drop the records whose locks have expired; return the acknowledgements that come too late."""
        late: list[RefusedAcknowledgements] = []
        for key, records in list(self._acquired.items()):
            if count := records.expire(now):
                late.append(RefusedAcknowledgements(self._partition(key), count, EXPIRED))
            if not records:
                del self._acquired[key]
        return late

    def close(self) -> None:
        """Close the session with the next request, which carries the acknowledgements. The broker releases the rest."""
        self._closes = True

    # ---- requests ----

    def next_request(self, now: float, *, fetch: bool) -> ShareFetchRequest | ShareAcknowledgeRequest | None:
        """Return the next request; None if there is nothing to send. No other one may be in flight.

        Args:
            now: The time (s).
            fetch: Records are wanted.
        """
        waiting = {key for key, records in self._acquired.items() if records.has_waiting}
        if self._closes:
            self.state = SHARE_SESSION.after(self.state, _E.CLOSE)
        if self.state is _S.CLOSED:
            return None
        self._sent_at = now
        wanted = {(topic_id, p.partition) for p, topic_id in self.wanted.items()}
        # A ShareFetch that names a partition has it read from then on, and one that renews locks brings no records.
        # What it cannot carry goes first. A session is only opened by a ShareFetch without acknowledgements.
        renews = any(self._acquired[key].renews for key in waiting)
        if self._ends_session or (waiting and (renews or not fetch or waiting - wanted)):
            return self._acknowledge_request(waiting, renews)
        return self._fetch_request(wanted, waiting) if fetch and wanted else None

    @property
    def _ends_session(self) -> bool:
        return self.state in (_S.CLOSING, _S.REFUSED)

    def _acknowledge_request(self, waiting: set[Key], renews: bool) -> ShareAcknowledgeRequest:
        batches = self._pop(waiting)
        return ShareAcknowledgeRequest(
            group_id=self._group,
            member_id=self._member_id,
            share_session_epoch=-1 if self._ends_session else self.epoch,
            is_renew_ack=renews,
            topics=tuple(
                AcknowledgeTopic(
                    topic_id=topic_id,
                    partitions=tuple(
                        AcknowledgePartition(partition_index=n, acknowledgement_batches=batches[topic_id, n])
                        for n in numbers
                    ),
                )
                for topic_id, numbers in _by_topic(batches).items()
            ),
        )

    def _fetch_request(self, wanted: set[Key], waiting: set[Key]) -> ShareFetchRequest:
        batches, limits = self._pop(waiting), self._limits
        exact = limits.exact or self._max_records < limits.max_records
        named = wanted - (self._at_broker - self._failed) | waiting
        forgotten = self._at_broker - wanted
        self._at_broker, self._failed = wanted, set()
        for partition, topic_id in self.wanted.items():
            self._names[topic_id] = partition.topic
        return ShareFetchRequest(
            group_id=self._group,
            member_id=self._member_id,
            share_session_epoch=self.epoch,
            max_wait_ms=round(limits.max_wait_s * 1000),
            min_bytes=1,
            max_bytes=limits.max_bytes,
            max_records=self._max_records,
            batch_size=limits.max_records if self.has_renewal else min(BATCH_SIZE, limits.max_records),
            share_acquire_mode=RECORD_LIMIT if exact and self.has_renewal else BATCH_OPTIMIZED,
            topics=tuple(
                ShareFetchTopic(
                    topic_id=topic_id,
                    partitions=tuple(
                        ShareFetchPartition(partition_index=n, acknowledgement_batches=batches.get((topic_id, n), ()))
                        for n in numbers
                    ),
                )
                for topic_id, numbers in _by_topic(named).items()
            ),
            forgotten_topics_data=tuple(
                ShareFetchForgottenTopic(topic_id=topic_id, partitions=tuple(numbers))
                for topic_id, numbers in _by_topic(forgotten).items()
            ),
        )

    def _pop(self, waiting: set[Key]) -> dict[Key, tuple[AcknowledgementBatch, ...]]:
        return {key: self._acquired[key].pop_batches() for key in sorted(waiting)}

    # ---- responses ----

    def fetched(self, response: ShareFetchResponse) -> ShareAnswer:
        """Apply the response to a ShareFetch. What it says of other partitions than those of the session is ignored."""
        if response.error_code:
            return self._end(response)
        self._count(response)
        answer, before, self._unknown_errors_of = ShareAnswer(), self._unknown_errors_of, {}
        self._acquisitions += 1
        for topic in response.responses:
            for data in topic.partitions:
                key = topic.topic_id, data.partition_index
                if topic.topic_id in self._names:
                    self._answer_acknowledgements(key, data.acknowledge_error_code, answer)
                    if data.error_code == ErrorCode.UNKNOWN_SERVER_ERROR:
                        self._unknown_errors_of[key] = before.get(key, 0) + 1
                    self._take(key, data, answer)
        self._complete(answer)
        self._limit_next([acquired.rows for acquired in answer.acquired])
        return answer

    def acknowledged(self, response: ShareAcknowledgeResponse) -> ShareAnswer:
        """Apply the response to a ShareAcknowledge."""
        closes = self.state is _S.CLOSING
        if self.state is _S.REFUSED:
            self.state = SHARE_SESSION.after(self.state, _E.ANSWERED)
            return ShareAnswer()
        if response.error_code:
            return self._end(response)
        self._count(response)
        answer = ShareAnswer()
        for topic in response.responses:
            for data in topic.partitions:
                key = topic.topic_id, data.partition_index
                if topic.topic_id in self._names:
                    self._answer_acknowledgements(key, data.error_code, answer)
                    if data.error_code in _LEADER_ERRORS:
                        problem = PartitionProblem(self._partition(key), data.error_code, leader=data.current_leader)
                        answer.problems.append(problem)
        self._complete(answer)
        if closes:
            self._acquired.clear()
        return answer

    def lost(self, why: str) -> ShareAnswer:
        """Apply the loss of the session: of its connection, or because the broker does not know it. Return the
        acknowledgements that may not count: what was sent may have arrived."""
        answer = self._lose(why, _E.LOST)
        answer.code = ErrorCode.NETWORK_EXCEPTION
        return answer

    def _lose(self, why: str, event: ShareSessionEvent) -> ShareAnswer:
        self.state, self.epoch = SHARE_SESSION.after(self.state, event), 0
        self._at_broker, self._failed = set(), set()
        answer = ShareAnswer()
        for key, records in self._acquired.items():
            if records.has_unanswered:
                count = records.answered(ErrorCode.NETWORK_EXCEPTION, 0.0) + records.expire(inf)
                if count:
                    answer.refused.append(RefusedAcknowledgements(self._partition(key), count, why))
        self._acquired.clear()
        return answer

    def _count(self, response: ShareFetchResponse | ShareAcknowledgeResponse) -> None:
        """Count a response without an error."""
        self.state = SHARE_SESSION.after(self.state, _E.ANSWERED)
        self.epoch = 1 if self.epoch >= MAX_EPOCH else self.epoch + 1
        self._unknown_errors = 0
        if response.acquisition_lock_timeout_ms > 0:
            self.lock_s = response.acquisition_lock_timeout_ms / 1000

    def _end(self, response: ShareFetchResponse | ShareAcknowledgeResponse) -> ShareAnswer:
        """Begin a new session: after any error of a whole response it is unknown what the broker has counted."""
        code, text = response.error_code, response.error_message
        answer = self._lose(text or ErrorCode(code).name, _E.LOST if code in _NO_SESSION else _E.REFUSE)
        answer.code, answer.text = code, text or ""
        # Brokers send UNKNOWN_SERVER_ERROR while a topic of the session is being deleted (seen on 4.3.1).
        self._unknown_errors = self._unknown_errors + 1 if code == ErrorCode.UNKNOWN_SERVER_ERROR else 0
        answer.passes = ErrorCode(code).retriable or 0 < self._unknown_errors <= MAX_UNKNOWN_ERRORS
        return answer

    def _answer_acknowledgements(self, key: Key, code: int, answer: ShareAnswer) -> None:
        records = self._acquired.get(key)
        if records is None:
            return
        if refused := records.answered(code, self._sent_at + self.lock_s):
            answer.refused.append(RefusedAcknowledgements(self._partition(key), refused, ErrorCode(code).name))
        if not records:
            del self._acquired[key]

    def _take(self, key: Key, data: ShareFetchPartitionData, answer: ShareAnswer) -> None:
        partition = self._partition(key)
        if data.error_code:
            # The broker may have dropped it from the session: the next request names it again. Or it has not, and reads
            # it, with the same error, until a request forgets it.
            self._failed.add(key)
            code, text = ErrorCode(data.error_code), data.error_message or ""
            leader = data.current_leader if code in _LEADER_ERRORS else NO_LEADER
            passes = (code.retriable and code != ErrorCode.CORRUPT_MESSAGE) or code in _PASSING
            passes |= 0 < self._unknown_errors_of.get(key, 0) <= MAX_UNKNOWN_ERRORS
            answer.problems.append(PartitionProblem(partition, code, text, leader, passes))
            return
        if not data.acquired_records:
            return
        # The lock begins at the broker after the request was sent, so that this expires a little before it does.
        rows = decode_acquired(partition, memoryview(data.records or b""), data.acquired_records, self._options)
        records = self._acquired.setdefault(key, AcquiredPartition())
        late = records.acquire(data.acquired_records, rows, self._sent_at + self.lock_s, self._acquisitions)
        if late:
            answer.refused.append(RefusedAcknowledgements(partition, late, EXPIRED))
        answer.acquired.append(Acquisition(partition, key, rows, self._acquisitions))

    def _limit_next(self, acquired: Sequence[AcquiredRows]) -> None:
        """Acquire no more records than could be decoded until those that were released because of that have come again:
        the broker has counted that as a delivery of each, and after some deliveries it gives a record up."""
        cut = [len(rows.columns) if rows.error is None else 1 for rows in acquired if not rows.is_whole]
        if cut:
            self._max_records = max(1, min(cut))
        elif acquired and all(count == 1 for rows in acquired for count in rows.delivery_counts):
            self._max_records = min(2 * self._max_records, self._limits.max_records)

    def _complete(self, answer: ShareAnswer) -> None:
        """Fail acknowledgements that the response says nothing about."""
        for key in list(self._acquired):
            self._answer_acknowledgements(key, ErrorCode.UNKNOWN_SERVER_ERROR, answer)

    def _partition(self, key: Key) -> TopicPartition:
        return TopicPartition(self._names[key[0]], key[1])


_LEADER_ERRORS = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


def _by_topic(keys: Mapping[Key, object] | set[Key]) -> dict[bytes, list[int]]:
    topics: dict[bytes, list[int]] = {}
    for topic_id, number in sorted(keys):
        topics.setdefault(topic_id, []).append(number)
    return topics
