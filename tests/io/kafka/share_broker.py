"""A broker with one topic for members of a share group, which acquires, acknowledges, and refuses what a test says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.core.kafka.test_share_records import record_bytes
from tests.io.kafka.answers import metadata_response, topic_response
from tests.io.kafka.peer import EVERYTHING, Answer, Peer

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
    ShareAcknowledgePartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
    ShareFetchableTopicResponse,
    ShareFetchPartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareGroupHeartbeatAssignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

__all__ = ["FEATURE", "Session", "SharingBroker"]

FEATURE = FinalizedFeatureKey(name="share.version", max_version_level=1, min_version_level=1)
TOPIC_ID = b"t" * 16
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


@dataclass(slots=True)
class Session:
    """A share session.

    Attributes:
        epoch: Of the next request.
        partitions: The numbers of the partitions that it reads.
    """

    epoch: int = 1
    partitions: set[int] = field(default_factory=set)


class SharingBroker(Peer):
    """A broker that leads the partitions of the topic t, and coordinates the group.

    Args:
        records: In each partition.
        partitions: How many.
        per_fetch: Records of a partition that are acquired at a time.

    Attributes:
        leader: The id of the broker that leads the partitions.
        members: The epochs of the members.
        sessions: By member.
        held: Who has acquired a record, which is a partition and an offset.
        done: Acknowledgements of records that were accepted or rejected.
        deliveries: Of each record.
        refuse: Called with each request before it is served: an error code, an answer, or None to serve it.
        refuse_partition: The same for each partition of a ShareFetch.
        refuse_acknowledgements: The same for the acknowledgements of each partition.
    """

    def __init__(self, records: int = 6, partitions: int = 1, per_fetch: int = 2) -> None:
        super().__init__(
            {
                ApiVersionsRequest: lambda request, version: ApiVersionsResponse(
                    api_keys=EVERYTHING.api_keys, finalized_features=(FEATURE,)
                ),
                MetadataRequest: self._metadata,
                FindCoordinatorRequest: self._coordinator,
                ShareGroupHeartbeatRequest: self._heartbeat,
                ShareFetchRequest: self._fetch,
                ShareAcknowledgeRequest: self._acknowledge,
            }
        )
        self._records, self._partitions, self._per_fetch = records, partitions, per_fetch
        self.leader = 1
        self.members: dict[str, int] = {}
        self.sessions: dict[str, Session] = {}
        self.held: dict[tuple[int, int], str] = {}
        self.done: dict[tuple[int, int], int] = {}
        self.deliveries: Counter[tuple[int, int]] = Counter()
        self.refuse: Callable[[Any], int | Answer] = lambda request: 0
        self.refuse_partition: Callable[[ShareFetchRequest, int], int] = lambda request, number: 0
        self.refuse_acknowledgements: Callable[[Any, int], int] = lambda request, number: 0

    def of(self, api: type) -> list[Any]:
        return [request for request, _ in self.requests if type(request) is api]

    @property
    def all_records(self) -> set[tuple[int, int]]:
        return {(number, offset) for number in range(self._partitions) for offset in range(self._records)}

    def release(self, member: str) -> None:
        """Give back what a member has acquired: its session or its lock has ended."""
        self.held = {record: holder for record, holder in self.held.items() if holder != member}

    # ---- answers ----

    def _metadata(self, request: MetadataRequest, version: int) -> MetadataResponse:
        if any(topic.name is None for topic in request.topics or ()):
            return metadata_response(MetadataResponseTopic(name="t", topic_id=TOPIC_ID))
        topic = topic_response("t", *[self.leader] * self._partitions, topic_id=TOPIC_ID)
        return metadata_response(topic, hosts={1: "b", 2: "c"})

    def _coordinator(self, request: FindCoordinatorRequest, version: int) -> Answer:
        refusal = self.refuse(request)
        if isinstance(refusal, int):
            return FindCoordinatorResponse(error_code=refusal, node_id=1, host="b", port=9092)
        return refusal

    def _heartbeat(self, request: ShareGroupHeartbeatRequest, version: int) -> Answer:
        refusal = self.refuse(request)
        if not isinstance(refusal, int):
            return refusal
        if refusal:
            return ShareGroupHeartbeatResponse(error_code=refusal)
        if request.member_epoch < 0:
            known = self.members.pop(request.member_id, None)
            code = ErrorCode.NONE if known else ErrorCode.UNKNOWN_MEMBER_ID
            return ShareGroupHeartbeatResponse(error_code=code, member_epoch=-1)
        assignment = None
        if request.member_epoch == 0:
            numbers = tuple(range(self._partitions))
            topics = (TopicIdPartitions(topic_id=TOPIC_ID, partitions=numbers),)
            assignment = ShareGroupHeartbeatAssignment(topic_partitions=topics)
        self.members[request.member_id] = 1
        return ShareGroupHeartbeatResponse(member_epoch=1, heartbeat_interval_ms=20, assignment=assignment)

    def _session(self, request: ShareFetchRequest | ShareAcknowledgeRequest) -> Session | int:
        """Return the session of a request, or an error code."""
        member = request.member_id or ""
        session = self.sessions.get(member)
        if request.share_session_epoch == 0:
            assert isinstance(request, ShareFetchRequest)
            assert not any(p.acknowledgement_batches for t in request.topics for p in t.partitions)
            session = self.sessions[member] = Session()
        elif session is None:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        elif request.share_session_epoch == -1:
            del self.sessions[member]
        elif request.share_session_epoch != session.epoch:
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH
        else:
            session.epoch += 1
        return session

    def _forget(self, request: ShareFetchRequest | ShareAcknowledgeRequest, refusal: int) -> None:
        """End a session that is refused as one that does not exist."""
        if refusal == ErrorCode.SHARE_SESSION_NOT_FOUND:
            self.sessions.pop(request.member_id or "", None)
            self.release(request.member_id or "")

    def _fetch(self, request: ShareFetchRequest, version: int) -> Answer:
        refusal = self.refuse(request)
        if not isinstance(refusal, int):
            return refusal
        if refusal:
            self._forget(request, refusal)
            return ShareFetchResponse(error_code=refusal)
        session = self._session(request)
        if isinstance(session, int):
            return ShareFetchResponse(error_code=session)
        named = {p.partition_index: p for topic in request.topics for p in topic.partitions}
        session.partitions |= named.keys()
        session.partitions -= {n for topic in request.forgotten_topics_data for n in topic.partitions}
        parts = []
        for number in sorted(session.partitions):
            batches = named[number].acknowledgement_batches if number in named else ()
            acknowledged = self._apply(request, number, batches) if batches else 0
            if error := self.refuse_partition(request, number):
                part = ShareFetchPartitionData(
                    partition_index=number, error_code=error, acknowledge_error_code=acknowledged, records=b""
                )
                parts.append(part)
            elif acquired := self._acquire(request.member_id or "", number):
                part = ShareFetchPartitionData(
                    partition_index=number,
                    acknowledge_error_code=acknowledged,
                    records=bytes(record_bytes(0, self._records)),
                    acquired_records=tuple(acquired),
                )
                parts.append(part)
            elif batches:
                part = ShareFetchPartitionData(partition_index=number, acknowledge_error_code=acknowledged, records=b"")
                parts.append(part)
        topics = (ShareFetchableTopicResponse(topic_id=TOPIC_ID, partitions=tuple(parts)),) if parts else ()
        return ShareFetchResponse(responses=topics, acquisition_lock_timeout_ms=30_000)

    def _acquire(self, member: str, number: int) -> list[AcquiredRecords]:
        free = [r for r in sorted(self.all_records - self.held.keys() - self.done.keys()) if r[0] == number]
        acquired = []
        for record in free[: self._per_fetch]:
            self.held[record] = member
            self.deliveries[record] += 1
            acquired.append(
                AcquiredRecords(first_offset=record[1], last_offset=record[1], delivery_count=self.deliveries[record])
            )
        return acquired

    def _apply(self, request: ShareFetchRequest | ShareAcknowledgeRequest, number: int, batches: Any) -> int:
        """Apply the acknowledgements of one partition; return an error code. Locks of records whose acknowledgement is
        refused end at once."""
        kinds: dict[tuple[int, int], int] = {}
        for batch in batches:
            types, offsets = batch.acknowledge_types, range(batch.first_offset, batch.last_offset + 1)
            kinds |= {(number, o): types[0 if len(types) == 1 else n] for n, o in enumerate(offsets)}
        if error := self.refuse_acknowledgements(request, number):
            for record in kinds:
                self.held.pop(record, None)
            return error
        if any(self.held.get(record) != request.member_id for record in kinds):
            return ErrorCode.INVALID_RECORD_STATE
        for record, kind in kinds.items():
            if kind != RENEW:
                del self.held[record]
            if kind in (ACCEPT, REJECT):
                self.done[record] = kind
        return 0

    def _acknowledge(self, request: ShareAcknowledgeRequest, version: int) -> Answer:
        refusal = self.refuse(request)
        if not isinstance(refusal, int):
            return refusal
        if refusal:
            self._forget(request, refusal)
            return ShareAcknowledgeResponse(error_code=refusal)
        session = self._session(request)
        if isinstance(session, int):
            return ShareAcknowledgeResponse(error_code=session)
        parts = [
            ShareAcknowledgePartitionData(
                partition_index=p.partition_index,
                error_code=self._apply(request, p.partition_index, p.acknowledgement_batches),
            )
            for topic in request.topics
            for p in topic.partitions
        ]
        if request.share_session_epoch == -1:
            self.release(request.member_id or "")
        topics = (ShareAcknowledgeTopicResponse(topic_id=TOPIC_ID, partitions=tuple(parts)),) if parts else ()
        return ShareAcknowledgeResponse(responses=topics)
