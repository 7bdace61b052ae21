"""The producer: senders by `send`, `send_many` and `put`, whose every record has a name and an outcome."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterable
from itertools import count

import odradek as od
from odradek.client.options import Compression

from .journal import CONFIRMED, NOT_WRITTEN, REPEATED, UNKNOWN, Journal

__all__ = ["produce", "record_name", "record_value"]

PADDING = b"." * 80
TUNING = od.Tuning(request_timeout=5.0)
DELIVER_S = 60.0
BATCH = 50

Send = Callable[["Sender", od.Producer], Awaitable[None]]


def record_value(sender: int, number: int) -> bytes:
    """Return the value of a record."""
    return b"%d|%d|%b" % (sender, number, PADDING)


def record_name(value: bytes) -> tuple[int, int]:
    """Return the sender and the number of a record with this value."""
    sender, number, _ = value.split(b"|")
    return int(sender), int(number)


class Sender:
    """One sender: its records have rising numbers. One of which nothing is written down has an unknown outcome."""

    def __init__(self, journal: Journal, topic: str, number: int, pause_s: float) -> None:
        self.topic, self.number, self.pause_s = topic, number, pause_s
        self._journal, self._next = journal, 0

    def values(self, size: int) -> list[bytes]:
        """Return the values of the next records."""
        self._next += size
        return [record_value(self.number, n) for n in range(self._next - size, self._next)]

    def outcome(self, value: bytes, outcome: int) -> None:
        self._journal.write("sent", self.number, record_name(value)[1], 1, outcome)

    def outcomes(self, values: list[bytes], failed: Iterable[od.Failed], repeated: bool) -> None:
        """Note the outcome of each: those that failed, and the runs between them that did not."""
        errors = {each.record.value: each.error for each in failed}
        first, confirmed = record_name(values[0])[1], REPEATED if repeated else CONFIRMED
        if not errors:
            self._journal.write("sent", self.number, first, len(values), confirmed)
            return
        for value in values:
            self.outcome(value, failure(errors[value]) if value in errors else confirmed)


def failure(error: od.OdradekError) -> int:
    return NOT_WRITTEN if isinstance(error, od.NotWritten) else UNKNOWN


async def by_send(sender: Sender, out: od.Producer) -> None:
    """Send one record."""
    (value,) = sender.values(1)
    try:
        ack = await out.send(sender.topic, value, key=b"%d" % sender.number)
    except od.DeliveryError as error:
        sender.outcome(value, failure(error))
    else:
        sender.outcome(value, REPEATED if ack.repeated else CONFIRMED)


async def by_send_many(sender: Sender, out: od.Producer) -> None:
    """Send a batch to partitions that the client chooses."""
    values = sender.values(BATCH)
    acks = await out.send_many(sender.topic, values)
    sender.outcomes(values, acks.failed, any(ack.repeated for ack in acks.acks))


async def by_put(sender: Sender, out: od.Producer) -> None:
    """Put a batch, with many requests under way at a time, and wait until each record has an outcome."""
    retries, values = out.statistics().retries, sender.values(BATCH)
    try:
        for value in values:
            await out.put(sender.topic, value, key=value)
            await asyncio.sleep(0)
    finally:
        await out.flush()
        failed = out.failures.take()
    sender.outcomes(values, failed, out.statistics().retries > retries)


async def _send(sender: Sender, out: od.Producer, send: Send, stop: asyncio.Event) -> None:
    while not stop.is_set():
        await send(sender, out)
        await asyncio.sleep(sender.pause_s)


async def _keep_sending(
    journal: Journal,
    cluster: od.Cluster,
    senders: list[Sender],
    send: Send,
    compression: Compression,
    stop: asyncio.Event,
) -> None:
    """Send by a producer, and by another one should it end."""
    while not stop.is_set():
        try:
            async with (
                cluster.producer(compression=compression, deliver_within=DELIVER_S, exit_within=DELIVER_S) as out,
                asyncio.TaskGroup() as tasks,
            ):
                for sender in senders:
                    tasks.create_task(_send(sender, out, send, stop))
        except* od.OdradekError as group:
            for error in group.exceptions:
                journal.write("ended", repr(error))
            await asyncio.sleep(0.5)


async def _produce(journal: Journal, bootstrap: str, topic: str, rate: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    number = count(100 * os.getpid())  # so that a producer that is started again has senders of its own
    ways: list[tuple[Send, Compression, int, int]] = [
        (by_send, "none", 12, 1),
        (by_send_many, "gzip", 2, BATCH),
        (by_put, "lz4", 1, BATCH),
    ]
    async with od.connect(f"kafka://{bootstrap}", tuning=TUNING) as cluster, asyncio.TaskGroup() as tasks:
        for send, compression, size, records in ways:
            pause_s = size * records / (rate / len(ways))
            senders = [Sender(journal, topic, next(number), pause_s) for _ in range(size)]
            tasks.create_task(_keep_sending(journal, cluster, senders, send, compression, stop))


def produce(journal: Journal, bootstrap: str, topic: str, rate: int) -> None:
    """Send about so many records a second until SIGTERM, then wait for the outcomes."""
    asyncio.run(_produce(journal, bootstrap, topic, rate))
