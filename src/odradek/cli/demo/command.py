"""`odradek demo`: producers, consumers, failures and a table, with every message counted.

A real ZooKeeper, two embedded brokers, an ingestion worker and a group of consumers run as processes of their own. The
worker writes numbered messages to two topics. Two consumers handle them; a third joins when 40 % are written, and one
is killed while it holds uncommitted messages when 55 % are handled. The worker waits at both points, so that both
happen in mid-stream however fast the machine is. At the end every number must have been handled.

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
from uuid import uuid4

import anyio
import anyio.to_thread
import click

import odradek as od
from odradek.cli.demo.display import Scene, display_for
from odradek.cli.demo.messages import BROKERS, TOPICS, MessageDemo
from odradek.cli.demo.result import DemoResult, TableResult, differences, report
from odradek.cli.demo.table import TableSource, check_installed, make_table
from odradek.cli.options import JSON, QUIET, examples
from odradek.cli.output import echo_json
from odradek.testing import ZooKeeperServer
from odradek.testing.zookeeper_client import SyncZooKeeperClient

__all__ = ["demo"]

BUDGET_SECONDS = 170.0


@click.command(
    epilog=examples(
        "odradek demo",
        "odradek demo --messages 100000 --json",
        "odradek demo --input /var/log/syslog",
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
@JSON
@QUIET
def demo(messages: int | None, source: str | None, zookeeper: str | None, as_lines: bool, quiet: bool) -> int:
    """Write a million messages, read them with a group that loses a member, put them into a table, count them all.

    Starts a ZooKeeper, two brokers, a producer, three consumers and Spark on free ports of this machine, and stops them
    all. Table, ledger, report and logs remain in a new directory below $TMPDIR, which is printed at the end. The exit
    code is 1 if a message was lost or is not in the table exactly once. Takes about half a minute, at most three.
    """
    check_installed()
    if source is not None:
        messages = min(messages or 1 << 62, _count_lines(source))
    scene = Scene(1_000_000 if messages is None else messages)
    if scene.messages < 1000:
        raise click.UsageError(f"{source}: has {scene.messages} lines; the demo needs at least 1000")
    with _directory() as directory:
        result = od.run(_perform, scene, directory, source, zookeeper, quiet or as_lines)
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


async def _perform(scene: Scene, directory: Path, source: str | None, zookeeper: str | None, quiet: bool) -> DemoResult:
    with display_for(scene, quiet=quiet) as display:
        messages, table = MessageDemo(scene, display, directory, source), None
        with anyio.move_on_after(BUDGET_SECONDS) as budget:
            table = await _run(messages, zookeeper)
        if budget.cancelled_caught:
            display.event(f"stopped: not done within {BUDGET_SECONDS:.0f} s")
        return replace(messages.result(), table=table, directory=str(directory), seconds=scene.age())


async def _run(messages: MessageDemo, existing: str | None) -> TableResult | None:
    """Run both parts; skip the second one if messages were lost."""
    result = None
    async with _zookeeper(existing) as zookeeper, anyio.create_task_group() as tasks, AsyncExitStack() as stack:
        await messages.run(stack, tasks, zookeeper)
        if messages.complete:
            logs = {number: messages.log_dir(number) for number in BROKERS}
            written = [f"{number}@{log_dir}" for number, log_dir in logs.items() if any(log_dir.glob("*/*.kafka"))]
            source = TableSource(zookeeper, written, TOPICS)
            result = await make_table(messages.scene, messages.display, messages.directory, source)
    return result


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
