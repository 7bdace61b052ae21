"""Every API by its key, and requests of any API as a broker reads them."""

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
    """Decode a request and its header, which says what it is.

    Args:
        frame: Without the size.

    Raises:
        RemoteProtocolError: There is no such API or version, or the bytes are not such a request.
    """
    if len(frame) < _START.size:
        raise RemoteProtocolError(f"{len(frame)} bytes are no request")
    key, version = _START.unpack_from(frame)
    api = APIS.get(key)
    if api is None or not api.versions[0] <= version <= api.versions[1]:
        raise RemoteProtocolError(f"there is no version {version} of a request with key {key}")
    header, start = decoder(RequestHeader, header_version(api.request, version))(frame, 0)
    return header, decode(api.request, version, frame, start)
