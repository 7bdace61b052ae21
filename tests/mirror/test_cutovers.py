"""A group and its producers move at a random moment: `python -m tests.mirror.cutovers` does so many times."""

from __future__ import annotations

import random

import pytest
from tests.loops import ASYNCIO, on

from odradek.testing import Kafka07Broker, KafkaBroker, ZooKeeperServer

from .cutovers import PARTITIONS, Old, move, repeats

pytestmark = pytest.mark.anyio
anyio_backend = on(ASYNCIO)


async def test_every_record_is_processed_once_over_both_clusters(
    odradek_zookeeper: ZooKeeperServer, odradek_chroot: str, odradek_kafka: KafkaBroker
) -> None:
    config = {"num.partitions": str(PARTITIONS), "log.flush.interval": "1"}
    with Kafka07Broker(zookeeper=odradek_chroot, config=config) as broker:
        old = Old(f"kafka07+zk://{odradek_chroot}", broker.broker_id)
        first = random.choice(["consumers", "producers"])
        moment = await move(old, f"kafka://{odradek_kafka.bootstrap}", random.randrange(1 << 30), first, 2)
    assert moment.problems == []
    assert moment.written > moment.before > 0


@pytest.mark.parametrize(
    ("processed", "wanted"),
    [
        ([b"1 0", b"1 1", b"2 0"], (0, [])),
        ([b"1 0", b"1 1"], (0, ["partition 0: 1 records are missing"])),
        ([b"1 0", b"1 1", b"1 1", b"2 0"], (1, [])),
        ([b"1 1", b"1 0", b"2 0"], (0, ["partition 0: the order is another one"])),
        (
            [b"1 0", b"1 1", b"1 1", b"2 0", b"2 0"],
            (2, ["partition 0: 2 records of more than one message are repeated"]),
        ),
        (
            [b"1 0", b"1 1", b"1 1", b"1 1", b"2 0"],
            (2, ["partition 0: 2 records of more than one message are repeated"]),
        ),
    ],
)
def test_what_is_wrong_is_noticed(processed: list[bytes], wanted: object) -> None:
    assert repeats({0: [b"1 0", b"1 1", b"2 0"]}, {0: processed}, in_order=True) == wanted
