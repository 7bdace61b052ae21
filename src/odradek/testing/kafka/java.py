"""Java programs from the jars of a release: the broker itself, and its tools."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from odradek.errors import ServerError
from odradek.java import find_java
from odradek.testing.jars import cache_directory, maven_jars
from odradek.testing.kafka.releases import Release

__all__ = ["ClassArchive", "java_command", "run_tool"]

FLAGS = (
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


def java_command(
    release: Release, java: str | os.PathLike[str] | None, heap: str, directory: Path, options: Sequence[str] = ()
) -> list[str]:
    """Return the command that runs a class of a release's jars: the class and its arguments come after it.

    Args:
        java: A `java` executable or Java home, or None; see `odradek.java.find_java`.
        heap: Java's `-Xmx`.
        directory: Place of the configuration of its log.
        options: Further options of Java.
    """
    log4j = directory / "log4j.properties"
    if not log4j.exists():
        log4j.write_text(LOG4J)
    logging = f"-Dlog4j.configuration=file:{log4j}"
    classpath = os.pathsep.join(map(str, maven_jars(release.coordinates)))
    return [find_java(java), f"-Xmx{heap}", *FLAGS, *options, logging, "-cp", classpath]


def run_tool(
    command: Sequence[str], main_class: str, args: Sequence[str], stdin: str, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a class to its end. Raises ServerError when it does not end within `timeout` (s); shows what it wrote."""
    try:
        return subprocess.run(
            [*command, main_class, *args], input=stdin, capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired as error:
        wrote = ((error.stdout or b"") + (error.stderr or b"")).decode("utf-8", "replace")
        raise ServerError(f"{main_class} did not end within {timeout:g} s; it wrote: {wrote}") from None


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
        self._can_write = (executable.parent.parent / "lib" / "server" / "classes.jsa").exists()  # it builds on that

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
