"""Positions and extents of partitions whose leader is gone, at brokers in memory that answer as scripted."""

from __future__ import annotations

import pytest
from tests.io.kafka.admin_peer import P0, Cluster, offsets, opened

from odradek.client.consumer.positions import resolve_positions
from odradek.types import LATEST
from odradek.wire.kafka.messages.data import ListOffsetsRequest

pytestmark = pytest.mark.anyio


async def test_positions_are_those_of_the_new_leader_if_the_old_one_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    peer.answers[ListOffsetsRequest] = offsets
    async with opened(peer, monkeypatch) as driver:
        await driver.metadata.table_for_topic("t")
        assert await resolve_positions(driver, {P0: LATEST}) == ({P0: 4}, {})
        await peer.fail_over()
        assert await resolve_positions(driver, {P0: LATEST}) == ({P0: 4}, {})


async def test_extents_are_those_of_the_new_leader_if_the_old_one_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    peer.answers[ListOffsetsRequest] = offsets
    async with opened(peer, monkeypatch) as driver:
        await driver.metadata.table_for_topic("t")
        before = await driver.logs.extents([P0])
        await peer.fail_over()
        assert [each.latest for each in (await driver.logs.extents([P0])).values()] == [before[P0].latest] == [4]
