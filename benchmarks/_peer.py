"""The other end of a bare loopback socket, for the limits that the benchmarks compare with. Prints its port.

Every connection begins with two numbers (u32 each): from then on it takes so many bytes and gives so many back, over
and over. So it is a sink (n, 1), a source (1, n), or answers requests.
"""

from __future__ import annotations

import socket
import struct
import threading

HEAD = struct.Struct(">II")
CHUNK_BYTES = 1 << 20


def serve(peer: socket.socket) -> None:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    up, down = HEAD.unpack(peer.recv(HEAD.size, socket.MSG_WAITALL))
    chunk = memoryview(bytearray(CHUNK_BYTES))
    while True:
        left = up
        while left:
            received = peer.recv_into(chunk[: min(left, CHUNK_BYTES)])
            if not received:
                return
            left -= received
        left = down
        while left:
            left -= peer.send(chunk[: min(left, CHUNK_BYTES)])


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


if __name__ == "__main__":
    main()
