"""A Kafka 0.7.2 broker inside the test process."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from odradek import arguments
from odradek.errors import Closed, ConfigError, DeadlineError, SessionExpired
from odradek.testing.kafka07.broker_run import BrokerRun, Settings
from odradek.testing.kafka07.config import BrokerConfig
from odradek.testing.process import LOOPBACK, Lifecycle, reserve_port
from odradek.testing.zookeeper_client import SyncZooKeeperClient

__all__ = ["BrokerStatistics", "Kafka07Broker"]

T = TypeVar("T")

SESSION_SECONDS = 30.0
"""Time limit for ending a session and for registering in the next one (s): neither ends while ZooKeeper is down."""


_RULES = {
    "log_dir": arguments.optional(arguments.path(exists=False)),
    "broker_id": arguments.count(0, unit="a broker id"),
    "host": arguments.text("a host", at_least=0),
    "port": arguments.port(),
    "zookeeper": arguments.optional(arguments.text("the address of a ZooKeeper")),
    "config": arguments.optional(
        arguments.mapping(arguments.text("a key"), arguments.text("a value", at_least=0), "a mapping of keys to texts")
    ),
}


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerStatistics:
    """Counts since the last start.

    `requests` counts by kind (produce, fetch, multifetch, multiproduce, offsets); `refused` counts the connections that
    the broker closed because of a bad request.
    """

    connections: int
    connections_total: int
    refused: int
    requests: Mapping[str, int]
    bytes_in: int
    bytes_out: int


class Kafka07Broker(Lifecycle):
    """A broker that answers, stores, recovers and registers as a real 0.7.2 one does, byte for byte.

    It runs on a thread and an event loop of its own, so that plain, asyncio and trio tests can all use it, in a `with`
    or `async with` block. Every method may be called from any thread. They block for as long as it takes: microseconds,
    but for start, stop and kill with ZooKeeper (tens of milliseconds) and `expire_session`.

    It does not fsync: what it wrote survives its death, not the machine's.

    Args:
        log_dir: Where the logs are; by default a temporary directory, removed when the block ends.
        broker_id: Its id.
        host: The address to listen on; also registered, unless `hostname` says otherwise.
        port: 0 takes a free one, and keeps it over restarts.
        zookeeper: `host:port/chroot`; None runs without. The chroot must exist.
        config: 0.7.2 keys and values, both strings, which win over the arguments. Every key of its table is known
            (`odradek.testing.kafka07.config` names those without effect); any other is an error. `enable.zookeeper`
            is true when there is a ZooKeeper address, unless given.

    Raises ConfigError for an unknown key or an impossible value.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        *,
        broker_id: int = 1,
        host: str = "127.0.0.1",
        port: int = 0,
        zookeeper: str | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        arguments.check_all(
            _RULES, log_dir=log_dir, broker_id=broker_id, host=host, port=port, zookeeper=zookeeper, config=config
        )
        keys = BrokerConfig.parse(config or {})
        self.broker_id = broker_id if keys.broker_id is None else keys.broker_id
        self.host = host
        self.port = port if keys.port is None else keys.port
        self._zookeeper = _zookeeper(zookeeper, keys)
        if self._zookeeper and not keys.hostname and host in ("", "0.0.0.0", "::"):
            raise ConfigError(f"host={host}: clients cannot connect to that; give the key hostname as well")
        self._keys = keys
        directory = keys.log_dir or log_dir
        self._remove: weakref.finalize[..., Kafka07Broker] | None = None
        if directory is None:
            directory = tempfile.mkdtemp(prefix="odradek-kafka07-")
            self._remove = weakref.finalize(self, shutil.rmtree, directory, True)
        self.log_dir = Path(directory)
        self._current_run: BrokerRun | None = None
        self._keeps_port = False

    def __repr__(self) -> str:
        run = self._current_run
        state = f"{run.server.traffic().connections} connections" if run and run.running else "down"
        return f"<{type(self).__name__} {self.broker_id} {self.address} {state}>"

    @property
    def address(self) -> str:
        """`host:port`; the port is 0 before the first start when none was given."""
        return f"{self.host}:{self.port}"

    @property
    def running(self) -> bool:
        return self._current_run is not None and self._current_run.running

    # ---- start and stop -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Load the logs, register, serve; it answers when this returns.

        Raises StartRefused where a real broker would not start either (files that do not fit together, broker id
        taken), ConfigError (port taken, chroot missing), Unreachable (no ZooKeeper).
        """
        if self.running:
            return
        self.stop()  # raises what ended the last run, if nobody heard of it yet
        self._reserve_port()
        settings = Settings(self.broker_id, self.host, self.log_dir, self._zookeeper, self._keys)
        run = BrokerRun(settings, self.port)
        run.start()
        self.port = run.port
        self._current_run = run

    def _reserve_port(self) -> None:
        """Take the port for as long as this object lives, so that nobody else gets it while the broker is down."""
        if self._keeps_port or self.host != LOOPBACK:
            return
        try:
            self.port, keeper = reserve_port(self.port)
        except OSError as error:
            raise ConfigError(f"cannot listen on {self.host}:{self.port}: {error}") from error
        self._keeps_port = True
        weakref.finalize(self, keeper.close)

    def stop(self) -> None:
        """An orderly shutdown: flush, leave ZooKeeper, mark the logs as clean. Idempotent.

        Raises BrokerHalted when it halted before, and whatever else ended it.
        """
        run, self._current_run = self._current_run, None
        if run is not None:
            run.end(graceful=True)

    def kill(self, *, drop_session: bool = False) -> None:
        """Stop as SIGKILL would: cut the sockets, flush and mark nothing; written data stays in the files. Idempotent.

        The broker's nodes stay in ZooKeeper until the session times out, or are removed at once with `drop_session`.
        """
        run, self._current_run = self._current_run, None
        if run is not None:
            session = run.session_id()
            run.end(graceful=False)
            if drop_session and session:
                self._end_session(session)

    def restart(self) -> None:
        """Stop, if it runs, and start again on the same files and the same port."""
        self.stop()
        self.start()

    def _leave(self, error: BaseException | None) -> None:
        try:
            self.stop()
        finally:
            if self._remove is not None:
                self._remove()

    # ---- while it runs ------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make everything that was appended readable. (A wrapper without messages waits for another message, as in
        the real broker.) Raises Closed when the broker is down, as all methods below."""
        run = self._alive()
        run.call(run.logs.flush)

    def run_flusher(self, now: float | None = None) -> None:
        """Run the flush scheduler once, as if it were `now` (seconds since the epoch; None: now)."""
        run, when = self._alive(), time.time() if now is None else now
        run.call(lambda: run.logs.flush_due(when))

    def run_cleanup(self, now: float | None = None) -> None:
        """Run retention once, as if it were `now` (seconds since the epoch; None: now)."""
        run, when = self._alive(), time.time() if now is None else now
        run.call(lambda: run.logs.clean_up(when))

    def expire_session(self) -> None:
        """Let its ZooKeeper session expire, and wait until the broker is registered in the next one. Raises
        ConfigError when it runs without ZooKeeper, DeadlineError."""
        run = self._alive()
        session, renewed = run.session_id(), run.renewed()
        self._end_session(session)
        run.result(renewed, SESSION_SECONDS)

    def statistics(self) -> BrokerStatistics:
        run = self._alive()
        traffic, requests = run.call(lambda: (run.server.traffic(), dict(run.handler.counts)))
        connections, total, refused, bytes_in, bytes_out = traffic
        return BrokerStatistics(connections, total, refused, requests, bytes_in, bytes_out)

    def _alive(self) -> BrokerRun:
        if self._current_run is None:
            raise Closed(f"{self!r} is not running")
        return self._current_run

    def _end_session(self, session: int) -> None:
        """End a ZooKeeper session from outside, as often as its owner snatches it back, through any of the servers."""
        servers = (self._zookeeper or "").partition("/")[0].split(",")
        deadline = time.monotonic() + SESSION_SECONDS
        while time.monotonic() < deadline:
            for server in servers:
                host, _, port = server.partition(":")
                with suppress(OSError):
                    try:
                        SyncZooKeeperClient(host, int(port or 2181), session_id=session).close()
                    except SessionExpired:
                        return
        raise DeadlineError(f"ending session 0x{session:x} at {self._zookeeper}", SESSION_SECONDS)


def _zookeeper(address: str | None, keys: BrokerConfig) -> str | None:
    address = keys.zk_connect or address
    if keys.enable_zookeeper and not address:
        raise ConfigError("enable.zookeeper=true needs zk.connect or the argument zookeeper")
    return None if keys.enable_zookeeper is False else address
