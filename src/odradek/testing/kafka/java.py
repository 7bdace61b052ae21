"""Java programs from the jars of a release: the broker itself, and its tools."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from odradek.errors import ServerError
from odradek.java import find_java
from odradek.testing.jars import maven_jars
from odradek.testing.kafka.releases import Release

__all__ = ["java_command", "run_tool"]

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
