"""Permissions that operators take away and give back while a client works, on real brokers."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import anyio
import pytest
from tests.samples import one_in, seed_of

import odradek as od
from odradek.core.admin_access import Acl, AclOperation, AclPermission, AclResource
from odradek.testing import KafkaBroker

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

AUTHORIZERS = {
    "2.0.1": "kafka.security.auth.SimpleAclAuthorizer",
    "2.8.2": "kafka.security.authorizer.AclAuthorizer",
    "4.3.1": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
}


@pytest.fixture
def anyio_backend() -> str:
    """One loop is enough for what real brokers do."""
    return "asyncio"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "broker" in metafunc.fixturenames:
        releases = one_in(2, tuple(AUTHORIZERS), seed_of(metafunc.config))
        metafunc.parametrize("broker", releases, indirect=True, scope="module")


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest) -> Iterator[KafkaBroker]:
    """A broker where alice may do what no entry denies."""
    config = {
        "authorizer.class.name": AUTHORIZERS[request.param],
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "true",
    }
    with KafkaBroker(request.param, listeners=("SASL_PLAINTEXT",), config=config) as broker:
        yield broker


def as_alice(broker: KafkaBroker) -> od.Cluster:
    security = od.Security(sasl_mechanism="PLAIN", sasl_username="alice", sasl_password=broker.users["alice"])
    return od.connect(f"kafka+sasl://{broker.bootstrap}", security=security)


async def test_a_reader_continues_when_it_may_read_again(broker: KafkaBroker) -> None:
    """The error is raised once, and the other topic is read meanwhile."""
    one, other = uuid4().hex, uuid4().hex
    for topic in (one, other):
        broker.create_topic(topic, 1)
    entry = Acl(AclResource.TOPIC, one, "User:alice", AclOperation.READ, AclPermission.DENY)
    async with (
        od.connect(f"kafka://127.0.0.1:{broker.plaintext_port}") as k,
        k.producer() as out,
        as_alice(broker) as alice,
        alice.reader([one, other], start=od.EARLIEST) as reader,
    ):

        async def next_value() -> tuple[str, bytes | None]:
            with anyio.fail_after(60):
                record = await anext(reader)
            return record.topic, record.value

        await out.send(one, b"before")
        assert await next_value() == (one, b"before")
        (await k.admin.create_acls(entry)).check()
        with pytest.raises(od.BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            await next_value()
        await out.send(other, b"meanwhile")
        assert await next_value() == (other, b"meanwhile")
        (await k.admin.delete_acls(entry)).check()
        await out.send(one, b"afterwards")
        assert await next_value() == (one, b"afterwards")


async def test_a_producer_says_why_a_topic_is_not_written_any_more(broker: KafkaBroker) -> None:
    topic = uuid4().hex
    broker.create_topic(topic, 1)
    entry = Acl(AclResource.TOPIC, topic, "User:alice", AclOperation.DESCRIBE, AclPermission.DENY)
    async with (
        od.connect(f"kafka://127.0.0.1:{broker.plaintext_port}") as k,
        as_alice(broker) as alice,
        alice.producer(deliver_within=1.0) as out,
    ):

        async def wait_for_partitions(count: int) -> None:
            with anyio.fail_after(60):
                while len((await alice.driver.metadata.refresh()).partitions(topic)) != count:  # noqa: ASYNC110 - brokers have no events
                    await anyio.sleep(0.05)

        await out.send(topic, b"before")
        (await k.admin.create_acls(entry)).check()
        await wait_for_partitions(0)
        with pytest.raises(od.NotWritten, match=f"{topic}: TOPIC_AUTHORIZATION_FAILED; 0 attempts"):
            await out.send(topic, b"denied")
        # The first one has waited in vain, so the topic is looked up once more, in case that brokers are to create it.
        with pytest.raises(od.NotWritten, match=f"{topic}/0: .*TOPIC_AUTHORIZATION_FAILED.*; 0 attempts"):
            await out.send(topic, b"denied", partition=0)
        (await k.admin.delete_acls(entry)).check()
        await wait_for_partitions(1)
        await out.send(topic, b"afterwards")


async def test_a_producer_goes_on_without_the_right_to_be_idempotent(broker: KafkaBroker) -> None:
    """Brokers before 2.8 check it with each batch, later ones never."""
    topic = uuid4().hex
    broker.create_topic(topic, 1)
    entry = Acl(AclResource.CLUSTER, "kafka-cluster", "User:alice", AclOperation.IDEMPOTENT_WRITE, AclPermission.DENY)
    async with (
        od.connect(f"kafka://127.0.0.1:{broker.plaintext_port}") as k,
        as_alice(broker) as alice,
        alice.producer(deliver_within=60) as out,
    ):
        await out.send(topic, b"0")
        (await k.admin.create_acls(entry)).check()
        for number in range(1, 20):
            await out.send(topic, b"%d" % number)
            await anyio.sleep(0.1)  # brokers hear of it a moment later
        (await k.admin.delete_acls(entry)).check()
        async with k.reader(topic, start=od.EARLIEST, until=od.LATEST) as reader:
            assert [record.value async for record in reader] == [b"%d" % number for number in range(20)]
