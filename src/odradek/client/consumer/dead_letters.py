"""Records that no handler of `Consumer.each` could process, on their way to a retry topic or to the dead letters."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

from odradek.errors import Unsupported
from odradek.types import Headers, Record

__all__ = ["FailedRecord", "due_at", "failed_attempts", "send_dead_letter", "send_to_retry"]

MAX_ERROR_CHARS = 1000

_ORIGIN = ("odradek.topic", "odradek.partition", "odradek.position")
_ATTEMPTS, _DUE = "odradek.attempts", "odradek.due"
_OURS = frozenset({*_ORIGIN, "odradek.error_type", "odradek.error", _ATTEMPTS, _DUE})


class FailedRecord(NamedTuple):
    """A record that was not processed.

    Attributes:
        record: As it was read.
        error: The latest.
        attempts: How often a handler was called with it, under this topic and earlier ones.
        is_retried: True if it was read from a retry topic: then it says itself where it was at first.
    """

    record: Record
    error: Exception
    attempts: int
    is_retried: bool = False


async def send_dead_letter(producer: Any, topic: str, failure: FailedRecord) -> None:
    """Write a record to another topic, with its key, headers and timestamp, and with headers that say where it comes
    from and why it is there; without what the cluster of that topic cannot store. Raises what `Producer.send` raises.

    Args:
        producer: A `Producer`.
        topic: Where to.
        failure: The record, and what has happened to it.
    """
    record, headers = failure.record, _headers(failure)
    for kept, timestamp in ((headers, record.timestamp), ((), record.timestamp)):  # headers came later, with 0.11
        with suppress(Unsupported):
            await producer.send(topic, record.value, key=record.key, headers=kept, timestamp=timestamp)
            return
    await producer.send(topic, record.value, key=record.key)


async def send_to_retry(producer: Any, topic: str, failure: FailedRecord, due_ms: int) -> None:
    """Write a record to a retry topic, as `send_dead_letter` does, from which it is not to be handled before a time.

    Args:
        producer: A `Producer`.
        topic: Where to.
        failure: The record, and what has happened to it.
        due_ms: Milliseconds since the epoch.

    Raises:
        Unsupported: Its cluster has no headers (before 0.11), and could not keep the time.
        OdradekError: What `Producer.send` raises.
    """
    record, headers = failure.record, (*_headers(failure), (_DUE, b"%d" % due_ms))
    await producer.send(topic, record.value, key=record.key, headers=headers, timestamp=record.timestamp)


def due_at(record: Record) -> int:
    """Return when a record of a retry topic is due (milliseconds since the epoch); 0: now, also if it does not say."""
    return _number(record.headers, _DUE)


def failed_attempts(record: Record) -> int:
    """Return how often a handler was called with a record of a retry topic before it was written there."""
    return _number(record.headers, _ATTEMPTS)


def _number(headers: Headers, name: str) -> int:
    text = next((value for key, value in reversed(headers) if key == name and value is not None), b"")
    return int(text) if text.isdigit() and len(text) < 20 else 0


def _headers(failure: FailedRecord) -> tuple[tuple[str, bytes | None], ...]:
    record, error = failure.record, failure.error
    position = (record.topic.encode(), b"%d" % record.partition.partition, b"%d" % record.position)
    origin: dict[str, bytes | None] = dict(zip(_ORIGIN, position, strict=True))
    kept = list(record.headers)
    if failure.is_retried:
        origin |= {name: value for name, value in kept if name in _ORIGIN}
        kept = [(name, value) for name, value in kept if name not in _OURS]
    return (
        *kept,
        *origin.items(),
        ("odradek.error_type", type(error).__qualname__.encode(errors="replace")),
        ("odradek.error", str(error)[:MAX_ERROR_CHARS].encode(errors="replace")),
        (_ATTEMPTS, b"%d" % failure.attempts),
    )
