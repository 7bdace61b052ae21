"""The identity of an idempotent producer, from the cluster: `core.interfaces.ProducerSequences`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from odradek.core.interfaces import PartitionBatch, PartitionResult
from odradek.core.kafka.batch_sequences import BatchSequences
from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.produce import has_headers
from odradek.core.kafka.producer_state import IdempotentProducer, NextStep
from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import BrokerError, RemoteProtocolError
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

__all__ = ["KafkaProducerSequences"]

log = logging.getLogger("odradek.produce")

NO_TIMEOUT_MS = (1 << 31) - 1
"""A producer without transactions has none to time out."""

AskAnyBroker = Callable[[InitProducerIdRequest], Awaitable[InitProducerIdResponse]]
"""Function that sends a request to a broker of the cluster. Raises OdradekError."""


class KafkaProducerSequences(BatchSequences):
    """Stamps of the batches of one producer without transactions.

    Args:
        ask: Reaches any broker.
        versions: Returns what every broker of the cluster has.
    """

    def __init__(self, ask: AskAnyBroker, versions: Callable[[], BrokerVersions]) -> None:
        super().__init__(IdempotentProducer(lambda: versions().remembered_batches))
        self._ask = ask

    async def identify(self) -> None:
        """Get an identity (see `ProducerSequences.identify`).

        Brokers before 2.8 ask for a right of its own. Without it, the producer works as it does with brokers that know
        no idempotence: a batch whose outcome was in doubt may be in the log twice.
        """
        response = await self._ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=NO_TIMEOUT_MS))
        if response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            self._do_without()
        elif response.error_code:
            raise broker_error(response.error_code, "InitProducerId")
        elif response.producer_id < 0 or response.producer_epoch < 0:
            raise RemoteProtocolError(f"producer id {response.producer_id}, epoch {response.producer_epoch}")
        else:
            self.set_identity(response.producer_id, response.producer_epoch)

    def _do_without(self) -> None:
        if self._enabled:
            log.warning("this client may not write idempotently (IdempotentWrite): batches may be repeated")
        self.disable()

    def _meaning(self, step: NextStep, batch: PartitionBatch, result: PartitionResult) -> PartitionResult:
        """Return what a decision makes of a result. Brokers before 3.0 refuse numbered batches of a topic whose records
        are in a format before 0.11 (message.format.version): those of such a topic are sent without numbers, unless
        they have headers. Brokers before 2.8 refuse them of a client that has lost the right."""
        error, resolved = result.error, super()._meaning(step, batch, result)
        if not isinstance(error, BrokerError):
            return resolved
        if error.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            self._do_without()
        elif error.code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT and not has_headers(batch.records):
            if self.disable_for(topic := batch.partition.topic):
                log.warning("topic %s has a record format before 0.11: its batches may be repeated", topic)
        else:
            return resolved
        error.fatal = False
        if not batch.may_be_written:
            batch.stamp = batch.encoded = None
            error.retriable = True
        return resolved
