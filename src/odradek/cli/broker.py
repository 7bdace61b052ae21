"""`odradek broker`: a real broker, or the embedded one of 0.7, as a process of its own."""

from __future__ import annotations

import os
import select
import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from odradek.cli.options import JSON, examples
from odradek.cli.output import echo_json
from odradek.io.drivers import brokers_url, zookeeper_url
from odradek.testing import Kafka07Broker, ZooKeeperServer

if TYPE_CHECKING:
    from odradek.testing import KafkaBroker

__all__ = ["broker"]

POLL_SECONDS = 0.5
"""Interval of checks that the broker still runs: like a real one, it halts when its disk fails."""

DEFAULT_PORT_07 = 9092


@click.command(
    epilog=examples(
        "odradek broker --kafka 4.3.1",
        "odradek broker --kafka 2.8.2 --port 9092 --set auto.create.topics.enable=false",
        "odradek broker --with-zookeeper",
        "odradek broker --id 2 --port 0 --zookeeper localhost:2181/kafka --log-dir /tmp/kafka-2",
        "odradek broker --set num.partitions=4 --set log.flush.interval=1",
    )
)
@click.option(
    "--kafka",
    metavar="VERSION",
    help="A real broker of this release from 0.8.0 on, such as 4.3.1, on loopback. Its jars come from Maven when it is "
    "first used, and its data are removed when it ends. Needs odradek[testing].",
)
@click.option("--id", "broker_id", default=1, show_default=True, type=click.IntRange(min=0), help="Broker id.")
@click.option("--host", metavar="HOST", help="Address to listen on (0.7; default: 127.0.0.1).")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help=f"Port; 0 takes a free one, which is the default with --kafka. Default in 0.7: {DEFAULT_PORT_07}.",
)
@click.option("--zookeeper", metavar="HOST:PORT/CHROOT", help="ZooKeeper to register with (0.7; default: none).")
@click.option(
    "--with-zookeeper", is_flag=True, help="Start a ZooKeeper as well, on loopback, and register with it (0.7)."
)
@click.option("--log-dir", metavar="DIR", help="Directory of the logs (0.7; default: a temporary one).")
@click.option("--set", "keys", multiple=True, metavar="KEY=VALUE", help="A key of its server.properties.")
@click.option("--until-eof", is_flag=True, help="Also exit when standard input ends, as when the parent process dies.")
@JSON
def broker(
    kafka: str | None,
    broker_id: int,
    host: str | None,
    port: int | None,
    zookeeper: str | None,
    with_zookeeper: bool,
    log_dir: str | None,
    keys: tuple[str, ...],
    until_eof: bool,
    as_lines: bool,
) -> int:
    """Run a broker for tests, of any release of Kafka, until Ctrl-C.

    With --kafka, it is a real one, which takes some seconds to start. Without, it is of 0.7 and needs no Java: it
    behaves like a real 0.7.2 broker, byte for byte, except that it does not fsync. It prints its address when it
    accepts connections.
    """

    if zookeeper and with_zookeeper:
        raise click.UsageError("--zookeeper and --with-zookeeper exclude each other")
    config = _config(keys)
    if kafka is not None:
        if host or zookeeper or with_zookeeper or log_dir:
            raise click.UsageError("--kafka cannot be combined with --host, --zookeeper, --with-zookeeper, --log-dir")
        return _run_kafka(kafka, broker_id, port or 0, config, until_eof, as_lines)
    with ExitStack() as stack:
        if with_zookeeper:
            zookeeper = stack.enter_context(ZooKeeperServer()).address
        port = DEFAULT_PORT_07 if port is None else port
        starting = Kafka07Broker(
            log_dir, broker_id=broker_id, host=host or "127.0.0.1", port=port, zookeeper=zookeeper, config=config
        )
        running = stack.enter_context(starting)
        url = zookeeper_url(zookeeper) if zookeeper else brokers_url(running.address)
        _announce(running.broker_id, running.address, zookeeper, url, str(running.log_dir), as_lines)
        _wait(running, until_eof)
    return 0


def _run_kafka(version: str, broker_id: int, port: int, config: dict[str, str], until_eof: bool, as_lines: bool) -> int:
    from odradek.testing import KafkaBroker

    starting = KafkaBroker(version, broker_id=broker_id, port=port, config=config)
    click.echo(f"starting Kafka {version}; its jars are downloaded if they are not there", err=True)
    with starting as running:
        zookeeper, url = running.zookeeper_connect or None, f"kafka://{running.bootstrap}"
        _announce(broker_id, running.bootstrap, zookeeper, url, str(running.data_dir), as_lines)
        _wait(running, until_eof)
        if not running.running:
            raise click.ClickException(f"the broker has ended: {running.log_tail()}")
    return 0


def _config(keys: tuple[str, ...]) -> dict[str, str]:
    for key in keys:
        if "=" not in key:
            raise click.BadParameter(f"{key!r}: expected KEY=VALUE", param_hint="--set")
    return dict(key.split("=", 1) for key in keys)


def _announce(broker_id: int, address: str, zookeeper: str | None, cluster: str, log_dir: str, as_lines: bool) -> None:
    if as_lines:
        facts = {"broker": broker_id, "address": address, "zookeeper": zookeeper, "cluster": cluster}
        echo_json({**facts, "log_dir": log_dir, "pid": os.getpid()})
        return
    click.echo(f"broker {broker_id} at {address}, logs in {log_dir}")
    click.echo(f"cluster: {cluster}")


def _wait(running: Kafka07Broker | KafkaBroker, until_eof: bool) -> None:
    idle = threading.Event()
    while running.running:
        if not until_eof:
            idle.wait(POLL_SECONDS)
        elif select.select([sys.stdin], [], [], POLL_SECONDS)[0] and not os.read(sys.stdin.fileno(), 4096):
            return
