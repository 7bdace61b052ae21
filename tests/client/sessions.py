"""Fetch sessions of in-memory brokers, which have none by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from odradek.core.interfaces import LogDecoder, PartitionFetch
from odradek.testing.memory.broker import MemoryBrokerClient

__all__ = ["Sessions"]


class Sessions:
    """Gives every in-memory broker a session for its long polls, as the broker client of Kafka 1.1 and later does.

    Attributes:
        polls: The partitions of each poll in a session, by number.
        granted: False: brokers open no session, and close the one that is open.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.polls: list[list[int]] = []
        self.granted = True
        self._sessions = WeakKeyDictionary[MemoryBrokerClient, Session]()
        self._fetch = MemoryBrokerClient.fetch
        self._in_flight: list[LogDecoder] = []
        sessions = self

        async def fetch(client: MemoryBrokerClient, fetches: Sequence[PartitionFetch], **options: Any) -> None:
            await sessions.fetch(client, fetches, **options)

        monkeypatch.setattr(MemoryBrokerClient, "fetch", fetch)
        monkeypatch.setattr(MemoryBrokerClient, "polls", property(self.of))

    def of(self, client: MemoryBrokerClient) -> Session:
        """Return the session of a client."""
        if (session := self._sessions.get(client)) is None:
            session = self._sessions[client] = Session(self, client)
        return session

    async def fetch(
        self, client: MemoryBrokerClient, fetches: Sequence[PartitionFetch], *, max_wait: float = 0.0, **options: Any
    ) -> None:
        """Fetch as the client does, with each decoder in one fetch at a time."""
        decoders = [fetch.decoder for fetch in fetches]
        assert not any(decoder in self._in_flight for decoder in decoders), "a decoder in two fetches at the same time"
        self._in_flight += decoders
        session = self.of(client)
        session.in_session = session.in_session and not max_wait
        try:
            await self._fetch(client, fetches, max_wait=max_wait, **options)
        finally:
            for decoder in decoders:
                self._in_flight.remove(decoder)
        session.in_session |= max_wait > 0 and self.granted


class Session:
    """Implementation of `core.interfaces.SessionPolls`."""

    def __init__(self, sessions: Sessions, client: MemoryBrokerClient) -> None:
        self.in_session = False
        self._sessions, self._client = sessions, client

    async def poll(
        self, fetches: Sequence[PartitionFetch], *, max_wait: float, max_bytes: int, last: object = None
    ) -> object:
        """Poll: the response names the partitions that have something, or all where there is no session any more. Each
        may bring an equal part of `max_bytes`, or one record."""
        self._sessions.polls.append(sorted([fetch.decoder.partition.partition for fetch in fetches]))
        sizes = [fetch.max_bytes for fetch in fetches]
        for fetch in fetches:
            fetch.max_bytes = min(fetch.max_bytes, max_bytes // len(fetches))
        try:
            await self._sessions.fetch(self._client, fetches, max_wait=max_wait)
        finally:
            for fetch, size in zip(fetches, sizes, strict=True):
                fetch.max_bytes = size
        for fetch in fetches:
            fetch.answered = not self.in_session or fetch.received > 0 or fetch.preferred_replica is not None
        return object()
