"""Audit: sends counts of committed records to a topic, to compare them with what was produced.

Counts are sent from the ledger when a flow is done, and progress is recorded afterwards: if a run is killed in between,
the next one sends them again. Duplicates have the same flow and batch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import anyio

import odradek as od
from odradek.errors import ConfigError
from odradek.io.drivers import brokers_url, zookeeper_url
from odradek.pipeline.config import SourceConfig
from odradek.pipeline.ledger import LedgerEntry

__all__ = ["Auditor"]


class Auditor:
    """Sends the counts of one flow.

    Args:
        source: The cluster.
        topic: The topic for the counts.
        mark: The file with the number of the last batch that was sent.

    Raises:
        ConfigError: The source is not a cluster.
    """

    def __init__(self, source: SourceConfig, topic: str, mark: Path) -> None:
        if source.logs is not None:
            raise ConfigError(f'audit.topic = "{topic}": log directories cannot be written to; use a cluster')
        url = zookeeper_url(source.zookeeper) if source.zookeeper else brokers_url(source.brokers or "")
        self._url = source.kafka or url
        self._topic, self._mark = topic, mark

    def send(self, entries: Sequence[LedgerEntry]) -> None:
        """Send the counts of entries that were not sent yet.

        Raises:
            OdradekError: Sending failed; the next call tries again.
        """
        sent = self._sent()
        waiting = [entry for entry in entries if entry.kind == "append" and entry.batch > sent]
        if waiting:
            anyio.run(self._send, [_message(entry) for entry in waiting])
            scratch = self._mark.with_name(f".{self._mark.name}.tmp")
            scratch.write_text(str(waiting[-1].batch))
            scratch.replace(self._mark)

    def _sent(self) -> int:
        """Return the number of the newest batch whose counts were sent; -1 if there is none."""
        try:
            return int(self._mark.read_text("utf-8"))
        except FileNotFoundError:
            return -1
        except ValueError as error:
            raise ConfigError(
                f"{self._mark}: not the number of a batch; remove the file to send everything again"
            ) from error

    async def _send(self, messages: list[bytes]) -> None:
        async with od.connect(self._url) as k, k.producer() as out:
            await out.send_many(self._topic, messages)


def _message(entry: LedgerEntry) -> bytes:
    return json.dumps(
        {"flow": entry.flow, "batch": entry.batch, "run": entry.run, "counts": entry.audit}, sort_keys=True
    ).encode()
