"""Events of a producer, for an observer."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from itertools import count

from odradek.core.observer_calls import ObserverCalls
from odradek.core.produce.batch import BrokerProduceRequest, ProduceBatch
from odradek.core.produce.live_batches import LiveBatches
from odradek.types import Broker

__all__ = ["ProducerObservation"]

_numbers = count(1)


class ProducerObservation:
    """Report one producer to an observer. Nothing here is called per record.

    Args:
        calls: The observer.
        live: The batches of the producer.
        limit: Its buffer (bytes).
        waiters: Calls that wait for space in it.
    """

    def __init__(self, calls: ObserverCalls, live: LiveBatches, limit: int, waiters: Sized) -> None:
        self._calls, self._live, self._limit, self._waiters = calls, live, limit, waiters
        self._number = next(_numbers)

    def sent(self, request: BrokerProduceRequest, broker: Broker, now: float) -> None:
        """A request was submitted."""
        number, sent = self._number, self._calls.batch_sent
        for batch in request.batches:
            seconds = now - batch.created_at
            sent(number, broker, batch.partition, len(batch.records), batch.size, batch.attempts, seconds)
        self._calls.buffer_level(number, self._live.buffered_bytes, self._limit, len(self._waiters))

    def finished(self, batches: Iterable[ProduceBatch], now: float) -> None:
        """These batches have their outcome. They still have their records."""
        number, finished = self._number, self._calls.batch_finished
        for batch in batches:
            topic = batch.queue.topic
            partition = None if batch.queue is topic.unassigned else batch.partition
            seconds = now - batch.created_at
            records, size = len(batch.records), batch.size
            finished(number, topic.name, partition, records, size, seconds, batch.attempts, batch.error)
        if not self._live.buffered_bytes:  # else the next request tells: there is one for each response, or more
            self._calls.buffer_level(number, 0, self._limit, len(self._waiters))

    def ended(self) -> None:
        """The producer has ended."""
        self._calls.buffer_level(self._number, 0, 0, 0)
