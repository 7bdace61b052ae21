"""Set-ups that are broken in one way: the doctor names that cause and no other. Those that need other brokers, or are
about rates, run by hand (`tests/doctor/setups.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import anyio
import pytest
from tests.doctor.setups import CASES, Case, Servers, group, over_tls, plain, report_of

import odradek as od
from odradek.doctor import Report, examine
from odradek.testing import Kafka07Broker, ZooKeeperServer

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

BY_HAND = {"tls-expected", "group-keeps-rebalancing", "consumer-too-slow", "hot-partition"}
"""Those about rates, and one that takes ten seconds."""

ALONE = {"min-insync-above-replicas"}
"""Those that every examination of the cluster sees."""

SHARED = [case for case in CASES if case.uses == "secure" and case.cause not in BY_HAND | ALONE]


@pytest.fixture
def anyio_backend() -> str:
    """One loop is enough here: what differs between them is below `odradek.client`."""
    return "asyncio"


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        made = Servers(stack)
        assert made.secure.running
        yield made


async def test_each_broken_set_up_has_its_cause_and_no_other(servers: Servers) -> None:
    reports: dict[str, Report] = {}

    async def run(case: Case) -> None:
        reports[case.cause] = await report_of(case.make, servers)

    async with anyio.create_task_group() as tasks:
        for case in SHARED:
            tasks.start_soon(run, case)
    named = {cause: [finding.cause for finding in report.findings] for cause, report in reports.items()}
    assert named == {case.cause: [case.cause] for case in SHARED}
    assert len(named) >= 18


@pytest.mark.parametrize("case", [case for case in CASES if case.cause in ALONE], ids=lambda case: case.cause)
async def test_a_broken_topic_is_named(servers: Servers, case: Case) -> None:
    report = await report_of(case.make, servers)
    assert [finding.cause for finding in report.findings] == [case.cause]
    assert not report.healthy


async def test_a_group_that_has_read_everything_has_no_findings(servers: Servers) -> None:
    async with group(servers) as g, g.consumer() as consumer:
        await g.write(10)
        done = 0
        async for batch in consumer.batches():
            done += len(batch)
            batch.done()
            if done == 10:
                break
        await consumer.commit()
        report = await examine(**{**g.options, **over_tls(servers.secure, "alice")}, topic=g.topic)
    assert report.findings == []
    assert report.healthy
    assert f"group {g.name}" in report.checked
    assert report.skipped == {}


async def test_an_examination_creates_nothing(servers: Servers) -> None:
    url, topic = plain(servers.secure), "never-made"
    report = await examine(url, topic=topic, group=topic, seconds=1)
    evidence = {finding.cause: finding.evidence for finding in report.findings}
    assert evidence.keys() == {"topic-missing", "group-missing"}
    assert evidence["topic-missing"].startswith("never-made is not among ")
    async with od.connect(url) as k:
        assert topic not in await k.topics()
        assert topic not in [each.name for each in await k.admin.list_groups()]


async def test_what_a_user_may_not_ask_is_skipped_and_said(servers: Servers) -> None:
    report = await examine(**over_tls(servers.secure, "bob"))
    assert report.findings == []
    assert "CLUSTER_AUTHORIZATION_FAILED" in report.skipped["quotas"]


async def test_a_cluster_of_07_is_healthy_as_far_as_it_can_be_asked(odradek_zookeeper: ZooKeeperServer) -> None:
    odradek_zookeeper.create("/doctor")
    chroot = f"{odradek_zookeeper.address}/doctor"
    with Kafka07Broker(broker_id=3, zookeeper=chroot, config={"log.flush.interval": "1"}):
        async with od.connect(f"kafka07+zk://{chroot}") as k, k.producer() as producer:
            await producer.send("orders", b"value")
        report = await examine(f"kafka07+zk://{chroot}", topic="orders")
        missing = await examine(f"kafka07+zk://{chroot}", topic="other", group="nobody", seconds=1)
    assert report.findings == []
    assert report.checked == ["servers of the URL", "advertised addresses", "topic orders"]
    assert set(report.skipped) == {"partitions", "configuration of brokers", "quotas"}
    assert [finding.cause for finding in missing.findings] == ["topic-missing", "group-missing"]
