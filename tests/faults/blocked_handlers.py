"""Members whose handlers block their event loop for longer than the session timeout, while others join and leave.

By hand, a hundred rounds of one protocol against a broker of its own:

    python -m tests.faults.blocked_handlers consumer --rounds 100
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import odradek as od
from odradek.testing import KafkaBroker

SESSION_S = 4.0
CONFIG = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": str(int(SESSION_S * 1000)),
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "1000",
}
BLOCKED_S = (0.5, 1.25, 1.5)
"""How long handlers block, in session timeouts."""

RECORDS = 300
BATCH = 10
WITHIN_S = 120.0

Protocol = Literal["classic", "consumer"]


@dataclass
class Round:
    """One group: what its members have processed, and what the log says of partitions that were lost.

    Args:
        group: Its name, and that of its topic.
        protocol: Of all members.
        random: Decides what happens when.
    """

    group: str
    protocol: Protocol
    random: random.Random
    processed: Counter[tuple[int, int]] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    error: str = ""
    blocks: int = 0
    blocked: threading.Event = field(default_factory=threading.Event)
    complete: threading.Event = field(default_factory=threading.Event)

    @property
    def twice(self) -> int:
        return sum(self.processed.values()) - len(self.processed)

    def process(self, batch: od.Batch) -> None:
        self.processed.update((record.partition.partition, record.position) for record in batch)
        if len(self.processed) == RECORDS:
            self.complete.set()

    def run(self, url: str) -> None:
        """Run it; an error is kept."""
        works = [self._block, self._join_and_leave, self._join_and_leave]
        threads = [threading.Thread(target=self._run, args=(url, work)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _run(self, url: str, work: Callable[[od.Cluster], Coroutine[Any, Any, None]]) -> None:
        """Run a member on an event loop of its own."""

        async def main() -> None:
            async with asyncio.timeout(WITHIN_S), od.connect(url, tuning=od.Tuning(session_timeout=SESSION_S)) as k:
                await self._until_complete(work(k))

        try:
            asyncio.run(main())
        except Exception as error:
            self.error = self.error or repr(error)
        finally:
            self.complete.set()
            self.blocked.set()

    async def _until_complete(self, work: Coroutine[Any, Any, None]) -> None:
        task, complete = asyncio.ensure_future(work), asyncio.ensure_future(asyncio.to_thread(self.complete.wait))
        await asyncio.wait({task, complete}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        self.complete.set()

    async def _block(self, k: od.Cluster) -> None:
        """Process records, and block the event loop in three of the handlers."""
        chance = random.Random(self.random.random())
        async with self._consumer(k) as consumer:
            async for batch in consumer.batches(max_records=BATCH, max_wait=0.1):
                self.process(batch)
                if self.blocks < len(BLOCKED_S) and (not self.blocks or chance.random() < 0.3):
                    self.blocked.set()
                    time.sleep(SESSION_S * BLOCKED_S[self.blocks])  # noqa: ASYNC251 - on purpose
                    self.blocks += 1
                batch.done()

    async def _join_and_leave(self, k: od.Cluster) -> None:
        """Join while the other member blocks, and leave and join again now and then."""
        chance = random.Random(self.random.random())
        await asyncio.to_thread(self.blocked.wait)
        while True:
            await asyncio.sleep(chance.uniform(0, SESSION_S))
            stays = chance.choice([SESSION_S, 3 * SESSION_S, WITHIN_S])
            with suppress(TimeoutError):
                async with asyncio.timeout(stays), self._consumer(k) as consumer:
                    async for batch in consumer.batches(max_records=BATCH, max_wait=0.1):
                        await asyncio.sleep(0.2)
                        self.process(batch)
                        batch.done()

    def _consumer(self, k: od.Cluster) -> od.Consumer:
        return k.consumer(self.group, group=self.group, group_protocol=self.protocol, commit_every=0.5)


class _Lost(logging.Handler):
    """Gives each round its lines about partitions that were lost."""

    def __init__(self, rounds: list[Round]) -> None:
        super().__init__()
        self._rounds = {one.group: one for one in rounds}

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        group = line.partition(":")[0]
        if group in self._rounds and ": lost " in line:
            self._rounds[group].lost.append(line)


async def _fill(url: str, rounds: list[Round]) -> None:
    async with od.connect(url) as k, k.producer() as out:
        for one in rounds:
            await k.admin.create_topics(one.group, partitions=one.random.randint(1, 4))
            await out.send_many(one.group, [b"%d" % n for n in range(RECORDS)])


def run(broker: KafkaBroker, protocol: Protocol, count: int, *, at_once: int = 5, seed: int = 0) -> list[Round]:
    """Run rounds, several at once, and return them."""
    url = f"kafka://{broker.bootstrap}"
    rounds = [Round(f"{protocol}-{seed}-{n}", protocol, random.Random(f"{seed} {n}")) for n in range(count)]
    asyncio.run(_fill(url, rounds))
    logger, handler = logging.getLogger("odradek.group"), _Lost(rounds)
    logger.addHandler(handler)
    try:
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(lambda one: one.run(url), rounds))
    finally:
        logger.removeHandler(handler)
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("protocol", choices=["classic", "consumer"])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--at-once", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--version", default="4.3.1")
    options = parser.parse_args()
    with KafkaBroker(options.version, config=CONFIG) as broker:
        rounds = run(broker, options.protocol, options.rounds, at_once=options.at_once, seed=options.seed)
    for one in rounds:
        if one.lost or one.error or one.twice:
            print(one.group, one.error, f"{one.twice} twice", *one.lost, sep="\n  ")
    print(
        f"{len(rounds)} rounds, handlers blocked {sum(one.blocks for one in rounds)} times, "
        f"partitions lost in {sum(bool(one.lost) for one in rounds)} rounds, "
        f"records twice {sum(one.twice for one in rounds)}, errors {sum(bool(one.error) for one in rounds)}"
    )


if __name__ == "__main__":
    main()
