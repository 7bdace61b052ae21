"""One request to a broker on a connection of its own: for looking at a broker from outside, without a client."""

from __future__ import annotations

import socket
import struct
from typing import TypeVar

from odradek.errors import RemoteProtocolError
from odradek.wire.kafka.headers import decode_response, encode_request
from odradek.wire.kafka.schema import Request, Response, response_of

__all__ = ["ask", "exchange", "receive"]

R = TypeVar("R", bound=Response)

CORRELATION_ID = 1
LARGEST_BYTES = 16 << 20


def ask(host: str, port: int, request: Request[R], version: int, timeout: float = 10.0) -> R:
    """Connect, send a request, return the answer. `timeout` (s) is for each step.

    Raises:
        OSError: There is no such broker, or no answer in time.
        RemoteProtocolError: The answer makes no sense.
    """
    with socket.create_connection((host, port), timeout) as connection:
        return exchange(connection, request, version)


def exchange(connection: socket.socket, request: Request[R], version: int) -> R:
    """Send a request on a connection and return the answer. Raises as `ask` does."""
    connection.sendall(b"".join(encode_request(request, version, CORRELATION_ID, "odradek-testing")))
    answer, correlation_id = decode_response(response_of(type(request)), version, receive(connection))
    if correlation_id != CORRELATION_ID:
        raise RemoteProtocolError(f"an answer to the request {correlation_id}")
    return answer


def receive(connection: socket.socket) -> bytes:
    """Return the next frame without its size. Raises as `ask` does."""
    (size,) = struct.unpack(">i", _receive(connection, 4))
    if not 0 <= size <= LARGEST_BYTES:
        raise RemoteProtocolError(f"an answer of {size} bytes")
    return _receive(connection, size)


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        if not (data := connection.recv(size - len(received))):
            raise ConnectionResetError("the broker closed the connection")
        received += data
    return bytes(received)
