"""Administration of real brokers: after each change, Kafka's own tools of the same release show the same state."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.samples import one_in, seed_of

import odradek as od
from odradek.core.admin import ConfigEntry, ConfigSource, OffsetSpec
from odradek.core.admin_access import (
    Acl,
    AclFilter,
    AclOperation,
    AclPattern,
    AclPermission,
    AclResource,
    QuotaEntity,
    QuotaName,
    ScramPassword,
)
from odradek.core.admin_cluster import Replica
from odradek.testing import KafkaBroker, KafkaCluster
from odradek.testing.kafka.releases import NEWEST

from .dynamic_quorum import Controller, DynamicBroker

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

OLDER = ("2.8.2", "1.1.1", "0.11.0.3")
P0, P1 = od.TopicPartition("t", 0), od.TopicPartition("t", 1)
READ = Acl(AclResource.TOPIC, "orders", "User:bob", AclOperation.READ)
DENY = Acl(AclResource.GROUP, "g", "User:bob", AclOperation.ALL, AclPermission.DENY, "10.0.0.1", AclPattern.PREFIXED)
OF_OTHERS = Acl(AclResource.CLUSTER, "kafka-cluster", "User:carl", AclOperation.DESCRIBE)
"""With it, nobody else may describe the cluster."""
PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "admin.md").read_text("utf-8")
SHOWN = (
    "principal=User:bob, host={}, operation={}, permissionType={}"
    "|User:bob has {} permission for operations: {} from hosts: {}"
)
"""An entry as the tool shows it from 2.0 on, and before."""
AUTHORIZERS = {
    (0, 11): "kafka.security.auth.SimpleAclAuthorizer",
    (2, 4): "kafka.security.authorizer.AclAuthorizer",
    (3, 3): "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
}
TOOLS = {
    "acls": ("kafka.admin.AclCommand", "org.apache.kafka.tools.AclCommand"),
    "configs": ("kafka.admin.ConfigCommand", "kafka.admin.ConfigCommand"),
    "topics": ("kafka.admin.TopicCommand", "org.apache.kafka.tools.TopicCommand"),
    "reassign": (
        "kafka.admin.ReassignPartitionsCommand",
        "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    ),
    "elect": ("kafka.admin.LeaderElectionCommand", "org.apache.kafka.tools.LeaderElectionCommand"),
    "metrics": ("org.apache.kafka.tools.ClientMetricsCommand", "org.apache.kafka.tools.ClientMetricsCommand"),
    "dirs": ("kafka.admin.LogDirsCommand", "org.apache.kafka.tools.LogDirsCommand"),
    "tokens": ("kafka.admin.DelegationTokenCommand", "org.apache.kafka.tools.DelegationTokenCommand"),
}
"""Tool -> its class before 4.0, and from then on."""


def number(broker: KafkaBroker) -> tuple[int, ...]:
    return tuple(int(part) for part in broker.version.split("."))


@pytest.fixture
def anyio_backend() -> str:
    """One loop is enough here: the others run the same code against scripted brokers."""
    return "asyncio"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The newest release and one of the others in a run; one of two modes for what takes three brokers."""
    seed = seed_of(metafunc.config)
    if "broker" in metafunc.fixturenames:
        metafunc.parametrize("broker", [NEWEST, *one_in(3, OLDER, seed)], indirect=True, scope="module")
    if "either_cluster" in metafunc.fixturenames:
        metafunc.parametrize("either_cluster", one_in(2, (NEWEST, "2.8.2"), seed), indirect=True, scope="module")


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker with an authorizer, a key for delegation tokens, and two log directories."""
    release = tuple(int(part) for part in request.param.split("."))
    directories = tmp_path_factory.mktemp("logs")
    config = {
        "authorizer.class.name": next(name for since, name in reversed(AUTHORIZERS.items()) if release >= since),
        "super.users": "User:ANONYMOUS;User:alice",
        "allow.everyone.if.no.acl.found": "true",
        "delegation.token.secret.key": "a key for tests",
        "delegation.token.master.key": "a key for tests",
        "log.dirs": f"{directories}/a,{directories}/b",
    }
    kind = DynamicBroker if release >= (4,) else KafkaBroker
    with kind(request.param, listeners=("SASL_PLAINTEXT",), config=config) as broker:
        broker.create_topic("t", 2)
        yield broker


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    authorizer = {"authorizer.class.name": AUTHORIZERS[3, 3], "super.users": "User:ANONYMOUS"}
    with KafkaCluster(NEWEST, config=authorizer) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def either_cluster(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Three brokers, in KRaft mode and over ZooKeeper."""
    if request.param == NEWEST:
        yield request.getfixturevalue("cluster")
        return
    with KafkaCluster(request.param, mode="zookeeper") as cluster:
        yield cluster


def as_user(
    broker: KafkaBroker, name: str, password: str, mechanism: str = "PLAIN", *, push_metrics: bool = False
) -> od.Cluster:
    security = od.Security(sasl_mechanism=mechanism, sasl_username=name, sasl_password=password)
    return od.connect(f"kafka+sasl://{broker.bootstrap}", security=security, push_metrics=push_metrics)


def as_alice(broker: KafkaBroker, *, push_metrics: bool = False) -> od.Cluster:
    return as_user(broker, "alice", broker.users["alice"], push_metrics=push_metrics)


async def tool(broker: KafkaBroker, name: str, *args: str) -> str:
    """Run one of Kafka's tools and return what it printed."""
    main_class = TOOLS[name][number(broker) >= (4,)] if name in TOOLS else name
    address = f"127.0.0.1:{broker.plaintext_port}"
    if name in ("acls", "configs") and number(broker) < (2,):
        where = ("--zookeeper", broker.zookeeper_connect)
        if name == "acls":
            where = ("--authorizer-properties", f"zookeeper.connect={broker.zookeeper_connect}")
    else:
        where = ("--bootstrap-server", address)
    ran = await anyio.to_thread.run_sync(lambda: broker.java_tool(main_class, *where, *args, timeout=200))
    assert ran.returncode == 0, (ran.stdout, ran.stderr)
    return ran.stdout


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    """Wait for brokers, which hear of changes a moment after they were accepted."""
    with anyio.fail_after(60):
        while not await condition():  # noqa: ASYNC110 - of brokers whose events are not for tests
            await anyio.sleep(0.05)


# ---- one broker of each release -----------------------------------------------------------------------------


async def test_entries_of_access_control_are_those_of_the_tool(broker: KafkaBroker) -> None:
    has_patterns = number(broker) >= (2,)
    entries = [READ, DENY if has_patterns else replace(DENY, pattern=AclPattern.LITERAL)]
    async with as_alice(broker) as k:

        async def are(entries: list[Acl]) -> bool:
            return bool(await k.admin.describe_acls() == entries)

        (await k.admin.create_acls(entries)).check()
        await until(lambda: are(entries))
        assert await k.admin.describe_acls(entries[1]) == entries[1:]
        listed = await tool(broker, "acls", "--list")
        assert "orders" in listed and re.search(SHOWN.format("\\*", "READ", "ALLOW", "Allow", "Read", "\\*"), listed)
        assert re.search(SHOWN.format(r"10\.0\.0\.1", "ALL", "DENY", "Deny", "All", r"10\.0\.0\.1"), listed)
        if has_patterns:
            which = AclFilter(AclResource.GROUP, "g17", pattern=AclPattern.MATCH)
            assert await k.admin.describe_acls(which) == [DENY]
        else:
            with pytest.raises(od.Unsupported, match=r"PREFIXED.*2\.0"):
                await k.admin.create_acls(DENY)
        deleted = (await k.admin.delete_acls([entries[1], AclFilter(AclResource.CLUSTER)])).check()
        assert [list(each.done) for each in deleted.values()] == [[entries[1]], []]
        await until(lambda: are(entries[:1]))
        assert "10.0.0.1" not in await tool(broker, "acls", "--list")
        (await k.admin.delete_acls(AclFilter(name="orders"))).check()
        await until(lambda: are([]))


async def test_a_user_logs_in_with_the_password_that_was_set(broker: KafkaBroker) -> None:
    async with as_alice(broker) as k:
        if number(broker) < (2, 7):
            with pytest.raises(od.Unsupported, match=r"2\.7.*kafka-configs"):
                await k.admin.set_passwords({"bob": "a secret"})
            return

        async def has_password() -> bool:
            return (await k.admin.describe_users("bob")).done == {"bob": [ScramPassword("SCRAM-SHA-512", 4096)]}

        async def is_unknown() -> bool:
            return "RESOURCE_NOT_FOUND" in str((await k.admin.describe_users("bob")).failed.get("bob"))

        (await k.admin.set_passwords({"bob": "a secret"}, iterations=4096)).check()
        await until(has_password)
        described = await tool(broker, "configs", "--describe", "--entity-type", "users", "--entity-name", "bob")
        assert "SCRAM-SHA-512=" in described and "iterations=4096" in described
        async with as_user(broker, "bob", "a secret", "SCRAM-SHA-512") as bob:
            assert "t" in await bob.topics()

            async def is_refused() -> bool:
                try:
                    await bob.admin.describe_users()
                except od.BrokerError as error:
                    return error.name == "CLUSTER_AUTHORIZATION_FAILED"
                return False

            (await k.admin.create_acls(OF_OTHERS)).check()
            await until(is_refused)
            (await k.admin.delete_acls(OF_OTHERS)).check()
        (await k.admin.delete_passwords("bob")).check()
        await until(is_unknown)
        assert "SCRAM" not in await tool(
            broker, "configs", "--describe", "--entity-type", "users", "--entity-name", "bob"
        )


async def test_quotas_are_those_of_the_tool(broker: KafkaBroker) -> None:
    bob, default = QuotaEntity(user="bob"), QuotaEntity(user="bob", client_id=QuotaName.DEFAULT)
    async with as_alice(broker) as k:
        if number(broker) < (2, 6):
            with pytest.raises(od.Unsupported, match=r"2\.6.*kafka-configs"):
                await k.admin.describe_quotas()
            return

        async def are(quotas: Any) -> bool:
            return bool(await k.admin.describe_quotas(bob) == quotas)

        (await k.admin.alter_quotas({bob: {"producer_byte_rate": 1e6}, default: {"request_percentage": 50}})).check()
        both = {bob: {"producer_byte_rate": 1e6}, default: {"request_percentage": 50.0}}
        await until(lambda: are(both))
        assert await k.admin.describe_quotas(bob, strict=True) == {bob: both[bob]}
        described = await tool(broker, "configs", "--describe", "--entity-type", "users", "--entity-name", "bob")
        assert "producer_byte_rate=1000000.0" in described
        (await k.admin.alter_quotas({bob: {"producer_byte_rate": 1}}, validate_only=True)).check()
        wrong = await k.admin.alter_quotas({bob: {"nonsense": 1}})
        assert "nonsense" in str(wrong.failed[bob]) and await k.admin.describe_quotas(bob) == both
        (await k.admin.alter_quotas({bob: {"producer_byte_rate": None}, default: {"request_percentage": None}})).check()
        await until(lambda: are({}))


async def test_a_delegation_token_lets_another_client_in_until_it_ends(broker: KafkaBroker, tmp_path: Path) -> None:
    async with as_alice(broker) as k:
        if number(broker) < (1, 1):
            with pytest.raises(od.Unsupported, match=r"1\.1"):
                await k.admin.create_token()
            return
        token = await k.admin.create_token(renewers="User:bob", lifetime=3600)
        assert (token.owner, token.ends - token.issued) == ("User:alice", 3600)
        await until(k.admin.describe_tokens)
        assert await k.admin.describe_tokens("User:alice") == [replace(token, renewers=("User:bob",))]
        config = tmp_path / "client.properties"
        config.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config="
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'username="alice" password="{broker.users["alice"]}";\n'
        )
        args = (
            "--bootstrap-server",
            broker.bootstrap,
            "--command-config",
            str(config),
            "--describe",
            "--owner-principal",
        )
        main_class = TOOLS["tokens"][number(broker) >= (4,)]
        ran = await anyio.to_thread.run_sync(lambda: broker.java_tool(main_class, *args, "User:alice"))
        assert token.token_id in ran.stdout, ran.stderr
        assert token.issued < await k.admin.renew_token(token.hmac, seconds=60) < token.issued + 120
        await k.admin.expire_token(token.hmac)

        async def is_gone() -> bool:
            return not await k.admin.describe_tokens()

        await until(is_gone)
        with pytest.raises(od.BrokerError, match="DELEGATION_TOKEN_NOT_FOUND"):
            await k.admin.renew_token(token.hmac)


async def test_a_replica_moves_to_another_directory(broker: KafkaBroker) -> None:
    async with as_alice(broker) as k:
        if number(broker) < (1,):
            with pytest.raises(od.Unsupported, match=r"1\.0"):
                await k.admin.describe_log_dirs()
            return
        me = broker.broker_id
        before = (await k.admin.describe_log_dirs()).check()[me]
        target = next(each.path for each in before if P0 not in each.replicas)
        moved = await k.admin.move_replicas({Replica(me, P0): target, Replica(me, P1): "/nowhere", Replica(9, P0): "/"})
        assert moved.done.keys() == {Replica(me, P0)}
        assert "LOG_DIR_NOT_FOUND" in str(moved.failed[Replica(me, P1)])

        async def has_arrived() -> bool:
            after = (await k.admin.describe_log_dirs(me)).check()[me]
            return any(P0 in each.replicas and not each.replicas[P0].is_future for each in after if each.path == target)

        await until(has_arrived)
        printed = await tool(broker, "dirs", "--describe", "--topic-list", "t")
        (text,) = [line for line in printed.splitlines() if line.startswith("{")]
        shown = {
            each["logDir"]: {part["partition"] for part in each["partitions"]}
            for each in json.loads(text)["brokers"][0]["logDirs"]
        }
        assert "t-0" in shown[target]


async def test_what_has_not_been_invented_is_refused_with_the_release_that_has_it(broker: KafkaBroker) -> None:
    release = number(broker)
    async with as_alice(broker) as k:
        calls: list[tuple[tuple[int, ...], Callable[[], Awaitable[object]]]] = [
            ((2, 2), k.admin.elect_leaders),
            ((2, 4), k.admin.list_reassignments),
            ((2, 7), k.admin.describe_features),
            ((2, 8), lambda: k.admin.describe_producers(P0)),
            ((3, 0), k.admin.list_transactions),
            ((3, 0), lambda: k.admin.list_offsets({P0: OffsetSpec.MAX_TIMESTAMP})),
            ((3, 3), k.admin.describe_quorum),
        ]
        for since, call in calls:
            if release >= since:
                await call()
            else:
                with pytest.raises(od.Unsupported, match=re.escape(".".join(map(str, since)))):
                    await call()


async def test_an_open_transaction_is_aborted_where_it_is_known(broker: KafkaBroker) -> None:
    async with as_alice(broker) as k:
        if number(broker) < (2, 8):
            return
        async with k.producer(transactional_id="hanging") as producer:
            with pytest.raises(od.OdradekError):
                async with producer.transaction():
                    await producer.send("t", b"x", partition=1)
                    (open_one,) = (await k.admin.describe_producers(P1)).check()[P1]
                    assert open_one.transaction_start == 0
                    if number(broker) >= (3,):
                        (listed,) = await k.admin.list_transactions(states="Ongoing")
                        assert (listed.transactional_id, listed.producer_id) == ("hanging", open_one.producer_id)
                        described = (await k.admin.describe_transactions("hanging")).check()["hanging"]
                        assert (described.state, described.partitions) == ("Ongoing", (P1,))
                        shown = await tool(broker, "org.apache.kafka.tools.TransactionsCommand", "list")
                        assert re.search(rf"hanging\s+1\s+{listed.producer_id}\s+Ongoing", shown)
                    await k.admin.abort_transaction(P1, open_one)
                    (ended,) = (await k.admin.describe_producers(P1)).check()[P1]
                    assert ended.transaction_start is None
                    raise od.UsageError("this transaction has ended already")

        async def is_readable() -> bool:
            ends = [await k.admin.list_offsets({P1: od.LATEST}, read_committed=each) for each in (True, False)]
            return ends[0].check()[P1].position == ends[1].check()[P1].position

        await until(is_readable)


async def test_a_controller_is_added_to_the_quorum_and_removed(broker: KafkaBroker, tmp_path: Path) -> None:
    if not isinstance(broker, DynamicBroker):
        assert number(broker) < (3, 9)
        return
    async with as_alice(broker) as k:
        with Controller(broker, 7, tmp_path) as controller:
            listeners = {"CONTROLLER": ("127.0.0.1", controller.port)}

            async def follows() -> bool:
                return 7 in {each.id for each in (await k.admin.describe_quorum()).observers}

            async def is_added() -> bool:
                with suppress(od.BrokerError):  # it has yet to catch up, or to answer
                    await k.admin.add_voter(7, controller.directory_id, listeners)
                return 7 in {each.id for each in (await k.admin.describe_quorum()).voters}

            await until(follows)
            await until(is_added)
            with pytest.raises(od.BrokerError, match="DUPLICATE_VOTER"):
                await k.admin.add_voter(7, controller.directory_id, listeners)
            status = await tool(broker, "org.apache.kafka.tools.MetadataQuorumCommand", "describe", "--status")
            voters = re.findall(r'"id": (\d+), "directoryId": "([^"]+)"', status.partition("CurrentObservers")[0])
            assert ("7", controller.directory_id) in voters and {id_ for id_, _ in voters} == {"1", "7"}
            await k.admin.remove_voter(7, controller.directory_id)
            assert {each.id for each in (await k.admin.describe_quorum()).voters} == {1}
            with pytest.raises(od.BrokerError, match="VOTER_NOT_FOUND"):
                await k.admin.remove_voter(7, controller.directory_id)


async def test_clients_push_the_metrics_that_an_administrator_asks_for(broker: KafkaBroker) -> None:
    sent, other = "org.apache.kafka.producer.record.send.total", "org.apache.kafka.producer.connection."
    if not isinstance(broker, DynamicBroker):  # it has no such request, or nothing that receives metrics
        async with as_alice(broker, push_metrics=True) as k, k.producer() as producer:
            await producer.send("t", b"x", partition=0)
        return
    async with as_alice(broker) as k:
        wanted = {"metrics": "org.apache.kafka.producer.record.", "interval.ms": "100"}
        (await k.admin.alter_client_metrics({"all": wanted})).check()
        await until(k.admin.list_client_metrics)
        async with as_alice(broker, push_metrics=True) as client, client.producer() as out:
            for number_sent in (1, 2, 3):
                await out.send("t", b"x", partition=0)

                async def is_known(total: int = number_sent) -> bool:
                    return total_of(broker, sent) == total

                await until(is_known)
            (await k.admin.alter_client_metrics({"all": {"metrics": other}})).check()

            async def is_other() -> bool:
                return all(name.startswith(other) for name in broker.pushes[-1].metrics)

            await until(is_other)
            (await k.admin.alter_client_metrics({"all": {"metrics": wanted["metrics"]}})).check()

            async def is_wanted() -> bool:
                await out.send("t", b"x", partition=0)
                return sent in broker.pushes[-1].metrics

            await until(is_wanted)
        last = broker.pushes[-1]
        assert last.terminating and {push.client for push in broker.pushes} == {last.client}
        assert last.interval_ms == 100 and [push.terminating for push in broker.pushes].count(True) == 1
        assert total_of(broker, sent) == out.statistics().written
        (await k.admin.alter_client_metrics({"all": dict.fromkeys(wanted)})).check()


def total_of(broker: DynamicBroker, name: str) -> float:
    """Return the sum of the deltas of all pushes."""
    points = [push.metrics[name].sum.data_points for push in broker.pushes if name in push.metrics]
    return sum(point.as_double for listed in points for point in listed)


# ---- three brokers ------------------------------------------------------------------------------------------


async def test_replicas_and_leaders_move_and_the_tools_agree(either_cluster: KafkaCluster, tmp_path: Path) -> None:
    first, second, third = either_cluster.brokers
    await anyio.to_thread.run_sync(lambda: either_cluster.create_topic("moving", 1, 1))
    where = od.TopicPartition("moving", 0)
    async with od.connect(f"kafka://{either_cluster.bootstrap}") as k:
        results = await k.admin.reassign_partitions({where: [3, 2], od.TopicPartition("no", 0): [1]})
        assert results.done.keys() == {where} and "UNKNOWN_TOPIC" in str(results.failed[od.TopicPartition("no", 0)])

        async def is_complete() -> bool:
            return not await k.admin.list_reassignments()

        await until(is_complete)
        await until(lambda: has_replicas(k, where, (3, 2), (2, 3)))
        await k.admin.elect_leaders(where)
        await until(lambda: leads(k, where, 3))
        plan = tmp_path / "plan.json"
        plan.write_text(
            json.dumps({"version": 1, "partitions": [{"topic": "moving", "partition": 0, "replicas": [3, 2]}]})
        )
        verified = await tool(first, "reassign", "--reassignment-json-file", str(plan), "--verify")
        assert "Reassignment of partition moving-0 is complete" in verified
        cancelled = await k.admin.cancel_reassignments(where)
        assert "NO_REASSIGNMENT_IN_PROGRESS" in str(cancelled.failed[where])
        assert (await k.admin.elect_leaders(where)).check() == {where: False}
        assert await directories(k, "moving") == directories_of(await tool(second, "dirs", "--describe"), "moving")
        await anyio.to_thread.run_sync(third.kill)
        third.setup.expire_registration(3)
        await until(lambda: leads(k, where, 2))
        await until(lambda: has_replicas(k, where, (3, 2), (2,)))
        assert re.search(r"Leader: 2\s+Replicas: 3,2\s+Isr: 2\b(?!,)", await described(second, "moving"))
        await anyio.to_thread.run_sync(third.start)
        await until(lambda: has_replicas(k, where, (3, 2), (2, 3)))
        await until(lambda: leads(k, where, 3, elect=True))
        assert re.search(r"Leader: 3\s+Replicas: 3,2\s+Isr: (2,3|3,2)\b", await described(second, "moving"))
        printed = await tool(
            second, "elect", *("--topic", "moving", "--partition", "0", "--election-type", "preferred")
        )
        assert "Valid replica already elected" in printed


async def described(broker: KafkaBroker, topic: str) -> str:
    return await tool(broker, "topics", "--describe", "--topic", topic)


async def has_replicas(
    k: od.Cluster, where: od.TopicPartition, replicas: tuple[int, ...], in_sync: tuple[int, ...]
) -> bool:
    partition = (await k.admin.describe_topics(where.topic)).check()[where.topic].partitions[0]
    return partition.replicas == replicas and tuple(sorted(partition.in_sync)) == in_sync


Directories = set[tuple[int, str, str, int, bool]]
"""Broker, path, partition, bytes, and whether it is being moved there."""


async def directories(k: od.Cluster, topic: str) -> Directories:
    return {
        (broker, directory.path, f"{where.topic}-{where.partition}", replica.size, replica.is_future)
        for broker, listed in (await k.admin.describe_log_dirs()).check().items()
        for directory in listed
        for where, replica in directory.replicas.items()
        if where.topic == topic
    }


def directories_of(printed: str, topic: str) -> Directories:
    (text,) = [line for line in printed.splitlines() if line.startswith("{")]
    return {
        (broker["broker"], directory["logDir"], part["partition"], part["size"], part["isFuture"])
        for broker in json.loads(text)["brokers"]
        for directory in broker["logDirs"]
        for part in directory["partitions"]
        if part["partition"].startswith(f"{topic}-")
    }


async def leads(k: od.Cluster, where: od.TopicPartition, broker: int, *, elect: bool = False) -> bool:
    if elect:
        await k.admin.elect_leaders(where)
    return (await k.admin.describe_topics(where.topic)).check()[where.topic].partitions[0].leader == broker


async def test_the_quorum_and_features_are_those_of_the_tools(cluster: KafkaCluster) -> None:
    first = cluster.brokers[0]
    async with od.connect(f"kafka://{cluster.bootstrap}") as k:
        quorum = await k.admin.describe_quorum()
        status = await tool(first, "org.apache.kafka.tools.MetadataQuorumCommand", "describe", "--status")
        assert re.search(rf"LeaderId:\s+{quorum.leader}\b", status)
        assert {each.id for each in quorum.voters} == {1, 2, 3} and quorum.high_watermark > 0
        features = await k.admin.describe_features()
        printed = await tool(first, "org.apache.kafka.tools.FeatureCommand", "describe")
        level = re.search(r"Feature: group\.version.*FinalizedVersionLevel:\s*(\d+)", printed)
        assert level is not None and features.finalized["group.version"].last == int(level[1])
        with pytest.raises(od.BrokerError, match="INVALID_UPDATE_VERSION"):
            await k.admin.update_features({"share.version": 0})
        (await k.admin.update_features({"share.version": 0}, downgrade=True)).check()

        async def is_off() -> bool:
            return "share.version" not in (await k.admin.describe_features()).finalized

        await until(is_off)
        async with od.connect(f"kafka://{cluster.bootstrap}") as already_open:

            async def can_share() -> bool:
                try:
                    async with already_open.share_consumer("t", group="features"):
                        return True
                except od.Unsupported:
                    return False

            assert not await can_share()
            (await k.admin.update_features({"share.version": 1})).check()
            await until(can_share)
        with pytest.raises(od.BrokerError, match=r"kraft\.version"):
            await k.admin.add_voter(7, "AAECAwQFBgcICQoLDA0ODw", {"CONTROLLER": ("127.0.0.1", 1)})
        with pytest.raises(od.BrokerError, match="BROKER_ID_NOT_REGISTERED"):
            await k.admin.unregister_broker(7)


async def shows(broker: KafkaBroker, line: str, *args: str) -> bool:
    return line in await tool(broker, *args)


async def forget_subscription(k: od.Cluster, name: str) -> None:
    (await k.admin.alter_client_metrics({name: {"metrics": None, "interval.ms": None}})).check()

    async def is_forgotten() -> bool:
        return name not in await k.admin.list_client_metrics()

    await until(is_forgotten)


async def test_other_configurations_are_those_of_the_tools(cluster: KafkaCluster) -> None:
    first, second, _ = cluster.brokers
    session, interval = "consumer.session.timeout.ms", "interval.ms"
    async with od.connect(f"kafka://{cluster.bootstrap}") as k:
        groups = await k.admin.alter_group_configs({"g": {session: "12000"}, "h": {session: "never"}})
        assert groups.done == {"g": None} and isinstance(groups.failed["h"], od.BrokerError)
        (await k.admin.alter_client_metrics({"slow": {"metrics": "org.apache.kafka.", interval: "60000"}})).check()
        (await k.admin.alter_broker_configs({None: {"log.cleaner.threads": "2"}})).check()
        (await k.admin.alter_broker_configs({None: {"log.cleaner.threads": "1"}}, validate_only=True)).check()

        async def is_known() -> bool:
            of_group = (await k.admin.describe_group_configs("g")).check()["g"][session]
            of_metrics = (await k.admin.describe_client_metrics("slow")).check()["slow"].get(interval)
            of_brokers = (await k.admin.describe_broker_configs([None, 2])).check()
            own = of_brokers[2]["log.cleaner.threads"]
            of_all = of_brokers[None].get("log.cleaner.threads")
            return await k.admin.list_client_metrics() == ["slow"] and [of_group, of_metrics, of_all, own] == [
                ConfigEntry(session, "12000", ConfigSource.GROUP),
                ConfigEntry(interval, "60000", ConfigSource.CLIENT_METRICS),
                ConfigEntry("log.cleaner.threads", "2", ConfigSource.ALL_BROKERS),
                ConfigEntry("log.cleaner.threads", "2", ConfigSource.ALL_BROKERS),
            ]

        await until(is_known)
        for args, line in (
            (("groups", "--entity-name", "g"), f"{session}=12000"),
            (("client-metrics", "--entity-name", "slow"), f"{interval}=60000"),
            (("brokers", "--entity-default"), "log.cleaner.threads=2"),
        ):
            await until(partial(shows, first, line, "configs", "--describe", "--entity-type", *args))
        await until(partial(shows, second, "slow", "metrics", "--list"))
        await forget_subscription(k, "slow")
        (await k.admin.alter_broker_configs({None: {"log.cleaner.threads": None}})).check()


async def test_the_program_of_the_how_to_runs(cluster: KafkaCluster, capsys: pytest.CaptureFixture[str]) -> None:
    _, block, configure = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, "admin.md", "exec"), names)
    await anyio.to_thread.run_sync(lambda: cluster.create_topic("howto", 1, 1))
    async with od.connect(f"kafka://{cluster.bootstrap}") as k:
        await names["let_bob_in"](k)
        await names["move"](k, od.TopicPartition("howto", 0))
        exec(compile(configure, "admin.md", "exec"), names)
        await names["configure"](k)

        async def is_configured() -> bool:
            group = (await k.admin.describe_group_configs("billing")).check()["billing"]
            return (
                group["consumer.session.timeout.ms"].value == "30000" and "all" in await k.admin.list_client_metrics()
            )

        await until(is_configured)
        await forget_subscription(k, "all")
    printed = capsys.readouterr().out
    assert "principal='User:bob'" in printed and "OffsetListing(position=None" in printed
