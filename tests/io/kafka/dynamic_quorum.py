"""A broker whose quorum of controllers is in its log, so that controllers can join it (KIP-853), and one that does."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Self

from odradek.testing import KafkaBroker
from odradek.testing.kafka.config import CONTROLLER, properties_text
from odradek.testing.process import LOOPBACK, reserve_port

__all__ = ["Controller", "DynamicBroker"]


class DynamicBroker(KafkaBroker):
    """A broker that is the first voter of its quorum."""

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
        self.config |= self.quorum

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
