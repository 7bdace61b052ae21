"""A token endpoint in a thread, which answers as a test says."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from urllib.parse import parse_qs

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

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            served.forms.append({name: value for name, (value,) in form.items()})
            served.headers.append(dict(self.headers))
            status, content = served.answer()
            served.gate.wait(30)
            try:
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except OSError:
                self.close_connection = True  # the client has gone

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """Print nothing: the client has gone."""

    with Server(("127.0.0.1", 0), Handler) as server:
        served.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}/oauth2/token"
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield served
        finally:
            served.gate.set()
            server.shutdown()
            thread.join()
