"""A peer at the other end of connections in memory: it answers as a script says, one function for each request."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream, TaskGroup
from tests.conformance.kafka.apis import APIS, decode_request, encode_response
from tests.memory_pair import memory_pair

from odradek.core.kafka.sasl import UnansweredToken
from odradek.core.kafka.versions import OLD_RELEASES, BrokerVersions
from odradek.engine import Buffer
from odradek.io.kafka.connection import KafkaConnection
from odradek.io.kafka.handshake import Session
from odradek.wire.kafka.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataResponse,
    MetadataResponseBroker,
)
from odradek.wire.kafka.schema import Request, Response

Answer = Response | bytes | None | type[ConnectionAbortedError]
"""A response, raw bytes, silence, or the end of the connection."""

EVERYTHING = ApiVersionsResponse(
    api_keys=tuple(
        ApiVersion(api_key=key, min_version=api.versions[0], max_version=api.versions[1]) for key, api in APIS.items()
    )
)
CLUSTER = MetadataResponse(brokers=(MetadataResponseBroker(node_id=1, host="b", port=9092),), cluster_id="c")


def everything_but(*apis: type[Request[Any]]) -> tuple[ApiVersion, ...]:
    """Return what a broker offers that does not have these requests."""
    keys = {api.SPEC.key for api in apis}
    return tuple(each for each in EVERYTHING.api_keys if each.api_key not in keys)


class Peer:
    """Brokers at all addresses.

    Attributes:
        requests: What it was sent: request and version, or a raw frame.
        connections: Addresses that were dialled.
        answers: Function for a kind of request; the default is the response with its defaults.
        raw: Function for a frame that is no request, instead of decoding it; an `UnansweredToken` is no response.
        cut: After so many bytes sent in all, each connection is closed.
    """

    def __init__(self, answers: Mapping[type, Callable[[Any, int], Answer]] | None = None) -> None:
        self.answers: dict[type, Callable[[Any, int], Answer]] = {
            ApiVersionsRequest: lambda request, version: EVERYTHING,
            **(answers or {}),
        }
        self.requests: list[tuple[Any, int]] = []
        self.connections: list[str] = []
        self.raw: Callable[[bytes], Answer] | None = None
        self.cut: int | None = None
        self.sent = 0
        self.group: TaskGroup | None = None
        self.capacity = 1 << 20
        self._streams: list[ByteStream] = []

    def names(self) -> list[str]:
        return [f"{type(request).__name__.removesuffix('Request')} {version}" for request, version in self.requests]

    async def dial(self, host: str, port: int, timeout: float) -> ByteStream:
        self.connections.append(f"{host}:{port}")
        near, far = memory_pair(self.capacity)
        assert self.group is not None
        self.group.start_soon(self.serve, far)
        await anyio.lowlevel.checkpoint()
        return near

    async def hang_up(self) -> None:
        """Close every connection."""
        while self._streams:
            await self._streams.pop().aclose()

    async def serve(self, stream: ByteStream) -> None:
        buffer = b""
        self._streams.append(stream)
        async with stream:
            try:
                while True:
                    buffer += await stream.receive(65536)
                    while len(buffer) >= 4 and len(buffer) >= (end := 4 + struct.unpack_from(">i", buffer)[0]):
                        frame, buffer = buffer[4:end], buffer[end:]
                        await self.reply(stream, frame)
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionAbortedError):
                return

    async def reply(self, stream: ByteStream, frame: bytes) -> None:
        data: bytes | None
        if self.raw is not None and (said := self.raw(frame)) is not None:
            assert isinstance(said, bytes)
            if not isinstance(said, UnansweredToken):
                await self.send(stream, struct.pack(">i", len(said)) + said)
            return
        header, request = decode_request(frame)
        version = header.request_api_version
        self.requests.append((request, version))
        answer_of: Callable[[Any, int], Answer] = self.answers.get(type(request)) or self.default
        answer = answer_of(request, version)
        if answer is None:
            return
        if isinstance(answer, Response):
            spoken = 0 if isinstance(answer, ApiVersionsResponse) and answer.error_code == 35 else version
            data = encode_response(answer, spoken, header.correlation_id)
        elif isinstance(answer, bytes):
            data = answer
        else:
            raise ConnectionAbortedError
        await self.send(stream, data)

    def default(self, request: Request[Any], version: int) -> Response:
        return APIS[request.SPEC.key].response()

    async def send(self, stream: ByteStream, data: bytes) -> None:
        if self.cut is not None and self.sent + len(data) > self.cut:
            data, left = data[: max(0, self.cut - self.sent)], True
        else:
            left = False
        self.sent += len(data)
        if data:
            await stream.send(data)
        if left:
            raise ConnectionAbortedError


def of_release(release: str) -> Peer:
    """Return a peer that treats requests as a release does that does not answer ApiVersions."""
    known = OLD_RELEASES[release]
    peer = Peer()

    def answer(request: Request[Any], version: int) -> Answer:
        if request.SPEC.key in known:
            return APIS[request.SPEC.key].response()
        return None if release == "0.9.0" else ConnectionAbortedError

    for api in APIS.values():
        peer.answers[api.request] = answer
    return peer


class _Handshake:
    """A request without bytes, done when the handshake is (`io.requests.RequestEncoder`)."""

    size = 0
    session: Session

    def encode(self, session: Session) -> tuple[Sequence[Buffer], None]:
        self.session = session
        return (), None


async def negotiate(connection: KafkaConnection, timeout_s: float = 30) -> BrokerVersions:
    """The versions of the broker of a connection, which is opened if it is not."""
    request = _Handshake()
    await connection.connection.submit((), None, deadline_s=timeout_s, request=request)
    return request.session.versions
