"""A proxy on loopback, in threads: SOCKS5 or CONNECT, with a login or without, which misbehaves as a test says."""

from __future__ import annotations

import re
import socket
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

__all__ = ["ProxyServer", "proxy_server"]


class ProxyServer:
    """What it was asked for, and how it answers.

    Args:
        kind: `socks5` or `http`.
        login: User and password that it wants, or None.
    """

    def __init__(self, kind: str, login: tuple[str, str] | None) -> None:
        self.kind, self.login = kind, login
        self.names: dict[str, str] = {}
        """Names that this proxy alone can look up -> addresses."""
        self.asked: list[str] = []
        """`host:port` of each request."""
        self.answer: bytes | None = None
        """Sent instead of everything, before it closes the connection; None: it works."""
        self.silent = False
        """It answers nothing."""
        self.connected = Event()
        """Set when a client has connected."""
        self.listener = socket.create_server(("127.0.0.1", 0))

    @property
    def port(self) -> int:
        port: int = self.listener.getsockname()[1]
        return port

    def url(self, login: str = "") -> str:
        return f"{self.kind}://{login}127.0.0.1:{self.port}"

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                self.connected.set()
                Thread(target=self._client, args=(client,), daemon=True).start()

    def _client(self, client: socket.socket) -> None:
        with client, suppress(OSError, EOFError):
            if self.silent:
                while client.recv(1000):
                    pass
            elif self.answer is not None:
                client.recv(1000)
                client.sendall(self.answer)
            else:
                (self._socks if self.kind == "socks5" else self._http)(client)

    def _socks(self, client: socket.socket) -> None:
        methods = _read(client, _read(client, 2)[1])
        if self.login is None:
            client.sendall(b"\x05\x00")
        elif 2 not in methods:
            client.sendall(b"\x05\xff")
            return
        else:
            client.sendall(b"\x05\x02")
            user = _read(client, _read(client, 2)[1]).decode()
            password = _read(client, _read(client, 1)[0]).decode()
            client.sendall(b"\x01\x00" if (user, password) == self.login else b"\x01\x01")
        kind = _read(client, 4)[3]
        host = _read(client, _read(client, 1)[0]).decode() if kind == 3 else socket.inet_ntoa(_read(client, 4))
        target = self._reach(host, int.from_bytes(_read(client, 2), "big"))
        bound = b"\x00\x01\x00\x00\x00\x00\x00\x00"
        _forward(client, target, [b"\x05\x00", bound], b"\x05\x05" + bound)

    def _http(self, client: socket.socket) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            request += _read(client, 1)
        match = re.match(rb"CONNECT ([^ ]+):(\d+) HTTP/1.1\r\n", request)
        assert match is not None
        if self.login is not None and b64encode(":".join(self.login).encode()) not in request:
            client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            return
        target = self._reach(match[1].decode(), int(match[2]))
        _forward(client, target, [b"HTTP/1.1 200 OK\r\nVi", b"a: x\r\n\r\n"], b"HTTP/1.1 502 Bad Gateway\r\n\r\n")

    def _reach(self, host: str, port: int) -> socket.socket | None:
        self.asked.append(f"{host}:{port}")
        try:
            return socket.create_connection((self.names.get(host, host), port), 30)
        except OSError:
            return None


def _read(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (more := client.recv(size - len(data))):
            raise EOFError
        data += more
    return data


def _forward(client: socket.socket, target: socket.socket | None, granted: list[bytes], refused: bytes) -> None:
    """Answer, in parts; then carry bytes both ways until one side ends."""
    if target is None:
        client.sendall(refused)
        return
    with target:
        for part in granted:
            client.sendall(part)
        back = Thread(target=_carry, args=(target, client), daemon=True)
        back.start()
        _carry(client, target)
        back.join()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        source.settimeout(None)
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy_server(kind: str, login: tuple[str, str] | None = None) -> Iterator[ProxyServer]:
    server = ProxyServer(kind, login)
    thread = Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.listener.shutdown(socket.SHUT_RDWR)
        server.listener.close()
        thread.join(30)
        assert not thread.is_alive()
