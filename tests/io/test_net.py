from __future__ import annotations

import pickle
import socket
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from anyio.abc import SocketAttribute, SocketStream
from anyio.lowlevel import checkpoint
from anyio.streams.stapled import MultiListener

from odradek.errors import Unreachable
from odradek.io import net

pytestmark = pytest.mark.anyio


# ---- connect -------------------------------------------------------------------------------------------------


async def serve_once(listener: MultiListener[SocketStream], data: bytes) -> None:
    async def answer(stream: SocketStream) -> None:
        async with stream:
            await stream.send(data)

    async with listener:
        await listener.serve(answer)


async def test_connects_and_turns_nagle_off() -> None:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    async with anyio.create_task_group() as group:
        group.start_soon(serve_once, listener, b"hello")
        async with await net.connect("127.0.0.1", port, 5) as stream:
            raw = stream.extra(SocketAttribute.raw_socket)
            assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert await stream.receive() == b"hello"
        group.cancel_scope.cancel()


async def test_a_refused_connection_says_tcp_address_and_why() -> None:
    with socket.socket() as unheard:  # bound and not listening: refuses for as long as it is open
        unheard.bind(("127.0.0.1", 0))
        port = unheard.getsockname()[1]
        with pytest.raises(Unreachable) as caught:
            await net.connect("127.0.0.1", port, 5)
    error = caught.value
    assert (error.step, error.address) == ("tcp", f"127.0.0.1:{port}")
    assert "refused" in error.why.lower()
    assert "listens" in error.hint
    assert not error.sent
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


async def test_every_address_that_failed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect_tcp(*_: Any) -> None:
        refused = [ConnectionRefusedError(111, "Connection refused"), OSError(101, "Network is unreachable")]
        raise OSError("All connection attempts failed") from ExceptionGroup("", refused)

    monkeypatch.setattr(anyio, "connect_tcp", connect_tcp)
    with pytest.raises(Unreachable, match="tcp: Connection refused; Network is unreachable"):
        await net.connect("127.0.0.1", 1, 5)


async def test_an_unknown_name_says_dns(monkeypatch: pytest.MonkeyPatch) -> None:
    async def getaddrinfo(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(anyio, "getaddrinfo", getaddrinfo)
    with pytest.raises(Unreachable, match="nowhere:9092: dns: Name or service not known") as caught:
        await net.connect("nowhere", 9092, 5)
    assert caught.value.step == "dns"
    assert "host name" in caught.value.hint


@pytest.mark.parametrize("host", ["a" * 70 + ".example", "a..b"])
async def test_a_host_that_cannot_be_a_name_says_dns(host: str) -> None:
    with pytest.raises(Unreachable) as caught:
        await net.connect(host, 9092, 5)
    assert caught.value.step == "dns"


@pytest.mark.parametrize("port", [-1, 0, 65536, 1 << 40])
async def test_a_port_that_cannot_be_one_is_unreachable(port: int) -> None:
    with pytest.raises(Unreachable, match="no such port"):
        await net.connect("127.0.0.1", port, 5)


@pytest.mark.parametrize(("function", "step"), [("getaddrinfo", "dns"), ("connect_tcp", "tcp")])
async def test_a_timeout_says_at_which_step(monkeypatch: pytest.MonkeyPatch, function: str, step: str) -> None:
    async def silence(*_: Any, **__: Any) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(anyio, function, silence)
    with pytest.raises(Unreachable, match="no answer within") as caught:
        await net.connect("127.0.0.1", 1, 0.01)
    assert caught.value.step == step


# ---- memory_pair ---------------------------------------------------------------------------------------------


async def test_what_one_sends_the_other_receives() -> None:
    here, there = net.memory_pair()
    await here.send(b"ping")
    await there.send(b"pong")
    assert (await there.receive(2), await there.receive()) == (b"pi", b"ng")
    assert await here.receive() == b"pong"


async def test_receive_waits_for_bytes() -> None:
    here, there = net.memory_pair()
    async with anyio.create_task_group() as group:
        group.start_soon(there.send, b"late")
        assert await here.receive() == b"late"


async def test_a_full_pipe_holds_the_sender_until_it_is_read() -> None:
    here, there = net.memory_pair(capacity=4)
    sent = anyio.Event()

    async def send() -> None:
        await here.send(b"0123456789")
        sent.set()

    async with anyio.create_task_group() as group:
        group.start_soon(send)
        await wait_all_tasks_blocked()
        assert not sent.is_set()
        received = b""
        while len(received) < 10:
            received += await there.receive()
        await sent.wait()
    assert received == b"0123456789"


async def test_eof_comes_after_the_bytes_and_closes_one_direction_only() -> None:
    here, there = net.memory_pair()
    await here.send(b"last")
    await here.send_eof()
    assert await there.receive() == b"last"
    with pytest.raises(anyio.EndOfStream):
        await there.receive()
    await there.send(b"still open")
    assert await here.receive() == b"still open"


async def test_close_ends_the_peers_reads_and_breaks_its_writes() -> None:
    here, there = net.memory_pair()
    await here.aclose()
    with pytest.raises(anyio.EndOfStream):
        await there.receive()
    with pytest.raises(anyio.BrokenResourceError):
        await there.send(b"x")
    for use in (here.receive(), here.send(b"x")):
        with pytest.raises(anyio.ClosedResourceError):
            await use


@pytest.mark.parametrize("closer", ["itself", "its peer"])
async def test_close_wakes_a_blocked_sender(closer: str) -> None:
    here, there = net.memory_pair(capacity=1)
    caught: list[type[Exception]] = []

    async def send() -> None:
        try:
            await here.send(b"too much")
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            caught.append(type(error))

    async with anyio.create_task_group() as group:
        group.start_soon(send)
        await wait_all_tasks_blocked()
        await (here if closer == "itself" else there).aclose()
        await checkpoint()
    assert caught == [anyio.ClosedResourceError if closer == "itself" else anyio.BrokenResourceError]
