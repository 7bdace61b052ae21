"""Topics that were made again, noticed by their ids in the metadata, for brokers whose Fetch names topics (2.8 to 3.0).

Such a fetch reaches whichever log has the name: when a topic was deleted and made again, it would go on at the old
position in the new log. So before a fetch that cannot be sure of its topic, such as the first one of a decoder, the
metadata is read. It can be sure as long as one fetch follows the other without a pause, since deleting a topic ends
every fetch of it with an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import anyio

from odradek.core.interfaces import PartitionFetch
from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.routing_snapshot import RoutingSnapshot
from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import TopicRecreated
from odradek.io.kafka.log_decoder import KafkaLogDecoder, decoder_of
from odradek.wire.kafka.error_codes import ErrorCode

__all__ = ["TopicCheck"]

SURE_S = 2.0
"""Time after a fetch was sent that was answered, within which the topic is taken to be the same (s): longer than a long
poll."""

PAUSE_S = 0.5
"""Time after an answer, or a read of the metadata, within which the topic is taken to be the same although nothing asks
for it (s): polls of 10,000 partitions are so far apart. Deleting a topic and making it again takes 0.09 s at least."""


class Metadata(Protocol):
    """The metadata of the cluster, as far as the check uses it."""

    @property
    def table(self) -> RoutingSnapshot: ...

    @property
    def read_at(self) -> float: ...

    async def refresh(self) -> object: ...


class TopicCheck:
    """The check before fetches.

    Args:
        metadata: The metadata of the cluster.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    async def without_recreated(
        self, versions: BrokerVersions, fetches: Sequence[PartitionFetch]
    ) -> Sequence[PartitionFetch]:
        """Return the fetches whose topics are still those of their positions; the others get an error, TopicRecreated
        or that the topic is not there. Cancellation: safe.

        Raises:
            OdradekError: No broker answered.
        """
        if not versions.needs_topic_check:
            return fetches
        metadata, now = self._metadata, anyio.current_time()
        # What the metadata does not have is looked for without this, the less often the longer it is missing.
        topics = metadata.table.state.topics
        decoders = [decoder_of(fetch) for fetch in fetches]
        known = [each for each in decoders if (topic := topics.get(each.partition.topic)) is None or topic.partitions]
        if known and self._may_be_old(known, now):
            await metadata.refresh()
            now = anyio.current_time()
        current = [fetch for fetch in fetches if self._is_current(fetch)]
        for fetch in current:
            decoder_of(fetch).unanswered_since = now
        return current

    def answered(self, versions: BrokerVersions, fetches: Sequence[PartitionFetch]) -> None:
        """Note which fetches were answered without an error. When the broker did is not known: if the event loop was
        blocked meanwhile, the answer may be old. It is sure of the time at which the fetch was sent."""
        if versions.needs_topic_check:
            now = anyio.current_time()
            for fetch in fetches:
                if fetch.error is None:
                    decoder = decoder_of(fetch)
                    decoder.sure_until = min(now + PAUSE_S, decoder.unanswered_since + SURE_S)
                    decoder.unanswered_since = -math.inf

    def _may_be_old(self, decoders: Sequence[KafkaLogDecoder], now: float) -> bool:
        """Return True if a topic may have been made again since the metadata was read."""
        read_at = self._metadata.read_at
        sure_until = max(read_at + PAUSE_S, min(each.sure_until for each in decoders))
        return sure_until < now or read_at <= max(each.unanswered_since for each in decoders)

    def _is_current(self, fetch: PartitionFetch) -> bool:
        decoder, table = decoder_of(fetch), self._metadata.table.state
        topic, where = table.topics.get(decoder.partition.topic), str(decoder.partition)
        if table.is_recreated(decoder.partition.topic, decoder.topic_id):
            fetch.error = TopicRecreated(where, decoder.fetch_position)
        elif topic is not None and decoder.partition.partition not in topic.partitions:
            fetch.error = broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Metadata of {where}")
        return fetch.error is None
