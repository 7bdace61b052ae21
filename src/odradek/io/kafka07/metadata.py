"""Who serves what in a 0.7 cluster: routing tables out of ZooKeeper's watches, or out of a list of brokers.

Watches fire once. Whatever fires, the whole of what it belongs to (the brokers, one topic, the list of topics) is read
again with new watches, so that a node that was deleted and created again in between is seen with its new data.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Self, TypeVar

import anyio

from odradek.core.kafka07.routing import BrokersChanged, Event, Kafka07RoutingTable, TopicChanged
from odradek.core.kafka07.znodes import BROKERS, TOPICS, broker_id, parse_broker, parse_count, topic_path
from odradek.errors import Closed, ConfigError, OdradekError, Unsupported, ZooKeeperError
from odradek.io.zookeeper import NodeEvent, SessionEvent, SessionState, ZooKeeper
from odradek.types import Broker

__all__ = ["StaticMetadata", "ZooKeeperMetadata", "broker_list", "outcomes", "together"]

log = logging.getLogger("odradek.coordination")

RETRY_SECONDS = 1.0
"""Pause after a read that failed while the session is fine (a server too slow to answer in time)."""

T = TypeVar("T")
R = TypeVar("R")


async def outcomes(call: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R | OdradekError]:
    """Call for all items at once: results or errors, in the order of the items."""
    found: dict[int, R | OdradekError] = {}

    async def one(place: int, item: T) -> None:
        try:
            found[place] = await call(item)
        except OdradekError as error:
            found[place] = error

    async with anyio.create_task_group() as tasks:
        for place, item in enumerate(items):
            tasks.start_soon(one, place, item)
    return [found[place] for place in range(len(found))]


async def together(call: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
    """Call for all items at once; their results in order. An error is raised when all have ended."""
    results: list[R] = []
    for found in await outcomes(call, items):
        if isinstance(found, OdradekError):
            raise found
        results.append(found)
    return results


class _CurrentTable:
    """The present table, and the wait for the next one."""

    def __init__(self) -> None:
        self._table = Kafka07RoutingTable()
        self._failure: Exception | None = None
        self._news: anyio.Event | None = None

    def __repr__(self) -> str:
        brokers = ",".join(f"{b.id}@{b.address}" for b in self._table.brokers.values())
        return f"<{type(self).__name__} v{self._table.version} brokers={brokers or 'none'}>"

    @property
    def table(self) -> Kafka07RoutingTable:
        return self._table

    async def changed(self, version: int) -> Kafka07RoutingTable:
        """Wait until `table.version > version`. Raises what ended the watching. Cancellation: safe."""
        while self._table.version <= version:
            self._check()
            if self._news is None:
                self._news = anyio.Event()
            await self._news.wait()
        return self._table

    def _apply(self, event: Event) -> None:
        table, _ = self._table.apply(event)
        if table is not self._table:
            self._table = table
            self._wake()

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, None
        if news is not None:
            news.set()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


class ZooKeeperMetadata(_CurrentTable):
    """Implements `core.interfaces.Coordination` over /brokers (specification 5.1).

    Entering the block reads the brokers; `topic` reads and watches each topic from its first use. While the session
    is suspended or expired the last table stands; once it is there again everything is read anew. A malformed node
    is worth one line in the log and is otherwise taken for absent.

    Args:
        zk: An open session. It is used, not closed.
    """

    def __init__(self, zk: ZooKeeper) -> None:
        super().__init__()
        self._zk = zk
        self._reading = anyio.Lock()
        self._stale: set[str] = set()
        # What has been read with watches, or is just being read: a watch may fire before its answer is in the table.
        self._watched: set[str] = {BROKERS}
        self._listed = False
        self._complaints: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        self._events = self._zk.events()
        await self._read_brokers()
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

    async def topic(self, name: str) -> Kafka07RoutingTable:
        """A table that knows `name`. Raises what ZooKeeper says when it is read for the first time and cannot be."""
        self._check()
        if not self._table.knows(name):
            async with self._reading:
                if not self._table.knows(name):
                    await self._read_topic(name)
        return self._table

    async def all_topics(self) -> frozenset[str]:
        """Every topic some live broker publishes; from now on new ones enter the table by themselves."""
        self._check()
        async with self._reading:
            if not self._listed:
                await self._read_list()
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
        """Read what is stale, until nothing is or the session is gone: after that everything is stale anyway."""
        while self._stale and self._zk.state is SessionState.CONNECTED:
            try:
                async with self._reading:
                    await self._read(self._stale)
                self._stale = set()
            except OdradekError as error:
                if not error.retriable:
                    raise
                log.warning("cannot read the cluster's nodes, will try again: %s", error)
                await anyio.sleep(RETRY_SECONDS)

    # ---- reading, one at a time: an old answer must not overwrite a newer one -------------------------------

    async def _read(self, roots: Iterable[str]) -> None:
        await together(self._read_one, sorted(roots))

    async def _read_one(self, root: str) -> None:
        if root == BROKERS:
            await self._read_brokers()
        elif root == TOPICS:
            await self._read_list()
        else:
            await self._read_topic(root.removeprefix(f"{TOPICS}/"))

    async def _read_brokers(self) -> None:
        found = await self._read_children(BROKERS, parse_broker)
        self._apply(BrokersChanged({broker.id: broker for broker in found}))

    async def _read_list(self) -> None:
        self._watched.add(TOPICS)
        names = await self._zk.children(TOPICS, watch=True) or []
        await together(self._read_topic, [name for name in names if not self._table.knows(name)])

    async def _read_topic(self, topic: str) -> None:
        self._watched.add(topic_path(topic))
        found = await self._read_children(
            topic_path(topic), lambda path, data: (broker_id(path), parse_count(path, data))
        )
        self._apply(TopicChanged(topic, dict(found)))

    async def _read_children(self, parent: str, parse: Callable[[str, bytes | None], R]) -> list[R]:
        """The children of a node that may not exist, each parsed and watched; malformed ones left out."""

        async def one(name: str) -> R | None:
            path = f"{parent}/{name}"
            node = await self._zk.get(path, watch=True)
            return None if node is None else self._parsed(path, node.data, parse)

        found = await together(one, await self._zk.children(parent, watch=True) or [])
        return [item for item in found if item is not None]

    def _parsed(self, path: str, data: bytes | None, parse: Callable[[str, bytes | None], R]) -> R | None:
        try:
            value = parse(path, data)
        except ZooKeeperError as error:
            if self._complaints.get(path) != str(error):
                log.warning("ignored: %s", error)
            self._complaints[path] = str(error)
            return None
        self._complaints.pop(path, None)
        return value


def _root(path: str) -> str:
    """What has to be read again when this node changed."""
    if path == BROKERS or path.startswith(f"{BROKERS}/"):
        return BROKERS
    return "/".join(path.split("/")[:4])  # /brokers/topics/T, or the list of topics itself


class StaticMetadata(_CurrentTable):
    """Implements `core.interfaces.Coordination` without ZooKeeper: brokers from a list, partitions by asking them.

    Every broker of the list counts as live. A topic is looked at when it is first used and at every `refresh`;
    nothing else ever changes. A broker that cannot be asked keeps the count it had, or none.

    Args:
        brokers: See `broker_list`.
        probe: How many partitions this broker has of this topic. Must create nothing.
    """

    def __init__(self, brokers: Sequence[Broker], probe: Callable[[Broker, str], Awaitable[int]]) -> None:
        super().__init__()
        self._probe = probe
        self._asking = anyio.Lock()
        self._apply(BrokersChanged({broker.id: broker for broker in brokers}))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._fail(Closed(f"{self!r} was closed"))

    async def topic(self, name: str) -> Kafka07RoutingTable:
        """A table that knows `name`. Raises what the first broker says when none answers."""
        self._check()
        if not self._table.knows(name):
            async with self._asking:
                if not self._table.knows(name):
                    await self._ask(name)
        return self._table

    async def all_topics(self) -> frozenset[str]:
        raise Unsupported("listing topics", "ZooKeeper")

    async def refresh(self) -> Kafka07RoutingTable:
        """Ask about every known topic again."""
        self._check()
        async with self._asking:
            await together(self._ask, sorted(self._table.counts))
        return self._table

    async def _ask(self, topic: str) -> None:
        brokers = list(self._table.brokers.values())
        answers = await outcomes(lambda broker: self._probe(broker, topic), brokers)
        counts = dict(self._table.counts.get(topic, {}))
        for broker, answer in zip(brokers, answers, strict=True):
            if not isinstance(answer, OdradekError):
                counts[broker.id] = answer
            elif all(isinstance(other, OdradekError) for other in answers):
                raise answer
            else:
                log.warning("cannot ask broker %d at %s about %s: %s", broker.id, broker.address, topic, answer)
        self._apply(TopicChanged(topic, counts))


def broker_list(addresses: Sequence[str]) -> list[Broker]:
    """`host:port` or `id@host:port` each; without an id, the place in the list (from 0) is the id.

    Raises ConfigError for anything else, an empty list, or an id that comes twice.
    """
    brokers: dict[int, Broker] = {}
    for place, address in enumerate(addresses):
        number, at, rest = address.strip().rpartition("@")
        host, _, port = rest.rpartition(":")
        if not (host and _is_number(port) and 0 < int(port) < 65536 and (not at or _is_number(number))):
            raise ConfigError(f"broker {address!r}: must be host:port or id@host:port")
        broker = Broker(int(number) if at else place, host.removeprefix("[").removesuffix("]"), int(port))
        if broker.id in brokers:
            raise ConfigError(f"broker {address!r}: id {broker.id} is {brokers[broker.id].address} already")
        brokers[broker.id] = broker
    if not brokers:
        raise ConfigError("a list of brokers needs at least one host:port")
    return list(brokers.values())


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
