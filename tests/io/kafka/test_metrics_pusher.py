"""Metrics are pushed to a broker that asks for them, over a connection of their own, until the block is left."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import odradek as od
from odradek.core.backoff import Backoff
from odradek.errors import Unreachable
from odradek.io.connection import ConnectionOptions
from odradek.io.kafka import connections, metrics_pusher
from odradek.io.kafka.driver import KafkaDriver, KafkaOptions
from odradek.io.observation import observer_calls
from odradek.observe.push import ClientMetrics
from odradek.types import Broker
from odradek.wire.compression import CompressionType, decompress
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from odradek.wire.kafka.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)

from .admin_peer import Cluster
from .peer import EVERYTHING

pytestmark = pytest.mark.anyio

ID = bytes(range(16))


class Metrics(ClientMetrics):
    """Metrics that are a text."""

    def __init__(self) -> None:
        super().__init__(0)
        self.times_accepted = 0

    def collect(self, prefixes: Sequence[str], *, delta: bool, now_ns: int, max_bytes: int) -> bytes:
        return b"metrics"

    def accepted(self) -> None:
        self.times_accepted += 1


class SubscribedCluster(Cluster):
    """Two brokers that ask for metrics every 20 ms.

    Attributes:
        unreachable: Addresses that refuse connections.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unreachable: set[str] = set()
        self.answers[GetTelemetrySubscriptionsRequest] = lambda request, version: GetTelemetrySubscriptionsResponse(
            client_instance_id=ID,
            subscription_id=7,
            accepted_compression_types=(CompressionType.GZIP,),
            push_interval_ms=20,
            telemetry_max_bytes=1000,
            requested_metrics=("*",),
        )

    async def dial(self, host: str, port: int, timeout: float) -> Any:
        if f"{host}:{port}" in self.unreachable:
            raise Unreachable("tcp", f"{host}:{port}", "refused")
        return await super().dial(host, port, timeout)

    def pushes(self) -> list[PushTelemetryRequest]:
        return [request for request, _ in self.requests if isinstance(request, PushTelemetryRequest)]


@asynccontextmanager
async def pushing(peer: Cluster, metrics: ClientMetrics, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KafkaDriver]:
    async def dial(host: str, port: int, timeout: float, *more: object) -> Any:
        return await peer.dial(host, port, timeout)

    monkeypatch.setattr(connections, "connect", dial)
    options = KafkaOptions(
        ConnectionOptions(backoff=Backoff(0.01, 1, 0.01)),
        request_timeout_s=1000.0,
        metrics=metrics,
        observer=observer_calls(metrics),
    )
    async with anyio.create_task_group() as peer.group:
        async with KafkaDriver([Broker(-1, "b", 9091)], options) as driver:
            yield driver
        peer.group.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - of a peer whose answers are not events
            await anyio.sleep(0.001)


async def test_metrics_are_pushed_again_and_again_and_once_more_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    peer, metrics = SubscribedCluster(), Metrics()
    async with pushing(peer, metrics, monkeypatch):
        await until(lambda: len(peer.pushes()) >= 3)
    assert peer.count(GetTelemetrySubscriptionsRequest) == 1
    *pushes, last = peer.pushes()
    assert last.terminating and not any(push.terminating for push in pushes)
    assert {(push.client_instance_id, push.subscription_id) for push in peer.pushes()} == {(ID, 7)}
    assert decompress(CompressionType(last.compression_type), last.metrics, 100) == b"metrics"
    assert metrics.times_accepted >= 2
    assert len(peer.connections) == 2  # that of the metadata, and that of the metrics


async def test_a_broker_without_the_requests_gets_none_and_leaving_sends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer = SubscribedCluster()
    asked = GetTelemetrySubscriptionsRequest.SPEC.key
    offered = tuple(api for api in EVERYTHING.api_keys if api.api_key != asked)
    peer.answers[ApiVersionsRequest] = lambda request, version: ApiVersionsResponse(api_keys=offered)
    async with pushing(peer, Metrics(), monkeypatch):
        await until(lambda: peer.count(ApiVersionsRequest) == 2)
    assert not peer.pushes() and peer.count(GetTelemetrySubscriptionsRequest) == 0


async def test_another_broker_is_asked_when_one_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = SubscribedCluster()

    def answer(request: PushTelemetryRequest, version: int) -> Any:
        if len(peer.pushes()) > 1:
            return PushTelemetryResponse()
        peer.unreachable.add(peer.connections[-1])
        return ConnectionAbortedError

    peer.answers[PushTelemetryRequest] = answer
    metrics = Metrics()
    async with pushing(peer, metrics, monkeypatch):
        await until(lambda: len(peer.pushes()) >= 3)
    assert {peer.connections[-1], *peer.unreachable} == {"b:9091", "b:9092"}
    assert peer.count(GetTelemetrySubscriptionsRequest) == 1  # the subscription is that of the cluster


async def test_a_subscription_that_is_not_known_any_more_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = SubscribedCluster()
    peer.codes[PushTelemetryRequest] = [ErrorCode.UNKNOWN_SUBSCRIPTION_ID]
    peer.answers[PushTelemetryRequest] = lambda request, version: PushTelemetryResponse(error_code=peer.code(request))
    async with pushing(peer, Metrics(), monkeypatch):
        await until(lambda: len(peer.pushes()) >= 2)
    first, second = [r for r, _ in peer.requests if isinstance(r, GetTelemetrySubscriptionsRequest)]
    assert (first.client_instance_id, second.client_instance_id) == (bytes(16), ID)


async def test_a_refusal_for_good_is_logged_and_ends_the_pushes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    peer = SubscribedCluster()
    peer.answers[PushTelemetryRequest] = lambda request, version: PushTelemetryResponse(
        error_code=ErrorCode.INVALID_RECORD
    )
    with caplog.at_level(logging.WARNING, "odradek.metrics"):
        async with pushing(peer, Metrics(), monkeypatch):
            await until(lambda: bool(caplog.records))
    assert len(peer.pushes()) == 1 and "code 87" in caplog.text


async def test_a_silent_broker_does_not_keep_a_client_from_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_pusher, "LAST_PUSH_S", 0.05)
    peer = SubscribedCluster()
    peer.answers[PushTelemetryRequest] = lambda request, version: None
    with anyio.fail_after(60):  # a request may take 1,000 s
        async with pushing(peer, Metrics(), monkeypatch):
            await until(lambda: len(peer.pushes()) == 1)
    assert [push.terminating for push in peer.pushes()] == [False, True]


async def test_a_block_that_is_cancelled_makes_its_last_push(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = SubscribedCluster()

    async def dial(host: str, port: int, timeout: float, *more: object) -> Any:
        return await peer.dial(host, port, timeout)

    monkeypatch.setattr(connections, "connect", dial)
    async with anyio.create_task_group() as peer.group:  # which outlives the block
        with anyio.CancelScope() as scope:
            async with od.connect("kafka://b:9091", push_metrics=True):
                await until(lambda: len(peer.pushes()) >= 1)
                scope.cancel()
                await anyio.sleep_forever()
        peer.group.cancel_scope.cancel()
    assert peer.pushes()[-1].terminating


async def test_a_defect_of_metrics_ends_the_pushes_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Defective(Metrics):
        def collect(self, prefixes: Sequence[str], *, delta: bool, now_ns: int, max_bytes: int) -> bytes:
            raise ZeroDivisionError

    peer = SubscribedCluster()
    with caplog.at_level(logging.ERROR, "odradek.metrics"):
        async with pushing(peer, Defective(), monkeypatch) as driver:
            await until(lambda: bool(caplog.records))
            assert driver.metadata.table.brokers
    assert "because of a defect" in caplog.text and not peer.pushes()
