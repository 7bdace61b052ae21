"""Metrics of a command for Prometheus, while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from odradek.errors import ConfigError

if TYPE_CHECKING:
    from odradek.observe import Observer

__all__ = ["METRICS", "served"]


def _address(_: click.Context, __: click.Parameter, text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    host, _colon, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{text!r}: expected HOST:PORT, such as 127.0.0.1:9400")
    return host.strip("[]"), int(port)


METRICS = click.option(
    "--metrics",
    metavar="HOST:PORT",
    callback=_address,
    help="Serve metrics for Prometheus at this address (odradek[prometheus]).",
)


@contextmanager
def served(address: tuple[str, int] | None) -> Iterator[Observer | None]:
    """Yield an observer whose metrics are served at an address; None without one.

    Raises:
        ConfigError: prometheus-client is not installed, or the address cannot be used.
    """
    if address is None:
        yield None
        return
    from odradek.observe.prometheus import PrometheusObserver  # isort: skip - says what is missing
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)
    try:
        server, thread = start_http_server(address[1], address[0], registry)
    except OSError as error:
        raise ConfigError(f"--metrics: {address[0]}:{address[1]}: {error}") from error
    try:
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        click.echo(f"odradek: metrics: http://{host}:{server.server_port}/metrics", err=True)
        yield observer
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
