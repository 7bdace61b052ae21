"""`explain`: causes, errors and error codes of brokers in words."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import NamedTuple

from odradek import arguments, errors
from odradek.doctor.causes import CAUSE_OF_CODE, CAUSES, similar
from odradek.errors import ConfigError
from odradek.wire.kafka.error_codes import ErrorCode

__all__ = ["Explanation", "explain"]

_NAME = arguments.text("a cause, an error or an error code")


class Explanation(NamedTuple):
    """The meaning of a name.

    Args:
        name: The cause, error or error code.
        meaning: Sentences: what is wrong, and what the client does about it.
        remedy: What to do; empty if that depends.
    """

    name: str
    meaning: str
    remedy: str


_CODES: Mapping[str, str] = {
    "UNKNOWN_SERVER_ERROR": "The broker failed; its log says why.",
    "CORRUPT_MESSAGE": "A batch arrived damaged, or a record without a key was sent to a compacted topic.",
    "LEADER_NOT_AVAILABLE": "The partition has no leader now: one is being elected, or its brokers are down.",
    "NOT_LEADER_OR_FOLLOWER": "The leader has moved.",
    "REQUEST_TIMED_OUT": "Replicas did not confirm in time: a broker is down or overloaded.",
    "MESSAGE_TOO_LARGE": "A batch is larger than max.message.bytes of the topic: raise that, or send smaller records.",
    "COORDINATOR_NOT_AVAILABLE": "The brokers' topic of positions or transactions has no leader, or cannot be created.",
    "NOT_COORDINATOR": "The coordinator has moved.",
    "INCONSISTENT_GROUP_PROTOCOL": "The members of the group have no assignor in common: configure the same for all.",
    "INVALID_SESSION_TIMEOUT": "The broker does not allow the session timeout: set Tuning(session_timeout=...).",
    "CLUSTER_AUTHORIZATION_FAILED": "This user may not do this: add an ACL for the resource CLUSTER.",
    "UNSUPPORTED_VERSION": "The broker is too old, or too new, for the request.",
    "UNSUPPORTED_FOR_MESSAGE_FORMAT": "The records of the topic are in an older format (message.format.version).",
    "POLICY_VIOLATION": "A policy of the brokers forbids this topic or configuration.",
    "OUT_OF_ORDER_SEQUENCE_NUMBER": "Batches of the idempotent producer are missing before this one.",
    "INVALID_PRODUCER_EPOCH": "Another producer has taken over the transactional id.",
    "PRODUCER_FENCED": "Another producer has taken over the transactional id.",
    "FENCED_INSTANCE_ID": "Another member has the same group instance id.",
    "INVALID_TRANSACTION_TIMEOUT": "The timeout is above transaction.max.timeout.ms of the brokers.",
    "CONCURRENT_TRANSACTIONS": "The previous transaction of this id is still being ended.",
    "KAFKA_STORAGE_ERROR": "A log directory of the broker has failed: its disk may be full or broken.",
    "INVALID_RECORD": "The broker refuses a record: no key in a compacted topic, or a timestamp too far off.",
    "GROUP_MAX_SIZE_REACHED": "The group has as many members as group.max.size allows.",
}
"""Error code -> meaning, of those that users meet and that are not about one cause (`CAUSE_OF_CODE`)."""

_PROPERTIES = {
    "retriable": "The same request may succeed later; the client repeats it.",
    "refresh_metadata": "The client reads the metadata again.",
    "fatal": "It fails again until somebody changes something.",
    "fence": "Another client may own now what this one owned.",
}
"""Properties of errors and error codes in words."""


def explain(name: str) -> Explanation:
    """Explain a cause (`tls-expected`), an error of odradek (`Unreachable`), or an error code of brokers (`19`, or
    `NOT_ENOUGH_REPLICAS`).

    Raises:
        ConfigError: Nothing has this name; the error has similar ones.
    """
    _NAME("name", name)
    if name in CAUSES:
        return Explanation(name, *CAUSES[name][1:])
    if name in errors.__all__:
        kind: type[errors.OdradekError] = getattr(errors, name)
        summary = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
        return Explanation(name, _with_properties(summary, kind), kind.hint)
    for code in ErrorCode:
        if name.upper() in (code.name, str(int(code))):
            return _explained_code(code)
    close = similar(name, [*CAUSES, *errors.__all__, *ErrorCode.__members__])
    raise ConfigError(f"name={name!r}: no cause, error or error code has this name{close}")


def _explained_code(code: ErrorCode) -> Explanation:
    cause = CAUSES.get(CAUSE_OF_CODE.get(code.name, ""))
    meaning = _CODES.get(code.name, "") if cause is None else cause.meaning
    title = f"{code.name} ({int(code)}, since Kafka {code.since})"
    return Explanation(title, _with_properties(meaning, code), "" if cause is None else cause.remedy)


def _with_properties(meaning: str, of: object) -> str:
    return " ".join([meaning, *(text for name, text in _PROPERTIES.items() if getattr(of, name) is True)]).strip()
