"""States of a transactional producer, and its reactions to errors (kafka-specification.md 4.4)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from odradek.core.states import Machine
from odradek.wire.kafka.error_codes import ErrorCode

__all__ = [
    "TRANSACTION",
    "TransactionEvent",
    "TransactionReaction",
    "TransactionalProducerState",
    "may_be_applied",
    "reaction_to",
    "worse_error",
]


class TransactionalProducerState(Enum):
    """States of a transactional producer."""

    UNINITIALIZED = "has no producer id"
    INITIALIZING = "requests a producer id, or a new epoch"
    READY = "no transaction is open"
    OPEN = "records and offsets can be added"
    COMMITTING = "EndTxn commits"
    ABORTING = "EndTxn aborts"
    FAILED = "the open transaction can only be aborted"
    FATAL = "the producer cannot continue"


class TransactionEvent(Enum):
    """Events of a transactional producer."""

    INITIALIZE = "initialize"
    INITIALIZED = "producer id and epoch received"
    BEGIN = "begin"
    COMMIT = "commit"
    ABORT = "abort"
    ENDED = "the transaction ended"
    EPOCH_WANTED = "the transaction ended, and the next one needs a new epoch"
    FAIL = "an error that an abort resolves"
    FATAL = "fenced, not authorized, or out of step with the coordinator"


_S, _E = TransactionalProducerState, TransactionEvent

TRANSACTION: Machine[TransactionalProducerState, TransactionEvent] = Machine(
    "transactional producer",
    _S.UNINITIALIZED,
    {
        (_S.UNINITIALIZED, _E.INITIALIZE): _S.INITIALIZING,
        (_S.INITIALIZING, _E.INITIALIZED): _S.READY,
        (_S.READY, _E.BEGIN): _S.OPEN,
        (_S.OPEN, _E.COMMIT): _S.COMMITTING,
        (_S.OPEN, _E.ABORT): _S.ABORTING,
        (_S.OPEN, _E.FAIL): _S.FAILED,
        (_S.FAILED, _E.FAIL): _S.FAILED,
        (_S.FAILED, _E.ABORT): _S.ABORTING,
        (_S.COMMITTING, _E.ENDED): _S.READY,
        (_S.COMMITTING, _E.FAIL): _S.FAILED,
        (_S.ABORTING, _E.ENDED): _S.READY,
        (_S.ABORTING, _E.EPOCH_WANTED): _S.INITIALIZING,
        (_S.ABORTING, _E.FAIL): _S.ABORTING,
        **{(state, _E.FATAL): _S.FATAL for state in _S},
        (_S.FATAL, _E.FAIL): _S.FATAL,
    },
)


class TransactionReaction(Enum):
    """Reactions to an error of a transactional request, the mildest first."""

    RETRY = "send the request again after a back-off"
    RETRY_SOON = "send the request again after a moment"
    FIND_COORDINATOR = "find the coordinator, then send the request again"
    ABORT = "the transaction can only be aborted"
    NEW_EPOCH = "abort, then request a new epoch"
    FENCED = "another producer has the transactional id"
    FATAL = "the producer cannot continue"


_REACTIONS: Mapping[int, TransactionReaction] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: TransactionReaction.RETRY,
    ErrorCode.REQUEST_TIMED_OUT: TransactionReaction.RETRY,
    ErrorCode.CONCURRENT_TRANSACTIONS: TransactionReaction.RETRY_SOON,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: TransactionReaction.FIND_COORDINATOR,
    ErrorCode.NOT_COORDINATOR: TransactionReaction.FIND_COORDINATOR,
    ErrorCode.NETWORK_EXCEPTION: TransactionReaction.FIND_COORDINATOR,
    ErrorCode.TRANSACTION_ABORTABLE: TransactionReaction.ABORT,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: TransactionReaction.ABORT,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: TransactionReaction.ABORT,
    ErrorCode.OPERATION_NOT_ATTEMPTED: TransactionReaction.ABORT,
    ErrorCode.ILLEGAL_GENERATION: TransactionReaction.ABORT,
    ErrorCode.REBALANCE_IN_PROGRESS: TransactionReaction.ABORT,
    ErrorCode.UNKNOWN_MEMBER_ID: TransactionReaction.ABORT,
    ErrorCode.FENCED_INSTANCE_ID: TransactionReaction.ABORT,
    ErrorCode.STALE_MEMBER_EPOCH: TransactionReaction.ABORT,
    ErrorCode.FENCED_MEMBER_EPOCH: TransactionReaction.ABORT,
    ErrorCode.OFFSET_METADATA_TOO_LARGE: TransactionReaction.ABORT,
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE: TransactionReaction.ABORT,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: TransactionReaction.NEW_EPOCH,
    ErrorCode.UNKNOWN_PRODUCER_ID: TransactionReaction.NEW_EPOCH,
    ErrorCode.INVALID_PRODUCER_EPOCH: TransactionReaction.FENCED,
    ErrorCode.PRODUCER_FENCED: TransactionReaction.FENCED,
}
_SEVERITY = list(TransactionReaction)
_IN_DOUBT = {
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}
"""A coordinator returns these also if its log has what was asked for, but not yet on enough replicas."""


def reaction_to(code: int) -> TransactionReaction:
    """Return the reaction to an error. Other errors that the error table calls retriable are retried, such as
    COORDINATOR_LOAD_IN_PROGRESS; the rest is fatal: INVALID_TXN_STATE, authorization of the id, unknown codes."""
    default = TransactionReaction.RETRY if ErrorCode(code).retriable else TransactionReaction.FATAL
    return _REACTIONS.get(code, default)


def may_be_applied(code: int) -> bool:
    """Return True if a request that the coordinator answers with this error may be applied nevertheless."""
    return code in _IN_DOUBT or (code != 0 and not ErrorCode(code).since)


def worse_error(a: int, b: int) -> int:
    """Return the error with the more severe reaction; 0 is no error."""
    if not a or not b:
        return a or b
    return max(a, b, key=_severity)


def _severity(code: int) -> int:
    # Where one partition cannot be added, coordinators add none, and answer so for the others. What to do about it, the
    # error of that one says: it may pass, as that of a topic which the coordinator has not heard of yet.
    return -1 if code == ErrorCode.OPERATION_NOT_ATTEMPTED else _SEVERITY.index(reaction_to(code))
