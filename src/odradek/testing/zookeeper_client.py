"""A small synchronous ZooKeeper client, for looking at a server from outside and for ending other people's sessions.

One socket, one request at a time, no watches. It shares no code with the bridge it helps to test.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from types import TracebackType
from typing import Self

from odradek.errors import BadVersion, NodeExists, NoNode, NotEmpty, SessionExpired, ZooKeeperError
from odradek.io.zookeeper import Node

__all__ = ["SyncZooKeeperClient", "four_letters"]

CREATE, DELETE, EXISTS, GET, SET, CHILDREN, CLOSE = 1, 2, 3, 4, 5, 8, -11
ERRORS: dict[int, type[ZooKeeperError]] = {
    -101: NoNode,
    -103: BadVersion,
    -110: NodeExists,
    -111: NotEmpty,
    -112: SessionExpired,
}
STAT = struct.Struct(">qqqqiiiqiiq")
SESSION_MS = 60_000
"""The session timeout (ms). The client sends no pings: it must be longer than the time between two calls."""
WORLD_ALL = struct.pack(">ii", 1, 31) + b"\0\0\0\5world\0\0\0\6anyone"


class SyncZooKeeperClient:
    """A session with the server at `host:port`, for a `with` block, which ends the session.

    With `session_id` it takes over that session instead of making one: the server closes the connection of whoever
    had it. Raises SessionExpired when there is no such session, OSError when there is no server or no answer within
    `timeout` (s).
    """

    def __init__(self, host: str, port: int, *, session_id: int = 0, timeout: float = 10.0) -> None:
        self._socket = socket.create_connection((host, port), timeout)
        self._stream = self._socket.makefile("rb")
        self._xid = 0
        try:
            self._connect(session_id)
        except BaseException:
            self._disconnect()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the session, if the server is still there to end it, and the connection. Idempotent."""
        try:
            with suppress(OSError):
                self._ask(CLOSE, b"")
        finally:
            self._disconnect()

    def get(self, path: str) -> Node:
        answer = self._ask(GET, _buffer(path.encode()) + b"\0")
        (size,) = struct.unpack_from(">i", answer)
        stat = STAT.unpack_from(answer, 4 + max(size, 0))
        return Node(None if size < 0 else answer[4 : 4 + size], version=stat[4], owner=stat[7])

    def children(self, path: str) -> list[str]:
        answer = self._ask(CHILDREN, _buffer(path.encode()) + b"\0")
        (count,) = struct.unpack_from(">i", answer)
        names, at = [], 4
        for _ in range(count):
            (size,) = struct.unpack_from(">i", answer, at)
            names.append(answer[at + 4 : at + 4 + size].decode())
            at += 4 + size
        return sorted(names)

    def create(self, path: str, data: bytes | None, *, ephemeral: bool = False) -> None:
        """Create a node; missing parents become persistent null nodes."""
        try:
            self._ask(CREATE, _buffer(path.encode()) + _buffer(data) + WORLD_ALL + struct.pack(">i", ephemeral))
        except NoNode:
            self.create(path.rpartition("/")[0], None)
            self.create(path, data, ephemeral=ephemeral)

    def set(self, path: str, data: bytes | None) -> None:
        self._ask(SET, _buffer(path.encode()) + _buffer(data) + struct.pack(">i", -1))

    def delete(self, path: str) -> None:
        """Delete a node with everything below it."""
        for name in self.children(path):
            self.delete(f"{path}/{name}")
        self._ask(DELETE, _buffer(path.encode()) + struct.pack(">i", -1))

    def tree(self, path: str) -> dict[str, Node]:
        """The node and everything below it; empty when it is not there. ZooKeeper's own `/zookeeper` is left out."""
        try:
            tree = {path: self.get(path)}
            names = self.children(path)
        except NoNode:
            return {}
        for name in names:
            below = f"{path.rstrip('/')}/{name}"
            if below != "/zookeeper":
                tree.update(self.tree(below))
        return tree

    def _connect(self, session_id: int) -> None:
        password = session_password(session_id) if session_id else bytes(16)
        self._send(struct.pack(">iqiq", 0, 0, SESSION_MS, session_id) + _buffer(password))
        _, granted, self.session_id = struct.unpack_from(">iiq", self._receive())
        if granted <= 0:
            raise SessionExpired(f"no ZooKeeper session 0x{session_id:x}")

    def _ask(self, operation: int, body: bytes) -> bytes:
        self._xid += 1
        self._send(struct.pack(">ii", self._xid, operation) + body)
        answer = self._receive()
        _, _, error = struct.unpack_from(">iqi", answer)
        if error:
            raise ERRORS.get(error, ZooKeeperError)(f"operation {operation}: error {error}")
        return answer[16:]

    def _send(self, frame: bytes) -> None:
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def _receive(self) -> bytes:
        header = self._stream.read(4)
        frame = self._stream.read(int.from_bytes(header)) if len(header) == 4 else b""
        if not frame:
            raise ConnectionResetError("ZooKeeper closed the connection")
        return frame

    def _disconnect(self) -> None:
        self._stream.close()
        self._socket.close()


def four_letters(host: str, port: int, word: str, timeout: float) -> str:
    """The answer to an administrative four-letter word such as `srvr`; empty when nobody answers in time (s). A server
    that is just starting may take a connection and never answer on it: better to ask again than to wait."""
    answer = b""
    try:
        with socket.create_connection((host, port), timeout) as connection:
            connection.sendall(word.encode())
            while chunk := connection.recv(65536):
                answer += chunk
    except OSError:
        return ""
    return answer.decode("utf-8", "replace")


def session_password(session_id: int) -> bytes:
    """The password that goes with a session id: ZooKeeper makes it with java.util.Random from the id and a constant
    (ZooKeeperServer.generatePasswd, the same from 3.3 to 3.9), so that any server can check it."""
    seed = (session_id ^ 0xB3415C00 ^ 0x5DEECE66D) & 0xFFFFFFFFFFFF
    password = b""
    for _ in range(4):
        seed = (seed * 0x5DEECE66D + 0xB) & 0xFFFFFFFFFFFF
        password += (seed >> 16).to_bytes(4, "little")
    return password


def _buffer(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data
