"""What a Spark session shows, and what it does not."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.accumulators import AccumulatorTCPServer, _start_update_server

from odradek.spark.session import _let_java_break_off

TOKEN = "secret"
NO_UPDATES = bytes(4)


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
