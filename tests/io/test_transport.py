"""The links under the connection, over real sockets on every loop, and asyncio's against a transport of ours."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from anyio.lowlevel import checkpoint
from tests.loops import EVERY_LOOP, on

from odradek.engine import Buffer
from odradek.errors import Closed, ConfigError, ConnectionLost, DeadlineError, OdradekError
from odradek.io import tcp
from odradek.io.connection import Connection, State
from odradek.io.requests import COALESCE_BYTES, Handshake, InFlightRequest
from odradek.io.transport import AsyncioTransport, Transport
from odradek.wire.decoding import WHOLE_BYTES

from .limits import end_time_limits

pytestmark = pytest.mark.anyio
anyio_backend = on(EVERY_LOOP)

MiB = 1 << 20


class Sized:
    """A reply of so many bytes, kept."""

    whole_bytes = 0

    def __init__(self, size: int) -> None:
        self.size, self.data = size, bytearray()
        self.parts: list[int] = []

    @property
    def done(self) -> bool:
        return len(self.data) == self.size

    def feed(self, data: memoryview) -> int:
        part = data[: self.size - len(self.data)]
        self.data += part
        self.parts.append(len(part))
        return len(part)

    def result(self) -> bytes:
        return bytes(self.data)


class Whole(Sized):
    """A reply with its size in front, which is better fed in one piece up to `whole_bytes`."""

    def __init__(self, size: int, whole_bytes: int = WHOLE_BYTES) -> None:
        super().__init__(4 + size)
        self.whole_bytes = whole_bytes


def with_size(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


class Peer:
    """The other end: a bare socket, which reads nothing that it is not asked for."""

    def __init__(self, raw: socket.socket) -> None:
        raw.setblocking(False)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as brokers have it
        self.raw = raw

    async def receive(self, size: int) -> bytes:
        while True:
            try:
                return self.raw.recv(size)
            except BlockingIOError:
                await anyio.wait_readable(self.raw)

    async def read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = await self.receive(size - len(data))
            assert part
            data += part
        return bytes(data)

    async def send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self.raw.send(rest) :]
            except BlockingIOError:
                await anyio.wait_writable(self.raw)


class Peers:
    """A listening socket."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._peers: list[Peer] = []
        self._lock = anyio.Lock()

    async def next(self) -> Peer:
        with anyio.fail_after(10):
            while True:
                try:
                    self._peers.append(Peer(self._listener.accept()[0]))
                    return self._peers[-1]
                except BlockingIOError:
                    async with self._lock:
                        await anyio.wait_readable(self._listener)

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *_: object) -> None:
        for peer in self._peers:
            peer.raw.close()
        self._listener.close()


@asynccontextmanager
async def line() -> AsyncIterator[tuple[Connection, Peer]]:
    """A connection that is up and idle, and its peer."""
    with Peers() as server:
        async with Connection("127.0.0.1", server.port) as connection:
            hello = ask(connection, b"?")
            peer = await server.next()
            await peer.read(1)
            await peer.send(b"!")
            assert await hello == b"!"
            yield connection, peer


def ask(connection: Connection, request: Buffer, reply: int = 1, deadline_s: float = 30) -> InFlightRequest[bytes]:
    return connection.submit([request], Sized(reply), deadline_s=deadline_s)


def notify(connection: Connection, *request: Buffer, deadline_s: float = 30) -> InFlightRequest[None]:
    return connection.submit(request, None, deadline_s=deadline_s)


async def iterations(count: int = 20) -> None:
    for _ in range(count):
        await checkpoint()


async def outcome(pending: Any) -> Any:
    try:
        with anyio.fail_after(10):
            return await pending
    except OdradekError as error:
        return type(error), error.sent


def bursts(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what the link is given to write from now on."""
    sizes: list[int] = []
    pipeline = connection._pipeline
    assert pipeline is not None
    data_to_send = pipeline.data_to_send

    def count() -> list[Buffer]:
        burst = data_to_send()
        if burst:
            sizes.append(sum(map(len, burst)))
        return burst

    monkeypatch.setattr(pipeline, "data_to_send", count)
    return sizes


def noise(size: int) -> bytes:
    return bytes(range(251)) * (size // 251) + bytes(size % 251)


async def test_a_handshake_that_fails_before_its_first_byte_fails_each_request_with_its_reason() -> None:
    def refuse() -> Handshake:
        raise ConfigError("no password")
        yield

    with Peers() as server:
        async with Connection("127.0.0.1", server.port, handshake=refuse) as connection:
            for losses in (1, 2):
                assert await outcome(ask(connection, b"a")) == (ConfigError, False)
                assert connection.statistics().losses == losses


# ---- writing -------------------------------------------------------------------------------------------------


async def test_one_exchange_on_an_idle_line_is_sent_before_submit_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    async with line() as (connection, peer):
        sizes = bursts(connection, monkeypatch)
        pending = ask(connection, b"a")
        assert sizes == [1]
        assert connection.queued_bytes == 0
        assert await peer.read(1) == b"a"
        await peer.send(b"1")
        assert await pending == b"1"


async def test_a_hundred_exchanges_of_one_turn_make_two_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    async with line() as (connection, peer):
        sizes = bursts(connection, monkeypatch)
        pendings = [ask(connection, b"a") for _ in range(100)]
        assert await peer.read(100) == b"a" * 100
        assert sizes == [1, 99]
        await peer.send(b"1" * 100)
        assert [await pending for pending in pendings] == [b"1"] * 100


async def test_what_callbacks_submit_during_one_read_makes_one_send(monkeypatch: pytest.MonkeyPatch) -> None:
    async with line() as (connection, peer):
        pendings = [ask(connection, b"a") for _ in range(10)]
        await peer.read(10)
        sizes = bursts(connection, monkeypatch)
        for pending in pendings:
            pending.add_done_callback(lambda: pendings.append(ask(connection, b"b")))
        await peer.send(b"1" * 10)
        assert await peer.read(10) == b"b" * 10
        assert sum(sizes) == 10
        assert len(sizes) <= len(pendings) - 10  # one for each read it came in
        await peer.send(b"2" * 10)
        assert [await pending for pending in pendings[10:]] == [b"2"] * 10


async def test_a_peer_that_does_not_read_leaves_the_rest_in_the_queue_until_it_reads() -> None:
    body = noise(MiB)
    async with line() as (connection, peer):
        silent = [notify(connection, b"%08d" % number, body) for number in range(40)]
        await wait_all_tasks_blocked()
        taken = sum(pending.sent for pending in silent)
        assert taken < 30  # what the kernel has capacity for, and one exchange
        assert connection.queued_bytes == (len(silent) - taken) * (8 + MiB)
        assert sum(not pending.done for pending in silent) >= len(silent) - taken
        last = ask(connection, b"z")
        for number in range(40):
            assert await peer.read(8 + MiB) == b"%08d" % number + body
        assert await peer.read(1) == b"z"
        assert connection.queued_bytes == 0
        await peer.send(b"1")
        assert [await outcome(pending) for pending in (*silent, last)] == [None] * 40 + [b"1"]


async def test_the_deadline_of_a_write_that_is_stuck_fires() -> None:
    async with line() as (connection, peer):
        stuck = [notify(connection, noise(MiB)) for _ in range(40)]
        behind = ask(connection, b"b")
        assert await outcome(stuck[0]) is None
        await end_all(connection, *(pending for pending in stuck if not pending.done))
        outcomes = [await outcome(pending) for pending in stuck]
        written = outcomes.count(None)
        assert 0 < written < len(stuck)
        assert outcomes[written] == (DeadlineError, True)
        assert set(outcomes[written + 2 :]) <= {(DeadlineError, False), (ConnectionLost, False)}
        assert await outcome(behind) == (ConnectionLost, False)
        assert connection.queued_bytes == 0
        with pytest.raises((AssertionError, ConnectionResetError)):
            await peer.read(40 * MiB)


async def test_a_request_that_leaves_slowly_gets_more_time_while_it_does() -> None:
    async with line() as (connection, peer):
        slow, behind = ask(connection, noise(16 * MiB)), ask(connection, b"b")
        for _ in range(6):
            await peer.read(MiB)
            await left(connection)
            end_time_limits(connection)
            await wait_all_tasks_blocked()
            assert not slow.done
            assert not behind.done
        await end_all(connection, slow, behind)
        assert await outcome(slow) == (DeadlineError, True)
        assert await outcome(behind) == (DeadlineError, False)


async def test_what_leaves_behind_a_request_says_nothing_about_it() -> None:
    async with line() as (connection, peer):
        asked, slow = ask(connection, b"a"), ask(connection, noise(16 * MiB))
        await wait_all_tasks_blocked()
        await peer.read(MiB)
        end_time_limits(connection, asked)
        assert await outcome(asked) == (DeadlineError, True)
        assert await outcome(slow) == (ConnectionLost, True)


async def test_replies_are_read_while_a_write_is_stuck() -> None:
    async with line() as (connection, peer):
        asked = ask(connection, b"a")
        stuck = notify(connection, noise(40 * MiB))
        await wait_all_tasks_blocked()
        await peer.send(b"1")
        assert await outcome(asked) == b"1"
        assert not stuck.done
        assert await peer.read(1 + 40 * MiB) == b"a" + noise(40 * MiB)
        assert await outcome(stuck) is None


# ---- reading -------------------------------------------------------------------------------------------------


async def test_large_replies_arrive_whole_and_in_large_pieces() -> None:
    async with line() as (connection, peer):
        reply = Sized(20 * MiB)
        pending = connection.submit([b"a"], reply, deadline_s=30)
        await peer.send(noise(20 * MiB))
        assert await pending == noise(20 * MiB)
        assert max(reply.parts) <= WHOLE_BYTES


async def end_all(connection: Connection, *stuck: InFlightRequest[Any]) -> None:
    """Let the time limits of requests be over until they are given up: the last bytes may just be leaving."""
    with anyio.fail_after(10):
        while not all(pending.done for pending in stuck):
            end_time_limits(connection, *stuck)
            await wait_all_tasks_blocked()


async def left(connection: Connection) -> None:
    """Wait until the peer's system has acknowledged bytes that it had not when the connection last looked."""
    pipeline, queue = connection._pipeline, connection._queue
    assert pipeline is not None
    with anyio.fail_after(10):
        while queue.sent_bytes - (pipeline._transport.unsent_bytes() or 0) < queue.acknowledged_bytes + MiB // 2:
            await checkpoint()


async def arrived(connection: Connection, received: int) -> None:
    """Wait until so many bytes were received."""
    with anyio.fail_after(10):
        while connection.statistics().received_bytes < received:
            await checkpoint()


@pytest.mark.parametrize("split", [1, 4, 5, 999, 1003, 1004, 1005, 1008, 1009, 1707])
async def test_replies_that_arrive_in_pieces_are_fed_whole(split: int) -> None:
    async with line() as (connection, peer):
        bodies = [noise(1000), noise(700)]
        stream = b"".join(map(with_size, bodies))
        replies = [Whole(len(body)) for body in bodies]
        pendings = [connection.submit([b"a"], reply, deadline_s=30) for reply in replies]
        await peer.read(2)
        before = connection.statistics().received_bytes
        await peer.send(stream[:split])
        await arrived(connection, before + split)  # also what is left to the transport
        assert [pending.done for pending in pendings] == [split >= 1004, False]
        await peer.send(stream[split:])
        assert [await pending for pending in pendings] == list(map(with_size, bodies))
        assert [reply.parts for reply in replies] == [[1004], [704]]
        assert connection.statistics().received_bytes == before + len(stream)


async def test_replies_as_large_as_the_buffer_are_fed_whole_and_larger_ones_in_pieces() -> None:
    async with line() as (connection, peer):
        body = noise(WHOLE_BYTES - 4)
        replies = [Whole(len(body)) for _ in range(3)]
        pendings = [connection.submit([b"a"], reply, deadline_s=30) for reply in replies]
        larger = Whole(len(body) + 1)
        last = connection.submit([b"a"], larger, deadline_s=30)
        await peer.read(4)
        await peer.send(3 * with_size(body) + with_size(body + b"!"))
        for pending in pendings:
            assert await pending == with_size(body)
        assert [reply.parts for reply in replies] == [[WHOLE_BYTES]] * 3
        assert await last == with_size(body + b"!")
        assert len(larger.parts) > 1


async def test_a_reply_is_fed_in_pieces_if_it_may_not_be_as_large() -> None:
    async with line() as (connection, peer):
        reply = Whole(1000, whole_bytes=1003)
        pending = connection.submit([b"a"], reply, deadline_s=30)
        await peer.read(1)
        before = connection.statistics().received_bytes
        await peer.send(with_size(noise(1000))[:500])
        await arrived(connection, before + 500)
        assert reply.parts == [500]
        await peer.send(with_size(noise(1000))[500:])
        assert await pending == with_size(noise(1000))


async def test_what_has_arrived_of_a_reply_is_fed_when_the_connection_ends() -> None:
    async with line() as (connection, peer):
        whole, begun = Whole(10), Whole(1000)
        pendings = [connection.submit([b"a"], reply, deadline_s=30) for reply in (whole, begun)]
        await peer.read(2)
        await peer.send(with_size(noise(10)) + with_size(noise(1000))[:500])
        peer.raw.shutdown(socket.SHUT_WR)
        assert [await outcome(pending) for pending in pendings] == [with_size(noise(10)), (ConnectionLost, True)]
        assert (whole.parts, begun.parts) == ([14], [500])


def socket_of(connection: Connection) -> Any:
    assert connection._pipeline is not None
    return connection._pipeline._transport._received.socket  # type: ignore[attr-defined]


def socket_option(connection: Connection, option: int) -> int:
    value = socket_of(connection).getsockopt(socket.SOL_SOCKET, option)
    assert isinstance(value, int)
    return value


@pytest.mark.parametrize("size", [10, 100_000, MiB])
async def test_the_loop_is_told_once_enough_of_a_reply_that_has_begun_is_there(size: int) -> None:
    async with line() as (connection, peer):
        body, reply = with_size(noise(size)), Whole(size)
        pending = connection.submit([b"a"], reply, deadline_s=30)
        small = ask(connection, b"b")
        await peer.read(2)
        before = connection.statistics().received_bytes
        await peer.send(body[:5])
        await arrived(connection, before + 5)
        quarter = socket_option(connection, socket.SO_RCVBUF) // 4
        assert socket_option(connection, socket.SO_RCVLOWAT) == min(size - 1, 256 << 10, quarter)
        await peer.send(body[5:] + b"!")
        assert (await pending, await small) == (body, b"!")
        assert reply.parts == [len(body)]
        assert socket_option(connection, socket.SO_RCVLOWAT) == 1


async def test_a_reply_arrives_through_a_small_buffer_of_the_kernel() -> None:
    async with line() as (connection, peer):
        body, reply = with_size(noise(MiB)), Whole(MiB)
        socket_of(connection).setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)
        pending = connection.submit([b"a"], reply, deadline_s=30)
        await peer.read(1)
        before = connection.statistics().received_bytes
        await peer.send(body[:5])
        await arrived(connection, before + 5)
        assert 1 < socket_option(connection, socket.SO_RCVLOWAT) <= 16384
        await peer.send(body[5:])
        assert await pending == body


async def test_a_reply_of_which_less_arrives_than_the_loop_is_told_of_gets_more_time() -> None:
    async with line() as (connection, peer):
        body, reply = with_size(noise(MiB)), Whole(MiB)
        pending = connection.submit([b"a"], reply, deadline_s=30)
        await peer.read(1)
        before = connection.statistics().received_bytes
        await peer.send(body[:5])
        await arrived(connection, before + 5)
        for start in range(5, 80_005, 20_000):
            await peer.send(body[start : start + 20_000])
            await wait_all_tasks_blocked()
            assert connection.statistics().received_bytes == before + start
            end_time_limits(connection)
            await arrived(connection, before + start + 20_000)
            assert not pending.done
        await peer.send(body[80_005:])
        assert await pending == body
        assert reply.parts == [len(body)]


async def test_the_end_of_a_connection_is_seen_although_less_has_arrived_than_the_loop_is_told_of() -> None:
    async with line() as (connection, peer):
        reply = Whole(MiB)
        pending = connection.submit([b"a"], reply, deadline_s=30)
        await peer.read(1)
        before = connection.statistics().received_bytes
        await peer.send(with_size(noise(MiB))[:500])
        await arrived(connection, before + 500)
        await peer.send(noise(1000))
        peer.raw.shutdown(socket.SHUT_WR)
        assert await outcome(pending) == (ConnectionLost, True)
        assert sum(reply.parts) == 1500


async def test_of_a_flood_no_more_than_one_buffer_is_taken() -> None:
    async with line() as (connection, peer):
        before = connection.statistics().received_bytes
        with pytest.raises(OSError):
            for _ in range(100):
                await peer.send(bytes(MiB))
        await wait_all_tasks_blocked()
        assert 0 < connection.statistics().received_bytes - before <= WHOLE_BYTES
        assert "no request outstanding" in connection.statistics().last_error


async def test_of_a_flood_nothing_is_taken_before_the_link_runs() -> None:
    with Peers() as server:
        link = await tcp.connect("127.0.0.1", server.port, 5)
        peer = await server.next()
        with anyio.move_on_after(0.2) as scope:  # until the kernel's buffers are full
            for _ in range(1000):
                await peer.send(bytes(MiB))
        assert scope.cancelled_caught
        await link.aclose()


async def test_what_comes_before_the_link_runs_is_not_lost() -> None:
    with Peers() as server:

        async def dial(host: str, port: int, timeout: float) -> Transport:
            link = await tcp.connect(host, port, timeout)
            await (await server.next()).send(b"early")
            await iterations()
            return link

        async with Connection("127.0.0.1", server.port, connect=dial) as connection:
            assert await ask(connection, b"a", 5) == b"early"


async def test_a_link_that_is_reset_before_it_runs_says_so_when_it_does() -> None:
    with Peers() as server:

        async def dial(host: str, port: int, timeout: float) -> Transport:
            link = await tcp.connect(host, port, timeout)
            (await server.next()).raw.close()
            await anyio.sleep(0.01)
            return link

        async with Connection("127.0.0.1", server.port, connect=dial) as connection:
            assert (await outcome(ask(connection, b"a")))[0] is ConnectionLost
            assert connection.state is State.IDLE


# ---- asyncio's, byte by byte ---------------------------------------------------------------------------------


class PausedTransport:
    """Takes `capacity` bytes of what is written at once, as a socket would."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.written, self.kept = capacity, b"", b""
        self.socket, self.peer = socket.socketpair()
        self.socket.setblocking(False)
        self.reading = self.closing = False

    def attach(self, link: Any) -> None:
        self.link = link
        link.connection_made(self)

    def get_extra_info(self, name: str) -> socket.socket | None:
        assert name in ("socket", "ssl_object")
        return self.socket if name == "socket" else None

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        assert (high, low) == (0, 0)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        assert not self.closing
        assert not self.kept, "written although it is full"
        self.written += data[: self.capacity]
        self.kept = bytes(data[self.capacity :])
        if self.kept:
            self.link.pause_writing()

    def drain(self) -> None:
        self.written, self.kept = self.written + self.kept, b""
        self.link.resume_writing()

    def abort(self) -> None:
        if not self.closing:
            self.closing = True
            asyncio.get_running_loop().call_soon(self.link.connection_lost, None)

    def deliver(self, data: bytes) -> None:
        assert self.reading
        assert not self.closing
        buffer = self.link.get_buffer(-1)
        buffer[: len(data)] = data
        self.link.buffer_updated(len(data))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
class TestProtocolLink:
    @asynccontextmanager
    async def over(self, transport: PausedTransport) -> AsyncIterator[Connection]:
        async def dial(host: str, port: int, timeout: float) -> AsyncioTransport:
            link = AsyncioTransport()
            transport.attach(link)
            assert not transport.reading
            return link

        async with Connection("b", 1, connect=dial) as connection:
            first = ask(connection, b"?")
            await wait_all_tasks_blocked()
            transport.deliver(b"!")
            assert await first == b"!"
            transport.written = b""
            with transport.socket, transport.peer:
                yield connection

    async def test_replies_arrive_in_two_pieces_split_anywhere(self) -> None:
        replies = [b"abc", b"d", b"efgh", b"i", b"jklmn"]
        stream = b"".join(replies)
        transport = PausedTransport(MiB)
        async with self.over(transport) as connection:
            for split in range(1, len(stream)):
                pendings = [ask(connection, b"?", len(reply)) for reply in replies]
                await checkpoint()
                transport.deliver(stream[:split])
                assert [pending.result() for pending in pendings if pending.done] == [
                    reply for number, reply in enumerate(replies) if len(b"".join(replies[: number + 1])) <= split
                ]
                transport.deliver(stream[split:])
                assert [pending.result() for pending in pendings] == replies

    async def test_a_reply_is_handed_out_of_one_buffer_that_is_used_again(self) -> None:
        views: list[memoryview] = []

        class Peek(Sized):
            def feed(self, data: memoryview) -> int:
                views.append(data)
                return super().feed(data)

        transport = PausedTransport(MiB)
        async with self.over(transport) as connection:
            for text in (b"one", b"two"):
                pending = connection.submit([b"?"], Peek(3), deadline_s=30)
                transport.deliver(text)
                assert pending.result() == text
            assert bytes(views[0]) == b"two"

    async def test_a_full_transport_gets_nothing_more_until_it_is_empty(self) -> None:
        transport = PausedTransport(1000)
        async with self.over(transport) as connection:
            large = noise(COALESCE_BYTES)
            bodies = [b"<" + large + b">", large, b"s", b"t"]
            pendings = [notify(connection, body) for body in bodies]
            await checkpoint()
            assert [pending.sent for pending in pendings] == [True, False, False, False]
            assert connection.queued_bytes == len(large) + 2
            transport.capacity = 2 * MiB
            transport.drain()
            await iterations()
            assert transport.written == b"".join(bodies)
            assert all(pending.done for pending in pendings)

    async def test_a_loss_in_the_middle_of_a_burst_writes_nothing_more(self) -> None:
        transport = PausedTransport(1000)
        async with self.over(transport) as connection:
            stuck = notify(connection, noise(COALESCE_BYTES), noise(COALESCE_BYTES))
            waiting = ask(connection, b"w")
            transport.closing = True
            transport.link.connection_lost(ConnectionResetError(104, "Connection reset by peer"))
            assert [await outcome(stuck), await outcome(waiting)] == [(ConnectionLost, True), (ConnectionLost, False)]
            assert "reset by peer" in connection.statistics().last_error
            transport.link.resume_writing()
            await iterations()
            assert len(transport.written) == 1000


# ---- handles -------------------------------------------------------------------------------------------------


def sockets(*ports: int) -> int:
    """Sockets of this process with such a port at either end. (Other threads of the tests open and close handles.)"""
    gc.collect()
    count, numbers = 0, {(port,) for port in ports}
    for name in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if not name.readlink().name.startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name.name))) as end:
                count += end.getsockname()[1:2] in numbers or end.getpeername()[1:2] in numbers
    return count


def buffers() -> int:
    """Memory maps of the size of a receive buffer."""
    gc.collect()
    server = 0
    for row in Path("/proc/self/maps").read_text().splitlines():
        start, stop = (int(number, 16) for number in row.split()[0].split("-"))
        server += "/dev/zero" in row and stop - start >= WHOLE_BYTES
    return server


async def test_a_thousand_connections_leave_no_handle_and_no_buffer() -> None:
    with Peers() as server:

        async def use(count: int) -> None:
            for _ in range(count):
                async with Connection("127.0.0.1", server.port) as connection:
                    pending = ask(connection, b"a")
                    peer = await server.next()  # of any of the tasks
                    await peer.read(1)
                    await peer.send(b"1")
                    assert await pending == b"1"
                    await connection.aclose()
                    assert not await peer.receive(1)
                    peer.raw.close()

        await use(1)
        before = sockets(server.port), buffers()
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(use, 100)
        await iterations()
        assert sockets(server.port) <= before[0]
        assert buffers() <= before[1]


@pytest.mark.parametrize("way", ["cancel", "aclose"])
async def test_ended_at_any_moment_over_tcp_it_leaves_nothing_open(way: str) -> None:
    async def work(connection: Connection, server: Peers) -> None:
        try:
            pendings.extend([ask(connection, b"a"), notify(connection, noise(20 * MiB))])
            await (await server.next()).send(b"1")
            assert await outcome(pendings[0]) == b"1" or way == "aclose"
            await outcome(pendings[1])
        except Closed:
            assert way == "aclose"

    ends: set[Any] = set()
    ports: list[int] = []
    later = 0
    while len(ends) < 3:  # before there is a connection, before the answer, in the middle of writing
        pendings: list[InFlightRequest[Any]] = []
        connection = Connection("127.0.0.1", 1)
        with Peers() as server:
            connection.port = server.port
            ports.append(server.port)
            async with anyio.create_task_group() as group:
                group.start_soon(connection.run)
                group.start_soon(work, connection, server)
                await iterations(later)
                ends.add((connection.state, len(pendings) and pendings[0].done))
                if way == "aclose":
                    await connection.aclose()
                group.cancel_scope.cancel()
        assert all(pending.done for pending in pendings)
        assert connection.state is State.CLOSED
        later += 1 + later // 8
    with anyio.fail_after(10):
        while sockets(*ports):  # the kernel and the loop close what was written to later
            await iterations()
