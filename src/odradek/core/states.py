"""State machines as data, and those that make up a consumer.

A machine is a dict from (state, event) to the next state; a pair that is not in it is a bug and raises. The code that
runs a consumer asks these tables for every step, and the pictures in the documentation are drawn from the same dicts,
so the two cannot differ.

    CONSUMER   start-up, session expiry, exit                       (specification.md 6.1, 5.3)
    OWNERSHIP  one assigned partition: revoke, release, loss        (specification.md 6.2)
    CURSOR     one partition: resolve its position, fetch, end      (specification.md 6.4)
    BROKER     one broker: the lost-connection procedure            (specification.md 6.4)
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
    "OWNERSHIP",
    "BrokerEvent",
    "BrokerState",
    "ConsumerEvent",
    "ConsumerState",
    "CursorEvent",
    "CursorState",
    "Machine",
    "OwnershipEvent",
    "OwnershipState",
]


class _Member(Enum):
    """A member of a machine: hashed by identity, because `Enum` calls a Python function for it at every step."""

    __hash__ = object.__hash__


S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class Machine(Generic[S, E]):
    """The states of one kind of object, and what leads from one to the next.

    Args:
        name: The kind of object, for errors and pictures.
        start: The first state.
        transitions: (state, event) -> next state; every other pair is illegal.
    """

    def __init__(self, name: str, start: S, transitions: Mapping[tuple[S, E], S]) -> None:
        self.name, self.start, self.transitions = name, start, transitions

    def after(self, state: S, event: E) -> S:
        """Return the next state. Raises LocalProtocolError for an illegal pair."""
        try:
            return self.transitions[state, event]
        except KeyError:
            raise LocalProtocolError(f"{self.name}: {event.name} cannot happen in {state.name}") from None


# ---- the consumer -------------------------------------------------------------------------------------------


class ConsumerState(_Member):
    """The state of a group consumer as a whole. `OwnershipState` is that of each of its partitions."""

    NEW = "not entered"
    JOINING = "registered, has no assignment yet"
    RUNNING = "delivers the partitions it owns, possibly none"
    FAILED = "a background task died; its error is raised to the user"
    LEAVING = "final commit and release"
    CLOSED = "left"


class ConsumerEvent(_Member):
    """Events of a group consumer."""

    ENTER = "async with"
    ASSIGN = "partitions assigned"
    EXPIRE = "session expired: every partition is lost"
    DIE = "a background task died"
    EXIT = "end of async with"
    LEFT = "left the group"


_C, _CE = ConsumerState, ConsumerEvent

CONSUMER: Machine[ConsumerState, ConsumerEvent] = Machine(
    "consumer",
    _C.NEW,
    {
        (_C.NEW, _CE.ENTER): _C.JOINING,
        **{(state, _CE.ASSIGN): _C.RUNNING for state in (_C.JOINING, _C.RUNNING)},
        **{(state, _CE.EXPIRE): _C.JOINING for state in (_C.JOINING, _C.RUNNING)},
        **{(state, _CE.DIE): _C.FAILED for state in (_C.JOINING, _C.RUNNING, _C.FAILED)},
        **{(state, _CE.EXIT): _C.LEAVING for state in (_C.JOINING, _C.RUNNING, _C.FAILED)},
        # Events of the group from the moment before its task ended change nothing.
        **{(_C.LEAVING, event): _C.LEAVING for event in (_CE.ASSIGN, _CE.EXPIRE, _CE.DIE)},
        (_C.LEAVING, _CE.LEFT): _C.CLOSED,
    },
)


# ---- one partition of a group consumer ----------------------------------------------------------------------


class OwnershipState(_Member):
    """The state of one partition that was assigned to a group consumer."""

    OWNED = "delivered; what is done is committed"
    REVOKING = "not delivered any more; records being processed may still be done and committed"
    ENDED = "released, lost or read from elsewhere: marks no longer count"


class OwnershipEvent(_Member):
    """Events of one assigned partition."""

    REVOKE = "a rebalance takes it away, or the consumer leaves"
    RELEASE = "committed; another member may claim it"
    LOSE = "session expired: nothing may be committed"
    MOVE = "seek or reset: processing starts again elsewhere"


_O, _OE = OwnershipState, OwnershipEvent

OWNERSHIP: Machine[OwnershipState, OwnershipEvent] = Machine(
    "assigned partition",
    _O.OWNED,
    {
        **{(state, _OE.REVOKE): _O.REVOKING for state in (_O.OWNED, _O.REVOKING)},
        (_O.REVOKING, _OE.RELEASE): _O.ENDED,
        **{(state, _OE.LOSE): _O.ENDED for state in (_O.OWNED, _O.REVOKING)},
        **{(state, _OE.MOVE): _O.ENDED for state in (_O.OWNED, _O.REVOKING)},
    },
)


# ---- one partition ------------------------------------------------------------------------------------------


class CursorState(_Member):
    """States of reading one partition."""

    UNASSIGNED = "not read, or not any more"
    RESOLVING = "its position has to be asked for"
    READY = "waits for the next fetch"
    IN_FLIGHT = "a fetch, or a thread that decompresses, uses its decoder"
    BACKING_OFF = "the broker had nothing, or a passing error; fetched again later"
    OUT_OF_QUOTA = "its share of the read-ahead is full"
    PAUSED = "not fetched while there is a reason to pause"
    FAILED = "stopped by an error of its own; others continue"
    ENDED = "everything before `until` was read"


class CursorEvent(_Member):
    """Events of reading one partition."""

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
    OUT_OF_RANGE = "position not in the log, or in that of a topic that was deleted; reset by policy"
    FAIL = "corrupt, too large, refused, out of range"
    REACH = "`until` reached"
    CONTINUE = "the user has got the error of a refused request"
    SEEK = "seek"


_P, _PE = CursorState, CursorEvent
_READING = (_P.RESOLVING, _P.READY, _P.IN_FLIGHT, _P.BACKING_OFF, _P.OUT_OF_QUOTA, _P.PAUSED)

CURSOR: Machine[CursorState, CursorEvent] = Machine(
    "partition",
    _P.UNASSIGNED,
    {
        (_P.UNASSIGNED, _PE.ASSIGN): _P.RESOLVING,
        (_P.RESOLVING, _PE.RESOLVE): _P.READY,
        (_P.RESOLVING, _PE.REACH): _P.ENDED,
        (_P.READY, _PE.SEND): _P.IN_FLIGHT,
        (_P.READY, _PE.FILL): _P.OUT_OF_QUOTA,
        (_P.READY, _PE.PAUSE): _P.PAUSED,
        (_P.OUT_OF_QUOTA, _PE.DRAIN): _P.READY,
        (_P.PAUSED, _PE.RESUME): _P.READY,
        (_P.IN_FLIGHT, _PE.RECEIVE): _P.READY,
        (_P.IN_FLIGHT, _PE.BACK_OFF): _P.BACKING_OFF,
        (_P.IN_FLIGHT, _PE.REACH): _P.ENDED,
        (_P.BACKING_OFF, _PE.POLL): _P.READY,
        # That a topic was made again is learned from the metadata, whatever its partitions do.
        **{(state, _PE.OUT_OF_RANGE): _P.RESOLVING for state in _READING},
        **{(state, _PE.FAIL): _P.FAILED for state in _READING},
        (_P.FAILED, _PE.CONTINUE): _P.RESOLVING,
        # A response to a fetch from before the seek is ignored, so the next fetch need not wait for it.
        **{(state, _PE.SEEK): _P.RESOLVING for state in _P if state is not _P.UNASSIGNED},
        **{(state, _PE.UNASSIGN): _P.UNASSIGNED for state in _P},
    },
)


# ---- one broker ---------------------------------------------------------------------------------------------


class BrokerState(_Member):
    """The state of one broker, as fetching sees it."""

    UNKNOWN = "no request made yet"
    CONNECTED = "responds"
    BACKING_OFF = "connection lost; resumes at the last message boundary"
    ABSENT = "not in the routing table"


class BrokerEvent(_Member):
    """Events of one broker."""

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
