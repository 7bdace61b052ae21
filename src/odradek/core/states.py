"""State machines as data, and the three that make up a consumer.

A machine is a dict from (state, event) to the next state; a pair that is not in it is a mistake of ours and raises. The
code that runs a consumer asks these tables for every step, and the pictures of the documentation are
drawn from the same dicts, so neither can say something the other does not do.

    CONSUMER   start-up, rebalances, session expiry, exit           (specification 6.1, 6.2, 5.3)
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
