"""Clusters with one thing wrong, made with real brokers, and clusters with nothing wrong.

    python -m tests.doctor.setups              # all of them, one after the other: five minutes
    python -m tests.doctor.setups tls group    # those whose cause has one of these words

prints for each what `odradek.doctor.examine` says, and how many causes were named.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from functools import cached_property
from typing import Any, NamedTuple
from uuid import uuid4

import anyio

import odradek as od
from odradek.core.admin import PartitionDescription
from odradek.core.admin_access import QuotaEntity
from odradek.doctor import Report, examine
from odradek.testing import Kafka07Broker, KafkaBroker, KafkaCluster, ZooKeeperServer
from odradek.testing.kafka.releases import PROTOCOLS
from odradek.testing.process import reserve_port

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
USERS = {"alice": "alice-secret", "bob": "bob-secret"}
OBSERVED_S = 4.0
"""Time for which a group is observed here (s): its members commit every fifth of a second."""


class Servers:
    """Brokers that set-ups share, each started when it is first needed."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    @cached_property
    def secure(self) -> KafkaBroker:
        """A broker with every kind of listener, where bob may do nothing."""
        config = {
            "authorizer.class.name": AUTHORIZER,
            "super.users": "User:ANONYMOUS;User:alice",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        }
        return self._stack.enter_context(KafkaBroker(listeners=PROTOCOLS, users=USERS, config=config))

    @cached_property
    def cluster(self) -> KafkaCluster:
        """Three brokers."""
        config = {"auto.leader.rebalance.enable": "false"}
        return self._stack.enter_context(KafkaCluster(config=config))

    @cached_property
    def zookeeper(self) -> ZooKeeperServer:
        return self._stack.enter_context(ZooKeeperServer())


Options = Mapping[str, Any]
"""Arguments of `examine`."""

SetUp = Callable[[Servers], AbstractAsyncContextManager[Options]]


class Case(NamedTuple):
    """A broken set-up.

    Args:
        cause: The cause that has to be named.
        also: Causes that follow from it, and must be named as well.
        make: Breaks the cluster; what it yields is how to examine it.
        uses: `secure`, `cluster`, or `own`: the brokers that it needs.
    """

    cause: str
    also: frozenset[str]
    make: SetUp
    uses: str


CASES: list[Case] = []


def broken(cause: str, *also: str, uses: str = "secure") -> Callable[[Any], Any]:
    """Register a set-up."""

    def register(make: Callable[[Servers], AsyncIterator[Options]]) -> Callable[[Servers], AsyncIterator[Options]]:
        CASES.append(Case(cause, frozenset(also), asynccontextmanager(make), uses))
        return make

    return register


def plain(broker: KafkaBroker) -> str:
    return f"kafka://{broker.bootstrap_of('PLAINTEXT')}"


def over_tls(broker: KafkaBroker, user: str, password: str = "", mechanism: str = "PLAIN") -> Options:
    """Return how to connect as a user, by TLS and SASL."""
    security = od.Security(
        sasl_mechanism=mechanism,
        sasl_username=user,
        sasl_password=password or USERS[user],
        ssl_cafile=str(broker.certificates.ca_file),
    )
    return {"url": f"kafka+sasl+ssl://{broker.bootstrap_of('SASL_SSL')}", "security": security}


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(60):
        while not await condition():  # noqa: ASYNC110 - of servers whose events are not for tests
            await anyio.sleep(0.1)


def unique(name: str) -> str:
    return f"{name}-{uuid4().hex[:8]}"


# ---- connections --------------------------------------------------------------------------------------------


@broken("nothing-listens")
async def wrong_port(servers: Servers) -> AsyncIterator[Options]:
    port, keeper = reserve_port()
    with keeper:
        yield {"url": f"kafka://127.0.0.1:{port}"}


@broken("unknown-host")
async def wrong_name(servers: Servers) -> AsyncIterator[Options]:
    yield {"url": "kafka://broker.invalid:9092"}


@broken("tls-expected")
async def without_tls(servers: Servers) -> AsyncIterator[Options]:
    yield {"url": f"kafka://{servers.secure.bootstrap_of('SSL')}"}


@broken("tls-not-spoken")
async def with_tls(servers: Servers) -> AsyncIterator[Options]:
    yield {"url": f"kafka+ssl://{servers.secure.bootstrap_of('PLAINTEXT')}"}


@broken("certificate-not-trusted")
async def another_authority(servers: Servers) -> AsyncIterator[Options]:
    security = od.Security(ssl_cafile=str(servers.secure.certificates.other_ca_file))
    yield {"url": f"kafka+ssl://{servers.secure.bootstrap_of('SSL')}", "security": security}


@broken("certificate-expired", uses="own")
async def expired(servers: Servers) -> AsyncIterator[Options]:
    with KafkaBroker(listeners=["SSL"], certificate="expired") as broker:
        security = od.Security(ssl_cafile=str(broker.certificates.ca_file))
        yield {"url": f"kafka+ssl://{broker.bootstrap}", "security": security}


@broken("certificate-of-another-host", uses="own")
async def another_host(servers: Servers) -> AsyncIterator[Options]:
    with KafkaBroker(listeners=["SSL"], certificate="wrong_host") as broker:
        security = od.Security(ssl_cafile=str(broker.certificates.ca_file))
        yield {"url": f"kafka+ssl://{broker.bootstrap}", "security": security}


@broken("client-certificate-needed", uses="own")
async def without_certificate(servers: Servers) -> AsyncIterator[Options]:
    with KafkaBroker(listeners=["SSL"], config={"ssl.client.auth": "required"}) as broker:
        security = od.Security(ssl_cafile=str(broker.certificates.ca_file))
        yield {"url": f"kafka+ssl://{broker.bootstrap}", "security": security}


@broken("sasl-expected")
async def without_sasl(servers: Servers) -> AsyncIterator[Options]:
    yield {"url": f"kafka://{servers.secure.bootstrap_of('SASL_PLAINTEXT')}"}


@broken("sasl-not-spoken")
async def with_sasl(servers: Servers) -> AsyncIterator[Options]:
    security = od.Security(sasl_mechanism="PLAIN", sasl_username="alice", sasl_password=USERS["alice"])
    yield {"url": f"kafka+sasl://{servers.secure.bootstrap_of('PLAINTEXT')}", "security": security}


@broken("credentials-refused")
async def wrong_password(servers: Servers) -> AsyncIterator[Options]:
    yield over_tls(servers.secure, "alice", "wrong")


@broken("mechanism-not-enabled")
async def another_mechanism(servers: Servers) -> AsyncIterator[Options]:
    yield over_tls(servers.secure, "alice", mechanism="SCRAM-SHA-512")


@broken("not-kafka", uses="own")
async def zookeeper_as_broker(servers: Servers) -> AsyncIterator[Options]:
    yield {"url": f"kafka://{servers.zookeeper.address}"}


@broken("not-zookeeper")
async def broker_as_zookeeper(servers: Servers) -> AsyncIterator[Options]:
    yield {"url": f"kafka07+zk://{servers.secure.bootstrap_of('PLAINTEXT')}"}


@broken("advertised-listener-unreachable", uses="own")
async def in_a_container(servers: Servers) -> AsyncIterator[Options]:
    config = {"advertised.listeners": "PLAINTEXT://broker.invalid:9092"}
    with KafkaBroker(config=config) as broker:
        yield {"url": f"kafka://{broker.bootstrap}"}


# ---- topics, rights and quotas ------------------------------------------------------------------------------


@broken("topic-missing")
async def wrong_topic(servers: Servers) -> AsyncIterator[Options]:
    await new_topic(servers, topic := unique("orders"))
    yield {**over_tls(servers.secure, "alice"), "topic": topic[:-1]}


@broken("topic-not-allowed")
async def forbidden_topic(servers: Servers) -> AsyncIterator[Options]:
    await new_topic(servers, topic := unique("orders"))
    yield {**over_tls(servers.secure, "bob"), "topic": topic}


@broken("group-not-allowed")
async def forbidden_group(servers: Servers) -> AsyncIterator[Options]:
    yield {**over_tls(servers.secure, "bob"), "group": "billing"}


@broken("quota-in-force")
async def small_quota(servers: Servers) -> AsyncIterator[Options]:
    client = unique("client")
    async with od.connect(plain(servers.secure)) as k:
        (await k.admin.alter_quotas({QuotaEntity(client_id=client): {"producer_byte_rate": 1024.0}})).check()
    yield {**over_tls(servers.secure, "alice"), "client_id": client}


@broken("replication-above-brokers", uses="own")
async def too_few_brokers(servers: Servers) -> AsyncIterator[Options]:
    with KafkaBroker(config={"offsets.topic.replication.factor": "3"}) as broker:
        yield {"url": f"kafka://{broker.bootstrap}"}


@broken("min-insync-above-replicas")
async def impossible_acks(servers: Servers) -> AsyncIterator[Options]:
    async with od.connect(plain(servers.secure)) as k:
        topic, config = unique("orders"), {"min.insync.replicas": "2"}
        (await k.admin.create_topics(topic, partitions=1, replicas=1, config=config)).check()
        yield {"url": plain(servers.secure)}
        (await k.admin.delete_topics(topic)).check()


# ---- groups -------------------------------------------------------------------------------------------------


async def new_topic(servers: Servers, name: str, partitions: int = 1) -> None:
    async with od.connect(plain(servers.secure)) as k:
        (await k.admin.create_topics(name, partitions=partitions, replicas=1)).check()


class Group:
    """A topic, a group, and a client for both."""

    def __init__(self, servers: Servers, k: od.Cluster) -> None:
        self.k, self.topic, self.name = k, unique("orders"), unique("billing")
        self.options = {"url": plain(servers.secure), "group": self.name, "seconds": OBSERVED_S}

    async def write(self, count: int, partition: int = 0) -> None:
        async with self.k.producer() as producer:
            for number in range(count):
                await producer.send(self.topic, b"%d" % number, partition=partition)

    async def commit(self, position: int) -> None:
        where = {od.TopicPartition(self.topic, 0): od.Position(position)}
        (await self.k.admin.reset_positions(self.name, where)).check()

    def consumer(self) -> od.Consumer:
        return self.k.consumer(self.topic, group=self.name, commit_every=0.2)

    async def committed(self, partitions: int = 1) -> None:
        """Wait until the group has positions."""

        async def have_positions() -> bool:
            return len(await self.k.admin.group_positions(self.name)) >= partitions

        await until(have_positions)


@asynccontextmanager
async def group(servers: Servers, partitions: int = 1) -> AsyncIterator[Group]:
    async with od.connect(plain(servers.secure)) as k:
        made = Group(servers, k)
        await new_topic(servers, made.topic, partitions)
        yield made


async def write_on(group: Group, partition: int, per_second: int) -> None:
    """Write until cancelled."""
    async with group.k.producer() as producer:
        while True:
            await producer.send(group.topic, b"value", partition=partition)
            await anyio.sleep(1 / per_second)


async def process(consumer: od.Consumer, seconds: Mapping[int, float]) -> None:
    """Process records one by one until cancelled, those of each partition in its time (s)."""
    async for batch in consumer.batches(max_records=1):
        await anyio.sleep(seconds.get(batch.partition.partition, 0))
        batch.done()


@broken("group-missing")
async def wrong_group(servers: Servers) -> AsyncIterator[Options]:
    yield {"url": plain(servers.secure), "group": unique("billing"), "seconds": 1}


@broken("group-has-no-members")
async def without_consumers(servers: Servers) -> AsyncIterator[Options]:
    async with group(servers) as g:
        await g.write(10)
        await g.commit(3)
        yield g.options


@broken("records-deleted-unread")
async def too_little_retention(servers: Servers) -> AsyncIterator[Options]:
    async with group(servers) as g:
        await g.write(10)
        await g.commit(3)
        (await g.k.admin.delete_records({od.TopicPartition(g.topic, 0): od.LATEST})).check()
        yield g.options


@broken("position-beyond-log")
async def topic_made_again(servers: Servers) -> AsyncIterator[Options]:
    async with group(servers) as g:
        await g.write(3)
        await g.commit(100)
        yield g.options


@broken("idle-members")
async def more_members_than_partitions(servers: Servers) -> AsyncIterator[Options]:
    async with group(servers) as g, g.consumer(), g.consumer():
        await g.committed()
        yield g.options


@broken("group-keeps-rebalancing")
async def members_come_and_go(servers: Servers) -> AsyncIterator[Options]:
    async def come_and_go() -> None:
        while True:
            async with g.consumer():
                await anyio.sleep(0.3)

    async with group(servers, 4) as g, g.consumer(), anyio.create_task_group() as tasks:
        await g.committed(4)
        tasks.start_soon(come_and_go)
        yield g.options
        tasks.cancel_scope.cancel()


@broken("partition-stuck")
async def handler_that_hangs(servers: Servers) -> AsyncIterator[Options]:
    async with group(servers) as g, g.consumer():
        await g.write(10)
        await g.committed()
        yield g.options


@broken("consumer-too-slow")
async def slow_handler(servers: Servers) -> AsyncIterator[Options]:
    async with group(servers) as g, g.consumer() as consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(write_on, g, 0, 60)
        tasks.start_soon(process, consumer, {0: 0.2})
        await g.committed()
        yield g.options
        tasks.cancel_scope.cancel()


@broken("hot-partition")
async def uneven_keys(servers: Servers) -> AsyncIterator[Options]:
    async with (
        group(servers, 2) as g,
        g.consumer() as first,
        g.consumer() as second,
        anyio.create_task_group() as tasks,
    ):
        for consumer in (first, second):
            tasks.start_soon(process, consumer, {0: 0.2})
        tasks.start_soon(write_on, g, 0, 60)
        tasks.start_soon(write_on, g, 1, 10)
        await g.committed(2)
        yield g.options
        tasks.cancel_scope.cancel()


@broken("transaction-open")
async def forgotten_transaction(servers: Servers) -> AsyncIterator[Options]:
    async with group(servers) as g, g.k.producer(transactional_id=g.name) as producer, producer.transaction():
        await producer.send(g.topic, b"never committed")
        yield {"url": plain(servers.secure), "topic": g.topic, "seconds": 2}


# ---- a cluster of three -------------------------------------------------------------------------------------


async def described(broker: KafkaBroker, topic: str) -> Sequence[PartitionDescription]:
    async with od.connect(f"kafka://{broker.bootstrap}") as k:
        return (await k.admin.describe_topics(topic)).check()[topic].partitions


@broken(
    "broker-down",
    "nothing-listens",
    "partition-offline",
    "too-few-in-sync",
    "under-replicated",
    "replication-above-brokers",  # nobody has used a group before
    uses="cluster",
)
async def killed_broker(servers: Servers) -> AsyncIterator[Options]:
    cluster = servers.cluster
    await anyio.to_thread.run_sync(lambda: cluster.create_topic("copied", 3, 3, config={"min.insync.replicas": "3"}))
    await anyio.to_thread.run_sync(lambda: cluster.create_topic("single", 3, 1))

    async def is_noticed() -> bool:
        single, copied = [await described(cluster.brokers[0], topic) for topic in ("single", "copied")]
        return any(each.leader is None for each in single) and all(len(each.in_sync) == 2 for each in copied)

    cluster.brokers[2].kill()
    await until(is_noticed)
    yield {"url": f"kafka://{cluster.bootstrap}"}
    await anyio.to_thread.run_sync(cluster.brokers[2].start)


@broken("leader-imbalance", uses="cluster")
async def restarted_broker(servers: Servers) -> AsyncIterator[Options]:
    cluster = servers.cluster
    await anyio.to_thread.run_sync(lambda: cluster.create_topic("led", 3, 3))

    async def are_copied() -> bool:
        return all(len(each.in_sync) == 3 for each in await described(cluster.brokers[0], "led"))

    await anyio.to_thread.run_sync(cluster.brokers[1].terminate)
    await anyio.to_thread.run_sync(cluster.brokers[1].start)
    await until(are_copied)
    yield {"url": f"kafka://{cluster.bootstrap}"}


# ---- nothing is wrong ---------------------------------------------------------------------------------------


@asynccontextmanager
async def busy(url: str) -> AsyncIterator[Options]:
    """Write to a topic, and let a group keep up with it."""
    async with (
        od.connect(url) as k,
        k.consumer("orders", group="billing", commit_every=0.2) as consumer,
        k.producer() as producer,
        anyio.create_task_group() as tasks,
    ):

        async def write() -> None:
            while True:
                await producer.send("orders", b"value")
                await anyio.sleep(0.02)

        async def keeps_up() -> bool:
            return bool(await k.admin.group_positions("billing"))

        tasks.start_soon(write)
        tasks.start_soon(process, consumer, {})
        await until(keeps_up)
        yield {"url": url, "topic": "orders", "group": "billing", "seconds": OBSERVED_S}
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def newest_cluster(servers: Servers) -> AsyncIterator[Options]:
    with KafkaCluster() as cluster:
        cluster.create_topic("orders", 3)
        async with busy(f"kafka://{cluster.bootstrap}") as options:
            yield options


@asynccontextmanager
async def on_zookeeper(servers: Servers) -> AsyncIterator[Options]:
    with KafkaBroker("2.8.2", mode="zookeeper") as broker:
        broker.create_topic("orders", 3)
        async with busy(f"kafka://{broker.bootstrap}") as options:
            yield options


@asynccontextmanager
async def of_07(servers: Servers) -> AsyncIterator[Options]:
    servers.zookeeper.create("/healthy")
    chroot = f"{servers.zookeeper.address}/healthy"
    with Kafka07Broker(broker_id=1, zookeeper=chroot, config={"log.flush.interval": "1"}):
        async with od.connect(f"kafka07+zk://{chroot}") as k, k.producer() as producer:
            await producer.send("orders", b"the first")
        async with busy(f"kafka07+zk://{chroot}") as options:
            yield options


HEALTHY: list[SetUp] = [newest_cluster, on_zookeeper, of_07]


# ---- by hand ------------------------------------------------------------------------------------------------


async def report_of(make: SetUp, servers: Servers) -> Report:
    """Make a set-up, examine it, and end it."""
    async with make(servers) as options:
        return await examine(**options)


async def _main(words: list[str]) -> int:
    wrong = 0
    cases = [case for case in CASES if not words or any(word in case.cause for word in words)]
    with ExitStack() as stack:
        servers = Servers(stack)
        for case in cases:
            start = anyio.current_time()
            report = await report_of(case.make, servers)
            causes = {finding.cause for finding in report.findings}
            good = causes == {case.cause, *case.also}
            wrong += not good
            print(f"{'ok   ' if good else 'WRONG'} {case.cause} ({anyio.current_time() - start:.1f} s)")
            for finding in report.findings:
                print(f"      {finding.cause} | {finding.evidence} | {finding.remedy}", flush=True)
        for make in [] if words and "healthy" not in words else HEALTHY:
            report = await report_of(make, servers)
            wrong += bool(report.findings)
            name = getattr(make, "__name__", "")
            print(f"{'WRONG' if report.findings else 'ok   '} {name}: {report}", flush=True)
    print(f"{len(cases)} set-ups; wrong: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(anyio.run(_main, sys.argv[1:]))
