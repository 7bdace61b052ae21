"""Events of connections and requests, for an observer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Protocol

import anyio

from odradek import arguments
from odradek.core.observer_calls import ObserverCalls
from odradek.errors import OdradekError
from odradek.types import Broker

if TYPE_CHECKING:
    from odradek.observe import Observer

__all__ = ["ConnectionObservation", "RequestObservation", "observer_calls"]

log = logging.getLogger("odradek.observe")


def observer_calls(*observers: Observer | None) -> ObserverCalls | None:
    """Return the calls of all observers, if there is one. The first error of each of their methods is logged.

    Raises:
        TypeError: One is no Observer, or has a method that is a coroutine function.
    """
    present = [observer for observer in observers if observer is not None]
    for observer in present:
        _check(observer)
    return ObserverCalls(present, _log_failure) if present else None


def _check(observer: object) -> None:
    from odradek.observe import Observer  # not needed without an observer

    arguments.instance(Observer, "an odradek.observe.Observer")("observer", observer)
    for name in vars(Observer):
        if iscoroutinefunction(getattr(observer, name)):
            raise TypeError(f"observer: {type(observer).__name__}.{name} must be a plain function: nothing awaits it")


def _log_failure(observer: Observer, name: str, error: Exception) -> None:
    kind = type(observer).__name__
    log.warning("%s.%s failed; later errors of it are not logged", kind, name, exc_info=error)


# ---- connections and requests -------------------------------------------------------------------------------


class ObservedEncoder(Protocol):
    """A request that knows its name, and its version once it is encoded."""

    @property
    def api_name(self) -> str: ...

    @property
    def version(self) -> int: ...


class ConnectionObservation:
    """Report one connection to an observer.

    Args:
        calls: The observer.
        broker: Where the connection leads.
        purpose: See `observe.ConnectionOpened`.
    """

    def __init__(self, calls: ObserverCalls, broker: Broker, purpose: str) -> None:
        self.calls, self.broker, self.purpose = calls, broker, purpose
        self.clock: Callable[[], float] = anyio.current_time
        self._connecting_since, self._ready = 0.0, False

    def of(self, api: str, encoder: ObservedEncoder | None = None) -> RequestObservation:
        """Return the observation of a request that is about to be submitted."""
        return RequestObservation(self, api, encoder)

    def connecting(self) -> None:
        """An attempt to connect begins."""
        self._connecting_since = self.clock()

    def opened(self) -> None:
        """The handshake is complete: the first one of the connection, or another one on it, which is no event."""
        if not self._ready:
            self._ready = True
            self.calls.connection_opened(self.broker, self.purpose, self.clock() - self._connecting_since)

    def ended(self, reason: str, *, lost: bool = True) -> None:
        """The connection, or the attempt to connect, has ended; closing what is not connected is no event."""
        if self._ready:
            self._ready = False
            self.calls.connection_ended(self.broker, self.purpose, reason, lost)
        elif lost:
            self.calls.connection_failed(self.broker, self.purpose, reason)

    def serve(self, broker: Broker, purpose: str) -> None:
        """The connection goes on as that of another broker or kind of work: it ends as the one and opens as the other,
        so that observers which count open connections are right about both."""
        was_ready = self._ready
        self.ended(f"continues for {purpose}", lost=False)
        self.broker, self.purpose, self._connecting_since = broker, purpose, self.clock()
        if was_ready:
            self.opened()

    def throttled(self, seconds: float) -> None:
        """A response said that a quota was exceeded."""
        self.calls.throttled(self.broker, self.purpose, seconds)

    @contextmanager
    def request(self, api: str) -> Iterator[None]:
        """Report the request that the block makes, unless it is cancelled. For requests without bytes."""
        request = RequestObservation(self, api, None)
        try:
            yield
        except OdradekError as error:
            request.finished(error)
            raise
        request.finished(None)


class RequestObservation:
    """Report one request to an observer.

    Args:
        connection: That of its connection.
        api: Name of the request, if it has no encoder.
        encoder: What encodes it.

    `sent_bytes` and `received_bytes` are counted by the pipeline of the connection.
    """

    __slots__ = ("_api", "_begun_at", "_connection", "_encoder", "received_bytes", "sent_bytes")

    def __init__(self, connection: ConnectionObservation, api: str, encoder: ObservedEncoder | None) -> None:
        self._connection, self._api, self._encoder = connection, api, encoder
        self._begun_at = connection.clock()
        self.sent_bytes = self.received_bytes = 0

    def finished(self, error: OdradekError | None) -> None:
        """The request has its result."""
        connection, encoder = self._connection, self._encoder
        connection.calls.request_finished(
            connection.broker,
            connection.purpose,
            self._api if encoder is None else encoder.api_name,
            -1 if encoder is None else encoder.version,
            self.sent_bytes,
            self.received_bytes,
            connection.clock() - self._begun_at,
            error,
        )
