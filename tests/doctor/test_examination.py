"""An examination of servers that cannot be reached, and its arguments; on both loops."""

from __future__ import annotations

from typing import Any

import pytest
from tests.io.kafka import admin_peer
from tests.io.proxy_server import proxy_server

import odradek as od
from odradek.doctor import Diagnosis, Report, examine
from odradek.doctor.examination import _Examination
from odradek.errors import ConfigError
from odradek.io import tcp
from odradek.testing import Kafka07Broker
from odradek.testing.process import reserve_port
from odradek.wire.kafka.messages.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from odradek.wire.kafka.messages.metadata import MetadataResponsePartition, MetadataResponseTopic


@pytest.mark.anyio
async def test_each_server_that_cannot_be_reached_is_named_at_once() -> None:
    ports = [reserve_port() for _ in range(2)]
    try:
        report = await examine(f"kafka://127.0.0.1:{ports[0][0]},127.0.0.1:{ports[1][0]}", topic="t", group="g")
    finally:
        for _, keeper in ports:
            keeper.close()
    assert [finding.cause for finding in report.findings] == ["nothing-listens"] * 2
    for (port, _), finding in zip(ports, report.findings, strict=True):
        assert f"127.0.0.1:{port}: tcp: " in finding.evidence
    assert report.checked == ["servers of the URL"]
    assert not report.healthy


@pytest.mark.anyio
async def test_servers_are_reached_through_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with proxy_server("socks5") as proxy, Kafka07Broker(port=0) as broker:
        proxy.names["broker.invalid"] = "127.0.0.1"
        monkeypatch.setenv("ODRADEK_PROXY", proxy.url())
        report = await examine(f"kafka07://broker.invalid:{broker.address.rpartition(':')[2]}")
    assert report.findings == [] and "servers of the URL" in report.checked


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"url": "nonsense://a:1"}, ConfigError, "unknown scheme"),
        ({"url": 1}, TypeError, "url"),
        ({"topic": 1}, TypeError, "topic"),
        ({"group": ""}, ConfigError, "group"),
        ({"seconds": 0}, ConfigError, "seconds"),
        ({"security": "none"}, TypeError, "security"),
    ],
)
async def test_arguments_that_cannot_work_are_errors(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        await examine(**{"url": "kafka://127.0.0.1:1", **options})


def test_notices_are_healthy() -> None:
    notice = Diagnosis("quota-in-force", "notice", "", "")
    assert Report([notice]).healthy
    assert not Report([notice, Diagnosis("idle-members", "warning", "", "")]).healthy


@pytest.mark.anyio
async def test_a_broker_that_cannot_be_reached_is_one_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration is that of another one."""

    class Stream:
        async def aclose(self) -> None:
            pass

    async def connect(host: str, port: int, timeout: float, tls: object, proxy: object) -> Stream:
        if port == 9091:
            raise od.Unreachable("tcp", f"{host}:{port}", "connection refused")
        return Stream()

    def configs(request: DescribeConfigsRequest, version: int) -> DescribeConfigsResponse:
        asked = [(each.resource_type, each.resource_name) for each in request.resources]
        results = [DescribeConfigsResult(resource_type=kind, resource_name=name) for kind, name in asked]
        return DescribeConfigsResponse(results=tuple(results))

    peer = admin_peer.Cluster()
    partition = MetadataResponsePartition(leader_id=2, replica_nodes=(2,), isr_nodes=(2,))
    peer.topics = (MetadataResponseTopic(name="t", partitions=(partition,)),)
    peer.answers[DescribeConfigsRequest] = configs
    examination = _Examination("kafka://b:9092", od.Security(), "c")
    async with admin_peer.opened(peer, monkeypatch, 1.0) as driver:
        await driver.metadata.refresh()
        peer.down.add("b:9091")
        await peer.hang_up()
        monkeypatch.setattr(tcp, "connect", connect)
        await examination.examine(od.Cluster(driver, od.Tuning()), None, None, 1)
    assert [each.cause for each in examination.report().findings] == ["broker-down"]
