"""Share groups on real brokers: acknowledgements, locks, sessions, and members of Java in the same group.

ODRADEK_SHARE_STEPS=20 pytest tests/brokers/test_share_groups.py --brokers all    # more kills, a few minutes
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

import odradek as od
from odradek.client.options import Compression
from odradek.testing import KafkaBroker

from .conftest import PARTITIONS
from .test_data import connect, has

pytestmark = [pytest.mark.anyio, pytest.mark.brokers, pytest.mark.timeout(600)]

log = logging.getLogger(__name__)

WITHIN_S = 90.0
LOCK_S = 30.0
"""Duration of a lock by default."""

STEPS = int(os.environ.get("ODRADEK_SHARE_STEPS", "2"))
PER_STEP = 200
MEMBER = Path(__file__).with_name("share_member.py")


def begin_at_the_start(kafka: KafkaBroker, group: str) -> None:
    kafka.java_tool(
        "kafka.admin.ConfigCommand",
        *("--bootstrap-server", kafka.bootstrap, "--alter", "--entity-type", "groups", "--entity-name", group),
        *("--add-config", "share.auto.offset.reset=earliest"),
    )


async def produce(kafka: KafkaBroker, topic: str, values: list[bytes], compression: Compression = "none") -> None:
    async with connect(kafka) as cluster, cluster.producer(compression=compression) as out:
        await out.send_many(topic, [od.ProducerRecord(value, key=value) for value in values])


async def test_records_are_accepted_released_rejected_and_renewed(kafka: KafkaBroker, topic: str) -> None:
    if not has(kafka, (4, 2)):
        async with connect(kafka) as cluster:
            with pytest.raises(od.Unsupported, match=r"share group.*Kafka 4\.1"):
                async with cluster.share_consumer(topic, group=topic):
                    raise AssertionError("entered")
        return
    kafka.create_topic(topic, PARTITIONS)
    begin_at_the_start(kafka, topic)
    values = [b"%d" % number for number in range(300)]
    await produce(kafka, topic, values, "lz4")
    accepted: Counter[bytes | None] = Counter()
    counts: dict[bytes | None, int] = {}
    with anyio.fail_after(WITHIN_S):
        async with connect(kafka) as cluster, cluster.share_consumer(topic, group=topic, acknowledge="explicit") as one:
            async for record in one:
                assert record.value is not None
                number = int(record.value)
                if number % 10 == 1 and record.delivery_count < 3:
                    assert record.release()
                elif number % 10 == 2:
                    assert record.reject()
                else:
                    if number % 10 == 3:
                        assert record.renew()
                        await one.commit()
                    assert record.accept()
                    accepted[record.value] += 1
                counts[record.value] = record.delivery_count
                if len(counts) == 300 and len(accepted) == 270:
                    break
            await one.commit()
            assert {partition.topic for partition in one.assignment} == {topic}
    assert set(accepted.values()) == {1}
    assert {counts[value] for value in values} == {1, 3}
    assert all(counts[value] == (3 if int(value) % 10 == 1 else 1) for value in values)


@pytest.mark.parametrize("dry_run", [True, False])
async def test_the_positions_of_a_share_group_are_not_reset(kafka: KafkaBroker, topic: str, dry_run: bool) -> None:
    if not has(kafka, (4, 2)):
        return
    kafka.create_topic(topic)
    with anyio.fail_after(WITHIN_S):
        async with connect(kafka) as cluster:
            async with cluster.share_consumer(topic, group=topic):
                assert (await cluster.admin.describe_groups(topic)).check()[topic].type == "share"
            with pytest.raises(od.GroupError, match="is a share group"):
                await cluster.admin.reset_positions(topic, {od.TopicPartition(topic, 0): 0}, dry_run=dry_run)


async def test_what_a_member_left_unacknowledged_goes_to_another_one_at_once(kafka: KafkaBroker, topic: str) -> None:
    if not has(kafka, (4, 2)):
        return
    kafka.create_topic(topic)
    begin_at_the_start(kafka, topic)
    await produce(kafka, topic, [b"%d" % number for number in range(20)])
    with anyio.fail_after(WITHIN_S):
        async with connect(kafka) as cluster:
            async with cluster.share_consumer(topic, group=topic, max_records=5) as one:
                batch = await anext(one.batches())
                assert len(batch) == 5, "no record more than asked for, although all are one batch"
                records = list(batch)
                records[0].accept()
                records[1].reject()
                for record in records[2:]:
                    record.release()
            got: dict[bytes | None, int] = {}
            async with cluster.share_consumer(topic, group=topic) as two:
                async for record in two:
                    got[record.value] = record.delivery_count
                    if len(got) == 18:
                        break
    assert got == {b"%d" % number: 2 if number < 5 else 1 for number in range(2, 20)}


class Members:
    """Members in processes of their own, and what they got: value -> delivery counts."""

    def __init__(self, kafka: KafkaBroker, topic: str) -> None:
        self._kafka, self._topic = kafka, topic
        self.deliveries: dict[str, list[int]] = {}
        self._read: list[tuple[subprocess.Popen[str], Path, bool]] = []
        self._folder = kafka.data_dir

    def start(self, *, java: bool) -> subprocess.Popen[str]:
        kafka, topic = self._kafka, self._topic
        command = [sys.executable, str(MEMBER), kafka.bootstrap, topic, topic]
        if java:
            options = ("--topic", topic, "--group-id", topic, "--verbose", "--acknowledgement-mode", "auto")
            main = "org.apache.kafka.tools.VerifiableShareConsumer"
            command = kafka.java_command(main, "--bootstrap-server", kafka.bootstrap, *options)
        path = self._folder.parent / f"member-{topic}-{len(self._read)}.txt"
        with path.open("w") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, text=True)
        self._read.append((process, path, java))
        return process

    def count(self) -> dict[str, list[int]]:
        """Return the delivery counts of every value; those of Java's members, which do not say, as 0."""
        deliveries: dict[str, list[int]] = {}
        for _, path, java in self._read:
            for line in path.read_text().splitlines():
                if java and '"record_data"' in line:
                    deliveries.setdefault(json.loads(line)["value"], []).append(0)
                elif not java and line.count(" ") == 1:
                    value, number = line.split()
                    deliveries.setdefault(value, []).append(int(number))
        return deliveries

    def has_joined(self, process: subprocess.Popen[str]) -> bool:
        path = next(path for each, path, _ in self._read if each is process)
        return bool(path.read_text())

    def end(self) -> None:
        for process, path, _ in self._read:
            process.kill()
            process.wait()
            path.unlink()


@contextmanager
def members_of(kafka: KafkaBroker, topic: str) -> Iterator[Members]:
    members = Members(kafka, topic)
    try:
        yield members
    finally:
        members.end()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - of processes
        await anyio.sleep(0.1)


@pytest.mark.slow
async def test_members_of_both_kinds_lose_nothing_when_some_are_killed(kafka: KafkaBroker, topic: str) -> None:
    if not has(kafka, (4, 2)):
        return
    kafka.create_topic(topic, PARTITIONS)
    begin_at_the_start(kafka, topic)
    produced: list[bytes] = []
    with members_of(kafka, topic) as members, anyio.fail_after(WITHIN_S + 20 * STEPS):
        living = [members.start(java=False), members.start(java=True), members.start(java=False)]
        await until(lambda: all(map(members.has_joined, living)))
        for step in range(STEPS):
            values = [b"%d" % number for number in range(len(produced), len(produced) + PER_STEP)]
            produced += values
            await produce(kafka, topic, values)
            victim = living.pop(0)
            victim.kill()
            living.append(members.start(java=step % 2 == 1))
            await until(lambda: all(map(members.has_joined, living)))
        await until(lambda: len(members.count()) == len(produced))
        deliveries = members.count()
    assert deliveries.keys() == {value.decode() for value in produced}
    again = sum(len(counts) - 1 for counts in deliveries.values())
    assert all(len(counts) <= max(counts) for counts in deliveries.values() if len(counts) > 1 and 0 not in counts)
    log.info("%s: %d records, %d kills: none lost, %d delivered again", kafka.version, len(produced), STEPS, again)


async def test_a_topic_that_is_deleted_holds_back_no_record_of_another_one(kafka: KafkaBroker, topic: str) -> None:
    """Brokers answer whole requests with an error then, and what they have acquired for these stays locked for 30 s."""
    if not has(kafka, (4, 2)):
        return
    other = f"{topic}-other"
    for name in (topic, other):
        kafka.create_topic(name)
    begin_at_the_start(kafka, topic)
    await produce(kafka, other, [b"first"])
    async with connect(kafka) as cluster, cluster.share_consumer([topic, other], group=topic) as one:
        with anyio.fail_after(WITHIN_S):
            assert (await anext(one)).accept()
            await one.commit()
            await cluster.admin.delete_topics(topic)
            await produce(kafka, other, [b"second"])
        with anyio.fail_after(LOCK_S / 2):
            assert (await anext(one)).value == b"second"
