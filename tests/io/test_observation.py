"""What an observer is told of one connection and its requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from tests.client.observed import Recorder
from tests.io.test_connection import Fixed, Net, net, read

from odradek.core.backoff import Backoff
from odradek.errors import ConnectionLost, DeadlineError, Unreachable
from odradek.io.connection import Connection, ConnectionOptions
from odradek.io.observation import ConnectionObservation, observer_calls
from odradek.io.requests import InFlightRequest
from odradek.observe import ConnectionEnded, ConnectionFailed, ConnectionOpened, RequestFinished
from odradek.types import Broker

__all__ = ["net"]  # the fixture

pytestmark = pytest.mark.anyio

BROKER = Broker(1, "b", 1)


@asynccontextmanager
async def observed(net: Net, recorder: Recorder, max_idle_s: float = 1e6) -> AsyncIterator[Connection]:
    calls = observer_calls(recorder)
    assert calls is not None
    options = ConnectionOptions(backoff=Backoff(0, 1, 0), max_idle_s=max_idle_s)
    observation = ConnectionObservation(calls, BROKER, "control")
    async with Connection("b", 1, connect=net.dial, options=options, observation=observation) as connection:
        yield connection


def ask(connection: Connection, request: bytes, reply: int, deadline_s: float = 30.0) -> InFlightRequest[bytes]:
    observation = connection.observation
    assert observation is not None
    return connection.submit([request], Fixed(reply), deadline_s=deadline_s, observation=observation.of("Ask"))


async def test_a_request_is_told_with_its_bytes_and_the_connection_with_its_end(net: Net) -> None:
    recorder = Recorder()
    async with observed(net, recorder) as connection:
        pending = ask(connection, b"12345", 3)
        peer = await net.peers.receive()
        await read(peer, 5)
        await peer.send(b"a")
        await peer.send(b"bc")
        await pending
    opened, request, ended = recorder.events
    assert isinstance(opened, ConnectionOpened) and (opened.broker, opened.purpose) == (BROKER, "control")
    assert isinstance(request, RequestFinished) and request[:6] == (BROKER, "control", "Ask", -1, 5, 3)
    assert request.error is None and 0 <= request.seconds < 30
    assert ended == ConnectionEnded(BROKER, "control", "closed by this client", False)


async def test_a_lost_connection_is_told_before_the_requests_that_fail_with_it(net: Net) -> None:
    recorder = Recorder()
    async with observed(net, recorder) as connection:
        first, second = ask(connection, b"1", 4), ask(connection, b"22", 4)
        peer = await net.peers.receive()
        await read(peer, 3)
        await peer.send(b"ab")
        await peer.aclose()
        for pending in (first, second):
            with pytest.raises(ConnectionLost):
                await pending
    opened, ended, *requests = recorder.events
    assert isinstance(opened, ConnectionOpened) and isinstance(ended, ConnectionEnded) and ended.lost
    assert [(each.sent_bytes, each.received_bytes) for each in requests] == [(1, 2), (2, 0)]
    assert all(isinstance(each.error, ConnectionLost) for each in requests)


async def test_an_attempt_that_fails_is_told_and_its_request_has_sent_nothing(net: Net) -> None:
    recorder = Recorder()
    net.refusal = Unreachable("tcp", "b:1", "refused")
    async with observed(net, recorder) as connection:
        with pytest.raises(Unreachable):
            await ask(connection, b"1", 1)
    failed, request = recorder.events
    assert isinstance(failed, ConnectionFailed) and "refused" in failed.reason
    assert isinstance(request.error, Unreachable) and request.sent_bytes == 0


async def test_a_request_without_an_answer_in_time_ends_the_connection(net: Net) -> None:
    recorder = Recorder()
    async with observed(net, recorder) as connection:
        with pytest.raises(DeadlineError):
            await ask(connection, b"1", 1, deadline_s=0.05)
    assert recorder.kinds == ["ConnectionOpened", "ConnectionEnded", "RequestFinished"]
    assert recorder.of(ConnectionEnded)[0].lost and isinstance(recorder.of(RequestFinished)[0].error, DeadlineError)


class _UntilEnded(Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.ended = anyio.Event()

    def connection_ended(self, event: ConnectionEnded) -> None:
        super().connection_ended(event)
        self.ended.set()


async def test_an_unused_connection_is_closed_not_lost(net: Net) -> None:
    recorder = _UntilEnded()
    async with observed(net, recorder, max_idle_s=0.02) as connection:
        pending = ask(connection, b"1", 1, deadline_s=0.2)  # when it looks for late requests, it finds that it is idle
        peer = await net.peers.receive()
        await read(peer, 1)
        await peer.send(b"x")
        await pending
        with anyio.fail_after(30):
            await recorder.ended.wait()
    (ended,) = recorder.of(ConnectionEnded)
    assert not ended.lost and ended.reason == "unused for 0.02 s"


async def test_a_cancelled_wait_leaves_its_request_to_be_told(net: Net) -> None:
    recorder = Recorder()
    async with observed(net, recorder) as connection:
        pending = ask(connection, b"1", 1)
        peer = await net.peers.receive()
        await read(peer, 1)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await pending
        assert not recorder.of(RequestFinished)
        await peer.send(b"x")
        with anyio.fail_after(30):
            await pending
    assert [each.error for each in recorder.of(RequestFinished)][:1] == [None]
