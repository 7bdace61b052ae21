"""Filter the batches of a Fetch response for `read_committed` consumers (specification 3.3; KIP-98)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from odradek.wire.kafka.messages.data import AbortedTransaction

__all__ = ["ABORT_MARKER", "COMMIT_MARKER", "BatchHeader", "visible_batches"]

ABORT_MARKER = 0
COMMIT_MARKER = 1


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """Fields of a batch header that the filter needs.

    Args:
        last_offset: The offset of its last record, even if that was compacted away.
        producer_id: -1 for none.
        is_transactional: True inside a transaction.
        control_type: The type of the control record of a control batch; None for a batch of data. Control batches of
            unknown types have any other number.
    """

    last_offset: int
    producer_id: int = -1
    is_transactional: bool = False
    control_type: int | None = None


def visible_batches(
    batches: Iterable[BatchHeader], aborted: Sequence[AbortedTransaction] | None, *, read_committed: bool
) -> Iterator[bool]:
    """Yield for each batch whether its records are visible. Positions advance past invisible batches, too.

    Args:
        batches: The batches of one partition of one response, in order.
        aborted: The aborted transactions of the same response, in any order.
        read_committed: False makes all data visible; control batches are never visible.
    """
    waiting = sorted(aborted or (), key=lambda entry: -entry.first_offset)  # the first at the end
    aborting: set[int] = set()
    for batch in batches:
        while waiting and waiting[-1].first_offset <= batch.last_offset:
            aborting.add(waiting.pop().producer_id)
        if batch.control_type is not None:
            if batch.control_type == ABORT_MARKER:
                aborting.discard(batch.producer_id)
            yield False
        else:
            yield not (read_committed and batch.is_transactional and batch.producer_id in aborting)
