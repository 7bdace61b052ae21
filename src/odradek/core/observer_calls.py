"""Calls of an observer: what it raises harms nothing, and what it does not override costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odradek.observe import Observer

__all__ = ["ObserverCalls"]

Call = Callable[..., None]
"""A function that takes the fields of an event, in their order."""

Failed = Callable[[str, Exception], None]


class ObserverCalls:
    """The methods of an observer, as functions that take the fields of their event and never raise an Exception.

    Each makes the event of them: as a tuple, without its Python constructor, which takes six times as long. A method
    that the observer does not override is a function that does nothing.

    Args:
        observer: The user's.
        failed: Called with the name of a method, and its error, when the method has raised for the first time.
    """

    def __init__(self, observer: Observer, failed: Failed) -> None:
        from odradek import observe  # not needed without an observer

        self.connection_opened = _call(observer, failed, "connection_opened", observe.ConnectionOpened)
        self.connection_failed = _call(observer, failed, "connection_failed", observe.ConnectionFailed)
        self.connection_ended = _call(observer, failed, "connection_ended", observe.ConnectionEnded)
        self.throttled = _call(observer, failed, "throttled", observe.Throttled)
        self.request_finished = _call(observer, failed, "request_finished", observe.RequestFinished)
        self.batch_sent = _call(observer, failed, "batch_sent", observe.BatchSent)
        self.batch_finished = _call(observer, failed, "batch_finished", observe.BatchFinished)
        self.buffer_level = _call(observer, failed, "buffer_level", observe.BufferLevel)
        self.part_fetched = _call(observer, failed, "part_fetched", observe.PartFetched)
        self.batch_delivered = _call(observer, failed, "batch_delivered", observe.BatchDelivered)
        self.read_ahead_level = _call(observer, failed, "read_ahead_level", observe.ReadAheadLevel)
        self.commit_finished = _call(observer, failed, "commit_finished", observe.CommitFinished)
        self.rebalanced = _call(observer, failed, "rebalanced", observe.Rebalanced)
        self.heartbeat_late = _call(observer, failed, "heartbeat_late", observe.HeartbeatLate)


def _call(observer: Observer, failed: Failed, name: str, kind: type[tuple[Any, ...]]) -> Call:
    """Return the function for one method of an observer."""
    from odradek.observe import Observer

    method = getattr(observer, name)
    if getattr(method, "__func__", None) is getattr(Observer, name):
        return _ignore
    new, works = tuple.__new__, True

    def call(*fields: object) -> None:
        nonlocal works
        try:
            method(new(kind, fields))
        except Exception as error:
            if works:
                works = False
                failed(name, error)

    return call


def _ignore(*fields: object) -> None:
    """Do nothing."""
