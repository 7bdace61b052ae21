"""The states of a batch of a producer as data (`core.states.Machine`). `ProduceBatch` alone applies the table."""

from __future__ import annotations

from enum import Enum

from odradek.core.states import Machine

__all__ = ["BATCH", "BatchEvent", "BatchState"]


class BatchState(Enum):
    """States of a batch."""

    __hash__ = object.__hash__  # `Enum` calls a Python function for it at every step

    QUEUED = "in the queue of its partition; takes records while it is the open one there"
    IN_FLIGHT = "part of a request without a result"
    ANSWERED = "its request has a result, which has yet to be applied to it"
    RETURNED = "came back, or is a part of one that did; queued again when nothing of its partition is in flight"
    FINISHED = "has an outcome, which may have been reported"
    REPLACED = "its records are in other batches"


class BatchEvent(Enum):
    """Events of a batch."""

    __hash__ = object.__hash__

    PART = "made of records of a batch that is replaced"
    SEND = "taken by a request"
    ANSWER = "its request has a result, or was taken back"
    RETURN = "to be sent again"
    QUEUE = "queued again, by age"
    FINISH = "written, refused, given up, or out of time"
    REPLACE = "divided, or moved to other partitions"
    REUSE = "reported; the object becomes another batch"


_S, _E = BatchState, BatchEvent

BATCH: Machine[BatchState, BatchEvent] = Machine(
    "batch",
    _S.QUEUED,
    {
        (_S.QUEUED, _E.PART): _S.RETURNED,
        (_S.QUEUED, _E.SEND): _S.IN_FLIGHT,
        (_S.QUEUED, _E.FINISH): _S.FINISHED,
        (_S.QUEUED, _E.REPLACE): _S.REPLACED,
        (_S.IN_FLIGHT, _E.ANSWER): _S.ANSWERED,
        # The producer ends while the bytes are on the wire: the outcome is unknown, and a later result changes nothing.
        (_S.IN_FLIGHT, _E.FINISH): _S.FINISHED,
        (_S.FINISHED, _E.ANSWER): _S.FINISHED,
        (_S.ANSWERED, _E.FINISH): _S.FINISHED,
        (_S.ANSWERED, _E.RETURN): _S.RETURNED,
        (_S.ANSWERED, _E.REPLACE): _S.REPLACED,
        (_S.RETURNED, _E.RETURN): _S.RETURNED,  # a part
        (_S.RETURNED, _E.QUEUE): _S.QUEUED,
        (_S.RETURNED, _E.FINISH): _S.FINISHED,
        (_S.FINISHED, _E.REUSE): _S.QUEUED,
    },
)
