"""Bare requests and responses, one at a time, over what a loop itself has: the limit of one exchange."""

from __future__ import annotations

import asyncio

import trio

from _common import Stopwatch
from _peer import HEAD

READ_BYTES = 1 << 20


class Bare(asyncio.BufferedProtocol):
    """A reused buffer, and a future for every answer."""

    def __init__(self) -> None:
        self.buffer = bytearray(READ_BYTES)
        self.left = 0
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.left -= nbytes
        if not self.left:
            self.answered.set_result(None)


async def on_asyncio(port: int, request: bytes, answer_bytes: int, rounds: int) -> Stopwatch:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_connection(Bare, "127.0.0.1", port)
    transport.write(HEAD.pack(len(request), answer_bytes))
    with Stopwatch() as watch:
        for _ in range(rounds):
            protocol.left, protocol.answered = answer_bytes, loop.create_future()
            transport.write(request)
            await protocol.answered
    transport.close()
    return watch


async def on_trio(port: int, request: bytes, answer_bytes: int, rounds: int) -> Stopwatch:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(HEAD.pack(len(request), answer_bytes))
        with Stopwatch() as watch:
            for _ in range(rounds):
                await stream.send_all(request)
                left = answer_bytes
                while left:
                    left -= len(await stream.receive_some())
    return watch
