"""Every API by its key, and the version of the header that goes with a message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from odradek.wire.kafka.messages import (
    admin,
    brokers,
    data,
    groups,
    metadata,
    security,
    share_groups,
    transactions,
)
from odradek.wire.kafka.schema import Request, Response, response_of

__all__ = ["APIS", "FAMILIES", "Api"]

FAMILIES = (data, metadata, groups, transactions, security, admin, share_groups, brokers)
"""The modules that declare messages."""


class Api(NamedTuple):
    """A request and its response."""

    key: int
    name: str
    request: type[Request[Any]]
    response: type[Response]

    @property
    def versions(self) -> tuple[int, int]:
        """First and last version."""
        return self.request.SPEC.versions


def _api(request: type[Request[Any]]) -> Api:
    return Api(request.SPEC.key, request.SPEC.name, request, response_of(request))


def _requests() -> Iterator[type[Request[Any]]]:
    for family in FAMILIES:
        for value in vars(family).values():
            if isinstance(value, type) and issubclass(value, Request) and value is not Request:
                yield value


APIS = {api.key: api for api in sorted(map(_api, _requests()))}
"""Every API by its key."""
