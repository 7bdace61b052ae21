"""What the connection actor costs: tiny exchanges through it, against the same bytes over a bare stream.

    python benchmarks/connection_roundtrip.py [--quick]

8 bytes out and 8 back - the size of a confirm - one at a time, and with 100 in flight; on asyncio, uvloop and trio. The
limit is a bare stream of the same kind (asyncio's BufferedProtocol, or trio's stream) that sends and receives them one
at a time, so that the ratio of the lines with 100 in flight says what pipelining saves.

To compare two branches run it on each, alternately, and compare ratios; differences within the spread are noise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio

from _bare import exchanges
from _common import Case, Stopwatch, compare, peer
from _peer import HEAD
from _results import results
from odradek.io.connection import Connection
from odradek.io.requests import InFlightRequest

REQUEST = b"12345678"
HELLO = HEAD.pack(len(REQUEST), len(REQUEST))
IN_FLIGHT = 100

ONE_FLOOR, PIPELINED_FLOOR = 0.08, 0.6

Way = Callable[[int, int], Awaitable[Stopwatch]]


class Echoed:
    """Takes the 8 bytes back."""

    whole_bytes = 0

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


async def bare(port: int, rounds: int) -> Stopwatch:
    with Stopwatch() as watch:
        times = await exchanges(("127.0.0.1", port), HELLO, REQUEST, len(REQUEST), rounds)
    watch.seconds = sum(times)  # without connecting
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
        in_flight: deque[InFlightRequest[None]] = deque()
        with Stopwatch() as watch:
            for _ in range(rounds):
                if len(in_flight) >= IN_FLIGHT:
                    await in_flight.popleft()
                in_flight.append(connection.submit([REQUEST], Echoed(), deadline_s=30))
            for pending in in_flight:
                await pending
    return watch


def case(port: int, rounds: int, way: Way, loop: str, floor: float) -> Case:
    def on_loop(work: Way) -> Stopwatch:
        options: dict[str, Any] = {"use_uvloop": True} if loop == "uvloop" else {}
        backend = "trio" if loop == "trio" else "asyncio"
        return anyio.run(work, port, rounds, backend=backend, backend_options=options)

    name = f"{way.__name__.replace('_', ' ')}, {loop}"
    return Case(name, rounds, rounds * len(REQUEST), partial(on_loop, way), partial(on_loop, bare), floor)


def main() -> None:
    ways = ((one_at_a_time, ONE_FLOOR), (pipelined, PIPELINED_FLOOR))
    with results(__file__, __doc__) as measured, peer() as port:
        rounds, repeats = (500, 3) if measured.quick else (3000, 9)
        loops = ("asyncio", "uvloop", "trio")
        cases = [case(port, rounds, way, loop, floor) for loop in loops for way, floor in ways]
        compare(measured, "One exchange", "Limit: a bare stream, one at a time.", cases, repeats)


if __name__ == "__main__":
    main()
