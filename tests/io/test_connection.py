from __future__ import annotations

import math
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from anyio.abc import ByteStream, SocketAttribute
from anyio.lowlevel import checkpoint
from tests.loops import EVERY_LOOP, on
from tests.memory_pair import memory_pair

from odradek.core.backoff import Backoff
from odradek.errors import (
    BrokerError,
    Closed,
    ConnectionLost,
    DeadlineError,
    InternalError,
    OdradekError,
    RemoteProtocolError,
    Unreachable,
    Unsupported,
)
from odradek.io import connection as module
from odradek.io import transport
from odradek.io.connection import CONNECTION, Connection, ConnectionOptions, State
from odradek.io.requests import COALESCE_BYTES, RECONNECT, Handshake, InFlightRequest, RequestQueue, coalesce

from .limits import end_time_limits

pytestmark = pytest.mark.anyio
anyio_backend = on(EVERY_LOOP)

AT_ONCE = ConnectionOptions(backoff=Backoff(0, 1, 5))


DEFECTS = ArithmeticError | MemoryError | RecursionError


class Fixed:
    """A reply of so many bytes. `bad` first bytes make `feed`, or else `result`, raise."""

    whole_bytes = 0

    def __init__(self, size: int, bad: dict[bytes, Exception] | None = None) -> None:
        self.size, self.data, self.bad = size, b"", bad or {}

    @property
    def done(self) -> bool:
        return len(self.data) == self.size

    def feed(self, data: memoryview) -> int:
        part = bytes(data[: self.size - len(self.data)])
        self.data += part
        if isinstance(error := self.bad.get(self.data[:1]), RemoteProtocolError | DEFECTS):
            raise error
        return len(part)

    def result(self) -> bytes:
        if error := self.bad.get(self.data):
            raise error
        return self.data


class Net:
    """Dials memory pairs; the other ends wait in `peers`."""

    def __init__(self, capacity: int = 1 << 20) -> None:
        self.capacity = capacity
        self.refusal: Unreachable | None = None
        self.attempts: list[float] = []
        self.send_peer, self.peers = anyio.create_memory_object_stream[ByteStream](100)

    async def dial(self, host: str, port: int, timeout: float) -> ByteStream:
        await checkpoint()
        self.attempts.append(anyio.current_time())
        if self.refusal is not None:
            raise self.refusal
        near, far = memory_pair(self.capacity)
        self.send_peer.send_nowait(far)
        return near

    def close(self) -> None:
        self.send_peer.close()
        self.peers.close()


@pytest.fixture
def net() -> Iterator[Net]:
    net = Net()
    yield net
    net.close()


@asynccontextmanager
async def no_leak() -> AsyncIterator[None]:
    before = {task.id for task in anyio.get_running_tasks()}
    yield
    assert {task.id for task in anyio.get_running_tasks()} <= before


@asynccontextmanager
async def connected(net: Net, options: ConnectionOptions = AT_ONCE) -> AsyncIterator[Connection]:
    async with no_leak():
        async with Connection("b", 1, connect=net.dial, options=options) as connection:
            yield connection
        assert connection.state is State.CLOSED
        assert connection.statistics()[1:4] == (0, 0, 0)


def ask(connection: Connection, request: bytes, reply: int = 1, deadline_s: float = 30) -> InFlightRequest[bytes]:
    return connection.submit([request], Fixed(reply), deadline_s=deadline_s)


def notify(connection: Connection, *request: bytes | memoryview, deadline_s: float = 30) -> InFlightRequest[None]:
    return connection.submit(request, None, deadline_s=deadline_s)


async def read(peer: ByteStream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await peer.receive(size - len(data))
    return data


async def first_exchange(net: Net, connection: Connection) -> ByteStream:
    """Open the connection by a request that is answered; return its other end, which has not read it."""
    first = ask(connection, b"a")
    peer = await net.peers.receive()
    await peer.send(b"1")
    assert await outcome(first) == b"1"
    return peer


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not condition():
            await checkpoint()


async def outcome(pending: Awaitable[Any]) -> Any:
    """The value, or the error as (type, sent)."""
    try:
        with anyio.fail_after(10):
            return await pending
    except OdradekError as error:
        return type(error), error.sent


# ---- pipelining ----------------------------------------------------------------------------------------------


async def test_requests_are_pipelined_and_replies_matched_in_order(net: Net) -> None:
    async with connected(net) as connection:
        first, second, third = (ask(connection, request) for request in (b"aa", b"bb", b"cc"))
        peer = await net.peers.receive()
        assert await peer.receive() == b"aabbcc"  # all of them before any reply, and in one write
        await peer.send(b"1")
        assert await first == b"1"
        assert not second.done
        await peer.send(b"23")
        assert [await third, await second] == [b"3", b"2"]
        assert connection.statistics().connects == 1


async def test_what_is_not_answered_queues_no_waiter(net: Net) -> None:
    async with connected(net) as connection:
        before = ask(connection, b"a")
        silent = notify(connection, b"produce")
        after = ask(connection, b"b")
        assert await outcome(silent) is None
        assert not before.done
        assert connection.statistics().in_flight == 2
        peer = await net.peers.receive()
        assert await peer.receive() == b"aproduceb"
        await peer.send(b"12")
        assert [await before, await after] == [b"1", b"2"]


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
async def test_replies_arrive_in_any_split(net: Net, size: int) -> None:
    async with connected(net) as connection:
        pendings = [ask(connection, b"?", n) for n in (3, 1, 4, 1, 5)]
        peer = await net.peers.receive()
        replies = b"abcdefghijklmn"
        for start in range(0, len(replies), size):
            await peer.send(replies[start : start + size])
        assert [await pending for pending in pendings] == [b"abc", b"d", b"efgh", b"i", b"jklmn"]


async def test_five_thousand_in_flight_take_few_writes_and_all_get_their_own_reply(net: Net) -> None:
    requests = [struct.pack(">i", n) for n in range(5000)]
    writes = 0

    async def echo() -> None:
        nonlocal writes
        peer = await net.peers.receive()
        received = b""
        while len(received) < 4 * len(requests):
            received += await peer.receive(1 << 20)
            writes += 1
        await peer.send(received)

    async with connected(net) as connection:
        pendings = [ask(connection, request, 4) for request in requests]
        assert connection.queued_bytes == 4 * len(requests)
        async with anyio.create_task_group() as group:
            group.start_soon(echo)
            assert [await pending for pending in pendings] == requests
        assert writes <= 2
        assert connection.statistics().sent_bytes == connection.statistics().received_bytes == 20_000


async def test_big_exchanges_do_not_mix_with_small_ones(net: Net) -> None:
    bodies = [b"s" * 10, b"L" * (3 * COALESCE_BYTES), b"t" * 10, b"M" * COALESCE_BYTES]
    async with connected(net) as connection:
        done: list[InFlightRequest[Any]] = [notify(connection, b"<", memoryview(body), b">") for body in bodies]
        peer = await net.peers.receive()
        expected = b"".join(b"<" + body + b">" for body in bodies)
        assert await read(peer, len(expected)) == expected
        assert [await pending for pending in done] == [None] * 4


async def test_an_outcome_may_be_awaited_by_many_and_again(net: Net) -> None:
    async with connected(net) as connection:
        pending = ask(connection, b"a")
        got: list[bytes] = []

        async def wait() -> None:
            got.append(await pending)

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            group.start_soon(wait)
            await (await net.peers.receive()).send(b"1")
        assert [*got, await pending] == [b"1"] * 3


def test_joining_keeps_bytes_and_copies_no_large_buffer() -> None:
    large, small = memoryview(b"L" * COALESCE_BYTES), b"s" * 1000
    buffers: list[bytes | bytearray | memoryview] = [b"a", b"b", large, *[small] * 100, large, b"z"]
    joined = list(coalesce(buffers))
    assert b"".join(joined) == b"".join(buffers)
    assert [part is large for part in joined] == [False, True, False, False, True, False]
    assert max(map(len, joined)) == COALESCE_BYTES


# ---- loss ----------------------------------------------------------------------------------------------------


async def test_a_closing_peer_fails_what_is_in_flight_as_sent(net: Net) -> None:
    async with connected(net) as connection:
        answered, first, second = ask(connection, b"a"), ask(connection, b"b"), ask(connection, b"c")
        peer = await net.peers.receive()
        await read(peer, 3)
        await peer.send(b"1")
        await peer.aclose()
        assert await outcome(answered) == b"1"
        assert await outcome(first) == await outcome(second) == (ConnectionLost, True)
        with pytest.raises(
            ConnectionLost, match=r"connection to b:1 lost: closed by the peer; .* may have been applied"
        ):
            await second


async def test_what_was_not_begun_fails_as_not_sent_and_what_comes_later_goes_elsewhere() -> None:
    net = Net(capacity=100)
    async with connected(net) as connection:
        begun = [ask(connection, b"x" * COALESCE_BYTES)]
        waiting: list[InFlightRequest[Any]] = [ask(connection, b"y"), notify(connection, b"z")]
        peer = await net.peers.receive()
        await wait_all_tasks_blocked()
        assert repr(connection) == "<Connection b:1 connected, 1 in flight, 2 queued>"
        await peer.aclose()
        assert [await outcome(pending) for pending in begun] == [(ConnectionLost, True)]
        assert [await outcome(pending) for pending in waiting] == [(ConnectionLost, False)] * 2
        later = ask(connection, b"w")
        peer = await net.peers.receive()
        assert await peer.receive() == b"w"
        await peer.send(b"1")
        assert await outcome(later) == b"1"
    net.close()


class Breaking(ByteStream):
    """Its second send breaks; only then the reply to the first one can be read, and behind it the end."""

    def __init__(self) -> None:
        self.sends = 0
        self.replies = [b"1"]
        self.broken = anyio.Event()

    async def send(self, item: bytes) -> None:
        await checkpoint()
        self.sends += 1
        if self.sends == 2:
            self.broken.set()
            raise anyio.BrokenResourceError

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await self.broken.wait()
        await checkpoint()
        if not self.replies:
            raise anyio.EndOfStream
        return self.replies.pop()

    async def send_eof(self) -> None: ...

    async def aclose(self) -> None: ...


async def test_replies_before_the_break_are_not_lost_when_writing_breaks_first() -> None:
    async def dial(host: str, port: int, timeout: float) -> ByteStream:
        return Breaking()

    async with no_leak(), Connection("b", 1, connect=dial) as connection:
        first = ask(connection, b"a")
        await wait_all_tasks_blocked()
        second = ask(connection, b"b")
        third = ask(connection, b"c" * COALESCE_BYTES)
        fourth = ask(connection, b"d")
        outcomes = [await outcome(pending) for pending in (first, second, third, fourth)]
        assert outcomes == [b"1", (ConnectionLost, True), (ConnectionLost, True), (ConnectionLost, False)]


async def test_replies_before_a_reset_are_not_lost_when_writing_meets_it_first() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    async with no_leak(), Connection("127.0.0.1", listener.getsockname()[1]) as connection:
        first = ask(connection, b"a")
        peer = await anyio.to_thread.run_sync(lambda: listener.accept()[0])
        assert await anyio.to_thread.run_sync(peer.recv, 1) == b"a"
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.send(b"1")
        peer.close()
        second = ask(connection, b"b")  # written before the loop has had a chance to read
        assert await outcome(first) == b"1"
        assert await outcome(second) == (ConnectionLost, True)
    listener.close()


async def test_an_idle_connection_closed_by_the_peer_is_noticed_without_noise(net: Net) -> None:
    async with connected(net) as connection:
        pending = ask(connection, b"a")
        peer = await net.peers.receive()
        await peer.send(b"1")
        await pending
        assert connection.state is State.CONNECTED
        await peer.aclose()
        await wait_all_tasks_blocked()
        statistics = connection.statistics()
        assert (statistics.state, statistics.losses, statistics.last_error) == (State.IDLE, 1, "closed by the peer")
        assert len(net.attempts) == 1  # nobody asked for another one yet
        again = ask(connection, b"b")
        await (await net.peers.receive()).send(b"2")
        assert await again == b"2"


async def test_one_epoch_is_one_connection(net: Net) -> None:
    async with connected(net) as connection:
        before = connection.incarnation
        pending = ask(connection, b"a")
        peer = await net.peers.receive()
        await peer.send(b"1")
        await pending
        assert connection.incarnation == before  # what was submitted before the connect and after it shares it
        await peer.aclose()
        await wait_all_tasks_blocked()
        assert connection.incarnation == before + 1


async def test_a_reset_by_the_peer_is_told_as_such() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    async with no_leak(), Connection("127.0.0.1", listener.getsockname()[1]) as connection:
        pending = ask(connection, b"a" * 100)
        peer = await anyio.to_thread.run_sync(lambda: listener.accept()[0])
        await anyio.to_thread.run_sync(peer.recv, 100)  # until then it may be the connect that meets the reset
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        with pytest.raises(ConnectionLost, match=r"(?i)reset"):
            await pending
    listener.close()


async def test_over_tcp_five_hundred_exchanges_keep_their_order() -> None:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")

    async def echo(stream: ByteStream) -> None:
        async with stream:
            async for data in stream:
                await stream.send(data)

    async with no_leak(), anyio.create_task_group() as group:
        group.start_soon(listener.serve, echo)
        async with Connection("127.0.0.1", listener.extra(SocketAttribute.local_port)) as connection:
            requests = [b"%06d" % n * (1 + n % 50) for n in range(500)]
            pendings = [ask(connection, request, len(request)) for request in requests]
            assert [await pending for pending in pendings] == requests
        group.cancel_scope.cancel()
    await listener.aclose()


# ---- peers that misbehave ------------------------------------------------------------------------------------


async def test_bytes_nobody_asked_for_close_the_connection(net: Net) -> None:
    async with connected(net) as connection:
        pending = ask(connection, b"a")
        peer = await net.peers.receive()
        await peer.send(b"1!")
        assert await outcome(pending) == b"1"
        await wait_all_tasks_blocked()
        assert connection.statistics().last_error == "received 1 bytes with no request outstanding"
        assert connection.state is State.IDLE
        assert await read(peer, 1) == b"a"
        with pytest.raises(anyio.EndOfStream):
            await peer.receive()


async def test_a_malformed_reply_is_told_to_its_exchange_and_loses_the_neighbours(net: Net) -> None:
    wrong = RemoteProtocolError("no such size")
    async with connected(net) as connection:
        before = ask(connection, b"a")
        culprit = connection.submit([b"b"], Fixed(2, {b"?": wrong}), deadline_s=30)
        after = ask(connection, b"c")
        peer = await net.peers.receive()
        await peer.send(b"1?2")
        assert await outcome(before) == b"1"
        assert await outcome(culprit) == (RemoteProtocolError, True)
        assert await outcome(after) == (ConnectionLost, True)
        with pytest.raises(ConnectionLost, match="no such size"):
            await after
        with pytest.raises(anyio.EndOfStream):
            await read(peer, 4)


async def test_an_error_answer_fails_its_exchange_alone(net: Net) -> None:
    async with connected(net) as connection:
        refused = connection.submit([b"a"], Fixed(1, {b"X": BrokerError(1, "OffsetOutOfRange")}), deadline_s=30)
        after = ask(connection, b"b")
        peer = await net.peers.receive()
        await peer.send(b"X2")
        assert await outcome(refused) == (BrokerError, False)
        assert await outcome(after) == b"2"
        assert connection.statistics().losses == 0


@pytest.mark.parametrize("defect", [ZeroDivisionError("oops"), MemoryError(), RecursionError("deep")], ids=repr)
async def test_a_defect_of_a_decoder_costs_its_connection_and_nothing_else(
    net: Net, defect: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(net) as connection:
        culprit = connection.submit([b"a"], Fixed(1, {b"X": defect}), deadline_s=30)
        neighbour = ask(connection, b"b")
        await (await net.peers.receive()).send(b"X")
        with pytest.raises(InternalError, match=type(defect).__name__) as caught:
            await culprit
        assert caught.value.__cause__ is defect
        assert not caught.value.retriable
        with pytest.raises(ConnectionLost, match=type(defect).__name__) as lost:
            await neighbour
        assert isinstance(lost.value.__cause__, InternalError)
        later = ask(connection, b"c")
        await (await net.peers.receive()).send(b"1")
        assert await later == b"1"
    assert [record.levelname for record in caplog.records] == ["ERROR"]


# ---- deadlines -----------------------------------------------------------------------------------------------


async def test_a_silent_peer_costs_the_connection_at_the_deadline(net: Net) -> None:
    async with connected(net) as connection:
        late, neighbour = ask(connection, b"a", deadline_s=20.5), ask(connection, b"b")
        peer = await net.peers.receive()
        assert await read(peer, 2) == b"ab"
        end_time_limits(connection, late)
        assert await outcome(late) == (DeadlineError, True)
        assert await outcome(neighbour) == (ConnectionLost, True)
        with pytest.raises(DeadlineError, match=r"b:1: no answer within 20\.5 s; the request may have been applied"):
            await late
        with pytest.raises(anyio.EndOfStream):
            await peer.receive()


async def test_the_shortest_deadline_counts_wherever_it_stands(net: Net) -> None:
    async with connected(net) as connection:
        first, late = ask(connection, b"a", deadline_s=60), ask(connection, b"b", deadline_s=0.02)
        assert (await outcome(late))[0] is DeadlineError
        assert (await outcome(first))[0] is ConnectionLost


async def test_half_a_reply_does_not_extend_a_deadline(net: Net) -> None:
    async with connected(net) as connection:
        late = ask(connection, b"a", reply=100)
        peer = await net.peers.receive()
        await read(peer, 1)
        await peer.send(b"1" * 99)
        await until(lambda: connection.statistics().received_bytes == 99)
        end_time_limits(connection)
        assert await outcome(late) == (DeadlineError, True)


async def test_a_reply_that_goes_on_arriving_extends_the_deadline_of_all_that_wait_for_it(net: Net) -> None:
    async with connected(net) as connection:
        slow, behind = ask(connection, b"a", reply=9_000, deadline_s=8), ask(connection, b"b", deadline_s=8)
        peer = await net.peers.receive()
        await read(peer, 2)
        for part in range(1, 4):
            await peer.send(b"1" * 2_500)
            await until(lambda part=part: connection.statistics().received_bytes == part * 2_500)  # type: ignore[misc]
            now = behind.deadline
            connection._queue.received_at = now - 1.0
            connection._expire(now)
            assert slow.deadline == behind.deadline == now + 2.0
        await peer.send(b"1" * 1_500 + b"2")
        assert await outcome(slow) == b"1" * 9_000
        assert await outcome(behind) == b"2"


@pytest.mark.parametrize(
    ("bytes_per_s", "until_s", "ends_at"),
    [
        (0, 0, 8.0),
        (1, math.inf, 8.0),
        (1_000, math.inf, 10.0),  # the time limit before the first extension is longer
        (1_100, math.inf, 80.0),
        (1_000_000, math.inf, 80.0),
        (1_000_000, 5.0, 8.0),
        (1_000_000, 7.0, 10.0),
    ],
)
def test_a_peer_has_to_send_something_worth_waiting_for(bytes_per_s: float, until_s: float, ends_at: float) -> None:
    queue = RequestQueue()
    request: InFlightRequest[bytes] = InFlightRequest(1, (), None, None, 0, 8.0, 8.0, queue)
    while True:
        queue.received_at = min(request.deadline, until_s)
        queue.received_bytes = int(bytes_per_s * queue.received_at)
        if not request.extend(request.deadline):
            break
    assert request.deadline == request.limit_s == ends_at


@pytest.mark.parametrize(
    ("each_s", "answered", "ends_at"),
    [(1.0, math.inf, 80.0), (1.9, math.inf, 80.0), (5.0, math.inf, 8.0), (3.0, 1, 8.0), (1.0, 7, 10.0), (1.0, 6, 8.0)],
)
def test_a_request_waits_while_those_before_it_are_answered(each_s: float, answered: float, ends_at: float) -> None:
    queue = RequestQueue()
    request: InFlightRequest[bytes] = InFlightRequest(1, (), None, None, 0, 8.0, 8.0, queue)
    while True:
        queue.answered_at = min(request.deadline // each_s, answered) * each_s
        if not request.extend(request.deadline):
            break
    assert request.deadline == request.limit_s == ends_at


@pytest.mark.parametrize(
    ("bytes_per_s", "until_s", "sent", "ends_at"),
    [
        (0, 0, False, 8.0),
        (1_100, math.inf, False, 80.0),
        (1_000, math.inf, False, 10.0),  # the time limit before the first extension is longer
        (1_000_000, 5.0, False, 10.0),  # when they left is not known, before it is looked at
        (1_000_000, math.inf, True, 10.0),  # its own bytes have left by then
        (100_000, math.inf, True, 22.0),  # and no time was left to answer
    ],
)
def test_a_request_waits_while_its_bytes_leave(bytes_per_s: float, until_s: float, sent: bool, ends_at: float) -> None:
    queue = RequestQueue()
    request: InFlightRequest[bytes] = InFlightRequest(1, (), None, None, 0, 8.0, 8.0, queue)
    request.sent, request.end = sent, 1_900_000
    while True:
        queue.acknowledged_bytes = int(bytes_per_s * min(request.deadline, until_s))
        if not request.extend(request.deadline):
            break
    assert request.deadline == request.limit_s == ends_at


async def test_an_answered_exchange_leaves_its_deadline_without_effect(net: Net) -> None:
    async with connected(net) as connection:
        quick, patient = ask(connection, b"a"), ask(connection, b"b")
        peer = await net.peers.receive()
        await peer.send(b"1")
        await quick
        assert await read(peer, 2) == b"ab"
        end_time_limits(connection, quick)
        await wait_all_tasks_blocked()
        assert connection._next_deadline == patient.deadline, "the deadline has passed, and did nothing"
        assert connection.statistics().losses == 0
        late = ask(connection, b"c")
        assert await read(peer, 1) == b"c"
        end_time_limits(connection, late)
        assert await outcome(late) == (DeadlineError, True)
        assert await outcome(patient) == (ConnectionLost, True)


async def test_a_peer_that_does_not_read_is_given_up_at_the_deadline() -> None:
    net = Net(capacity=10)
    async with connected(net) as connection:
        stuck, behind = notify(connection, b"x" * COALESCE_BYTES), ask(connection, b"b")
        await net.peers.receive()
        await until(lambda: stuck.sent)
        end_time_limits(connection)
        assert await outcome(stuck) == (DeadlineError, True)
        assert await outcome(behind) == (DeadlineError, False)
        assert connection.state is State.IDLE
    net.close()


async def test_a_peer_that_does_not_read_hides_no_reply() -> None:
    net = Net(capacity=10)
    async with connected(net) as connection:
        first = ask(connection, b"a")
        peer = await net.peers.receive()
        assert await peer.receive() == b"a"
        notify(connection, b"x" * COALESCE_BYTES)
        await wait_all_tasks_blocked()
        await peer.send(b"1")
        assert await outcome(first) == b"1"
    net.close()


# ---- connecting ----------------------------------------------------------------------------------------------


async def test_nothing_is_opened_before_something_is_submitted(net: Net) -> None:
    async with connected(net) as connection:
        await wait_all_tasks_blocked()
        assert net.attempts == []
        assert connection.state is State.IDLE


async def test_a_refused_connect_fails_what_is_queued_with_its_reason(net: Net) -> None:
    net.refusal = Unreachable("tcp", "b:1", "Connection refused")
    net.refusal.hint = "start it"
    async with connected(net) as connection:
        pendings: list[InFlightRequest[Any]] = [ask(connection, b"a"), notify(connection, b"b")]
        assert [await outcome(pending) for pending in pendings] == [(Unreachable, False)] * 2
        with pytest.raises(Unreachable, match=r"tcp: Connection refused \(start it\)") as caught:
            await pendings[0]
        assert caught.value.step == "tcp"
        assert "Connection refused" in connection.statistics().last_error
        net.refusal = None
        later = ask(connection, b"c")
        await (await net.peers.receive()).send(b"1")
        assert await outcome(later) == b"1"


async def test_attempts_back_off_and_a_reply_ends_it(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "random", lambda: 0.0)  # half of 0.02, 0.04, 0.08
    net.refusal = Unreachable("tcp", "b:1", "Connection refused")
    async with connected(net, ConnectionOptions(backoff=Backoff(0.02, 2, 5))) as connection:
        for attempt in range(3):
            assert await outcome(ask(connection, b"a")) == (Unreachable, False)
            assert connection.statistics().attempts == attempt + 1
        net.refusal = None
        pending = ask(connection, b"a")
        peer = await net.peers.receive()
        waits = [b - a for a, b in zip(net.attempts, net.attempts[1:], strict=False)]
        assert all(wait >= least for wait, least in zip(waits, [0.0095, 0.0195, 0.0395], strict=True))
        await peer.send(b"1")
        await pending
        await peer.aclose()
        await wait_all_tasks_blocked()
        assert connection.statistics().attempts == 0


async def test_a_peer_that_accepts_and_hangs_up_is_backed_off_from(net: Net) -> None:
    async with connected(net) as connection:
        for attempt in range(3):
            pending = ask(connection, b"a")
            await (await net.peers.receive()).aclose()
            assert (await outcome(pending))[0] is ConnectionLost
            assert connection.statistics().attempts == attempt + 1


async def test_a_back_off_longer_than_the_deadline_fails_with_the_refusal_as_cause(net: Net) -> None:
    net.refusal = Unreachable("dns", "b:1", "no such host")
    async with connected(net, ConnectionOptions(backoff=Backoff(60, 1, 60))) as connection:
        await outcome(ask(connection, b"a"))
        late, neighbour = ask(connection, b"b"), ask(connection, b"c")
        await until(lambda: connection.state is State.WAITING)
        end_time_limits(connection, late)
        with pytest.raises(DeadlineError) as caught:
            await late
        assert isinstance(caught.value.__cause__, Unreachable)
        assert not caught.value.sent
        assert await outcome(neighbour) == (ConnectionLost, False)  # or it could overtake who failed before it
        assert len(net.attempts) == 1


async def test_nobody_left_waiting_at_the_end_of_a_back_off_dials_nothing(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    net.refusal = Unreachable("dns", "b:1", "no such host")
    over = anyio.Event()
    async with connected(net, ConnectionOptions(backoff=Backoff(60, 1, 60))) as connection:
        await outcome(ask(connection, b"a"))
        monkeypatch.setattr(anyio, "sleep_until", lambda time: over.wait())
        late = ask(connection, b"b")
        await until(lambda: connection.state is State.WAITING)
        end_time_limits(connection, late)
        assert await outcome(late) == (DeadlineError, False)
        over.set()
        await until(lambda: connection.state is State.IDLE)
        assert len(net.attempts) == 1


async def test_a_dial_that_hangs_is_bounded_by_the_deadline(net: Net) -> None:
    async def hang(host: str, port: int, timeout: float) -> ByteStream:
        await anyio.sleep_forever()
        raise AssertionError

    async with no_leak(), Connection("b", 1, connect=hang) as connection:
        pending = ask(connection, b"a")
        await until(lambda: connection.state is State.CONNECTING)
        end_time_limits(connection)
        assert await outcome(pending) == (DeadlineError, False)
        assert connection.state is State.CONNECTING


# ---- cancelled callers ---------------------------------------------------------------------------------------


async def test_a_cancelled_caller_takes_nothing_from_its_neighbours(net: Net) -> None:
    async with connected(net) as connection:
        first, cancelled, third = (ask(connection, request, 2) for request in (b"a", b"b", b"c"))
        peer = await net.peers.receive()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await cancelled
        assert scope.cancelled_caught
        await peer.send(b"1122")
        assert await outcome(first) == b"11"
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(outcome, third)
                await wait_all_tasks_blocked()
                scope.cancel()
        await peer.send(b"33")
        assert [await outcome(cancelled), await outcome(third)] == [b"22", b"33"]


async def test_a_pending_nobody_awaits_is_read_and_dropped(net: Net) -> None:
    async with connected(net) as connection:
        ask(connection, b"a", 3)
        kept = ask(connection, b"b", 1)
        await (await net.peers.receive()).send(b"aaab")
        assert await kept == b"b"


async def scenario(net: Net, connection: Connection, pendings: list[InFlightRequest[Any]]) -> None:
    """A refusal, a connect, replies, a loss, another connect, a blocked write: every await of the actor."""
    net.refusal = Unreachable("tcp", "b:1", "no")
    pendings.append(ask(connection, b"a"))
    await outcome(pendings[-1])
    net.refusal = None
    pendings += [ask(connection, b"b"), notify(connection, b"c"), ask(connection, b"d", 2)]
    async with await net.peers.receive() as peer:
        await read(peer, 3)
        await peer.send(b"12")
        await outcome(pendings[1])
    await outcome(pendings[3])
    pendings += [ask(connection, b"x" * (2 << 20)), ask(connection, b"e")]
    async with await net.peers.receive() as peer:
        await read(peer, 1 << 10)
        await anyio.sleep_forever()


@pytest.mark.parametrize("way", ["cancel", "aclose"])
async def test_ended_at_any_moment_it_leaves_no_task_no_stream_and_no_waiter(net: Net, way: str) -> None:
    async def end(steps: int, connection: Connection, scope: anyio.CancelScope) -> None:
        for _ in range(steps):
            await checkpoint()
        if way == "aclose":
            await connection.aclose()
        scope.cancel()

    for steps in range(120):
        pendings: list[InFlightRequest[Any]] = []
        opened: list[ByteStream] = []

        async def dial(host: str, port: int, timeout: float, opened: list[ByteStream] = opened) -> ByteStream:
            opened.append(await net.dial(host, port, timeout))
            return opened[-1]

        connection = Connection("b", 1, connect=dial, options=AT_ONCE)
        async with no_leak(), anyio.create_task_group() as group:
            group.start_soon(connection.run)
            group.start_soon(end, steps, connection, group.cancel_scope)
            try:
                await scenario(net, connection, pendings)
            except (Closed, anyio.EndOfStream, anyio.BrokenResourceError):
                assert way == "aclose"
        assert all(pending.done for pending in pendings), steps
        for stream in opened:
            with pytest.raises(anyio.ClosedResourceError):
                await stream.receive()
        with pytest.raises(Closed):
            ask(connection, b"z")
        while net.peers.statistics().current_buffer_used:
            net.peers.receive_nowait()
    assert connection.statistics().connects == 2  # the last one got to the end


# ---- callbacks -----------------------------------------------------------------------------------------------


async def test_callbacks_come_in_order_in_the_step_in_which_the_replies_do(net: Net) -> None:
    async with connected(net) as connection:
        pendings = [ask(connection, b"a") for _ in range(5)]
        peer = await net.peers.receive()
        called: list[tuple[int, bytes]] = []
        for number, pending in enumerate(pendings):
            pending.add_done_callback(lambda number=number, pending=pending: called.append((number, pending.result())))  # type: ignore[misc]
        await peer.send(b"12345")
        assert await pendings[0] == b"1"
        assert called == [(0, b"1"), (1, b"2"), (2, b"3"), (3, b"4"), (4, b"5")]
        pendings[0].add_done_callback(lambda: called.append((9, b"")))
        assert called[-1] == (9, b"")  # at once: it is there


async def test_a_callback_submits_in_the_middle_of_a_read_and_keeps_the_order(net: Net) -> None:
    async with connected(net) as connection:
        first, second = ask(connection, b"a"), ask(connection, b"b")
        more: list[InFlightRequest[bytes]] = []
        first.add_done_callback(lambda: more.append(ask(connection, b"c")))
        second.add_done_callback(lambda: more.append(ask(connection, b"d")))
        peer = await net.peers.receive()
        await read(peer, 2)
        await peer.send(b"12")
        assert await read(peer, 2) == b"cd"
        await peer.send(b"34")
        assert [await pending for pending in (first, second, *more)] == [b"1", b"2", b"3", b"4"]


async def test_a_callback_closes_in_the_middle_of_a_read(net: Net) -> None:
    async with connected(net) as connection:
        first, second, third = ask(connection, b"a"), ask(connection, b"b"), ask(connection, b"c", 2)
        called: list[str] = []
        first.add_done_callback(connection.close)
        for pending, name in ((second, "second"), (third, "third")):
            pending.add_done_callback(lambda name=name: called.append(name))  # type: ignore[misc]
        await (await net.peers.receive()).send(b"12" + b"3")
        assert [await outcome(pending) for pending in (first, second, third)] == [
            b"1",
            (ConnectionLost, True),
            (ConnectionLost, True),
        ]
        assert called == ["second", "third"]
        assert connection.state is State.CLOSED


async def test_a_loss_calls_back_in_order_whether_sent_or_not_and_what_is_submitted_then_goes_elsewhere() -> None:
    net = Net(capacity=10)
    async with connected(net) as connection:
        called: list[int] = []
        again: list[InFlightRequest[bytes]] = []
        epoch = connection.incarnation

        def lost(number: int) -> None:
            assert connection.incarnation == epoch + 1
            called.append(number)
            if number == 1:
                again.append(ask(connection, b"again"))

        pendings: list[InFlightRequest[Any]] = [
            ask(connection, b"a"),
            notify(connection, b"x" * COALESCE_BYTES),
            ask(connection, b"b"),
            notify(connection, b"c"),
        ]
        for number, pending in enumerate(pendings):
            pending.add_done_callback(lambda number=number: lost(number))  # type: ignore[misc]
        peer = await net.peers.receive()
        await wait_all_tasks_blocked()
        await peer.aclose()
        sent = [await outcome(pending) for pending in pendings]
        assert sent == [(ConnectionLost, True)] * 2 + [(ConnectionLost, False)] * 2
        assert called == [0, 1, 2, 3]
        peer = await net.peers.receive()
        assert await read(peer, 5) == b"again"
        await peer.send(b"1")
        assert await again[0] == b"1"
    net.close()


async def test_a_deadline_calls_back_in_the_order_of_the_exchanges(net: Net) -> None:
    async with connected(net) as connection:
        called: list[str] = []
        patient, late = ask(connection, b"a"), ask(connection, b"b")
        patient.add_done_callback(lambda: called.append("patient"))
        late.add_done_callback(lambda: called.append("late"))
        await read(await net.peers.receive(), 2)
        end_time_limits(connection, late)
        assert await outcome(late) == (DeadlineError, True)
        assert await outcome(patient) == (ConnectionLost, True)
        assert called == ["patient", "late"]


async def test_unconfirmed_exchanges_that_call_for_the_next_one_do_not_pile_up(net: Net) -> None:
    async with connected(net) as connection:
        left = 2000

        def go_on() -> None:
            nonlocal left
            left -= 1
            if left:
                notify(connection, b"x").add_done_callback(go_on)

        go_on()
        peer = await net.peers.receive()
        assert await read(peer, 1999) == b"x" * 1999
        await wait_all_tasks_blocked()
        assert left == 0


@pytest.mark.parametrize("when", ["a reply", "a loss", "the close"])
async def test_a_defect_of_a_callback_costs_its_connection_and_every_request_has_a_result(net: Net, when: str) -> None:
    async with connected(net) as connection:
        pendings = [ask(connection, b"a"), ask(connection, b"b"), ask(connection, b"c")]
        pendings[0].add_done_callback(partial(divmod, 1, 0))
        pendings[1].add_done_callback([].pop)
        peer = await net.peers.receive()
        await read(peer, 3)
        if when == "a reply":
            await peer.send(b"12")
        elif when == "a loss":
            await peer.aclose()
        else:
            await connection.aclose()
        outcomes = [await outcome(pending) for pending in pendings]
        assert outcomes[1:] == [(ConnectionLost, True)] * 2
        assert outcomes[0] == (b"1" if when == "a reply" else outcomes[1])
        if when != "the close":
            later = ask(connection, b"d")
            await (await net.peers.receive()).send(b"1")
            assert await later == b"1"


async def test_a_defect_of_the_connection_itself_reaches_its_requests_and_its_owner(net: Net) -> None:
    async def fail(host: str, port: int, timeout: float) -> ByteStream:
        raise ZeroDivisionError("in connect")

    connection = Connection("b", 1, connect=fail)
    pending = ask(connection, b"a")
    with pytest.raises(InternalError, match="in connect") as caught:
        await connection.run()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert await outcome(pending) == (InternalError, False)
    with pytest.raises(Closed):
        ask(connection, b"b")


# ---- requests that are encoded when they are sent, and the handshake before them ---------------------------------


class Versioned:
    """A request that is encoded for the session: a version."""

    size = 2

    def __init__(self, body: bytes) -> None:
        self.body = body

    def encode(self, session: Any) -> tuple[list[bytes], Fixed]:
        if session is None:
            raise ZeroDivisionError("not encoded for a session")
        if session < 2 and self.body == b"new":
            raise Unsupported("new", "version 2")
        return [b"%d" % session, self.body], Fixed(1)


class Hello:
    """A request of a handshake: the same bytes for every version."""

    size = 2

    def __init__(self, body: bytes, reply: Fixed) -> None:
        self.body, self.reply = body, reply

    def encode(self, session: Any) -> tuple[list[bytes], Fixed]:
        return [self.body], self.reply


def hello() -> Handshake:
    """Ask the peer for a version, and confirm it."""
    version: bytes = yield Hello(b"v?", Fixed(1))
    try:
        yield Hello(b"v!", Fixed(1, {b"N": BrokerError(58, "SaslAuthenticationFailed")}))
    except BrokerError as error:
        raise Unsupported("this version", "another broker") from error
    return int(version)


def shaking(net: Net) -> Connection:
    return Connection("b", 1, connect=net.dial, handshake=hello, options=AT_ONCE)


async def test_requests_wait_for_the_handshake_and_are_encoded_for_what_it_agreed_on(net: Net) -> None:
    async with no_leak(), shaking(net) as connection:
        first = connection.submit((), None, deadline_s=30, request=Versioned(b"a"))
        assert connection.queued_bytes == 2
        peer = await net.peers.receive()
        assert await peer.receive() == b"v?"
        assert connection.state is State.HANDSHAKING
        second = connection.submit((), None, deadline_s=30, request=Versioned(b"b"))
        await peer.send(b"2")
        assert await peer.receive() == b"v!"
        await peer.send(b"Y")
        assert await read(peer, 4) == b"2a2b"
        assert repr(connection) == "<Connection b:1 connected, 2 in flight, 0 queued>"
        await peer.send(b"12")
        assert [await outcome(first), await outcome(second)] == [b"1", b"2"]


async def test_a_new_connection_shakes_hands_again_and_later_requests_follow_it(net: Net) -> None:
    async with no_leak(), shaking(net) as connection:
        for version in (b"1", b"3"):
            pending = connection.submit((), None, deadline_s=30, request=Versioned(b"a"))
            async with await net.peers.receive() as peer:
                await read(peer, 2)
                await peer.send(version)
                await read(peer, 2)
                await peer.send(b"Y")
                assert await read(peer, 2) == version + b"a"
            assert await outcome(pending) == (ConnectionLost, True)


async def test_a_request_that_cannot_be_encoded_fails_alone_and_unsent(net: Net) -> None:
    async with no_leak(), shaking(net) as connection:
        requests = [Versioned(body) for body in (b"a", b"new", b"b")]
        before, new, after = (connection.submit((), None, deadline_s=30, request=request) for request in requests)
        peer = await net.peers.receive()
        await peer.send(b"1")
        assert await read(peer, 4) == b"v?v!"
        await peer.send(b"Y")
        assert await read(peer, 4) == b"1a1b"
        assert await outcome(new) == (Unsupported, False)
        await peer.send(b"12")
        assert [await outcome(before), await outcome(after)] == [b"1", b"2"]


async def test_a_defect_of_an_encoder_fails_its_request_alone(net: Net) -> None:
    async with connected(net) as connection:
        broken = connection.submit((), None, deadline_s=30, request=Versioned(b"a"))
        fine = ask(connection, b"b")
        assert await outcome(broken) == (InternalError, False)
        await (await net.peers.receive()).send(b"1")
        assert await outcome(fine) == b"1"


async def test_a_refused_handshake_fails_what_is_queued_with_its_reason_and_backs_off(net: Net) -> None:
    async with no_leak(), shaking(net) as connection:
        for attempt in range(2):
            pending = connection.submit((), None, deadline_s=30, request=Versioned(b"a"))
            peer = await net.peers.receive()
            await peer.send(b"2")
            assert await read(peer, 4) == b"v?v!"
            await peer.send(b"N")
            with pytest.raises(Unsupported, match="another broker") as caught:
                await pending
            assert not caught.value.sent
            assert isinstance(caught.value.__cause__, Unsupported)
            assert isinstance(caught.value.__cause__.__cause__, BrokerError)
            assert connection.statistics().attempts == attempt + 1


async def test_a_peer_that_hangs_up_in_the_handshake_is_backed_off_from(net: Net) -> None:
    async with no_leak(), shaking(net) as connection:
        pending = connection.submit((), None, deadline_s=30, request=Versioned(b"a"))
        async with await net.peers.receive() as peer:
            await peer.send(b"2")
        assert await outcome(pending) == (ConnectionLost, False)
        assert connection.statistics().attempts == 1


async def test_a_peer_that_is_silent_in_the_handshake_costs_the_connection(net: Net) -> None:
    options = ConnectionOptions(connect_timeout_s=0.02, backoff=Backoff(0, 1, 5))
    async with no_leak(), Connection("b", 1, connect=net.dial, handshake=hello, options=options) as connection:
        pending = connection.submit((), None, deadline_s=30, request=Versioned(b"a"))
        assert await outcome(pending) == (DeadlineError, False)


async def test_a_withdrawn_request_is_never_sent() -> None:
    net = Net(capacity=10)
    async with connected(net) as connection:
        begun, withdrawn, kept = ask(connection, b"x" * COALESCE_BYTES), ask(connection, b"y"), ask(connection, b"z")
        peer = await net.peers.receive()
        await wait_all_tasks_blocked()
        assert withdrawn.withdraw()
        assert not begun.withdraw()
        assert not withdrawn.withdraw()
        assert await read(peer, COALESCE_BYTES + 1) == b"x" * COALESCE_BYTES + b"z"
        await peer.send(b"12")
        assert [await outcome(begun), await outcome(kept)] == [b"1", b"2"]
        assert not withdrawn.done
    net.close()


# ---- a handshake over several connections, one on a live connection, pauses, and connections out of use -----------


async def shake(peer: ByteStream, version: bytes, answer: bytes = b"Y") -> None:
    """Answer the two requests of `hello`."""
    assert await peer.receive() == b"v?"
    await peer.send(version)
    assert await read(peer, 2) == b"v!"
    await peer.send(answer)


async def shaken(net: Net, connection: Connection, deadline_s: float) -> tuple[InFlightRequest[Any], ByteStream]:
    """Return a request that is in flight after the first handshake, and the peer."""
    in_flight = connection.submit((), None, deadline_s=deadline_s, request=Versioned(b"a"))
    peer = await net.peers.receive()
    await shake(peer, b"2")
    assert await read(peer, 2) == b"2a"
    return in_flight, peer


def hello_again() -> Handshake:
    """Ask on a first connection, which is lost, and continue on a second one."""
    try:
        yield Hello(b"v?", Fixed(1))
    except ConnectionLost:
        yield RECONNECT
    return int((yield Hello(b"v!", Fixed(1))))


async def test_a_handshake_may_continue_on_another_connection_and_nothing_queued_fails(net: Net) -> None:
    async with no_leak(), Connection("b", 1, connect=net.dial, handshake=hello_again) as connection:
        pending = connection.submit((), None, deadline_s=30, request=Versioned(b"a"))
        async with await net.peers.receive() as first:
            assert await first.receive() == b"v?"
        second = await net.peers.receive()
        assert await second.receive() == b"v!"
        await second.send(b"7")
        assert await read(second, 2) == b"7a"
        await second.send(b"1")
        assert await outcome(pending) == b"1"
        assert connection.incarnation == 0


async def test_a_handshake_that_wants_another_connection_fails_when_there_is_none(net: Net) -> None:
    async with no_leak(), Connection("b", 1, connect=net.dial, handshake=hello_again, options=AT_ONCE) as connection:
        pending = connection.submit((), None, deadline_s=30, request=Versioned(b"a"))
        async with await net.peers.receive() as peer:
            assert await peer.receive() == b"v?"
            net.refusal = Unreachable("tcp", "b:1", "refused")
        assert await outcome(pending) == (Unreachable, False)
        net.refusal = None
        connection.submit((), None, deadline_s=30, request=Versioned(b"b"))
        assert await (await net.peers.receive()).receive() == b"v?"  # from the beginning


async def test_a_handshake_without_an_answer_to_the_loss_of_its_connection_is_a_defect(net: Net) -> None:
    def stubborn() -> Handshake:
        try:
            yield Hello(b"v?", Fixed(1))
        except ConnectionLost:
            yield Hello(b"v!", Fixed(1))

    async with no_leak(), Connection("b", 1, connect=net.dial, handshake=stubborn, options=AT_ONCE) as connection:
        pending = connection.submit((), None, deadline_s=30, request=Versioned(b"a"))
        async with await net.peers.receive() as peer:
            await peer.receive()
        assert await outcome(pending) == (InternalError, False)


async def test_bytes_that_are_no_response_reach_the_handshake_as_an_error(net: Net) -> None:
    def strict() -> Handshake:
        try:
            yield Hello(b"v?", Fixed(1, {b"X": RemoteProtocolError("X")}))
        except RemoteProtocolError as error:
            raise Unsupported("this peer", "another protocol") from error

    async with no_leak(), Connection("b", 1, connect=net.dial, handshake=strict, options=AT_ONCE) as connection:
        pending = connection.submit((), None, deadline_s=30, request=Versioned(b"a"))
        await (await net.peers.receive()).send(b"X")
        assert await outcome(pending) == (Unsupported, False)


async def test_a_second_handshake_on_a_live_connection_holds_requests_back(net: Net) -> None:
    async with no_leak(), shaking(net) as connection:
        assert not connection.renew_handshake(hello())  # there is no connection yet
        before = connection.submit((), None, deadline_s=30, request=Versioned(b"a"))
        peer = await net.peers.receive()
        await peer.send(b"2")
        assert await read(peer, 4) == b"v?v!"
        await peer.send(b"Y")
        assert await read(peer, 2) == b"2a"
        assert connection.renew_handshake(hello())
        after = connection.submit((), None, deadline_s=30, request=Versioned(b"b"))
        assert await peer.receive() == b"v?"
        await peer.send(b"13")
        assert await outcome(before) == b"1"
        assert await read(peer, 2) == b"v!"
        await peer.send(b"Y")
        assert await read(peer, 2) == b"3b"
        await peer.send(b"2")
        assert await outcome(after) == b"2"
        assert connection.statistics().connects == 1


async def test_a_second_handshake_that_is_refused_costs_the_connection(net: Net) -> None:
    async with no_leak(), shaking(net) as connection:
        first, peer = await shaken(net, connection, 30)
        await peer.send(b"1")
        assert await outcome(first) == b"1"
        assert connection.renew_handshake(hello())
        second = connection.submit((), None, deadline_s=30, request=Versioned(b"b"))
        await shake(peer, b"2", b"N")
        assert await outcome(second) == (Unsupported, False)
        assert connection.statistics().losses == 1


async def test_a_request_that_is_late_during_a_second_handshake_is_not_the_handshakes_failure(net: Net) -> None:
    async with no_leak(), shaking(net) as connection:
        in_flight, _ = await shaken(net, connection, 8)
        failures: list[OdradekError] = []

        def watched() -> Handshake:
            try:
                return (yield from hello())
            except OdradekError as error:
                failures.append(error)
                raise

        assert connection.renew_handshake(watched())
        after = connection.submit((), None, deadline_s=30, request=Versioned(b"b"))
        connection._expire(in_flight.deadline)
        assert await outcome(in_flight) == (DeadlineError, True)
        assert await outcome(after) == (ConnectionLost, False)
        assert not failures


async def test_nothing_is_sent_during_a_pause_and_everything_after_it(net: Net) -> None:
    async with connected(net) as connection:
        connection.pause_sending(60)  # without a connection there is nothing to pause
        peer = await first_exchange(net, connection)
        assert await peer.receive() == b"a"
        began = anyio.current_time()
        connection.pause_sending(0.2)
        connection.pause_sending(0.1)  # the longer one counts
        assert connection.state is State.THROTTLED
        second = ask(connection, b"b")
        assert await peer.receive() == b"b"
        assert anyio.current_time() - began > 0.199  # a loop may count in milliseconds
        await peer.send(b"2")
        assert await outcome(second) == b"2"


async def test_requests_wait_for_the_end_of_a_pause_that_is_longer_than_their_time_limits(net: Net) -> None:
    """A reconnect would evade what the broker asks for, and leave unknown what became of what is in flight."""
    async with connected(net) as connection:
        first, in_flight = ask(connection, b"a", deadline_s=8), ask(connection, b"b", deadline_s=8)
        peer = await net.peers.receive()
        await read(peer, 2)
        await peer.send(b"1")
        assert await outcome(first) == b"1"
        connection.pause_sending(30)
        queued, ends_at = ask(connection, b"c", deadline_s=8), connection._resume_at
        while connection.state is State.THROTTLED:
            connection._expire(min(connection._following_deadline(), ends_at))
        assert in_flight.deadline == queued.deadline == ends_at + 8
        assert await peer.receive() == b"c"
        await peer.send(b"23")
        assert [await outcome(in_flight), await outcome(queued)] == [b"2", b"3"]
        assert connection.statistics().connects == 1


async def test_a_second_handshake_waits_for_the_end_of_a_pause(net: Net) -> None:
    """The broker answers neither what is in flight nor the handshake behind it before that."""
    async with shaking(net) as connection:
        in_flight = [connection.submit((), None, deadline_s=8, request=Versioned(b"%d" % n)) for n in range(2)]
        peer = await net.peers.receive()
        await shake(peer, b"2")
        assert await read(peer, 4) == b"2021"
        assert connection.renew_handshake(hello())
        in_flight[0].add_done_callback(lambda: connection.pause_sending(30))
        after = connection.submit((), None, deadline_s=8, request=Versioned(b"b"))
        assert await peer.receive() == b"v?"
        ends_at = anyio.current_time() + 30
        await peer.send(b"1")
        assert await outcome(in_flight[0]) == b"1"
        while (late := connection._following_deadline()) < ends_at:
            connection._expire(late)
        handshake = next(each for each in connection._queue.awaiting if not each.end)
        assert handshake.deadline >= in_flight[1].deadline + 5 > ends_at + 12
        await peer.send(b"13")
        assert await outcome(in_flight[1]) == b"1"
        assert await read(peer, 2) == b"v!"
        await peer.send(b"Y")
        assert await read(peer, 2) == b"3b"
        await peer.send(b"2")
        assert await outcome(after) == b"2"
        assert connection.statistics().connects == 1


async def test_a_pause_costs_ten_times_a_time_limit_at_most(net: Net) -> None:
    async with connected(net) as connection:
        await first_exchange(net, connection)
        connection.pause_sending(1e9)
        late = ask(connection, b"b", deadline_s=8)
        began = late.deadline - 8
        while not late.done:
            connection._expire(late.deadline)
        assert late.deadline == pytest.approx(began + 80)
        assert await outcome(late) == (DeadlineError, False)


async def test_a_pause_ends_with_its_connection(net: Net) -> None:
    async with connected(net) as connection:
        peer = await first_exchange(net, connection)
        connection.pause_sending(3600)
        await peer.aclose()
        await wait_all_tasks_blocked()
        second = ask(connection, b"b")
        await (await net.peers.receive()).send(b"2")
        assert await outcome(second) == b"2"


async def test_a_connection_out_of_use_is_closed_and_the_next_request_opens_another(net: Net) -> None:
    async with connected(net, ConnectionOptions(max_idle_s=0.05)) as connection:
        for answer in (b"1", b"2"):
            pending = ask(connection, b"a")
            peer = await net.peers.receive()
            await peer.send(answer)
            assert await outcome(pending) == answer
            connection.expect_by(0.0)  # it would look when the request's time limit is over
            assert await peer.receive() == b"a"
            with pytest.raises(anyio.EndOfStream):
                await peer.receive()
        assert connection.statistics().losses == 0
        assert connection.incarnation == 0


async def test_a_connection_that_awaits_a_response_is_in_use(net: Net) -> None:
    async with connected(net, ConnectionOptions(max_idle_s=0.01)) as connection:
        pending = ask(connection, b"a")
        peer = await net.peers.receive()
        await anyio.sleep(0.05)
        await peer.send(b"1")
        assert await outcome(pending) == b"1"


async def test_a_request_without_bytes_waits_for_the_handshake_only(net: Net) -> None:
    class Nothing:
        size = 0

        def encode(self, session: object) -> tuple[list[bytes], None]:
            return [], None

    async with no_leak(), shaking(net) as connection:
        pending: InFlightRequest[None] = connection.submit((), None, deadline_s=30, request=Nothing())
        await shake(await net.peers.receive(), b"2")
        assert await outcome(pending) is None
        assert connection.session == 2


# ---- closing -------------------------------------------------------------------------------------------------


async def test_close_fails_what_is_outstanding_and_says_who_closed(net: Net) -> None:
    async with connected(net) as connection:
        begun = ask(connection, b"a")
        await wait_all_tasks_blocked()
        queued = ask(connection, b"b")
        await connection.aclose()
        with pytest.raises(ConnectionLost, match="closed by this client; the request may have been applied"):
            await begun
        with pytest.raises(ConnectionLost, match="closed by this client; the request was not sent"):
            await queued
        with pytest.raises(Closed, match="b:1"):
            ask(connection, b"c")
        await connection.aclose()


async def test_close_before_the_first_turn_of_run(net: Net) -> None:
    async with no_leak():
        connection = Connection("b", 1, connect=net.dial)
        pending = ask(connection, b"a")
        await connection.aclose()
        assert await outcome(pending) == (ConnectionLost, False)
        await connection.run()
        assert net.attempts == []


async def test_close_works_in_a_cancelled_scope_and_from_many_tasks(net: Net) -> None:
    async with connected(net) as connection:
        ask(connection, b"a")
        await wait_all_tasks_blocked()
        async with anyio.create_task_group() as group:
            group.start_soon(connection.aclose)
            group.start_soon(connection.aclose)
            group.cancel_scope.cancel()
            await connection.aclose()
        assert connection.state is State.CLOSED


async def test_close_is_bounded_when_the_stream_does_not_close(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (module, transport):
        monkeypatch.setattr(each, "CLOSE_S", 0.02)

    async def dial(host: str, port: int, timeout: float) -> ByteStream:
        stream = await net.dial(host, port, timeout)
        monkeypatch.setattr(stream, "aclose", anyio.sleep_forever)
        return stream

    async with no_leak(), Connection("b", 1, connect=dial) as connection:
        ask(connection, b"a")
        await wait_all_tasks_blocked()
        with anyio.fail_after(30):
            await connection.aclose()


async def test_run_is_started_by_its_owner_from_any_task(net: Net) -> None:
    """As a cluster does: connections come up one by one from tasks of others, and go in the owner's order."""
    async with no_leak(), anyio.create_task_group() as owner:
        connections: list[Connection] = []

        async def worker() -> None:
            connection = Connection("b", 1, connect=net.dial, options=AT_ONCE)
            connections.append(connection)
            await owner.start(connection.run)
            pending = ask(connection, b"a")
            await (await net.peers.receive()).send(b"1")
            assert await pending == b"1"

        async with anyio.create_task_group() as workers:
            for _ in range(5):
                workers.start_soon(worker)
        assert {connection.state for connection in connections} == {State.CONNECTED}
        owner.cancel_scope.cancel()
    assert {connection.state for connection in connections} == {State.CLOSED}


async def test_many_nest_in_one_exit_stack(net: Net) -> None:
    async with no_leak(), AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(Connection("b", n, connect=net.dial, options=AT_ONCE)) for n in range(1, 6)
        ]
        pendings = [ask(connection, b"a") for connection in connections]
        for _ in pendings:
            await (await net.peers.receive()).send(b"1")
        assert [await pending for pending in pendings] == [b"1"] * 5


# ---- what it says of itself ----------------------------------------------------------------------------------


def test_every_state_is_reached_and_only_closed_is_final() -> None:
    rules = CONNECTION.transitions
    assert {State.IDLE, *rules.values()} == set(State)
    assert set(State) - {state for state, _ in rules} == {State.CLOSED}


async def test_statistics_and_repr_follow_an_exchange(net: Net) -> None:
    async with connected(net) as connection:
        assert repr(connection) == "<Connection b:1 idle, 0 in flight, 0 queued>"
        pending = ask(connection, b"abc", 5)
        assert repr(connection) == "<Connection b:1 idle, 0 in flight, 1 queued>"
        assert connection.queued_bytes == 3
        peer = await net.peers.receive()
        await wait_all_tasks_blocked()
        assert repr(connection) == "<Connection b:1 connected, 1 in flight, 0 queued>"
        assert connection.queued_bytes == 0
        await peer.send(b"12345")
        await pending
        assert connection.statistics() == (State.CONNECTED, 0, 0, 0, 1, 3, 5, 1, 0, 0, "", 0.0)
    assert repr(connection) == "<Connection b:1 closed, 0 in flight, 0 queued>"
