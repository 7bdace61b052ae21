"""The pure codec against that of an earlier commit: is who has no compiler as well off as before?

    python benchmarks/_before.py [COMMIT]

Not part of scripts/bench: it needs git and the history. COMMIT (default: the last one without a compiled codec) is
checked out beside, and both run the same, in processes of their own and in turns, with ODRADEK_ENGINE=pure and with the
same broker. What counts is their processor time. `ratio` is that of the earlier one over that of this one: 1 is the
same, more is faster now.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time

import anyio

ROOT = Path(__file__).parent.parent
BEFORE = "41cedb1"
ROUNDS, SIZE, TOTAL = 7, 100, 32 << 20


# ---- in each of the two: nothing here that one of them does not have ----------------------------------------


def work(cluster: str) -> dict[str, float]:
    """Seconds of processor time each thing takes."""
    from odradek.core.interfaces import DecoderOptions
    from odradek.types import Position, TopicPartition
    from odradek.wire.compression import CompressionType
    from odradek.wire.kafka07.message_set import MessageSetDecoder, encode_set

    values = [bytes([number % 251]) * SIZE for number in range(TOTAL // SIZE)]
    runs = [values[start : start + 2000] for start in range(0, len(values), 2000)]

    def decode(data: bytes) -> None:
        decoder = MessageSetDecoder(TopicPartition("t", 0, 1), Position(0), DecoderOptions())
        for start in range(0, len(data), 1 << 20):  # one read of a socket, as it is lent to a decoder
            decoder.feed(memoryview(data[start : start + (1 << 20)]))
            assert len(decoder.take().values)

    def encode(compression: CompressionType) -> bytes:
        return b"".join([encode_set(run, compression) for run in runs])

    times = {}
    for compression in CompressionType:
        times[f"encode, {compression.name.lower()}"] = _least(partial(encode, compression))
        data = encode(compression)
        times[f"decode, {compression.name.lower()}"] = _least(partial(decode, data))
    times["reader, batches"] = _least(lambda: anyio.run(_read, cluster))
    times["reader, records"] = _least(lambda: anyio.run(_read_records, cluster))
    times["send_many"] = _least(lambda: anyio.run(_send_many, cluster, values))
    times["put"] = _least(lambda: anyio.run(_put, cluster, values[:50_000]))
    times["send"] = _least(lambda: anyio.run(_send, cluster, values[:2_000]))
    return times


def _least(action: Callable[[], object]) -> float:
    """Of two: the first one warms up."""
    times = []
    for _ in range(2):
        begin = process_time()
        action()
        times.append(process_time() - begin)
    return min(times)


async def _read(cluster: str) -> None:
    from odradek import LATEST, connect

    async with connect(cluster) as k, k.reader("log", until=LATEST) as r:
        assert sum([len(batch.values) async for batch in r.batches()]) == TOTAL // SIZE


async def _read_records(cluster: str) -> None:
    from odradek import LATEST, connect

    async with connect(cluster) as k, k.reader("log", until=LATEST) as r:
        assert sum([len(record.value) async for record in r]) == TOTAL // SIZE * SIZE


async def _send_many(cluster: str, values: list[bytes]) -> None:
    from odradek import connect

    async with connect(cluster) as k, k.producer() as out:
        (await out.send_many("sent", values)).check()


async def _put(cluster: str, values: list[bytes]) -> None:
    from odradek import connect

    async with connect(cluster) as k, k.producer() as out:
        for value in values:
            await out.put("sent", value)


async def _send(cluster: str, values: list[bytes]) -> None:
    from odradek import connect

    async with connect(cluster) as k, k.producer() as out:
        for value in values:
            await out.send("sent", value)


# ---- the two of them ----------------------------------------------------------------------------------------


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        checkout = Path(directory) / "before"
        subprocess.run(["git", "worktree", "add", "--detach", "--quiet", checkout, commit], cwd=ROOT, check=True)
        try:
            yield checkout
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", checkout], cwd=ROOT, check=True)


def measured(tree: Path, cluster: str) -> dict[str, float]:
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "ODRADEK_ENGINE": "pure"}
    command = [sys.executable, __file__, "--work", cluster]
    said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    times: dict[str, float] = json.loads(said)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", default=BEFORE)
    parser.add_argument("--work", metavar="CLUSTER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        print(json.dumps(work(options.work)))
        return
    from _common import broker, spread

    with checked_out(options.commit) as before, broker({"num.partitions": 2, "log.flush.interval": 1}) as cluster:
        anyio.run(_fill, cluster.cluster)
        rounds = []
        for _ in range(ROUNDS):
            rounds.append((measured(before, cluster.cluster), measured(ROOT, cluster.cluster)))
            cluster.wipe("sent")
    print(f"{'':20} {'before, ms':>10} {'now, ms':>10} {'ratio':>8} {'spread':>8}")
    for name in rounds[0][0]:
        ratios = [old[name] / new[name] for old, new in rounds]
        old, new = (1000 * median(one[which][name] for one in rounds) for which in (0, 1))
        print(f"{name:20} {old:10,.1f} {new:10,.1f} {median(ratios):8.2f} {spread(ratios):>8}")


async def _fill(cluster: str) -> None:
    from odradek import connect

    async with connect(cluster) as k, k.producer() as out:
        (await out.send_many("log", [bytes(SIZE)] * (TOTAL // SIZE))).check()


if __name__ == "__main__":
    main()
