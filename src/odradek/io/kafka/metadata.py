"""The metadata of a cluster: routing tables from Metadata responses (`core.interfaces.ClusterMetadata`).

One request is under way at a time. Topics that are asked for meanwhile go into the next one, so that many callers cost
two requests at most, and every caller gets an answer that is newer than its call.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from random import random, shuffle
from types import TracebackType
from typing import NamedTuple, Self

import anyio
from anyio.abc import TaskGroup

from odradek.core.backoff import Backoff
from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.routing import KafkaRoutingTable
from odradek.core.kafka.routing_snapshot import RoutingSnapshot
from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import Closed, ConfigError, OdradekError, Unreachable
from odradek.io.notifier import Notifier
from odradek.io.retry import retry, staggered
from odradek.types import Broker, TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.common import NodeEndpoint
from odradek.wire.kafka.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)

__all__ = ["NOT_KNOWN_S", "SILENCE_S", "Ask", "KafkaMetadata", "MetadataOptions", "metadata_request"]

log = logging.getLogger("odradek.metadata")

CREATION_CODES = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE)
"""Codes that are answered for a topic while it is created, and for one that does not exist."""

SILENCE_S = 1.0
"""Time without an answer after which the next broker is asked, too."""

NOT_KNOWN_S = 1.0
"""A broker that has just started does not know all topics yet (seen on 0.8.1 and 2.8). It is believed if it says the
same after this time (s): that a topic was deleted or, before 0.8.2, that nothing was committed."""

FORGOTTEN_S = 10.0
"""A topic that does not exist is asked for so long (s) after the last call for it, unless a caller of `wait_for_newer`
needs it."""

MISSING_S = 10.0
"""Longest time between two requests for a topic that does not exist (s). Before, it is a tenth of the time for which it
has been waited for."""

TLS_ATTEMPTS = 3
"""Attempts in a row, when entering the block, that may fail in the TLS handshake at every address: a listener without
TLS closes the connection as one that is about to end does."""

Ask = Callable[[Broker, Callable[[BrokerVersions], MetadataRequest]], Awaitable[MetadataResponse]]
"""Function that sends a Metadata request, made for the versions of the broker. Raises OdradekError."""


class MetadataOptions(NamedTuple):
    """Options of the metadata.

    Args:
        bootstrap_timeout_s: How long entering the block may take, over all addresses (s).
        max_age_s: When everything is read again although nothing has shown that it is stale (s).
        creation_s: How long a topic that is being created is waited for (s).
        backoff: Between reads after a failure, and while a topic has no leader.
    """

    bootstrap_timeout_s: float = 10.0
    max_age_s: float = 300.0
    creation_s: float = 1.0
    backoff: Backoff = Backoff()


class _Read:
    """One request to come: what it asks for, and those who wait for it."""

    def __init__(self) -> None:
        self.create: set[str] = set()
        self.named: set[str] = set()
        self.wanted = False
        self.done = anyio.Event()
        self.error: OdradekError | None = None


class KafkaMetadata:
    """Brokers, topics and leaders, read from any broker.

    Entering the block reads the brokers from the first bootstrap address that answers. Topics are read from their first
    use on: again after `max_age_s`, when an error shows that the table is stale, and while one has no leader. One that
    does not exist is forgotten when it is not needed any more. When no known broker answers, the bootstrap addresses
    are asked again (KIP-899).

    Args:
        bootstrap: Some brokers' addresses, in any order.
        ask: Sends requests.
        options: See MetadataOptions.
        on_recreated: Called with topics that were deleted and made again.
    """

    reports_changes = False

    def __init__(
        self,
        bootstrap: Sequence[Broker],
        ask: Ask,
        options: MetadataOptions | None = None,
        on_recreated: Callable[[Collection[str]], None] = lambda topics: None,
    ) -> None:
        if not bootstrap:
            raise ConfigError("the URL of a cluster needs at least one broker")
        self._on_recreated = on_recreated
        self._bootstrap, self._ask, self._options = list(bootstrap), ask, options or MetadataOptions()
        shuffle(self._bootstrap)
        self._table = RoutingSnapshot()
        self._topics: dict[str, float] = {}  # those that are read; when one that is missing is forgotten
        self._needed: list[Callable[[], Collection[str]]] = []
        self._all_topics = False
        self._changed, self._asked = Notifier(), Notifier()
        self._next = _Read()
        self._failures = 0
        self._problems: set[str] = set()  # topics that the last read has left with a problem
        self._problem_reads = 0  # in a row since the latest of them has one
        self._problem_since = -math.inf
        self._read_at = -math.inf
        self._closed: Exception | None = None
        self._tasks: TaskGroup | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._table!r}>"

    @property
    def table(self) -> RoutingSnapshot:
        return self._table

    @property
    def read_at(self) -> float:
        """Time of the event loop at which the latest answer was asked for; minus infinity: there was none."""
        return self._read_at

    async def __aenter__(self) -> Self:
        await self._bootstrap_within(self._options.bootstrap_timeout_s)
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._keep_reading)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(Closed("the block of the cluster has ended"))
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()
            await self._tasks.__aexit__(None, None, None)

    # ---- the caller's side -----------------------------------------------------------------------------------

    async def table_for_topic(self, name: str, *, create: bool = False, named: bool = False) -> RoutingSnapshot:
        """Return a table that has looked up `name`. Cancellation: safe.

        Args:
            create: Have brokers create the topic if it does not exist, where they are configured to.
            named: Brokers before 0.11 create every topic that a request names, and so they are asked for all topics,
                which leaves out one that this client may not know of. With `named` they are asked for this one at its
                first use.

        Raises:
            BrokerError: No topic can have this name, or this client may not know of it.
            OdradekError: No broker answered.
        """
        # The table may have it from an answer about all topics, such as the first one of a broker before 0.10. It is
        # used from now on, so that it has to be read again while it has no leader.
        is_new = name not in self._topics
        self._topics[name] = math.inf
        described = self._table.state.topics.get(name)
        if described is not None and described.partitions and not (is_new and self._table.has_problem(name)):
            return self._table
        # Without a time limit: no answer does not mean no topic.
        await self._read([name] if create else (), [name] if named and is_new else ())
        if create:
            with anyio.move_on_after(self._options.creation_s):
                await self._wait_until_created(name)
        described = self._table.state.topics.get(name)
        if described is not None and described.error_code and described.error_code not in CREATION_CODES:
            if is_new:
                self._topics.pop(name, None)  # the next use is the first one, and has the same error
            raise broker_error(described.error_code, f"Metadata of topic {name!r}")
        return self._table

    async def _wait_until_created(self, name: str) -> None:
        for attempt in range(100):
            described = self._table.state.topics.get(name)
            if described is None or described.error_code not in CREATION_CODES:
                return
            await anyio.sleep(self._options.backoff.delay(attempt, random()))
            await self._read([name])

    async def all_topics(self) -> frozenset[str]:
        """Return every topic but Kafka's own; from now on new ones enter the table by themselves.

        Cancellation: safe.
        """
        self._all_topics = True
        return (await self._read()).topics

    async def wait_for_newer(self, version: int, needed: Callable[[], Collection[str]] = frozenset) -> RoutingSnapshot:
        """Wait until `table.version > version`. Raises what ended the reading. Cancellation: safe.

        Args:
            needed: Returns topics that are not to be forgotten meanwhile, although they do not exist.
        """
        self._needed.append(needed)
        try:
            while self._table.version <= version:
                self._check()
                await self._changed.wait(self._changed.version)
        finally:
            self._needed.remove(needed)
        return self._table

    async def refresh(self) -> RoutingSnapshot:
        """Read brokers and all known topics again. Cancellation: safe; the request goes on."""
        return await self._read()

    def leader_changed(
        self, partition: TopicPartition, leader: int, leader_epoch: int, endpoints: Sequence[NodeEndpoint] = ()
    ) -> None:
        """Apply the leader that a response names (KIP-951), if its address is known."""
        state, changed = self._table.state.hint(partition, leader, leader_epoch, endpoints)
        if changed:
            self._update(state)

    # ---- reading ---------------------------------------------------------------------------------------------

    async def _read(self, create: Iterable[str] = (), named: Iterable[str] = ()) -> RoutingSnapshot:
        """Have everything wanted read by a request that begins after this call."""
        self._check()
        read = self._next
        read.create.update(create)
        read.named.update(named)
        read.wanted = True
        self._asked.notify()
        await read.done.wait()
        if read.error is not None:
            raise read.error
        return self._table

    async def _keep_reading(self) -> None:
        try:
            while True:
                version = self._asked.version
                if not self._next.wanted:
                    await self._asked.wait(version, max(0.0, self._due_at() - anyio.current_time()))
                read, self._next = self._next, _Read()
                await self._perform(read)
                if read.error is not None:
                    await anyio.sleep(self._options.backoff.delay(self._failures - 1, random()))
        except Exception as defect:
            self._end(defect)

    async def _perform(self, read: _Read) -> None:
        read.error = Closed("the block of the cluster has ended")  # if it is cancelled
        try:
            await self._read_from_any(read.create, read.named)
            read.error = None
        except OdradekError as error:
            if not self._failures:
                log.warning("no broker answers a Metadata request, trying again: %s", error)
            self._failures += 1
            read.error = error
        finally:
            read.done.set()

    def _due_at(self) -> float:
        """Return when to read although nothing asks for it."""
        problems = list(filter(self._table.has_problem, self._topics))
        if not problems:
            return self._read_at + self._options.max_age_s
        delay_s = self._options.backoff.delay(self._problem_reads, 0.5)
        if all(map(self._table.is_missing, problems)):
            delay_s = max(delay_s, min(MISSING_S, (self._read_at - self._problem_since) / 10))
        return self._read_at + delay_s

    async def _read_from_any(self, create: Collection[str] = (), named: Collection[str] = ()) -> None:
        """Read from the first broker that answers: known ones, then the bootstrap addresses. While one is silent the
        next one is asked, too: a broker that hangs does not cost a whole request time-out."""
        known = list(self._table.brokers.values())
        shuffle(known)
        errors: dict[str, OdradekError] = {}
        answered = False

        async def attempt(broker: Broker) -> bool:
            nonlocal answered
            if broker in known and not self._table.brokers:
                return False  # one of them has asked this client to begin again (KIP-1102)
            try:
                await self._read_from(broker, create, named)
            except OdradekError as error:
                errors.setdefault(broker.address, error)
            else:
                answered = True
            return answered

        await staggered((*known, *self._bootstrap), attempt, SILENCE_S)
        if not answered:
            raise _summary(errors)

    async def _read_from(self, broker: Broker, create: Collection[str], named: Collection[str]) -> None:
        # Brokers create whatever such a request names, and nothing that is one of all topics. So it is one of its own.
        others, asked_at, by_name = self._topics.keys() - create, anyio.current_time(), set(create)
        if self._all_topics or others or not create:
            versions = await self._read_topics(broker, None if self._all_topics else sorted(others), asked_at)
            if versions.creates_named_topics:
                by_name.update(named)
        if by_name:
            await self._read_topics(broker, sorted(by_name), asked_at, create=True)
        self._note_problems()

    async def _read_topics(
        self, broker: Broker, names: Sequence[str] | None, asked_at: float, *, create: bool = False
    ) -> BrokerVersions:
        """Read these topics, or all, and return the versions of the broker."""
        asked, of_broker = names, BrokerVersions({})

        def build(versions: BrokerVersions) -> MetadataRequest:
            nonlocal asked, of_broker
            asked, of_broker = names, versions
            if names and not create and versions.creates_named_topics:
                asked = None
            elif names and create and not versions.lists_all_brokers:  # or the brokers of the others would be gone
                asked = sorted({*names, *filter(self._table.partitions, self._topics)})
            return metadata_request(versions, asked, create)

        response = await self._ask(broker, build)
        if response.error_code not in (0, ErrorCode.REBOOTSTRAP_REQUIRED):
            raise broker_error(response.error_code, f"{broker.address}: Metadata")
        if of_broker.lists_all_brokers and not (response.brokers or response.error_code):  # nor does it know topics
            raise Unreachable("version", broker.address, "the broker does not know any broker yet")
        if asked is None and names is not None:
            asked, response = names, _of_topics(response, names)
        state, changes = self._table.state.apply(response, asked, leader_epochs=of_broker.has_leader_epochs)
        # What the broker says is at least as new as the question. If the event loop was blocked meanwhile, it may be
        # much older than this moment, and `TopicCheck` has to know that.
        self._read_at = asked_at
        if changes.recreated:
            self._on_recreated(changes.recreated)
        self._update(state)
        # The table is empty by now (KIP-1102), so that the addresses of the URL are asked after this error. It passes,
        # also if those addresses still lead to brokers that answer the same.
        if changes.bootstrap_again:
            log.warning("%s asks this client to begin again with the addresses of its URL", broker.address)
            begin_again = broker_error(response.error_code, f"{broker.address}: Metadata")
            begin_again.retriable = True
            raise begin_again
        if self._failures:
            log.warning("%s answers, after %d failed attempts", broker.address, self._failures)
        self._failures = 0
        return of_broker

    def _note_problems(self) -> None:
        """Count reads that leave a topic with a problem, and forget topics that do not exist and that no caller has
        needed for a time."""
        before, self._problems = self._problems, set(filter(self._table.has_problem, self._topics))
        if not self._problems <= before:
            self._problem_reads, self._problem_since = 0, self._read_at
        self._problem_reads += 1
        missing, now = list(filter(self._table.is_missing, self._topics)), anyio.current_time()
        needed = {topic for topics in self._needed for topic in topics()} if missing else ()
        for topic in missing:
            if topic in needed:
                self._topics[topic] = math.inf
            elif self._topics[topic] == math.inf:
                self._topics[topic] = now + FORGOTTEN_S
            elif self._topics[topic] <= now:
                del self._topics[topic]

    async def _bootstrap_within(self, seconds: float) -> None:
        tls_attempts = 0  # in a row

        def passes(error: OdradekError) -> bool:
            nonlocal tls_attempts
            tls_attempts = tls_attempts + 1 if _fails_in_tls(error) else 0
            return error.retriable and tls_attempts < TLS_ATTEMPTS

        addresses = ", ".join(broker.address for broker in self._bootstrap)
        late = Unreachable("tcp", addresses, f"no answer within {seconds:g} s")
        await retry(self._read_from_any, self._options.backoff, passes=passes, limit_s=seconds, late=late)

    def _update(self, state: KafkaRoutingTable) -> None:
        table = self._table.updated(state)
        if table is not self._table:
            self._table = table
            self._changed.notify()

    def _end(self, why: Exception) -> None:
        if self._closed is None:
            self._closed = why
        read, self._next = self._next, _Read()
        read.error = why if isinstance(why, OdradekError) else Closed(f"reading the metadata ended: {why}")
        read.done.set()
        self._changed.notify()

    def _check(self) -> None:
        if self._closed is not None:
            raise self._closed


def metadata_request(versions: BrokerVersions, names: Sequence[str] | None, create: bool) -> MetadataRequest:
    """Return the request for these topics, or for all.

    Args:
        versions: The versions of the broker that is asked.
        names: The topics, or None for all. Before 0.10 no names mean all, too.
        create: Topics may be created by being asked for.
    """
    topics: tuple[MetadataRequestTopic, ...] | None = None
    if names is not None:
        topics = tuple([MetadataRequestTopic(name=name) for name in names])
    elif not versions.has_null_topics:
        topics = ()
    if versions.creates_named_topics:
        return MetadataRequest(topics=topics)
    return MetadataRequest(topics=topics, allow_auto_topic_creation=create)


def _of_topics(response: MetadataResponse, names: Sequence[str]) -> MetadataResponse:
    """Return the answer about these topics that is in one about all."""
    topics, missing = {topic.name: topic for topic in response.topics}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    named = [topics.get(name) or MetadataResponseTopic(name=name, error_code=missing) for name in names]
    return response.__replace__(topics=tuple(named))


def _summary(errors: dict[str, OdradekError]) -> OdradekError:
    """Return one error for those of all brokers: the only one, or a list of them."""
    distinct = list({str(error): error for error in errors.values()}.values())
    final = [error for error in distinct if not error.retriable]
    if len(distinct) == 1 or len(final) == len(distinct):
        return distinct[0]
    last = distinct[-1]
    steps = {error.step if isinstance(error, Unreachable) else "tcp" for error in distinct}
    step = steps.pop() if len(steps) == 1 else "tcp"
    why = "; ".join(f"{address}: {_brief(error)}" for address, error in errors.items())
    summary = Unreachable(step, ", ".join(errors), why)
    summary.hint = last.hint
    summary.__cause__ = last
    return summary


def _fails_in_tls(error: OdradekError) -> bool:
    return isinstance(error, Unreachable) and error.step == "tls"


def _brief(error: OdradekError) -> str:
    return f"{error.step}: {error.why}" if isinstance(error, Unreachable) else error.message()
