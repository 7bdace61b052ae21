"""Calls of observers: what they raise harms nothing, and what they do not override costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odradek.observe import Observer

__all__ = ["ObserverCalls"]

Call = Callable[..., None]
"""A function that takes the fields of an event, in their order."""

Failed = Callable[["Observer", str, Exception], None]


class ObserverCalls:
    """The methods of observers, as functions that take the fields of their event and never raise an Exception.

    Each makes the event of them: as a tuple, without its Python constructor, which takes six times as long. A method
    that no observer overrides is a function that does nothing.

    Args:
        observers: They are called in this order.
        failed: Called with an observer, the name of a method, and its error, when the method has raised for the first
            time.
    """

    def __init__(self, observers: Sequence[Observer], failed: Failed) -> None:
        from odradek import observe  # not needed without an observer

        self.connection_opened = _call(observers, failed, "connection_opened", observe.ConnectionOpened)
        self.connection_failed = _call(observers, failed, "connection_failed", observe.ConnectionFailed)
        self.connection_ended = _call(observers, failed, "connection_ended", observe.ConnectionEnded)
        self.throttled = _call(observers, failed, "throttled", observe.Throttled)
        self.request_finished = _call(observers, failed, "request_finished", observe.RequestFinished)
        self.batch_sent = _call(observers, failed, "batch_sent", observe.BatchSent)
        self.batch_finished = _call(observers, failed, "batch_finished", observe.BatchFinished)
        self.buffer_level = _call(observers, failed, "buffer_level", observe.BufferLevel)
        self.part_fetched = _call(observers, failed, "part_fetched", observe.PartFetched)
        self.batch_delivered = _call(observers, failed, "batch_delivered", observe.BatchDelivered)
        self.read_ahead_level = _call(observers, failed, "read_ahead_level", observe.ReadAheadLevel)
        self.commit_finished = _call(observers, failed, "commit_finished", observe.CommitFinished)
        self.rebalanced = _call(observers, failed, "rebalanced", observe.Rebalanced)
        self.heartbeat_late = _call(observers, failed, "heartbeat_late", observe.HeartbeatLate)
        self.mirror_committed = _call(observers, failed, "mirror_committed", observe.MirrorCommitted)
        self.mirror_lag = _call(observers, failed, "mirror_lag", observe.MirrorLag)


def _call(observers: Sequence[Observer], failed: Failed, name: str, kind: type[tuple[Any, ...]]) -> Call:
    """Return the function for one method of all observers."""
    from odradek.observe import Observer

    unchanged = getattr(Observer, name)
    calls = [
        _call_one(observer, failed, name, kind)
        for observer in observers
        if getattr(getattr(observer, name), "__func__", None) is not unchanged
    ]
    if len(calls) < 2:
        return calls[0] if calls else _ignore

    def call_all(*fields: object) -> None:
        for call in calls:
            call(*fields)

    return call_all


def _call_one(observer: Observer, failed: Failed, name: str, kind: type[tuple[Any, ...]]) -> Call:
    method, new, works = getattr(observer, name), tuple.__new__, True

    def call(*fields: object) -> None:
        nonlocal works
        try:
            method(new(kind, fields))
        except Exception as error:
            if works:
                works = False
                failed(observer, name, error)

    return call


def _ignore(*fields: object) -> None:
    """Do nothing."""
