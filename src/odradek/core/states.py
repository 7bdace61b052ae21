"""State machines as data, and the three that make up a consumer.

A machine is a dict from (state, event) to the next state; a pair that is not in it is a mistake of ours and raises. The
code that runs a consumer asks these tables for every step, and the pictures of the documentation are
drawn from the same dicts, so neither can say something the other does not do.

    CONSUMER   start-up, rebalances, session expiry, exit           (specification 6.1, 6.2, 5.3)
    CURSOR     one partition: resolve its position, fetch, end     (specification 6.4)
    BROKER     one broker: the lost-connection procedure            (specification 6.4)
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

from odradek.errors import LocalProtocolError

__all__ = [
    "BROKER",
    "CONSUMER",
    "CURSOR",
    "BrokerEvent",
    "BrokerState",
    "ConsumerEvent",
    "ConsumerState",
    "CursorEvent",
    "CursorState",
    "Machine",
]

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class Machine(Generic[S, E]):
    """The rules of one kind of thing.

    Args:
        name: What it is, for errors and pictures.
        start: The first state.
        transitions: (state, event) -> next state; everything not named is illegal.
    """

    def __init__(self, name: str, start: S, transitions: Mapping[tuple[S, E], S]) -> None:
        self.name, self.start, self.transitions = name, start, transitions

    def after(self, state: S, event: E) -> S:
        """The state that follows. Raises LocalProtocolError for an illegal pair."""
        try:
            return self.transitions[state, event]
        except KeyError:
            raise LocalProtocolError(f"{self.name}: {event.name} cannot happen in {state.name}") from None


# ---- the consumer -------------------------------------------------------------------------------------------


class ConsumerState(Enum):
    """Where a group consumer is in its life."""

    NEW = "not entered"
    JOINING = "registered, owns nothing"
    RUNNING = "owns partitions, delivers"
    REVOKING = "delivers nothing, waits for batches in hand, commits"
    FAILED = "its background task died; the error waits for the user"
    LEAVING = "final commit, release"
    CLOSED = "done"


class ConsumerEvent(Enum):
    """What happens to a group consumer."""

    ENTER = "async with"
    ASSIGN = "partitions assigned"
    REVOKE = "rebalance begins"
    RELEASE = "committed, may be released"
    EXPIRE = "session expired: nothing may be committed"
    DIE = "background task died"
    EXIT = "end of async with"
    LEFT = "left the group"


_C, _CE = ConsumerState, ConsumerEvent

CONSUMER: Machine[ConsumerState, ConsumerEvent] = Machine(
    "consumer",
    _C.NEW,
    {
        (_C.NEW, _CE.ENTER): _C.JOINING,
        (_C.JOINING, _CE.ASSIGN): _C.RUNNING,
        # A failed attempt releases and tries again: there may be revokes without an assignment in between.
        (_C.JOINING, _CE.REVOKE): _C.REVOKING,
        (_C.RUNNING, _CE.REVOKE): _C.REVOKING,
        (_C.REVOKING, _CE.RELEASE): _C.JOINING,
        (_C.JOINING, _CE.EXPIRE): _C.JOINING,
        (_C.RUNNING, _CE.EXPIRE): _C.JOINING,
        (_C.REVOKING, _CE.EXPIRE): _C.JOINING,
        # The session expired while a revoke was waiting: the revoke ends with nothing to release.
        (_C.JOINING, _CE.RELEASE): _C.JOINING,
        (_C.JOINING, _CE.DIE): _C.FAILED,
        (_C.RUNNING, _CE.DIE): _C.FAILED,
        (_C.REVOKING, _CE.DIE): _C.FAILED,
        (_C.FAILED, _CE.DIE): _C.FAILED,
        (_C.JOINING, _CE.EXIT): _C.LEAVING,
        (_C.RUNNING, _CE.EXIT): _C.LEAVING,
        (_C.REVOKING, _CE.EXIT): _C.LEAVING,
        (_C.FAILED, _CE.EXIT): _C.LEAVING,
        # What the group did in the moment before it heard of the exit changes nothing.
        **{(_C.LEAVING, event): _C.LEAVING for event in (_CE.ASSIGN, _CE.REVOKE, _CE.RELEASE, _CE.EXPIRE, _CE.DIE)},
        (_C.LEAVING, _CE.LEFT): _C.CLOSED,
    },
)


# ---- one partition ------------------------------------------------------------------------------------------


class CursorState(Enum):
    """What is happening to one partition's reading."""

    UNASSIGNED = "not read, or not any more"
    RESOLVING = "its position has to be asked for"
    READY = "waits for the next fetch"
    IN_FLIGHT = "a fetch, or a thread that decompresses, uses its decoder"
    BACKING_OFF = "the broker had nothing, or a passing error; fetched again later"
    OUT_OF_QUOTA = "its share of the read-ahead is full"
    PAUSED = "not fetched while there is a reason to pause"
    FAILED = "stopped by an error of its own; others continue"
    ENDED = "everything before `until` was read"


class CursorEvent(Enum):
    """What can happen to one partition's reading."""

    ASSIGN = "reading begins"
    UNASSIGN = "reading ends"
    RESOLVE = "position known"
    SEND = "part of a fetch"
    FILL = "no space for another request"
    DRAIN = "the user took records"
    PAUSE = "paused when its fetch was due"
    RESUME = "no reason to pause is left"
    RECEIVE = "response accepted, or connection lost"
    BACK_OFF = "empty response or passing error"
    POLL = "back-off over, or served by another broker"
    OUT_OF_RANGE = "position not in the log; reset by policy"
    FAIL = "corrupt, too large, refused"
    REACH = "`until` reached"
    SEEK = "seek"


_P, _PE = CursorState, CursorEvent

CURSOR: Machine[CursorState, CursorEvent] = Machine(
    "partition",
    _P.UNASSIGNED,
    {
        (_P.UNASSIGNED, _PE.ASSIGN): _P.RESOLVING,
        (_P.RESOLVING, _PE.RESOLVE): _P.READY,
        (_P.RESOLVING, _PE.REACH): _P.ENDED,
        (_P.RESOLVING, _PE.FAIL): _P.FAILED,
        (_P.READY, _PE.SEND): _P.IN_FLIGHT,
        (_P.READY, _PE.FILL): _P.OUT_OF_QUOTA,
        (_P.READY, _PE.PAUSE): _P.PAUSED,
        (_P.OUT_OF_QUOTA, _PE.DRAIN): _P.READY,
        (_P.PAUSED, _PE.RESUME): _P.READY,
        (_P.IN_FLIGHT, _PE.RECEIVE): _P.READY,
        (_P.IN_FLIGHT, _PE.BACK_OFF): _P.BACKING_OFF,
        (_P.IN_FLIGHT, _PE.OUT_OF_RANGE): _P.RESOLVING,
        (_P.IN_FLIGHT, _PE.FAIL): _P.FAILED,
        (_P.IN_FLIGHT, _PE.REACH): _P.ENDED,
        (_P.BACKING_OFF, _PE.POLL): _P.READY,
        # A response to a fetch from before the seek is ignored, so the next fetch need not wait for it.
        **{(state, _PE.SEEK): _P.RESOLVING for state in _P if state is not _P.UNASSIGNED},
        **{(state, _PE.UNASSIGN): _P.UNASSIGNED for state in _P},
    },
)


# ---- one broker ---------------------------------------------------------------------------------------------


class BrokerState(Enum):
    """The state of one broker, as fetching sees it."""

    UNKNOWN = "no request made yet"
    CONNECTED = "responds"
    BACKING_OFF = "connection lost; resumes at the last message boundary"
    ABSENT = "not in the routing table"


class BrokerEvent(Enum):
    """What can happen to one broker."""

    RESPONDED = "responded"
    FAILED = "connection lost, no response, or an invalid one"
    REMOVED = "removed from the routing table"
    ADDED = "added to the routing table"


_B, _BE = BrokerState, BrokerEvent

BROKER: Machine[BrokerState, BrokerEvent] = Machine(
    "broker",
    _B.UNKNOWN,
    {
        (_B.UNKNOWN, _BE.RESPONDED): _B.CONNECTED,
        (_B.UNKNOWN, _BE.FAILED): _B.BACKING_OFF,
        (_B.UNKNOWN, _BE.REMOVED): _B.ABSENT,
        (_B.CONNECTED, _BE.RESPONDED): _B.CONNECTED,
        (_B.CONNECTED, _BE.FAILED): _B.BACKING_OFF,
        (_B.CONNECTED, _BE.REMOVED): _B.ABSENT,
        (_B.BACKING_OFF, _BE.RESPONDED): _B.CONNECTED,
        (_B.BACKING_OFF, _BE.FAILED): _B.BACKING_OFF,
        (_B.BACKING_OFF, _BE.REMOVED): _B.ABSENT,
        (_B.ABSENT, _BE.ADDED): _B.UNKNOWN,
        # A request that was in flight when it was removed.
        (_B.ABSENT, _BE.RESPONDED): _B.ABSENT,
        (_B.ABSENT, _BE.FAILED): _B.ABSENT,
    },
)
