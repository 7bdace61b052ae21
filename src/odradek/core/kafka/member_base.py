"""The base of group members under both protocols: one request at a time, and the partitions that they own.

`member` is one of the classic protocol, `consumer_group_member` one of KIP-848; `group_effects` says how they are used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, Generic, TypeVar

from odradek.core.kafka.group_effects import Effect, Fail, GroupCoordinator, Lost, Revoke, Send
from odradek.core.kafka.in_flight import InFlight
from odradek.core.kafka.member_states import MOVED, MemberSettings
from odradek.core.states import Machine
from odradek.errors import OdradekError
from odradek.types import TopicPartition
from odradek.wire.kafka.messages.groups import FindCoordinatorResponse
from odradek.wire.kafka.schema import Request, Response

__all__ = ["BaseMember"]

MAX_REFUSED_LEAVES = 5
"""Responses in a row that send a leaving member to another coordinator, after which it counts as having left: the
coordinator removes it when its session times out."""

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class BaseMember(ABC, Generic[S, E]):
    """One member.

    Args:
        machine: Its states; LEAVING, LEFT and FAILED are among them.
        on_error: The event of an error that ends it.
        on_left: The event that it has left.
        settings: Group, timeouts and rack.
        topics: The topics it subscribes to.
    """

    def __init__(
        self, machine: Machine[S, E], on_error: E, on_left: E, settings: MemberSettings, topics: frozenset[str]
    ) -> None:
        self._machine, self._on_error, self._on_left = machine, on_error, on_left
        self.settings, self.topics = settings, topics
        self.state = machine.start
        self.member_id = ""
        self.coordinator: GroupCoordinator | None = None
        self.owned: frozenset[TopicPartition] = frozenset()
        self._revoking: Revoke | None = None
        self._effects: list[Effect] = []
        self._in_flight = InFlight[Request[Any]]()
        self._heartbeat_at = 0.0
        self._unknown_errors = 0  # in a row
        self._refused_leaves = 0
        self._may_have_joined = False  # a heartbeat was lost that it joins with, or a later one

    @property
    def has_ended(self) -> bool:
        """True once it has left or failed."""
        return self.state.name in ("LEFT", "FAILED")

    @property
    def is_leaving(self) -> bool:
        """True from `leave` until it has left."""
        return self.state.name == "LEAVING"

    def revoked(self, revoke: Revoke) -> None:
        """Continue after the partitions of a `Revoke` were given up and committed.

        Args:
            revoke: The effect. If its partitions were lost meanwhile the call has no effect, even if another `Revoke`
                is outstanding by now.
        """
        if revoke is self._revoking:
            self._revoking = None
            self._after_revoke(revoke)

    def poll(self, now: float) -> list[Effect]:
        """Return the effects to carry out now, in this order."""
        if self._in_flight.can_send(now) and not self.has_ended:
            self._next_step(now)
        effects, self._effects = self._effects, []
        return effects

    def tick(self, now: float) -> float | None:
        """Return when to call `poll` again at the latest; None if only a response or a call matters."""
        if not self._in_flight.is_free or self.has_ended:
            return None
        retry_at = self._in_flight.wake_at(now)
        return self._heartbeat_due() if retry_at is None else retry_at

    def receive(self, response: Response, now: float, backoff_s: float = 0.1) -> None:
        """Handle the response to the request in flight.

        Args:
            response: The response.
            now: The time (s).
            backoff_s: Back-off if the error is a passing one (s); the caller adds its jitter.
        """
        sent = self._in_flight.complete(self)
        if not self.has_ended:
            self._read(sent, response, now, backoff_s)

    @abstractmethod
    def _after_revoke(self, revoke: Revoke) -> None: ...

    @abstractmethod
    def _next_step(self, now: float) -> None: ...

    @abstractmethod
    def _heartbeat_due(self) -> float | None: ...

    @abstractmethod
    def _read(self, sent: Request[Any], response: Response, now: float, backoff_s: float) -> None: ...

    def _send(
        self, request: Request[Any], node: GroupCoordinator | None = None, timeout_s: float | None = None
    ) -> None:
        self._effects.append(Send(self._in_flight.send(request), node, timeout_s))

    def _revoke(self, partitions: frozenset[TopicPartition]) -> None:
        self._revoking = Revoke(partitions)
        self._effects.append(self._revoking)

    def _find_coordinator(self, now: float, backoff_s: float) -> None:
        self.coordinator = None
        self._in_flight.back_off(now, backoff_s)
        self._heartbeat_at = 0.0

    def _read_coordinator(self, response: FindCoordinatorResponse) -> int:
        """Apply a response. Return the error that needs a reaction, or 0: with one, a leaving member has left."""
        if not response.error_code:
            self.coordinator = GroupCoordinator(response.node_id, response.host, response.port)
        elif self.is_leaving:
            self._go(self._on_left)  # the coordinator removes the member when its session times out
        else:
            return response.error_code
        return 0

    def _leave_answered(self, error: int, now: float, backoff_s: float, *, tried: bool = True) -> None:
        """Handle the error code, or 0, of a response to a leaving member, `tried` if it is that of the request that
        leaves. If the group has moved, the new coordinator has the member, and is told."""
        self._refused_leaves += 1
        if error in MOVED and self._refused_leaves <= MAX_REFUSED_LEAVES:
            self._find_coordinator(now, backoff_s)
        elif tried:
            self._go(self._on_left)

    def _drop(self, reason: str) -> None:
        self._revoking = None
        if self.owned:
            self._effects.append(Lost(self.owned, reason))
            self.owned = frozenset()

    def _fail(self, error: OdradekError) -> None:
        self._drop(str(error))
        self._go(self._on_error)
        self._effects.append(Fail(error))

    def _go(self, event: E) -> None:
        self.state = self._machine.after(self.state, event)
