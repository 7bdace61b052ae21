"""Each fault of the proxy, seen from both ends of the line."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterator

import anyio
import pytest

from odradek.errors import Closed
from odradek.testing import FaultProxy, ProxyStatistics


class Target:
    """A listening socket whose connections the test itself accepts."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(10)
        self.port: int = self.listener.getsockname()[1]

    def accept(self) -> socket.socket:
        connection, _ = self.listener.accept()
        connection.settimeout(10)
        return connection


@pytest.fixture
def target() -> Iterator[Target]:
    target = Target()
    with target.listener:
        yield target


@pytest.fixture
def proxy(target: Target) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", target.port) as proxy:
        yield proxy


@pytest.fixture
def ends(target: Target, proxy: FaultProxy) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of one connection through the proxy, up to the first byte in each direction."""
    with dial(proxy) as client, target.accept() as server:
        assert swap(client, server) == b"up"
        yield client, server


def dial(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection((proxy.host, proxy.port), timeout=10)


def swap(client: socket.socket, server: socket.socket) -> bytes:
    """A byte each way; returns both."""
    client.sendall(b"u")
    first = server.recv(1)
    server.sendall(b"p")
    return first + client.recv(1)


def read_all(connection: socket.socket) -> bytes:
    """Everything up to the end of the stream."""
    data = b""
    while chunk := connection.recv(65536):
        data += chunk
    return data


def test_healthy_it_passes_everything_on_and_counts(target: Target, proxy: FaultProxy) -> None:
    blob = bytes(range(256)) * 4096
    with dial(proxy) as client, target.accept() as server:
        client.sendall(b"ask")
        client.shutdown(socket.SHUT_WR)
        assert read_all(server) == b"ask"
        server.sendall(blob)
        server.shutdown(socket.SHUT_WR)
        assert read_all(client) == blob
    assert proxy.statistics()[2:] == (3, len(blob))
    assert proxy.statistics().connections == 1


def test_cut_ends_both_directions_with_fin(ends: tuple[socket.socket, socket.socket], proxy: FaultProxy) -> None:
    client, server = ends
    proxy.cut()
    assert read_all(client) == read_all(server) == b""
    client.sendall(b"swallowed")
    assert proxy.statistics() == ProxyStatistics(1, 0, 1, 1)


def test_cut_with_reset_resets_both_ends(ends: tuple[socket.socket, socket.socket], proxy: FaultProxy) -> None:
    proxy.cut(reset=True)
    for end in ends:
        with pytest.raises(ConnectionResetError):
            end.recv(1)


def test_a_reset_by_one_end_reaches_the_other(ends: tuple[socket.socket, socket.socket]) -> None:
    client, server = ends
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    with pytest.raises(ConnectionResetError):
        server.recv(1)


@pytest.mark.parametrize("limit", [0, 1, 2, 7, 8])
@pytest.mark.parametrize("direction", ["client", "server"])
def test_cut_after_passes_exactly_so_many_bytes_of_the_next_connection(
    target: Target, proxy: FaultProxy, direction: str, limit: int
) -> None:
    if direction == "client":
        proxy.cut_after(client_bytes=limit)
    else:
        proxy.cut_after(server_bytes=limit)
    with dial(proxy) as client, target.accept() as server:
        source, sink = (client, server) if direction == "client" else (server, client)
        source.sendall(b"12345678")
        assert read_all(sink) == b"12345678"[:limit]
        assert read_all(source) == b""
    with dial(proxy) as client, target.accept() as server:
        assert swap(client, server) == b"up"


def test_delay_makes_the_line_longer_but_not_slower(
    ends: tuple[socket.socket, socket.socket], proxy: FaultProxy
) -> None:
    client, server = ends
    proxy.delay(1.0)
    began = time.monotonic()
    for byte in b"abcdefgh":  # eight sends in a row: were delays added up, the last would come after 8 s
        client.sendall(bytes([byte]))
        time.sleep(0.005)
    received = b""
    while len(received) < 8:
        received += server.recv(8)
    assert 1.0 <= time.monotonic() - began < 6.0


def test_throttle_limits_the_rate(ends: tuple[socket.socket, socket.socket], proxy: FaultProxy) -> None:
    client, server = ends
    proxy.throttle(10_000)
    began = time.monotonic()
    client.sendall(bytes(3000))
    received = 0
    while received < 3000:
        received += len(server.recv(3000))
    # The pause after the last piece (0.05 s of data) is not seen here.
    assert time.monotonic() - began >= 0.2


def test_split_sends_pieces(ends: tuple[socket.socket, socket.socket], proxy: FaultProxy) -> None:
    client, server = ends
    proxy.split(3)
    client.sendall(b"0123456789")
    received = b""
    while len(received) < 10:
        chunk = server.recv(3)
        assert len(chunk) <= 3
        received += chunk
    assert received == b"0123456789"


def test_half_close_ends_one_direction_only(ends: tuple[socket.socket, socket.socket], proxy: FaultProxy) -> None:
    client, server = ends
    proxy.half_close("client")
    assert read_all(server) == b""
    client.sendall(b"swallowed")
    server.sendall(b"still here")
    assert client.recv(100) == b"still here"


def test_stall_swallows_everything_and_never_recovers(
    ends: tuple[socket.socket, socket.socket], target: Target, proxy: FaultProxy
) -> None:
    client, server = ends
    proxy.stall()
    client.sendall(bytes(1 << 20))
    with dial(proxy) as late:
        late.sendall(b"into the void")
        proxy.heal()
        with dial(proxy) as new, target.accept() as new_server:
            assert swap(new, new_server) == b"up"
        client.shutdown(socket.SHUT_WR)
        for end in (server, late):
            end.settimeout(0.05)
            with pytest.raises(TimeoutError):
                end.recv(1)
    assert proxy.statistics().client_bytes == 2


def test_refused_connections_leave_open_ones_alone_and_accept_takes_the_same_port(
    ends: tuple[socket.socket, socket.socket], target: Target, proxy: FaultProxy
) -> None:
    proxy.refuse()
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        dial(proxy)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((proxy.host, proxy.port))
    assert swap(*ends) == b"up"
    proxy.accept()
    proxy.accept()
    with dial(proxy) as client, target.accept() as server:
        assert swap(client, server) == b"up"


def test_retarget_leads_new_connections_elsewhere(ends: tuple[socket.socket, socket.socket], proxy: FaultProxy) -> None:
    other = Target()
    with other.listener:
        proxy.retarget("127.0.0.1", other.port)
        with dial(proxy) as client, other.accept() as server:
            assert swap(client, server) == b"up"
        assert swap(*ends) == b"up"


def test_a_target_that_is_gone_resets_the_client(target: Target, proxy: FaultProxy) -> None:
    target.listener.close()
    with pytest.raises(ConnectionResetError), dial(proxy) as client:
        client.recv(1)


def test_stop_resets_ends_the_thread_and_is_idempotent(
    ends: tuple[socket.socket, socket.socket], proxy: FaultProxy
) -> None:
    proxy.stop()
    proxy.stop()
    assert not proxy._thread.is_alive()
    with pytest.raises(OSError) as reset:
        ends[0].recv(1)
    assert reset.value.errno == errno.ECONNRESET
    with pytest.raises(Closed):
        proxy.cut()


def test_a_port_in_use_is_an_error_and_leaves_no_thread(target: Target) -> None:
    proxy = FaultProxy("127.0.0.1", target.port, port=target.port)
    with pytest.raises(OSError, match="in use"), proxy:
        pass
    assert not proxy._thread.is_alive()


@pytest.mark.anyio
async def test_it_works_under_every_loop(target: Target) -> None:
    with FaultProxy("127.0.0.1", target.port) as proxy:
        async with await anyio.connect_tcp(proxy.host, proxy.port) as client:
            with target.accept() as server:
                await client.send(b"hello")
                assert server.recv(100) == b"hello"
                proxy.cut()
                with pytest.raises(anyio.EndOfStream):
                    await client.receive()
