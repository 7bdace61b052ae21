"""Consumer groups, classic and of KIP-848, and their offsets."""

from __future__ import annotations

from typing import Annotated

from odradek.wire.kafka.messages.common import DescribedTopicPartitions, TopicIdPartitions
from odradek.wire.kafka.schema import (
    I8,
    I16,
    I32,
    I64,
    IGNORABLE,
    ZERO_UUID,
    Bool,
    Bytes,
    Request,
    Response,
    Str,
    Struct,
    Uuid,
    message,
    nullable,
    since,
    struct,
    until,
)


@struct
class OffsetCommitRequestPartition(Struct):
    partition_index: I32 = 0
    committed_offset: I64 = 0
    committed_leader_epoch: Annotated[I32, since(6), IGNORABLE] = -1
    commit_timestamp: Annotated[I64, since(1), until(1)] = -1
    committed_metadata: Annotated[Str | None, nullable()] = ""


@struct
class OffsetCommitRequestTopic(Struct):
    name: Annotated[Str, until(9), IGNORABLE] = ""
    topic_id: Annotated[Uuid, since(10), IGNORABLE] = ZERO_UUID
    partitions: tuple[OffsetCommitRequestPartition, ...] = ()


@message(key=8, side="request", versions=(0, 10), flexible=8)
class OffsetCommitRequest(Request["OffsetCommitResponse"]):
    """Commit offsets of a group; in ZooKeeper in version 0."""

    group_id: Str = ""
    generation_id_or_member_epoch: Annotated[I32, since(1), IGNORABLE] = -1
    member_id: Annotated[Str, since(1), IGNORABLE] = ""
    group_instance_id: Annotated[Str | None, since(7), nullable()] = None
    retention_time_ms: Annotated[I64, since(2), until(4), IGNORABLE] = -1
    topics: tuple[OffsetCommitRequestTopic, ...] = ()


@struct
class OffsetCommitResponsePartition(Struct):
    partition_index: I32 = 0
    error_code: I16 = 0


@struct
class OffsetCommitResponseTopic(Struct):
    name: Annotated[Str, until(9), IGNORABLE] = ""
    topic_id: Annotated[Uuid, since(10), IGNORABLE] = ZERO_UUID
    partitions: tuple[OffsetCommitResponsePartition, ...] = ()


@message(key=8, side="response", versions=(0, 10), flexible=8)
class OffsetCommitResponse(Response):
    throttle_time_ms: Annotated[I32, since(3), IGNORABLE] = 0
    topics: tuple[OffsetCommitResponseTopic, ...] = ()


@struct
class OffsetFetchRequestTopic(Struct):
    name: Str = ""
    partition_indexes: tuple[I32, ...] = ()


@struct
class OffsetFetchRequestTopics(Struct):
    name: Annotated[Str, until(9), IGNORABLE] = ""
    topic_id: Annotated[Uuid, since(10), IGNORABLE] = ZERO_UUID
    partition_indexes: tuple[I32, ...] = ()


@struct
class OffsetFetchRequestGroup(Struct):
    group_id: Str = ""
    member_id: Annotated[Str | None, since(9), nullable(), IGNORABLE] = None
    member_epoch: Annotated[I32, since(9), IGNORABLE] = -1
    topics: Annotated[tuple[OffsetFetchRequestTopics, ...] | None, nullable()] = ()


@message(key=9, side="request", versions=(0, 10), flexible=6)
class OffsetFetchRequest(Request["OffsetFetchResponse"]):
    """Get the committed offsets of a group; null topics mean all of them."""

    group_id: Annotated[Str, until(7)] = ""
    topics: Annotated[tuple[OffsetFetchRequestTopic, ...] | None, until(7), nullable(2)] = ()
    groups: Annotated[tuple[OffsetFetchRequestGroup, ...], since(8)] = ()
    require_stable: Annotated[Bool, since(7)] = False


@struct
class OffsetFetchResponsePartition(Struct):
    partition_index: I32 = 0
    committed_offset: I64 = 0
    committed_leader_epoch: Annotated[I32, since(5), IGNORABLE] = -1
    metadata: Annotated[Str | None, nullable()] = ""
    error_code: I16 = 0


@struct
class OffsetFetchResponseTopic(Struct):
    name: Str = ""
    partitions: tuple[OffsetFetchResponsePartition, ...] = ()


@struct
class OffsetFetchResponsePartitions(Struct):
    partition_index: I32 = 0
    committed_offset: I64 = 0
    committed_leader_epoch: I32 = -1
    metadata: Annotated[Str | None, nullable()] = ""
    error_code: I16 = 0


@struct
class OffsetFetchResponseTopics(Struct):
    name: Annotated[Str, until(9), IGNORABLE] = ""
    topic_id: Annotated[Uuid, since(10), IGNORABLE] = ZERO_UUID
    partitions: tuple[OffsetFetchResponsePartitions, ...] = ()


@struct
class OffsetFetchResponseGroup(Struct):
    group_id: Str = ""
    topics: tuple[OffsetFetchResponseTopics, ...] = ()
    error_code: I16 = 0


@message(key=9, side="response", versions=(0, 10), flexible=6)
class OffsetFetchResponse(Response):
    throttle_time_ms: Annotated[I32, since(3), IGNORABLE] = 0
    topics: Annotated[tuple[OffsetFetchResponseTopic, ...], until(7)] = ()
    error_code: Annotated[I16, since(2), until(7), IGNORABLE] = 0
    groups: Annotated[tuple[OffsetFetchResponseGroup, ...], since(8)] = ()


@message(key=10, side="request", versions=(0, 6), flexible=3)
class FindCoordinatorRequest(Request["FindCoordinatorResponse"]):
    """Find the broker that coordinates a group, a transactional id or a share partition."""

    key: Annotated[Str, until(3)] = ""
    key_type: Annotated[I8, since(1)] = 0
    coordinator_keys: Annotated[tuple[Str, ...], since(4)] = ()


@struct
class Coordinator(Struct):
    key: Str = ""
    node_id: I32 = 0
    host: Str = ""
    port: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = ""


@message(key=10, side="response", versions=(0, 6), flexible=3)
class FindCoordinatorResponse(Response):
    throttle_time_ms: Annotated[I32, since(1), IGNORABLE] = 0
    error_code: Annotated[I16, until(3)] = 0
    error_message: Annotated[Str | None, since(1), until(3), nullable(), IGNORABLE] = ""
    node_id: Annotated[I32, until(3)] = 0
    host: Annotated[Str, until(3)] = ""
    port: Annotated[I32, until(3)] = 0
    coordinators: Annotated[tuple[Coordinator, ...], since(4)] = ()


@struct
class JoinGroupRequestProtocol(Struct):
    name: Str = ""
    metadata: Bytes = b""


@message(key=11, side="request", versions=(0, 9), flexible=6)
class JoinGroupRequest(Request["JoinGroupResponse"]):
    """Join a classic group; the response comes when all members have joined."""

    group_id: Str = ""
    session_timeout_ms: I32 = 0
    rebalance_timeout_ms: Annotated[I32, since(1), IGNORABLE] = -1
    member_id: Str = ""
    group_instance_id: Annotated[Str | None, since(5), nullable()] = None
    protocol_type: Str = ""
    protocols: tuple[JoinGroupRequestProtocol, ...] = ()
    reason: Annotated[Str | None, since(8), nullable(), IGNORABLE] = None


@struct
class JoinGroupResponseMember(Struct):
    member_id: Str = ""
    group_instance_id: Annotated[Str | None, since(5), nullable(), IGNORABLE] = None
    metadata: Bytes = b""


@message(key=11, side="response", versions=(0, 9), flexible=6)
class JoinGroupResponse(Response):
    throttle_time_ms: Annotated[I32, since(2), IGNORABLE] = 0
    error_code: I16 = 0
    generation_id: I32 = -1
    protocol_type: Annotated[Str | None, since(7), nullable(), IGNORABLE] = None
    protocol_name: Annotated[Str | None, nullable(7)] = ""
    leader: Str = ""
    skip_assignment: Annotated[Bool, since(9)] = False
    member_id: Str = ""
    members: tuple[JoinGroupResponseMember, ...] = ()


@message(key=12, side="request", versions=(0, 4), flexible=4)
class HeartbeatRequest(Request["HeartbeatResponse"]):
    """Tell the coordinator that a member of a classic group is alive."""

    group_id: Str = ""
    generation_id: I32 = 0
    member_id: Str = ""
    group_instance_id: Annotated[Str | None, since(3), nullable()] = None


@message(key=12, side="response", versions=(0, 4), flexible=4)
class HeartbeatResponse(Response):
    throttle_time_ms: Annotated[I32, since(1), IGNORABLE] = 0
    error_code: I16 = 0


@struct
class MemberIdentity(Struct):
    member_id: Str = ""
    group_instance_id: Annotated[Str | None, nullable()] = None
    reason: Annotated[Str | None, since(5), nullable(), IGNORABLE] = None


@message(key=13, side="request", versions=(0, 5), flexible=4)
class LeaveGroupRequest(Request["LeaveGroupResponse"]):
    """Leave a classic group, or remove members from it."""

    group_id: Str = ""
    member_id: Annotated[Str, until(2)] = ""
    members: Annotated[tuple[MemberIdentity, ...], since(3)] = ()


@struct
class MemberResponse(Struct):
    member_id: Str = ""
    group_instance_id: Annotated[Str | None, nullable()] = ""
    error_code: I16 = 0


@message(key=13, side="response", versions=(0, 5), flexible=4)
class LeaveGroupResponse(Response):
    throttle_time_ms: Annotated[I32, since(1), IGNORABLE] = 0
    error_code: I16 = 0
    members: Annotated[tuple[MemberResponse, ...], since(3)] = ()


@struct
class SyncGroupRequestAssignment(Struct):
    member_id: Str = ""
    assignment: Bytes = b""


@message(key=14, side="request", versions=(0, 5), flexible=4)
class SyncGroupRequest(Request["SyncGroupResponse"]):
    """Get this member's assignment; the leader sends the assignments of all members."""

    group_id: Str = ""
    generation_id: I32 = 0
    member_id: Str = ""
    group_instance_id: Annotated[Str | None, since(3), nullable()] = None
    protocol_type: Annotated[Str | None, since(5), nullable(), IGNORABLE] = None
    protocol_name: Annotated[Str | None, since(5), nullable(), IGNORABLE] = None
    assignments: tuple[SyncGroupRequestAssignment, ...] = ()


@message(key=14, side="response", versions=(0, 5), flexible=4)
class SyncGroupResponse(Response):
    throttle_time_ms: Annotated[I32, since(1), IGNORABLE] = 0
    error_code: I16 = 0
    protocol_type: Annotated[Str | None, since(5), nullable(), IGNORABLE] = None
    protocol_name: Annotated[Str | None, since(5), nullable(), IGNORABLE] = None
    assignment: Bytes = b""


@message(key=15, side="request", versions=(0, 6), flexible=5)
class DescribeGroupsRequest(Request["DescribeGroupsResponse"]):
    """Describe classic groups."""

    groups: tuple[Str, ...] = ()
    include_authorized_operations: Annotated[Bool, since(3)] = False


@struct
class DescribedGroupMember(Struct):
    member_id: Str = ""
    group_instance_id: Annotated[Str | None, since(4), nullable(), IGNORABLE] = None
    client_id: Str = ""
    client_host: Str = ""
    member_metadata: Bytes = b""
    member_assignment: Bytes = b""


@struct
class DescribedGroup(Struct):
    error_code: I16 = 0
    error_message: Annotated[Str | None, since(6), nullable()] = None
    group_id: Str = ""
    group_state: Str = ""
    protocol_type: Str = ""
    protocol_data: Str = ""
    members: tuple[DescribedGroupMember, ...] = ()
    authorized_operations: Annotated[I32, since(3)] = -(2**31)


@message(key=15, side="response", versions=(0, 6), flexible=5)
class DescribeGroupsResponse(Response):
    throttle_time_ms: Annotated[I32, since(1), IGNORABLE] = 0
    groups: tuple[DescribedGroup, ...] = ()


@message(key=16, side="request", versions=(0, 5), flexible=3)
class ListGroupsRequest(Request["ListGroupsResponse"]):
    """List the groups that a broker coordinates."""

    states_filter: Annotated[tuple[Str, ...], since(4)] = ()
    types_filter: Annotated[tuple[Str, ...], since(5)] = ()


@struct
class ListedGroup(Struct):
    group_id: Str = ""
    protocol_type: Str = ""
    group_state: Annotated[Str, since(4), IGNORABLE] = ""
    group_type: Annotated[Str, since(5), IGNORABLE] = ""


@message(key=16, side="response", versions=(0, 5), flexible=3)
class ListGroupsResponse(Response):
    throttle_time_ms: Annotated[I32, since(1), IGNORABLE] = 0
    error_code: I16 = 0
    groups: tuple[ListedGroup, ...] = ()


@message(key=42, side="request", versions=(0, 2), flexible=2)
class DeleteGroupsRequest(Request["DeleteGroupsResponse"]):
    """Delete groups that have no members."""

    groups_names: tuple[Str, ...] = ()


@struct
class DeletableGroupResult(Struct):
    group_id: Str = ""
    error_code: I16 = 0


@message(key=42, side="response", versions=(0, 2), flexible=2)
class DeleteGroupsResponse(Response):
    throttle_time_ms: I32 = 0
    results: tuple[DeletableGroupResult, ...] = ()


@struct
class OffsetDeleteRequestPartition(Struct):
    partition_index: I32 = 0


@struct
class OffsetDeleteRequestTopic(Struct):
    name: Str = ""
    partitions: tuple[OffsetDeleteRequestPartition, ...] = ()


@message(key=47, side="request", versions=(0, 0), flexible=None)
class OffsetDeleteRequest(Request["OffsetDeleteResponse"]):
    """Delete committed offsets of a group."""

    group_id: Str = ""
    topics: tuple[OffsetDeleteRequestTopic, ...] = ()


@struct
class OffsetDeleteResponsePartition(Struct):
    partition_index: I32 = 0
    error_code: I16 = 0


@struct
class OffsetDeleteResponseTopic(Struct):
    name: Str = ""
    partitions: tuple[OffsetDeleteResponsePartition, ...] = ()


@message(key=47, side="response", versions=(0, 0), flexible=None)
class OffsetDeleteResponse(Response):
    error_code: I16 = 0
    throttle_time_ms: I32 = 0
    topics: tuple[OffsetDeleteResponseTopic, ...] = ()


@message(key=68, side="request", versions=(0, 1), flexible=0)
class ConsumerGroupHeartbeatRequest(Request["ConsumerGroupHeartbeatResponse"]):
    """Join, stay in or leave a group under the protocol of KIP-848."""

    group_id: Str = ""
    member_id: Str = ""
    member_epoch: I32 = 0
    instance_id: Annotated[Str | None, nullable()] = None
    rack_id: Annotated[Str | None, nullable()] = None
    rebalance_timeout_ms: I32 = -1
    subscribed_topic_names: Annotated[tuple[Str, ...] | None, nullable()] = None
    subscribed_topic_regex: Annotated[Str | None, since(1), nullable()] = None
    server_assignor: Annotated[Str | None, nullable()] = None
    topic_partitions: Annotated[tuple[TopicIdPartitions, ...] | None, nullable()] = None


@struct
class ConsumerGroupHeartbeatAssignment(Struct):
    topic_partitions: tuple[TopicIdPartitions, ...] = ()


@message(key=68, side="response", versions=(0, 1), flexible=0)
class ConsumerGroupHeartbeatResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = None
    member_id: Annotated[Str | None, nullable()] = None
    member_epoch: I32 = 0
    heartbeat_interval_ms: I32 = 0
    assignment: Annotated[ConsumerGroupHeartbeatAssignment | None, nullable()] = None


@message(key=69, side="request", versions=(0, 1), flexible=0)
class ConsumerGroupDescribeRequest(Request["ConsumerGroupDescribeResponse"]):
    """Describe groups under the protocol of KIP-848."""

    group_ids: tuple[Str, ...] = ()
    include_authorized_operations: Bool = False


@struct
class ConsumerGroupDescribeAssignment(Struct):
    topic_partitions: tuple[DescribedTopicPartitions, ...] = ()


@struct
class DescribedConsumerGroupMember(Struct):
    member_id: Str = ""
    instance_id: Annotated[Str | None, nullable()] = None
    rack_id: Annotated[Str | None, nullable()] = None
    member_epoch: I32 = 0
    client_id: Str = ""
    client_host: Str = ""
    subscribed_topic_names: tuple[Str, ...] = ()
    subscribed_topic_regex: Annotated[Str | None, nullable()] = None
    assignment: ConsumerGroupDescribeAssignment = ConsumerGroupDescribeAssignment()
    target_assignment: ConsumerGroupDescribeAssignment = ConsumerGroupDescribeAssignment()
    member_type: Annotated[I8, since(1), IGNORABLE] = -1


@struct
class DescribedConsumerGroup(Struct):
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = None
    group_id: Str = ""
    group_state: Str = ""
    group_epoch: I32 = 0
    assignment_epoch: I32 = 0
    assignor_name: Str = ""
    members: tuple[DescribedConsumerGroupMember, ...] = ()
    authorized_operations: I32 = -(2**31)


@message(key=69, side="response", versions=(0, 1), flexible=0)
class ConsumerGroupDescribeResponse(Response):
    throttle_time_ms: I32 = 0
    groups: tuple[DescribedConsumerGroup, ...] = ()
