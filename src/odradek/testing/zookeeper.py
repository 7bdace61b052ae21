"""A real ZooKeeper for tests: one process, or an ensemble of three, on loopback, in a temporary directory.

POSIX only: processes are stopped and paused by signals.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TypedDict, Unpack

from odradek import arguments
from odradek.errors import SessionExpired, ZooKeeperError
from odradek.io.zookeeper import Node
from odradek.java import find_java
from odradek.testing.class_archive import ClassArchive, JavaServer
from odradek.testing.jars import zookeeper_jars
from odradek.testing.process import LOOPBACK, START_SECONDS, Lifecycle, reserve_port
from odradek.testing.zookeeper_client import SyncZooKeeperClient, four_letters

__all__ = ["ZooKeeperEnsemble", "ZooKeeperServer"]

_FILE = arguments.optional(arguments.path(exists=False))
_MS = arguments.count(unit="milliseconds")
_RULES = {
    "version": arguments.text("a version"),
    "port": arguments.port(),
    "data_dir": _FILE,
    "java": _FILE,
    "jars": _FILE,
    "tick_ms": _MS,
    "session_ms": arguments.pair(_MS, _MS),
    "heap": arguments.text("a size for -Xmx"),
    "size": arguments.count(at_most=100),
}

STANDALONE = "org.apache.zookeeper.server.ZooKeeperServerMain"
QUORUM = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

JAVA_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    # Nobody pulls the plug in a test: data survives a killed process without fsync, and 64 MB log files are not needed.
    "-Dzookeeper.forceSync=no",
    "-Dzookeeper.preAllocSize=256",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)

LOG4J = """\
log4j.rootLogger=WARN, stderr
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern=%d %p %c: %m%n
"""


class ZooKeeperServer(JavaServer):
    """One real ZooKeeper process on 127.0.0.1, for a `with` or `async with` block.

    Everything here blocks for as long as it takes (start and restart: 0.3 to 1 s; the rest: milliseconds); call it
    through `anyio.to_thread.run_sync` where a loop must go on meanwhile. The process ends with the block, and also
    when the test process dies of whatever cause.

    Args:
        version: A version that `odradek.testing.jars` knows (3.9.5, 3.4.14, 3.3.6), or of the jars in `jars`.
        port: 0 takes a free one.
        data_dir: Where to keep data; by default a temporary directory that goes with the server.
        java: A `java` executable or Java home; by default see `odradek.java.find_java`.
        jars: A directory with ZooKeeper's jars; by default see `odradek.testing.jars.zookeeper_jars`.
        tick_ms: ZooKeeper's unit of time. Sessions expire on multiples of it (ms).
        session_ms: Shortest and longest session time-out the server grants (ms).
        heap: Java's `-Xmx`.
    """

    program = "zookeeper"
    error = ZooKeeperError

    def __init__(
        self,
        version: str = "3.9.5",
        *,
        port: int = 0,
        data_dir: str | os.PathLike[str] | None = None,
        java: str | os.PathLike[str] | None = None,
        jars: str | os.PathLike[str] | None = None,
        tick_ms: int = 100,
        session_ms: tuple[int, int] = (500, 60_000),
        heap: str = "128m",
    ) -> None:
        arguments.check_all(
            _RULES,
            version=version,
            port=port,
            data_dir=data_dir,
            java=java,
            jars=jars,
            tick_ms=tick_ms,
            session_ms=session_ms,
            heap=heap,
        )
        super().__init__()
        self.version = version
        self.host, self.port = LOOPBACK, port
        self.data_dir = Path(data_dir) if data_dir else None
        self._java, self._jars = java, jars
        self._tick_ms, self._session_ms, self._heap = tick_ms, session_ms, heap
        self._reserved: socket.socket | None = None

    def __repr__(self) -> str:
        state = f"pid {self._process.pid}" if self._process else "down"
        return f"<{type(self).__name__} {self.version} {self.address} {state}>"

    @property
    def address(self) -> str:
        """`host:port`, the same over all restarts."""
        return f"{LOOPBACK}:{self.port}"

    # ---- the process ----------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop it and remove its temporary directory. Idempotent."""
        super().stop()
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    def launch(self) -> None:
        """Start the process without waiting for it."""
        self.reserve()
        super().launch()

    def wait_ready(self, timeout: float = START_SECONDS) -> None:
        """Wait until it serves: `srvr` names its mode. (`ruok` says imok long before, or without ever serving.)"""
        deadline = time.monotonic() + timeout
        while not self.mode(timeout=0.25):
            if not self.running or time.monotonic() > deadline:
                raise ZooKeeperError(f"ZooKeeper {self.version} at {self.address} does not answer: {self.log_tail()}")
            time.sleep(0.02)

    def mode(self, timeout: float = 1.0) -> str:
        """`standalone`, `leader` or `follower`; empty while it does not serve (or not within `timeout` seconds)."""
        answer = four_letters(LOOPBACK, self.port, "srvr", timeout)
        return answer.partition("Mode: ")[2].partition("\n")[0].strip()

    # ---- its nodes and sessions -----------------------------------------------------------------------------

    def tree(self, path: str = "/") -> dict[str, Node]:
        """The node at `path` and all below it, by path; empty when it is not there."""
        with self.client() as client:
            return client.tree(path)

    def create(self, path: str, data: bytes | None = None) -> None:
        """Create a persistent node, with null parents as needed. Raises NodeExists."""
        with self.client() as client:
            client.create(path, data)

    def set(self, path: str, data: bytes | None) -> None:
        """Replace a node's data. Raises NoNode."""
        with self.client() as client:
            client.set(path, data)

    def delete(self, path: str) -> None:
        """Delete a node with everything below it. Raises NoNode."""
        with self.client() as client:
            client.delete(path)

    def client(self) -> SyncZooKeeperClient:
        """A session of its own, for several looks or for ephemeral nodes that live as long as its `with` block (but not
        longer than 60 s after its last call: it sends no pings)."""
        return SyncZooKeeperClient(LOOPBACK, self.port)

    def expire(self, session_id: int) -> None:
        """End somebody's session at once, as if it had timed out: ephemeral nodes go, and the client learns of it
        when it reconnects. `tree(path)[path].owner` is the session of an ephemeral node."""
        for _ in range(20):  # until the server knows of no such session: its owner may snatch it back
            try:
                SyncZooKeeperClient(LOOPBACK, self.port, session_id=session_id).close()
            except SessionExpired:
                return
            except ConnectionResetError:
                continue
        raise ZooKeeperError(f"the session 0x{session_id:x} could not be ended")

    # ---- how it is launched ---------------------------------------------------------------------------------

    def reserve(self) -> None:
        """Take the port, so that nobody else gets it, not even while the server is down."""
        if self._reserved is None:
            self.port, self._reserved = reserve_port(self.port)

    def _command(self) -> Sequence[str]:
        directory = self._directory()
        (directory / "zoo.cfg").write_text("".join(f"{key}={value}\n" for key, value in self._config().items()))
        (directory / "log4j.properties").write_text(LOG4J)
        classpath = os.pathsep.join(map(str, zookeeper_jars(self.version, self._jars)))
        options = (*JAVA_FLAGS, *self._archive.options(directory))
        logging = f"-Dlog4j.configuration=file:{directory}/log4j.properties"
        java = (find_java(self._java), f"-Xmx{self._heap}", *options, logging)
        return (*java, "-cp", classpath, self._main_class(), str(directory / "zoo.cfg"))

    @cached_property
    def _archive(self) -> ClassArchive:
        return ClassArchive(f"zookeeper-{self.version}", zookeeper_jars(self.version, self._jars), self._java)

    def _main_class(self) -> str:
        return STANDALONE

    def _config(self) -> dict[str, object]:
        data = self.data_dir or self._directory() / "data"
        data.mkdir(parents=True, exist_ok=True)
        return {
            "tickTime": self._tick_ms,
            "dataDir": data,
            "clientPort": self.port,
            "clientPortAddress": LOOPBACK,
            "minSessionTimeout": self._session_ms[0],
            "maxSessionTimeout": self._session_ms[1],
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
        }


class _Peer(ZooKeeperServer):
    """One server of an ensemble."""

    number = 0
    members: Mapping[str, str] = {}

    def _main_class(self) -> str:
        return QUORUM

    def _config(self) -> dict[str, object]:
        config = super()._config()
        Path(str(config["dataDir"]), "myid").write_text(str(self.number))
        # In ticks: 20 s to join, and 3 s without a sign of life between leader and follower: a loaded machine can leave
        # a process without a processor for more than a second, and must not cause elections. A kill is noticed at once.
        return {**config, **self.members, "initLimit": 20_000 // self._tick_ms, "syncLimit": 3000 // self._tick_ms}


class ServerOptions(TypedDict, total=False):
    """Options that all servers of an ensemble share; see ZooKeeperServer."""

    java: str | os.PathLike[str] | None
    jars: str | os.PathLike[str] | None
    tick_ms: int
    session_ms: tuple[int, int]
    heap: str


class ZooKeeperEnsemble(Lifecycle):
    """Several ZooKeepers that elect a leader, for a `with` or `async with` block.

    `servers` are ZooKeeperServer objects: kill, restart or pause one of them to see an ensemble cope.

    Args:
        size: How many.
        version: As for ZooKeeperServer.
        options: `java`, `jars`, `tick_ms`, `session_ms`, `heap`, as for ZooKeeperServer.
    """

    def __init__(self, size: int = 3, version: str = "3.9.5", **options: Unpack[ServerOptions]) -> None:
        arguments.check_all(_RULES, size=size)
        self._peers = [_Peer(version, **options) for _ in range(size)]
        self._quorum_ports: list[socket.socket] = []

    @property
    def servers(self) -> Sequence[ZooKeeperServer]:
        """Each of them, in the order of their numbers."""
        return self._peers

    @property
    def address(self) -> str:
        """`host:port` of every server, with commas."""
        return ",".join(server.address for server in self.servers)

    def start(self) -> None:
        """Start all and wait until each follows or leads."""
        try:
            self._introduce()
            for peer in self._peers:
                peer.launch()
            for peer in self._peers:
                peer.wait_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop all. Idempotent."""
        with ExitStack() as stack:
            for peer in self._peers:
                stack.callback(peer.stop)
            while self._quorum_ports:
                stack.enter_context(self._quorum_ports.pop())

    def _introduce(self) -> None:
        """Give each its number and all the addresses they talk to each other at."""
        members = {}
        for number, peer in enumerate(self._peers, 1):
            peer.reserve()
            (follow, follower), (elect, elector) = reserve_port(), reserve_port()
            self._quorum_ports += [follower, elector]
            members[f"server.{number}"] = f"{LOOPBACK}:{follow}:{elect}"
        for number, peer in enumerate(self._peers, 1):
            peer.number, peer.members = number, members

    def leader(self, timeout: float = START_SECONDS) -> ZooKeeperServer:
        """The server that leads now; waits for an election to end. Raises ZooKeeperError when there is none."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for server in self.servers:
                if server.running and server.mode() == "leader":
                    return server
            time.sleep(0.02)
        raise ZooKeeperError(f"no leader among {self.address}")
