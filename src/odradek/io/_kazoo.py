"""kazoo's client as the bridge wants it: quiet, with limits to its patience, and with three ways to leave.

Only `io.zookeeper` uses this.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import kazoo.exceptions as kz  # type: ignore[import-untyped]
from kazoo.client import KazooClient  # type: ignore[import-untyped]
from kazoo.handlers.threading import SequentialThreadingHandler  # type: ignore[import-untyped]
from kazoo.retry import KazooRetry  # type: ignore[import-untyped]

from odradek.errors import ConfigError

__all__ = ["LastWarning", "cut", "desert", "make_client", "stop", "thread_hop"]


class LastWarning(logging.Handler):
    """Keeps kazoo's last complaint, for our errors, instead of its storms of log lines."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""
        self.logger = logging.Logger("kazoo", logging.WARNING)  # attached to no tree: goes nowhere else
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.args:  # those without only announce a transition
            self.last = record.getMessage()


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, but no single attempt to connect may take more than a third of the session's time.

    kazoo gives the only host the whole of it, and a ZooKeeper that is just starting may take a connection and never
    answer on it (seen with 3.9.5): the session would expire while a second attempt brings it back.
    """

    def __init__(self, attempt_seconds: float) -> None:
        super().__init__()
        self.attempt_seconds = attempt_seconds
        self.client: Any = None

    def create_connection(self, *arguments: Any, timeout: float, **options: Any) -> Any:
        return super().create_connection(*arguments, timeout=min(timeout, self.attempt_seconds), **options)

    def select(self, read: Any, write: Any, other: Any, timeout: float) -> Any:
        limit = timeout if self.client.connected else min(timeout, self.attempt_seconds)
        return super().select(read, write, other, limit)


def make_client(hosts: str, session_timeout: float, auth: Sequence[tuple[str, str]], logger: logging.Logger) -> Any:
    handler = _Handler(session_timeout / 3)
    # kazoo's own limit of a pause is an hour.
    retry = KazooRetry(max_tries=-1, delay=0.1, max_delay=2.0, sleep_func=handler.sleep_func)
    options = {"handler": handler, "connection_retry": retry, "logger": logger}
    try:
        handler.client = KazooClient(hosts, session_timeout, auth_data=list(auth), **options)
    except ValueError as error:
        raise ConfigError(f"{hosts!r} is not host:port,host:port/chroot: {error}") from error
    return handler.client


def thread_hop() -> Callable[..., object]:
    """The running loop's way to be called from a foreign thread without making that thread wait."""
    trio = sys.modules.get("trio")
    if trio is not None:
        with suppress(RuntimeError):  # imported, but not what runs here
            hop: Callable[..., object] = trio.lowlevel.current_trio_token().run_sync_soon
            return hop
    return asyncio.get_running_loop().call_soon_threadsafe


def stop(client: Any, ended: Callable[[], None]) -> None:
    """In a thread of its own: kazoo waits for its threads in here."""
    try:
        with suppress(kz.KazooException):  # its connection thread did not end in time: there is nothing to close yet
            client.stop()
            client.close()
    finally:
        ended()


def desert(client: Any, ended: Callable[[], None]) -> None:
    """In a thread of its own: end kazoo's threads without the goodbye that `stop` sends."""
    try:
        client._stopped.set()
        while not client._connection.connection_stopped.wait(0.05):
            cut(client)  # again and again: it may be connecting right now
        client._safe_close()
        client.close()
    finally:
        ended()


def cut(client: Any) -> None:
    """End the conversation with a server that does not answer, so that kazoo's thread ends now."""
    with suppress(OSError, AttributeError):
        client._connection._socket.shutdown(socket.SHUT_RDWR)
