"""What the connection actor costs: tiny exchanges and large replies through it, against the loop's own means.

    python benchmarks/connection_roundtrip.py [--quick]

8 bytes out and 8 back - the size of a confirm - one at a time, and with 100 in flight; on asyncio, uvloop and trio. The
limit exchanges them one at a time over a bare `BufferedProtocol` (on trio: trio's own stream), so that the ratio of the
lines with 100 in flight says what pipelining saves. Replies of 1 MiB, 5 in flight, are dropped as they come; the limit
is a bare blocking socket that takes the same bytes into a reused buffer.

To compare two branches run it on each, in turns, and compare ratios; differences within the spread are noise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio

import _bare
from _common import Case, Stopwatch, compare, peer, pull, quick
from _peer import HEAD
from odradek.io.connection import Connection
from odradek.io.exchange import Pending

REQUEST = b"12345678"
HELLO = HEAD.pack(len(REQUEST), len(REQUEST))
IN_FLIGHT = 100
LARGE, LARGE_IN_FLIGHT = 1 << 20, 5

ONE_AT_MOST, PIPELINED_AT_MOST, LARGE_AT_MOST = 10.0, 5.0, 10.0


class Dropped:
    """Takes so many bytes back, and drops them."""

    def __init__(self, size: int = len(REQUEST)) -> None:
        self.missing = size

    @property
    def done(self) -> bool:
        return not self.missing

    def feed(self, data: memoryview) -> int:
        used = min(self.missing, len(data))
        self.missing -= used
        return used

    def result(self) -> None:
        return None


async def one_at_a_time(port: int, rounds: int) -> Stopwatch:
    async with Connection("127.0.0.1", port) as connection:
        await connection.submit([HELLO, REQUEST], Dropped(), deadline_s=30)
        with Stopwatch() as watch:
            for _ in range(rounds):
                await connection.submit([REQUEST], Dropped(), deadline_s=30)
    return watch


async def pipelined(port: int, rounds: int) -> Stopwatch:
    async with Connection("127.0.0.1", port) as connection:
        await connection.submit([HELLO, REQUEST], Dropped(), deadline_s=30)
        flying: deque[Pending[None]] = deque()
        with Stopwatch() as watch:
            for _ in range(rounds):
                if len(flying) >= IN_FLIGHT:
                    await flying.popleft()
                flying.append(connection.submit([REQUEST], Dropped(), deadline_s=30))
            for pending in flying:
                await pending
    return watch


async def large(port: int, rounds: int) -> Stopwatch:
    async with Connection("127.0.0.1", port) as connection:
        await connection.submit([HEAD.pack(len(REQUEST), LARGE), REQUEST], Dropped(LARGE), deadline_s=30)
        flying: deque[Pending[None]] = deque()
        with Stopwatch() as watch:
            for _ in range(rounds):
                if len(flying) >= LARGE_IN_FLIGHT:
                    await flying.popleft()
                flying.append(connection.submit([REQUEST], Dropped(LARGE), deadline_s=30))
            for pending in flying:
                await pending
    return watch


def on_loop(way: Callable[..., Awaitable[Stopwatch]], *arguments: Any, loop: str) -> Stopwatch:
    options: dict[str, Any] = {"use_uvloop": True} if loop == "uvloop" else {}
    return anyio.run(way, *arguments, backend="trio" if loop == "trio" else "asyncio", backend_options=options)


def cases(port: int, rounds: int, replies: int, loop: str) -> list[Case]:
    exchange = _bare.on_trio if loop == "trio" else _bare.on_asyncio
    bare = partial(on_loop, exchange, port, REQUEST, len(REQUEST), rounds, loop=loop)
    small = rounds * len(REQUEST)
    return [
        Case(f"{name}, {loop}", rounds, small, partial(on_loop, way, port, rounds, loop=loop), bare, at_most)
        for name, way, at_most in (
            ("one at a time", one_at_a_time, ONE_AT_MOST),
            ("pipelined", pipelined, PIPELINED_AT_MOST),
        )
    ] + [
        Case(
            f"replies of 1 MiB, {loop}",
            replies,
            replies * LARGE,
            partial(on_loop, large, port, replies, loop=loop),
            partial(pull, port, replies * LARGE),
            LARGE_AT_MOST,
        )
    ]


def main() -> None:
    rounds, replies, turns = (500, 50, 3) if quick(__doc__) else (3000, 500, 9)
    with peer() as port:
        loops = ("asyncio", "uvloop", "trio")
        compare([each for loop in loops for each in cases(port, rounds, replies, loop)], turns)


if __name__ == "__main__":
    main()
