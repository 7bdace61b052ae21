"""Find the batch that a 0.7 broker refused, when all that is known is that it closed the connection.

A 0.7 broker answers no produce and closes the connection on one it does not like (specification.md 3.1); every request
that was outstanding fails with it, and so does every request on a line that was cut. So after such a loss the batches
are sent again isolated: together, after a probe that proves that the broker answers, with nothing else in flight.

- They are confirmed: the broker refuses none of them. A cut line costs one extra round trip.
- The broker closes again, although it had just answered: one of them is to blame. They are sent in halves, which
  finds it in about 2 log2(n) round trips. A batch that is refused MAX_REFUSALS times on its own is given up.
- The connection is lost in another way: nothing new is known.
"""

from __future__ import annotations

from collections.abc import Sequence

from odradek.core.interfaces import PartitionBatch
from odradek.errors import ConnectionLost, OdradekError

__all__ = ["MAX_REFUSALS", "ClosingBrokerPolicy"]

MAX_REFUSALS = 2
"""Connections a broker may close on a batch sent alone before the batch is given up: once may be chance."""

TOGETHER = 1 << 30
"""All of them: the size of a request is limited elsewhere."""


class ClosingBrokerPolicy:
    """The rule of the module docstring: see `core.interfaces.RefusalPolicy`."""

    def request_failed(
        self, batches: Sequence[PartitionBatch], error: OdradekError, *, answered: bool
    ) -> Sequence[PartitionBatch]:
        if not (error.sent and isinstance(error, ConnectionLost)):
            return []
        for batch in batches:
            if not batch.isolate_with:
                batch.isolate_with = TOGETHER
            elif answered:
                batch.isolate_with = (len(batches) + 1) // 2
        if answered and len(batches) == 1:
            batches[0].refusals += 1
        return [batch for batch in batches if batch.refusals >= MAX_REFUSALS]

    def describe(self, batch: PartitionBatch) -> tuple[str, str]:
        why = f"the broker answered and then closed the connection on this batch, {batch.refusals} times"
        hint = f"a 0.7 broker refuses a produce that way: does it have {batch.partition}, and support the compression?"
        return why, hint
