"""A bare request and response, over the kind of stream a connection uses on each loop: the least it can take.

asyncio and uvloop: a BufferedProtocol with one buffer; trio: a stream. Without deadlines, errors, or anything read.
"""

from __future__ import annotations

import asyncio
import socket
from time import perf_counter

import trio

__all__ = ["exchanges"]

BUFFER_BYTES = 1 << 20


class Bare(asyncio.BufferedProtocol):
    """Waits for so many bytes at a time."""

    def __init__(self, size: int) -> None:
        self._buffer, self._size, self._got = memoryview(bytearray(BUFFER_BYTES)), size, 0
        self._loop = asyncio.get_running_loop()
        self._answered: asyncio.Future[None] | None = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._got += nbytes
        if self._got == self._size and self._answered is not None:
            self._got = 0
            self._answered.set_result(None)

    def answer(self) -> asyncio.Future[None]:
        self._answered = self._loop.create_future()
        return self._answered


async def exchanges(address: tuple[str, int], hello: bytes, request: bytes, answer: int, rounds: int) -> list[float]:
    """What each of so many took (s): a request, and an answer of so many bytes, one behind the other.

    Args:
        hello: Goes out before the first.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return await _on_trio(address, hello, request, answer, rounds)
    return await _on_asyncio(address, hello, request, answer, rounds)


async def _on_asyncio(address: tuple[str, int], hello: bytes, request: bytes, answer: int, rounds: int) -> list[float]:
    loop, times = asyncio.get_running_loop(), []
    transport, protocol = await loop.create_connection(lambda: Bare(answer), *address)
    transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    transport.write(hello)
    for _ in range(rounds):
        begin = perf_counter()
        transport.write(request)
        await protocol.answer()
        times.append(perf_counter() - begin)
    transport.close()
    return times


async def _on_trio(address: tuple[str, int], hello: bytes, request: bytes, answer: int, rounds: int) -> list[float]:
    times = []
    async with await trio.open_tcp_stream(*address) as stream:
        await stream.send_all(hello)
        for _ in range(rounds):
            begin, left = perf_counter(), answer
            await stream.send_all(request)
            while left:
                left -= len(await stream.receive_some(BUFFER_BYTES))
            times.append(perf_counter() - begin)
    return times
