"""The check for topics that were made again, before fetches that name topics: when the metadata is read for it."""

from __future__ import annotations

import math

import anyio
import pytest
from tests.io.kafka.answers import metadata_response, topic_response

from odradek.core.interfaces import DecoderOptions, PartitionFetch
from odradek.core.kafka.leader_epochs import LeaderEpochs
from odradek.core.kafka.routing import KafkaRoutingTable
from odradek.core.kafka.routing_snapshot import RoutingSnapshot
from odradek.core.kafka.versions import BrokerVersions, VersionRange
from odradek.errors import BrokerError, OdradekError, TopicRecreated
from odradek.io.kafka.log_decoder import KafkaLogDecoder
from odradek.io.kafka.topic_check import TopicCheck
from odradek.types import Position, TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.data import FetchRequest
from odradek.wire.kafka.messages.metadata import MetadataRequest, MetadataResponseTopic

pytestmark = pytest.mark.anyio

P = TopicPartition("t", 0)
OLD, NEW = b"1" * 16, b"2" * 16
DELETED = topic_response("t", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def release(fetch: int, metadata: int) -> BrokerVersions:
    return BrokerVersions(
        {FetchRequest.SPEC.key: VersionRange(0, fetch), MetadataRequest.SPEC.key: VersionRange(0, metadata)}
    )


V2_7, V2_8, V3_1 = release(12, 9), release(12, 11), release(13, 12)


class Metadata:
    """Metadata that names a topic; `topic` is what the next read finds."""

    def __init__(self, topic: MetadataResponseTopic) -> None:
        self.topic, self.reads, self.read_at = topic, 0, -math.inf
        self.table = RoutingSnapshot()

    async def refresh(self) -> None:
        self.reads += 1
        state = self.table.state.apply(metadata_response(self.topic), None)[0]
        self.table, self.read_at = self.table.updated(state), anyio.current_time()


class Bench:
    """A partition that is fetched from position 100 of the old topic."""

    def __init__(self) -> None:
        self.metadata = Metadata(topic_response("t", 1, topic_id=OLD))
        self.check = TopicCheck(self.metadata)
        self.decoder = KafkaLogDecoder(P, Position(100), DecoderOptions(), LeaderEpochs(), topic_id=OLD)

    async def fetch(self, versions: BrokerVersions = V2_8, *, error: OdradekError | None = None) -> OdradekError | None:
        """Fetch it, with this answer if it is sent. Return the error that the check has found instead."""
        fetch = PartitionFetch(self.decoder, 1000)
        if not await self.check.without_recreated(versions, [fetch]):
            return fetch.error
        fetch.error = error
        self.check.answered(versions, [fetch])
        return None

    async def reads_for_fetch(self) -> int:
        before = self.metadata.reads
        assert await self.fetch() is None
        return self.metadata.reads - before


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [1000.0]
    monkeypatch.setattr(anyio, "current_time", lambda: clock[0])
    return clock


async def test_metadata_is_read_before_the_first_fetch_and_after_every_pause(now: list[float]) -> None:
    bench = Bench()
    assert await bench.reads_for_fetch() == 1
    for _ in range(20):
        fetch = PartitionFetch(bench.decoder, 1000)
        assert await bench.check.without_recreated(V2_8, [fetch])
        now[0] += 1.4  # a long poll
        bench.check.answered(V2_8, [fetch])
        now[0] += 0.4
    assert bench.metadata.reads == 1, "deleting the topic would have ended the fetch with an error"
    now[0] += 0.2  # a partition was paused: nothing would have been ended
    assert await bench.reads_for_fetch() == 1
    now[0] += 0.6
    assert await bench.reads_for_fetch() == 1


@pytest.mark.parametrize("is_answered", [True, False])
async def test_metadata_is_read_after_an_error_and_after_a_connection_was_lost(
    now: list[float], is_answered: bool
) -> None:
    bench = Bench()
    await bench.fetch()
    now[0] += 0.1
    if is_answered:
        await bench.fetch(error=BrokerError(3, "UNKNOWN_TOPIC_OR_PARTITION", retriable=True, refresh_metadata=True))
    else:
        assert await bench.check.without_recreated(V2_8, [PartitionFetch(bench.decoder, 1000)])
    now[0] += 0.1
    assert await bench.reads_for_fetch() == 1
    now[0] += 0.1
    assert await bench.reads_for_fetch() == 0


async def test_an_answer_that_is_seen_late_is_not_sure_of_the_topic(now: list[float]) -> None:
    """The event loop was blocked: when the broker has answered is not known."""
    bench = Bench()
    await bench.fetch()
    fetch = PartitionFetch(bench.decoder, 1000)
    await bench.check.without_recreated(V2_8, [fetch])
    now[0] += 6
    bench.check.answered(V2_8, [fetch])
    assert await bench.reads_for_fetch() == 1


async def test_what_others_have_read_meanwhile_is_enough(now: list[float]) -> None:
    bench = Bench()
    await bench.fetch()
    now[0] += 60
    await bench.metadata.refresh()
    now[0] += 0.4
    assert await bench.reads_for_fetch() == 0


async def test_a_topic_that_was_made_again_is_not_fetched(now: list[float]) -> None:
    bench = Bench()
    await bench.fetch()
    bench.metadata.topic = topic_response("t", 1, topic_id=NEW)
    now[0] += 3
    error = await bench.fetch()
    assert isinstance(error, TopicRecreated) and (error.partition, error.position) == ("t/0", 100)
    bench.decoder = KafkaLogDecoder(P, Position(0), DecoderOptions(), LeaderEpochs(), topic_id=NEW)
    assert await bench.fetch() is None


async def test_a_topic_that_is_deleted_is_not_fetched_until_it_is_there_again(now: list[float]) -> None:
    """By name a fetch could reach the new topic first, before the metadata has named its id. The metadata looks for a
    topic that it lacks by itself."""
    bench = Bench()
    await bench.fetch()
    bench.metadata.topic = DELETED
    now[0] += 3
    assert await bench.fetch() is not None
    reads = bench.metadata.reads
    for _ in range(3):
        now[0] += 3
        error = await bench.fetch()
        assert isinstance(error, BrokerError) and (error.code, error.retriable, error.refresh_metadata) == (
            3,
            True,
            True,
        )
    assert bench.metadata.reads == reads
    bench.metadata.topic = topic_response("t", 1, topic_id=NEW)
    await bench.metadata.refresh()
    assert isinstance(await bench.fetch(), TopicRecreated)


@pytest.mark.parametrize("versions", [V2_7, V3_1], ids=["2.7", "3.1"])
async def test_without_ids_and_where_the_broker_compares_them_nothing_is_checked(versions: BrokerVersions) -> None:
    bench = Bench()
    bench.metadata.topic = topic_response("t", 1, topic_id=NEW)
    assert await bench.fetch(versions) is None and not bench.metadata.reads


async def test_a_topic_that_the_metadata_was_not_asked_for_is_fetched() -> None:
    bench = Bench()
    bench.metadata.topic = topic_response("other", 1)
    assert await bench.fetch() is None and KafkaRoutingTable().topic_id("t") == bytes(16)
