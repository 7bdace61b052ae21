"""The in-memory cluster as readers and consumers meet it: what goes wrong with fetches, logs and groups."""

from __future__ import annotations

import anyio
import pytest
from tests.client.one_member import make_cluster, numbered, tp, until

import odradek as od
from odradek.errors import (
    BrokerError,
    ConfigError,
    ConnectionLost,
    CorruptMessage,
    DeadlineError,
    LogTruncated,
    OffsetOutOfRange,
    Unreachable,
)
from odradek.testing import MemoryCluster, MemoryRequest
from odradek.types import Position, Record

pytestmark = pytest.mark.anyio

LOST = ConnectionLost("memory-1:9092", "reset", True)
DENIED = BrokerError(29, "TOPIC_AUTHORIZATION_FAILED", fatal=False)


async def values_of(reader: od.Reader, count: int | None = None) -> list[bytes | None]:
    """Return the next values; all of them without a count."""
    with anyio.fail_after(60):
        if count is None:
            return [record.value async for record in reader]
        return [(await anext(reader)).value for _ in range(count)]


async def read(cluster: MemoryCluster, **options: object) -> list[bytes | None]:
    async with cluster.connect() as k, k.reader("t", **{"until": od.LATEST, **options}) as reader:  # type: ignore[call-overload]
        return await values_of(reader)


# ---- requests ---------------------------------------------------------------------------------------------------


async def test_a_cluster_tells_the_requests_that_have_reached_it() -> None:
    cluster = make_cluster(3, 3)
    async with cluster.connect(tuning=od.Tuning(fetch_bytes=50)) as k:
        async with k.reader("t", until=od.LATEST) as reader:
            assert len(await values_of(reader)) == 6
        async with k.consumer("t", group="g", commit_every=None) as consumer:
            await consumer.commit()
    fetches = cluster.requests("fetch")
    assert all(request.broker == 1 and request.partitions for request in fetches)
    assert {size for request in fetches for size in request.partitions.values()} == {50}
    (commit,) = cluster.requests("commit")
    assert commit == MemoryRequest("commit", None, {tp(0): Position(0), tp(1): Position(0)})
    assert [request.broker for request in cluster.requests("positions", broker=1)] == [1] * 6
    assert len(cluster.requests("committed")) == len(cluster.requests("leave")) == 1


async def test_a_request_that_fails_or_is_held_has_reached_the_cluster() -> None:
    cluster = make_cluster()
    cluster.fail("fetch", LOST, times=2)
    assert len(await read(cluster)) == 10
    assert len(cluster.requests("fetch")) >= 3
    cluster.hold("positions")
    async with cluster.connect() as k, anyio.create_task_group() as tasks:
        before = len(cluster.requests("positions"))
        tasks.start_soon(k.positions, "t", od.LATEST)
        await cluster.wait_for_held("positions")
        assert len(cluster.requests("positions")) == before + 1
        cluster.release("positions")


async def test_waiting_for_held_requests_ends_when_there_are_enough() -> None:
    cluster = make_cluster(1, 1, 1)
    cluster.hold("positions")
    async with cluster.connect() as k, anyio.create_task_group() as tasks:
        tasks.start_soon(k.positions, "t", od.LATEST)
        with anyio.fail_after(60):
            await cluster.wait_for_held("positions", 3)
            await cluster.wait_for_held("positions", 3, broker=1)
        with anyio.move_on_after(0.01) as more:
            await cluster.wait_for_held("positions", 4)
        assert more.cancelled_caught
        cluster.release("positions")


async def test_a_delayed_request_counts_as_held() -> None:
    cluster = make_cluster()
    cluster.clock.hold(1000.0)
    cluster.delay("fetch", 5.0)
    async with cluster.connect() as k, k.reader("t") as reader:
        with anyio.fail_after(60):
            await cluster.wait_for_held("fetch")
            cluster.clock.advance(5.0)
            assert await values_of(reader, 10) == numbered(10)


async def test_a_cancelled_request_is_held_no_more() -> None:
    cluster = make_cluster()
    cluster.hold("positions")
    async with cluster.connect() as k:
        with anyio.move_on_after(0.01):
            await k.positions("t", od.LATEST)
    with anyio.move_on_after(0.01) as waited:
        await cluster.wait_for_held("positions")
    assert waited.cancelled_caught


# ---- brokers ------------------------------------------------------------------------------------------------------


async def test_one_slow_broker_delays_its_own_partitions_only() -> None:
    cluster = MemoryCluster(topics={"t": 2}, brokers=2)
    for number in range(2):
        cluster.append("t", numbered(3, 3 * number), partition=number)
    cluster.clock.hold(1000.0)
    cluster.delay("fetch", 5.0, broker=1)
    async with cluster.connect() as k, k.reader("t", until=od.LATEST) as reader:
        assert await values_of(reader, 3) == numbered(3, 3)
        await cluster.wait_for_held("fetch", broker=1)
        cluster.delay("fetch", 0, broker=1)
        cluster.clock.advance(5.0)
        assert await values_of(reader) == numbered(3)


async def test_requests_to_one_broker_are_held_and_released() -> None:
    cluster = MemoryCluster(topics={"t": 2}, brokers=2)
    for number in range(2):
        cluster.append("t", numbered(3, 3 * number), partition=number)
    cluster.hold("fetch", broker=2)
    async with cluster.connect() as k, k.reader("t", until=od.LATEST) as reader:
        assert await values_of(reader, 3) == numbered(3)
        cluster.release("fetch", broker=1)
        await cluster.wait_for_held("fetch", broker=2)
        cluster.release("fetch", broker=2)
        assert await values_of(reader) == numbered(3, 3)


async def test_releasing_without_a_broker_releases_those_of_all() -> None:
    cluster = make_cluster(3)
    cluster.hold("fetch", broker=1)
    cluster.hold("fetch")
    cluster.release("fetch")
    assert await read(cluster) == numbered(3)


async def test_a_fetch_that_waits_for_records_is_held_and_fails_like_any_other() -> None:
    """A broker holds an empty answer back; what a test sets meanwhile counts for that request."""
    cluster = make_cluster(1)
    async with cluster.connect() as k, k.reader("t") as reader:
        assert await values_of(reader, 1) == numbered(1)
        await until(lambda: len(cluster.requests("fetch")) >= 3)
        cluster.hold("fetch")
        cluster.append("t", [b"new"])
        with anyio.fail_after(60):
            await cluster.wait_for_held("fetch")
        with anyio.move_on_after(0.01) as waited:
            await anext(reader)
        assert waited.cancelled_caught
        cluster.fail("fetch", DENIED, partition=tp())
        cluster.release("fetch")
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            await anext(reader)


async def test_a_broker_that_comes_back_at_another_port_is_followed() -> None:
    cluster = make_cluster(1)
    async with cluster.connect() as k, k.reader("t") as reader:
        assert await values_of(reader, 1) == numbered(1)
        before = k.driver.metadata.table.brokers[1]
        cluster.stop_broker(1)
        cluster.start_broker(1, port=9999)
        cluster.append("t", [b"new"])
        assert await values_of(reader, 1) == [b"new"]
        assert k.driver.metadata.table.brokers[1].port == 9999
        with pytest.raises(Unreachable):
            await k.driver.broker(before, purpose="control").resolve_position(tp(), od.LATEST)


async def test_a_running_broker_that_moves_loses_its_connections() -> None:
    cluster = make_cluster(1)
    async with cluster.connect() as k, k.reader("t") as reader:
        assert await values_of(reader, 1) == numbered(1)
        cluster.start_broker(1, port=9999)
        cluster.append("t", [b"new"])
        assert await values_of(reader, 1) == [b"new"]


async def test_consumers_are_sent_to_the_replica_as_long_as_it_runs() -> None:
    cluster = MemoryCluster(topics={"t": 1}, brokers=2)
    cluster.append("t", numbered(2))
    cluster.prefer_replica(tp(), 2)
    async with cluster.connect() as k, k.reader("t") as reader:
        assert await values_of(reader, 2) == numbered(2)
        assert len(cluster.requests("fetch", broker=1)) == 1
        assert cluster.requests("fetch", broker=2)
        cluster.stop_broker(2)
        cluster.append("t", numbered(1, 2))
        assert await values_of(reader, 1) == numbered(1, 2)
        cluster.start_broker(2)
        cluster.prefer_replica(tp(), None)
        cluster.append("t", numbered(1, 3))
        assert await values_of(reader, 1) == numbered(1, 3)


async def test_a_replica_that_leads_or_lost_its_topic_is_none() -> None:
    cluster = MemoryCluster(topics={"t": 1}, brokers=2)
    cluster.append("t", numbered(2))
    cluster.prefer_replica(tp(), 1)
    assert await read(cluster) == numbered(2)
    cluster.delete_topic("t")
    cluster.create_topic("t")
    cluster.move_leader(tp(), 2)
    cluster.append("t", numbered(1))
    assert await read(cluster) == numbered(1)
    assert cluster.requests("fetch", broker=2)


# ---- logs -----------------------------------------------------------------------------------------------------------


async def test_an_answer_that_breaks_off_keeps_what_has_arrived() -> None:
    cluster = make_cluster(10)
    cluster.fail("fetch", LOST, after_records=4)
    async with cluster.connect() as k, k.reader("t", until=od.LATEST) as reader:
        batches = [batch.values async for batch in reader.batches()]
    assert batches == [numbered(4), numbered(6, 4)]


async def test_an_answer_for_several_partitions_breaks_off_after_so_many_records_of_all() -> None:
    cluster = make_cluster(3, 3)
    cluster.fail("fetch", LOST, after_records=4)
    cluster.fail("fetch", LOST, after_records=0)
    assert sorted(map(bytes, filter(None, await read(cluster)))) == numbered(6)


async def test_a_truncated_log_is_noticed_also_when_others_have_the_offsets() -> None:
    cluster = make_cluster(5)
    async with cluster.connect() as k, k.reader("t", reset="fail") as reader:
        assert await values_of(reader, 5) == numbered(5)
        cluster.truncate_log(tp(), 3)
        cluster.append("t", [b"x", b"y", b"z"])
        assert [stored.value for stored in cluster.log(tp())] == [*numbered(3), b"x", b"y", b"z"]
        with pytest.raises(LogTruncated, match="truncated to 3, the end of leader epoch 0"):
            await values_of(reader, 1)
        reader.seek(tp(), Position(3))
        assert await values_of(reader, 3) == [b"x", b"y", b"z"]


async def test_reading_a_truncated_log_continues_where_both_logs_end() -> None:
    cluster = make_cluster(5)
    async with cluster.connect() as k, k.reader("t", reset=od.EARLIEST) as reader:
        assert await values_of(reader, 5) == numbered(5)
        cluster.truncate_log(tp(), 4)
        cluster.truncate_log(tp(), 3)
        cluster.append("t", [b"x", b"y"])
        assert await values_of(reader, 2) == [b"x", b"y"]
        cluster.truncate_log(tp(), 100)
        cluster.append("t", [b"z"])
        assert await values_of(reader, 1) == [b"z"], "what was not read by then is not missed"


async def test_a_position_behind_a_truncated_log_is_out_of_range() -> None:
    cluster = make_cluster(5)
    cluster.truncate_log(tp(), 3)
    with pytest.raises(OffsetOutOfRange, match="the log has 0 to 3"):
        await read(cluster, start=5, until=od.Position(9), reset="fail")
    cluster.delete_records(tp(), before=2)
    with pytest.raises(OffsetOutOfRange, match="the log has 2 to 3"):
        await read(cluster, start=0, reset="fail")


async def test_partitions_that_are_added_are_read_and_the_others_stay() -> None:
    cluster = MemoryCluster(topics={"t": 1}, brokers=2)
    cluster.append("t", numbered(2))
    async with cluster.connect() as k, k.reader("t") as reader:
        assert await values_of(reader, 2) == numbered(2)
        cluster.add_partitions("t", 3)
        cluster.append("t", numbered(2, 2), partition=1)
        assert await values_of(reader, 2) == numbered(2, 2)
        assert cluster.requests("fetch", broker=2)
        assert await k.partitions("t") == (tp(0), tp(1), tp(2))
    assert len(cluster.records("t")) == 4


async def test_a_corrupt_record_fails_is_skipped_or_handed_over_raw() -> None:
    cluster = make_cluster(4)
    cluster.corrupt(tp(), 1)
    cluster.corrupt(tp(), 2, "the length is wrong")
    async with cluster.connect() as k:
        async with k.reader("t", until=od.LATEST) as reader:
            assert await values_of(reader, 1) == numbered(1)
            with pytest.raises(CorruptMessage, match="t/0 at 1: CRC mismatch"):
                await anext(reader)
        async with k.reader("t", until=od.LATEST, corrupt="skip") as reader:
            assert await values_of(reader) == [b"000000", b"000003"]
            assert [report.position for report in reader.reports] == [1, 2]
        async with k.reader("t", until=od.LATEST, corrupt="raw") as reader:
            (batch,) = [batch async for batch in reader.batches()]
            assert {row: error.reason for row, error in batch.corrupt.items()} == {
                1: "CRC mismatch",
                2: "the length is wrong",
            }
            assert batch.values == numbered(4)


async def test_a_corrupt_record_has_neither_key_nor_headers_and_is_gone_with_its_log() -> None:
    cluster = MemoryCluster(topics={"t": 1})
    async with cluster.connect() as k, k.producer() as out:
        for value in (b"a", None):
            await out.send("t", value, key=b"k", headers=[("h", b"1")])
    cluster.corrupt(tp(), 1)
    async with cluster.connect() as k, k.reader("t", until=od.LATEST, corrupt="raw") as reader:
        records: list[Record] = [record async for record in reader]
    assert [(r.value, r.key, tuple(r.headers)) for r in records] == [(b"a", b"k", (("h", b"1"),)), (b"", None, ())]
    cluster.truncate_log(tp(), 1)
    cluster.append("t", [b"b"])
    assert await read(cluster) == [b"a", b"b"]


# ---- groups and metadata ------------------------------------------------------------------------------------------


async def test_a_group_begins_at_the_positions_that_a_test_has_stored() -> None:
    cluster = make_cluster(5)
    cluster.set_committed("g", {tp(): 3})
    assert cluster.committed("g") == {tp(): 3}
    async with cluster.connect() as k, k.consumer("t", group="g") as consumer:
        assert (await anext(consumer)).value == b"000003"


async def test_reading_stored_positions_can_fail_and_be_held() -> None:
    cluster = make_cluster()
    async with cluster.connect() as k:
        cluster.fail("committed", DENIED)
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            async with k.consumer("t", group="g"):
                pass
        cluster.hold("committed")
        with pytest.raises(DeadlineError, match="joining group g"):
            async with k.consumer("t", group="g", join_within=0.02):
                pass
    assert cluster.members("g") == {}


async def test_leaving_can_fail_and_frees_the_partitions_all_the_same() -> None:
    cluster = make_cluster()
    async with cluster.connect() as k:
        cluster.fail("leave", LOST)
        with pytest.raises(ConnectionLost):
            async with k.consumer("t", group="g"):
                pass
        assert cluster.members("g") == {}
        async with k.consumer("t", group="g", exit_within=0.05) as consumer:
            assert set(consumer.assignment) == {tp()}
            cluster.hold("leave")
            with pytest.raises(DeadlineError, match="leaving group g"):
                await consumer.__aexit__(None, None, None)
        assert cluster.members("g") == {}


async def test_a_client_that_hears_no_more_of_its_cluster_says_so() -> None:
    cluster = make_cluster(0)
    async with cluster.connect() as k, k.reader("t") as reader:
        cluster.fail("watch", Unreachable("tcp", "memory-1:9092", "refused"))
        with pytest.raises(Unreachable, match="refused"), anyio.fail_after(60):
            await anext(reader)


# ---- arguments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        lambda cluster: cluster.fail("fetch", DENIED, after_records=1),
        lambda cluster: cluster.fail("produce", LOST, after_records=1),
        lambda cluster: cluster.fail("fetch", LOST, after_records=-1),
        lambda cluster: cluster.hold("fetch", broker=9),
        lambda cluster: cluster.hold("commit", broker=1),
        lambda cluster: cluster.hold("watch"),
        lambda cluster: cluster.delay("fetch", 1, broker=9),
        lambda cluster: cluster.release("join", broker=1),
        lambda cluster: cluster.requests("teleport"),
        lambda cluster: cluster.requests("watch"),
        lambda cluster: cluster.requests("fetch", broker=9),
        lambda cluster: cluster.start_broker(9, port=1),
        lambda cluster: cluster.prefer_replica(tp(7), 1),
        lambda cluster: cluster.prefer_replica(tp(), 9),
        lambda cluster: cluster.add_partitions("t", 1),
        lambda cluster: cluster.add_partitions("none", 1),
        lambda cluster: cluster.truncate_log(tp(7), 0),
        lambda cluster: cluster.corrupt(tp(7), 0),
        lambda cluster: cluster.corrupt(tp(), 10),
        lambda cluster: cluster.corrupt(tp(), -1),
        lambda cluster: cluster.set_committed("g", {tp(7): 1}),
    ],
)
def test_a_test_that_asks_for_what_cannot_be_gets_a_config_error(wrong: object) -> None:
    with pytest.raises(ConfigError):
        wrong(make_cluster())  # type: ignore[operator]


async def test_waiting_for_an_operation_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError):
        await make_cluster().wait_for_held("teleport")  # type: ignore[arg-type]
