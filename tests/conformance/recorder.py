"""A TCP proxy that keeps every byte, for comparing what goes over a line."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Self

from tests.frames import FrameReader

FRAME_LIMIT = 1 << 30


class Line(NamedTuple):
    """What one connection carried, in bytes: from the client to the broker, and back."""

    c2b: bytearray
    b2c: bytearray

    def requests(self) -> list[bytes]:
        """Bodies of whole frames."""
        return FrameReader(FRAME_LIMIT).feed(bytes(self.c2b))


class Recorder:
    """In front of one broker on loopback, for a `with` block. `lines` are its connections, in the order they came."""

    def __init__(self, target_port: int) -> None:
        self.lines: list[Line] = []
        self._target = ("127.0.0.1", target_port)
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()  # from here on there are no new sockets
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        for one in (self._listener, *self._sockets):
            one.close()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(self._target)
                self._sockets += client, broker
                line = Line(bytearray(), bytearray())
                self.lines.append(line)
                self._start(self._copy, client, broker, line.c2b)
                self._start(self._copy, broker, client, line.b2c)

    def _copy(self, source: socket.socket, sink: socket.socket, record: bytearray) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                record += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
