"""A broker of the newest release with what needs more than properties: a quorum that is in its log, so that controllers
can join it (KIP-853), with one that does; and a receiver of metrics that clients push (KIP-714)."""

from __future__ import annotations

import base64
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, MetricsData

from odradek.java import find_java
from odradek.testing import KafkaBroker
from odradek.testing.jars import maven_jars
from odradek.testing.kafka.config import CONTROLLER, properties_text
from odradek.testing.process import LOOPBACK, reserve_port

__all__ = ["Controller", "DynamicBroker"]


COMPILER = ("org.eclipse.jdt:ecj:3.38.0",)
"""A compiler for any Java: the one that `odradek[testing]` brings has none."""


class Push(NamedTuple):
    """Metrics that a client has pushed."""

    client: str
    terminating: bool
    interval_ms: int
    metrics: dict[str, Metric]


class DynamicBroker(KafkaBroker):
    """A broker that is the first voter of its quorum, and receives metrics of clients."""

    @property
    def pushes(self) -> list[Push]:
        """What clients have pushed."""
        lines = self._received.read_text().splitlines(keepends=True) if self._received.exists() else []
        return [_push(*line.rstrip("\n").split(" ")) for line in lines if line.endswith("\n")]

    @property
    def _received(self) -> Path:
        return self._directory() / "received"

    def _command(self) -> Sequence[str]:
        """Return the command, with the receiver in the class path. It writes no archive of classes: other brokers have
        another class path."""
        command = [each for each in super()._command() if not each.startswith("-XX:ArchiveClassesAtExit")]
        where = self._directory() / "classes"
        jars = os.pathsep.join(map(str, maven_jars(self.setup.release.coordinates)))
        source = Path(__file__).with_name("java") / "Receiver.java"
        (compiler,) = maven_jars(COMPILER)
        options = ("-17", "-nowarn", "-cp", jars, "-d", where, source)
        subprocess.run([find_java(), "-jar", compiler, *options], check=True)
        command[command.index("-cp") + 1] += f"{os.pathsep}{where}"
        return command

    @property
    def quorum(self) -> dict[str, str]:
        """The properties that say where the quorum is."""
        return {
            "controller.quorum.voters": "",
            "controller.quorum.bootstrap.servers": f"{LOOPBACK}:{self._ports[CONTROLLER]}",
        }

    def reserve(self) -> None:
        """Take the ports, which the properties name."""
        super().reserve()
        self.config |= {**self.quorum, "metric.reporters": "Receiver", "receiver.path": str(self._received)}

    def _format(self) -> None:
        """Format its directory, by the tool: it has the first entries of the log of metadata, too."""
        options = ["-t", self.setup.cluster_id, "-c", str(self._config_path()), "--standalone"]
        for credential in self.setup.scram:
            options += ["--add-scram", credential.format_option]
        done = self.java_tool("kafka.tools.StorageTool", "format", *options)
        assert done.returncode == 0, done.stdout + done.stderr
        self._formatted = True


class Controller:
    """A controller that follows the quorum of a broker, for a `with` block, and has yet to become a voter.

    Args:
        broker: The broker.
        number: Its id.
        directory: For its files.
    """

    def __init__(self, broker: DynamicBroker, number: int, directory: Path) -> None:
        self._broker, self.number, self._directory = broker, number, directory

    def __enter__(self) -> Self:
        self.port, self._keeper = reserve_port()
        config = self._directory / "controller.properties"
        data = self._directory / "data"
        config.write_text(
            properties_text(
                {
                    "process.roles": "controller",
                    "node.id": self.number,
                    "listeners": f"{CONTROLLER}://{LOOPBACK}:{self.port}",
                    "controller.listener.names": CONTROLLER,
                    "listener.security.protocol.map": f"{CONTROLLER}:PLAINTEXT",
                    "log.dirs": data,
                    **self._broker.quorum,
                }
            )
        )
        options = ("format", "-t", self._broker.setup.cluster_id, "-c", str(config), "--no-initial-controllers")
        done = self._broker.java_tool("kafka.tools.StorageTool", *options)
        assert done.returncode == 0, done.stdout + done.stderr
        self.directory_id = re.findall(r"(?m)^directory\.id=(.*)$", (data / "meta.properties").read_text())[0]
        with (self._directory / "controller.out").open("wb") as out:
            command = self._broker.java_command("kafka.Kafka", str(config))
            self._process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        self._keeper.close()


def _push(client: str, terminating: str, interval_ms: str, data: str) -> Push:
    resources = MetricsData.FromString(base64.b64decode(data)).resource_metrics
    metrics = [metric for resource in resources for scope in resource.scope_metrics for metric in scope.metrics]
    return Push(client, terminating == "true", int(interval_ms), {metric.name: metric for metric in metrics})
