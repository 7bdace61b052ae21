"""As test_producer_outcomes.py, with several batches of a partition in flight and partitions that are gone while their
broker is, as on a cluster of Kafka 0.7."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from tests.client.kafka07_double import Kafka07Double
from tests.client.outcomes import STORIES, run

from odradek.client.cluster import Cluster
from odradek.client.options import Tuning
from odradek.types import TopicPartition


class DoubleBrokers:
    """Those of a double of a 0.7 cluster."""

    partition = TopicPartition("t", 0, 1)

    def __init__(self) -> None:
        self._double = Kafka07Double()
        self.cluster = self._double.cluster

    def client(self, tuning: Tuning) -> Cluster:
        return Cluster(self._double.driver(tuning), tuning)

    def live(self, *ids: int) -> None:
        self._double.metadata.brokers(*ids)

    def log(self, partition: TopicPartition | None = None) -> list[bytes | None]:
        return [*self._double.values()] if partition is None else [*self._double.log[partition]]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@given(**STORIES)
def test_every_record_has_exactly_one_outcome_whatever_happens(backend: str, **story: Any) -> None:
    run(DoubleBrokers(), backend, **story)
