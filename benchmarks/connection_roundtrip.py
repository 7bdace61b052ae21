"""What the connection actor costs: tiny exchanges through it, against the same bytes over a bare anyio stream.

    python benchmarks/connection_roundtrip.py [--quick] [--backend asyncio|uvloop|trio]

Prints, as one line of JSON per backend, microseconds a round trip one at a time (bare, actor, ratio) and thousands of
exchanges a second with 100 in flight. Both ways talk to the same echo server, in turns within one run,
so that ratios can be compared between machines and branches; the median of the turns counts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from statistics import median
from subprocess import PIPE, Popen
from time import perf_counter
from typing import Any

import anyio

from odradek.io import net
from odradek.io.connection import Connection
from odradek.io.exchange import Pending

REQUEST = b"12345678"  # a confirm of a produce is 8 bytes out; here 8 come back
IN_FLIGHT = 100


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


ECHO = """
import socket, sys, threading
def serve(peer):
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := peer.recv(1 << 16):
        peer.sendall(data)
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


@contextmanager
def echo_server() -> Iterator[int]:
    """In a process of its own, so that it does not fight with the loop for the interpreter. Gives its port."""
    with Popen([sys.executable, "-c", ECHO], stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


async def bare(port: int, rounds: int) -> float:
    async with await net.connect("127.0.0.1", port, 5) as stream:
        await stream.send(REQUEST)
        await stream.receive()
        begin = perf_counter()
        for _ in range(rounds):
            await stream.send(REQUEST)
            await stream.receive()
        return (perf_counter() - begin) / rounds


async def actor(port: int, rounds: int) -> float:
    async with Connection("127.0.0.1", port) as connection:
        await connection.submit([REQUEST], Echoed(), deadline_s=30)
        begin = perf_counter()
        for _ in range(rounds):
            await connection.submit([REQUEST], Echoed(), deadline_s=30)
        return (perf_counter() - begin) / rounds


async def pipelined(port: int, rounds: int) -> float:
    """Seconds per exchange with IN_FLIGHT of them on the way."""
    async with Connection("127.0.0.1", port) as connection:
        flying: deque[Pending[None]] = deque()
        begin = perf_counter()
        for _ in range(rounds):
            if len(flying) >= IN_FLIGHT:
                await flying.popleft()
            flying.append(connection.submit([REQUEST], Echoed(), deadline_s=30))
        for pending in flying:
            await pending
        return (perf_counter() - begin) / rounds


async def measure(port: int, rounds: int, turns: int) -> dict[str, float]:
    ways: dict[str, Callable[[int, int], Awaitable[float]]] = {"bare": bare, "actor": actor, "pipelined": pipelined}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, way in ways.items():
            times[name].append(await way(port, rounds))
    result = {name: median(each) for name, each in times.items()}
    return {
        "bare_us": round(result["bare"] * 1e6, 1),
        "actor_us": round(result["actor"] * 1e6, 1),
        "ratio": round(result["actor"] / result["bare"], 2),
        "pipelined_k_per_s": round(1e-3 / result["pipelined"], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="once, to see that it runs")
    parser.add_argument("--backend", choices=["asyncio", "uvloop", "trio"], action="append")
    options = parser.parse_args()
    rounds, turns = (200, 1) if options.quick else (3000, 7)
    with echo_server() as port:
        for backend in options.backend or ["asyncio", "uvloop", "trio"]:
            loop: dict[str, Any] = {"use_uvloop": True} if backend == "uvloop" else {}
            name = "trio" if backend == "trio" else "asyncio"
            result = anyio.run(measure, port, rounds, turns, backend=name, backend_options=loop)
            print(json.dumps({"backend": backend, **result}))


if __name__ == "__main__":
    main()
