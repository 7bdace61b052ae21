"""A real schema registry: Apicurio, in memory, with the interface of Confluent's."""

from __future__ import annotations

import tarfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from jgo.config import GlobalSettings
from jgo.maven import MavenContext

from odradek.java import find_java
from odradek.testing.jars import cache_directory
from odradek.testing.maven import TIMEOUT_S, _WholeFiles
from odradek.testing.process import LOOPBACK, START_SECONDS, ServerProcess, reserve_port

__all__ = ["Apicurio"]

GROUP, NAME, VERSION = "io.apicurio", "apicurio-registry-app", "3.0.9"


def archive() -> Path:
    """Return the distribution, which is downloaded once (109 MB)."""
    repositories = GlobalSettings.load().repositories or None
    cache = cache_directory() / "maven"
    cache.mkdir(parents=True, exist_ok=True)
    context = MavenContext(_WholeFiles(), repo_cache=cache, remote_repos=repositories, timeout=TIMEOUT_S)
    return context.project(GROUP, NAME).at_version(VERSION).artifact("all", "tar.gz").resolve()


class Apicurio(ServerProcess):
    """A registry that forgets everything when it ends."""

    program = "apicurio"

    def __init__(self) -> None:
        super().__init__()
        self._port, keeper = reserve_port()
        keeper.close()
        self.url = f"http://{LOOPBACK}:{self._port}/apis/ccompat/v7"

    def launch(self) -> None:
        with tarfile.open(archive()) as packed:
            packed.extractall(self._directory(), filter="data")
        super().launch()

    def wait_ready(self, timeout: float = START_SECONDS) -> None:
        deadline = time.monotonic() + timeout
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/subjects", timeout=5):
                    return
            except OSError as error:
                if not self.running or time.monotonic() > deadline:
                    raise self.error(f"{self!r} does not serve ({error}): {self.log_tail()}") from error
            time.sleep(0.2)

    def _command(self) -> Sequence[str]:
        options = ["-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]  # half the processor time of a start
        options += [f"-Dquarkus.http.host={LOOPBACK}", f"-Dquarkus.http.port={self._port}"]
        return [find_java(), *options, "-jar", str(self._directory() / f"{NAME}-{VERSION}-runner.jar")]
