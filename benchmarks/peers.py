"""Reading and writing on a real broker, beside confluent-kafka (blocking and asyncio), aiokafka and kafka-python.

    scripts/bench --peers [--quick | --only PART,...]

The broker is the newest release, in a process of its own (needs Java), another one for each part. `CASES` says what is
measured, and `_peers_settings.py` how each client is set, and Java for the broker; for each measurement a client is a
process of its own (`_peers_clients.py`), and clients take turns, so that a machine which is busy with other things
disturbs all alike.

Each part that was measured takes its place in `benchmarks/peers-results.json`, with its date and machine; of this file
`_peers_page.py` makes docs/topics/peers-benchmarks.md and the tables in README.md and docs/index.md. With `--quick` few
records are moved, once, and nothing is written: that shows that every client does its work, and that all bytes arrive.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from importlib.metadata import version
from itertools import count
from pathlib import Path
from time import perf_counter, time
from typing import Any, NamedTuple

import anyio

from _peers_clients import Work, has
from _peers_page import PARTS, RESULTS, figures, front_pages, page, write
from _peers_settings import BROKER, CLIENTS
from _quiet import wait_until_quiet
from _report import commit, machine
from odradek import LATEST, Cluster, TopicPartition, Tuning, connect
from odradek.testing import KafkaBroker

__all__ = ["CASES", "Case"]

OURS = "odradek"
LIMIT_S = 300.0
"""What one process may take."""
AFAR_S = 4.0
"""The least time of a run with a distant broker: rates rise for a second."""
IDLE_S = 10.0
PATIENCE_S = 30.0
"""How long each part waits for a quiet machine."""
SPARK = Path(__file__).with_name("spark_kafka.py")
AT_ONCE = 2000
"""Partitions that are created by one request: a controller refuses 10,000."""
PACKAGES = ("odradek", "confluent-kafka", "aiokafka", "kafka-python", "crc32c", "lz4", "uvloop", "pyarrow", "pyspark")


class Case(NamedTuple):
    """One thing that is measured for all clients that can do it.

    Args:
        part: One of `PARTS`.
        title: What it is called on the page.
        ours: What odradek does: one way or several, each of which is compared with what the others do.
        theirs: What the others do.
        records: How many records are moved at most: clients stop when their time is over.
        measure: `rate`, `latency`, `start`, `seconds` or `idle`: see `_peers_page.py`.
        clients: Consumers in one process.
        distance_ms: The time of a round trip to a broker behind a proxy; None without one.
        batch_bytes: The size of the batches that are read (bytes).
        of: Clients that are compared; () for all that can do it.
    """

    part: str
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
    distance_ms: int | None = None
    batch_bytes: int = 256 << 10
    of: tuple[str, ...] = ()

    def pairs(self) -> list[tuple[str, str]]:
        """Return each client and what it does, in the order of their turns."""
        chosen = [name for name in self.of or CLIENTS if name != OURS and can(name, self.theirs)]
        return [(OURS, way) for way in self.ours] + [(name, self.theirs) for name in chosen]

    def work(self, client: str, way: str, bootstrap: str, topic: str) -> Work:
        limit_s = IDLE_S if self.measure == "idle" else CLIENTS[client].limit_s
        return Work(
            client,
            way,
            bootstrap,
            topic,
            self.records,
            self.size,
            self.compression,
            self.partitions,
            self.senders,
            self.clients,
            self.uvloop,
            limit_s if self.distance_ms is None else max(limit_s, AFAR_S),
        )


READS = ("batches", "records", "arrow", "idle")
BATCHES, LOOP, KEYS = (("batches",), "batches"), (("send_many", "put"), "produce"), (("put_keys",), "produce_keys")
MAIN = ("confluent", "confluent_tuned", "aiokafka", "aiokafka_tuned")
AIOKAFKA = ("aiokafka", "aiokafka_tuned")
DEFAULTS = ("confluent", "aiokafka", "kafka_python")
MANY = 10_000
"""Partitions with which aiokafka is not measured: it takes minutes there."""
READ, WRITTEN = {100: 3_000_000, 1000: 600_000}, {100: 1_500_000, 1000: 300_000}
"""Records by their size: a second of what is fastest."""


def core(part: str, size: int, compression: str, of: tuple[str, ...] = ()) -> Iterator[Case]:
    about = f"{size} B" if size < 1000 else f"{size // 1000} KB"
    about += "" if compression == "none" else f", {compression}"
    for way, title in (("batches", "batches"), ("records", "record by record"), ("arrow", "Arrow tables")):
        yield Case(part, f"{title}, {about}", (way,), way, READ[size], size, compression, of=of)
    yield Case(part, f"produce loop, {about}", *LOOP, WRITTEN[size], size, compression, of=of)


def small_batches(part: str, size: int, compression: str) -> Case:
    """Reading what most producers write with their defaults."""
    (case, *_) = core(part, size, compression, MAIN)
    return case._replace(title=f"{case.title}, written in batches of 16 KiB", batch_bytes=1 << 14)


def cases() -> Iterator[Case]:
    """List everything that is measured in full, part by part."""
    for size in (100, 1000):
        yield from core("core", size, "none")
    for size in (100, 1000):
        yield from core("lz4", size, "lz4", MAIN)
        yield small_batches("lz4", size, "lz4")
        for compression in ("snappy", "zstd"):
            both = core("compression", size, compression, MAIN)
            yield from (case for case in both if case.theirs in ("batches", "produce"))
            yield small_batches("compression", size, compression)
    yield Case("send", "one awaited `send`, 100 B", ("send",), "send", 4000, measure="latency")
    for senders in (1000, 4000):
        one = ("send_concurrent",)
        yield Case("send", f"`send` from {senders:,} tasks", one, one[0], 200_000, senders=senders)
    for command, title in (("import", "`import`"), ("list_topics", "list topics (`odradek ls`)")):
        yield Case("start", title, (command,), command, 1, measure="seconds")
    yield Case("start", "from `python` to the first record", ("records",), "records", 1, measure="start")
    yield Case("uvloop", "batches, uvloop", *BATCHES, READ[100], uvloop=True, of=AIOKAFKA)
    yield Case("uvloop", "record by record, uvloop", ("records",), "records", READ[100], uvloop=True, of=AIOKAFKA)
    yield Case("uvloop", "produce loop, uvloop", *LOOP, WRITTEN[100], uvloop=True, of=AIOKAFKA)
    single = Case("send", "one awaited `send`, 100 B", ("send",), "send", 4000, measure="latency")
    yield single._replace(part="uvloop", title="one awaited `send`, uvloop", uvloop=True, of=AIOKAFKA)
    for partitions in (1, 1000):
        title = f"produce loop with keys, partitions: {partitions:,}"
        yield Case("partitions", title, *KEYS, WRITTEN[100] // 2, partitions=partitions, of=MAIN)
    for partitions in (1, 10, 100, 1000, MANY):  # last: a broker that has had so many is slow afterwards
        title = f"batches, partitions: {partitions:,}"
        of = MAIN if partitions < MANY else MAIN[:2]
        yield Case("partitions", title, *BATCHES, READ[100], partitions=partitions, of=of)
    for clients in (1, 8, 64):
        title = f"batches, consumers: {clients}"
        yield Case("clients", title, *BATCHES, 4 * READ[100] // clients, clients=clients, of=MAIN)
    title, idle = "10,000 quiet partitions for 10 s", ("idle",)
    yield Case("idle", title, idle, idle[0], 0, measure="idle", partitions=MANY, of=DEFAULTS)
    for distance in (0, 20):
        yield Case("distance", f"batches, {distance} ms", *BATCHES, READ[100], distance_ms=distance, of=MAIN)
        yield Case("distance", f"produce loop, {distance} ms", *LOOP, WRITTEN[100], distance_ms=distance, of=MAIN)
    title = "one awaited `send`, 20 ms"
    yield Case("distance", title, ("send",), "send", 60, measure="latency", distance_ms=20, of=MAIN)


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
COMMANDS: Mapping[str, Mapping[str, Sequence[str]]] = {"import": IMPORTS, "list_topics": LISTS}
"""Programs that are measured whole, by what they do and the client they use."""


def can(client: str, way: str) -> bool:
    return client in COMMANDS[way] if way in COMMANDS else has(client, way)


CASES = tuple(cases())
TUNED = tuple(name for name in CLIENTS if name.endswith("tuned"))
QUICK = (
    *(Case("core", f"{way}, 100 B", (way,), way, 2000, of=TUNED) for way in ("batches", "records", "arrow")),
    Case("lz4", "produce loop, lz4", *LOOP, 2000, compression="lz4", of=TUNED),
    Case("partitions", "produce loop with keys, partitions: 10", *KEYS, 2000, partitions=10, of=TUNED),
    Case("send", "one awaited `send`, 100 B", ("send",), "send", 10, measure="latency", of=TUNED),
    Case("send", "`send` from 50 tasks", ("send_concurrent",), "send_concurrent", 200, senders=50, of=TUNED),
    Case("clients", "batches, consumers: 2", *BATCHES, 1000, clients=2, uvloop=True, of=TUNED),
    Case("start", "list topics", ("list_topics",), "list_topics", 1, measure="seconds"),
)

# ---- one process ------------------------------------------------------------------------------------------------


def timed(command: Sequence[str]) -> tuple[str, float, float, float]:
    """Run a program of Python; return its output, when it was started, its seconds and its processor seconds."""
    before, began, at = ended_children(), perf_counter(), time()
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=LIMIT_S)
    seconds = perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"{command} failed:\n{done.stderr}")
    return done.stdout, at, seconds, ended_children() - before


def ended_children() -> float:
    """Return the processor seconds of all processes that this one has started and that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(works: Sequence[Work]) -> list[dict[str, float]]:
    """Have a client do these in a process of its own."""
    program = str(Path(__file__).with_name("_peers_clients.py"))
    output, at, _, _ = timed([program, json.dumps([work._asdict() for work in works])])
    measured: list[dict[str, float]] = json.loads(output)
    for one in measured:
        one["reached"] -= at
    return measured


def run_command(words: Sequence[str], bootstrap: str) -> dict[str, float]:
    _, _, seconds, computed = timed([word.format(bootstrap) for word in words])
    return {"records": 1, "seconds": seconds, "computed": computed}


# ---- a case -----------------------------------------------------------------------------------------------------


class Topics:
    """Topics of one broker: filled ones, which cases share, and those that are written to once."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.broker, self.bootstrap = broker, broker.bootstrap
        self._filled: set[str] = set()
        self._numbers = count()

    def prepare(self, case: Case, way: str) -> str:
        """Return a topic that has what is read, as many records in each partition; or a new one to write to."""
        if case.distance_ms is not None:
            self.broker.proxy.delay(0)
        name = f"of-{case.size}-{case.compression}-{case.partitions}-{case.records}-{case.batch_bytes}"
        name = name if way in READS else f"written-{next(self._numbers)}"
        if name not in self._filled:
            anyio.run(self._create, name, case, way in READS)
            self._filled.add(name)
        if case.distance_ms:
            self.broker.proxy.delay(case.distance_ms / 2000)  # on each way
        return name

    def finish(self, topic: str, case: Case, way: str, records: float) -> None:
        """Raise AssertionError unless the topic has so many records and the first one, if it was written to."""
        if way not in READS:
            if case.distance_ms:
                self.broker.proxy.delay(0)
            written = anyio.run(self._remove, topic, case.partitions)
            assert written > records, f"{written} of {records} records were written"

    async def _create(self, name: str, case: Case, filled: bool) -> None:
        async with (
            connect(f"kafka://{self.bootstrap}") as k,
            k.producer(
                compression=case.compression, deliver_within=LIMIT_S, tuning=Tuning(batch_bytes=case.batch_bytes)
            ) as out,
        ):
            (await k.admin.create_topics({name: min(case.partitions, AT_ONCE)})).check()
            for total in range(2 * AT_ONCE, case.partitions + 1, AT_ONCE):
                (await k.admin.add_partitions({name: total})).check()
            values = Work("", "", "", "", case.records, case.size).values() if filled else []
            share = max(-(-len(values) // case.partitions), 1)
            for number, start in enumerate(range(0, len(values), share)):
                (await out.send_many(name, values[start : start + share], partition=number)).check()
            await _ends(k, name, case.partitions)  # which waits until all of them have leaders

    async def _remove(self, name: str, partitions: int) -> int:
        async with connect(f"kafka://{self.bootstrap}") as k:
            ends = await _ends(k, name, partitions)
            (await k.admin.delete_topics([name])).check()
            return sum(ends)


async def _ends(cluster: Cluster, topic: str, partitions: int) -> list[int]:
    ends = await cluster.admin.list_offsets({TopicPartition(topic, number): LATEST for number in range(partitions)})
    return [int(end.position or 0) for end in ends.check().values()]


def once(case: Case, client: str, way: str, topics: Topics) -> dict[str, float]:
    """Have one client do the work of a case once."""
    if way in COMMANDS:
        return run_command(COMMANDS[way][client], topics.bootstrap)
    topic = topics.prepare(case, way)
    (measured,) = run([case.work(client, way, topics.bootstrap, topic)])
    topics.finish(topic, case, way, measured["records"])
    return measured


def measure(case: Case, topics: Topics, rounds: int) -> dict[str, Any]:
    """Let all clients do the work in turns; who begins changes from round to round."""
    pairs = case.pairs()
    runs: dict[str, list[dict[str, float]]] = {f"{client} {way}": [] for client, way in pairs}
    for number in range(rounds):
        for client, way in pairs if number % 2 else pairs[::-1]:
            runs[f"{client} {way}"].append(once(case, client, way, topics))
    return case._asdict() | {"runs": runs}


# ---- parts ------------------------------------------------------------------------------------------------------


@contextmanager
def topics_of_a_broker(*, proxied: bool = False) -> Iterator[Topics]:
    config = {"file.delete.delay.ms": "1000", "auto.create.topics.enable": "false"}
    with KafkaBroker(config=config, proxied=proxied, **BROKER) as started:
        yield Topics(started)


def circumstances(commit: str, rounds: int) -> dict[str, Any]:
    return {
        "date": str(date.today()),
        "commit": commit,
        "machine": machine(),
        "java": "as Kafka's own script starts it",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "versions": {package: version(package) for package in PACKAGES},
        "rounds": rounds,
    }


def measure_part(part: str) -> dict[str, Any]:
    rounds = PARTS[part].rounds
    results = circumstances(commit(), rounds) | {"busy": wait_until_quiet(PATIENCE_S), "cases": []}
    began = perf_counter()
    if part == "spark":
        results["tables"] = spark_tables()
    else:
        with topics_of_a_broker(proxied=part == "distance") as topics:
            for case in [case for case in CASES if case.part == part]:
                results["cases"].append(measure(case, topics, rounds))
                print(f"{part}: {case.title}", flush=True)
    minutes = (perf_counter() - began) / 60
    print(f"{part}: {minutes:.1f} minutes", flush=True)
    return results | {"minutes": round(minutes, 1), "load": os.getloadavg()[1]}


def spark_tables() -> list[dict[str, Any]]:
    """Return the tables that `spark_kafka.py` makes, in a process of its own: Spark forks what measures."""
    with tempfile.TemporaryDirectory() as directory:
        kept = Path(directory) / "spark.json"
        subprocess.run([sys.executable, SPARK, "--json", kept], check=True)
        tables: list[dict[str, Any]] = json.loads(kept.read_text())["tables"]
    return tables


def measure_parts(parts: Sequence[str]) -> None:
    """Measure each, which then takes its place in the results and on the pages; nothing is written of one that fails.

    Raises:
        SystemExit: Some could not be measured.
    """
    failed = []
    for part in parts:
        try:
            measured = measure_part(part)
        except Exception:
            traceback.print_exc()
            failed.append(part)
            continue
        kept = json.loads(RESULTS.read_text()) | {part: measured}
        write({name: kept[name] for name in PARTS if name in kept})
    if failed:
        raise SystemExit(f"these could not be measured: --only {','.join(failed)}")


# ---- the short form ---------------------------------------------------------------------------------------------


def quick() -> None:
    """Raise AssertionError unless every client does every work, all bytes arrive, and pages can be made."""
    works = [(case, client, way) for case in QUICK for client, way in case.pairs()]
    with topics_of_a_broker() as topics:
        runs = [once(case, client, way, topics) for case, client, way in works if way in COMMANDS]
        for name in (OURS, *TUNED):
            mine = [(case, way) for case, client, way in works if client == name and way not in COMMANDS]
            runs += quick_works(name, mine, topics)
    assert all(one["seconds"] > 0 and one["computed"] > 0 for one in runs)
    check_page(next(one for one in runs if one.get("p50")))  # it has every number
    print(f"{len(runs)} works of {len(TUNED) + 1} clients are done; nothing is written")


def quick_works(client: str, cases: Sequence[tuple[Case, str]], topics: Topics) -> list[dict[str, float]]:
    """Have one process do all works of a client: starting one takes longer than its work."""
    works = [
        case.work(client, way, topics.bootstrap, topics.prepare(case, way))._replace(limit_s=LIMIT_S)
        for case, way in cases
    ]
    runs = run(works)
    for (case, way), work, measured in zip(cases, works, runs, strict=True):
        assert measured["records"] == work.records * work.clients, (case.title, client, measured)
        topics.finish(work.topic, case, way, measured["records"])
    return runs


def check_page(one: Mapping[str, float]) -> None:
    """Raise AssertionError unless all pages can be made, of results that are this run everywhere."""
    results: dict[str, Any] = {part: circumstances("", 1) | {"busy": 1, "load": 1, "minutes": 1} for part in PARTS}
    for part, around in results.items():
        chosen = [case for case in CASES if case.part == part]
        around["cases"] = [
            case._asdict() | {"runs": {f"{client} {way}": [one] for client, way in case.pairs()}} for case in chosen
        ]
    text = "\n".join(page(results))
    assert all(case.title in text for case in CASES)
    assert all(name in text for name in figures(results))
    assert all("tuned" in text for text in front_pages(results).values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few records, once; nothing is written")
    parser.add_argument("--only", metavar="PART,...", default=",".join(PARTS), help="some of: %(default)s")
    options = parser.parse_args()
    parts = options.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    quick() if options.quick else measure_parts(parts)


if __name__ == "__main__":
    main()
