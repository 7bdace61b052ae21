"""Answers of a real broker with an error in them, or given in its place, on the way through its proxy."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from anyio.abc import ByteStream, SocketAttribute
from tests.conformance.kafka.apis import APIS, decode_request, encode_response
from tests.frames import FrameReader

from odradek.testing import KafkaBroker
from odradek.wire.kafka.headers import decode_response
from odradek.wire.kafka.schema import Request, Response

__all__ = ["Injection", "injected"]

Instead = Callable[[Any], Response | None]
"""Request -> the answer to give without asking the broker; None: ask it."""
Changed = Callable[[Any, Any], Response]
"""Request and the broker's answer -> the answer to pass on."""


def _unchanged(request: Any, answer: Any) -> Response:
    assert isinstance(answer, Response)
    return answer


class Injection:
    """What is done to the answers to one kind of request; everything else passes as it is.

    Attributes:
        instead: Gives an answer in the broker's place.
        changed: Changes an answer of the broker.
    """

    def __init__(self, api: type[Request[Any]]) -> None:
        self._key = api.SPEC.key
        self.instead: Instead = lambda request: None
        self.changed: Changed = _unchanged

    async def serve(self, client: ByteStream, host: str, port: int) -> None:
        """Pass the frames of one connection on, until one side ends it."""
        asked: dict[int, tuple[Request[Any], int]] = {}
        async with client, await anyio.connect_tcp(host, port) as broker, anyio.create_task_group() as tasks:
            tasks.start_soon(self._requests, client, broker, asked, tasks.cancel_scope)
            tasks.start_soon(self._answers, client, broker, asked, tasks.cancel_scope)

    async def _requests(
        self, client: ByteStream, broker: ByteStream, asked: dict[int, tuple[Request[Any], int]], end: Any
    ) -> None:
        async for frame in _frames(client, end):
            if int.from_bytes(frame[:2], "big") == self._key:
                header, request = decode_request(frame)
                if (answer := self.instead(request)) is not None:
                    await _send(client, answer, header.request_api_version, header.correlation_id)
                    continue
                asked[header.correlation_id] = request, header.request_api_version
            await broker.send(struct.pack(">i", len(frame)) + frame)

    async def _answers(
        self, client: ByteStream, broker: ByteStream, asked: dict[int, tuple[Request[Any], int]], end: Any
    ) -> None:
        async for frame in _frames(broker, end):
            correlation_id = int.from_bytes(frame[:4], "big")
            if correlation_id not in asked:
                await client.send(struct.pack(">i", len(frame)) + frame)
                continue
            request, version = asked.pop(correlation_id)
            answer, _ = decode_response(APIS[self._key].response, version, frame)
            await _send(client, self.changed(request, answer), version, correlation_id)


async def _frames(source: ByteStream, end: anyio.CancelScope) -> AsyncIterator[bytes]:
    """Yield frames without their sizes; when there are no more, the connection ends."""
    reader = FrameReader((1 << 31) - 1)
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        while True:
            for frame in reader.feed(await source.receive(1 << 20)):
                yield frame
    end.cancel()


async def _send(client: ByteStream, answer: Response, version: int, correlation_id: int) -> None:
    await client.send(encode_response(answer, version, correlation_id))


@asynccontextmanager
async def injected(broker: KafkaBroker, api: type[Request[Any]]) -> AsyncIterator[Injection]:
    """Let clients reach a proxied broker through an injection, until the block ends."""
    injection, target = Injection(api), broker.proxy.target

    async def serve(client: ByteStream) -> None:
        with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            await injection.serve(client, *target)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    try:
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve)
            await anyio.to_thread.run_sync(broker.proxy.retarget, "127.0.0.1", port)
            await anyio.to_thread.run_sync(broker.proxy.cut)
            yield injection
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(broker.proxy.retarget, *target)
            await anyio.to_thread.run_sync(broker.proxy.cut)
