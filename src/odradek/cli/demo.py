"""`odradek demo`: everything at once, counted exactly.

A real ZooKeeper, two embedded brokers, an ingestion worker and a group of consumers, each a process of its own. The
worker writes numbered messages to two topics. Two consumers handle them; a third joins when four tenths are
written, and one is killed with messages in hand when more than half are handled. The worker waits at both points, so
that both happen in the middle of things however fast the machine is. At the end every number must have been handled.

Then the pipeline makes a table of both topics, on Spark. Every number must be in it, once, and the brokers' logs must
say the same.
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
from odradek.cli.demo_account import DemoResult, TableResult, differences, report
from odradek.cli.demo_show import BROKERS, TOPICS, MessageDemo
from odradek.cli.demo_table import TableSource, check_installed, make_table
from odradek.cli.demo_view import Scene, view
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
    help="Take the lines of this file as the messages' texts, at most N.",
)
@click.option("--zookeeper", metavar="HOST:PORT,...", help="Use this ZooKeeper (a node of it) and start none.")
@JSON
@QUIET
def demo(messages: int | None, source: str | None, zookeeper: str | None, as_lines: bool, quiet: bool) -> int:
    """Write a million messages, read them with a group that loses a member, make a table of them, count them all.

    Starts a ZooKeeper, two brokers, a producer, three consumers and Spark on free ports of this machine, and ends them
    all. Table, ledger, report and logs stay, in a new directory below $TMPDIR that is printed at the end. Exit code 1
    when a message was lost or is not in the table exactly once. It takes about half a minute, and never three.
    """
    check_installed()
    if source is not None:
        messages = min(messages or 1 << 62, _count_lines(source))
    scene = Scene(1_000_000 if messages is None else messages)
    if scene.messages < 1000:
        raise click.UsageError(f"{source}: {scene.messages} lines are too few for a show: 1000 at least")
    with _directory() as place:
        account = od.run(_perform, scene, place, source, zookeeper, quiet or as_lines)
    if as_lines:
        echo_json(asdict(account))
    else:
        click.echo(("" if quiet else "\n") + report(account))
    wrong = list(differences(account))
    for difference in wrong:
        click.echo(f"odradek: {difference}", err=True)
    return 1 if wrong else 0


def _count_lines(source: str) -> int:
    with Path(source).open("rb") as file:
        return sum(1 for _ in file)


@contextmanager
def _directory() -> Iterator[Path]:
    """A new one, to stay; of a demo that was interrupted nothing stays."""
    place = Path(tempfile.mkdtemp(prefix="odradek-demo-"))
    try:
        yield place
    except Exception:
        click.echo(f"odradek: what there is of the demo lies in {place}", err=True)
        raise
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise


async def _perform(scene: Scene, place: Path, source: str | None, zookeeper: str | None, quiet: bool) -> DemoResult:
    with view(scene, quiet=quiet) as shown:
        show, table = MessageDemo(scene, shown, place, source), None
        with anyio.move_on_after(BUDGET_SECONDS) as budget:
            table = await _play(show, zookeeper)
        if budget.cancelled_caught:
            shown.event(f"stopped: not done within {BUDGET_SECONDS:.0f} s")
        return replace(show.account(), table=table, directory=str(place), seconds=scene.age())


async def _play(show: MessageDemo, given: str | None) -> TableResult | None:
    """Both parts; without the second one when messages were lost."""
    made = None
    async with _zookeeper(given) as zookeeper, anyio.create_task_group() as tasks, AsyncExitStack() as stack:
        await show.play(stack, tasks, zookeeper)
        if show.complete:
            logs = {number: show.log_dir(number) for number in BROKERS}
            written = [f"{number}@{place}" for number, place in logs.items() if any(place.glob("*/*.kafka"))]
            source = TableSource(zookeeper, written, TOPICS)
            made = await make_table(show.scene, show.view, show.place, source)
    return made


@asynccontextmanager
async def _zookeeper(given: str | None) -> AsyncIterator[str]:
    """A ZooKeeper of our own, or a node of our own in one that is there; both go in the end."""
    if given is None:
        async with ZooKeeperServer() as server:
            yield server.address
        return
    host, _, port = given.partition(",")[0].partition(":")
    chroot = f"/odradek-demo-{uuid4().hex[:8]}"

    def change(how: Callable[[SyncZooKeeperClient], None]) -> None:
        with SyncZooKeeperClient(host, int(port or 2181)) as client:
            how(client)

    await anyio.to_thread.run_sync(change, lambda client: client.create(chroot, None))
    try:
        yield given + chroot
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(change, lambda client: client.delete(chroot))
