"""Connections through proxies: names that only the proxy knows, TLS behind it, and proxies that fail in every way."""

from __future__ import annotations

import socket
import ssl
from base64 import b64encode
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import anyio
import anyio.to_thread
import pytest
import trustme
from tests.io.limits import TimeLimit
from tests.io.proxy_server import ProxyServer, proxy_server
from tests.io.test_tcp import is_kept_alive, raw_socket
from tests.io.test_tls import Echoed, serving
from tests.loops import EVERY_LOOP, on

import odradek as od
from odradek.errors import ConfigError, Unreachable
from odradek.io import tcp
from odradek.io.proxy import Proxy, parse_proxy
from odradek.io.security import Security
from odradek.io.tls import client_context
from odradek.testing import Kafka07Broker, KafkaBroker
from odradek.testing.kafka.releases import NEWEST

pytestmark = [pytest.mark.anyio, pytest.mark.releases(NEWEST)]
anyio_backend = on(EVERY_LOOP)

NAME = "broker.invalid"
"""A name that nobody but a proxy of these tests can look up."""
LOGIN = ("us\u00e9r", "p@ss:word")
QUOTED = "us%C3%A9r:p%40ss%3Aword@"


@pytest.fixture(params=["socks5", "http"])
def proxy(request: pytest.FixtureRequest) -> Iterator[ProxyServer]:
    with proxy_server(request.param) as server:
        server.names[NAME] = "127.0.0.1"
        yield server


@pytest.fixture(params=["socks5", "http"])
def guarded(request: pytest.FixtureRequest) -> Iterator[ProxyServer]:
    """A proxy with a login."""
    with proxy_server(request.param, LOGIN) as server:
        server.names[NAME] = "127.0.0.1"
        yield server


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def secured(authority: trustme.CA) -> Iterator[int]:
    """An echo over TLS, for that name; it closes after `bye`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(NAME).configure_cert(context)

    def work(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as stream:
            echo(stream)

    yield from serving(work)


@pytest.fixture(scope="module")
def plain() -> Iterator[int]:
    """An echo; it closes after `bye`."""
    yield from serving(echo)


def echo(connection: socket.socket) -> None:
    while (data := connection.recv(65536)) and not data.endswith(b"bye"):
        connection.sendall(data)


async def echoed(port: int, proxy: Proxy, tls: ssl.SSLContext | None = None) -> None:
    data = bytes(range(256)) * 2000
    with anyio.fail_after(60):
        transport = await tcp.connect(NAME, port, 30, tls, proxy)
        handler = Echoed(transport, data)
        await transport.run(handler)  # type: ignore[arg-type]
    assert bytes(handler.received) == data


async def test_bytes_go_both_ways_to_a_name_that_the_proxy_looks_up(proxy: ProxyServer, plain: int) -> None:
    await echoed(plain, parse_proxy("proxy", proxy.url()))
    assert proxy.asked == [f"{NAME}:{plain}"]


async def test_nagle_is_off_and_the_connection_is_kept_alive(proxy: ProxyServer, plain: int) -> None:
    with anyio.fail_after(60):
        transport = await tcp.connect(NAME, plain, 30, None, parse_proxy("proxy", proxy.url()))
        assert raw_socket(transport).getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert is_kept_alive(transport)
        await transport.aclose()


async def test_tls_goes_through_and_checks_the_name_of_the_broker(
    proxy: ProxyServer, secured: int, authority: trustme.CA
) -> None:
    trusting = client_context(Security())
    authority.configure_trust(trusting)
    await echoed(secured, parse_proxy("proxy", proxy.url()), trusting)
    proxy.names["other.invalid"] = "127.0.0.1"
    with pytest.raises(Unreachable, match="Hostname mismatch") as caught:
        await tcp.connect("other.invalid", secured, 30, trusting, parse_proxy("proxy", proxy.url()))
    assert (caught.value.step, caught.value.address) == ("tls", f"other.invalid:{secured}")


async def test_a_proxy_with_a_login_is_passed_with_that_alone(guarded: ProxyServer, plain: int) -> None:
    await echoed(plain, parse_proxy("proxy", guarded.url(QUOTED)))
    for login, why in (("", "user and password"), ("u:wrong-password@", "user and password")):
        error = await refusal(plain, guarded.url(login))
        assert (error.step, error.retriable) == ("proxy", False)
        assert why in error.why and str(guarded.port) in error.why and "wrong-password" not in str(error)
    assert len(guarded.asked) == 1


async def refusal(port: int, url: str, timeout: float = 30.0) -> Unreachable:
    with anyio.fail_after(60), pytest.raises(Unreachable) as caught:
        await tcp.connect(NAME, port, timeout, None, parse_proxy("proxy", url))
    assert caught.value.address == f"{NAME}:{port}"
    return caught.value


async def test_a_broker_that_the_proxy_cannot_reach_is_no_fault_of_the_proxy(proxy: ProxyServer) -> None:
    with socket.socket() as unheard:  # bound and not listening
        unheard.bind(("127.0.0.1", 0))
        error = await refusal(unheard.getsockname()[1], proxy.url())
    assert (error.step, error.retriable) == ("tcp", True)
    assert f"the proxy {proxy.url()}: " in error.why and "from the proxy" in error.hint


@pytest.mark.parametrize("answer", [b"", b"\x05", b"HTTP/1.1 2", b"hello, who are you?", b"\x00" * 100, b"\r\n\r\n"])
async def test_a_proxy_that_closes_or_sends_garbage_is_named(proxy: ProxyServer, answer: bytes) -> None:
    proxy.answer = answer
    error = await refusal(1, proxy.url())
    assert error.step == "proxy" and f"the proxy {proxy.url()}: " in error.why
    assert "closed the connection" in error.why or "does not speak" in error.why


async def test_a_proxy_that_hangs_costs_the_time_limit(proxy: ProxyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy.silent = True
    limit = TimeLimit(17.0, monkeypatch)
    errors: list[Unreachable] = []

    async def connect() -> None:
        errors.append(await refusal(1, proxy.url(), 17.0))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connect)
        await anyio.to_thread.run_sync(proxy.connected.wait, 30)
        await anyio.wait_all_tasks_blocked()
        limit.end()
    assert (errors[0].step, errors[0].why) == ("proxy", f"{proxy.url()}: no answer within 17 s")


async def test_a_proxy_that_is_not_there_is_named() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        url = f"socks5://127.0.0.1:{unheard.getsockname()[1]}"
        error = await refusal(1, url)
    assert (error.step, error.hint) == ("proxy", "check the option proxy")
    assert f"{url}: tcp: " in error.why and "refused" in error.why.lower()


async def test_a_host_that_cannot_be_one_is_not_sent_to_the_proxy(proxy: ProxyServer) -> None:
    with pytest.raises(Unreachable, match="cannot be the name of a host") as caught:
        await tcp.connect("a\r\nb", 9092, 30, None, parse_proxy("proxy", proxy.url()))
    assert (caught.value.step, caught.value.hint) == (
        "dns",
        "check the name in the URL; in 0.7 a broker may have registered it in ZooKeeper",
    )
    assert not proxy.connected.is_set()


async def test_a_cancellation_at_any_step_leaves_no_connection(proxy: ProxyServer, plain: int) -> None:
    through = parse_proxy("proxy", proxy.url())
    finished = False
    for steps in range(200):
        async with anyio.create_task_group() as tasks:
            opened: list[Any] = []

            async def connect(opened: list[Any] = opened) -> None:
                opened.append(await tcp.connect(NAME, plain, 30, None, through))

            tasks.start_soon(connect)
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        for transport in opened:
            await transport.aclose()
            finished = True
        if finished:
            break
    await echoed(plain, through)


# ---- clusters ----------------------------------------------------------------------------------------------------


async def test_every_connection_to_a_broker_goes_through(
    proxy: ProxyServer, any_kafka: KafkaBroker, anyio_backend_name: str
) -> None:
    topic = f"proxied-{proxy.kind}-{anyio.current_time():.6f}"
    await anyio.to_thread.run_sync(any_kafka.create_topic, topic)
    url = f"kafka://{NAME}:{any_kafka.port}"
    async with od.connect(url, proxy=proxy.url(), tuning=od.Tuning(request_timeout=60)) as k:
        async with k.producer() as out:
            await out.send(topic, b"v")
        async with k.reader(topic, until=od.LATEST) as reader:
            assert [record.value async for record in reader] == [b"v"]
        connects = k.statistics().connects
    assert len(proxy.asked) == connects
    assert set(proxy.asked) == {f"{NAME}:{any_kafka.port}", f"{any_kafka.host}:{any_kafka.port}"}


async def test_brokers_of_0_7_are_reached_too(proxy: ProxyServer) -> None:
    with Kafka07Broker(broker_id=1, config={"log.flush.interval": "1"}) as broker:
        port = broker.port
        async with od.connect(f"kafka07://1@{NAME}:{port}", proxy=proxy.url()) as k, k.producer() as out:
            assert (await out.send("t", b"v", partition=od.TopicPartition("t", 0, 1))).confirmed
    assert set(proxy.asked) == {f"{NAME}:{port}"}


def test_the_environment_has_the_proxy_if_the_program_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODRADEK_PROXY", "socks5://p")
    driver: Any = od.connect("kafka://b").driver
    assert driver.connections._proxy == Proxy("socks5", "p", 1080)
    own: Any = od.connect("kafka://b", proxy="http://q:3128").driver
    assert own.connections._proxy == own.connections.for_thread()._proxy == Proxy("http", "q", 3128)
    with pytest.raises(ConfigError, match=r"kafka07\+zk://: ZooKeeper's client goes through none"):
        od.connect("kafka07+zk://z")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("", "must be socks5://"),
        ("socks4://h:1", "must be socks5://"),
        ("https://h:1", "must be socks5://"),
        ("http://h", "must be socks5://"),
        ("http://h:0", "must be socks5://"),
        ("socks5://h:99999", "must be socks5://"),
        ("socks5://h:x", "must be socks5://"),
        ("socks5://:1080", "must be socks5://"),
        ("socks5://h:1/path", "must be socks5://"),
        ("h:1080", "must be socks5://"),
        ("socks5://hidden%ff:p@h", "must be socks5://"),
        ("socks5://hidden@h", "user and password of SOCKS5 must have 1 to 255 bytes"),
        ("socks5://u:" + "hidden" * 60 + "@h", "user and password of SOCKS5 must have 1 to 255 bytes"),
    ],
)
def test_a_url_that_cannot_be_that_of_a_proxy_is_refused(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        od.connect("kafka://b", proxy=url)
    assert "hidden" not in str(caught.value)
    assert "hidden" not in repr(Proxy("socks5", "h", 1, "u", "hidden"))


@pytest.mark.parametrize(("user", "password"), [("token", ""), ("u", "of a token" * 100)])
def test_a_login_of_http_may_be_a_token(user: str, password: str) -> None:
    proxy = parse_proxy("proxy", f"http://{user}:{quote(password)}@h:3128")
    login = b64encode(f"{user}:{password}".encode())
    assert b"Proxy-Authorization: Basic " + login + b"\r\n" in next(proxy.exchange("b", 9092)).send


def test_a_proxy_is_a_text() -> None:
    with pytest.raises(TypeError, match="proxy must be a text such as socks5"):
        od.connect("kafka://b", proxy=5)  # type: ignore[arg-type]
    assert str(parse_proxy("proxy", "socks5h://u:p@[::1]:9")) == "socks5h://[::1]:9"
