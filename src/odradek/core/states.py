"""State machines as data, and those that make up a consumer.

A machine is a dict from (state, event) to the next state; a pair that is not in it is a bug and raises. The code that
runs a consumer asks these tables for every step, and the pictures in the documentation are drawn from the same dicts,
so the two cannot differ.

    CONSUMER   start-up, session expiry, exit                       (specification 6.1, 5.3)
    OWNERSHIP  one assigned partition: revoke, release, loss        (specification 6.2)
    CURSOR     one partition: ask for a position, fetch, end        (specification 6.4)
    LINK       one broker: the lost-connection procedure            (specification 6.4)
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

from odradek.errors import LocalProtocolError

__all__ = [
    "CONSUMER",
    "CURSOR",
    "LINK",
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

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class Machine(Generic[S, E]):
    """The states of one kind of object, and what leads from one to the next.

    Args:
        name: What the object is, for errors and pictures.
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


class ConsumerState(Enum):
    """The state of a group consumer as a whole. What happens to its partitions one by one is in `OwnershipState`."""

    NEW = "not entered"
    JOINING = "registered, has no assignment yet"
    RUNNING = "delivers the partitions it owns, possibly none"
    FAILED = "a background task died; its error is raised to the user"
    LEAVING = "final commit and release"
    CLOSED = "left"


class ConsumerEvent(Enum):
    """What happens to a group consumer."""

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


class OwnershipState(Enum):
    """The state of one partition that was assigned to a group consumer."""

    OWNED = "delivered; what is done is committed"
    REVOKING = "not delivered any more; records being processed may still be done and committed"
    ENDED = "released, lost or read from elsewhere: marks no longer count"


class OwnershipEvent(Enum):
    """What happens to one assigned partition."""

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


class CursorState(Enum):
    """Where one partition's reading is."""

    SEARCHING = "its position has to be asked for"
    FETCHING = "part of every fetch of its broker"
    BROKEN = "stopped by an error of its own; others go on"
    ENDED = "everything before `until` was read"


class CursorEvent(Enum):
    """What happens to one partition's reading."""

    FOUND = "position known"
    OUT_OF_RANGE = "position no longer in the log, reset by policy"
    FAIL = "corrupt, too large, refused"
    REACH = "until reached"
    SEEK = "seek"


_P, _PE = CursorState, CursorEvent

CURSOR: Machine[CursorState, CursorEvent] = Machine(
    "partition",
    _P.SEARCHING,
    {
        (_P.SEARCHING, _PE.FOUND): _P.FETCHING,
        (_P.SEARCHING, _PE.FAIL): _P.BROKEN,
        (_P.FETCHING, _PE.OUT_OF_RANGE): _P.SEARCHING,
        (_P.FETCHING, _PE.FAIL): _P.BROKEN,
        (_P.FETCHING, _PE.REACH): _P.ENDED,
        **{(state, _PE.SEEK): _P.SEARCHING for state in _P},
    },
)


# ---- one broker ---------------------------------------------------------------------------------------------


class BrokerState(Enum):
    """Where the way to one broker is."""

    TRYING = "not asked yet"
    UP = "answers"
    LOST = "backing off; resumes at the last message boundary"
    AWAY = "not in the routing table"


class BrokerEvent(Enum):
    """What happens on the way to one broker."""

    ANSWER = "answered"
    BREAK = "connection lost, no answer, or nonsense"
    GO = "left the routing table"
    COME = "in the routing table"


_L, _LE = BrokerState, BrokerEvent

LINK: Machine[BrokerState, BrokerEvent] = Machine(
    "broker",
    _L.TRYING,
    {
        (_L.TRYING, _LE.ANSWER): _L.UP,
        (_L.TRYING, _LE.BREAK): _L.LOST,
        (_L.TRYING, _LE.GO): _L.AWAY,
        (_L.UP, _LE.ANSWER): _L.UP,
        (_L.UP, _LE.BREAK): _L.LOST,
        (_L.UP, _LE.GO): _L.AWAY,
        (_L.LOST, _LE.ANSWER): _L.UP,
        (_L.LOST, _LE.BREAK): _L.LOST,
        (_L.LOST, _LE.GO): _L.AWAY,
        (_L.AWAY, _LE.COME): _L.TRYING,
        # What was under way when it left ends in one way or the other.
        (_L.AWAY, _LE.ANSWER): _L.AWAY,
        (_L.AWAY, _LE.BREAK): _L.AWAY,
    },
)
