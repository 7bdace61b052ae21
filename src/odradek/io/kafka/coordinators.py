"""Coordinators: which broker serves a group or a transactional id (FindCoordinator)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import TypeAlias

from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import Unsupported
from odradek.types import Broker
from odradek.wire.kafka import messages

__all__ = ["CoordinatorType", "Coordinators"]


class CoordinatorType(IntEnum):
    """The kind of a coordinator. Numbers as in FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


Ask: TypeAlias = (
    "Callable[[Callable[[BrokerVersions], messages.groups.FindCoordinatorRequest]], "
    "Awaitable[messages.groups.FindCoordinatorResponse]]"
)
"""Function that sends a request, made for the versions of the broker, to any broker. Raises OdradekError."""


class Coordinators:
    """Coordinators found so far.

    Args:
        ask: Sends requests.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._known: dict[tuple[CoordinatorType, str], Broker] = {}

    async def find(self, kind: CoordinatorType, key: str) -> Broker:
        """Return the coordinator of a group or a transactional id. Cancellation: safe.

        Raises:
            BrokerError: There is none now (`retriable`), or this client may not use it.
            Unsupported: The cluster has none of this kind.
            OdradekError: No broker answered.
        """
        known = self._known.get((kind, key))
        if known is not None:
            return known
        answer = await self._ask(lambda versions: _request(versions, kind, key))
        if answer.error_code:
            said = f": {answer.error_message}" if answer.error_message else ""
            raise broker_error(answer.error_code, f"FindCoordinator of {kind.name.lower()} {key!r}{said}")
        broker = self._known[kind, key] = Broker(answer.node_id, answer.host, answer.port)
        return broker

    def forget(self, kind: CoordinatorType, key: str) -> None:
        """Find it again the next time: it moved, or does not answer."""
        self._known.pop((kind, key), None)


def _request(versions: BrokerVersions, kind: CoordinatorType, key: str) -> messages.groups.FindCoordinatorRequest:
    if kind is CoordinatorType.GROUP:
        return messages.groups.FindCoordinatorRequest(key=key)
    if not versions.has(messages.groups.FindCoordinatorRequest, 1):
        raise Unsupported("a transaction", "Kafka 0.11")
    return messages.groups.FindCoordinatorRequest(key=key, key_type=int(kind))
