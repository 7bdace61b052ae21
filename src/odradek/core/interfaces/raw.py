"""Requests that a user makes of the messages of the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["RawRequest", "RawResponse"]


class RawRequest(NamedTuple):
    """A request, and where it goes: to one of broker, controller, group and transactional id, or to any broker.

    Args:
        api: Name of the API, such as `DescribeCluster`.
        fields: Fields of the request, by name.
        version: The version of the request; None: the latest that both sides have.
        broker: Id of a broker.
        controller: True for the controller.
        group: A group, for its coordinator.
        transactional_id: A transactional id, for its coordinator.
    """

    api: str
    fields: Mapping[str, Any]
    version: int | None = None
    broker: int | None = None
    controller: bool = False
    group: str | None = None
    transactional_id: str | None = None


class RawResponse(NamedTuple):
    """The response to a request of `Cluster.request`.

    Args:
        api: Name of the API.
        version: The version of request and response.
        broker: Id of the broker that answered.
        fields: Fields of the response, by name: dict, list, str, int, float, bool, bytes or None. Errors of the broker
            are fields, too: nothing here looks at them.
    """

    api: str
    version: int
    broker: int
    fields: dict[str, Any]
