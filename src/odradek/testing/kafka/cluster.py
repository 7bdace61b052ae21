"""Several real Kafka brokers that are one cluster, for tests."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TypedDict, Unpack

from odradek import arguments
from odradek.testing.kafka.broker import KafkaBroker
from odradek.testing.kafka.releases import NEWEST
from odradek.testing.kafka.topics import create_topic, leader_of, move_leader, wait_for
from odradek.testing.process import START_SECONDS, Lifecycle
from odradek.testing.zookeeper import ZooKeeperServer

__all__ = ["BrokerOptions", "KafkaCluster"]


CLUSTER_RULES = {"size": arguments.count(at_most=9)}


class BrokerOptions(TypedDict, total=False):
    """Options that all brokers of a cluster share; see KafkaBroker."""

    mode: str | None
    listeners: Sequence[str]
    users: Mapping[str, str] | None
    certificate: str
    proxied: bool
    config: Mapping[str, str] | None
    zookeeper: ZooKeeperServer | None
    java: str | os.PathLike[str] | None
    heap: str
    java_options: Sequence[str]


class _ClusterBroker(KafkaBroker):
    """One broker of a cluster, which its cluster sets up."""

    def _end_setup(self) -> None:
        pass  # other members use it


class KafkaCluster(Lifecycle):
    """Several real brokers on 127.0.0.1, for a `with` or `async with` block; in KRaft mode each is a controller, too.

    `brokers` are KafkaBroker objects, with the numbers 1, 2, 3...: kill, terminate, restart, pause one of them to see
    what happens. Topics of the brokers themselves (group offsets, transactions) have a replica on each of up to three.

    Args:
        version: As for KafkaBroker.
        size: Number of brokers.
        options: `mode`, `listeners`, `users`, `certificate`, `proxied`, `config`, `zookeeper`, `java`,
            `heap`, `java_options`, as for KafkaBroker.
    """

    def __init__(self, version: str = NEWEST, size: int = 3, **options: Unpack[BrokerOptions]) -> None:
        arguments.check_all(CLUSTER_RULES, size=size)
        self._brokers = [_ClusterBroker(version, broker_id=number + 1, **options) for number in range(size)]
        self._setup = self._brokers[0].setup
        self._setup.size = size
        for broker in self._brokers:
            broker.setup = self._setup

    def __repr__(self) -> str:
        running = sum(broker.running for broker in self._brokers)
        return f"<{type(self).__name__} {self.version} {self.mode} {running} of {len(self._brokers)} brokers running>"

    @property
    def version(self) -> str:
        """The release of its brokers."""
        return self._setup.release.version

    @property
    def mode(self) -> str:
        """The mode of its brokers: `kraft` or `zookeeper`."""
        return self._setup.mode

    @property
    def brokers(self) -> Sequence[KafkaBroker]:
        """Each of them, in the order of their numbers, from 1 on."""
        return self._brokers

    @property
    def bootstrap(self) -> str:
        """`host:port` of every broker, with commas."""
        return ",".join(broker.bootstrap for broker in self._brokers)

    def bootstrap_of(self, listener: str) -> str:
        """Return `host:port` of every broker's listener with this security protocol, with commas."""
        return ",".join(broker.bootstrap_of(listener) for broker in self._brokers)

    # ---- topics ---------------------------------------------------------------------------------------------

    def create_topic(
        self, name: str, partitions: int = 1, replicas: int | None = None, *, config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic and wait until every running broker knows its leaders.

        Args:
            replicas: Brokers that have each partition; by default three, or all if there are fewer.
            config: Properties of the topic.

        Raises:
            ServerError: It exists, or cannot be created.
        """
        create_topic(self._setup, self._running(), name, partitions, replicas or min(3, self._setup.size), config or {})

    def leader(self, topic: str, partition: int = 0) -> KafkaBroker:
        """Return the broker that leads a partition; wait until all that run, and are not paused, agree on it."""
        return wait_for(f"a leader of {topic}-{partition} that runs", lambda: self._leader(topic, partition))

    def move_leader(self, topic: str, partition: int, to: KafkaBroker) -> None:
        """Let another replica of a partition lead it; wait until every running broker says so."""
        move_leader(self._setup, self._running(), topic, partition, to.broker_id)

    # ---- processes ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all and wait until each knows all."""
        try:
            for broker in self._brokers:
                broker.reserve()
            self._setup.start()
            with ThreadPoolExecutor(len(self._brokers)) as threads:
                list(threads.map(KafkaBroker.launch, self._brokers))
            for broker in self._brokers:
                broker.wait_ready()
            if self._setup.release.number >= (0, 9):  # older brokers name none while there are no topics
                wait_for("brokers that know each other", self._is_complete, START_SECONDS)
        except BaseException as error:
            self._leave(error)
            raise

    def stop(self) -> None:
        """Stop all and remove their data. Idempotent."""
        with ExitStack() as stack:
            stack.callback(self._setup.stop)
            for broker in self._brokers:
                stack.callback(broker.stop)

    def _leave(self, error: BaseException | None) -> None:
        for broker in self._brokers:
            broker.note_log(error)
        self.stop()

    def _running(self) -> list[KafkaBroker]:
        return [broker for broker in self._brokers if broker.running and not broker.paused]

    def _is_complete(self) -> bool:
        ids = {broker.broker_id for broker in self._brokers}
        return all({each.node_id for each in broker.metadata().brokers} == ids for broker in self._brokers)

    def _leader(self, topic: str, partition: int) -> KafkaBroker | None:
        running = self._running()
        leaders = {leader_of(broker, topic, partition) for broker in running}
        return next((broker for broker in running if leaders == {broker.broker_id}), None)
