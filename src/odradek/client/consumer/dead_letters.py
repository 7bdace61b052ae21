"""Records that no handler of `Consumer.each` could process, on their way to a retry topic or to the dead letters."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from odradek.errors import BrokerError, MessageTooLarge, OdradekError, Rejected, Unsupported
from odradek.types import Headers, Record

__all__ = ["FailedRecord", "due_at", "failed_attempts", "send_dead_letter", "send_to_retry"]

MAX_ERROR_CHARS = 1000

_ORIGIN = ("odradek.topic", "odradek.partition", "odradek.position")
_ATTEMPTS, _DUE = "odradek.attempts", "odradek.due"
_OURS = frozenset({*_ORIGIN, "odradek.error_type", "odradek.error", _ATTEMPTS, _DUE})
_TOO_LARGE = ("MESSAGE_TOO_LARGE", "RECORD_LIST_TOO_LARGE")
_OLDER_FORMAT = "UNSUPPORTED_FOR_MESSAGE_FORMAT"
"""A topic of 0.11 to 2.8 whose `message.format.version` is older: it stores no headers."""

_OUT_OF_RANGE = "INVALID_TIMESTAMP"
"""More than an hour in the future, by default from 4.0 on, or what the topic's configuration says."""

log = logging.getLogger("odradek.each")


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
    from and why it is there; without what that topic, or its cluster, cannot store. Of a record that is too large with
    them, the error's text is left out first, then all headers that were added.

    Args:
        producer: A `Producer`.
        topic: Where to.
        failure: The record, and what has happened to it.

    Raises:
        Rejected: The topic does not take the record, which may be too large as it is.
        OdradekError: What else `Producer.send` raises. Notes of an error say which record it is, and why it was sent.
    """
    record = failure.record
    with _noted(failure, topic):
        if await _send_with_origin(failure, partial(_send, producer, topic, record)):
            return
        where = f"{record.partition}@{record.position}"
        log.warning("too large for %s with headers that say where it was: %s", topic, where)
        await _send(producer, topic, record, _own_headers(failure))


async def send_to_retry(producer: Any, topic: str, failure: FailedRecord, due_ms: int) -> bool:
    """Write a record to a retry topic, as `send_dead_letter` does, from which it is not to be handled before a time.
    Returns False if it is too large for the topic even without the error's text.

    Args:
        producer: A `Producer`.
        topic: Where to.
        failure: The record, and what has happened to it.
        due_ms: Milliseconds since the epoch.

    Raises:
        Unsupported: Its cluster has no headers (before 0.11), and could not keep the time.
        OdradekError: What `Producer.send` raises, with notes as above.
    """
    record, due = failure.record, (_DUE, b"%d" % due_ms)

    async def send(headers: Headers) -> None:
        await _send_with_time(producer, topic, record, (*headers, due))

    with _noted(failure, topic):
        return await _send_with_origin(failure, send)


async def _send_with_origin(failure: FailedRecord, send: Callable[[Headers], Awaitable[None]]) -> bool:
    """Send a record with the headers that say where it comes from and why, if need be without the error's text. Returns
    False if it is too large even so."""
    own = _own_headers(failure)
    for text in (_text(failure.error), ""):
        if await _fits(send((*own, *_added_headers(failure, text)))):
            return True
    return False


@contextmanager
def _noted(failure: FailedRecord, topic: str) -> Iterator[None]:
    """Add to an error of the block which record was to be sent, and the error because of which it was."""
    try:
        yield
    except OdradekError as error:
        record, cause = failure.record, f"{type(failure.error).__qualname__}: {_text(failure.error)}"
        error.add_note(f"sending {record.partition}@{record.position} to {topic}, because of {cause}")
        raise


async def _fits(sent: Awaitable[None]) -> bool:
    """Wait for a record to be written. Returns False if it is too large."""
    try:
        await sent
    except Rejected as error:
        if isinstance(error.__cause__, MessageTooLarge) or _refusal(error) in _TOO_LARGE:
            return False
        raise
    return True


def _refusal(error: Rejected) -> str:
    """Return the name of the broker's error, if that is why."""
    cause = error.__cause__
    return cause.name if isinstance(cause, BrokerError) else ""


async def _send(producer: Any, topic: str, record: Record, headers: Headers) -> None:
    """Write a record with these headers, without what the topic cannot store."""
    for kept in (headers, ()):  # headers came later than timestamps, with 0.11
        try:
            await _send_with_time(producer, topic, record, kept)
            return
        except Unsupported:
            pass
        except Rejected as error:
            if not kept or _refusal(error) != _OLDER_FORMAT:
                raise
    await producer.send(topic, record.value, key=record.key)


async def _send_with_time(producer: Any, topic: str, record: Record, headers: Headers) -> None:
    """Write a record with its timestamp or, if the topic does not take that, with the time of writing."""
    timestamp = record.timestamp
    if timestamp is None or timestamp >= 0:  # brokers store earlier ones of other clients
        try:
            await producer.send(topic, record.value, key=record.key, headers=headers, timestamp=timestamp)
            return
        except Rejected as error:
            if timestamp is None or _refusal(error) != _OUT_OF_RANGE:
                raise
    log.warning("%s does not take the timestamp of %s@%s: %s", topic, record.partition, record.position, timestamp)
    await producer.send(topic, record.value, key=record.key, headers=headers)


def due_at(record: Record) -> int:
    """Return when a record of a retry topic is due (milliseconds since the epoch); 0: now, also if it does not say."""
    return _number(record.headers, _DUE)


def failed_attempts(record: Record) -> int:
    """Return how often a handler was called with a record of a retry topic before it was written there."""
    return _number(record.headers, _ATTEMPTS)


def _number(headers: Headers, name: str) -> int:
    text = next((value for key, value in reversed(headers) if key == name and value is not None), b"")
    return int(text) if text.isdigit() and len(text) < 20 else 0


def _own_headers(failure: FailedRecord) -> Headers:
    """Return the headers that a record had at first."""
    kept = failure.record.headers
    return tuple([header for header in kept if header[0] not in _OURS]) if failure.is_retried else kept


def _added_headers(failure: FailedRecord, text: str) -> Headers:
    """Return the headers that say where a record comes from and why, with this text of its error."""
    record, error = failure.record, failure.error
    position = (record.topic.encode(), b"%d" % record.partition.partition, b"%d" % record.position)
    origin: dict[str, bytes | None] = dict(zip(_ORIGIN, position, strict=True))
    if failure.is_retried:
        origin |= {name: value for name, value in record.headers if name in _ORIGIN}
    return (
        *origin.items(),
        ("odradek.error_type", type(error).__qualname__.encode(errors="replace")),
        ("odradek.error", text.encode(errors="replace")),
        (_ATTEMPTS, b"%d" % failure.attempts),
    )


def _text(error: Exception) -> str:
    try:
        return str(error)[:MAX_ERROR_CHARS]
    except Exception as failure:
        return f"(its text failed: {type(failure).__qualname__})"
