"""The states of a connection to a broker, as data; its options; what it reports about itself."""

import math
from enum import Enum
from typing import NamedTuple

from odradek.core.backoff import Backoff
from odradek.core.states import Machine

__all__ = ["CONNECTION", "ConnectionOptions", "Event", "State", "Statistics"]


class State(Enum):
    """The state of a connection."""

    IDLE = "idle"
    WAITING = "waiting"
    CONNECTING = "connecting"
    HANDSHAKING = "handshaking"
    CONNECTED = "connected"
    THROTTLED = "throttled"
    CLOSED = "closed"


class Event(Enum):
    """The event that moves a connection to its next state."""

    REQUESTED = "a request is queued"
    BACKOFF_OVER = "the back-off is over"
    QUEUE_EMPTY = "no request is queued any more"
    CONNECTED = "connected"
    CONNECT_FAILED = "no connection"
    READY = "handshake complete"
    HANDSHAKE_DUE = "another handshake is due"
    THROTTLED = "the broker asked for a pause"
    RESUMED = "the pause is over"
    UNUSED = "unused for too long"
    LOST = "connection lost"
    CLOSE = "closed by this client"


CONNECTION: Machine[State, Event] = Machine(
    "connection",
    State.IDLE,
    {
        (State.IDLE, Event.REQUESTED): State.WAITING,
        (State.WAITING, Event.BACKOFF_OVER): State.CONNECTING,
        (State.WAITING, Event.QUEUE_EMPTY): State.IDLE,
        (State.CONNECTING, Event.CONNECTED): State.HANDSHAKING,
        (State.CONNECTING, Event.CONNECT_FAILED): State.IDLE,
        (State.HANDSHAKING, Event.READY): State.CONNECTED,
        (State.HANDSHAKING, Event.LOST): State.IDLE,
        (State.CONNECTED, Event.HANDSHAKE_DUE): State.HANDSHAKING,
        (State.CONNECTED, Event.THROTTLED): State.THROTTLED,
        (State.THROTTLED, Event.RESUMED): State.CONNECTED,
        (State.THROTTLED, Event.LOST): State.IDLE,
        (State.CONNECTED, Event.UNUSED): State.IDLE,
        (State.CONNECTED, Event.LOST): State.IDLE,
        **{(state, Event.CLOSE): State.CLOSED for state in State if state is not State.CLOSED},
    },
)


class ConnectionOptions(NamedTuple):
    """Options of a connection.

    Args:
        connect_timeout_s: For look-up and connect together, and for each response of the handshake (s).
        backoff: Between attempts to connect.
        max_idle_s: A connection that was not used for so long is closed; the next request opens another one (s).
    """

    connect_timeout_s: float = 5.0
    backoff: Backoff = Backoff()
    max_idle_s: float = math.inf


class Statistics(NamedTuple):
    """Counters of a connection.

    `queued` requests of `queued_bytes` wait for the socket; `in_flight` requests were handed to it and have no result
    yet. `attempts` counts the attempts to connect in a row that failed or were lost before a response. `last_error` is
    the reason of the last loss or failed attempt. `throttled_seconds` is what responses said that this client is
    throttled.
    """

    state: State
    queued: int
    queued_bytes: int
    in_flight: int
    requests: int
    sent_bytes: int
    received_bytes: int
    connects: int
    losses: int
    attempts: int
    last_error: str
    throttled_seconds: float
