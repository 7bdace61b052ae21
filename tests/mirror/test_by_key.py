"""Copies by key and by a function, between clusters in memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

import odradek as od
from odradek.core.interfaces import ProducerRecord
from odradek.errors import ConnectionLost
from odradek.mirror.clusters import Clusters, read_state
from odradek.mirror.config import MirrorConfig
from odradek.mirror.cutover import cutover
from odradek.mirror.errors import RuleFailed
from odradek.mirror.groups import groups
from odradek.mirror.planning import MirrorRefused
from odradek.mirror.run import run, run_open
from odradek.mirror.sources import ClusterSource
from odradek.mirror.status import status
from odradek.mirror.verify import DividedTopic, verify
from odradek.mirror.verify_page import verify_page
from odradek.testing import Kafka07Broker, MemoryCluster
from odradek.types import Record

from .mirrors import config_of, copied, partition, records
from .test_copy import run_mirror
from .verifying import Pair

pytestmark = pytest.mark.anyio

HERE = __name__
BROKEN: set[bytes] = set()
KEYED = 'partition_by = "key"\npartitions = 4'


def by_customer(record: Record, partitions: int) -> int:
    """A rule of a user, which may have a mistake."""
    if record.value in BROKEN:
        raise KeyError("customer")
    return int((record.value or b"0")[-1:]) % partitions


def keyed(count: int, first: int = 0) -> list[ProducerRecord]:
    """Return records, most of them with one of a few keys; values are in order."""
    return [
        ProducerRecord(b"%06d" % n, None if n % 5 == 4 else b"key %d" % (n % 7), (("h", b"%d" % n),), 1_700_000_000_000)
        for n in range(first, first + count)
    ]


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pair:
    made = Pair(monkeypatch, tmp_path, 3)
    for number in range(3):
        made.source.append("orders", keyed(40, 1000 * number), partition=number)
    return made


def check(source: MemoryCluster, target: MemoryCluster, topic: str, partitions: int) -> None:
    """Every record is there once, where its key belongs, and those of a key and a source partition are in order."""
    old, new = records(source, topic), records(target, topic)
    assert sorted(row for rows in old.values() for row in rows) == sorted(row for rows in new.values() for row in rows)
    for number, rows in new.items():
        chains: dict[Any, list[bytes | None]] = defaultdict(list)
        for row in rows:
            assert row.key is None or od.Murmur2()(topic, row.key, partitions) == number
            chains[row.key, (row.value or b"")[:-3]].append(row.value)  # values say which source partition
        assert all(chain == sorted(chain, key=lambda value: value or b"") for chain in chains.values())


async def compared(config: MirrorConfig) -> DividedTopic:
    result = await verify(config)
    assert result.partitions == []
    (topic,) = result.topics
    assert result.equal == topic.equal
    return topic


async def test_by_key(pair: Pair) -> None:
    config = pair.config(KEYED)
    assert copied(await run(config)) == 120
    check(pair.source, pair.target, "orders", 4)
    assert (await compared(config)) == DividedTopic("orders", "orders", 120, 120, 120, (), "", True)
    pair.source.add_partitions("orders", 6)
    pair.source.append("orders", keyed(10, 5000), partition=5)
    assert (await run(config)).records == {partition("orders", 5): 10}
    check(pair.source, pair.target, "orders", 4)
    assert len(records(pair.target, "orders")) <= 4 and (await compared(config)).equal
    now = await status(config)
    assert now.lag == 0 and [each.target.partition for each in now.partitions] == [-1] * 6
    async with pair.target.connect() as new:
        state, _ = await read_state(config, new)
    assert state.index == {} and all(each.target_next is None for each in state.progress[0].partitions.values())


async def test_as_many_partitions_as_the_source_and_headers_of_the_origin(pair: Pair) -> None:
    config = pair.config('partition_by = "key"\norigin_headers = true')
    await run(config)
    rows = [row for part in records(pair.target, "orders").values() for row in part]
    assert {(dict(row.headers)["odradek.partition"], (row.value or b"")[:3]) for row in rows} == {
        (b"%d" % number, b"%03d" % number) for number in range(3)
    }
    assert all(row.key is None or od.Murmur2()("orders", row.key, 3) in range(3) for row in rows)
    assert (await compared(config)).equal


@pytest.mark.parametrize(
    ("topics", "why"),
    [
        ("", "'orders' is being copied by key to 4 partitions, and this file says by source"),
        (KEYED.replace("4", "5"), "this file says by key to 5 partitions"),
        (f'{KEYED}\nkey_field = "id"', r"this file says by key \(id\) to 4 partitions"),
        (f'partition_by = "{HERE}:by_customer"', "this file says by tests.mirror.test_by_key:by_customer to 4"),
    ],
)
async def test_another_rule_is_refused_later(pair: Pair, topics: str, why: str) -> None:
    await run(pair.config(KEYED))
    with pytest.raises(MirrorRefused, match=why):
        await run(pair.config(topics))
    pair.source.append("orders", keyed(3))
    assert copied(await run(pair.config('partition_by = "key"'))) == 3


async def test_positions_are_not_translated(pair: Pair) -> None:
    config = pair.config(KEYED)
    await run(config)
    for call in (partial(groups, config), partial(cutover, config, "consumers")):
        with pytest.raises(MirrorRefused, match=r"topics\.partition_by is 'key': a position of a group"):
            await call()


# ---- errors --------------------------------------------------------------------------------------------------


async def test_a_function_that_fails_copies_nothing_after_it(pair: Pair) -> None:
    config = pair.config(f'partition_by = "{HERE}:by_customer"\npartitions = 4')
    BROKEN.add(b"001020")
    try:
        with pytest.raises(RuleFailed) as raised:
            await run(config)
    finally:
        BROKEN.clear()
    assert str(raised.value).startswith("the record of orders/1 at 20: no partition for it: KeyError: 'customer'")
    before = {row.value for rows in records(pair.target, "orders").values() for row in rows}
    assert not before & {b"%06d" % n for n in range(1020, 1040)}
    await run(config)
    assert {n: {int((row.value or b"")[-1:]) % 4 for row in rows} for n, rows in records(pair.target, "orders").items()}
    check_function(pair)
    assert (await compared(config)).equal


def check_function(pair: Pair) -> None:
    old, new = records(pair.source, "orders"), records(pair.target, "orders")
    assert sorted(row for rows in old.values() for row in rows) == sorted(row for rows in new.values() for row in rows)
    assert all(int((row.value or b"")[-1:]) % 4 == number for number, rows in new.items() for row in rows)


@pytest.mark.parametrize("applied", [False, True])
async def test_a_commit_whose_answer_is_lost(applied: bool) -> None:
    source, target = MemoryCluster({"t": 2}), MemoryCluster()
    for number in range(2):
        source.append("t", keyed(40, 1000 * number), partition=number)
    config = config_of("t", topics={"partition_by": "key", "partitions": 3}, run={"transaction_bytes": 100})
    target.fail("commit_transaction", ConnectionLost("memory", "reset", True), applied=applied)
    await run_mirror(source, target, config)
    check(source, target, "t", 3)


@pytest.mark.parametrize("seed", range(2))
async def test_cancelled_in_the_middle(seed: int) -> None:
    source, target, random = MemoryCluster({"t": 3}), MemoryCluster(), Random(seed)
    config = config_of("t", topics={"partition_by": "key", "partitions": 4}, run={"tasks": 2, "transaction_bytes": 100})
    for number_of_run in range(3):
        for number in range(3):
            source.append("t", keyed(20, 1000 * number + 20 * number_of_run), partition=number)
        requests = len(target.requests("produce")) + random.randrange(1, 6)
        async with anyio.create_task_group() as group:
            group.start_soon(partial(run_mirror, source, target, config, follow=True))
            with anyio.fail_after(60):
                await target.wait_for_requests("produce", requests)
            for _ in range(random.randrange(60)):
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
    await run_mirror(source, target, config)
    check(source, target, "t", 4)
    assert copied(await run_mirror(source, target, config)) == 0


# ---- comparing -----------------------------------------------------------------------------------------------


def lose_one(pair: Pair) -> None:
    """Write a record again in another partition of the target."""
    pair.target.append("orders", [ProducerRecord(b"000000", b"key 0", (("h", b"0"),), 1_700_000_000_000)], partition=0)


def cut_source(pair: Pair) -> None:
    pair.source.delete_records(partition("orders", 1), 5)


@pytest.mark.parametrize(
    ("change", "topics", "different", "error"),
    [
        (lose_one, KEYED, True, ""),
        (lose_one, f"{KEYED}\nappend = true", False, "the target has records of others"),
        (cut_source, KEYED, False, "the source has deleted 5 of the records"),
    ],
)
async def test_differences(
    pair: Pair, change: Callable[[Pair], None], topics: str, different: bool, error: str
) -> None:
    await run(pair.config(topics))
    change(pair)
    topic = await compared(pair.config(topics))
    assert not topic.equal and topic.error.startswith(error) and (topic.error == "") == different
    assert topic.different == ((0,) if different else ())
    assert "different" in verify_page(await verify(pair.config(topics)))


async def test_nothing_to_compare(pair: Pair) -> None:
    with pytest.raises(MirrorRefused, match="has copied nothing yet"):
        await verify(pair.config(KEYED))


# ---- 0.7 -----------------------------------------------------------------------------------------------------


async def test_a_field_of_07_becomes_the_key() -> None:
    target = MemoryCluster()
    with Kafka07Broker(config={"num.partitions": "2", "log.flush.interval": "1"}) as old:
        url = f"kafka07://1@{old.host}:{old.port}"
        config = config_of("t", topics={"partition_by": "key", "partitions": 3, "key_field": "customer.id"})
        async with od.connect(url) as cluster, target.connect() as new, cluster.producer(compression="gzip") as out:
            clusters = Clusters(ClusterSource(cluster, url), new)

            async def write(*values: bytes) -> None:
                (await out.send_many("t", values, partition=od.TopicPartition("t", 1, 1))).check()
                old.flush()

            await write(*(b'{"customer": {"id": %d}, "n": %d}' % (n % 5, n) for n in range(30)))
            await run_open(config, clusters)
            rows = [(number, row) for number, part in records(target, "t").items() for row in part]
            assert sorted(row.value or b"" for _, row in rows) == sorted(
                b'{"customer": {"id": %d}, "n": %d}' % (n % 5, n) for n in range(30)
            )
            for number, row in rows:
                assert row.key == (row.value or b"")[20:21] and number == od.Murmur2()("t", row.key, 3)
            end = (await cluster.positions("t", od.LATEST))[od.TopicPartition("t", 1, 1)]
            await write(b'{"customer": {"id": 1}}', b"no JSON")
            with pytest.raises(RuleFailed, match=f"t/1-1 at {end}.1: .* the value is not JSON"):
                await run_open(config, clusters)
            assert sum(map(len, records(target, "t").values())) == 30
