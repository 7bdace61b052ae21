"""A service that consumes, transforms and produces in transactions, with the positions of its group in them."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import odradek as od

from .journal import Journal
from .members import PAUSE_S, TUNING

__all__ = ["output_value", "source_of", "transform"]

ATTEMPTS = 3
ABORTS = 0.05
"""Share of transactions that end with an exception of the service's own."""


class _Refused(Exception):
    """The service's own error."""


def output_value(record: od.Record) -> bytes:
    """Return the value of the output of a record."""
    return b"%d|%d" % (record.partition.partition, record.position)


def source_of(value: bytes) -> tuple[int, int]:
    """Return the partition and the position of the record that this is the output of."""
    partition, position = value.split(b"|")
    return int(partition), int(position)


async def _transaction(out: od.Producer, target: str, batch: od.GroupBatch) -> None:
    async with out.transaction() as tx:
        for record in batch:
            await out.put(target, output_value(record), partition=batch.partition.partition)
        if random.random() < ABORTS:
            raise _Refused
        tx.done(batch)


async def _process(journal: Journal, out: od.Producer, target: str, batch: od.GroupBatch) -> None:
    aborted = 0
    while True:
        try:
            await _transaction(out, target, batch)
        except _Refused:
            journal.write("refused", len(batch))
        except od.TransactionAborted as error:
            journal.write("aborted", repr(error))
            aborted += 1
            if aborted == ATTEMPTS:
                raise
        else:
            journal.write("committed", len(batch))
            return


async def _serve(
    journal: Journal, bootstrap: str, source: str, target: str, transactional_id: str, options: dict[str, Any]
) -> None:
    async with (
        od.connect(f"kafka://{bootstrap}", tuning=TUNING) as k,
        k.producer(transactional_id=transactional_id, transaction_timeout=30.0, deliver_within=30.0) as out,
        k.consumer(source, isolation="read_committed", **options) as consumer,
    ):
        async for batch in consumer.batches(max_records=500):
            await _process(journal, out, target, batch)


def transform(
    journal: Journal, bootstrap: str, source: str, target: str, transactional_id: str, options: dict[str, Any]
) -> None:
    """Serve until SIGTERM; after an error, with a new producer and a new member."""

    async def forever() -> None:
        while True:
            try:
                await _serve(journal, bootstrap, source, target, transactional_id, options)
            except od.OdradekError as error:
                journal.write("ended", repr(error))
            await asyncio.sleep(PAUSE_S)

    od.run(forever)
