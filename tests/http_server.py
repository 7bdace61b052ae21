"""An HTTP server on loopback in a thread, which answers as a test says."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import NamedTuple

__all__ = ["HttpRequest", "http_server"]


class HttpRequest(NamedTuple):
    """A request: its path has the query."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@contextmanager
def http_server(
    answer: Callable[[HttpRequest], tuple[int, bytes]], gate: Event, tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Serve GET and POST, and yield the URL.

    Args:
        answer: Returns status and body. Requests call it in threads of their own.
        gate: Answers wait while it is not set; it is set when the block ends.
        tls: With TLS.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, content = answer(HttpRequest(self.command, self.path, dict(self.headers), body))
            gate.wait(30)
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
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
        finally:
            gate.set()
            server.shutdown()
            thread.join()
