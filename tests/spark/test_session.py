"""What a Spark session shows, and what it does not."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.accumulators import AccumulatorTCPServer, _start_update_server

from odradek.spark import session
from odradek.spark.session import _let_java_break_off, environment

TOKEN = "secret"
NO_UPDATES = bytes(4)

DRIVER = ("-cp", "conf:jars/*", "org.apache.spark.deploy.SparkSubmit", "pyspark-shell")
LAUNCHER = ("-cp", "jars/*", "org.apache.spark.launcher.Main", *DRIVER[2:])
WORKER = ("-cp", "conf:jars/*", "org.apache.spark.deploy.worker.Worker")


def connected(server: AccumulatorTCPServer) -> socket.socket:
    _, port, *_ = server.server_address
    return socket.create_connection(("localhost", int(port)), 10)


@contextmanager
def java(server: AccumulatorTCPServer) -> Iterator[socket.socket]:
    """A connection as Spark's Java makes it, that has sent something and got its answer."""
    with connected(server) as connection:
        connection.sendall(TOKEN.encode() + NO_UPDATES)
        assert connection.recv(1) == b"\x01"
        yield connection


def test_java_may_break_off_what_it_says_to_pyspark(capfd: pytest.CaptureFixture[str]) -> None:
    server = _start_update_server(TOKEN, False, "")
    assert isinstance(server, AccumulatorTCPServer)
    _let_java_break_off(server)
    try:
        with java(server):
            pass
        with java(server):  # which is answered after the one before has ended
            assert capfd.readouterr().err == ""
        with connected(server) as stranger:
            stranger.sendall(b"x" * len(TOKEN))
            assert stranger.recv(1) == b""
        with java(server):
            assert "The value of the provided token" in capfd.readouterr().err
    finally:
        server.shutdown()


@pytest.mark.parametrize(
    ("arguments", "local", "python", "home"),
    [
        (DRIVER, True, sys.executable, ""),
        (DRIVER, False, sys.executable, "/spark"),  # workers may have no pyspark of their own
        (DRIVER, True, "/usr/bin/another-python", "/spark"),
        (LAUNCHER, True, sys.executable, "/spark"),
        (WORKER, True, sys.executable, "/spark"),
    ],
)
def test_only_the_driver_of_this_machine_does_not_know_spark_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...], local: bool, python: str, home: str
) -> None:
    java = tmp_path / "java"
    java.write_text('#!/bin/sh\necho "$SPARK_HOME"; for word do echo "$word"; done')
    java.chmod(0o755)
    monkeypatch.setattr(session, "find_java", lambda: str(java))
    environment(tmp_path / "made", local=local, python=python)
    command = [str(tmp_path / "made" / "bin" / "java"), "--add-modules=jdk.incubator.vector", *arguments]
    run = subprocess.run(command, env={"SPARK_HOME": "/spark"}, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [home, f"-Djava.io.tmpdir={tmp_path}/made", *arguments]
