"""The ends of logs as responses to fetches had them, without a request."""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.one_member import consuming, make_cluster, tp, until

import odradek as od
from odradek.types import Watermarks

pytestmark = pytest.mark.anyio


async def test_a_reader_and_a_consumer_know_the_ends_of_what_they_have_fetched() -> None:
    cluster = make_cluster(10)
    async with cluster.connect() as k, k.reader("t") as reader:
        assert reader.watermarks() == {}
        for _ in range(4):
            await anext(reader)
        assert reader.watermarks() == {tp(): Watermarks(od.Position(0), od.Position(10), od.Position(10), 6)}
    async with consuming(cluster) as consumer:
        await anext(consumer.batches(max_records=3))
        assert consumer.watermarks()[tp()].lag == 7


async def test_they_follow_the_log_without_a_request_of_their_own() -> None:
    cluster = make_cluster(10)
    async with cluster.connect() as k, k.reader("t") as reader:
        await anext(reader.batches())
        before = len(cluster.requests("positions"))
        cluster.append("t", [b"new"] * 5)
        await until(lambda: reader.watermarks()[tp()][1:] == (15, 15, 5))
        cluster.delete_records(tp(), 12)
        cluster.append("t", [b"new"])
        await until(lambda: reader.watermarks()[tp()].log_start == 12)
        assert len(cluster.requests("positions")) == before


@pytest.mark.parametrize(("isolation", "lag"), [("read_committed", 0), ("read_uncommitted", 1)])
async def test_both_lags_end_where_an_open_transaction_begins_if_nothing_behind_it_is_read(
    isolation: Any, lag: int
) -> None:
    cluster = make_cluster(3)
    async with (
        cluster.connect() as k,
        k.producer(transactional_id="x") as producer,
        k.reader("t", isolation=isolation) as reader,
        producer.transaction(),
    ):
        await producer.send("t", b"open")
        for _ in range(3):
            await anext(reader)
        await until(lambda: reader.watermarks()[tp()].high_watermark == 4)
        assert (await reader.lag(), reader.watermarks()[tp()].lag) == ({tp(): lag}, lag)


async def test_after_a_seek_the_lag_is_that_of_the_new_position() -> None:
    cluster = make_cluster(10)
    async with cluster.connect() as k, k.reader("t") as reader:
        await anext(reader.batches())
        reader.pause()
        reader.seek(tp(), od.Position(2))
        assert reader.watermarks()[tp()].lag == 8
        reader.seek(tp(), od.EARLIEST)
        assert reader.watermarks()[tp()].lag is None, "its position is not known yet"


async def test_a_topic_that_was_made_again_has_ends_of_its_own() -> None:
    cluster = make_cluster(10)
    async with cluster.connect() as k, k.reader("t", reset=od.EARLIEST) as reader:
        await anext(reader.batches())
        cluster.recreate_topic("t")
        await until(lambda: reader.watermarks().get(tp(), (0, 0))[1] == 0)
