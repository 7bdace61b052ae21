"""Pushes metrics of this client to the brokers that ask for them: `core.kafka.metrics_push` decides."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from random import random, shuffle
from typing import Any, Self

import anyio
from anyio.abc import TaskGroup

from odradek.core.kafka.admin_topics import id_text
from odradek.core.kafka.metrics_push import MetricsPush, MetricsPushState, MetricsSource
from odradek.errors import Closed, OdradekError, Unsupported
from odradek.io.kafka.connections import BrokerConnections
from odradek.io.retry import first_answer
from odradek.types import Broker
from odradek.wire.kafka.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)

__all__ = ["MetricsPusher"]

log = logging.getLogger("odradek.metrics")

PURPOSE = "metrics"
"""Kind of work: a broker hands metrics to a plugin while it serves the request, so nothing else waits behind it."""

LAST_PUSH_S = 1.0
"""Time that the last push may take (s)."""


Telemetry = GetTelemetrySubscriptionsRequest | PushTelemetryRequest
TelemetryAnswer = GetTelemetrySubscriptionsResponse | PushTelemetryResponse


class MetricsPusher:
    """Asks one broker what it wants, and pushes that; another one if it does not answer. An asynchronous context
    manager: leaving it makes the last push, within a time limit.

    Args:
        metrics: The metrics.
        connections: To the brokers.
        brokers: Returns those that are known.
        tasks: Where it runs.
    """

    def __init__(
        self,
        metrics: MetricsSource,
        connections: BrokerConnections,
        brokers: Callable[[], Collection[Broker]],
        tasks: TaskGroup,
    ) -> None:
        self._connections, self._brokers, self._tasks = connections, brokers, tasks
        self._push = MetricsPush(metrics, anyio.current_time())
        self._scope = anyio.CancelScope()
        self._broker: Broker | None = None  # which has answered last

    async def __aenter__(self) -> Self:
        self._tasks.start_soon(self._run)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._scope.cancel()
        with anyio.move_on_after(LAST_PUSH_S, shield=True), _defects_logged(), suppress(OdradekError):
            request = self._push.close(time.time_ns())
            if request is not None:
                await self._ask(request)

    async def _run(self) -> None:
        with self._scope, _defects_logged():
            while self._push.state is not MetricsPushState.ENDED:
                await anyio.sleep_until(self._push.due_at)
                await self._exchange(self._push.next_request(time.time_ns()))

    async def _exchange(self, request: Telemetry) -> None:
        known = self._push.client_instance_id
        try:
            response = await self._ask(request)
        except OdradekError as error:
            self._push.fail(anyio.current_time(), sent=error.sent, unsupported=isinstance(error, Unsupported))
            return
        self._push.receive(response, anyio.current_time(), random())
        if self._push.client_instance_id != known:
            log.info("brokers know this client as instance %s in its metrics", id_text(self._push.client_instance_id))
        if response.error_code and self._push.state is MetricsPushState.ENDED:
            log.warning("%s refuses metrics of this client with code %d", self._broker, response.error_code)

    async def _ask(self, request: Telemetry) -> TelemetryAnswer:
        """Ask the broker that has answered last, or else any other one, unless metrics may have been received."""
        pushes = isinstance(request, PushTelemetryRequest)
        brokers = list(self._brokers())
        shuffle(brokers)
        brokers.sort(key=lambda broker: broker != self._broker)
        return await first_answer(
            brokers,
            lambda broker: self._ask_broker(broker, request),
            Closed("no broker is known"),
            lambda error: error.retriable and not (pushes and error.sent),
        )

    async def _ask_broker(self, broker: Broker, request: Telemetry) -> TelemetryAnswer:
        answered: Any = await self._connections.ask(broker, type(request), lambda versions: request, PURPOSE)
        response: TelemetryAnswer = answered
        self._broker = broker
        return response


@contextmanager
def _defects_logged() -> Iterator[None]:
    """Log what must not end a cluster's block."""
    try:
        yield
    except Exception:
        log.exception("metrics of this client are not pushed any more, because of a defect")
