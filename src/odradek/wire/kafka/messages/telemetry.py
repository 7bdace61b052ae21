"""Metrics that clients send to brokers (KIP-714)."""

from __future__ import annotations

from odradek.wire.kafka.schema import (
    I8,
    I16,
    I32,
    ZERO_UUID,
    Bool,
    Bytes,
    Request,
    Response,
    Str,
    Uuid,
    message,
)


@message(key=71, side="request", versions=(0, 0), flexible=0)
class GetTelemetrySubscriptionsRequest(Request["GetTelemetrySubscriptionsResponse"]):
    """Get the metrics that the broker wants from this client."""

    client_instance_id: Uuid = ZERO_UUID


@message(key=71, side="response", versions=(0, 0), flexible=0)
class GetTelemetrySubscriptionsResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    client_instance_id: Uuid = ZERO_UUID
    subscription_id: I32 = 0
    accepted_compression_types: tuple[I8, ...] = ()
    push_interval_ms: I32 = 0
    telemetry_max_bytes: I32 = 0
    delta_temporality: Bool = False
    requested_metrics: tuple[Str, ...] = ()


@message(key=72, side="request", versions=(0, 0), flexible=0)
class PushTelemetryRequest(Request["PushTelemetryResponse"]):
    """Send metrics to the broker."""

    client_instance_id: Uuid = ZERO_UUID
    subscription_id: I32 = 0
    terminating: Bool = False
    compression_type: I8 = 0
    metrics: Bytes = b""


@message(key=72, side="response", versions=(0, 0), flexible=0)
class PushTelemetryResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
