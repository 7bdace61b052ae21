"""Filter the batches of a Fetch response for `read_committed` consumers (kafka-specification.md 3.3; KIP-98)."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.wire.kafka.messages.data import AbortedTransaction
from odradek.wire.kafka.records.batch import BatchHeader
from odradek.wire.kafka.records.decoder import IsVisible

__all__ = ["ABORT_MARKER", "COMMIT_MARKER", "committed_only"]

ABORT_MARKER = 0
COMMIT_MARKER = 1


def committed_only(aborted: Sequence[AbortedTransaction] | None) -> IsVisible:
    """Return the filter that hides the records of aborted transactions, for one partition of one response.

    Pass it to `RecordDecoder.start_response`, which calls it for the batches of transactions and the control batches of
    the response, in order. It knows nothing but the response: the broker names every aborted transaction that has
    records in it.

    Args:
        aborted: `aborted_transactions` of the partition's response, in any order.
    """
    waiting = sorted(aborted or (), key=lambda transaction: -transaction.first_offset)  # the first one at the end
    aborting: set[int] = set()

    def is_visible(batch: BatchHeader, control_type: int | None) -> bool:
        # A producer id occurs several times: it aborts one transaction, and then begins another. So an aborted one is
        # entered when a batch reaches its first offset, and left at its abort marker; what follows of the same producer
        # is visible unless the next entry says otherwise. A fetch may begin in the middle of a transaction: its first
        # offset is then before every batch here, and it is entered at the first one.
        while waiting and waiting[-1].first_offset <= batch.last_offset:
            aborting.add(waiting.pop().producer_id)
        if control_type is None:
            return not (batch.is_transactional and batch.producer_id in aborting)
        if control_type == ABORT_MARKER:
            aborting.discard(batch.producer_id)
        return False

    return is_visible
