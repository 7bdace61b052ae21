"""`odradek demo`: producers, consumers, failures and a table, with every message counted.

A real ZooKeeper, two embedded brokers, an ingestion worker and a group of consumers run as processes of their own. The
worker writes numbered messages to two topics. Two consumers handle them; a third joins when 40 % are written, and one
is killed while it holds uncommitted messages when 55 % are handled. The worker waits at both points, so that both
happen in mid-stream however fast the machine is. At the end every number must have been handled.

With --kafka the cluster is one real broker of that release instead.

Then the pipeline turns both topics into a table, on Spark. Every number must be in it exactly once, and the brokers'
logs must agree.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import anyio
import anyio.to_thread
import click

import odradek as od
from odradek.cli.demo.display import Scene, display_for
from odradek.cli.demo.messages import BROKERS, KAFKA_STALL_SECONDS, PARTITIONS, STALL_SECONDS, TOPICS, MessageDemo
from odradek.cli.demo.result import DemoResult, TableResult, differences, report
from odradek.cli.demo.table import TableSource, check_installed, make_table
from odradek.cli.options import JSON, QUIET, examples
from odradek.cli.output import echo_json
from odradek.testing import KafkaBroker, ZooKeeperServer
from odradek.testing.zookeeper_client import SyncZooKeeperClient

__all__ = ["demo"]

BUDGET_SECONDS = 290.0
"""Limit of the whole demo: many times what it takes, for machines that do much else."""

BROKER_CONFIG = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "10000",
}
"""Configuration of a real broker: the members of a group do not wait for others, and a killed one is noticed soon."""


@click.command(
    epilog=examples(
        "odradek demo",
        "odradek demo --messages 100000 --json",
        "odradek demo --input /var/log/syslog",
        "odradek demo --kafka 4.3.1",
    )
)
@click.option("--messages", type=click.IntRange(min=1000), metavar="N", help="How many messages (default: 1,000,000).")
@click.option(
    "--input",
    "source",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Use the lines of this file as messages, at most N.",
)
@click.option("--zookeeper", metavar="HOST:PORT,...", help="Use a node of this ZooKeeper instead of starting one.")
@click.option(
    "--kafka",
    metavar="VERSION",
    help="Use a real broker of this release of Kafka, 0.9 or later, such as 4.3.1. Its jars come from Maven when it is "
    "first used.",
)
@JSON
@QUIET
def demo(
    messages: int | None, source: str | None, zookeeper: str | None, kafka: str | None, as_lines: bool, quiet: bool
) -> int:
    """Write a million messages, read them with a group that loses a member, put them into a table, count them all.

    Starts a ZooKeeper, two brokers, a producer, three consumers and Spark on free ports of this machine, and stops them
    all. Table, report and logs remain in a new directory below $TMPDIR, which is printed at the end. The exit
    code is 1 if a message was lost or is not in the table exactly once. Takes about half a minute, at most five.
    """
    check_installed()
    if kafka is not None and zookeeper is not None:
        raise click.UsageError("--kafka starts a cluster of its own: leave out --zookeeper")
    if source is not None:
        messages = min(messages or 1 << 62, _count_lines(source))
    scene = Scene(1_000_000 if messages is None else messages)
    if scene.messages < 1000:
        raise click.UsageError(f"{source}: has {scene.messages} lines; the demo needs at least 1000")
    with _directory() as directory:
        result = od.run(_perform, scene, directory, source, _Cluster(zookeeper, kafka), quiet or as_lines)
    if as_lines:
        echo_json(asdict(result))
    else:
        click.echo(("" if quiet else "\n") + report(result))
    wrong = list(differences(result))
    for difference in wrong:
        click.echo(f"odradek: {difference}", err=True)
    return 1 if wrong else 0


def _count_lines(source: str) -> int:
    with Path(source).open("rb") as file:
        return sum(1 for _ in file)


@contextmanager
def _directory() -> Iterator[Path]:
    """Make a new directory, and keep it unless the demo is interrupted."""
    directory = Path(tempfile.mkdtemp(prefix="odradek-demo-"))
    try:
        yield directory
    except Exception:
        click.echo(f"odradek: the demo failed; its files are in {directory}", err=True)
        raise
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


class _Cluster(NamedTuple):
    """The cluster to run on: a release of Kafka; or 0.7 with the address of a ZooKeeper, None to start one."""

    zookeeper: str | None
    kafka: str | None


async def _perform(scene: Scene, directory: Path, source: str | None, cluster: _Cluster, quiet: bool) -> DemoResult:
    stall = KAFKA_STALL_SECONDS if cluster.kafka else STALL_SECONDS
    with display_for(scene, quiet=quiet) as display:
        messages, table = MessageDemo(scene, display, directory, source, stall), None
        with anyio.move_on_after(BUDGET_SECONDS) as budget:
            run = _run_kafka(messages, cluster.kafka) if cluster.kafka else _run_kafka07(messages, cluster.zookeeper)
            table = await run
        if budget.cancelled_caught:
            display.event(f"stopped: not done within {BUDGET_SECONDS:.0f} s")
        return replace(messages.result(), table=table, directory=str(directory), seconds=scene.age())


async def _run_kafka07(messages: MessageDemo, existing: str | None) -> TableResult | None:
    """Run both parts on brokers of 0.7; skip the second one if messages were lost."""
    result = None
    async with _zookeeper(existing) as zookeeper, anyio.create_task_group() as tasks, AsyncExitStack() as stack:
        await messages.run(stack, tasks, await messages.start_brokers(stack, tasks, zookeeper))
        if messages.complete:
            logs = {number: messages.log_dir(number) for number in BROKERS}
            written = [f"{number}@{log_dir}" for number, log_dir in logs.items() if any(log_dir.glob("*/*.kafka"))]
            result = await _table(messages, TableSource.kafka07(zookeeper, written, TOPICS))
    return result


async def _run_kafka(messages: MessageDemo, version: str) -> TableResult | None:
    """Run both parts on a real broker; skip the second one if messages were lost."""
    result = None
    messages.display.event(f"starting a broker of Kafka {version}")
    broker = KafkaBroker(version, config=BROKER_CONFIG)
    async with broker, anyio.create_task_group() as tasks, AsyncExitStack() as stack:
        messages.show_server("broker", f"Kafka {version}", broker.bootstrap)
        for topic in TOPICS:
            await anyio.to_thread.run_sync(broker.create_topic, topic, PARTITIONS)
        url = f"kafka://{broker.bootstrap}"
        await messages.run(stack, tasks, url)
        if messages.complete:
            result = await _table(messages, TableSource.kafka(url, TOPICS))
    return result


async def _table(messages: MessageDemo, source: TableSource) -> TableResult:
    return await make_table(messages.scene, messages.display, messages.directory, source)


@asynccontextmanager
async def _zookeeper(existing: str | None) -> AsyncIterator[str]:
    """Start a ZooKeeper, or make a node in an existing one; remove it at the end."""
    if existing is None:
        async with ZooKeeperServer() as server:
            yield server.address
        return
    host, _, port = existing.partition(",")[0].partition(":")
    chroot = f"/odradek-demo-{uuid4().hex[:8]}"

    def change(operation: Callable[[SyncZooKeeperClient], None]) -> None:
        with SyncZooKeeperClient(host, int(port or 2181)) as client:
            operation(client)

    await anyio.to_thread.run_sync(change, lambda client: client.create(chroot, None))
    try:
        yield existing + chroot
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(change, lambda client: client.delete(chroot))
