"""A real Kafka broker for tests, of any release from 0.8.0 on, in a temporary directory."""

from __future__ import annotations

import copy
import os
import resource
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from odradek import arguments
from odradek.errors import ConfigError, ProtocolError, ServerError
from odradek.testing.class_archive import ClassArchive, JavaServer
from odradek.testing.jars import maven_jars
from odradek.testing.kafka.config import CONTROLLER, PLAINTEXT, PROXIED, properties, properties_text
from odradek.testing.kafka.credentials import jaas_file, jaas_properties, unsecured_token
from odradek.testing.kafka.java import java_command, run_tool
from odradek.testing.kafka.releases import KRAFT, NEWEST, PROTOCOLS, ZOOKEEPER, release
from odradek.testing.kafka.requests import ask
from odradek.testing.kafka.setup import ClusterSetup
from odradek.testing.kafka.storage import format_directory
from odradek.testing.kafka.topics import create_topic
from odradek.testing.process import LOOPBACK, START_SECONDS, reserve_port
from odradek.testing.proxy import FaultProxy
from odradek.testing.zookeeper import ZooKeeperServer
from odradek.wire.kafka.messages.metadata import MetadataRequest, MetadataResponse

if TYPE_CHECKING:
    from odradek.testing.kafka.certificates import CertificateFiles

__all__ = ["KafkaBroker"]

TOOL_SECONDS = 60.0
"""Limit for a Java tool to end (s)."""
DATA = "data"
"""Name of the directory of logs."""

_TEXT = arguments.text("a text", at_least=0)
RULES = {
    "version": arguments.text("a version"),
    "mode": arguments.optional(arguments.choice(KRAFT, ZOOKEEPER)),
    "broker_id": arguments.count(0),
    "listeners": arguments.sequence(arguments.choice(*PROTOCOLS), "a sequence of security protocols"),
    "users": arguments.optional(
        arguments.mapping(arguments.text("the name of a user", at_most=100), arguments.text("a password"), "a mapping")
    ),
    "certificate": arguments.choice("valid", "expired", "untrusted", "wrong_host"),
    "proxied": arguments.flag(),
    "port": arguments.count(0, 65535, "a port"),
    "config": arguments.optional(
        arguments.mapping(arguments.text("the name of a property"), _TEXT, "a mapping of properties")
    ),
    "zookeeper": arguments.optional(arguments.instance(ZooKeeperServer, "a ZooKeeperServer")),
    "java": arguments.optional(arguments.path(exists=False)),
    "heap": arguments.text("a size for -Xmx"),
    "java_options": arguments.sequence(arguments.text("an option of Java"), "a sequence of options"),
}


class KafkaBroker(JavaServer):
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
        listeners: Security protocols: `PLAINTEXT`, `SSL` (0.9 on), `SASL_PLAINTEXT`, `SASL_SSL` (0.10 on), each at a
            port of its own. The SASL mechanisms are all that the release has: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512
            (0.10.2 on; in mode `kraft` 3.5 on), OAUTHBEARER (2.0 on) with tokens that nobody signed. There is always
            a listener of PLAINTEXT as well, at `plaintext_port`.
        users: Name -> password, for PLAIN and SCRAM; by default alice with the password alice-secret.
        certificate: The certificate of its listeners with TLS: `valid` for localhost and 127.0.0.1, `expired`,
            `untrusted` (not signed by `certificates.ca_file`), or `wrong_host`.
        proxied: Clients connect through `proxy`, a FaultProxy in front of the first of its listeners (0.8.1 on): that
            is the address it advertises. Brokers reach each other without it from 0.10.2 on. Before, a security
            protocol has one listener and one address: brokers use the proxy, too, and none starts while it refuses.
        config: Properties of server.properties, which go before the ones that tests usually want.
        zookeeper: The server that has the nodes of a broker in ZooKeeper mode, below a path of its own; by default one
            that starts and ends with the broker. One server may have many brokers.
        java: A `java` executable or Java home; by default see `odradek.java.find_java`.
        heap: Java's `-Xmx`.
        java_options: Further options of Java for the broker, which go before those that make it start soon: a collector
            of one thread and the quickest compiler.

    Raises:
        ConfigError: There is no such version, or it does not have this mode or a listener. At `start`: the port is
            taken.
    """

    program = "kafka"

    def __init__(
        self,
        version: str = NEWEST,
        *,
        mode: str | None = None,
        broker_id: int = 1,
        listeners: Sequence[str] = (PLAINTEXT,),
        users: Mapping[str, str] | None = None,
        certificate: str = "valid",
        proxied: bool = False,
        port: int = 0,
        config: Mapping[str, str] | None = None,
        zookeeper: ZooKeeperServer | None = None,
        java: str | os.PathLike[str] | None = None,
        heap: str = "256m",
        java_options: Sequence[str] = (),
    ) -> None:
        arguments.check_all(
            RULES,
            version=version,
            mode=mode,
            broker_id=broker_id,
            listeners=listeners,
            users=users,
            certificate=certificate,
            proxied=proxied,
            port=port,
            config=config,
            zookeeper=zookeeper,
            java=java,
            heap=heap,
            java_options=java_options,
        )
        super().__init__()
        self.setup = ClusterSetup(release(version), mode, listeners, users, certificate, zookeeper, java)
        self.version, self.mode, self.broker_id = version, self.setup.mode, broker_id
        self.config = dict(config or {})
        if proxied and self.setup.release.number < (0, 8, 1):
            raise ConfigError(f"proxied: Kafka {version} advertises the address at which it listens and no other")
        self._java, self._heap, self._java_options = java, heap, tuple(java_options)
        if proxied and port:
            raise ConfigError(f"port={port}: a broker with proxied=True is reached at a free port, that of its proxy")
        self._proxied, self._port = proxied, port
        self._proxy: FaultProxy | None = None
        self._ports: dict[str, int] = {}
        self._reserved: list[socket.socket] = []
        self._keeps_log = self._formatted = False

    def __repr__(self) -> str:
        state = f"pid {self._process.pid}" if self._process else "down"
        where = f" {self.bootstrap}" if self._ports else ""
        return f"<KafkaBroker {self.version} {self.mode} {self.broker_id}{where} {state}>"

    # ---- what tests ask of it -------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """The address it listens on: loopback."""
        return LOOPBACK

    @property
    def port(self) -> int:
        """The port that clients are told to connect to: of the proxy if there is one, else of the first of its
        listeners. The same over all restarts; 0 before `start` and after `stop`."""
        return self._proxy.port if self._proxy else self._ports.get(self.setup.listeners[0], 0)

    @property
    def plaintext_port(self) -> int:
        """The port of its PLAINTEXT listener, where brokers and tools connect; no proxy is in front of it."""
        return self._ports.get(PLAINTEXT, 0)

    @property
    def bootstrap(self) -> str:
        """`host:port` of `port`."""
        return f"{self.host}:{self.port}"

    @property
    def proxy(self) -> FaultProxy:
        """The proxy that clients connect to, from `start` to `stop`, with its faults over all restarts. Raises
        ConfigError when the broker is not `proxied`, or stopped."""
        if self._proxy is None:
            raise ConfigError(f"{self!r} has no proxy now: give it proxied=True, and start it")
        return self._proxy

    def bootstrap_of(self, listener: str) -> str:
        """Return `host:port` of the listener with this security protocol. Raises ConfigError when there is none."""
        if listener not in self.setup.listeners:
            raise ConfigError(f"listener={listener!r}: {self!r} has {', '.join(self.setup.listeners)}")
        return self.bootstrap if listener == self.setup.listeners[0] else f"{self.host}:{self._ports.get(listener, 0)}"

    @property
    def users(self) -> Mapping[str, str]:
        """Name -> password of its users."""
        return self.setup.users

    @property
    def mechanisms(self) -> Sequence[str]:
        """The SASL mechanisms that it takes."""
        return self.setup.mechanisms

    @property
    def certificates(self) -> CertificateFiles:
        """Files of its certificates, once it was started. Raises ConfigError when no listener has TLS."""
        if self.setup.certificates is None:
            raise ConfigError(f"{self!r} has no listener with TLS: give it one of SSL, SASL_SSL")
        return self.setup.certificates.write(self._directory() / "certificates")

    def token(self, user: str, lifetime_s: float = 3600.0) -> str:
        """Return a token for OAUTHBEARER, valid for this long (s); it has expired if that is negative."""
        return unsecured_token(user, lifetime_s)

    @property
    def zookeeper(self) -> ZooKeeperServer:
        """The ZooKeeper of its cluster. Raises ConfigError when it is not in ZooKeeper mode, or stopped."""
        return self.setup.zookeeper

    @property
    def zookeeper_connect(self) -> str:
        """`host:port/path` of its nodes, in ZooKeeper mode; otherwise empty."""
        return self.setup.settings.zookeeper

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
        return ask(self.host, self.plaintext_port, MetadataRequest(), 0, timeout)

    def create_topic(self, name: str, partitions: int = 1, *, config: Mapping[str, str] | None = None) -> None:
        """Create a topic and wait until it can be written. Raises ServerError when it exists."""
        create_topic(self.setup, [self], name, partitions, 1, config or {})

    # ---- what tests do to it --------------------------------------------------------------------------------

    def terminate(self, timeout: float = 30.0) -> None:
        """SIGTERM: it hands over what it leads, closes its files and ends; after `timeout` (s) it is killed. `start`
        starts it again on the same ports and data."""
        self._terminate(timeout)

    def change_release(self, version: str) -> None:
        """Let it start as a broker of another release the next time, with the data that it has: a rolling upgrade goes
        from broker to broker. In mode `zookeeper` the brokers of both releases need the older one's
        `inter.broker.protocol.version` in their configuration for as long.

        Raises:
            ConfigError: There is no such version.
        """
        self.setup = copy.copy(self.setup)
        self.setup.release = release(version)
        self.version = version
        self.__dict__.pop("_archive", None)

    def fill_disk(self) -> None:
        """Let every write to a file fail, to its log as well, as if the disk were full. Linux only."""
        self._limit_files(0)

    def free_disk(self) -> None:
        """Let it write again after `fill_disk`, if it still runs: a broker without a directory to write to ends."""
        self._limit_files(resource.RLIM_INFINITY)

    def _limit_files(self, size_bytes: int) -> None:
        resource.prlimit(self._running().pid, resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))

    # ---- the process ----------------------------------------------------------------------------------------

    def reserve(self) -> None:
        """Take the ports, so that no other process gets them, not even while the broker is down."""
        names = [PLAINTEXT, *self.setup.listeners, *([CONTROLLER] if self.mode == KRAFT else [])]
        for name in (*names, self._proxied_listener) if self._proxied else names:
            if name not in self._ports:
                self._ports[name], keeper = self._reserve(self._port if name == self.setup.listeners[0] else 0)
                self._reserved.append(keeper)
        if self._proxied and self._proxy is None:
            self._proxy = FaultProxy(LOOPBACK, self._ports[self._proxied_listener])
            self._proxy.start()
        if self.mode == KRAFT:
            self.setup.voters[self.broker_id] = self._ports[CONTROLLER]

    def _reserve(self, port: int) -> tuple[int, socket.socket]:
        try:
            return reserve_port(port)
        except OSError as error:
            raise ConfigError(f"cannot listen on {self.host}:{port}: {error}") from error

    def launch(self) -> None:
        """Start the process without waiting for it."""
        self.reserve()
        self.setup.start()
        self._write_files()
        if self.mode == KRAFT and not self._formatted:
            self._format()
        self.setup.expire_registration(self.broker_id)
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
        self._formatted = False
        self._end_setup()
        if self._proxy is not None:
            self._proxy.stop()
            self._proxy = None
        while self._reserved:
            self._reserved.pop().close()
        self._ports = {}

    def keep_log(self) -> Path:
        """Keep the log after `stop`, and return its path."""
        self._keeps_log = True
        return self.log_path

    def _end_setup(self) -> None:
        self.setup.stop()

    def note_log(self, error: BaseException | None) -> None:
        """Keep the log if there is an error, and name the file in a note of it."""
        if isinstance(error, Exception) and self._scratch is not None:
            error.add_note(f"the log of {self!r} is kept: {self.keep_log()}")

    def _leave(self, error: BaseException | None) -> None:
        self.note_log(error)
        self.stop()

    def _remove(self, directory: Path) -> None:
        if self._keeps_log:
            self._keeps_log = False
            directory /= DATA
        super()._remove(directory)

    # ---- Java -----------------------------------------------------------------------------------------------

    def java_command(self, main_class: str, *args: str, heap: str = "128m") -> list[str]:
        """Return the command that runs a class of this release's jars, such as a tool or a client, in a process of the
        test's own."""
        return [*self._tool_command(heap), main_class, *args]

    def java_tool(
        self, main_class: str, *args: str, stdin: str = "", timeout: float = TOOL_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run a class of this release's jars, such as `kafka.admin.ConfigCommand`, to its end.

        Args:
            stdin: The text it reads.
            timeout: Limit for it to end (s); then it is killed.

        Returns:
            Its exit code and what it wrote to standard output and standard error (where its log is).

        Raises:
            ServerError: It did not end in time; shows what it wrote.
        """
        return run_tool(self._tool_command("128m"), main_class, args, stdin, timeout)

    def _tool_command(self, heap: str) -> list[str]:
        options = self._archive.if_written(self._directory())
        return java_command(self.setup.release, self._java, heap, self._directory(), options)

    # ---- how it is launched ---------------------------------------------------------------------------------

    def _serves(self) -> bool:
        try:
            listed = self.metadata(timeout=2.0).brokers
        except (OSError, ProtocolError):
            return False
        if self.setup.release.number < (0, 9) and not listed:  # as long as there are no topics
            return self.setup.is_registered_without_topics(self.broker_id)
        moved = "advertised.listeners" in self.config
        port = self._advertised[PLAINTEXT]
        return any(b.node_id == self.broker_id and (moved or b.port == port) for b in listed)

    def _command(self) -> Sequence[str]:
        options = self._archive.options(self._directory())
        if self.mechanisms:
            options.append(f"-Djava.security.auth.login.config={self._jaas_path()}")
        options.extend(self._java_options)
        command = java_command(self.setup.release, self._java, self._heap, self._directory(), options)
        return [*command, "kafka.Kafka", str(self._config_path())]

    @property
    def _proxied_listener(self) -> str:
        """Name of the listener that the proxy leads to: beside PLAINTEXT, which brokers use, one for clients alone
        where a release can have two of a security protocol (KIP-103)."""
        first = self.setup.listeners[0]
        return PROXIED if first == PLAINTEXT and self.setup.release.number >= (0, 10, 2) else first

    @property
    def _advertised(self) -> Mapping[str, int]:
        return {**self._ports, **({self._proxied_listener: self._proxy.port} if self._proxy else {})}

    def _config_path(self) -> Path:
        return self._directory() / "server.properties"

    def _jaas_path(self) -> Path:
        return self._directory() / "jaas.conf"

    def _write_files(self) -> None:
        config = properties(self.setup.settings, self.broker_id, self._ports, self._advertised, str(self.data_dir))
        if self.setup.certificates is not None:
            config |= self.certificates.properties
        if self.mechanisms:
            self._jaas_path().write_text(jaas_file(self.setup.release, self.users), encoding="utf-8")
            config["sasl.enabled.mechanisms"] = ",".join(self.mechanisms)
        if "OAUTHBEARER" in self.mechanisms:
            for listener in self.setup.listeners:
                config |= jaas_properties(listener)
        self._config_path().write_text(properties_text({**config, **self.config}), encoding="ascii")

    @cached_property
    def _archive(self) -> ClassArchive:
        jars = maven_jars(self.setup.release.coordinates)
        return ClassArchive(f"kafka-{self.version}", jars, self._java)

    def _format(self) -> None:
        """Write the files that a broker in KRaft mode wants in an empty directory."""
        kind = (self.version, tuple(self.setup.scram), tuple(self.config.items()))
        ids = {"cluster.id": self.setup.cluster_id, "node.id": str(self.broker_id)}
        format_directory(self.data_dir, kind, ids, self._format_by_tool)
        self._formatted = True

    def _format_by_tool(self) -> None:
        options = ["-t", self.setup.cluster_id, "-c", str(self._config_path())]
        for credential in self.setup.scram:
            options += ["--add-scram", credential.format_option]
        done = self.java_tool("kafka.tools.StorageTool", "format", *options)
        if done.returncode:
            raise ServerError(f"Kafka {self.version}: formatting its directory failed: {done.stdout}{done.stderr}")
