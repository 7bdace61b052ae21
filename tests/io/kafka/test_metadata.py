"""Metadata of a cluster, from brokers that answer, do not, or change their minds."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio import wait_all_tasks_blocked
from tests.io.kafka.answers import metadata_response, topic_response
from tests.io.limits import TimeLimit

from odradek.core.backoff import Backoff
from odradek.core.kafka.versions import BrokerVersions, VersionRange
from odradek.errors import AuthFailed, BrokerError, Closed, ConfigError, OdradekError, Unreachable
from odradek.io.kafka import metadata as metadata_module
from odradek.io.kafka.connections import BOOTSTRAP_ID
from odradek.io.kafka.metadata import KafkaMetadata, MetadataOptions, metadata_request
from odradek.types import Broker, TopicPartition
from odradek.wire.kafka.messages.common import NodeEndpoint
from odradek.wire.kafka.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)

pytestmark = pytest.mark.anyio

SEEDS = [Broker(BOOTSTRAP_ID, host, 9092) for host in ("s1", "s2", "s3")]
NEWEST = BrokerVersions({3: VersionRange(0, 13), 0: VersionRange(0, 13), 1: VersionRange(0, 18)})
QUICK = MetadataOptions(bootstrap_timeout_s=5.0, creation_s=5.0, backoff=Backoff(0, 1, 0.01))


class Brokers:
    """A cluster whose answers a test sets."""

    def __init__(self, *topics: MetadataResponseTopic) -> None:
        self.topics = {each.name: each for each in topics}
        self.hosts = {1: "b1", 2: "b2"}
        self.asked: list[tuple[str, MetadataRequest]] = []
        self.down: dict[str, OdradekError] = {}
        self.error_code = 0
        self.versions = NEWEST
        self.gate: anyio.Event | None = None
        self.on_ask: Callable[[MetadataRequest], None] = lambda request: None

    async def ask(self, broker: Broker, build: Callable[[BrokerVersions], MetadataRequest]) -> MetadataResponse:
        await anyio.lowlevel.checkpoint()
        request = build(self.versions)
        self.asked.append((broker.host, request))
        if broker.host in self.down:
            raise self.down[broker.host]
        self.on_ask(request)
        if self.gate is not None:
            await self.gate.wait()
        names: Iterable[str | None] = [each.name for each in request.topics or ()]
        if request.topics is None or not (request.topics or self.versions.has_null_topics):
            names = [name for name, topic in self.topics.items() if topic.error_code != 29]  # left out without a word
        topics = (self.topics.get(name) or topic_response(name, error=3) for name in names)
        return metadata_response(*topics, hosts=self.hosts, error=self.error_code)

    @property
    def names_asked(self) -> list[list[str | None] | None]:
        return [r.topics if r.topics is None else [t.name for t in r.topics] for _, r in self.asked]


@asynccontextmanager
async def opened(brokers: Brokers, options: MetadataOptions = QUICK) -> AsyncIterator[KafkaMetadata]:
    with anyio.fail_after(20):
        async with KafkaMetadata(SEEDS, brokers.ask, options) as metadata:
            yield metadata


def refused(address: str) -> Unreachable:
    return Unreachable("tcp", address, "refused")


async def test_a_topic_whose_answer_takes_long_is_not_taken_for_one_that_does_not_exist() -> None:
    brokers = Brokers(topic_response("t", 1))
    async with opened(brokers, MetadataOptions(creation_s=0.0)) as metadata, anyio.create_task_group() as tasks:
        brokers.gate = anyio.Event()

        async def answer() -> None:
            await wait_all_tasks_blocked()
            assert brokers.gate is not None
            brokers.gate.set()

        tasks.start_soon(answer)
        assert (await metadata.table_for_topic("t")).registered("t")


# ---- bootstrap ---------------------------------------------------------------------------------------------------


async def test_topics_that_were_made_again_are_reported_once() -> None:
    brokers, recreated = Brokers(topic_response("t", 1, topic_id=b"1" * 16), topic_response("u", 1)), list[str]()
    async with KafkaMetadata(SEEDS, brokers.ask, QUICK, recreated.extend) as metadata:
        await metadata.all_topics()
        brokers.topics["t"] = topic_response("t", 1, topic_id=b"2" * 16)
        for _ in range(3):
            await metadata.refresh()
    assert recreated == ["t"]


async def test_the_first_address_that_answers_is_enough() -> None:
    brokers = Brokers()
    brokers.down = {"s1": refused("s1:9092"), "s3": refused("s3:9092")}
    async with opened(brokers) as metadata:
        assert metadata.table.brokers == {1: Broker(1, "b1", 9092), 2: Broker(2, "b2", 9092)}
    assert {host for host, _ in brokers.asked} <= {"s1", "s2", "s3"}
    assert brokers.names_asked[-1] == []


async def test_a_broker_that_hangs_does_not_hold_up_the_others() -> None:
    brokers = Brokers()
    ask, hanging = brokers.ask, {"s1", "s2", "b1"}

    async def ask_or_hang(broker: Broker, build: Callable[[BrokerVersions], MetadataRequest]) -> MetadataResponse:
        if broker.host in hanging:
            await anyio.sleep_forever()
        return await ask(broker, build)

    brokers.ask = ask_or_hang  # type: ignore[method-assign]
    async with opened(brokers) as metadata:
        for _ in range(3):
            await metadata.refresh()
    assert {host for host, _ in brokers.asked} <= {"s3", "b2"}
    assert len(brokers.asked) >= 4  # more only if the machine lets one of these wait for a second, too


async def test_listeners_that_close_in_the_tls_handshake_are_not_tried_for_long() -> None:
    brokers = Brokers()
    brokers.down = {broker.host: Unreachable("tls", broker.address, "closed by the peer") for broker in SEEDS}
    patient = MetadataOptions(bootstrap_timeout_s=600.0, backoff=Backoff(0, 1, 0.01))
    with pytest.raises(Unreachable) as caught:
        async with opened(brokers, patient):
            pass
    assert caught.value.step == "tls"
    assert len(brokers.asked) == 3 * len(SEEDS)


async def test_brokers_that_start_may_refuse_and_then_close_in_the_tls_handshake() -> None:
    brokers = Brokers()
    ask, steps = brokers.ask, ["tcp", "tcp", "tcp", "tls", "tls", "tcp", "tls", "tls"]

    async def start_up(broker: Broker, build: Callable[[BrokerVersions], MetadataRequest]) -> MetadataResponse:
        attempt = len(brokers.asked) // len(SEEDS)
        if attempt < len(steps):
            brokers.down[broker.host] = Unreachable(steps[attempt], broker.address, "closed by the peer")
        else:
            brokers.down.clear()
        return await ask(broker, build)

    brokers.ask = start_up  # type: ignore[method-assign]
    async with opened(brokers, MetadataOptions(bootstrap_timeout_s=600.0, backoff=Backoff(0, 1, 0.01))) as metadata:
        assert metadata.table.brokers
    assert len(brokers.asked) == len(steps) * len(SEEDS) + 1


async def test_addresses_are_tried_again_until_one_answers() -> None:
    brokers = Brokers()
    brokers.down = {broker.host: refused(broker.address) for broker in SEEDS}

    async with anyio.create_task_group() as group:

        async def come_up() -> None:
            while len(brokers.asked) < 7:
                await anyio.lowlevel.checkpoint()
            brokers.down.clear()

        group.start_soon(come_up)
        async with opened(brokers) as metadata:
            assert metadata.table.brokers
    assert len(brokers.asked) > 7


async def test_without_an_answer_the_error_names_every_address_and_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers()
    brokers.down = {"s1": refused("s1:9092"), "s2": Unreachable("dns", "s2:9092", "unknown"), "s3": refused("s3:9092")}
    limit = TimeLimit(600.0, monkeypatch)

    async def end_limit() -> None:
        while len(brokers.asked) < 4:  # of the second time
            await anyio.lowlevel.checkpoint()
        limit.end()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end_limit)
        with pytest.raises(Unreachable) as caught:
            async with opened(brokers, MetadataOptions(bootstrap_timeout_s=600.0, backoff=Backoff(0, 1, 0.01))):
                pass
    for part in ("s1:9092", "s2:9092: dns: unknown", "s3:9092: tcp: refused"):
        assert part in str(caught.value)


async def test_silent_addresses_cost_the_time_limit_and_no_more() -> None:
    brokers = Brokers()
    brokers.gate = anyio.Event()
    with pytest.raises(Unreachable, match=r"no answer within 0\.05 s"):
        async with opened(brokers, MetadataOptions(bootstrap_timeout_s=0.05)):
            pass


async def test_an_error_that_trying_again_cannot_change_is_raised_at_once() -> None:
    brokers = Brokers()
    brokers.down = {broker.host: AuthFailed("PLAIN", "wrong password") for broker in SEEDS}
    with pytest.raises(AuthFailed, match="wrong password"):
        async with opened(brokers, MetadataOptions(bootstrap_timeout_s=3600)):
            pass
    assert len(brokers.asked) == 3


async def test_no_address_is_an_error_of_the_user() -> None:
    with pytest.raises(ConfigError, match="at least one broker"):
        KafkaMetadata([], Brokers().ask)


async def test_a_broker_that_knows_no_broker_yet_is_not_believed() -> None:
    brokers = Brokers()
    brokers.hosts = {}

    def starts(request: MetadataRequest) -> None:
        if len(brokers.asked) > 4:
            brokers.hosts = {1: "b1"}

    brokers.on_ask = starts
    async with opened(brokers) as metadata:
        assert list(metadata.table.brokers) == [1]


async def test_a_restarted_broker_that_knows_no_broker_yet_makes_no_topic_disappear() -> None:
    brokers = Brokers(topic_response("t", 1))
    topics, hosts = brokers.topics, brokers.hosts
    async with opened(brokers) as metadata:
        assert await metadata.all_topics() == {"t"}

        def starts(request: MetadataRequest) -> None:
            is_new = brokers.asked[-1][0] == "b1"
            brokers.topics, brokers.hosts = ({}, {}) if is_new else (topics, hosts)

        brokers.on_ask = starts
        before = len(brokers.asked)
        while "b1" not in {host for host, _ in brokers.asked[before:]}:
            assert await metadata.all_topics() == {"t"}
            assert (await metadata.table_for_topic("t")).partitions("t")


async def test_brokers_that_name_only_those_of_the_topics_asked_for_may_name_none() -> None:
    brokers = Brokers(topic_response("t", 1))
    brokers.hosts, brokers.versions = {}, BrokerVersions.of_release("0.8.1")
    async with opened(brokers) as metadata:
        assert not metadata.table.brokers
        brokers.hosts = {1: "b1"}
        table = await metadata.table_for_topic("t")
        assert table.leader(TopicPartition("t", 0)) == Broker(1, "b1", 9092)
    assert {host for host, _ in brokers.asked} <= {"s1", "s2", "s3"}


# ---- topics ------------------------------------------------------------------------------------------------------


async def test_a_topic_is_read_at_its_first_use_and_known_afterwards() -> None:
    brokers = Brokers(topic_response("orders", 1, 2, -1))
    async with opened(brokers) as metadata:
        table = await metadata.table_for_topic("orders")
        assert table.partitions("orders") == tuple(TopicPartition("orders", n) for n in range(3))
        assert [table.leader(p) for p in table.partitions("orders")] == [
            Broker(1, "b1", 9092),
            Broker(2, "b2", 9092),
            None,
        ]
        assert (await metadata.table_for_topic("orders")) is metadata.table
        assert table.topics == {"orders"}


@pytest.mark.parametrize("all_topics", [False, True])
async def test_reading_creates_no_topic_and_writing_does(all_topics: bool) -> None:
    brokers = Brokers()
    async with opened(brokers) as metadata:
        if all_topics:
            await metadata.all_topics()
        assert (await metadata.table_for_topic("misspelt")).partitions("misspelt") == ()
        assert not any(request.allow_auto_topic_creation for _, request in brokers.asked)

        def create(request: MetadataRequest) -> None:
            if request.allow_auto_topic_creation:
                assert [each.name for each in request.topics or ()] == ["new"]
                brokers.topics["new"] = (
                    topic_response("new", 1) if "new" in brokers.topics else topic_response("new", error=5)
                )

        brokers.on_ask = create
        assert (await metadata.table_for_topic("new", create=True)).partitions("new") == (TopicPartition("new", 0),)


async def test_a_broker_that_lists_those_of_the_topics_asked_for_is_asked_for_all_that_are_used() -> None:
    """0.8.0 and 0.8.1: the others would be gone from the table, with their partitions."""
    brokers = Brokers(topic_response("used", 1))
    brokers.versions = BrokerVersions.of_release("0.8.1")
    async with opened(brokers) as metadata:
        await metadata.table_for_topic("used")
        brokers.topics["new"] = topic_response("new", 2)
        await metadata.table_for_topic("new", create=True)
    assert brokers.names_asked[-1] == ["new", "used"]


@pytest.mark.parametrize(("code", "name"), [(29, "TOPIC_AUTHORIZATION_FAILED"), (17, "INVALID_TOPIC_EXCEPTION")])
async def test_a_topic_that_cannot_be_used_says_why(code: int, name: str) -> None:
    async with opened(Brokers(topic_response("secret", error=code))) as metadata:
        with pytest.raises(BrokerError, match=f"Metadata of topic 'secret': {name}"):
            await metadata.table_for_topic("secret")


async def test_all_topics_are_those_of_users_and_stay_up_to_date() -> None:
    brokers = Brokers(topic_response("a", 1), topic_response("__consumer_offsets", 1, internal=True))
    async with opened(brokers) as metadata:
        assert await metadata.all_topics() == {"a"}
        brokers.topics["b"] = topic_response("b", 2)
        assert (await metadata.refresh()).topics == {"a", "b"}
        assert brokers.names_asked[-1] is None


async def test_a_topic_without_a_leader_is_read_again_until_it_has_one() -> None:
    brokers = Brokers(topic_response("t", -1))
    async with opened(brokers) as metadata:
        table = await metadata.table_for_topic("t")
        brokers.topics["t"] = topic_response("t", 2)
        table = await metadata.wait_for_newer(table.version)
        assert table.leader(TopicPartition("t", 0)) == Broker(2, "b2", 9092)


@pytest.mark.parametrize("leader", [1, -1], ids=["with a leader", "without a leader"])
async def test_a_topic_that_was_in_an_answer_about_all_topics_is_read_again_too(leader: int) -> None:
    """A broker before 0.10 answers the first request, which names no topic, with all of them."""
    brokers = Brokers(topic_response("t", leader))
    async with opened(brokers) as metadata:
        await metadata.all_topics()
        table = await metadata.table_for_topic("t")
        if leader == 1:
            brokers.topics["t"] = topic_response("t", -1)
            table = await metadata.refresh()
        brokers.topics["t"] = topic_response("t", 2)
        table = await metadata.wait_for_newer(table.version)
        assert table.leader(TopicPartition("t", 0)) == Broker(2, "b2", 9092)


async def test_a_topic_that_does_not_exist_is_looked_for_ever_less_often() -> None:
    brokers = Brokers()
    options = MetadataOptions(bootstrap_timeout_s=5.0, backoff=Backoff(0.001, 10, 3600))
    async with opened(brokers, options) as metadata:
        await metadata.table_for_topic("missing")
        begun, reads = anyio.current_time(), len(brokers.asked)
        with anyio.fail_after(30):
            while len(brokers.asked) < reads + 3:  # noqa: ASYNC110 - of a broker whose events are not for tests
                await anyio.sleep(0.01)
        assert anyio.current_time() - begun > 0.05  # half of 1 + 10 + 100 ms, at least
        brokers.topics["new"] = topic_response("new", -1)
        await metadata.table_for_topic("new")
        brokers.topics["new"] = topic_response("new", 1)
        version = metadata.table.version
        assert (await metadata.wait_for_newer(version)).leader(TopicPartition("new", 0)) == Broker(1, "b1", 9092)


async def test_the_longer_a_topic_has_been_waited_for_the_less_often_it_is_asked_for() -> None:
    brokers = Brokers()
    async with opened(brokers, MetadataOptions(backoff=Backoff(0.001, 1, 0.001))) as metadata:
        await metadata.table_for_topic("missing")
        await anyio.sleep(0.5)
        assert len(brokers.asked) < 150  # with pauses of a millisecond only, about 500
        brokers.topics["missing"] = topic_response("missing", 1)
        with anyio.fail_after(0.4):  # a tenth of what it has waited
            await metadata.wait_for_newer(metadata.table.version)
        assert metadata.table.partitions("missing")


async def test_a_topic_that_was_deleted_is_forgotten_unless_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_module, "FORGOTTEN_S", 0.1)
    brokers = Brokers(topic_response("deleted", 1), topic_response("needed", 1), topic_response("there", 1))
    async with opened(brokers) as metadata, anyio.create_task_group() as tasks:
        for topic in ("deleted", "needed", "there"):
            await metadata.table_for_topic(topic)

        async def follow() -> None:
            version = metadata.table.version
            while not metadata.table.partitions("needed"):
                version = (await metadata.wait_for_newer(version, lambda: ["needed"])).version

        del brokers.topics["deleted"], brokers.topics["needed"]
        await metadata.refresh()
        assert brokers.names_asked[-1] == ["deleted", "needed", "there"]
        tasks.start_soon(follow)
        with anyio.fail_after(10):
            while brokers.names_asked[-1] != ["needed", "there"]:  # noqa: ASYNC110 - as above
                await anyio.sleep(0.01)
        await anyio.sleep(0.3)
        assert brokers.names_asked[-1] == ["needed", "there"]
        brokers.topics["needed"] = topic_response("needed", 2)


async def test_nothing_is_asked_for_a_topic_that_was_looked_up_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_module, "FORGOTTEN_S", 0.1)
    brokers = Brokers()
    async with opened(brokers) as metadata:
        await metadata.table_for_topic("missing")
        await anyio.sleep(0.5)
        before = len(brokers.asked)
        await anyio.sleep(0.2)
        assert len(brokers.asked) == before
        brokers.topics["missing"] = topic_response("missing", 1)
        assert (await metadata.table_for_topic("missing")).partitions("missing")


async def test_before_0_11_a_request_names_only_what_it_may_create() -> None:
    brokers = Brokers(topic_response("there", 1))
    brokers.versions = BrokerVersions({3: VersionRange(0, 2)})
    async with opened(brokers) as metadata:
        assert (await metadata.table_for_topic("there")).partitions("there")
        brokers.topics["other"] = topic_response("other", 1)
        assert not (await metadata.table_for_topic("mistyped")).partitions("mistyped")
        assert set((await metadata.refresh()).state.topics) == {"there", "mistyped"}
        assert not any(brokers.names_asked)
        assert not (await metadata.table_for_topic("subscribed", named=True)).partitions("subscribed")
        assert ["subscribed"] in brokers.names_asked
        before = len(brokers.asked)
        await metadata.table_for_topic("subscribed", named=True)  # it may have been deleted
        await metadata.refresh()
        assert not any(brokers.names_asked[before:])
        brokers.topics["new"] = topic_response("new", 1)
        assert (await metadata.table_for_topic("new", create=True)).partitions("new")
        assert ["new"] in brokers.names_asked
        brokers.topics["secret"] = topic_response("secret", error=29)
        for _ in range(2):
            with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
                await metadata.table_for_topic("secret", named=True)


async def test_everything_is_read_again_when_it_is_old() -> None:
    brokers = Brokers(topic_response("t", 1))
    async with opened(brokers, MetadataOptions(max_age_s=0.02, backoff=Backoff(0, 1, 0.01))) as metadata:
        table = await metadata.table_for_topic("t")
        brokers.hosts[3] = "b3"
        while 3 not in table.brokers:  # a read that began before may end now
            table = await metadata.wait_for_newer(table.version)


async def test_calls_at_the_same_time_share_requests_and_none_gets_an_answer_older_than_its_call() -> None:
    brokers = Brokers(topic_response("t", 1))
    async with opened(brokers) as metadata:
        await metadata.table_for_topic("t")
        before = len(brokers.asked)
        brokers.gate = anyio.Event()
        tables: list[Any] = []

        async def refresh() -> None:
            tables.append(await metadata.refresh())

        async with anyio.create_task_group() as group:
            group.start_soon(refresh)
            await wait_all_tasks_blocked()
            brokers.topics["t"] = topic_response("t", 2)
            for _ in range(50):
                group.start_soon(refresh)
            await wait_all_tasks_blocked()
            assert len(brokers.asked) == before + 1
            brokers.gate.set()
        assert len(brokers.asked) == before + 2
        assert {table.leader(TopicPartition("t", 0)).id for table in tables} == {2}


async def test_a_cancelled_call_leaves_the_request_to_others() -> None:
    brokers = Brokers(topic_response("t", 1))
    async with opened(brokers) as metadata:
        brokers.gate = anyio.Event()
        with anyio.move_on_after(0.01):
            await metadata.table_for_topic("t")
        brokers.gate.set()
        assert (await metadata.refresh()).partitions("t")


async def test_a_leader_that_a_response_names_is_in_the_table_at_once() -> None:
    brokers = Brokers(topic_response("t", 1, epoch=5))
    async with opened(brokers) as metadata:
        table, where = await metadata.table_for_topic("t"), TopicPartition("t", 0)
        metadata.leader_changed(where, 2, 4)
        assert metadata.table is table  # an older epoch
        metadata.leader_changed(where, 9, 6, [NodeEndpoint(node_id=9, host="b9", port=1)])
        assert metadata.table.leader(where) == Broker(9, "b9", 1)
        assert (await metadata.wait_for_newer(table.version)) is metadata.table


@pytest.mark.parametrize(("version", "epoch"), [(7, -1), (8, -1), (9, 5), (13, 5)])
async def test_leader_epochs_are_taken_from_the_version_on_that_names_the_current_ones(
    version: int, epoch: int
) -> None:
    """Leaders refuse every request that has an old epoch, and brokers before 2.4 may name one for ever (KAFKA-9212)."""
    brokers = Brokers(topic_response("t", 1, epoch=5))
    brokers.versions = BrokerVersions({3: VersionRange(0, version)})
    async with opened(brokers) as metadata:
        partition = (await metadata.table_for_topic("t")).state.partition(TopicPartition("t", 0))
        assert partition is not None and partition.leader_epoch == epoch


# ---- brokers that go ---------------------------------------------------------------------------------------------


async def test_when_no_known_broker_answers_the_addresses_of_the_url_are_asked_again() -> None:
    brokers = Brokers(topic_response("t", 1))
    async with opened(brokers) as metadata:
        await metadata.table_for_topic("t")
        brokers.down = {host: refused(f"{host}:9092") for host in ("b1", "b2")}
        brokers.hosts = {7: "b7"}
        assert list((await metadata.refresh()).brokers) == [7]


async def test_a_cluster_may_send_the_client_back_to_the_beginning() -> None:
    brokers = Brokers(topic_response("t", 1))
    async with opened(brokers) as metadata:
        await metadata.table_for_topic("t")
        brokers.error_code = 129
        hosts: list[str] = []

        def once(request: MetadataRequest) -> None:
            hosts.append(brokers.asked[-1][0])
            brokers.error_code = 0 if len(hosts) > 1 else 129

        brokers.on_ask = once
        await metadata.refresh()
        assert hosts[0] in ("b1", "b2")
        assert hosts[1] in ("s1", "s2", "s3")
        assert len(hosts) == 2


async def test_addresses_that_send_the_client_back_to_the_beginning_are_tried_again_until_one_does_not() -> None:
    brokers = Brokers(topic_response("t", 1))
    until = len(SEEDS) + 1

    def send_back(request: MetadataRequest) -> None:
        brokers.error_code = 129 if len(brokers.asked) < until else 0

    brokers.on_ask = send_back
    async with opened(brokers) as metadata:
        assert metadata.table.brokers
        until = len(brokers.asked) + 1 + len(SEEDS) + 1  # one broker that is known, and all addresses
        with pytest.raises(OdradekError) as caught:
            await metadata.table_for_topic("t")
        assert caught.value.retriable
        assert not metadata.table.brokers
        await metadata.table_for_topic("t")
        assert metadata.table.brokers


async def test_an_outage_costs_two_log_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    brokers = Brokers(topic_response("t", 1))
    caplog.set_level(logging.INFO, "odradek")
    async with opened(brokers) as metadata:
        await metadata.table_for_topic("t")
        brokers.down = {host: refused(f"{host}:9092") for host in ("b1", "b2", "s1", "s2", "s3")}
        for _ in range(3):
            with pytest.raises(Unreachable, match=r"b1:9092.*refused"):
                await metadata.refresh()
        brokers.down.clear()
        await metadata.refresh()
    lines = [record.message for record in caplog.records if record.name == "odradek.metadata"]
    assert len(lines) == 2
    assert "no broker answers" in lines[0]
    assert "answers, after 3 failed attempts" in lines[1]


async def test_leaving_the_block_ends_every_wait() -> None:
    brokers = Brokers(topic_response("t", 1))
    errors: list[BaseException] = []
    async with anyio.create_task_group() as group:

        async def wait(call: Callable[[], Any]) -> None:
            try:
                await call()
            except Closed as error:
                errors.append(error)

        async with opened(brokers) as metadata:
            brokers.gate = anyio.Event()
            version = metadata.table.version
            calls = (metadata.refresh, metadata.refresh, lambda: metadata.wait_for_newer(version))
            for call in calls:
                group.start_soon(wait, call)
                await wait_all_tasks_blocked()
    assert len(errors) == 3
    with pytest.raises(Closed):
        await metadata.refresh()


# ---- requests ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "names", "create", "topics", "creates"),
    [
        (0, None, False, (), True),
        (0, [], False, (), True),
        (0, ["a"], False, ("a",), True),
        (1, None, False, None, True),
        (1, [], False, (), True),
        (4, ["a", "b"], False, ("a", "b"), False),
        (13, ["a"], True, ("a",), True),
        (13, None, False, None, False),
    ],
)
def test_requests_fit_the_versions_of_the_broker(
    last: int, names: list[str] | None, create: bool, topics: tuple[str, ...] | None, creates: bool
) -> None:
    request = metadata_request(BrokerVersions({3: VersionRange(0, last)}), names, create)
    assert (None if request.topics is None else tuple(each.name for each in request.topics)) == topics
    assert request.allow_auto_topic_creation == creates
