"""Ways through a proxy, as exchanges of bytes: SOCKS5 (RFC 1928, RFC 1929) and CONNECT of HTTP/1.1 (RFC 9110, 9.3.6).

An exchange is a generator: it yields `Step`s, bytes to send and how many bytes of the answer to read then, and is sent
what was read. It returns when the next byte is the broker's. Brokers do not speak first: a byte behind the answer is
an error of the proxy.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Generator
from typing import NamedTuple

from odradek.errors import OdradekError

__all__ = ["MAX_LOGIN_BYTES", "Exchange", "ProxyError", "Step", "http_connect", "socks5"]


class Step(NamedTuple):
    """Bytes to send, and the fewest and most bytes to read afterwards."""

    send: bytes
    at_least: int
    at_most: int


Exchange = Generator[Step, bytes, None]


class ProxyError(OdradekError):
    """A proxy refused, or answered what makes no sense.

    Args:
        why: The reason.
        step: `tcp` if it is the broker that the proxy cannot reach, else `proxy`.
        retriable: It may pass.
    """

    def __init__(self, why: str, step: str = "proxy", retriable: bool = False) -> None:
        super().__init__(why, step, retriable)
        self.why, self.step, self.retriable = why, step, retriable

    def message(self) -> str:
        return self.why


_NAME_ALLOWED = re.compile(rb"[A-Za-z0-9._-]{1,255}")


def _encoded_name(host: str) -> bytes:
    """Return the name of a host. Raises UnicodeError for what cannot be one: brokers name hosts, too."""
    name = host.encode("idna")
    if not _NAME_ALLOWED.fullmatch(name):
        raise UnicodeError(f"{host[:60]!r} cannot be the name of a host")
    return name


# ---- SOCKS5 -------------------------------------------------------------------------------------------------

_VERSION, _LOGIN_VERSION = 5, 1
_NO_LOGIN, _PASSWORD, _NONE_ACCEPTABLE = 0, 2, 0xFF
_CONNECT = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
_NO_SOCKS = "what answers does not speak SOCKS5"
_ADDRESS_BYTES = {_IPV4: 4, _IPV6: 16}
_REPLIES = {
    1: ("it failed", "tcp", True),
    2: ("its rules do not allow this connection", "proxy", False),
    3: ("the network cannot be reached from there", "tcp", True),
    4: ("the host cannot be reached from there", "tcp", True),
    5: ("connection refused", "tcp", True),
    6: ("the time to live expired", "tcp", True),
    7: ("it does not have CONNECT", "proxy", False),
    8: ("it does not have this type of address", "proxy", False),
}
"""Numbers of replies -> reason, step, and whether it may pass."""


MAX_LOGIN_BYTES = 255
"""Maximum of a user and of a password of SOCKS5."""


def socks5(host: str, port: int, user: str | None = None, password: str = "") -> Exchange:
    """Return an exchange with a SOCKS5 proxy, which looks up the name of the host.

    Raises:
        UnicodeError: No host can have this name.
        ProxyError: From the exchange: the proxy refused, or does not speak SOCKS5.
    """
    return _socks5(_address(host) + port.to_bytes(2, "big"), user, password)


def _socks5(target: bytes, user: str | None, password: str) -> Exchange:
    methods = bytes((_NO_LOGIN,)) if user is None else bytes((_NO_LOGIN, _PASSWORD))
    answer = yield _exactly(2, bytes((_VERSION, len(methods))) + methods)
    if answer[0] != _VERSION or answer[1] not in (*methods, _NONE_ACCEPTABLE):
        raise ProxyError(_NO_SOCKS)
    if answer[1] == _NONE_ACCEPTABLE:
        raise ProxyError("it wants a user and password" if user is None else "it takes no user and password")
    if answer[1] == _PASSWORD:
        yield from _log_in(user or "", password)
    head = yield _exactly(5, bytes((_VERSION, _CONNECT, 0)) + target)
    if head[0] != _VERSION:
        raise ProxyError(_NO_SOCKS)
    if head[1]:
        raise ProxyError(*_REPLIES.get(head[1], (f"reply {head[1]}, which means nothing", "proxy", False)))
    size = head[4] + 1 if head[3] == _NAME else _ADDRESS_BYTES.get(head[3])
    if size is None:
        raise ProxyError(_NO_SOCKS)
    yield _exactly(size - 1 + 2)  # the rest of an address, which means nothing here, and its port


def _log_in(user: str, password: str) -> Exchange:
    parts = b"".join(bytes((len(part),)) + part for part in (user.encode(), password.encode()))
    answer = yield _exactly(2, bytes((_LOGIN_VERSION,)) + parts)
    if answer[1]:
        raise ProxyError("it refused the user and password")


def _exactly(size: int, send: bytes = b"") -> Step:
    return Step(send, size, size)


def _address(host: str) -> bytes:
    from ipaddress import ip_address

    try:
        address = ip_address(host)
    except ValueError:
        name = _encoded_name(host)
        return bytes((_NAME, len(name))) + name
    return bytes((_IPV4 if address.version == 4 else _IPV6,)) + address.packed


# ---- HTTP ---------------------------------------------------------------------------------------------------

MAX_HEADER_BYTES = 16384
"""Maximum of an answer to CONNECT."""
MAX_SHOWN = 100
"""Characters of a proxy's reason that an error shows."""
_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: ([^\r\n]*))?\r?\n")
_END = re.compile(rb"\r?\n\r?\n")
_START = b"HTTP/1."
_NO_HTTP = "what answers does not speak HTTP"
_UNREACHED = (502, 503, 504)
_LOGIN_NEEDED = 407


def http_connect(host: str, port: int, user: str | None = None, password: str = "") -> Exchange:
    """Return an exchange with an HTTP proxy, which looks up the name of the host. The login is basic authentication.

    Raises:
        UnicodeError: No host can have this name.
        ProxyError: From the exchange: the proxy refused, or does not speak HTTP.
    """
    from ipaddress import ip_address

    try:
        ip_address(host)
        name = f"[{host}]" if ":" in host else host
    except ValueError:
        name = _encoded_name(host).decode()
    lines = [f"CONNECT {name}:{port} HTTP/1.1", f"Host: {name}:{port}"]
    if user is not None:
        lines.append(f"Proxy-Authorization: Basic {b64encode(f'{user}:{password}'.encode()).decode()}")
    return _http_connect("\r\n".join([*lines, "", ""]).encode(), user is not None)


def _http_connect(request: bytes, has_login: bool) -> Exchange:
    answer = yield Step(request, 1, MAX_HEADER_BYTES)
    while (end := _END.search(answer)) is None:
        left = MAX_HEADER_BYTES - len(answer)
        if not left or answer[: len(_START)] != _START[: len(answer)]:
            raise ProxyError(_NO_HTTP)
        answer += yield Step(b"", 1, left)
    match = _STATUS.match(answer)
    if match is None:
        raise ProxyError(_NO_HTTP)
    status = int(match[1])
    if status // 100 != 2:
        reason = re.sub(r"[^ -~]", "?", (match[2] or b"").decode("latin-1"))[:MAX_SHOWN]
        login = f": it wants {'another' if has_login else 'a'} user and password" if status == _LOGIN_NEEDED else ""
        passing = status in _UNREACHED
        raise ProxyError(f"status {status} {reason}".rstrip() + login, "tcp" if passing else "proxy", passing)
    if end.end() != len(answer):
        raise ProxyError("it sent data behind its answer")
