"""Frames of requests and responses: the header, the body, and the header version that goes with each message.

Source: KIP-482, KIP-511, kafka-specification.md 1.3 and 4.5.
"""

from __future__ import annotations

import struct as binary
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, TypeVar

from odradek.engine import Buffer
from odradek.errors import RemoteProtocolError
from odradek.wire.kafka.decode import decode, decoder
from odradek.wire.kafka.encode import encode, encoder
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.metadata import ApiVersionsResponse
from odradek.wire.kafka.schema import (
    I16,
    I32,
    IGNORABLE,
    Message,
    PlainStr,
    Request,
    Response,
    message,
    nullable,
    since,
)

__all__ = [
    "RequestHeader",
    "ResponseHeader",
    "decode_response",
    "encode_request",
    "header_version",
]

R = TypeVar("R", bound=Response)

CONTROLLED_SHUTDOWN = 7  # its key
WHOLE_BYTES = 4096  # parts of at least this size are passed on, not copied

_ID = binary.Struct(">i")
_REQUEST_START = binary.Struct(">ihhi")  # size; key, version and correlation id, with which every header begins
_START_BYTES = _REQUEST_START.size - _ID.size  # without the size
_NO_KEYS = bytes(4)
_UNSUPPORTED_VERSION = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")


@message(versions=(0, 2), flexible=2)
class RequestHeader(Message):
    """Header of a request: which API and version the body is, and an id that the response repeats."""

    request_api_key: I16 = 0
    request_api_version: I16 = 0
    correlation_id: I32 = 0
    client_id: Annotated[PlainStr | None, since(1), nullable(), IGNORABLE] = ""


@message(versions=(0, 1), flexible=1)
class ResponseHeader(Message):
    """Header of a response: the correlation id of the request that it answers."""

    correlation_id: I32 = 0


def header_version(cls: type[Message], version: int) -> int:
    """Return the version of the header that goes with a version of a request or response."""
    spec = cls.SPEC
    if cls is ApiVersionsResponse:
        return 0  # the client does not know the versions of the broker yet (KIP-511)
    if (spec.key, spec.side, version) == (CONTROLLED_SHUTDOWN, "request", 0):
        return 0  # without a client id (kafka-specification.md 1.1, note 9)
    return spec.is_flexible(version) + (spec.side == "request")


# ---- frames -------------------------------------------------------------------------------------------------


def encode_request(
    request: Request[Any], version: int, correlation_id: int, client_id: str | None = None
) -> list[Buffer]:
    """Encode a frame: the size, the header and the body of a request. Returns buffers to send in this order.

    Large record bytes are passed on without a copy: they must not change until they are sent.

    Raises:
        LocalProtocolError: The request cannot be encoded in this version.
        ValueError: There is no such version.
    """
    kind = type(request), version
    known = _requests.get(kind)
    if known is None:
        known = _requests[kind] = header_version(*kind), encoder(*kind)
    header, write = known
    end = _header_end(header, client_id)
    parts: list[Buffer] = [end]
    write(request, parts.append)
    size = _START_BYTES + sum(map(len, parts))
    parts[0] = _REQUEST_START.pack(size, request.SPEC.key, version, correlation_id) + end
    return [b"".join(parts)] if size < WHOLE_BYTES else _joined(parts)


_requests: dict[tuple[type[Message], int], tuple[int, Callable[[Any, Callable[[Buffer], None]], None]]] = {}
"""Request and its version -> the version of its header, and the encoder of its body."""

_response_headers: dict[tuple[type[Message], int], int] = {}
"""Response and its version -> the version of its header."""


@lru_cache(maxsize=100)
def _header_end(version: int, client_id: str | None) -> bytes:
    """Return what follows the correlation id in the header of a request: the same in every request of a client."""
    return encode(RequestHeader(client_id=client_id), version)[_START_BYTES:]


def _joined(parts: list[Buffer]) -> list[Buffer]:
    """Join adjacent small buffers."""
    joined: list[Buffer] = []
    small: list[Buffer] = []
    for part in parts:
        if len(part) < WHOLE_BYTES:
            small.append(part)
            continue
        joined += [b"".join(small), part]
        small = []
    return [*joined, b"".join(small)] if small else joined


def decode_response(cls: type[R], version: int, frame: Buffer) -> tuple[R, int]:
    """Decode the response to a request of this version; also return its correlation id.

    Args:
        cls: The response.
        version: The version of the request.
        frame: The header and the body, without the size.

    Raises:
        RemoteProtocolError: The bytes are not a valid response of this version.
    """
    kind = cls, version
    header = _response_headers.get(kind)
    if header is None:
        header = _response_headers[kind] = header_version(*kind)
    if len(frame) > _ID.size and not (header and frame[_ID.size]):  # without tagged fields, as all are so far
        (correlation_id,), start = _ID.unpack_from(frame), _ID.size + header
    else:
        fields, start = decoder(ResponseHeader, header)(frame, 0)
        correlation_id = fields.correlation_id
    if cls is ApiVersionsResponse and frame[start : start + 2] == _UNSUPPORTED_VERSION:
        return _refused_version(cls, frame, start), correlation_id
    return decode(cls, version, frame, start), correlation_id


def _refused_version(cls: type[R], frame: Buffer, start: int) -> R:
    """Decode the response to a version of ApiVersions that the broker does not know: it has version 0 (KIP-511), and
    from some servers nothing valid after the error code (kafka-specification.md 1.3)."""
    try:
        return decode(cls, 0, frame, start)
    except RemoteProtocolError:
        return decode(cls, 0, _UNSUPPORTED_VERSION + _NO_KEYS)
