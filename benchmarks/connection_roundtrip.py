"""What the connection actor costs: tiny exchanges through it, against the same bytes over a bare anyio stream.

    python benchmarks/connection_roundtrip.py [--quick]

8 bytes out and 8 back - the size of a confirm - one at a time, and with 100 in flight; on asyncio, uvloop and trio. The
limit is a bare stream of the same kind that sends and receives them one at a time, so that the ratio of the lines with
100 in flight says what pipelining saves.

To compare two branches run it on each, in turns, and compare ratios; differences within the spread are noise.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import trio

from _common import Case, Stopwatch, compare, peer, quick
from _peer import HEAD
from odradek.io.connection import Connection
from odradek.io.exchange import Pending

REQUEST = b"12345678"
HELLO = HEAD.pack(len(REQUEST), len(REQUEST))
IN_FLIGHT = 100

ONE_AT_MOST, PIPELINED_AT_MOST = 10.0, 5.0

Way = Callable[[int, int], Awaitable[Stopwatch]]


class Echoed:
    """Takes the 8 bytes back."""

    def __init__(self) -> None:
        self.missing = len(REQUEST)

    @property
    def done(self) -> bool:
        return not self.missing

    def feed(self, data: memoryview) -> int:
        used = min(self.missing, len(data))
        self.missing -= used
        return used

    def result(self) -> None:
        return None


class Bare(asyncio.BufferedProtocol):
    """Request and response over asyncio's own: a reused buffer, a future an answer."""

    def __init__(self) -> None:
        self.buffer = bytearray(1 << 20)
        self.left = 0
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.left -= nbytes
        if not self.left:
            self.answered.set_result(None)


async def bare_asyncio(port: int, rounds: int) -> Stopwatch:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_connection(Bare, "127.0.0.1", port)
    transport.write(HELLO)
    with Stopwatch() as watch:
        for _ in range(rounds):
            protocol.left, protocol.answered = len(REQUEST), loop.create_future()
            transport.write(REQUEST)
            await protocol.answered
    transport.close()
    return watch


async def bare_trio(port: int, rounds: int) -> Stopwatch:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(HELLO)
        with Stopwatch() as watch:
            for _ in range(rounds):
                await stream.send_all(REQUEST)
                left = len(REQUEST)
                while left:
                    left -= len(await stream.receive_some())
    return watch


async def one_at_a_time(port: int, rounds: int) -> Stopwatch:
    async with Connection("127.0.0.1", port) as connection:
        await connection.submit([HELLO, REQUEST], Echoed(), deadline_s=30)
        with Stopwatch() as watch:
            for _ in range(rounds):
                await connection.submit([REQUEST], Echoed(), deadline_s=30)
    return watch


async def pipelined(port: int, rounds: int) -> Stopwatch:
    async with Connection("127.0.0.1", port) as connection:
        await connection.submit([HELLO, REQUEST], Echoed(), deadline_s=30)
        flying: deque[Pending[None]] = deque()
        with Stopwatch() as watch:
            for _ in range(rounds):
                if len(flying) >= IN_FLIGHT:
                    await flying.popleft()
                flying.append(connection.submit([REQUEST], Echoed(), deadline_s=30))
            for pending in flying:
                await pending
    return watch


def case(port: int, rounds: int, way: Way, loop: str, at_most: float) -> Case:
    def on_loop(work: Way) -> Stopwatch:
        options: dict[str, Any] = {"use_uvloop": True} if loop == "uvloop" else {}
        backend = "trio" if loop == "trio" else "asyncio"
        return anyio.run(work, port, rounds, backend=backend, backend_options=options)

    name = f"{way.__name__.replace('_', ' ')}, {loop}"
    return Case(name, rounds, rounds * len(REQUEST), partial(on_loop, way), partial(on_loop, bare_trio if loop == "trio" else bare_asyncio), at_most)


def main() -> None:
    rounds, turns = (500, 3) if quick(__doc__) else (3000, 9)
    ways = ((one_at_a_time, ONE_AT_MOST), (pipelined, PIPELINED_AT_MOST))
    with peer() as port:
        loops = ("asyncio", "uvloop", "trio")
        compare([case(port, rounds, way, loop, most) for loop in loops for way, most in ways], turns)


if __name__ == "__main__":
    main()
