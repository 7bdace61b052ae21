"""Counts of what was committed, sent to a topic: for whoever compares them with what was produced.

They are sent when a flow is done, from the ledger, and how far that came is put down afterwards: after a run that is
killed in between, the next one sends them again. A count that is named twice has the same flow and batch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import anyio

import odradek as od
from odradek.errors import ConfigError
from odradek.pipeline.config import SourceConfig
from odradek.pipeline.ledger import LedgerEntry

__all__ = ["Auditor"]


class Auditor:
    """Sends the counts of one flow.

    Args:
        source: The cluster.
        topic: Where they go.
        mark: The file that says how far they were sent.

    Raises:
        ConfigError: There is no cluster.
    """

    def __init__(self, source: SourceConfig, topic: str, mark: Path) -> None:
        if source.logs is not None:
            raise ConfigError(f'audit.topic = "{topic}": log directories cannot be written to; use a cluster')
        self._url = f"kafka07+zk://{source.zookeeper}" if source.zookeeper else f"kafka07://{source.brokers}"
        self._topic, self._mark = topic, mark

    def send(self, entries: Sequence[LedgerEntry]) -> None:
        """Send what of these entries was not sent yet.

        Raises:
            OdradekError: It did not arrive; the next call tries again.
        """
        sent = self._sent()
        waiting = [entry for entry in entries if entry.kind == "append" and entry.batch > sent]
        if waiting:
            anyio.run(self._send, [_message(entry) for entry in waiting])
            scratch = self._mark.with_name(f".{self._mark.name}.tmp")
            scratch.write_text(str(waiting[-1].batch))
            scratch.replace(self._mark)

    def _sent(self) -> int:
        """The newest batch whose counts were sent."""
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
