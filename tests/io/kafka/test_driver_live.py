"""The driver with real brokers: the oldest way of finding versions, and today's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from tests.io.kafka.peer import negotiate

import odradek as od
from odradek.core.interfaces import ProducerRecord
from odradek.errors import BrokerError, Closed, OdradekError, Rejected, Unsupported, UsageError
from odradek.io.kafka.connections import BOOTSTRAP_ID
from odradek.io.kafka.coordinators import CoordinatorType
from odradek.io.kafka.driver import KafkaDriver, KafkaOptions
from odradek.io.kafka.metadata import MetadataOptions
from odradek.testing import KafkaBroker
from odradek.testing.kafka.releases import NEWEST
from odradek.types import EARLIEST, LATEST, Broker
from odradek.wire.kafka.messages.groups import FindCoordinatorRequest

OLD, KRAFT = "0.8.2.2", "3.9.1"

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300), pytest.mark.releases(OLD, KRAFT, NEWEST)]

FIRST_TIME_S = 60.0


@pytest.fixture
def broker(any_kafka: KafkaBroker) -> KafkaBroker:
    """A broker of each of three releases in turn."""
    return any_kafka


def driver_of(broker: KafkaBroker, *more: str) -> KafkaDriver:
    addresses = [Broker(BOOTSTRAP_ID, broker.host, broker.port), *(Broker(BOOTSTRAP_ID, host, 9) for host in more)]
    options = KafkaOptions(metadata=MetadataOptions(bootstrap_timeout_s=FIRST_TIME_S))
    return KafkaDriver(addresses, options)


async def test_a_broker_is_known_by_its_address_alone(broker: KafkaBroker) -> None:
    async with driver_of(broker) as driver:
        assert driver.metadata.table.brokers == {broker.broker_id: Broker(broker.broker_id, broker.host, broker.port)}
        assert driver.versions().release == ("0.8.2" if broker.version == OLD else None)
        assert ("zstd" in driver.compressions) == (broker.version != OLD)
        assert {"none", "gzip", "snappy", "lz4"} <= driver.compressions


async def test_records_are_written_and_read_again(broker: KafkaBroker, anyio_backend_name: str) -> None:
    name = f"first-{anyio_backend_name}-{anyio.current_time():.6f}"
    await anyio.to_thread.run_sync(broker.create_topic, name)
    async with od.connect(f"kafka://{broker.bootstrap}") as k:
        async with k.producer() as out:
            ack = await out.send(name, b"one", key=b"k")
            assert ack.position == 0
        assert name in await k.topics()
        assert await k.partitions(name) == (ack.partition,)
        assert await k.positions(name, LATEST) == {ack.partition: 1}
        async with k.reader(name, start=EARLIEST, until=LATEST) as reader:
            assert [(record.key, record.value) async for record in reader] == [(b"k", b"one")]


async def test_partitions_with_large_batches_are_read_at_the_same_time(broker: KafkaBroker) -> None:
    name = f"large-{anyio.current_time():.6f}"
    await anyio.to_thread.run_sync(broker.create_topic, name, 2)
    read: list[int] = []
    async with od.connect(f"kafka://{broker.bootstrap}") as k:
        async with k.producer() as out:
            for partition in range(2):
                (await out.send_many(name, [bytes(200_000)] * 20, partition=partition)).check()
        async with k.reader(name, start=EARLIEST, until=LATEST) as reader:
            async for record in reader:
                read.append(record.partition.partition)
    assert read.count(0) == read.count(1) == 20
    assert read != sorted(read, key=read.index), "one was read to its end before the other one began"


async def test_a_topic_that_does_not_exist_is_created_only_where_it_is_named_to_old_brokers(
    broker: KafkaBroker,
) -> None:
    name = f"missing-{anyio.current_time():.6f}"
    async with driver_of(broker) as driver:
        await driver.metadata.table_for_topic(name)
        assert name not in await driver.metadata.all_topics()
    async with driver_of(broker) as driver:
        table = await driver.metadata.table_for_topic(name, named=True)
        with anyio.fail_after(30):
            while broker.version == OLD and not table.partitions(name):
                table = await driver.metadata.wait_for_newer(table.version)
        table = await driver.metadata.refresh()
        assert bool(table.partitions(name)) == (broker.version == OLD)


async def test_a_name_that_no_topic_can_have_says_so(odradek_kafka: KafkaBroker) -> None:
    async with driver_of(odradek_kafka) as driver:
        with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
            await driver.metadata.table_for_topic("not a name", create=True)


async def test_a_coordinator_is_looked_up_once(broker: KafkaBroker) -> None:
    async with driver_of(broker) as driver:
        with anyio.fail_after(60):
            coordinator = await _coordinator(driver)
        assert coordinator.id == broker.broker_id
        assert await driver.coordinators.find(CoordinatorType.GROUP, "g") is coordinator
        connection = await driver.coordinator(CoordinatorType.GROUP, "g")
        assert (await negotiate(connection)).has(FindCoordinatorRequest)
        driver.coordinators.forget(CoordinatorType.GROUP, "g")
        assert await driver.coordinators.find(CoordinatorType.GROUP, "g") == coordinator
        if broker.version == OLD:
            with pytest.raises(Unsupported, match=r"0\.11"):
                await driver.coordinators.find(CoordinatorType.TRANSACTION, "t")


async def _coordinator(driver: KafkaDriver) -> Broker:
    """Brokers create the topic of group positions at the first question, and have no answer to that."""
    while True:
        try:
            return await driver.coordinators.find(CoordinatorType.GROUP, "g")
        except BrokerError as error:
            assert error.retriable
            await anyio.sleep(0.2)


async def test_each_kind_of_work_has_a_connection_and_each_broker_its_client(odradek_kafka: KafkaBroker) -> None:
    async with driver_of(odradek_kafka) as driver:
        (broker,) = driver.metadata.table.brokers.values()
        fetch, produce = driver.broker(broker, purpose="fetch"), driver.broker(broker, purpose="produce")
        assert driver.broker(broker, purpose="fetch") is fetch
        assert fetch.connection is not produce.connection
        moved = driver.broker(Broker(broker.id, "localhost", broker.port), purpose="fetch")
        assert moved is not fetch
        await anyio.wait_all_tasks_blocked()
        assert not fetch.connection.is_open
        with pytest.raises(UsageError, match="another thread"):
            await anyio.to_thread.run_sync(partial(driver.broker, broker, purpose="fetch"))
    with pytest.raises(Closed):
        driver.broker(broker, purpose="other")


async def test_an_address_that_does_not_answer_does_not_matter_when_another_does(odradek_kafka: KafkaBroker) -> None:
    async with driver_of(odradek_kafka, "127.0.0.1", "no-such-host.invalid") as driver:
        assert driver.metadata.table.brokers


@pytest.mark.slow
@pytest.mark.sampled(2)
async def test_a_broker_that_restarts_is_found_again(odradek_kafka_restarted: KafkaBroker) -> None:
    broker = odradek_kafka_restarted
    async with driver_of(broker) as driver:
        await driver.metadata.table_for_topic("t", create=True)
        await anyio.to_thread.run_sync(broker.kill)
        with pytest.raises(OdradekError):
            await driver.metadata.refresh()
        await anyio.to_thread.run_sync(broker.start)
        with anyio.fail_after(60):
            while True:
                try:
                    table = await driver.metadata.refresh()
                    break
                except OdradekError as error:
                    assert error.retriable
        assert table.partitions("t")


@pytest.fixture
def odradek_kafka_restarted() -> Iterator[KafkaBroker]:
    with KafkaBroker(NEWEST) as broker:
        yield broker


async def test_records_are_validated_for_what_the_brokers_can_store(broker: KafkaBroker) -> None:
    old = broker.version == OLD
    async with driver_of(broker) as driver:
        driver.validate_record("t", ProducerRecord(None, b"key"), 1000)
        for record in (ProducerRecord(b"", headers=[("h", b"")]), ProducerRecord(b"", timestamp=5)):
            if old:
                with pytest.raises(Unsupported, match=r"Kafka 0\.1"):
                    driver.validate_record("t", record, 1000)
            else:
                driver.validate_record("t", record, 1000)
        for topic in ("", "a b", ".", "x" * 250):
            with pytest.raises(Rejected, match="a name has"):
                driver.validate_record(topic, ProducerRecord(b""), 1000)
        with pytest.raises(Rejected, match="larger than 1000"):
            driver.validate_record("t", ProducerRecord(bytes(1000)), 1000)


async def test_entering_may_be_cancelled_at_any_moment_and_leaves_nothing_open(odradek_kafka: KafkaBroker) -> None:
    for n in range(12):
        before = {task.id for task in anyio.get_running_tasks()}
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def cancel(after: int = n, scope: anyio.CancelScope = scope) -> None:
                    for _ in range(after * 3):
                        await anyio.lowlevel.checkpoint()
                    scope.cancel()

                group.start_soon(cancel)
                async with driver_of(odradek_kafka):
                    await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert {task.id for task in anyio.get_running_tasks()} <= before
