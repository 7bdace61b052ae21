"""Table of all APIs, and the decoder of requests of any API, as a broker needs it."""

from __future__ import annotations

import struct as binary
from collections.abc import Iterator
from typing import Any, NamedTuple

from odradek.engine import Buffer
from odradek.errors import RemoteProtocolError
from odradek.wire.kafka.decode import decode, decoder
from odradek.wire.kafka.headers import RequestHeader, header_version
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

__all__ = ["APIS", "Api", "decode_request"]

_START = binary.Struct(">hh")

_FAMILIES = (data, metadata, groups, transactions, security, admin, share_groups, brokers)


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
    for family in _FAMILIES:
        for value in vars(family).values():
            if isinstance(value, type) and issubclass(value, Request) and value is not Request:
                yield value


APIS = {api.key: api for api in sorted(map(_api, _requests()))}
"""Every API by its key."""


def decode_request(frame: Buffer) -> tuple[RequestHeader, Request[Any]]:
    """Decode the header of a request, and the request that it announces.

    Args:
        frame: The header and the body, without the size.

    Raises:
        RemoteProtocolError: There is no such API or version, or the bytes are not a valid request of it.
    """
    if len(frame) < _START.size:
        raise RemoteProtocolError(f"a request of {len(frame)} bytes, too short for an API key and a version")
    key, version = _START.unpack_from(frame)
    api = APIS.get(key)
    if api is None or not api.versions[0] <= version <= api.versions[1]:
        raise RemoteProtocolError(f"unknown request: API key {key}, version {version}")
    header, start = decoder(RequestHeader, header_version(api.request, version))(frame, 0)
    return header, decode(api.request, version, frame, start)
