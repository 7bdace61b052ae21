"""The driver of 0.7 as a whole: its rules, its brokers, with and without ZooKeeper."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Iterator
from uuid import uuid4

import anyio
import anyio.lowlevel
import pytest

from odradek.core.interfaces import (
    Assignment,
    BrokerClient,
    PartitionBatch,
    ProducerRecord,
    ProtocolDriver,
    Subscription,
)
from odradek.errors import (
    Closed,
    ConfigError,
    ConnectionLost,
    InternalError,
    LocalProtocolError,
    MessageTooLarge,
    Rejected,
    Unreachable,
    Unsupported,
    UsageError,
)
from odradek.io.kafka07.driver import Kafka07Driver, Kafka07Options
from odradek.io.zookeeper import ZooKeeper
from odradek.testing import Kafka07Broker, ZooKeeperServer
from odradek.types import EARLIEST, LATEST, Broker, Position, TopicPartition

pytestmark = pytest.mark.anyio

P = TopicPartition("t", 0, 1)


@pytest.fixture
def zookeeper_root(zookeepers: Callable[[str], ZooKeeperServer]) -> str:
    """The address of an empty node for this test alone."""
    server, path = zookeepers("3.9.5"), f"/{uuid4().hex}"
    server.create(path)
    return server.address + path


@pytest.fixture
def silent() -> Iterator[Broker]:
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        yield Broker(0, host, port)


class Listener:
    def __init__(self) -> None:
        self.assigned: Assignment | None = None
        self.assigned_once = anyio.Event()

    async def revoke(self, partitions: Collection[TopicPartition]) -> None:
        self.assigned = None

    async def assign(self, assignment: Assignment) -> None:
        self.assigned = assignment
        if assignment.partitions:
            self.assigned_once.set()

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        self.assigned = None


async def test_a_cluster_over_zookeeper_from_registration_to_a_groups_positions(zookeeper_root: str) -> None:
    async with (
        Kafka07Broker(zookeeper=zookeeper_root, config={"num.partitions": "2", "log.flush.interval": "1"}) as broker,
        Kafka07Driver(zookeeper=zookeeper_root) as driver,
    ):
        same: ProtocolDriver = driver
        table = await same.metadata.table_for_topic("t")
        assert (table.partitions("t"), table.registered("t")) == ((P,), ())
        assert table.brokers == {1: Broker(1, "127.0.0.1", broker.port)}
        api = same.broker(table.brokers[1], purpose="produce")
        results = await api.produce([PartitionBatch(P, [ProducerRecord(b"one"), ProducerRecord(b"two")])], acks=-1)
        assert results is None  # all of them are written
        with anyio.fail_after(10):
            while len(table.registered("t")) < 2:
                table = await driver.metadata.wait_for_newer(table.version)
        end = await driver.broker(table.brokers[1], purpose="control").positions(P, LATEST)
        assert end == [26]
        member, listener = driver.membership(Subscription("g", {"t": 1})), Listener()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(member.run, listener)
            with anyio.fail_after(10):
                await listener.assigned_once.wait()
            assert listener.assigned is not None and set(listener.assigned.partitions) == set(table.registered("t"))
            await driver.offsets("g").commit({P: end[0]})
            tasks.cancel_scope.cancel()
        await member.leave()
        assert await driver.offsets("g").fetch([P]) == {P: 26}
        assert repr(driver).startswith("<Kafka07Driver <ZooKeeperMetadata v")


async def test_a_static_list_probes_partitions_and_creates_nothing() -> None:
    config = {"num.partitions": "3", "topic.partition.count.map": "many:700,full:256"}
    async with (
        Kafka07Broker(broker_id=1, config=config) as first,
        Kafka07Broker(broker_id=2) as second,
        Kafka07Driver(brokers=[f"1@{first.address}", f"2@{second.address}"]) as driver,
    ):
        table = await driver.metadata.table_for_topic("t")
        assert [p.name for p in table.registered("t")] == ["1-0", "1-1", "1-2", "2-0"]
        for name, count in (("many", 701), ("full", 257)):
            assert len((await driver.metadata.table_for_topic(name)).registered(name)) == count
        with pytest.raises(ConfigError, match="topic 'a/b' has U"):
            await driver.metadata.table_for_topic("a/b")
        assert not [path for broker in (first, second) for path in broker.log_dir.iterdir() if path.is_dir()]
        second.kill()
        assert [p.name for p in (await driver.metadata.table_for_topic("u")).registered("u")] == ["1-0", "1-1", "1-2"]
        for use in (lambda: driver.membership(Subscription("g", {"t": 1})), lambda: driver.offsets("g")):
            with pytest.raises(Unsupported, match="needs ZooKeeper"):
                use()
        with pytest.raises(Unsupported, match="a choice of assignors"):
            driver.membership(Subscription("g", {"t": 1}, assignors=["range"]))
        with pytest.raises(Unsupported, match="group's protocol"):
            driver.membership(Subscription("g", {"t": 1}, group_protocol="classic"))
        with pytest.raises(Unsupported, match="metadata of commits"):
            driver.membership(Subscription("g", {"t": 1}, commit_metadata="host"))
        with pytest.raises(Unsupported):
            await driver.metadata.all_topics()


async def test_a_partition_whose_first_segments_are_gone_still_counts() -> None:
    async with Kafka07Broker(broker_id=0, config={"log.flush.interval": "1"}) as broker:
        p = TopicPartition("t", 0, 0)
        async with Kafka07Driver(brokers=[broker.address]) as driver:
            api = driver.broker((await driver.metadata.table_for_topic("t")).brokers[0], purpose="produce")
            await api.produce([PartitionBatch(p, [ProducerRecord(b"x")])], acks=-1)
        broker.stop()
        (segment,) = (broker.log_dir / "t-0").glob("*.kafka")
        segment.rename(segment.with_name(f"{5000:020}.kafka"))
        broker.start()
        async with Kafka07Driver(brokers=[broker.address]) as driver:
            assert (await driver.metadata.table_for_topic("t")).registered("t") == (p,)
            assert await driver.broker(driver.metadata.table.brokers[0], purpose="control").positions(p, EARLIEST) == [
                5000
            ]


async def lose(api: BrokerClient) -> None:
    with pytest.raises(ConnectionLost):
        await api.positions(P, LATEST)


async def test_the_same_broker_and_purpose_share_a_connection_until_the_address_changes(silent: Broker) -> None:
    async with Kafka07Broker(broker_id=silent.id) as new, Kafka07Driver(brokers=[silent.address]) as driver:
        api = driver.broker(silent, purpose="fetch")
        assert driver.broker(silent, purpose="fetch") is api
        assert driver.broker(silent, purpose="control") is not api
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lose, api)
                await anyio.wait_all_tasks_blocked()
                moved = driver.broker(Broker(silent.id, new.host, new.port), purpose="fetch")
        assert moved is not api
        assert await moved.positions(P, LATEST) == [0]


async def test_leaving_fails_what_is_outstanding_and_ends_all_connections(silent: Broker) -> None:
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks, Kafka07Driver(brokers=[silent.address]) as driver:
            tasks.start_soon(lose, driver.broker(silent, purpose="control"))
            await anyio.wait_all_tasks_blocked()
    with pytest.raises(Closed):
        driver.broker(Broker(5, "h", 1), purpose="fetch")
    with pytest.raises(Closed):
        await driver.metadata.wait_for_newer(99)


async def test_a_connection_that_ends_by_a_defect_is_replaced_and_the_others_go_on(
    silent: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Kafka07Broker(broker_id=1) as good, Kafka07Driver(brokers=[good.address]) as driver:
        fine = driver.broker(Broker(1, good.host, good.port), purpose="fetch")
        assert await fine.positions(P, LATEST) == [0]
        broken = driver.broker(silent, purpose="fetch")
        monkeypatch.setattr(broken.connection, "_expire", lambda now: 1 / 0)
        broken.connection._set_deadline(0)
        with anyio.fail_after(10):
            with pytest.raises(InternalError, match="ZeroDivisionError"):
                await broken.positions(P, LATEST)
            while driver.broker(silent, purpose="fetch") is broken:
                await anyio.lowlevel.checkpoint()
        assert await fine.positions(P, LATEST) == [0]
        assert driver.broker(Broker(1, good.host, good.port), purpose="fetch") is fine


async def test_use_from_another_thread_says_so(silent: Broker) -> None:
    async with Kafka07Driver(brokers=[silent.address]) as driver:
        driver.broker(silent, purpose="fetch")

        def use() -> None:
            driver.broker(silent, purpose="fetch")

        with pytest.raises(UsageError, match="in another thread than that of its `async with` block"):
            await anyio.to_thread.run_sync(use)


async def test_an_error_in_the_block_stays_as_it_is(zookeeper_root: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with Kafka07Driver(zookeeper=zookeeper_root):
            raise ZeroDivisionError
    with anyio.CancelScope() as scope:
        async with Kafka07Driver(zookeeper=zookeeper_root):
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught


async def test_a_zookeeper_that_is_not_there_says_so() -> None:
    driver = Kafka07Driver(zookeeper="127.0.0.1:1", options=Kafka07Options(zookeeper_timeout_s=0.3))
    with pytest.raises(Unreachable, match="zookeeper"):
        async with driver:
            pass


async def test_unused_it_is_closed() -> None:
    driver = Kafka07Driver(zookeeper="127.0.0.1:1")
    with pytest.raises(Closed):
        _ = driver.metadata
    with pytest.raises(Closed):
        driver.broker(Broker(0, "h", 1), purpose="fetch")
    assert repr(driver) == "<Kafka07Driver not open connections=0>"


async def test_an_administrative_request_that_0_7_lacks_says_how_it_is_done_there() -> None:
    async with Kafka07Driver(brokers=["h:1"]) as driver:
        with pytest.raises(Unsupported, match=r"no requests for it\. The first record .* ZooKeeper"):
            await driver.admin().delete_groups(["g"])


def test_one_way_in_and_not_two() -> None:
    for arguments in ({}, {"zookeeper": "h:1", "brokers": ["h:2"]}):
        with pytest.raises(ConfigError, match="either through ZooKeeper or through a list of brokers"):
            Kafka07Driver(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        Kafka07Driver(brokers=["nonsense"])


@pytest.mark.parametrize(
    ("subscription", "what"),
    [
        (Subscription("../g", {"t": 1}), "group name '../g'"),
        (Subscription("g", {"orders-\U0001f600": 1}), r"topic .* has U\+1F600 at index 7"),
        (Subscription("g", {"x" * 254: 1}), "has 254 bytes in UTF-8"),
    ],
)
def test_names_that_cannot_be_are_refused_before_anything_is_joined(subscription: Subscription, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Kafka07Driver(zookeeper="127.0.0.1:1").membership(subscription)


def test_the_rules_of_a_record() -> None:
    driver = Kafka07Driver(brokers=["h:1"])
    driver.validate_record("t", ProducerRecord(b"12345", key=b"k"), 5)
    assert driver.record_size(ProducerRecord(b"12345")) == 15
    with pytest.raises(Rejected) as caught:
        driver.validate_record("t", ProducerRecord(b"123456"), 5)
    assert isinstance(caught.value.__cause__, MessageTooLarge)
    with pytest.raises(Rejected) as caught:
        driver.validate_record("a/b", ProducerRecord(b""), 5)
    assert isinstance(caught.value.__cause__, LocalProtocolError)
    for record in (ProducerRecord(b"", headers=[("a", b"b")]), ProducerRecord(b"", timestamp=1)):
        with pytest.raises(Unsupported):
            driver.validate_record("t", record, 5)


async def test_digest_credentials_reach_zookeeper(zookeeper_root: str) -> None:
    credentials = [("digest", "user:secret")]
    async with Kafka07Driver(zookeeper=zookeeper_root, auth=credentials) as driver, ZooKeeper(zookeeper_root) as other:
        await driver.offsets("g").commit({P: Position(4)})
        with pytest.raises(ConfigError, match="credentials"):
            await other.set("/consumers/g/offsets/t/1-0", b"5")
