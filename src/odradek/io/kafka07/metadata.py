"""The metadata of a 0.7 cluster: routing tables from ZooKeeper's watches, or from a list of brokers.

Watches fire once. When one fires, everything that belongs to its root (the brokers, one topic, the list of topics) is
read again with new watches, so that a node that was deleted and created again in between is read with its new data.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Self, TypeVar

import anyio

from odradek.core.kafka07.routing import BrokersChanged, Event, Kafka07RoutingTable, TopicChanged
from odradek.core.kafka07.znodes import BROKERS, TOPICS, broker_id, parse_broker, parse_count, topic_path
from odradek.errors import Closed, ConfigError, LocalProtocolError, OdradekError, Unsupported, ZooKeeperError
from odradek.io.gather import gather, gather_outcomes
from odradek.io.zookeeper import NodeEvent, SessionEvent, SessionState, ZooKeeper
from odradek.types import Broker
from odradek.wire.kafka07.topic_names import check_topic, is_legal_topic

__all__ = ["StaticMetadata", "ZooKeeperMetadata", "broker_list", "check_topic_name"]

log = logging.getLogger("odradek.metadata")

RETRY_S = 1.0
"""Pause after a read that failed while the session is connected: the server is too slow to answer in time (s)."""

R = TypeVar("R")


class _CurrentTable:
    """The current table, and the wait for a newer one."""

    read_at = math.inf  # there are no ids

    def __init__(self) -> None:
        self._table = Kafka07RoutingTable()
        self._failure: Exception | None = None
        self._changed = anyio.Event()

    def __repr__(self) -> str:
        brokers = ",".join(f"{b.id}@{b.address}" for b in self._table.brokers.values())
        return f"<{type(self).__name__} v{self._table.version} brokers={brokers or 'none'}>"

    @property
    def table(self) -> Kafka07RoutingTable:
        return self._table

    async def wait_for_newer(
        self, version: int, needed: Callable[[], Collection[str]] = frozenset
    ) -> Kafka07RoutingTable:
        """Wait until `table.version > version`. Raises what ended the watching. Cancellation: safe."""
        while self._table.version <= version:
            self._check()
            await self._changed.wait()
        return self._table

    def _apply(self, *events: Event) -> None:
        table = self._table.apply(*events)
        if table is not self._table:
            self._table = table
            self._wake()

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


class ZooKeeperMetadata(_CurrentTable):
    """Implements `core.interfaces.ClusterMetadata` over /brokers (specification.md 5.1).

    Entering the block reads the brokers; `table_for_topic` reads and watches each topic from its first use. While the
    session is suspended or expired the last table stays; on the next CONNECTED everything is read again. A malformed
    node is logged once and otherwise treated as absent; so are a broker, and in listings a topic, that an ACL forbids.
    A topic that an ACL forbids later keeps what the table has of it.

    Args:
        zk: An open session. It is used, not closed.
    """

    reports_changes = True

    def __init__(self, zk: ZooKeeper) -> None:
        super().__init__()
        self._zk = zk
        self._reading = anyio.Lock()
        self._stale: set[str] = set()
        # Roots read with watches, or being read: a watch may fire before its answer is in the table.
        self._watched: set[str] = {BROKERS}
        self._listed = False
        self._ignored: dict[str, str] = {}  # path -> why

    async def __aenter__(self) -> Self:
        self._events = self._zk.events()
        self._apply(await self._read_brokers())
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._follow)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)
        if error is None:
            self._check()

    async def table_for_topic(self, name: str, *, create: bool = False, named: bool = False) -> Kafka07RoutingTable:
        """Return a table that has looked up `name`. Raises ZooKeeper's error when the first read of it fails, and
        ConfigError for a name that no topic can have."""
        self._check()
        if not self._table.has_looked_up(name):
            _check_readable(name)
            async with self._reading:
                if not self._table.has_looked_up(name):
                    self._apply(await self._read_topic(name))
        return self._table

    async def all_topics(self) -> frozenset[str]:
        """Return every topic that a live broker publishes; from now on new ones enter the table by themselves."""
        self._check()
        async with self._reading:
            if not self._listed:
                await self._read([TOPICS])
                self._listed = True
        return self._table.topics

    async def refresh(self) -> Kafka07RoutingTable:
        """Read brokers and all known topics again."""
        self._check()
        async with self._reading:
            await self._read(self._watched)
        return self._table

    # ---- following the watches ------------------------------------------------------------------------------

    async def _follow(self) -> None:
        try:
            async for event in self._events:
                self._stale |= self._made_stale(event)
                await self._catch_up()
            raise Closed(f"{self._zk!r} was closed")
        except Exception as error:
            self._fail(error)

    def _made_stale(self, event: NodeEvent | SessionEvent) -> set[str]:
        if isinstance(event, SessionEvent):
            return self._watched if event.state is SessionState.CONNECTED else set()
        return {_root(event.path)} & self._watched

    async def _catch_up(self) -> None:
        """Read stale roots until none is left or the session is lost: after that everything is stale anyway."""
        while self._stale and self._zk.state is SessionState.CONNECTED:
            try:
                async with self._reading:
                    await self._read(self._stale)
                self._stale = set()
            except ConfigError as error:  # an ACL; the other roots were read
                log.warning("stays as it was: %s", error)
                self._stale = set()
            except OdradekError as error:
                if not error.retriable:
                    raise
                log.warning("cannot read the cluster's nodes, retrying in %g s: %s", RETRY_S, error)
                await anyio.sleep(RETRY_S)

    # ---- reading, one at a time: an old answer must not overwrite a newer one -------------------------------

    async def _read(self, roots: Iterable[str]) -> None:
        """Read these roots again, and apply all that could be read as one change. Raises the first error after that."""
        outcomes = await gather_outcomes(self._read_root, sorted(roots))
        self._apply(*(event for events in outcomes if not isinstance(events, OdradekError) for event in events))
        for outcome in outcomes:
            if isinstance(outcome, OdradekError):
                raise outcome

    async def _read_root(self, root: str) -> list[Event]:
        if root == BROKERS:
            return [await self._read_brokers()]
        if root == TOPICS:
            return await self._read_new_topics()
        return [await self._read_topic(root.removeprefix(f"{TOPICS}/"))]

    async def _read_brokers(self) -> BrokersChanged:
        brokers = await self._read_children(BROKERS, parse_broker, ignore_forbidden=True)
        return BrokersChanged({broker.id: broker for broker in brokers})

    async def _read_new_topics(self) -> list[Event]:
        self._watched.add(TOPICS)
        names = await self._zk.children(TOPICS, watch=True) or []
        new = [name for name in names if not self._table.has_looked_up(name)]
        events: list[Event] = []
        for name, outcome in zip(new, await gather_outcomes(self._read_topic, new), strict=True):
            if isinstance(outcome, ConfigError):
                self._ignore(topic_path(name), outcome)
            elif isinstance(outcome, OdradekError):
                raise outcome
            else:
                events.append(outcome)
        return events

    async def _read_topic(self, topic: str) -> TopicChanged:
        self._watched.add(topic_path(topic))
        counts = await self._read_children(
            topic_path(topic), lambda path, data: (broker_id(path), parse_count(path, data))
        )
        return TopicChanged(topic, dict(counts))

    async def _read_children(
        self, parent: str, parse: Callable[[str, bytes | None], R], *, ignore_forbidden: bool = False
    ) -> list[R]:
        """Return the children of a node that may not exist, parsed and watched; malformed ones are left out."""

        async def one(name: str) -> R | None:
            path = f"{parent}/{name}"
            try:
                node = await self._zk.get(path, watch=True)
            except ConfigError as error:
                if not ignore_forbidden:
                    raise
                self._ignore(path, error)
                return None
            return None if node is None else self._parsed(path, node.data, parse)

        children = await gather(one, await self._zk.children(parent, watch=True) or [])
        return [child for child in children if child is not None]

    def _parsed(self, path: str, data: bytes | None, parse: Callable[[str, bytes | None], R]) -> R | None:
        try:
            value = parse(path, data)
        except ZooKeeperError as error:
            self._ignore(path, error)
            return None
        self._ignored.pop(path, None)
        return value

    def _ignore(self, path: str, error: OdradekError) -> None:
        if self._ignored.get(path) != str(error):
            log.warning("ignored: %s", error)
        self._ignored[path] = str(error)


def _root(path: str) -> str:
    """Return the root to read again after this node changed."""
    if path == BROKERS or path.startswith(f"{BROKERS}/"):
        return BROKERS
    return "/".join(path.split("/")[:4])  # /brokers/topics/T, or the list of topics itself


class StaticMetadata(_CurrentTable):
    """Implements `core.interfaces.ClusterMetadata` without ZooKeeper: brokers from a list, partitions by asking them.

    Every broker of the list counts as live. A topic is looked up when it is first used and at every `refresh`;
    nothing else ever changes. A broker that does not answer keeps the count it had, or none.

    Args:
        brokers: See `broker_list`.
        probe: Returns how many partitions a broker has of a topic. Must create nothing.
    """

    reports_changes = False

    def __init__(self, brokers: Sequence[Broker], probe: Callable[[Broker, str], Awaitable[int]]) -> None:
        super().__init__()
        self._probe = probe
        self._probing = anyio.Lock()
        self._apply(BrokersChanged({broker.id: broker for broker in brokers}))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._fail(Closed(f"{self!r} was closed"))

    async def table_for_topic(self, name: str, *, create: bool = False, named: bool = False) -> Kafka07RoutingTable:
        """Return a table that has looked up `name`. Raises the first broker's error when none answers, and ConfigError
        for a name that no topic can have."""
        self._check()
        if not self._table.has_looked_up(name):
            _check_readable(name)
            async with self._probing:
                if not self._table.has_looked_up(name):
                    await self._ask(name)
        return self._table

    async def all_topics(self) -> frozenset[str]:
        raise Unsupported("listing topics", "ZooKeeper")

    async def refresh(self) -> Kafka07RoutingTable:
        """Ask for the partitions of every topic that was looked up, again."""
        self._check()
        async with self._probing:
            await gather(self._ask, sorted(self._table.looked_up))
        return self._table

    async def _ask(self, topic: str) -> None:
        brokers = list(self._table.brokers.values())
        answers = await gather_outcomes(lambda broker: self._probe(broker, topic), brokers)
        counts = dict(self._table.counts(topic))
        for broker, answer in zip(brokers, answers, strict=True):
            if not isinstance(answer, OdradekError):
                counts[broker.id] = answer
            elif all(isinstance(other, OdradekError) for other in answers):
                raise answer
            else:
                log.warning(
                    "broker %d at %s does not list its partitions of %s: %s", broker.id, broker.address, topic, answer
                )
        self._apply(TopicChanged(topic, counts))


def broker_list(addresses: Sequence[str]) -> list[Broker]:
    """Parse `host:port` or `id@host:port` each; without an id, the index in the list (from 0) is the id.

    Raises ConfigError for anything else, an empty list, or a duplicate id.
    """
    brokers: dict[int, Broker] = {}
    for index, address in enumerate(addresses):
        number, at, rest = address.strip().rpartition("@")
        host, _, port = rest.rpartition(":")
        if not (host and _is_number(port) and 0 < int(port) < 65536 and (not at or _is_number(number))):
            raise ConfigError(f"broker {address!r}: must be host:port or id@host:port")
        broker = Broker(int(number) if at else index, host.removeprefix("[").removesuffix("]"), int(port))
        if broker.id in brokers:
            raise ConfigError(f"broker {address!r}: id {broker.id} already belongs to {brokers[broker.id].address}")
        brokers[broker.id] = broker
    if not brokers:
        raise ConfigError("a list of brokers needs at least one host:port")
    return list(brokers.values())


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def check_topic_name(name: str) -> None:
    """Raise ConfigError for a topic that should not exist: see `check_topic`."""
    try:
        check_topic(name)
    except LocalProtocolError as error:
        raise ConfigError(str(error)) from None


def _check_readable(name: str) -> None:
    """Raise ConfigError for a topic that no broker can have; one that it should not have may be read."""
    if not is_legal_topic(name):
        check_topic_name(name)
