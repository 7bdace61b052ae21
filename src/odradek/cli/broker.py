"""`odradek broker`: the embedded 0.7 broker as a process of its own, optionally with a ZooKeeper."""

from __future__ import annotations

import os
import select
import sys
import threading
from contextlib import ExitStack

import click

from odradek.cli.options import JSON, examples
from odradek.cli.output import echo_json
from odradek.io.drivers import brokers_url, zookeeper_url
from odradek.testing import Kafka07Broker, ZooKeeperServer

__all__ = ["broker"]

POLL_SECONDS = 0.5
"""Interval of checks that the broker still runs: like a real one, it halts when its disk fails."""


@click.command(
    epilog=examples(
        "odradek broker --with-zookeeper",
        "odradek broker --id 2 --port 0 --zookeeper localhost:2181/kafka --log-dir /tmp/kafka-2",
        "odradek broker --set num.partitions=4 --set log.flush.interval=1",
    )
)
@click.option("--id", "broker_id", default=1, show_default=True, type=click.IntRange(min=0), help="Broker id.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=9092, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 takes a free one."
)
@click.option("--zookeeper", metavar="HOST:PORT/CHROOT", help="ZooKeeper to register with (default: none).")
@click.option("--with-zookeeper", is_flag=True, help="Start a ZooKeeper as well, on loopback, and register with it.")
@click.option("--log-dir", metavar="DIR", help="Directory of the logs (default: a temporary one).")
@click.option("--set", "keys", multiple=True, metavar="KEY=VALUE", help="A key of 0.7's server.properties.")
@click.option("--until-eof", is_flag=True, help="Also exit when standard input ends, as when the parent process dies.")
@JSON
def broker(
    broker_id: int,
    host: str,
    port: int,
    zookeeper: str | None,
    with_zookeeper: bool,
    log_dir: str | None,
    keys: tuple[str, ...],
    until_eof: bool,
    as_lines: bool,
) -> int:
    """Run a Kafka 0.7 broker for tests, until Ctrl-C.

    It behaves like a real 0.7.2 broker, byte for byte, except that it does not fsync. It prints its address when it
    accepts connections.
    """

    if zookeeper and with_zookeeper:
        raise click.UsageError("--zookeeper and --with-zookeeper exclude each other")
    config = _config(keys)
    with ExitStack() as stack:
        if with_zookeeper:
            zookeeper = stack.enter_context(ZooKeeperServer()).address
        running = stack.enter_context(
            Kafka07Broker(log_dir, broker_id=broker_id, host=host, port=port, zookeeper=zookeeper, config=config)
        )
        _announce(running, zookeeper, as_lines)
        _wait(running, until_eof)
    return 0


def _config(keys: tuple[str, ...]) -> dict[str, str]:
    for key in keys:
        if "=" not in key:
            raise click.BadParameter(f"{key!r}: expected KEY=VALUE", param_hint="--set")
    return dict(key.split("=", 1) for key in keys)


def _announce(running: Kafka07Broker, zookeeper: str | None, as_lines: bool) -> None:
    cluster = zookeeper_url(zookeeper) if zookeeper else brokers_url(running.address)
    if as_lines:
        echo_json(
            {
                "broker": running.broker_id,
                "address": running.address,
                "zookeeper": zookeeper,
                "cluster": cluster,
                "log_dir": str(running.log_dir),
                "pid": os.getpid(),
            }
        )
        return
    click.echo(f"broker {running.broker_id} at {running.address}, logs in {running.log_dir}")
    click.echo(f"cluster: {cluster}")


def _wait(running: Kafka07Broker, until_eof: bool) -> None:
    idle = threading.Event()
    while running.running:
        if not until_eof:
            idle.wait(POLL_SECONDS)
        elif select.select([sys.stdin], [], [], POLL_SECONDS)[0] and not os.read(sys.stdin.fileno(), 4096):
            return
