"""A member of a share group (Kafka 4.1 and later, KIP-932): `core.interfaces.ShareGroup`.

`core.kafka.share_member` keeps it in its group; a `ShareFetcher` for each broker that leads some of its partitions
reads and acknowledges. All of it runs in `run`.
"""

from __future__ import annotations

import logging
import math
from base64 import urlsafe_b64encode
from collections import deque
from dataclasses import replace
from functools import partial
from random import random
from typing import Any
from uuid import uuid4

import anyio
from anyio.abc import TaskGroup

from odradek.arguments import listed
from odradek.core.interfaces import AckType, AcquiredBatch, DecoderOptions, ShareSubscription
from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.group_effects import Assign, Effect, Fail, GroupCoordinator, Lost, ResolveTopics, Send
from odradek.core.kafka.member_states import MemberSettings
from odradek.core.kafka.share_member import ShareMember
from odradek.core.kafka.share_session import (
    Acquisition,
    PartitionProblem,
    RefusedAcknowledgements,
    ShareAnswer,
    ShareLimits,
    ShareSession,
)
from odradek.core.missing_partitions import BETWEEN_READS_S, any_missing
from odradek.errors import Closed, GroupError, OdradekError, Unsupported
from odradek.io.kafka.group_topics import GroupTopics
from odradek.io.kafka.offsets import CoordinatorAccess
from odradek.io.kafka.share_fetcher import ShareFetcher
from odradek.io.notifier import Notifier
from odradek.io.retry import retry
from odradek.types import Broker, TopicPartition
from odradek.wire.kafka.messages.share_groups import ShareFetchRequest
from odradek.wire.kafka.schema import Response

__all__ = ["KafkaShareGroup"]

log = logging.getLogger("odradek.group")

LEAVE_S = 5.0
"""Time that a member whose fetcher has failed has for leaving (s)."""

NOT_ACQUIRED = "their locks had expired, or the session with the broker was lost"
"""The reason why acknowledgements that were not sent do not count."""


class KafkaShareGroup:
    """One member of one share group.

    Args:
        access: The way to the coordinator and the brokers.
        topics: The topics of the group.
        subscription: The group, and limits.
        settings: Group and rack.
        number: Tells members of one cluster apart: each has connections of its own.
    """

    def __init__(
        self,
        access: CoordinatorAccess,
        topics: GroupTopics,
        subscription: ShareSubscription,
        settings: MemberSettings,
        number: int,
    ) -> None:
        self._access, self._topics, self._subscription = access, topics, subscription
        self._purpose = f"share group {subscription.group} member {number}"
        self._member = ShareMember(settings, _new_member_id(), subscription.topics)
        self._fetchers: dict[Broker, ShareFetcher] = {}
        self._ready: deque[AcquiredBatch | OdradekError] = deque()
        self._refused: dict[TopicPartition, RefusedAcknowledgements] = {}
        self._waiting = 0  # callers of `next_batch`
        self._reported = Notifier()  # the member may have something to do
        self._changed = Notifier()  # records, an assignment, or the end
        self._leaves = self._ended = self._started = False
        self._joined = False
        self._is_stale = self._refreshing = False  # the metadata
        self._tasks: TaskGroup | None = None
        self._error: Exception | None = None
        self._failures = 0
        self._coordinator: Broker | None = None
        self.problem = ""
        """The last error, until a request succeeds; empty while nothing is wrong."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._member!r}>"

    @property
    def member_id(self) -> str:
        return self._member.member_id

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions it reads now. Other members may read them, too."""
        return self._member.owned

    @property
    def has_joined(self) -> bool:
        """True once the group has given it an assignment, which may be empty."""
        return self._joined

    # ---- calls ----

    async def run(self) -> None:
        """Join, read and acknowledge until `leave` has ended (see `ShareGroup`)."""
        self._started = True
        try:
            if not self._access.versions().has_share_groups:
                raise Unsupported("a share group", "Kafka 4.1, and share.version 1")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._guard, self._follow_leaders, tasks)
                await self._guard(self._run_member, tasks)
                if self._error is not None:
                    with anyio.move_on_after(LEAVE_S):
                        await self._guard(self._leave_failed, tasks)
                tasks.cancel_scope.cancel()
            if self._error is not None:
                raise self._error
        except Exception as error:
            self._error = self._error or error
            raise
        finally:
            self._ended = True
            self._disconnect()
            self._changed.notify()

    async def wait_until_joined(self) -> None:
        """Wait until `has_joined` (see `ShareGroup`)."""
        while not self._joined:
            version = self._changed.version
            self._check()
            await self._changed.wait(version)

    async def next_batch(self) -> AcquiredBatch:
        """Wait for records, and return them (see `ShareGroup`)."""
        self._waiting += 1
        try:
            while True:
                version = self._changed.version
                if self._ready:
                    ready = self._ready.popleft()
                    if isinstance(ready, OdradekError):
                        raise ready
                    return ready
                self._check()
                self._wake_fetchers()
                await self._changed.wait(version)
        finally:
            self._waiting -= 1

    async def flush(self) -> None:
        """Wait until every acknowledgement was answered (see `ShareGroup`)."""
        for fetcher in list(self._fetchers.values()):
            while fetcher.session.has_unanswered and not fetcher.ended:
                version = fetcher.answered.version
                fetcher.changed.notify()
                await fetcher.answered.wait(version)
        refused, self._refused = self._refused, {}
        if refused:
            raise GroupError(_describe_refused(self._subscription.group, refused))
        if self._error is not None:
            raise self._error

    async def leave(self) -> None:
        """Send the acknowledgements, release everything else, and leave the group (see `ShareGroup`)."""
        self._ready.clear()
        self._leaves = True
        if not self._started:
            return
        self._close_fetchers()
        self._reported.notify()
        while not self._ended:
            await self._changed.wait(self._changed.version)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._ended or self._leaves:
            raise Closed(f"{self!r} has left its group")

    # ---- ShareReceiver: what the fetchers have got ----

    def wants_records(self) -> bool:
        """Return True while a caller waits for records that are not there."""
        return self._waiting > 0 and not self._ready and not self._leaves

    def receive(self, fetcher: ShareFetcher, answer: ShareAnswer) -> None:
        """Take records, refused acknowledgements and errors of partitions."""
        for acquired in answer.acquired:
            self._take(fetcher, acquired)
        for refused in answer.refused:
            self._add_refused(refused)
        for problem in answer.problems:
            self._report(problem)
        if answer.code or any(problem.passes for problem in answer.problems):
            self._refresh_soon()
        self._changed.notify()

    def _add_refused(self, refused: RefusedAcknowledgements) -> None:
        before = self._refused.get(refused.partition)
        if before is None or before.why != refused.why:
            log.warning("%s", _describe_refused(self._subscription.group, {refused.partition: refused}))
        count = refused.count + (0 if before is None else before.count)
        self._refused[refused.partition] = replace(refused, count=count)

    def _take(self, fetcher: ShareFetcher, acquired: Acquisition) -> None:
        rows, acknowledged = acquired.rows, set[int]()
        if len(rows.columns):

            def acknowledge(position: int, kind: AckType) -> bool:
                if kind is AckType.RENEW and not fetcher.session.has_renewal:
                    raise Unsupported("renewing the lock of a record", "Kafka 4.2")
                counts = fetcher.session.acknowledge(acquired.key, position, kind, acquired.number)
                if not counts and position not in acknowledged:
                    self._add_refused(RefusedAcknowledgements(acquired.partition, 1, NOT_ACQUIRED))
                if not counts or kind is not AckType.RENEW:
                    acknowledged.add(position)
                fetcher.changed.notify()
                return counts

            self._ready.append(AcquiredBatch(acquired.partition, rows.columns, rows.delivery_counts, acknowledge))
        if rows.error is not None:
            self._ready.append(rows.error)

    def _report(self, problem: PartitionProblem) -> None:
        """Take the new leader that an error which passes may name; hand over any other error."""
        error = broker_error(
            problem.code, f"share group {self._subscription.group}: {problem.partition} {problem.text}".rstrip()
        )
        self.problem = str(error)
        if not problem.passes:
            self._ready.append(error)
            return
        leader = problem.leader
        if leader.leader_id >= 0:
            self._access.metadata.leader_changed(problem.partition, leader.leader_id, leader.leader_epoch, ())

    def _refresh_soon(self) -> None:
        """Read the metadata again, in the background: a partition has another leader, or a topic was deleted."""
        self._is_stale = True
        if self._tasks is not None and not self._refreshing:
            self._refreshing = True
            self._tasks.start_soon(self._guard, self._refresh)

    async def _refresh(self) -> None:
        try:
            while self._is_stale:
                self._is_stale = False
                await retry(self._access.metadata.refresh, self._access.backoff)
                if self._lacks_partitions():
                    self._is_stale = True
                    await anyio.sleep(BETWEEN_READS_S)
        finally:
            self._refreshing = False

    def _lacks_partitions(self) -> bool:
        """Return True if the metadata do not have a partition of this member."""
        return any_missing(self._member.owned, self._topics.table)

    # ---- the member ----

    async def _run_member(self, tasks: TaskGroup) -> None:
        """Do what the member decides, until it has left or failed."""
        self._tasks = tasks
        for topic in sorted(self._subscription.topics):
            await retry(partial(self._topics.find, (topic,)), self._access.backoff)
        await self._follow_member(tasks)

    async def _leave_failed(self, tasks: TaskGroup) -> None:
        """Leave the group after an error of a fetcher, for example: the coordinator would keep partitions for this
        member until its session has timed out. The other fetchers send their acknowledgements."""
        self._leaves = True
        self._close_fetchers()
        if not (self._member.has_ended or self._member.is_leaving):
            self._member.leave()
        await self._follow_member(tasks, failed=True)
        while self._fetchers:
            await self._reported.wait(self._reported.version)

    def _close_fetchers(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.close()

    async def _follow_member(self, tasks: TaskGroup, *, failed: bool = False) -> None:
        while True:
            version, now = self._reported.version, anyio.current_time()
            if self._leaves and not self._member.has_ended and not self._member.is_leaving and self._is_closed():
                self._member.leave()
            for effect in self._member.poll(now):
                self._begin(effect, tasks)
            if self._member.has_ended or (self._error is not None and not failed):
                return
            wake_at = self._member.tick(now)
            await self._reported.wait(version, math.inf if wake_at is None else max(0.0, wake_at - now))

    def _is_closed(self) -> bool:
        """Return True if the last acknowledgements were answered: the member leaves after that."""
        return not self._fetchers

    def _begin(self, effect: Effect, tasks: TaskGroup) -> None:
        match effect:
            case Send():
                tasks.start_soon(self._guard, self._send, effect)
            case ResolveTopics():
                tasks.start_soon(self._guard, self._resolve, effect)
            case Assign():
                self._joined = True
                log.info("%s reads %d partitions", self._purpose, len(effect.partitions))
                self._changed.notify()
            case Fail():
                raise effect.error
            case Lost():  # `Fail` follows
                pass
            case _:
                raise TypeError(f"{effect!r} is no effect of a share group")

    async def _guard(self, call: Any, *args: Any) -> None:
        """Call; an error ends this member alone, and is raised from its calls."""
        try:
            await call(*args)
        except Exception as error:
            self._error = self._error or error
            self._reported.notify()
            self._changed.notify()

    async def _send(self, send: Send) -> None:
        delay = self._access.backoff.delay(self._failures, random())
        try:
            response: Response = await self._request(send)
        except OdradekError as error:
            self._failures += 1
            self._member.connection_lost(anyio.current_time(), delay)
            if not error.retriable:
                raise
            self.problem = str(error)
        else:
            refused = getattr(response, "error_code", 0)
            self._failures = self._failures + 1 if refused else 0
            self.problem = (refused and getattr(response, "error_message", None)) or ""
            self._member.receive(response, anyio.current_time(), delay)
        finally:
            self._reported.notify()

    async def _request(self, send: Send) -> Response:
        if send.node is None:
            response: Response = await self._access.ask(type(send.request), lambda versions: send.request)
            return response
        broker = _broker(send.node)
        if self._coordinator not in (None, broker):
            self._disconnect()
        self._coordinator = broker
        response = await self._access.connections.get(broker, f"{self._purpose}, heartbeats").submit(send.request)
        return response  # noqa: RET504 - typed by the assignment: `Send.request` is of any kind

    def _disconnect(self) -> None:
        if self._coordinator is not None:
            self._access.connections.close(self._coordinator, f"{self._purpose}, heartbeats")

    async def _resolve(self, resolve: ResolveTopics) -> None:
        names = await retry(partial(self._topics.names, resolve.topic_ids), self._access.backoff)
        self._member.resolved(names)
        self._reported.notify()

    # ---- leaders ----

    async def _follow_leaders(self, tasks: TaskGroup) -> None:
        """Have each partition read from its leader, until this is cancelled."""
        while True:
            version, table = self._changed.version, self._topics.table
            if not self._leaves:
                self._distribute(tasks)
            async with anyio.create_task_group() as waits:
                waits.start_soon(self._end_after, waits.cancel_scope, self._topics.wait_for_newer, table.version)
                waits.start_soon(self._end_after, waits.cancel_scope, self._wait_for_assignment, version)

    async def _end_after(self, scope: anyio.CancelScope, wait: Any, version: int) -> None:
        await wait(version)
        scope.cancel()

    async def _wait_for_assignment(self, version: int) -> None:
        owned, ids = self._member.owned, self._member.topic_ids
        while (self._member.owned, self._member.topic_ids) == (owned, ids):
            await self._changed.wait(version)
            version = self._changed.version

    def _distribute(self, tasks: TaskGroup) -> None:
        """Tell each fetcher its partitions, and start those that are missing."""
        if self._lacks_partitions():
            self._refresh_soon()
        table, wanted = self._topics.table, dict[Broker, dict[TopicPartition, bytes]]()
        for partition in self._member.owned:
            topic_id = self._member.topic_ids[partition.topic]
            # A topic that was deleted is assigned until a later heartbeat. Brokers refuse the whole request with it.
            leader = table.leader(partition)
            if leader is not None and topic_id not in table.state.topics[partition.topic].former_ids:
                wanted.setdefault(leader, {})[partition] = topic_id
        for broker in wanted.keys() - self._fetchers.keys():
            self._fetchers[broker] = fetcher = self._new_fetcher(broker)
            tasks.start_soon(self._guard, self._run_fetcher, broker, fetcher)
        for broker, fetcher in self._fetchers.items():
            fetcher.session.wanted = wanted.get(broker, {})
            fetcher.changed.notify()

    def _new_fetcher(self, broker: Broker) -> ShareFetcher:
        wanted = self._subscription
        limits = ShareLimits(max_bytes=wanted.max_bytes, max_records=wanted.max_records, exact=wanted.exact)
        options = DecoderOptions(max_message_bytes=wanted.max_message_bytes)
        renewal = self._access.versions().has(ShareFetchRequest, 2)
        session = ShareSession(wanted.group, self.member_id, limits, options, renewal)
        return ShareFetcher(
            partial(self._access.connections.get, broker, self._purpose), session, self, self._access.backoff
        )

    async def _run_fetcher(self, broker: Broker, fetcher: ShareFetcher) -> None:
        try:
            await fetcher.run()
        finally:
            self._fetchers.pop(broker, None)
            self._access.connections.close(broker, self._purpose)
            self._reported.notify()

    def _wake_fetchers(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.changed.notify()


def _broker(node: GroupCoordinator) -> Broker:
    return Broker(node.node_id, node.host, node.port)


def _new_member_id() -> str:
    """Return a random UUID as Kafka writes it: base64 without padding; tools mistake a leading dash for an option."""
    while (text := urlsafe_b64encode(uuid4().bytes).rstrip(b"=").decode()).startswith("-"):
        pass
    return text


def _describe_refused(group: str, refused: dict[TopicPartition, RefusedAcknowledgements]) -> str:
    named = [f"{each.count} of {each.partition} ({each.why})" for each in refused.values()]
    return f"share group {group}: acknowledgements do not count: {listed(named)}; these records are delivered again"
