"""A token endpoint in a thread, which answers as a test says."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from urllib.parse import parse_qs

from tests.http_server import HttpRequest, http_server

__all__ = ["TokenServer", "token_server"]

Answer = tuple[int, bytes]


@dataclass
class TokenServer:
    """Requests so far, and what the next ones are answered.

    Args:
        answer: Returns status and body.
        gate: Requests wait while it is not set.
    """

    answer: Callable[[], Answer]
    url: str = ""
    forms: list[dict[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    gate: Event = field(default_factory=Event)

    def says(self, status: int, body: object) -> None:
        """Answer so from now on: bytes as they are, anything else as JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.answer = lambda: (status, content)


@contextmanager
def token_server(tls: ssl.SSLContext | None = None) -> Iterator[TokenServer]:
    served = TokenServer(lambda: (200, b"{}"))
    served.gate.set()

    def answer(request: HttpRequest) -> Answer:
        if request.method != "POST":
            return 405, b""
        served.forms.append({name: value for name, (value,) in parse_qs(request.body.decode()).items()})
        served.headers.append(request.headers)
        return served.answer()

    with http_server(answer, served.gate, tls) as url:
        served.url = f"{url}/oauth2/token"
        yield served
