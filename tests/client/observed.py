"""An observer that keeps every event."""

from __future__ import annotations

from typing import Any, TypeVar

from odradek import observe
from odradek.observe import Observer

__all__ = ["Recorder"]

E = TypeVar("E")


class Recorder(Observer):
    """Keeps all events, in their order."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def kinds(self) -> list[str]:
        """Names of the kinds of all events, in their order."""
        return [type(event).__name__ for event in self.events]

    def connection_opened(self, event: observe.ConnectionOpened) -> None:
        self.events.append(event)

    def connection_failed(self, event: observe.ConnectionFailed) -> None:
        self.events.append(event)

    def connection_ended(self, event: observe.ConnectionEnded) -> None:
        self.events.append(event)

    def throttled(self, event: observe.Throttled) -> None:
        self.events.append(event)

    def request_finished(self, event: observe.RequestFinished) -> None:
        self.events.append(event)

    def batch_sent(self, event: observe.BatchSent) -> None:
        self.events.append(event)

    def batch_finished(self, event: observe.BatchFinished) -> None:
        self.events.append(event)

    def buffer_level(self, event: observe.BufferLevel) -> None:
        self.events.append(event)

    def part_fetched(self, event: observe.PartFetched) -> None:
        self.events.append(event)

    def batch_delivered(self, event: observe.BatchDelivered) -> None:
        self.events.append(event)

    def read_ahead_level(self, event: observe.ReadAheadLevel) -> None:
        self.events.append(event)

    def commit_finished(self, event: observe.CommitFinished) -> None:
        self.events.append(event)

    def rebalanced(self, event: observe.Rebalanced) -> None:
        self.events.append(event)

    def heartbeat_late(self, event: observe.HeartbeatLate) -> None:
        self.events.append(event)

    def mirror_committed(self, event: observe.MirrorCommitted) -> None:
        self.events.append(event)

    def mirror_lag(self, event: observe.MirrorLag) -> None:
        self.events.append(event)
