"""Reads records of a share group from one broker, and sends it acknowledgements: one request at a time, in a session.

`core.kafka.share_session` decides what is sent. Records are requested only while a caller waits for them, because their
locks run from the moment in which the broker sends them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import random
from typing import Protocol

import anyio

from odradek.core.backoff import Backoff
from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.share_session import ShareAnswer, ShareSession, ShareSessionState
from odradek.errors import BrokerError, OdradekError
from odradek.io.kafka.connection import KafkaConnection
from odradek.io.notifier import Notifier
from odradek.wire.kafka.messages.share_groups import ShareAcknowledgeRequest, ShareFetchRequest

__all__ = ["ShareFetcher", "ShareReceiver"]

log = logging.getLogger("odradek.group")

WARNING_AFTER = 3
"""Failures in a row after which there is a warning: not when a leader has moved, or a broker was restarted."""

EXPIRY_CHECK_S = 1.0
"""Records whose locks have expired are dropped after this time at the latest (s)."""


class ShareReceiver(Protocol):
    """Receives what a fetcher has got."""

    def wants_records(self) -> bool:
        """Return True while a caller waits for records."""
        ...

    def receive(self, fetcher: ShareFetcher, answer: ShareAnswer) -> None:
        """Take records, refused acknowledgements and errors of partitions."""
        ...


class ShareFetcher:
    """Reads from one broker.

    Args:
        connection: To that broker, for nothing else: the broker forgets the session with it.
        session: Decides.
        receiver: Receives the outcome.
        backoff: Between two attempts.
    """

    def __init__(
        self,
        connection: Callable[[], KafkaConnection],
        session: ShareSession,
        receiver: ShareReceiver,
        backoff: Backoff,
    ) -> None:
        self.session, self._connection, self._receiver, self._backoff = session, connection, receiver, backoff
        self.changed = Notifier()
        """To be notified when there may be something to send."""
        self.answered = Notifier()
        """Notified after every response, and at the end of `run`."""
        self.ended = False
        """True after `run`: no acknowledgement is sent any more."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.session!r}>"

    def close(self) -> None:
        """Close the session after the acknowledgements were sent; `run` ends then."""
        self.session.close()
        self.changed.notify()

    async def run(self) -> None:
        """Read and acknowledge until the session is closed. Cancellation: the session is lost with its connection.

        Raises:
            OdradekError: An error that trying again cannot change.
        """
        failures = 0
        try:
            while True:
                version, now = self.changed.version, anyio.current_time()
                if late := self.session.expire(now):
                    self._receive(ShareAnswer(refused=late))
                request = self.session.next_request(now, fetch=self._receiver.wants_records())
                if self.session.state is ShareSessionState.CLOSED:
                    return
                if request is None:
                    await self.changed.wait(version, EXPIRY_CHECK_S)
                    continue
                problem = await self._exchange(request)
                failures = failures + 1 if problem else 0
                if failures == WARNING_AFTER:
                    log.warning("%s; trying again", problem)
                if failures:
                    await anyio.sleep(self._backoff.delay(failures - 1, random()))
        finally:
            self.ended = True
            self.answered.notify()

    async def _exchange(self, request: ShareFetchRequest | ShareAcknowledgeRequest) -> str:
        """Send a request and apply its response. Return the reason to wait before the next one; empty if there is
        none."""
        try:
            if isinstance(request, ShareFetchRequest):
                answer = self.session.fetched(await self._connection().submit(request))
            else:
                answer = self.session.acknowledged(await self._connection().submit(request))
        except OdradekError as error:
            self._receive(self.session.lost(str(error)))
            if not error.retriable:
                raise
            return str(error)
        self._receive(answer)
        refusal: BrokerError | None = None
        if answer.code:
            refusal = self._error(request, answer.code, answer.text)
        elif answer.problems and not answer.acquired:
            problem = answer.problems[0]
            refusal = self._error(request, problem.code, f"{problem.partition} {problem.text}")
        if refusal is not None and not answer.passes:
            raise refusal
        return "" if refusal is None else str(refusal)

    def _error(self, request: ShareFetchRequest | ShareAcknowledgeRequest, code: int, text: str) -> BrokerError:
        what = f"share group {request.group_id}: {self._connection().address}: {request.SPEC.name}"
        return broker_error(code, f"{what} {text}".rstrip())

    def _receive(self, answer: ShareAnswer) -> None:
        self._receiver.receive(self, answer)
        self.answered.notify()
