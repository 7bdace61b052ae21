"""TLS under a transport: bytes both ways on every event loop, and the reason when there is no handshake."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
import trustme
from cryptography.x509 import load_pem_x509_certificate
from tests.loops import EVERY_LOOP, on

from odradek.errors import Unreachable
from odradek.io import tcp
from odradek.io.security import Security
from odradek.io.tls import ContextSource, client_context, tls_alert, tls_error
from odradek.io.transport import Transport

from .limits import TimeLimit
from .test_tcp import is_kept_alive, raw_socket

pytestmark = pytest.mark.anyio
anyio_backend = on(EVERY_LOOP)

BIG = 3 << 20


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = client_context(Security())
    authority.configure_trust(context)
    return context


def serving(work: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that does `work` with each connection, in a thread."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection, suppress(OSError):
                    work(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(10)
    assert not thread.is_alive()


@pytest.fixture
def echo(authority: trustme.CA) -> Iterator[int]:
    """An echo over TLS, for localhost and 127.0.0.1; it closes after `bye`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)

    def work(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            while (data := secured.recv(65536)) and data != b"bye":
                secured.sendall(data)

    yield from serving(work)


@pytest.fixture
def plain() -> Iterator[int]:
    """A server that answers anything with plain text."""
    yield from serving(lambda connection: connection.sendall(b"hello, who are you?" + connection.recv(10)))


@pytest.fixture
def closing() -> Iterator[int]:
    """A server that closes every connection after the first bytes."""

    def work(connection: socket.socket) -> None:
        connection.recv(10)

    yield from serving(work)


@pytest.fixture
def greeted() -> threading.Event:
    """Set when a client has sent something to `silent`."""
    return threading.Event()


@pytest.fixture
def silent(greeted: threading.Event) -> Iterator[int]:
    """A server that accepts, and says nothing until the client leaves."""

    def work(connection: socket.socket) -> None:
        while connection.recv(65536):
            greeted.set()

    yield from serving(work)


class Echoed:
    """A handler that sends bytes and collects what comes back."""

    missing_bytes = 0

    def __init__(self, transport: Transport, data: bytes) -> None:
        self.transport, self.left, self.expected = transport, [data], len(data)
        self.received, self.ended = bytearray(), ""
        self.alert: ssl.SSLError | None = None

    def data_to_send(self) -> list[bytes]:
        return [self.left.pop()] if self.left else []

    def data_sent(self) -> None:
        pass

    def data_received(self, data: memoryview, may_leave: bool) -> int:
        self.received += data
        if len(self.received) == self.expected:
            self.left.append(b"bye")
            self.transport.write()
        return len(data)

    def connection_lost(self, why: str, alert: ssl.SSLError | None = None) -> None:
        self.ended, self.alert = why, alert


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_bytes_go_both_ways_and_the_end_is_noticed(echo: int, trusting: ssl.SSLContext, host: str) -> None:
    data = bytes(range(256)) * (BIG // 256)
    with anyio.fail_after(60):
        transport = await tcp.connect(host, echo, 30, trusting)
        handler = Echoed(transport, data)
        await transport.run(handler)  # type: ignore[arg-type]
    assert bytes(handler.received) == data
    assert handler.ended == "closed by the peer"


async def test_nagle_is_off_and_the_connection_is_kept_alive(echo: int, trusting: ssl.SSLContext) -> None:
    with anyio.fail_after(60):
        transport = await tcp.connect("localhost", echo, 30, trusting)
        assert raw_socket(transport).getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert is_kept_alive(transport)
        await transport.aclose()


async def test_an_aborted_connection_is_closed_at_once(echo: int, trusting: ssl.SSLContext) -> None:
    with anyio.fail_after(10):
        transport = await tcp.connect("localhost", echo, 10, trusting)
        await transport.aclose()
        with anyio.move_on_after(0.05):
            other = await tcp.connect("localhost", echo, 10, trusting)
            await other.run(Echoed(other, b""))  # type: ignore[arg-type]


async def failure(port: int, context: ssl.SSLContext, host: str = "127.0.0.1", timeout: float = 20.0) -> Unreachable:
    with anyio.fail_after(30), pytest.raises(Unreachable) as caught:
        await tcp.connect(host, port, timeout, context)
    assert caught.value.address == f"{host}:{port}"
    assert caught.value.step == "tls"
    return caught.value


@pytest.fixture
def demanding(authority: trustme.CA) -> Iterator[int]:
    """A server that asks for a certificate of the client, and says only after the handshake that it misses it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)

    def work(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True):
            raise AssertionError("not reached")

    yield from serving(work)


async def test_an_alert_after_the_handshake_is_told_in_words(demanding: int, trusting: ssl.SSLContext) -> None:
    with anyio.fail_after(30):
        transport = await tcp.connect("localhost", demanding, 30, trusting)
        handler = Echoed(transport, b"")
        handler.left.clear()
        await transport.run(handler)  # type: ignore[arg-type]
    assert handler.alert is not None
    error = tls_error("b:9092", handler.alert)
    assert (error.step, error.why) == ("tls", "the broker's alert: certificate required")
    assert "ssl_certfile" in error.hint


@pytest.mark.parametrize(
    ("reason", "why", "hint"),
    [
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "the broker's alert: certificate required", "ssl_certfile"),
        ("SSLV3_ALERT_BAD_CERTIFICATE", "the broker's alert: bad certificate", "ssl_certfile"),
        ("TLSV1_ALERT_UNKNOWN_CA", "the broker's alert: unknown ca", "ssl_certfile"),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", "the broker's alert: handshake failure", "the broker's log"),
    ],
)
async def test_alerts_of_a_broker_are_named(reason: str, why: str, hint: str) -> None:
    alert = ssl.SSLError(1, f"[SSL: {reason}]")
    alert.reason = reason
    error = tls_error("b:9092", alert)
    assert (error.why, error.retriable) == (why, True) and hint in error.hint
    assert tls_alert(alert) is alert
    alert.reason = "UNEXPECTED_MESSAGE"  # found by this client
    assert tls_alert(alert) is None


async def test_an_unknown_authority_is_refused_for_good(echo: int) -> None:
    error = await failure(echo, client_context(Security()))
    assert "not accepted: unable to get local issuer certificate" in error.why
    assert "ssl_cafile" in error.hint
    assert (error.retriable, error.fatal) == (False, True)


async def test_a_certificate_of_another_host_is_refused_for_good(
    authority: trustme.CA, trusting: ssl.SSLContext
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("other.example").configure_cert(context)

    def work(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            secured.recv(1)

    for port in serving(work):
        error = await failure(port, trusting)
        assert "IP address mismatch" in error.why
        assert "advertised.listeners" in error.hint
        assert not error.retriable


async def test_a_peer_without_tls_is_named_as_such(plain: int, trusting: ssl.SSLContext) -> None:
    error = await failure(plain, trusting)
    assert "without +ssl" in error.hint


async def test_a_peer_that_closes_may_have_no_tls(closing: int, trusting: ssl.SSLContext) -> None:
    error = await failure(closing, trusting)
    assert "without +ssl" in error.hint
    assert error.retriable


async def test_a_silent_peer_costs_the_time_limit(
    silent: int, greeted: threading.Event, trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = TimeLimit(20.5, monkeypatch)

    async def end_limit() -> None:
        await anyio.to_thread.run_sync(greeted.wait, 10)  # a shorter one could be over before TCP connects
        limit.end()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end_limit)
        error = await failure(silent, trusting, timeout=20.5)
    assert error.why == "no answer within 20.5 s"
    assert "without +ssl" in error.hint


async def test_a_port_on_which_nothing_listens_is_no_matter_of_tls(trusting: ssl.SSLContext) -> None:
    with socket.socket() as unheard:  # bound and not listening: refuses for as long as it is open
        unheard.bind(("127.0.0.1", 0))
        with pytest.raises(Unreachable, match="tcp: Connection refused"):
            await tcp.connect("127.0.0.1", unheard.getsockname()[1], 10, trusting)


async def test_cancelled_in_the_handshake_it_leaves_nothing_open(silent: int, trusting: ssl.SSLContext) -> None:
    before = {task.id for task in anyio.get_running_tasks()}
    with anyio.move_on_after(0.05) as scope:
        await tcp.connect("127.0.0.1", silent, 20, trusting)
    assert scope.cancelled_caught
    assert {task.id for task in anyio.get_running_tasks()} <= before


# ---- files that are replaced -------------------------------------------------------------------------------------


@pytest.fixture
def knowing(authority: trustme.CA) -> Iterator[int]:
    """A server that sends a client the serial number of its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)

    def work(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            certificate = secured.getpeercert() or {}
            secured.sendall(str(certificate["serialNumber"]).rjust(40).encode())

    yield from serving(work)


class Files:
    """Files of a client's certificate, key and authority.

    Args:
        folder: Where they are.
        authority: Signs the certificates.
    """

    def __init__(self, folder: Path, authority: trustme.CA) -> None:
        self.certificate, self.key, self.ca = folder / "tls.crt", folder / "tls.key", folder / "ca.crt"
        self.authority = authority
        self.ca.write_bytes(authority.cert_pem.bytes())

    @property
    def security(self) -> Security:
        return Security(ssl_cafile=str(self.ca), ssl_certfile=str(self.certificate), ssl_keyfile=str(self.key))

    def replace(self) -> trustme.LeafCert:
        """Write another certificate with its key."""
        issued = self.authority.issue_cert("client@odradek.example")
        self.write_certificate(issued)
        self.key.write_bytes(issued.private_key_pem.bytes())
        return issued

    def write_certificate(self, issued: trustme.LeafCert) -> None:
        self.certificate.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))


def serial(issued: trustme.LeafCert) -> int:
    return int(load_pem_x509_certificate(issued.cert_chain_pems[0].bytes()).serial_number)


async def shown(port: int, source: ContextSource) -> int:
    """Return the number of the certificate that a new connection shows."""
    with anyio.fail_after(30):
        transport = await tcp.connect("127.0.0.1", port, 30, source.current())
        handler = Echoed(transport, b"".rjust(40))
        handler.left.clear()
        await transport.run(handler)  # type: ignore[arg-type]
    return int(handler.received, 16)


async def test_a_new_connection_has_the_certificate_that_is_on_disk_by_then(
    knowing: int, authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = Files(tmp_path, authority)
    first = files.replace()
    source = ContextSource(files.security)
    assert await shown(knowing, source) == serial(first)
    assert source.current() is source.current(), "read once until something changes"
    second = files.replace()
    assert await shown(knowing, source) == serial(second)
    with caplog.at_level(logging.WARNING, "odradek.security"):
        third = authority.issue_cert("client@odradek.example")
        files.write_certificate(third)
        assert [await shown(knowing, source) for _ in range(2)] == [serial(second)] * 2, "its key is yet to be written"
        assert [each.getMessage() for each in caplog.records] == [
            f"ssl_certfile={str(files.certificate)!r}: key values mismatch; "
            "connections are opened with what was read before"
        ]
        files.key.unlink()
        assert await shown(knowing, source) == serial(second)
        assert "no such file" in caplog.records[-1].getMessage().lower() and len(caplog.records) == 2
    files.key.write_bytes(third.private_key_pem.bytes())
    assert await shown(knowing, source) == serial(third)


async def test_authorities_on_disk_are_those_that_are_trusted(
    knowing: int, authority: trustme.CA, tmp_path: Path
) -> None:
    files = Files(tmp_path, authority)
    files.replace()
    source = ContextSource(files.security)
    files.ca.write_bytes(trustme.CA().cert_pem.bytes())
    error = await failure(knowing, source.current())
    assert "certificate is not accepted" in error.why
    files.ca.write_bytes(authority.cert_pem.bytes())
    await shown(knowing, source)


def test_a_context_that_was_given_is_used_as_it_is(tmp_path: Path) -> None:
    context, file = ssl.create_default_context(), tmp_path / "ca.pem"
    file.touch()
    source = ContextSource(Security(ssl_context=context, ssl_cafile=str(file)))
    file.write_text("no certificate")
    assert source.current() is context
