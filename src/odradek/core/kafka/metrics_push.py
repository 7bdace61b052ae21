"""Metrics of a client, pushed to the brokers that ask for them: when, in which form, and what follows from each answer.

Source: KIP-714. Pure: the caller sends the requests, and has the clock and the jitter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Protocol

from odradek.core.states import Machine
from odradek.wire.compression import CompressionType, compress
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from odradek.wire.kafka.schema import ZERO_UUID

__all__ = ["DEFAULT_INTERVAL_S", "METRICS_PUSH", "MetricsPush", "MetricsPushEvent", "MetricsPushState", "MetricsSource"]

DEFAULT_INTERVAL_S = 300.0
"""Time until the next request where no broker has said one (s)."""

MIN_INTERVAL_S = 0.1
"""Shortest interval that Kafka lets a subscription have (s); a broker that asks for less gets this one."""

COMPRESSIONS = frozenset(CompressionType)


class MetricsSource(Protocol):
    """Metrics to be pushed."""

    def collect(self, prefixes: Sequence[str], *, delta: bool, now_ns: int, max_bytes: int) -> bytes:
        """Return the metrics whose names begin with one of the prefixes, as OpenTelemetry's MetricsData.

        Args:
            prefixes: `*` and the empty text stand for all metrics.
            delta: Counters say how much was added since they were last accepted; else since they began.
            now_ns: The time (ns since the epoch).
            max_bytes: What does not fit is left out.
        """
        ...

    def accepted(self) -> None:
        """A broker has what was collected last, or may have it: the next deltas begin there."""
        ...


class MetricsPushState(Enum):
    """States of a client that pushes its metrics."""

    UNSUBSCRIBED = "asks what is wanted when that is due"
    SUBSCRIBING = "GetTelemetrySubscriptions is in flight"
    SUBSCRIBED = "pushes when that is due"
    PUSHING = "PushTelemetry is in flight"
    LEAVING = "has made its last push, as it is closed"
    ENDED = "sends nothing any more"


class MetricsPushEvent(Enum):
    """Events of a client that pushes its metrics."""

    ASK = "GetTelemetrySubscriptions sent"
    SUBSCRIBE = "a broker wants metrics"
    PUSH = "PushTelemetry sent"
    PUSHED = "accepted, or without an answer"
    RESUBSCRIBE = "nothing is wanted, or refused: to be asked again"
    STOP = "refused for good"
    CLOSE = "the client is closed"


_S, _E = MetricsPushState, MetricsPushEvent

METRICS_PUSH: Machine[MetricsPushState, MetricsPushEvent] = Machine(
    "push of metrics",
    _S.UNSUBSCRIBED,
    {
        (_S.UNSUBSCRIBED, _E.ASK): _S.SUBSCRIBING,
        (_S.SUBSCRIBING, _E.SUBSCRIBE): _S.SUBSCRIBED,
        (_S.SUBSCRIBED, _E.PUSH): _S.PUSHING,
        (_S.PUSHING, _E.PUSHED): _S.SUBSCRIBED,
        **{(state, _E.RESUBSCRIBE): _S.UNSUBSCRIBED for state in (_S.SUBSCRIBING, _S.PUSHING)},
        **{(state, _E.STOP): _S.ENDED for state in (_S.SUBSCRIBING, _S.PUSHING)},
        # Without a subscription nothing is wanted; with one, what was counted since the last push is pushed now.
        **{(state, _E.CLOSE): _S.ENDED for state in (_S.UNSUBSCRIBED, _S.SUBSCRIBING, _S.ENDED)},
        **{(state, _E.CLOSE): _S.LEAVING for state in (_S.SUBSCRIBED, _S.PUSHING)},
    },
)


class Reaction(Enum):
    """Reactions to an error of a broker."""

    NOW = "ask at once what is wanted"
    NEXT = "ask when the next push would have been due"
    LATER = "ask after the default interval: another broker, or this one after an upgrade, may answer"
    STOP = "push no more"


_REACTIONS: Mapping[int, Reaction] = {
    ErrorCode.UNKNOWN_SUBSCRIPTION_ID: Reaction.NOW,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: Reaction.NOW,
    ErrorCode.TELEMETRY_TOO_LARGE: Reaction.NEXT,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: Reaction.NEXT,
    ErrorCode.INVALID_REQUEST: Reaction.STOP,
    ErrorCode.INVALID_RECORD: Reaction.STOP,
}


class MetricsPush:
    """Decides what a client sends about its metrics, and when.

    Args:
        metrics: Has the metrics.
        now: The time, at which brokers are asked first (s).
    """

    def __init__(self, metrics: MetricsSource, now: float) -> None:
        self.state = METRICS_PUSH.start
        self.due_at = now
        """When `next_request` is due (s); infinity: never."""
        self.client_instance_id = ZERO_UUID
        """What brokers call this client; they choose it."""
        self._metrics = metrics
        self._interval_s = DEFAULT_INTERVAL_S
        self._subscription = GetTelemetrySubscriptionsResponse()

    def next_request(self, now_ns: int) -> GetTelemetrySubscriptionsRequest | PushTelemetryRequest:
        """Return the request that is due.

        Args:
            now_ns: The time (ns since the epoch).
        """
        if self.state is _S.UNSUBSCRIBED:
            self._apply(_E.ASK)
            return GetTelemetrySubscriptionsRequest(client_instance_id=self.client_instance_id)
        self._apply(_E.PUSH)
        return self._push(now_ns, terminating=False)

    def close(self, now_ns: int) -> PushTelemetryRequest | None:
        """Return the last request, if there is to be one. A push that is in flight may have been accepted."""
        if self.state is _S.PUSHING:
            self._metrics.accepted()
        self._apply(_E.CLOSE)
        return self._push(now_ns, terminating=True) if self.state is _S.LEAVING else None

    def _push(self, now_ns: int, *, terminating: bool) -> PushTelemetryRequest:
        wanted = self._subscription
        metrics = self._metrics.collect(
            wanted.requested_metrics,
            delta=wanted.delta_temporality,
            now_ns=now_ns,
            max_bytes=wanted.telemetry_max_bytes,
        )
        compression = _compression(wanted.accepted_compression_types)
        return PushTelemetryRequest(
            client_instance_id=self.client_instance_id,
            subscription_id=wanted.subscription_id,
            terminating=terminating,
            compression_type=compression,
            metrics=compress(compression, metrics),
        )

    # ---- answers --------------------------------------------------------------------------------------------

    def receive(
        self, response: GetTelemetrySubscriptionsResponse | PushTelemetryResponse, now: float, jitter: float
    ) -> None:
        """Apply the answer to the latest request. One that comes while the client is closed is ignored.

        Args:
            now: The time (s).
            jitter: Between 0 and 1: clients that have started together push at different times.
        """
        if self.state not in (_S.SUBSCRIBING, _S.PUSHING):
            return
        if response.error_code:
            self._refused(response.error_code, now)
        elif isinstance(response, GetTelemetrySubscriptionsResponse):
            self._subscribe(response, now, jitter)
        else:
            self._metrics.accepted()
            self._apply(_E.PUSHED, now + self._interval_s)

    def _subscribe(self, response: GetTelemetrySubscriptionsResponse, now: float, jitter: float) -> None:
        if response.client_instance_id != ZERO_UUID:
            self.client_instance_id = response.client_instance_id
        self._subscription = response
        interval_ms = response.push_interval_ms
        self._interval_s = max(MIN_INTERVAL_S, interval_ms / 1000) if interval_ms > 0 else DEFAULT_INTERVAL_S
        if response.requested_metrics:
            self._apply(_E.SUBSCRIBE, now + self._interval_s * (0.5 + jitter))
        else:
            self._apply(_E.RESUBSCRIBE, now + self._interval_s)

    def _refused(self, code: int, now: float) -> None:
        match _REACTIONS.get(code, Reaction.LATER):
            case Reaction.NOW if self.state is _S.PUSHING:
                self._apply(_E.RESUBSCRIBE, now)
            case Reaction.NOW | Reaction.NEXT:
                self._apply(_E.RESUBSCRIBE, now + self._interval_s)
            case Reaction.LATER:
                self._apply(_E.RESUBSCRIBE, now + DEFAULT_INTERVAL_S)
            case Reaction.STOP:
                self._apply(_E.STOP, math.inf)

    def fail(self, now: float, *, sent: bool, unsupported: bool = False) -> None:
        """The latest request has no answer.

        Args:
            now: The time (s).
            sent: It may have been received: what it has is not pushed again.
            unsupported: The broker has no such request.
        """
        if self.state not in (_S.SUBSCRIBING, _S.PUSHING):
            return
        if unsupported:
            self._apply(_E.RESUBSCRIBE, now + DEFAULT_INTERVAL_S)
        elif self.state is _S.SUBSCRIBING:
            self._apply(_E.RESUBSCRIBE, now + self._interval_s)
        else:
            if sent:
                self._metrics.accepted()
            self._apply(_E.PUSHED, now + self._interval_s)

    def _apply(self, event: MetricsPushEvent, due_at: float = math.inf) -> None:
        self.state, self.due_at = METRICS_PUSH.after(self.state, event), due_at


def _compression(accepted: Sequence[int]) -> CompressionType:
    """Return the first compression that the broker prefers and this client has; NONE, which every broker takes."""
    return next((CompressionType(each) for each in accepted if each in COMPRESSIONS), CompressionType.NONE)
