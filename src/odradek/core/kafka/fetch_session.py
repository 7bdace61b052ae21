"""Fetch sessions: build the next Fetch request for a broker (KIP-227; kafka-specification.md 4.7).

In a session the broker remembers the partitions and their positions: a request has only those that changed, and a
response only those with new data. It names partitions as the version of the request does that opened the session: by
topic up to version 12, by topic id from 13 on. A session belongs to the broker of one connection. Whenever its state is
in doubt, the next request is a full one; what a response says of partitions is valid in any case.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from odradek.core.states import Machine
from odradek.types import TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.data import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from odradek.wire.kafka.schema import ZERO_UUID

__all__ = ["SESSION", "FetchPosition", "FetchRequestSettings", "FetchSession", "FetchSessionEvent", "FetchSessionState"]

NO_SESSION = 0
FIRST_EPOCH = 0
LAST_EPOCH = 0x7FFFFFFF
WITHOUT_SESSION = -1

_REFUSALS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class FetchSessionState(Enum):
    """States of a session."""

    NONE = "the next request is full and requests a session"
    OPEN = "the next request has only what changed"
    REPLACING = "the next request is full, closes the session and requests another"
    OFF = "every request is full and requests no session"


class FetchSessionEvent(Enum):
    """Events of a session."""

    GRANTED = "a response with a session"
    REFUSED = "a response without a session"
    FORGOTTEN = "the broker does not know the session"
    DOUBTED = "wrong epoch, no response, or one with other partitions"


_S, _E = FetchSessionState, FetchSessionEvent

SESSION: Machine[FetchSessionState, FetchSessionEvent] = Machine(
    "fetch session",
    _S.NONE,
    {
        **{(state, _E.GRANTED): _S.OPEN for state in (_S.NONE, _S.OPEN, _S.REPLACING)},
        **{(state, _E.REFUSED): _S.NONE for state in (_S.NONE, _S.OPEN, _S.REPLACING)},
        **{(state, _E.FORGOTTEN): _S.NONE for state in (_S.NONE, _S.OPEN, _S.REPLACING)},
        (_S.NONE, _E.DOUBTED): _S.NONE,
        (_S.OPEN, _E.DOUBTED): _S.REPLACING,
        (_S.REPLACING, _E.DOUBTED): _S.REPLACING,
        **{(_S.OFF, event): _S.OFF for event in _E},
    },
)


class FetchPosition(NamedTuple):
    """Position and limits for fetching one partition.

    Args:
        offset: Offset of the first record to fetch.
        max_bytes: Limit of this partition (bytes); the first batch may be larger.
        leader_epoch: The epoch of the leader as this client knows it; -1 if it is unknown.
        last_fetched_epoch: The epoch of the last record read, to detect truncation; -1 if it is unknown.
        topic_id: The topic's id; all zero if it is unknown.
    """

    offset: int
    max_bytes: int
    leader_epoch: int = -1
    last_fetched_epoch: int = -1
    topic_id: bytes = ZERO_UUID


class FetchRequestSettings(NamedTuple):
    """Settings of a whole request.

    Args:
        max_wait_ms: How long the broker may wait for `min_bytes` (ms).
        min_bytes: Size of a response that is sent before `max_wait_ms` is over (bytes).
        max_bytes: Limit of the response (bytes); the first batch may be larger.
        read_committed: True to leave out open and aborted transactions.
        rack: The rack of the client, for fetching from the nearest replica.
        by_id: The version of the request names topics by id (`BrokerVersions.names_topics_by_id`), and so does its
            session. That ids are known does not decide it.
    """

    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 50 << 20
    read_committed: bool = False
    rack: str = ""
    by_id: bool = False


class FetchSession:
    """The session with one broker, for one request at a time.

    Args:
        enabled: False not to use sessions.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.state = FetchSessionState.NONE if enabled else FetchSessionState.OFF
        self.session_id, self.epoch = NO_SESSION, FIRST_EPOCH
        self._remembered: Mapping[TopicPartition, FetchPosition] = {}
        self._by_id = False

    @property
    def is_full(self) -> bool:
        """True if the next request names every partition."""
        return self.state is not FetchSessionState.OPEN

    def request(self, wanted: Mapping[TopicPartition, FetchPosition], settings: FetchRequestSettings) -> FetchRequest:
        """Return the request to fetch these partitions, and only them. The mapping is kept; it must not change."""
        # A session keeps the form of names that it was opened with: the broker refuses the other one with
        # FETCH_SESSION_TOPIC_ID_ERROR (KIP-516).
        if settings.by_id is not self._by_id:
            self._doubt()  # the broker is of another release by now, or the id of a topic is not known yet
        self._by_id = settings.by_id
        full = self.is_full
        send: Mapping[TopicPartition, FetchPosition] = wanted if full else {}
        forget: Sequence[TopicPartition] = ()
        if not full and wanted is not self._remembered:  # the same mapping: nothing has changed
            send = {p: pos for p, pos in wanted.items() if self._remembered.get(p) != pos}
            forget = [p for p in self._remembered if self._is_forgotten(p, wanted)]
        request = FetchRequest(
            max_wait_ms=settings.max_wait_ms,
            min_bytes=settings.min_bytes,
            max_bytes=settings.max_bytes,
            isolation_level=int(settings.read_committed),
            session_id=self.session_id,
            session_epoch=WITHOUT_SESSION if self.state is FetchSessionState.OFF else self.epoch,
            topics=_topics(send),
            forgotten_topics_data=self._forgotten(forget),
            rack_id=settings.rack,
        )
        self._remembered = wanted
        return request

    def answered(self, response: FetchResponse) -> bool:
        """Apply a response. Return False if the broker has refused the session and done nothing else: then the same
        has to be requested again."""
        if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self._after(FetchSessionEvent.FORGOTTEN)
        elif response.error_code:
            self._doubt()
        else:
            self._continue(response)
        return response.error_code not in _REFUSALS or bool(response.responses)

    def connection_lost(self) -> None:
        """Handle a request without a response: the broker may or may not have raised the epoch."""
        self._doubt()

    # ---- inside ----

    def _continue(self, response: FetchResponse) -> None:
        fits = self._fits(response)
        if response.session_id == NO_SESSION:
            self._after(FetchSessionEvent.REFUSED)
        else:
            following = 1 if self.epoch == LAST_EPOCH else self.epoch + 1
            self._after(FetchSessionEvent.GRANTED, response.session_id, following)
        # Other partitions than were asked for: the two sides do not agree on what is remembered, for example after a
        # topic was made again under another id (KIP-516).
        if not fits:
            self._doubt()  # the next request names the session that was granted, and so closes it

    def _doubt(self) -> None:
        self._after(FetchSessionEvent.DOUBTED, self.session_id)

    def _after(self, event: FetchSessionEvent, session_id: int = NO_SESSION, epoch: int = FIRST_EPOCH) -> None:
        self.state = SESSION.after(self.state, event)
        if self.state is not FetchSessionState.OFF:
            self.session_id, self.epoch = session_id, epoch

    def _fits(self, response: FetchResponse) -> bool:
        """Return True if the response has the partitions it must have: in a session only requested ones, else all of
        them. A throttled full response may be empty."""
        if self.state is FetchSessionState.OFF or not (self.is_full or response.responses):
            return True
        by_id = self._by_id
        known = {(pos.topic_id if by_id else p.topic, p.partition) for p, pos in self._remembered.items()}
        answered = {
            (t.topic_id if by_id else t.topic, p.partition_index) for t in response.responses for p in t.partitions
        }
        if self.is_full:
            return answered == known or not answered
        return answered <= known

    def _is_forgotten(self, partition: TopicPartition, wanted: Mapping[TopicPartition, FetchPosition]) -> bool:
        position = wanted.get(partition)
        if position is None:
            return True
        return self._by_id and position.topic_id != self._remembered[partition].topic_id

    def _forgotten(self, partitions: Iterable[TopicPartition]) -> tuple[ForgottenTopic, ...]:
        topics: dict[tuple[str, bytes], list[int]] = {}
        for partition in partitions:
            key = partition.topic, self._remembered[partition].topic_id
            topics.setdefault(key, []).append(partition.partition)
        return tuple(ForgottenTopic(topic=t, topic_id=i, partitions=tuple(n)) for (t, i), n in topics.items())


def _topics(positions: Mapping[TopicPartition, FetchPosition]) -> tuple[FetchTopic, ...]:
    topics: dict[tuple[str, bytes], list[FetchPartition]] = {}
    for partition, position in positions.items():
        topics.setdefault((partition.topic, position.topic_id), []).append(
            FetchPartition(
                partition=partition.partition,
                current_leader_epoch=position.leader_epoch,
                fetch_offset=position.offset,
                last_fetched_epoch=position.last_fetched_epoch,
                partition_max_bytes=position.max_bytes,
            )
        )
    return tuple(FetchTopic(topic=t, topic_id=i, partitions=tuple(p)) for (t, i), p in topics.items())
