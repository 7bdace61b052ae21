"""Whatever comes in, in whatever order, and whatever fails: every record has exactly one outcome, and it is true."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from tests.client.outcomes import STORIES, run
from tests.client.producing import P0, make_cluster, stored, values

from odradek.client.cluster import Cluster
from odradek.client.options import Tuning
from odradek.types import TopicPartition


class MemoryBrokers:
    """Those of an in-memory cluster."""

    partition = P0

    def __init__(self) -> None:
        self.cluster = make_cluster()

    def client(self, tuning: Tuning) -> Cluster:
        return self.cluster.connect(tuning=tuning)

    def live(self, *ids: int) -> None:
        for broker in (1, 2):
            (self.cluster.start_broker if broker in ids else self.cluster.stop_broker)(broker)

    def log(self, partition: TopicPartition | None = None) -> list[bytes | None]:
        return [*values(self.cluster)] if partition is None else stored(self.cluster, partition)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@given(**STORIES)
def test_every_record_has_exactly_one_outcome_whatever_happens(backend: str, **story: Any) -> None:
    run(MemoryBrokers(), backend, **story)
