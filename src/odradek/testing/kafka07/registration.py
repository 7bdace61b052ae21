"""A broker's nodes in ZooKeeper (specification.md 5.1-5.3): its id, at start and after expiry, and a node per topic."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from odradek.core.kafka07.znodes import broker_data, broker_path, count_path
from odradek.errors import ConfigError, ConnectionLost, DeadlineError, NodeExists, SessionExpired, ZooKeeperError
from odradek.io.zookeeper import SessionEvent, SessionState, ZooKeeper
from odradek.testing.kafka07.config import BrokerConfig
from odradek.testing.kafka07.errors import StartRefused
from odradek.testing.kafka07.log import Clock, to_ms

__all__ = ["Registration"]

log = logging.getLogger(__name__)


class Registration:
    """The nodes of one broker, on the running asyncio loop.

    `start` makes the id node; `run`, as a task, makes the topic nodes that `add_topic` asks for, and everything again
    when the session expired. A topic that cannot be registered is logged and left, as in the real broker.

    Args:
        hosts: ZooKeeper's `host:port/chroot`. The chroot must exist.
        topics: The topics to register in a new session.
    """

    def __init__(
        self,
        hosts: str,
        config: BrokerConfig,
        broker: tuple[int, str, int],
        topics: Callable[[], Iterable[str]],
        clock: Clock,
    ) -> None:
        self.broker_id, self.host, self.port = broker
        self._config, self._topics, self._clock = config, topics, clock
        self._zookeeper = ZooKeeper(
            hosts, session_timeout=config.session_timeout, connect_timeout=config.connection_timeout
        )
        self._todo: dict[str, None] = {}  # in order of appearance
        self._wake = asyncio.Event()
        self._lapsed = False
        self._renewed = asyncio.Event()

    @property
    def session_id(self) -> int:
        return self._zookeeper.session_id

    async def start(self) -> None:
        """Connect and register the broker and its topics. Raises StartRefused when the id is taken; Unreachable,
        ConfigError (no such chroot)."""
        await self._zookeeper.__aenter__()
        await self._register_broker()
        for topic in self._topics():
            await self._register_topic(topic)

    async def close(self) -> None:
        """End the session, and with it the nodes."""
        await self._zookeeper.aclose()

    async def abandon(self) -> None:
        """Leave the session, and with it the nodes, to its time-out."""
        await self._zookeeper.abandon()

    def add_topic(self, topic: str) -> None:
        self._todo[topic] = None
        self._wake.set()

    async def renewed(self) -> None:
        """Wait until everything is registered again after the next expiry."""
        self._renewed.clear()
        await self._renewed.wait()

    # ---- the background -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the broker registered until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch())
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._catch_up()

    async def _watch(self) -> None:
        async for event in self._zookeeper.events():
            if event == SessionEvent(SessionState.EXPIRED):
                self._lapsed = True
            elif event == SessionEvent(SessionState.CONNECTED) and self._lapsed:
                self._wake.set()

    async def _catch_up(self) -> None:
        """Register what is to be registered; what the connection did not let through stays to be done."""
        try:
            renewing = self._lapsed and self._zookeeper.state is SessionState.CONNECTED
            if renewing:
                await self._renew_broker()
            while self._todo:
                topic = next(iter(self._todo))
                await self._register_topic(topic)
                del self._todo[topic]
            if renewing:
                self._renewed.set()
        except (ConnectionLost, DeadlineError):
            self._wake.set()  # each try waits for the connection itself
        except SessionExpired:
            pass  # _watch calls again in the next session

    async def _renew_broker(self) -> None:
        try:
            await self._register_broker()
        except StartRefused as error:  # somebody took the id meanwhile; the real one logs it and lives on
            log.error("%s", error)
        self._lapsed = False
        self._todo = dict.fromkeys(self._topics()) | self._todo

    # ---- nodes --------------------------------------------------------------------------------------------

    async def _register_broker(self) -> None:
        path = broker_path(self.broker_id)
        data = broker_data(self.host, self.port, to_ms(self._clock()))
        if not await self._create(path, data):
            raise StartRefused(f"{path} exists: broker id {self.broker_id} is already registered")

    async def _register_topic(self, topic: str) -> None:
        path, count = count_path(topic, self.broker_id), self._config.partitions(topic)
        try:
            if not await self._create(path, str(count).encode()):
                log.error("%s exists with other data: topic %s is not registered", path, topic)
        except SessionExpired:
            raise
        except (ZooKeeperError, ConfigError) as error:  # a name that ZooKeeper refuses (App. H 1), or an ACL
            log.error("topic %s is not registered: %s", topic, error)

    async def _create(self, path: str, data: bytes) -> bool:
        """An ephemeral node. One that is there with the same data counts as made: by a try whose answer was lost
        (specification.md 5.2)."""
        try:
            await self._zookeeper.create(path, data, ephemeral=True, parents=True)
        except NodeExists:
            node = await self._zookeeper.get(path)
            return node is not None and node.data == data
        return True
