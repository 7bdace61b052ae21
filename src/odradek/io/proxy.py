"""Proxies in front of brokers: their URLs, and the way through one on an open connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import anyio

from odradek.errors import ConfigError
from odradek.wire.proxy import MAX_LOGIN_BYTES, Exchange, ProxyError, http_connect, socks5

__all__ = ["Proxy", "parse_proxy"]

SOCKS_PORT = 1080

_EXCHANGES: dict[str, Callable[..., Exchange]] = {"socks5": socks5, "socks5h": socks5, "http": http_connect}


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy, which looks up the names of brokers itself.

    Args:
        scheme: `socks5`, `socks5h` (which is the same here) or `http`.
        host, port: Where it listens.
        user, password: Its login; None: it has none.
    """

    scheme: str
    host: str
    port: int
    user: str | None = None
    password: str = field(default="", repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    def exchange(self, host: str, port: int) -> Exchange:
        """Return an exchange that leads to a broker. Raises UnicodeError for what cannot be a host."""
        return _EXCHANGES[self.scheme](host, port, self.user, self.password)

    async def pass_through(
        self, host: str, port: int, send: Callable[[Any], Awaitable[None]], receive: Callable[[int], Awaitable[bytes]]
    ) -> None:
        """Go through the proxy to a broker. Cancellation: the connection is of no use any more.

        Args:
            host, port: The broker.
            send, receive: Those of the connection to the proxy. No data is its end.

        Raises:
            ProxyError: The proxy refused, closed the connection, or does not speak its protocol.
        """
        exchange, data = self.exchange(host, port), None
        try:
            while True:
                step = next(exchange) if data is None else exchange.send(data)
                if step.send:
                    await send(step.send)
                data = b""
                while len(data) < step.at_least:
                    more = await receive(step.at_most - len(data))
                    if not more:
                        raise ProxyError("it closed the connection", retriable=True)
                    data += more
        except StopIteration:
            return
        except (OSError, anyio.EndOfStream, anyio.BrokenResourceError) as error:
            raise ProxyError("it closed the connection", retriable=True) from error


def parse_proxy(name: str, url: object) -> Proxy:
    """Return the proxy with this URL: a rule (see `odradek.arguments`). No error shows its password."""
    if not isinstance(url, str):
        raise TypeError(f"{name} must be a text such as socks5://host:1080, not {type(url).__name__}")
    try:
        proxy = _parsed(url)
    except ValueError:  # UnicodeError among them
        proxy = None
    if proxy is None:
        raise ConfigError(
            f"{name}: must be socks5://[user:password@]host[:1080] or http://[user:password@]host:port; special "
            "characters in user and password are percent-encoded"
        )
    login = (proxy.user, proxy.password) if proxy.user is not None and proxy.scheme != "http" else ()
    if not all(0 < len(text.encode()) <= MAX_LOGIN_BYTES for text in login):
        raise ConfigError(f"{name}: user and password of SOCKS5 must have 1 to {MAX_LOGIN_BYTES} bytes each")
    return proxy


def _parsed(url: str) -> Proxy | None:
    """Return the proxy, or None if a part is missing or too much. Raises ValueError for parts that cannot be."""
    parts = urlsplit(url)
    port = parts.port or (SOCKS_PORT if parts.scheme.startswith("socks") else 0)
    if parts.scheme not in _EXCHANGES or not parts.hostname or not port or parts.path.strip("/") or parts.query:
        return None
    user = None if parts.username is None else unquote(parts.username, errors="strict")
    return Proxy(parts.scheme, parts.hostname, port, user, unquote(parts.password or "", errors="strict"))
