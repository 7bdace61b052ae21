"""Raw requests: one request of any declared message, to the broker that the user means."""

from __future__ import annotations

from random import shuffle
from typing import Any

from odradek.core.interfaces import RawRequest, RawResponse
from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import ConfigError, DeadlineError
from odradek.io.kafka.connection import MAX_RESPONSE_BYTES, VersionLimits
from odradek.io.kafka.coordinators import CoordinatorType
from odradek.io.kafka.offsets import CoordinatorAccess
from odradek.io.retry import first_answer, retry
from odradek.types import Broker
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.data import ProduceRequest
from odradek.wire.kafka.plain import from_plain, request_type, to_plain
from odradek.wire.kafka.responses import KafkaResponseDecoder
from odradek.wire.kafka.schema import Request, Response, response_of

__all__ = ["send_raw"]

PURPOSE = "raw"
"""Kind of work: these requests may take long, and have a connection of their own."""


async def send_raw(request: RawRequest, access: CoordinatorAccess) -> RawResponse:
    """Send a request (see `Cluster.request`). Whom it goes to is asked for before, each time. Cancellation: safe."""
    message = from_plain(request_type(request.api), request.fields)
    if isinstance(message, ProduceRequest) and not message.acks:
        raise ConfigError("fields.acks=0: brokers do not answer such a Produce request: use a producer")
    brokers = await _targets(request, access)
    none = broker_error(ErrorCode.BROKER_NOT_AVAILABLE, "no broker is known")
    return await first_answer(
        brokers,
        lambda broker: _send(broker, message, request.version, access),
        none,
        lambda error: error.retriable and not error.sent,
    )


async def _targets(request: RawRequest, access: CoordinatorAccess) -> list[Broker]:
    """Return the broker that is meant, or all brokers if any is."""
    if request.group is not None:
        return [await _coordinator(CoordinatorType.GROUP, request.group, access)]
    if request.transactional_id is not None:
        return [await _coordinator(CoordinatorType.TRANSACTION, request.transactional_id, access)]
    await access.metadata.refresh()
    table = access.metadata.table
    if request.broker is None and not request.controller:
        brokers = list(table.brokers.values())
        shuffle(brokers)
        return brokers
    number = table.state.controller_id if request.broker is None else request.broker
    if (broker := table.brokers.get(number)) is None:
        what = "the controller" if request.broker is None else f"broker {number}"
        raise broker_error(ErrorCode.BROKER_NOT_AVAILABLE, what)
    return [broker]


async def _coordinator(kind: CoordinatorType, key: str, access: CoordinatorAccess) -> Broker:
    access.coordinators.forget(kind, key)  # the response to a stale one would be its error, which is the user's to read
    return await retry(
        lambda: access.coordinators.find(kind, key),
        access.backoff,
        limit_s=access.timeout_s,
        late=DeadlineError(f"looking up the coordinator of {key!r}", access.timeout_s),
    )


async def _send(broker: Broker, message: Request[Any], version: int | None, access: CoordinatorAccess) -> RawResponse:
    api, used = type(message), list[int]()

    def build(versions: BrokerVersions) -> Request[Any]:
        return message

    def new_decoder(version: int, correlation_id: int) -> KafkaResponseDecoder[Response]:
        used.append(version)
        return KafkaResponseDecoder(response_of(api), version, correlation_id, MAX_RESPONSE_BYTES)

    connection = access.connections.get(broker, PURPOSE)
    response = await connection.submit_decoded(api, build, new_decoder, limits=VersionLimits(exact=version))
    return RawResponse(api.SPEC.name, used[-1], broker.id, to_plain(response, used[-1]))
