"""A real Kafka broker for tests, of any release from 0.8.0 on, in a temporary directory."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from odradek import arguments
from odradek.errors import ConfigError, ProtocolError, ServerError
from odradek.io.zookeeper import Node
from odradek.java import find_java
from odradek.testing.jars import maven_jars
from odradek.testing.kafka.config import CONTROLLER, ClusterSettings, properties
from odradek.testing.kafka.releases import KRAFT, NEWEST, ZOOKEEPER, release
from odradek.testing.kafka.requests import ask
from odradek.testing.process import LOOPBACK, START_SECONDS, ServerProcess, reserve_port
from odradek.testing.zookeeper import ZooKeeperServer
from odradek.wire.kafka.messages.metadata import MetadataRequest, MetadataResponse

__all__ = ["KafkaBroker"]

TOOL_SECONDS = 60.0
"""Limit for a Java tool to end (s)."""
DATA = "data"
"""Name of the directory of logs."""

JAVA_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.lang", "java.nio", "java.util", "sun.nio.ch")),
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)

LOG4J = """\
log4j.rootLogger=INFO, stderr
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern=%d{HH:mm:ss.SSS} %p %c: %m%n
"""

RULES = {
    "version": arguments.text("a version"),
    "mode": arguments.optional(arguments.choice(KRAFT, ZOOKEEPER)),
    "broker_id": arguments.count(0),
    "config": arguments.optional(
        arguments.mapping(
            arguments.text("the name of a property"), arguments.text("a text", at_least=0), "a mapping of properties"
        )
    ),
    "zookeeper": arguments.optional(arguments.instance(ZooKeeperServer, "a ZooKeeperServer")),
    "java": arguments.optional(arguments.path(exists=False)),
    "heap": arguments.text("a size for -Xmx"),
}


class KafkaBroker(ServerProcess):
    """One real broker on 127.0.0.1, for a `with` or `async with` block: a cluster of its own.

    Everything here blocks for as long as it takes (start: 1 to 4 s, without the first download); call it through
    `anyio.to_thread.run_sync` where a loop must go on meanwhile. The processes end with the block, and also when the
    test process dies of any cause. When the block ends with an error, the broker's log is kept, and a note of the
    error names the file.

    Args:
        version: A release from 0.8.0 on. Its jars come from Maven when it is first used, see
            `odradek.testing.jars.maven_jars`.
        mode: `kraft` or `zookeeper`; by default `kraft` from 3.3 on.
        broker_id: Its number in metadata.
        config: Properties of server.properties, which go before the ones that tests usually want.
        zookeeper: The server that has the nodes of a broker in ZooKeeper mode, below a path of its own; by default one
            that starts and ends with the broker. One server may have many brokers.
        java: A `java` executable or Java home; by default see `odradek.java.find_java`.
        heap: Java's `-Xmx`.

    Raises:
        ConfigError: There is no such version, or it does not have this mode.
    """

    program = "kafka"

    def __init__(
        self,
        version: str = NEWEST,
        *,
        mode: str | None = None,
        broker_id: int = 1,
        config: Mapping[str, str] | None = None,
        zookeeper: ZooKeeperServer | None = None,
        java: str | os.PathLike[str] | None = None,
        heap: str = "256m",
    ) -> None:
        arguments.check_all(
            RULES,
            version=version,
            mode=mode,
            broker_id=broker_id,
            config=config,
            zookeeper=zookeeper,
            java=java,
            heap=heap,
        )
        super().__init__()
        self._release = release(version)
        self.version = version
        self.mode = mode or self._release.modes[0]
        if self.mode not in self._release.modes:
            raise ConfigError(f"mode={mode!r}: Kafka {version} runs in mode {' or '.join(self._release.modes)}")
        self.broker_id = broker_id
        self.config = dict(config or {})
        self.zookeeper = zookeeper
        self._own_zookeeper: ZooKeeperServer | None = None
        self._java, self._heap = java, heap
        self._ports: dict[str, int] = {}
        self._reserved: list[socket.socket] = []
        self._settings: ClusterSettings | None = None
        self._keeps_log = False
        self._cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")

    def __repr__(self) -> str:
        state = f"pid {self._process.pid}" if self._process else "down"
        where = f" {self.bootstrap}" if self._ports else ""
        return f"<{type(self).__name__} {self.version} {self.mode} {self.broker_id}{where} {state}>"

    @property
    def host(self) -> str:
        """The address it listens on: loopback."""
        return LOOPBACK

    @property
    def port(self) -> int:
        """The port of clients, the same over all restarts; 0 before the first start and after `stop`."""
        return self._ports.get("PLAINTEXT", 0)

    @property
    def bootstrap(self) -> str:
        """`host:port` for clients."""
        return f"{self.host}:{self.port}"

    @property
    def log_path(self) -> Path:
        """The file that has everything the broker printed."""
        return self._log_path()

    @property
    def data_dir(self) -> Path:
        """The directory of its logs (`log.dirs`)."""
        return self._directory() / DATA

    def metadata(self, timeout: float = 10.0) -> MetadataResponse:
        """Return what it says of brokers, and of all topics and their leaders. Raises OSError when it does not answer
        within `timeout` (s)."""
        return ask(self.host, self.port, MetadataRequest(), 0, timeout)

    # ---- the process ----------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Start the process without waiting for it."""
        self._prepare()
        super().launch()

    def wait_ready(self, timeout: float = START_SECONDS) -> None:
        """Wait until it serves: its metadata lists it. (It accepts connections long before.) Raises ServerError."""
        deadline = time.monotonic() + timeout
        while not self._serves():
            if not self.running or time.monotonic() > deadline:
                why = "does not serve" if self.running else "died"
                raise ServerError(f"Kafka {self.version} at {self.bootstrap} {why}: {self.log_tail()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop it and remove its data, and its log unless `keep_log` was called. Idempotent."""
        super().stop()
        zookeeper, self._own_zookeeper = self._own_zookeeper, None
        if zookeeper is not None:
            zookeeper.stop()
            self.zookeeper = None
        while self._reserved:
            self._reserved.pop().close()
        self._ports, self._settings = {}, None

    def keep_log(self) -> Path:
        """Keep the log after `stop`, and return its path."""
        self._keeps_log = True
        return self.log_path

    def _leave(self, error: BaseException | None) -> None:
        if isinstance(error, Exception) and self._scratch is not None:
            error.add_note(f"the log of {self!r} is kept: {self.keep_log()}")
        self.stop()

    def _remove(self, directory: Path) -> None:
        if self._keeps_log:
            self._keeps_log = False
            directory /= DATA
        super()._remove(directory)

    # ---- Java -----------------------------------------------------------------------------------------------

    def java_command(self, main_class: str, *args: str, heap: str = "128m") -> list[str]:
        """Return the command that runs a class of this release's jars, such as its tools."""
        classpath = os.pathsep.join(map(str, maven_jars(self._release.coordinates)))
        log4j = self._directory() / "log4j.properties"
        if not log4j.exists():
            log4j.write_text(LOG4J)
        logging = f"-Dlog4j.configuration=file:{log4j}"
        return [find_java(self._java), f"-Xmx{heap}", *JAVA_FLAGS, logging, "-cp", classpath, main_class, *args]

    def java_tool(
        self, main_class: str, *args: str, stdin: str = "", timeout: float = TOOL_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run a class of this release's jars, such as `kafka.admin.ConfigCommand`, to its end.

        Args:
            stdin: What it reads.
            timeout: Limit for it to end (s); then it is killed.

        Returns:
            Its exit code and what it wrote to standard output and standard error (where its log is).

        Raises:
            ServerError: It did not end in time; shows what it wrote.
        """
        command = self.java_command(main_class, *args)
        try:
            return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired as error:
            wrote = ((error.stdout or b"") + (error.stderr or b"")).decode("utf-8", "replace")
            raise ServerError(f"{main_class} did not end within {timeout:g} s; it wrote: {wrote}") from None

    # ---- how it is launched ---------------------------------------------------------------------------------

    def _serves(self) -> bool:
        try:
            listed = self.metadata(timeout=2.0).brokers
        except (OSError, ProtocolError):
            return False
        if self._release.number < (0, 9) and not listed:  # their metadata has no brokers while there are no topics
            return self._is_registered()
        return any((broker.node_id, broker.port) == (self.broker_id, self.port) for broker in listed)

    def _command(self) -> Sequence[str]:
        return self.java_command("kafka.Kafka", str(self._config_path()), heap=self._heap)

    def _config_path(self) -> Path:
        return self._directory() / "server.properties"

    def _prepare(self) -> None:
        """Do what comes before the process: ports, ZooKeeper, configuration, an empty log directory."""
        self._reserve()
        if self._settings is None:
            self._settings = self._alone()
        config = {**properties(self._settings, self.broker_id, self._ports, str(self.data_dir)), **self.config}
        self._config_path().write_text("".join(f"{name}={value}\n" for name, value in config.items()))
        if self.mode == KRAFT and not self.data_dir.exists():
            self._format()
        elif self.mode == ZOOKEEPER:
            self._expire_registration()

    def _reserve(self) -> None:
        """Take the ports, so that no other process gets them, not even while the broker is down."""
        for name in ("PLAINTEXT", *([CONTROLLER] if self.mode == KRAFT else [])):
            if name not in self._ports:
                self._ports[name], keeper = reserve_port()
                self._reserved.append(keeper)

    def _alone(self) -> ClusterSettings:
        """Return the settings of a cluster of this broker alone."""
        if self.mode == KRAFT:
            return ClusterSettings(self._release, KRAFT, 1, voters={self.broker_id: self._ports[CONTROLLER]})
        if self.zookeeper is None:
            self.zookeeper = self._own_zookeeper = ZooKeeperServer(java=self._java)
            self._own_zookeeper.start()
        chroot = f"/kafka-{self._cluster_id}"  # brokers of one version: others do not understand its nodes
        self.zookeeper.create(chroot)
        return ClusterSettings(self._release, ZOOKEEPER, 1, zookeeper=self.zookeeper.address + chroot)

    def _format(self) -> None:
        """Write the files that a broker in KRaft mode wants in an empty directory."""
        options = ("-t", self._cluster_id, "-c", str(self._config_path()))
        done = self.java_tool("kafka.tools.StorageTool", "format", *options)
        if done.returncode:
            raise ServerError(f"Kafka {self.version}: formatting its directory failed: {done.stdout}{done.stderr}")

    def _nodes(self, path: str) -> dict[str, Node]:
        """Return the nodes of its cluster at this path of ZooKeeper and below, by path."""
        assert self.zookeeper is not None
        assert self._settings is not None
        root = self._settings.zookeeper.removeprefix(self.zookeeper.address)
        return {each.removeprefix(root): node for each, node in self.zookeeper.tree(root + path).items()}

    def _is_registered(self) -> bool:
        """Return whether ZooKeeper names it, and a controller."""
        return f"/brokers/ids/{self.broker_id}" in self._nodes("/brokers/ids") and bool(self._nodes("/controller"))

    def _expire_registration(self) -> None:
        """End the ZooKeeper session of a broker that was killed: its number is free again at once."""
        assert self.zookeeper is not None
        for node in self._nodes(f"/brokers/ids/{self.broker_id}").values():
            self.zookeeper.expire(node.owner)
