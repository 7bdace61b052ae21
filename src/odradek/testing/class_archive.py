"""Servers in Java whose classes are kept in an archive, in the cache beside their jars."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from odradek.java import find_java
from odradek.testing.jars import cache_directory
from odradek.testing.process import ServerProcess

__all__ = ["ClassArchive", "JavaServer"]


class ClassArchive:
    """The classes of a program as Java has them in memory: starts take half the processor time with it (JEP 350).

    The first process that stops in peace writes it, beside the jars in the cache. Its name has the sizes and times of
    the jars, because Java passes over one of jars that were installed again since.

    Args:
        program: Its name and version.
        jars: Its class path.
        java: A `java` executable or Java home, or None; see `odradek.java.find_java`.
    """

    def __init__(self, program: str, jars: Sequence[Path], java: str | os.PathLike[str] | None = None) -> None:
        executable = Path(find_java(java)).resolve()
        files = [f"{jar} {(info := jar.stat()).st_size} {info.st_mtime_ns}" for jar in jars]
        name = hashlib.sha256("\n".join([str(executable), *files]).encode()).hexdigest()[:16]
        self._path = cache_directory() / "classes" / f"{program}-{name}.jsa"
        # It builds on that of Java itself, and cannot be written by a process that is told to use yet another one.
        uses_another = "-XX:SharedArchiveFile" in os.environ.get("JDK_JAVA_OPTIONS", "")
        self._can_write = (executable.parent.parent / "lib/server/classes.jsa").exists() and not uses_another

    def options(self, directory: Path) -> list[str]:
        """Return Java's options that use the archive, or else write one into this directory when the process ends."""
        if self._path.exists():
            return [f"-XX:SharedArchiveFile={self._path}", "-Xlog:disable", "-Xlog:all=error:stderr"]
        return [f"-XX:ArchiveClassesAtExit={directory / self._path.name}"] if self._can_write else []

    def if_written(self, directory: Path) -> list[str]:
        """Return Java's options that use the archive; none as long as there is none."""
        return self.options(directory) if self._path.exists() else []

    def is_missing(self) -> bool:
        """Return whether a process should end in peace, to write it."""
        return self._can_write and not self._path.exists()

    def keep(self, directory: Path) -> None:
        """Put what a process wrote into this directory into the cache, whole or not at all."""
        written = directory / self._path.name
        if not written.exists():
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle, copy = tempfile.mkstemp(prefix=".", dir=self._path.parent)
        os.close(handle)
        shutil.copyfile(written, copy)
        Path(copy).replace(self._path)


class JavaServer(ServerProcess):
    """A server in Java: the first of its version that stops in peace writes the archive of its classes."""

    @cached_property
    def _archive(self) -> ClassArchive:
        raise NotImplementedError

    def stop(self) -> None:
        """Stop it and remove its temporary directory. Idempotent."""
        if self.running and not self.paused and self._archive.is_missing():
            self._terminate(30.0)
            self._archive.keep(self._directory())
        super().stop()

    def _terminate(self, timeout: float) -> None:
        """Send SIGTERM, and SIGKILL after `timeout` (s)."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout)
        self.kill()
