"""kazoo's client as the bridge needs it: silent, with bounded connection attempts, and ways to end it.

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

__all__ = ["LastWarning", "abandon", "loop_call_from_thread", "make_client", "shutdown_socket", "stop"]


class LastWarning(logging.Handler):
    """Handler that keeps kazoo's last warning for our errors, and drops its many log lines."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""
        self.logger = logging.Logger("kazoo", logging.WARNING)  # part of no hierarchy: nothing is printed
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.args:  # a record without arguments only announces a transition
            self.last = record.getMessage()


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, with each attempt to connect limited to a third of the session time-out.

    kazoo allows a single host the whole of it, and a ZooKeeper that is starting may accept a connection and never
    answer on it (observed with 3.9.5): the session would expire although a second attempt could resume it.
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
    # kazoo's own maximum delay is an hour.
    retry = KazooRetry(max_tries=-1, delay=0.1, max_delay=2.0, sleep_func=handler.sleep_func)
    options = {"handler": handler, "connection_retry": retry, "logger": logger}
    try:
        handler.client = KazooClient(hosts, session_timeout, auth_data=list(auth), **options)
    except ValueError as error:
        raise ConfigError(f"{hosts!r} is not host:port,host:port/chroot: {error}") from error
    return handler.client


def loop_call_from_thread() -> Callable[..., object]:
    """Return a function that runs a callback in the current event loop, called from any thread without waiting."""
    trio = sys.modules.get("trio")
    if trio is not None:
        with suppress(RuntimeError):  # trio is imported, but asyncio runs this
            run_sync_soon: Callable[..., object] = trio.lowlevel.current_trio_token().run_sync_soon
            return run_sync_soon
    return asyncio.get_running_loop().call_soon_threadsafe


def stop(client: Any, ended: Callable[[], None]) -> None:
    """Close the session cleanly. Run it in a thread: kazoo waits for its threads in here."""
    try:
        with suppress(kz.KazooException):  # its connection thread did not end in time
            client.stop()
            client.close()
    finally:
        ended()


def abandon(client: Any, ended: Callable[[], None]) -> None:
    """End kazoo's threads without closing the session, as if the process were killed. Run it in a thread."""
    try:
        client._stopped.set()
        while not client._connection.connection_stopped.wait(0.05):
            shutdown_socket(client)  # repeatedly: it may be connecting right now
        client._safe_close()
        client.close()
    finally:
        ended()


def shutdown_socket(client: Any) -> None:
    """Shut down the connection to a server that does not answer, so that kazoo's thread ends now."""
    with suppress(OSError, AttributeError):
        client._connection._socket.shutdown(socket.SHUT_RDWR)
