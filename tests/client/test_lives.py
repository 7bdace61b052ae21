"""Random lives of clients that are cancelled at a random step, natively and by scopes, while the cluster misbehaves.

A life is one in-memory cluster and a few rounds. In each, a client runs a random choice of a producer, a reader, a
consumer and a consumer with `each`; brokers stop, leaders move, requests fail, wait or are held, members expire; and
the client is cancelled at a random step, on entering and on leaving too, sometimes twice. In the end everything works
again, and the rest is read.

    ODRADEK_LIVES=2000 pytest tests/client/test_lives.py            # that many lives, in all
    ODRADEK_LIVES_SEED=123 pytest tests/client/test_lives.py        # life 123 again, in each way
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext

import pytest
from tests.client.lives import WAYS, Life, run_lives

import odradek as od
from odradek.client.options import Tuning
from odradek.core.backoff import Backoff
from odradek.errors import BrokerError, ConnectionLost, DeadlineError, OdradekError
from odradek.testing import MemoryCluster
from odradek.testing.memory.faults import Operation
from odradek.types import TopicPartition

LIVES = int(os.environ.get("ODRADEK_LIVES", "300"))

PARTITIONS = [TopicPartition("t", number) for number in range(3)]
TUNING = Tuning(backoff=Backoff(0.0002, 2, 0.002), request_timeout=0.03, connect_timeout=0.03, fetch_idle=0.002)

HELD: list[Operation] = ["produce", "fetch", "positions", "metadata", "join", "commit", "connect"]
ERRORS: list[OdradekError] = [
    BrokerError(5, "LEADER_NOT_AVAILABLE", retriable=True, refresh_metadata=True),
    BrokerError(29, "TOPIC_AUTHORIZATION_FAILED"),
    ConnectionLost("memory", "reset", True),
    ConnectionLost("memory", "reset", False),
    DeadlineError("a request", 1.0, sent=True),
]


class MemoryLife(Life):
    """A life of an in-memory cluster."""

    tuning = TUNING

    def __init__(self, seed: int) -> None:
        super().__init__(seed, PARTITIONS)
        self.cluster = MemoryCluster(topics={"t": len(PARTITIONS)}, brokers=2)
        self.responses_lost = 0
        for _ in range(self.chance.randrange(40)):
            self.append()

    def connect(self) -> od.Cluster:
        return self.cluster.connect(tuning=self.tuning)

    def append(self) -> None:
        self.cluster.append("t", [self.value()], partition=self.chance.randrange(len(PARTITIONS)))

    async def disturb(self) -> None:
        cluster, chance = self.cluster, self.chance
        broker, operation = chance.choice([1, 2]), chance.choice(HELD)
        error, where = chance.choice(ERRORS), chance.choice([None, 1])
        events: list[Callable[[], object]] = [
            lambda: cluster.stop_broker(broker),
            lambda: cluster.start_broker(broker),
            lambda: cluster.start_broker(broker),
            lambda: cluster.move_leader(chance.choice(PARTITIONS), broker),
            lambda: cluster.fail(operation, error, chance.randint(1, 3), broker=where),
            lambda: cluster.hold(operation),
            self.release,
            lambda: cluster.delay(operation, chance.choice([0, 0, 0.001])),
            lambda: cluster.expire("g"),
            self.append,
            self.lose_response,
        ]
        chance.choice(events)()

    def release(self) -> None:
        for each in HELD:
            self.cluster.release(each)

    def lose_response(self) -> None:
        self.responses_lost += 1
        self.cluster.fail("produce", ConnectionLost("memory", "reset", True), applied=True)

    async def check(self) -> None:
        values = Counter(stored.value for stored in self.cluster.records("t"))
        copies = max(values.values(), default=1) - 1
        assert copies <= self.responses_lost, "a record was written twice, although no response was lost"
        self.check_log(values)
        self.check_producers()
        self.check_reading()
        for partition, position in self.cluster.committed("g").items():
            assert self.done[partition] >= set(range(position)), f"{partition}: committed beyond what was done"
        assert not self.cluster.members("g"), "a member did not leave"

    async def finish_reading(self) -> None:
        self.cluster.heal()
        ends = {partition: len(self.cluster.log(partition)) for partition in PARTITIONS}
        async with self.cluster.connect() as k:
            async with k.reader("t", start=self.bookmark or od.EARLIEST, until=od.LATEST) as reader:
                self.read += [(record.partition, record.position) async for record in reader]
            assert sorted(self.read) == sorted((p, n) for p, end in ends.items() for n in range(end))
            await self.consume_until(k, lambda: all(self.done[p] == set(range(end)) for p, end in ends.items()))
        assert all(at <= ends[p] for p, at in self.cluster.committed("g").items())


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("way", WAYS)
def test_no_life_hangs_leaves_a_task_or_loses_what_was_confirmed(way: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="odradek")  # they have much to complain about
    run_lives(lambda seed: nullcontext(MemoryLife(seed)), way, LIVES)
