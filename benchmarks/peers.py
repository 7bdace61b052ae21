"""Reading and writing on a real broker, beside confluent-kafka (blocking and asyncio), aiokafka and kafka-python.

    scripts/bench --peers [--quick] [--rounds N]

The broker is the newest release, in a process of its own (needs Java). `CASES` says what is measured, and
`_peers_settings.py` how each client is set; for each measurement a client is a process of its own
(`_peers_clients.py`), and clients take turns, so that a machine which is busy with other things disturbs all alike.

Writes what was measured to `benchmarks/peers-results.json` and makes docs/topics/peers-benchmarks.md of it. With
`--quick` few records are moved, once, and nothing is written: that shows that every client does its work.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from importlib.metadata import version
from itertools import count
from pathlib import Path
from time import perf_counter, time
from typing import Any, NamedTuple

import anyio

from _peers_clients import WAYS, Work, has
from _peers_page import RESULTS, page, write
from _peers_settings import CLIENTS
from _report import commit, machine
from odradek import connect
from odradek.testing import KafkaBroker

__all__ = ["CASES", "Case"]

OURS = "odradek"
HEAP = "1g"
LIMIT_S = 300.0
"""What one run of a client may take."""
HOLD_S = 0.01
"""What a proxy holds every byte for on each way: 20 ms for a round trip."""
AT_ONCE = 2000
"""Partitions that are created by one request: a controller refuses 10,000."""
PACKAGES = ("odradek", "confluent-kafka", "aiokafka", "kafka-python", "crc32c", "lz4", "uvloop", "pyarrow")


class Case(NamedTuple):
    """One thing that is measured for all clients that can do it.

    Args:
        group: The part of the page it is shown in.
        title: What it is called there.
        ours: What odradek does: one way or several, each of which is compared with what the others do.
        theirs: What the others do.
        records: How many records odradek moves; others move the share that their settings say.
        measure: `rate`, `latency`, `start`, `seconds` or `idle`: see `_peers_page.py`.
        clients: Consumers in one process.
        distant: Whether the broker is 20 ms away.
        of: Clients that are compared; () for all that can do it.
    """

    group: str
    title: str
    ours: tuple[str, ...]
    theirs: str
    records: int
    size: int = 100
    compression: Any = "none"
    measure: str = "rate"
    partitions: int = 2
    senders: int = 1
    clients: int = 1
    uvloop: bool = False
    distant: bool = False
    of: tuple[str, ...] = ()

    def names(self) -> list[tuple[str, str]]:
        """Return each client and what it does, in the order of their turns."""
        chosen = [name for name in self.of or CLIENTS if name != OURS and has(name, self.theirs)]
        return [(OURS, way) for way in self.ours] + [(name, self.theirs) for name in chosen]

    def moved(self, client: str, way: str) -> int:
        """Return how many records a client moves."""
        share = CLIENTS[client].share if self.measure == "rate" else 1
        most = SLOW.get((client, way), self.records)
        return min(most, max(int(self.records * share), self.senders))


SLOW = {("confluent_asyncio", "records"): 5000, ("confluent_asyncio", "send"): 20}
"""The most records where each takes far longer than elsewhere."""
ASYNCIO = ("aiokafka",)
MAIN = ("confluent", "confluent_tuned", "aiokafka", "aiokafka_tuned")


def core(size: int, compression: str, read: int, written: int) -> Iterator[Case]:
    about = f"{size} B" if size < 1000 else f"{size // 1000} KB"
    about += "" if compression == "none" else f", {compression}"
    every = ("core", size, compression)
    for ours, title in (("batches", "batches"), ("records", "record by record"), ("arrow", "Arrow tables")):
        yield Case(every[0], f"{title}, {about}", (ours,), ours, read, size, compression)
    yield Case(every[0], f"produce loop, {about}", ("send_many", "put"), "produce", written, size, compression)


def cases() -> Iterator[Case]:
    """List everything that is measured in full."""
    for compression in ("none", "lz4"):
        yield from core(100, compression, 1_000_000, 400_000)
        yield from core(1000, compression, 250_000, 150_000)
    yield Case("core", "one awaited `send`, 100 B", ("send",), "send", 2000, measure="latency")
    yield Case("core", "from `python` to the first record", ("records",), "records", 1, measure="start")
    produced, batches = ("send_many", "put"), ("batches",)
    for compression in ("snappy", "zstd"):
        about = f"100 B, {compression}"
        yield Case("more", f"batches, {about}", batches, "batches", 1_000_000, compression=compression, of=MAIN)
        yield Case("more", f"produce loop, {about}", produced, "produce", 400_000, compression=compression, of=MAIN)
    for title, ours, theirs, records, measure in (
        ("batches, uvloop", batches, "batches", 1_000_000, "rate"),
        ("produce loop, uvloop", produced, "produce", 400_000, "rate"),
        ("one awaited `send`, uvloop", ("send",), "send", 2000, "latency"),
    ):
        yield Case("more", title, ours, theirs, records, measure=measure, uvloop=True, of=ASYNCIO)
    for senders in (1000, 4000):
        one = ("send_concurrent",)
        yield Case("more", f"`send` from {senders:,} tasks", one, one[0], 100_000, senders=senders)
    for partitions in (1, 10, 100, 1000, 10_000):
        yield Case(
            "partitions", f"partitions: {partitions:,}", batches, "batches", 1_000_000, partitions=partitions, of=MAIN
        )
    for clients, records in ((1, 1_000_000), (8, 125_000), (64, 50_000)):
        yield Case("clients", f"consumers: {clients}", batches, "batches", records, clients=clients, of=MAIN)
    yield Case("idle", "10,000 quiet partitions for 10 s", ("idle",), "idle", 0, measure="idle", partitions=10_000)
    yield Case("distant", "batches, 20 ms", batches, "batches", 2_000_000, distant=True, of=MAIN)
    yield Case("distant", "produce loop, 20 ms", produced, "produce", 1_000_000, distant=True, of=MAIN)
    yield Case("distant", "one awaited `send`, 20 ms", ("send",), "send", 50, measure="latency", distant=True, of=MAIN)


CASES = tuple(cases())
QUICK = (
    Case("core", "batches, 100 B", ("batches",), "batches", 20_000),
    Case("core", "record by record, 100 B", ("records",), "records", 10_000, of=("confluent_tuned", "aiokafka")),
    Case("core", "Arrow tables, 100 B", ("arrow",), "arrow", 10_000, of=("confluent_tuned",)),
    Case("core", "produce loop, 100 B, lz4", ("send_many", "put"), "produce", 5000, compression="lz4"),
    Case("core", "one awaited `send`, 100 B", ("send",), "send", 20, measure="latency", of=MAIN),
    Case("more", "`send` from 50 tasks", ("send_concurrent",), "send_concurrent", 1000, senders=50, of=ASYNCIO),
    Case("clients", "consumers: 2", ("batches",), "batches", 5000, clients=2, of=("confluent", "aiokafka")),
)

LISTS = {
    "odradek": ("-m", "odradek.cli", "ls", "--cluster", "kafka://{}"),
    "confluent": (
        "-c",
        "import confluent_kafka.admin as a; print(a.AdminClient({{'bootstrap.servers': '{}'}}).list_topics().topics)",
    ),
    "aiokafka": (
        "-c",
        "import asyncio\nfrom aiokafka.admin import AIOKafkaAdminClient as Admin\n"
        "async def main():\n a = Admin(bootstrap_servers='{}')\n await a.start()\n print(await a.list_topics())\n"
        " await a.close()\nasyncio.run(main())",
    ),
    "kafka_python": ("-m", "kafka.admin", "-b", "{}", "topics", "list"),
}
IMPORTS = {
    "odradek": ("-c", "from odradek import connect, Producer, Reader"),
    "confluent": ("-c", "from confluent_kafka import Producer, Consumer"),
    "aiokafka": ("-c", "from aiokafka import AIOKafkaProducer, AIOKafkaConsumer"),
    "kafka_python": ("-c", "from kafka import KafkaProducer, KafkaConsumer"),
}
COMMANDS: Mapping[str, Mapping[str, Sequence[str]]] = {"import": IMPORTS, "list topics (`odradek ls`)": LISTS}

# ---- one process ------------------------------------------------------------------------------------------------


def timed(command: Sequence[str]) -> tuple[str, float, float, float]:
    """Run a program of Python; return its output, when it was started, its seconds and its processor seconds."""
    before, began, at = ended_children(), perf_counter(), time()
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=LIMIT_S)
    seconds = perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{command} failed:\n{done.stderr}")
    return done.stdout, at, seconds, ended_children() - before


def ended_children() -> float:
    """Return the processor seconds of all processes that this one has started and that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(work: Work) -> dict[str, float]:
    """Have a client do this in a process of its own."""
    program = str(Path(__file__).with_name("_peers_clients.py"))
    output, at, _, _ = timed([program, json.dumps(work._asdict())])
    measured: dict[str, float] = json.loads(output)
    measured["reached"] -= at
    return measured


# ---- a case -----------------------------------------------------------------------------------------------------


class Topics:
    """Topics of one broker: filled ones, which cases share, and those that are written to once."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._filled: set[str] = set()
        self._numbers = count()

    def to_read(self, case: Case) -> str:
        """Return a topic that has what the case reads, as many records in each partition."""
        name = f"of-{case.size}-{case.compression}-{case.partitions}-{case.records}"
        if name not in self._filled:
            anyio.run(self._fill, name, case)
            self._filled.add(name)
        return name

    @contextmanager
    def to_write(self, case: Case) -> Iterator[str]:
        """Create a topic for the block."""
        name = f"written-{next(self._numbers)}"
        anyio.run(self._create, name, case.partitions)
        yield name
        anyio.run(self._delete, name)

    async def _create(self, name: str, partitions: int) -> None:
        async with connect(f"kafka://{self.bootstrap}") as k:
            (await k.admin.create_topics({name: min(partitions, AT_ONCE)})).check()
            for total in range(2 * AT_ONCE, partitions + 1, AT_ONCE):
                (await k.admin.add_partitions({name: total})).check()

    async def _delete(self, name: str) -> None:
        async with connect(f"kafka://{self.bootstrap}") as k:
            (await k.admin.delete_topics([name])).check()

    async def _fill(self, name: str, case: Case) -> None:
        await self._create(name, case.partitions)
        async with connect(f"kafka://{self.bootstrap}") as k, k.producer(compression=case.compression) as out:
            for number, value in enumerate(Work("", "", "", "", case.records, case.size).values()):
                await out.put(name, value, partition=number * case.partitions // case.records)


READS = ("batches", "records", "arrow", "idle")


def work_of(case: Case, client: str, way: str, bootstrap: str, topic: str) -> Work:
    return Work(
        client,
        way,
        bootstrap,
        topic,
        case.moved(client, way),
        case.size,
        case.compression,
        case.partitions,
        case.senders,
        case.clients,
        case.uvloop,
        10.0 if case.measure == "idle" else 0.0,
    )


def measure(case: Case, topics: Topics, rounds: int) -> dict[str, Any]:
    """Let all clients do the work in turns; who begins changes from round to round."""
    names = case.names()
    runs: dict[str, list[dict[str, float]]] = {f"{client} {way}": [] for client, way in names}
    for number in range(rounds):
        for client, way in names if number % 2 else names[::-1]:
            if way in READS:
                measured = run(work_of(case, client, way, topics.bootstrap, topics.to_read(case)))
            else:
                with topics.to_write(case) as topic:
                    measured = run(work_of(case, client, way, topics.bootstrap, topic))
            runs[f"{client} {way}"].append(measured)
    return case._asdict() | {"runs": runs}


def measure_commands(title: str, commands: Mapping[str, Sequence[str]], bootstrap: str, rounds: int) -> dict[str, Any]:
    """Run each of these programs in turns."""
    runs: dict[str, list[dict[str, float]]] = {f"{client} command": [] for client in commands}
    for _ in range(rounds):
        for client, words in commands.items():
            _, _, seconds, computed = timed([word.format(bootstrap) for word in words])
            runs[f"{client} command"].append({"records": 1, "seconds": seconds, "computed": computed, "memory": 0})
    case = Case("core", title, ("command",), "command", 1, measure="seconds")
    return case._asdict() | {"runs": runs}


# ---- all --------------------------------------------------------------------------------------------------------


@contextmanager
def broker(*, distant: bool = False) -> Iterator[Topics]:
    """Start one; a distant one behind a proxy that holds every byte."""
    config = {"file.delete.delay.ms": "1000", "auto.create.topics.enable": "false"}
    with KafkaBroker(heap=HEAP, config=config, proxied=distant) as started:
        topics = Topics(started.bootstrap)
        if distant:
            started.proxy.delay(HOLD_S)
        yield topics


def measure_all(cases: Sequence[Case], rounds: int) -> Iterator[dict[str, Any]]:
    with broker() as topics:
        for case in cases:
            if not case.distant:
                yield measure(case, topics, rounds)
        for title, commands in COMMANDS.items():
            yield measure_commands(title, commands, topics.bootstrap, rounds)
    if distant := [case for case in cases if case.distant]:
        with broker(distant=True) as topics:
            for case in distant:
                yield measure(case, topics, rounds)


def circumstances(cases: Sequence[Case], rounds: int) -> dict[str, Any]:
    return {
        "date": str(date.today()),
        "commit": commit(),
        "machine": machine(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "versions": {package: version(package) for package in PACKAGES},
        "rounds": rounds,
        "asked": [
            *(case.title for case in cases if not case.distant),
            *COMMANDS,
            *(c.title for c in cases if c.distant),
        ],
        "load": [os.getloadavg()[0]],
    }


def check(results: Mapping[str, Any]) -> None:
    """Raise AssertionError unless every client did every work, and a page can be made of that."""
    assert [case["title"] for case in results["cases"]] == results["asked"]
    for case in results["cases"]:
        assert len(case["runs"]) > 1, case["title"]
        for name, runs in case["runs"].items():
            assert name.split()[0] in CLIENTS and name.split()[1] in (*WAYS, "command"), name
            assert len(runs) == results["rounds"], name
            assert all(one["seconds"] > 0 and one["computed"] > 0 for one in runs), (case["title"], name)
    text = "\n".join(page(results))
    assert all(case["title"] in text for case in results["cases"])
    print("every client did its work; nothing is written")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few records, once; nothing is written")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each client")
    options = parser.parse_args()
    cases, rounds = (QUICK, 1) if options.quick else (CASES, options.rounds)
    results = circumstances(cases, rounds) | {"cases": []}
    for case in measure_all(cases, rounds):
        results["cases"].append(case)
        print(f"{case['group']}: {case['title']}", flush=True)
        results["load"].append(os.getloadavg()[0])
        if not options.quick:
            RESULTS.write_text(json.dumps(results, indent=1))
    if options.quick:
        check(results)
    else:
        write(results)


if __name__ == "__main__":
    main()
