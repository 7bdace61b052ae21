"""Fetch of a log's bytes as they are."""

from __future__ import annotations

from odradek.core.interfaces import BrokerClient, PartitionFetch
from odradek.errors import CorruptMessage, OdradekError
from odradek.types import Columns, Position, TopicPartition

__all__ = ["read_raw"]


async def read_raw(api: BrokerClient, partition: TopicPartition, start: int, stop: int) -> bytes:
    """Return the bytes [start, stop) of a log, or as many of them as one response has; none at the end of the log. A
    0.7 broker answers from any byte, so no message need begin at `start`.

    Raises:
        BrokerError: The log does not have this position.
        TransportError, DeadlineError, RemoteProtocolError: As for `BrokerClient.fetch`.
    """
    raw = _Raw(partition, start)
    fetch = PartitionFetch(raw, stop - start)
    await api.fetch([fetch])
    if fetch.error is not None:
        raise fetch.error
    return bytes(raw.data[: stop - start])


class _Raw:
    """A `core.interfaces.LogDecoder` that keeps the bytes it is fed, and for which every byte is a boundary."""

    error: OdradekError | None = None
    deferred_bytes = 0
    skipped = 0
    source: object = None

    def __init__(self, partition: TopicPartition, position: int) -> None:
        self.partition = partition
        self.data = bytearray()
        self._start = position

    @property
    def position(self) -> Position:
        return Position(self._start + len(self.data))

    @property
    def fetch_position(self) -> Position:
        return self.position

    @property
    def pending_bytes(self) -> int:
        return len(self.data)

    def feed(self, data: memoryview) -> None:
        self.data += data

    def decompress_deferred(self) -> None: ...

    def take(self) -> Columns:
        return Columns([], [], [])

    def take_reports(self) -> list[CorruptMessage]:
        return []

    def reset(self, position: Position) -> None:
        self.data.clear()
        self._start = position
