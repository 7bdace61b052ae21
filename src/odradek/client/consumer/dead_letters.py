"""Dead letters: the records that `Consumer.each` writes to another topic because no handler could process them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from odradek.errors import Unsupported
from odradek.types import Record

__all__ = ["send_dead_letter"]

MAX_ERROR_CHARS = 1000


async def send_dead_letter(producer: Any, topic: str, record: Record, error: Exception) -> None:
    """Write a record to another topic, with its key, headers and timestamp, and with headers that say where it comes
    from and why it is there; without what the cluster of that topic cannot store.

    Args:
        producer: A `Producer`.
        topic: Where to.
        record: As it was read.
        error: That of its handler.

    Raises what `Producer.send` raises.
    """
    headers = (*record.headers, *_origin(record, error))
    for kept, timestamp in ((headers, record.timestamp), ((), record.timestamp)):  # headers came later, with 0.11
        with suppress(Unsupported):
            await producer.send(topic, record.value, key=record.key, headers=kept, timestamp=timestamp)
            return
    await producer.send(topic, record.value, key=record.key)


def _origin(record: Record, error: Exception) -> tuple[tuple[str, bytes], ...]:
    why = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]
    return (
        ("odradek.topic", record.topic.encode()),
        ("odradek.partition", b"%d" % record.partition.partition),
        ("odradek.position", b"%d" % record.position),
        ("odradek.error", why.encode(errors="replace")),
    )
