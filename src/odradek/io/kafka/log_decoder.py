"""The log of one partition, as responses to Fetch bring it: `core.interfaces.LogDecoder` for Kafka 0.8 and later."""

from __future__ import annotations

import math
from collections.abc import Sequence

from odradek.core.interfaces import DecoderOptions, PartitionFetch
from odradek.core.kafka.leader_epochs import LeaderEpochs
from odradek.core.kafka.read_committed import committed_only
from odradek.types import Columns, Position, TopicPartition
from odradek.wire.kafka.messages.data import AbortedTransaction
from odradek.wire.kafka.records.batch import NO_EPOCH
from odradek.wire.kafka.records.decoder import RecordDecoder
from odradek.wire.kafka.schema import ZERO_UUID

__all__ = ["KafkaLogDecoder", "decoder_of"]


class KafkaLogDecoder(RecordDecoder):
    """Decodes the log of one partition. See `RecordDecoder` for positions, damage and deferred decompression.

    Args:
        partition: The partition.
        position: Where it begins.
        options: See `DecoderOptions`.
        epochs: Told of the leader epochs of what is taken.
        committed_epoch: The epoch of the record before `position`, if a group has committed it; -1: not known.
        end_epoch: The epoch of the leader whose log ended at `position`; -1: not known.
        topic_id: The id of the topic that has this log; all zero while it is not known.
    """

    def __init__(
        self,
        partition: TopicPartition,
        position: Position,
        options: DecoderOptions,
        epochs: LeaderEpochs,
        committed_epoch: int = NO_EPOCH,
        end_epoch: int = NO_EPOCH,
        topic_id: bytes = ZERO_UUID,
    ) -> None:
        self.topic_id = topic_id
        self.read_committed, self.max_message_bytes = options.read_committed, options.max_message_bytes
        self.needed_bytes = 0
        """The size of the entry at `fetch_position`, at most `max_message_bytes`, if the last response ended in it;
        else 0 (bytes). Brokers before 0.10.1 return no more of it than they are asked for."""
        self.checked_epoch = end_epoch if committed_epoch == NO_EPOCH else NO_EPOCH
        """The epoch of the leader whose log is known to have everything before the position."""
        self.sure_until = self.unanswered_since = -math.inf
        """Until when the last answer without an error is sure of the topic; when a fetch was sent that was not answered
        so, or a client made this decoder (see `TopicCheck`)."""
        self._epochs, self._start = epochs, position
        super().__init__(partition, position, options, max(committed_epoch, self.checked_epoch))

    def take(self) -> Columns:
        """Return everything decoded since the last take, and forget it. May be empty.

        Epochs are recorded here, from the headers of the very batches that are delivered, and not when a response ends:
        its connection may be lost before, and compressed batches are opened after that.
        """
        for span in self.take_epochs():
            self._epochs.record(self.partition, span.first, span.behind, span.epoch)
        return super().take()

    def reset(self, position: Position) -> None:
        """Forget everything not taken, and continue from `position`: see `RecordDecoder.reset`."""
        super().reset(position)
        self.needed_bytes = 0

    def forget_start_epoch(self, earlier: int = NO_EPOCH) -> bool:
        """Forget the epoch that came with the position, which a group has committed, or that of the leader that named
        it as its end; compare this earlier one from now on. Return False if there is none, or anything was read
        since."""
        if self.fetch_position != self._start or self.leader_epoch == NO_EPOCH:
            return False
        self._epochs.forget_starts([self.partition])
        self._epochs.record_committed(self.partition, self._start, earlier)
        self._begin(self._start, earlier)
        return True

    def begin_response(self, aborted: Sequence[AbortedTransaction] | None) -> None:
        """Begin with the response to a fetch from `fetch_position`, which names these aborted transactions."""
        self.needed_bytes = 0
        self.start_response(committed_only(aborted) if self.read_committed and aborted else None)

    def end_response(self) -> None:
        """Forget the partial entry at the end of the response: the next one begins with it."""
        self.needed_bytes = min(self.partial_size, self.max_message_bytes)  # of a larger one its magic is enough
        self._drop_tail()


def decoder_of(fetch: PartitionFetch) -> KafkaLogDecoder:
    """Return the decoder of a fetch, which a broker client of this protocol has made."""
    decoder = fetch.decoder
    assert isinstance(decoder, KafkaLogDecoder)
    return decoder
