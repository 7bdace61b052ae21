"""A raw client for tests of the embedded broker: it writes frames and reads bytes."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Self

from odradek.testing import Kafka07Broker
from odradek.wire.kafka07.message_set import encode_set
from odradek.wire.kafka07.requests import Fetch, MultiFetch, Offsets, Produce, Request, encode_request

BARRIER = MultiFetch(())
BARRIER_ANSWER = bytes.fromhex("000000020000")


def frame(request: Request) -> bytes:
    return b"".join(encode_request(request))


class Talk:
    """One connection to a broker."""

    def __init__(self, broker: Kafka07Broker, timeout: float = 10.0) -> None:
        self.socket = socket.create_connection((broker.host, broker.port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, *requests: Request) -> None:
        self.socket.sendall(b"".join(map(frame, requests)))

    def read(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size and (chunk := self.socket.recv(size - len(received))):
            received += chunk
        return bytes(received)

    def answer(self) -> tuple[int, bytes]:
        """The next answer: its error code and what follows."""
        size, error = struct.unpack(">ih", self.read(6))
        return error, self.read(size - 2)

    def ask(self, request: Request) -> tuple[int, bytes]:
        self.send(request)
        return self.answer()

    def sync(self) -> None:
        """Everything sent so far was served."""
        self.send(BARRIER)
        assert self.read(6) == BARRIER_ANSWER

    def produce(self, topic: str, *values: bytes, partition: int = 0) -> None:
        self.send(Produce(topic, partition, encode_set(values)))
        self.sync()

    def fetch(self, topic: str, offset: int = 0, max_bytes: int = 1 << 20) -> tuple[int, bytes]:
        return self.ask(Fetch(topic, 0, offset, max_bytes))

    def offsets(self, topic: str, time: int = -1, max_number: int = 10) -> list[int]:
        _, body = self.ask(Offsets(topic, 0, time, max_number))
        return list(struct.unpack_from(f">{(len(body) - 4) // 8}q", body, 4))

    def closed(self) -> bool:
        """The broker closes, and sends nothing before."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
