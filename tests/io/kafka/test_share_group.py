"""A member of a share group, with a scripted broker."""

from __future__ import annotations

import anyio
import pytest
from tests.core.kafka.test_share_records import record_bytes
from tests.io.kafka.answers import metadata_response, topic_response
from tests.io.kafka.peer import EVERYTHING, Peer
from tests.io.kafka.test_membership import driver_at

from odradek.core.interfaces import ShareSubscription
from odradek.errors import BrokerError
from odradek.io.kafka import share_group
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.common import TopicIdPartitions
from odradek.wire.kafka.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.wire.kafka.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)
from odradek.wire.kafka.messages.share_groups import (
    AcquiredRecords,
    ShareFetchableTopicResponse,
    ShareFetchPartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareGroupHeartbeatAssignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

pytestmark = pytest.mark.anyio

LEAVE_EPOCH = -1
FEATURE = FinalizedFeatureKey(name="share.version", max_version_level=1, min_version_level=1)
ID_T, ID_U, ID_NEW = b"t" * 16, b"u" * 16, b"n" * 16


class ShareBroker(Peer):
    """A broker with two topics, t and u, that it assigns to the one member of a share group.

    Attributes:
        t: The topic t in Metadata.
        session: The topics of the share session.
        left: Records of u that were not delivered yet.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                ApiVersionsRequest: lambda request, version: ApiVersionsResponse(
                    api_keys=EVERYTHING.api_keys, finalized_features=(FEATURE,)
                ),
                MetadataRequest: self.metadata,
                FindCoordinatorRequest: lambda r, v: FindCoordinatorResponse(node_id=1, host="b", port=9092),
                ShareGroupHeartbeatRequest: self.heartbeat,
                ShareFetchRequest: self.fetch,
            }
        )
        self.t = topic_response("t", 1, topic_id=ID_T)
        self.session: set[bytes] = set()
        self.left = 1

    def metadata(self, request: MetadataRequest, version: int) -> MetadataResponse:
        topics: tuple[MetadataResponseTopic, ...] = (self.t, topic_response("u", 1, topic_id=ID_U))
        asked = {topic.name for topic in request.topics or ()}
        if asked == {None}:
            topics = tuple(MetadataResponseTopic(name=n, topic_id=i) for n, i in (("t", ID_T), ("u", ID_U)))
        return metadata_response(*(topic for topic in topics if asked == {None} or topic.name in asked))

    def heartbeat(self, request: ShareGroupHeartbeatRequest, version: int) -> ShareGroupHeartbeatResponse:
        topics = tuple(TopicIdPartitions(topic_id=topic_id, partitions=(0,)) for topic_id in (ID_T, ID_U))
        assignment = ShareGroupHeartbeatAssignment(topic_partitions=topics) if request.member_epoch == 0 else None
        return ShareGroupHeartbeatResponse(member_epoch=1, heartbeat_interval_ms=60_000, assignment=assignment)

    def fetch(self, request: ShareFetchRequest, version: int) -> ShareFetchResponse:
        if request.share_session_epoch == 0:
            self.session.clear()
        self.session |= {topic.topic_id for topic in request.topics}
        self.session -= {topic.topic_id for topic in request.forgotten_topics_data}
        if self.t.topic_id != ID_T and ID_T in self.session:
            return ShareFetchResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        if not self.left:
            return ShareFetchResponse()
        self.left -= 1
        acquired = AcquiredRecords(first_offset=0, last_offset=0, delivery_count=1)
        part = ShareFetchPartitionData(
            partition_index=0, records=bytes(record_bytes(0, 1)), acquired_records=(acquired,)
        )
        return ShareFetchResponse(responses=(ShareFetchableTopicResponse(topic_id=ID_U, partitions=(part,)),))


@pytest.mark.parametrize("made_again", [False, True])
async def test_a_topic_that_is_deleted_is_not_read_until_the_assignment_lacks_it(
    monkeypatch: pytest.MonkeyPatch, made_again: bool
) -> None:
    peer = ShareBroker()
    async with driver_at(peer, monkeypatch) as driver:
        member = driver.share_group(ShareSubscription("g", frozenset({"t", "u"})))
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(member.run)
                await member.next_batch()
                assert peer.session == {ID_T, ID_U}
                unknown = topic_response("t", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                peer.t = topic_response("t", 1, topic_id=ID_NEW) if made_again else unknown
                peer.left = 2
                for _ in range(2):
                    assert (await member.next_batch()).partition.topic == "u"
                assert peer.session == {ID_U}
                await member.leave()


async def test_a_partition_is_read_that_its_group_heard_of_before_this_client(monkeypatch: pytest.MonkeyPatch) -> None:
    peer, asked = ShareBroker(), anyio.Event()
    topics = (TopicIdPartitions(topic_id=ID_T, partitions=(0, 1)),)

    def heartbeat(request: ShareGroupHeartbeatRequest, version: int) -> ShareGroupHeartbeatResponse:
        answer = peer.heartbeat(request, version)
        return answer.__replace__(assignment=ShareGroupHeartbeatAssignment(topic_partitions=topics))

    def fetch(request: ShareFetchRequest, version: int) -> ShareFetchResponse:
        numbers = {part.partition_index for topic in request.topics for part in topic.partitions}
        peer.t = topic_response("t", 1, 1, topic_id=ID_T)
        if 1 in numbers:
            asked.set()
        return ShareFetchResponse()

    peer.answers |= {ShareGroupHeartbeatRequest: heartbeat, ShareFetchRequest: fetch}
    async with driver_at(peer, monkeypatch) as driver:
        member = driver.share_group(ShareSubscription("g", frozenset({"t"})))
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(member.run)
                tasks.start_soon(member.next_batch)
                await asked.wait()
                tasks.cancel_scope.cancel()
            await member.leave()


@pytest.mark.parametrize("answers", [True, False])
async def test_a_member_whose_fetcher_fails_leaves_its_group(monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
    monkeypatch.setattr(share_group, "LEAVE_S", 0.5)
    peer, refusal = ShareBroker(), ShareFetchResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    peer.answers[ShareFetchRequest] = lambda request, version: refusal

    def heartbeat(request: ShareGroupHeartbeatRequest, version: int) -> ShareGroupHeartbeatResponse | None:
        return peer.heartbeat(request, version) if answers or request.member_epoch != LEAVE_EPOCH else None

    peer.answers[ShareGroupHeartbeatRequest] = heartbeat
    async with driver_at(peer, monkeypatch) as driver:
        member = driver.share_group(ShareSubscription("g", frozenset({"t", "u"})))

        async def run() -> None:
            with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
                await member.run()

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
                    await member.next_batch()
                await member.leave()
    epochs = [each.member_epoch for each, _ in peer.requests if isinstance(each, ShareGroupHeartbeatRequest)]
    assert epochs == [0, LEAVE_EPOCH]
