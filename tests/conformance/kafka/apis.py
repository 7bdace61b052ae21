"""The messages of all APIs of Kafka 0.8 to 4.3, in both directions, as a broker needs them."""

from __future__ import annotations

import struct as binary
from types import ModuleType
from typing import Any, NamedTuple

from odradek.engine import Buffer
from odradek.errors import RemoteProtocolError
from odradek.wire.kafka.decode import decode, decoder
from odradek.wire.kafka.encode import encode
from odradek.wire.kafka.headers import RequestHeader, ResponseHeader, header_version
from odradek.wire.kafka.messages import (
    admin,
    data,
    groups,
    metadata,
    quorum,
    security,
    share_groups,
    telemetry,
    transactions,
)
from odradek.wire.kafka.schema import Request, Response, response_of

from .messages import brokers, share_state, streams_groups

_START = binary.Struct(">hh")

_FAMILIES = (data, metadata, groups, transactions, security, admin, quorum, share_groups, telemetry)
_OTHERS = (brokers, share_state, streams_groups)


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


def _apis(*families: ModuleType) -> dict[int, Api]:
    declared = [value for family in families for value in vars(family).values() if isinstance(value, type)]
    requests = [cls for cls in declared if issubclass(cls, Request) and cls is not Request]
    return {api.key: api for api in sorted(map(_api, requests))}


OWN_APIS = _apis(*_FAMILIES)
"""The APIs that odradek declares, by their keys."""

APIS = dict(sorted((OWN_APIS | _apis(*_OTHERS)).items()))
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


def encode_response(response: Response, version: int, correlation_id: int) -> bytes:
    """Encode a frame: the size, the header and the body of a response."""
    header = ResponseHeader(correlation_id=correlation_id)
    frame = encode(header, header_version(type(response), version)) + encode(response, version)
    return len(frame).to_bytes(4, "big") + frame
