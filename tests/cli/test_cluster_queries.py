"""Questions that several commands ask, to brokers in memory that answer as scripted."""

from __future__ import annotations

import click
import pytest
from tests.io.kafka.admin_peer import Cluster, opened
from tests.io.kafka.peer import everything_but

import odradek as od
from odradek.cli.cluster_queries import find_partitions
from odradek.wire.kafka.messages.metadata import ApiVersion, ApiVersionsRequest, ApiVersionsResponse, MetadataRequest

METADATA = MetadataRequest.SPEC.key


@pytest.mark.anyio
async def test_brokers_that_would_create_a_topic_are_not_asked_for_it_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    of_0_10 = ApiVersionsResponse(
        api_keys=(*everything_but(MetadataRequest), ApiVersion(api_key=METADATA, max_version=2))
    )
    peer.answers[ApiVersionsRequest] = lambda request, version: of_0_10
    async with opened(peer, monkeypatch) as driver:
        k = od.Cluster(driver, od.Tuning())
        with pytest.raises(click.ClickException, match="no broker has this topic"):
            await find_partitions(k, "mistyped")
        assert await find_partitions(k, "t") == [od.TopicPartition("t", 0)]
    asked = [each for each, _ in peer.requests if isinstance(each, MetadataRequest)]
    assert "mistyped" not in [topic.name for each in asked for topic in each.topics or ()]
