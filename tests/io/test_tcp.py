from __future__ import annotations

import asyncio
import pickle
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream
from anyio.lowlevel import checkpoint
from anyio.streams.stapled import MultiListener

from odradek.engine import Buffer
from odradek.errors import Unreachable
from odradek.io import tcp
from odradek.io.transport import AsyncioTransport, StreamTransport, Transport

pytestmark = pytest.mark.anyio


# ---- connect -------------------------------------------------------------------------------------------------


class Taker:
    """Keeps what a transport receives."""

    missing_bytes = 0

    def __init__(self) -> None:
        self.data = b""
        self.why: str | None = None

    def data_received(self, data: memoryview, may_leave: bool) -> int:
        self.data += data
        return len(data)

    def data_to_send(self) -> list[Buffer]:
        return []

    def data_sent(self) -> None: ...

    def connection_lost(self, why: str, alert: ssl.SSLError | None = None) -> None:
        self.why = why


async def serve_once(listener: MultiListener[SocketStream], data: bytes) -> None:
    async def answer(stream: SocketStream) -> None:
        async with stream:
            await stream.send(data)

    async with listener:
        await listener.serve(answer)


def raw_socket(link: Transport) -> Any:
    if isinstance(link, AsyncioTransport):
        return link._transport.get_extra_info("socket")
    assert isinstance(link, StreamTransport)
    return link._stream.extra(SocketAttribute.raw_socket)


def is_kept_alive(link: Transport) -> bool:
    """Return whether the system probes the connection once it has been unused for a minute."""
    connected = raw_socket(link)
    idle_s: int = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
    return idle_s == 60 and bool(connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))


async def test_connects_turns_nagle_off_and_keeps_alive() -> None:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    taker = Taker()
    async with anyio.create_task_group() as group:
        group.start_soon(serve_once, listener, b"hello")
        link = await tcp.connect("127.0.0.1", listener.extra(SocketAttribute.local_port), 5)
        assert raw_socket(link).getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert is_kept_alive(link)
        await link.run(taker)
        assert (taker.data, taker.why) == (b"hello", "closed by the peer")
        group.cancel_scope.cancel()


async def test_a_refused_connection_says_tcp_address_and_why() -> None:
    with socket.socket() as unheard:  # bound and not listening: refuses for as long as it is open
        unheard.bind(("127.0.0.1", 0))
        port = unheard.getsockname()[1]
        with pytest.raises(Unreachable) as caught:
            await tcp.connect("127.0.0.1", port, 5)
    error = caught.value
    assert (error.step, error.address) == ("tcp", f"127.0.0.1:{port}")
    assert "refused" in error.why.lower()
    assert "listens" in error.hint
    assert not error.sent
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


async def test_every_address_that_failed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = {"::1": OSError(101, "no route"), "127.0.0.1": ConnectionRefusedError(111, "Connect call failed")}

    async def fail(host: str, port: int, tls: object) -> Transport:
        await checkpoint()
        raise errors[host]

    monkeypatch.setattr(tcp, "_open", fail)
    monkeypatch.setattr(anyio, "getaddrinfo", resolver(*errors))
    with pytest.raises(Unreachable, match="tcp: Network is unreachable; Connection refused"):
        await tcp.connect("host", 1, 5)


def resolver(*hosts: str) -> Any:
    async def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
        return [(0, socket.SOCK_STREAM, 0, "", (host, 1)) for host in (*hosts, *hosts)]

    return getaddrinfo


class Closable:
    """A link that is only opened and closed."""

    def __init__(self, host: str) -> None:
        self.host, self.closed = host, False

    async def aclose(self) -> None:
        self.closed = True


async def test_addresses_are_tried_in_turns_and_a_silent_one_does_not_hold_up(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    async def open_(host: str, port: int, tls: object) -> Any:
        tried.append(host)
        await (checkpoint() if host == "10.0.0.2" else anyio.sleep_forever())
        return Closable(host)

    monkeypatch.setattr(tcp, "_open", open_)
    monkeypatch.setattr(tcp, "NEXT_ADDRESS_S", 0.001)
    monkeypatch.setattr(anyio, "getaddrinfo", resolver("fe80::1", "fe80::2", "10.0.0.1", "10.0.0.2", "10.0.0.3"))
    link: Any = await tcp.connect("host", 1, 5)
    assert tried[:4] == ["fe80::1", "10.0.0.1", "fe80::2", "10.0.0.2"]  # the fifth, too, if the machine is slow
    assert (link.host, link.closed) == ("10.0.0.2", False)


async def test_after_connections_that_were_of_no_use_another_address_comes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def open_(host: str, port: int, tls: object) -> Any:
        await checkpoint()
        return Closable(host)

    monkeypatch.setattr(tcp, "_open", open_)
    monkeypatch.setattr(anyio, "getaddrinfo", resolver("fe80::1", "10.0.0.1", "10.0.0.2"))
    links: list[Any] = [await tcp.connect("host", 1, 5, failures=failures) for failures in range(4)]
    assert [link.host for link in links] == ["fe80::1", "10.0.0.1", "10.0.0.2", "fe80::1"]


@pytest.mark.parametrize("end", ["too late", "cancelled"])
async def test_a_link_that_nobody_takes_is_closed(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    links: list[Closable] = []
    both = anyio.Event()

    async def open_(host: str, port: int, tls: object) -> Any:
        links.append(Closable(host))
        if len(links) == 2:
            both.set()
            if end == "cancelled":
                scope.cancel()
        with anyio.CancelScope(shield=True):
            await both.wait()
        return links[int(host[-1])]

    monkeypatch.setattr(tcp, "_open", open_)
    monkeypatch.setattr(tcp, "NEXT_ADDRESS_S", 0.001)
    monkeypatch.setattr(anyio, "getaddrinfo", resolver("10.0.0.0", "10.0.0.1"))
    link: Any = None
    with anyio.CancelScope() as scope:
        link = await tcp.connect("host", 1, 5)
    assert {each.host for each in links if each.closed} == {each.host for each in links} - {getattr(link, "host", "")}
    assert scope.cancelled_caught == (link is None) == (end == "cancelled")


async def test_an_unknown_name_says_dns(monkeypatch: pytest.MonkeyPatch) -> None:
    async def getaddrinfo(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(anyio, "getaddrinfo", getaddrinfo)
    with pytest.raises(Unreachable, match="nowhere:9092: dns: Name or service not known") as caught:
        await tcp.connect("nowhere", 9092, 5)
    assert caught.value.step == "dns"
    assert "name in the URL" in caught.value.hint


@pytest.mark.parametrize("host", ["a" * 70 + ".example", "a..b"])
async def test_a_host_that_cannot_be_a_name_says_dns(host: str) -> None:
    with pytest.raises(Unreachable) as caught:
        await tcp.connect(host, 9092, 5)
    assert caught.value.step == "dns"


@pytest.mark.parametrize("port", [-1, 0, 65536, 1 << 40])
async def test_a_port_that_cannot_be_one_is_unreachable(port: int) -> None:
    with pytest.raises(Unreachable, match="no such port"):
        await tcp.connect("127.0.0.1", port, 5)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_names_are_looked_up_when_the_main_thread_has_ended(anyio_backend: str) -> None:
    """asyncio's executor accepts nothing any more then, in whichever thread its event loop is."""
    ended, loop = ThreadPoolExecutor(), asyncio.get_running_loop()
    ended.shutdown()
    loop.set_default_executor(ended)
    with pytest.raises(RuntimeError, match="cannot schedule new futures"):
        await anyio.getaddrinfo("localhost", 9092)
    with pytest.raises(Unreachable) as caught:
        await tcp.connect("localhost", 1, 5.0)
    assert caught.value.step == "tcp"
    loop.set_default_executor(ThreadPoolExecutor())


@pytest.mark.parametrize(("function", "step"), [("getaddrinfo", "dns"), ("_open", "tcp")])
async def test_a_timeout_says_at_which_step(monkeypatch: pytest.MonkeyPatch, function: str, step: str) -> None:
    async def silence(*_: Any, **__: Any) -> None:
        await anyio.sleep_forever()

    async def addresses(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))]

    monkeypatch.setattr(anyio, "getaddrinfo", addresses)
    monkeypatch.setattr(anyio if step == "dns" else tcp, function, silence)
    with pytest.raises(Unreachable, match="no answer within") as caught:
        await tcp.connect("127.0.0.1", 1, 0.2)
    assert caught.value.step == step
