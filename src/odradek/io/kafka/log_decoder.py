"""The log of one partition, as responses to Fetch bring it: `core.interfaces.LogDecoder` for Kafka 0.8 and later."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.core.interfaces import DecoderOptions
from odradek.core.kafka.read_committed import committed_only
from odradek.types import Position, TopicPartition
from odradek.wire.kafka.messages.data import AbortedTransaction
from odradek.wire.kafka.records.decoder import RecordDecoder

__all__ = ["KafkaLogDecoder"]


class KafkaLogDecoder(RecordDecoder):
    """Decodes the log of one partition. See `RecordDecoder` for positions, damage and deferred decompression.

    Args:
        partition: Which.
        position: Where it begins.
        options: See `DecoderOptions`.
        committed_epoch: The epoch of the record before `position`, if a group has committed it; -1: not known.
    """

    def __init__(
        self, partition: TopicPartition, position: Position, options: DecoderOptions, committed_epoch: int = -1
    ) -> None:
        self.read_committed, self.max_message_bytes = options.read_committed, options.max_message_bytes
        self.needed_bytes = 0
        """The size of the entry at `fetch_position`, if the last response ended in it; else 0 (bytes). Brokers before
        0.10.1 return no more of it than they are asked for."""
        self.checked_epoch = -1
        """The epoch of the leader whose log was found to have everything read so far."""
        self._committed = position, committed_epoch
        super().__init__(partition, position, options)

    @property
    def leader_epoch(self) -> int:
        """The epoch of the record before `fetch_position`; -1 if it is not known."""
        position, epoch = self._committed
        return epoch if self.fetch_position == position else super().leader_epoch

    def reset(self, position: Position) -> None:
        """Forget everything not taken, and continue from `position`: see `RecordDecoder.reset`."""
        super().reset(position)
        self.needed_bytes = 0

    def begin_response(self, aborted: Sequence[AbortedTransaction] | None) -> None:
        """Begin with the response to a fetch from `fetch_position`, which names these aborted transactions."""
        self.needed_bytes = 0
        self.start_response(committed_only(aborted) if self.read_committed else None)

    def end_response(self) -> None:
        """Forget the partial entry at the end of the response: the next one begins with it."""
        self.needed_bytes = self.partial_size
        self.start_response()
