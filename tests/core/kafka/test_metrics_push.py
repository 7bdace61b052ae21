"""When metrics of a client are asked for and pushed (KIP-714), and what follows from each answer, without a clock."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from odradek.core.kafka.metrics_push import DEFAULT_INTERVAL_S, MetricsPush, MetricsPushState
from odradek.wire.compression import CompressionType, decompress
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from odradek.wire.kafka.schema import ZERO_UUID

STATE = MetricsPushState
ID, OTHER_ID = bytes(range(16)), bytes(range(1, 17))


class Metrics:
    """Metrics that say how they were collected."""

    def __init__(self) -> None:
        self.collected: list[tuple[Sequence[str], bool, int, int]] = []
        self.times_accepted = 0

    def collect(self, prefixes: Sequence[str], *, delta: bool, now_ns: int, max_bytes: int) -> bytes:
        self.collected.append((prefixes, delta, now_ns, max_bytes))
        return b"metrics"

    def accepted(self) -> None:
        self.times_accepted += 1


def subscription(
    interval_ms: int = 10_000, metrics: Sequence[str] = ("a.", "b."), code: int = 0, client: bytes = ID
) -> GetTelemetrySubscriptionsResponse:
    return GetTelemetrySubscriptionsResponse(
        error_code=code,
        client_instance_id=client,
        subscription_id=7,
        accepted_compression_types=(9, CompressionType.GZIP, CompressionType.ZSTD),
        push_interval_ms=interval_ms,
        telemetry_max_bytes=1000,
        delta_temporality=True,
        requested_metrics=tuple(metrics),
    )


def subscribed(metrics: Metrics) -> MetricsPush:
    """A client that was subscribed at 100 s, and pushes for the first time at 105 s."""
    push = MetricsPush(metrics, 100.0)
    push.next_request(0)
    push.receive(subscription(), 100.0, 0.0)
    assert (push.state, push.due_at) == (STATE.SUBSCRIBED, 105.0)
    return push


def pushing(metrics: Metrics) -> MetricsPush:
    push = subscribed(metrics)
    assert isinstance(push.next_request(5), PushTelemetryRequest) and push.state is STATE.PUSHING
    return push


def test_a_client_asks_at_once_without_an_id_of_its_own() -> None:
    push = MetricsPush(Metrics(), 100.0)
    assert push.due_at == 100.0
    assert push.next_request(0) == GetTelemetrySubscriptionsRequest(client_instance_id=ZERO_UUID)
    assert push.due_at == math.inf and push.state is STATE.SUBSCRIBING


@pytest.mark.parametrize(("jitter", "due_at"), [(0.0, 105.0), (0.5, 110.0), (1.0, 115.0)])
def test_the_first_push_is_spread_over_the_interval_and_later_ones_keep_it(jitter: float, due_at: float) -> None:
    metrics = Metrics()
    push = MetricsPush(metrics, 100.0)
    push.next_request(0)
    push.receive(subscription(), 100.0, jitter)
    assert push.due_at == due_at
    push.next_request(0)
    push.receive(PushTelemetryResponse(), 120.0, jitter)
    assert (push.due_at, push.state, metrics.times_accepted) == (130.0, STATE.SUBSCRIBED, 1)


@pytest.mark.parametrize(("interval_ms", "due_at"), [(1, 100.1), (-1, 400.0), (0, 400.0)])
def test_a_hostile_interval_does_not_make_requests_without_a_pause(interval_ms: int, due_at: float) -> None:
    push = MetricsPush(Metrics(), 100.0)
    push.next_request(0)
    push.receive(subscription(interval_ms), 100.0, 0.5)
    assert push.due_at == pytest.approx(due_at)


def test_a_push_has_what_is_wanted_in_the_form_that_is_wanted() -> None:
    metrics = Metrics()
    request = subscribed(metrics).next_request(5)
    assert isinstance(request, PushTelemetryRequest)
    assert metrics.collected == [(("a.", "b."), True, 5, 1000)]
    assert (request.client_instance_id, request.subscription_id, request.terminating) == (ID, 7, False)
    assert request.compression_type == CompressionType.GZIP  # the first one that is known
    assert decompress(CompressionType.GZIP, request.metrics, 100) == b"metrics"


def test_metrics_are_not_compressed_where_no_known_compression_is_accepted() -> None:
    push = MetricsPush(Metrics(), 0.0)
    push.next_request(0)
    push.receive(GetTelemetrySubscriptionsResponse(client_instance_id=ID, requested_metrics=("*",)), 0.0, 0.0)
    request = push.next_request(0)
    assert isinstance(request, PushTelemetryRequest)
    assert (request.compression_type, request.metrics) == (CompressionType.NONE, b"metrics")


def test_a_client_that_nothing_is_wanted_of_asks_again_after_the_interval() -> None:
    push = MetricsPush(Metrics(), 100.0)
    push.next_request(0)
    push.receive(subscription(metrics=()), 100.0, 0.9)
    assert (push.state, push.due_at) == (STATE.UNSUBSCRIBED, 110.0)
    assert push.next_request(0) == GetTelemetrySubscriptionsRequest(client_instance_id=ID)


@pytest.mark.parametrize("interval_ms", [0, -1])
def test_an_interval_that_cannot_be_is_the_default(interval_ms: int) -> None:
    push = MetricsPush(Metrics(), 0.0)
    push.next_request(0)
    push.receive(subscription(interval_ms), 0.0, 0.5)
    assert push.due_at == DEFAULT_INTERVAL_S


def test_the_id_is_kept_by_a_broker_that_does_not_repeat_it_and_replaced_by_one_that_has_another() -> None:
    push = pushing(Metrics())
    for answered, expected in ((ZERO_UUID, ID), (OTHER_ID, OTHER_ID)):
        push.receive(PushTelemetryResponse(error_code=ErrorCode.UNKNOWN_SUBSCRIPTION_ID), 0.0, 0.0)
        push.next_request(0)
        push.receive(subscription(client=answered), 0.0, 0.0)
        request = push.next_request(0)
        assert isinstance(request, PushTelemetryRequest) and request.client_instance_id == expected


# ---- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "due_at"),
    [
        (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, 200.0),
        (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, 200.0),
        (ErrorCode.TELEMETRY_TOO_LARGE, 210.0),
        (ErrorCode.THROTTLING_QUOTA_EXCEEDED, 210.0),
        (ErrorCode.UNSUPPORTED_VERSION, 200.0 + DEFAULT_INTERVAL_S),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, 200.0 + DEFAULT_INTERVAL_S),
        (12345, 200.0 + DEFAULT_INTERVAL_S),
    ],
)
def test_a_push_that_is_refused_is_followed_by_a_question_and_its_metrics_are_pushed_again(
    code: int, due_at: float
) -> None:
    metrics = Metrics()
    push = pushing(metrics)
    push.receive(PushTelemetryResponse(error_code=code), 200.0, 0.0)
    assert (push.state, push.due_at, metrics.times_accepted) == (STATE.UNSUBSCRIBED, due_at, 0)
    assert push.next_request(0) == GetTelemetrySubscriptionsRequest(client_instance_id=ID)


@pytest.mark.parametrize(
    ("code", "due_at"),
    [
        (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, DEFAULT_INTERVAL_S),  # a broker that answers so cannot make it spin
        (ErrorCode.THROTTLING_QUOTA_EXCEEDED, DEFAULT_INTERVAL_S),
        (ErrorCode.UNSUPPORTED_VERSION, DEFAULT_INTERVAL_S),
    ],
)
def test_a_question_that_is_refused_is_asked_again_after_a_time(code: int, due_at: float) -> None:
    push = MetricsPush(Metrics(), 0.0)
    push.next_request(0)
    push.receive(subscription(code=code), 0.0, 0.0)
    assert (push.state, push.due_at) == (STATE.UNSUBSCRIBED, due_at)


@pytest.mark.parametrize("code", [ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_RECORD])
def test_what_repeating_cannot_change_ends_the_pushes(code: int) -> None:
    push = pushing(Metrics())
    push.receive(PushTelemetryResponse(error_code=code), 0.0, 0.0)
    assert (push.state, push.due_at) == (STATE.ENDED, math.inf)
    assert push.close(0) is None


@pytest.mark.parametrize(("sent", "times_accepted"), [(True, 1), (False, 0)])
def test_metrics_that_may_have_arrived_are_not_pushed_again(sent: bool, times_accepted: int) -> None:
    metrics = Metrics()
    push = pushing(metrics)
    push.fail(200.0, sent=sent)
    assert (push.state, push.due_at, metrics.times_accepted) == (STATE.SUBSCRIBED, 210.0, times_accepted)


def test_a_question_without_an_answer_is_asked_again_after_the_interval() -> None:
    push = pushing(Metrics())
    push.receive(PushTelemetryResponse(error_code=ErrorCode.UNKNOWN_SUBSCRIPTION_ID), 200.0, 0.0)
    push.next_request(0)
    push.fail(201.0, sent=True)
    assert (push.state, push.due_at) == (STATE.UNSUBSCRIBED, 211.0)


def test_brokers_that_have_no_such_request_are_asked_again_after_the_default_interval() -> None:
    for push in (MetricsPush(Metrics(), 0.0), subscribed(Metrics())):
        push.next_request(0)
        push.fail(200.0, sent=False, unsupported=True)
        assert (push.state, push.due_at) == (STATE.UNSUBSCRIBED, 200.0 + DEFAULT_INTERVAL_S)


# ---- the end ------------------------------------------------------------------------------------------------


def test_a_client_that_is_closed_pushes_once_more() -> None:
    metrics = Metrics()
    push = subscribed(metrics)
    request = push.close(9)
    assert request is not None and request.terminating and metrics.collected[-1][2] == 9
    assert (push.state, push.due_at, metrics.times_accepted) == (STATE.LEAVING, math.inf, 0)


def test_a_push_in_flight_counts_as_accepted_when_the_client_is_closed_and_its_answer_is_ignored() -> None:
    metrics = Metrics()
    push = pushing(metrics)
    request = push.close(9)
    assert request is not None and request.terminating and metrics.times_accepted == 1
    push.receive(PushTelemetryResponse(), 0.0, 0.0)
    push.fail(0.0, sent=True)
    assert push.state is STATE.LEAVING and metrics.times_accepted == 1


def test_a_client_without_a_subscription_has_nothing_to_push_when_it_is_closed() -> None:
    asked, subscribing = MetricsPush(Metrics(), 0.0), MetricsPush(Metrics(), 0.0)
    subscribing.next_request(0)
    for push in (asked, subscribing):
        assert push.close(0) is None and push.state is STATE.ENDED
    subscribing.receive(subscription(), 0.0, 0.0)
    assert subscribing.state is STATE.ENDED
