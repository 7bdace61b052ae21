"""Requests that describe groups and delete positions and records, and the results that responses name. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from odradek.core.admin import GroupDescription, GroupListing, MemberDescription, Results
from odradek.core.kafka.admin_topics import item_error, item_results
from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.offsets import OffsetStep, read_fetch
from odradek.core.kafka.partitions import by_topic
from odradek.core.kafka.subscription import decode_assignment
from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import OdradekError, RemoteProtocolError, Unsupported
from odradek.types import Broker, Position, TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.admin import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from odradek.wire.kafka.messages.common import DescribedTopicPartitions
from odradek.wire.kafka.messages.groups import (
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
    DescribedConsumerGroupMember,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from odradek.wire.kafka.messages.share_groups import DescribedShareGroup, ShareGroupDescribeResponse, ShareGroupMember

__all__ = [
    "STREAMS",
    "all_positions_request",
    "delete_positions_request",
    "delete_records_request",
    "list_request",
    "read_classic_group",
    "read_consumer_group",
    "read_deleted_positions",
    "read_deleted_records",
    "read_listed",
    "read_positions",
    "read_share_group",
]

CONSUMER, SHARE, STREAMS = "consumer", "share", "streams"

NO_GROUP = "Dead"
"""The state that brokers before 4.0 report for a group that does not exist."""

ALL_RECORDS = -1
"""Stands for the end of a partition in DeleteRecords."""


# ---- descriptions -------------------------------------------------------------------------------------------


def list_request(states: Sequence[str], types: Sequence[str], versions: BrokerVersions) -> ListGroupsRequest:
    """Return the request for groups in one of the states, and of one of the types; none: all.

    Raises:
        Unsupported: The broker does not list states, or types.
    """
    if states and not versions.has(ListGroupsRequest, 4):
        raise Unsupported("listing groups by their state", "Kafka 2.6: describe each group instead")
    if types and not versions.has(ListGroupsRequest, 5):
        raise Unsupported("listing groups by their type", "Kafka 3.8: in older brokers all groups are classic ones")
    return ListGroupsRequest(states_filter=tuple(states), types_filter=tuple(types))


def read_listed(response: ListGroupsResponse, broker: Broker) -> list[GroupListing]:
    """Return the groups of a broker. Raises BrokerError."""
    if response.error_code:
        raise broker_error(response.error_code, f"{broker.address}: ListGroups")
    return [
        GroupListing(each.group_id, each.protocol_type, each.group_state or None, each.group_type.lower() or None)
        for each in response.groups
    ]


def read_classic_group(response: DescribeGroupsResponse, name: str, coordinator: Broker) -> GroupDescription:
    """Return the description of a classic group. Raises BrokerError, also if it does not exist."""
    group = next((each for each in response.groups if each.group_id == name), None)
    if group is None:
        raise RemoteProtocolError(f"DescribeGroups: the response says nothing about {name!r}")
    code = group.error_code or (ErrorCode.GROUP_ID_NOT_FOUND if group.group_state == NO_GROUP else 0)
    if error := item_error(code, group.error_message, f"group {name!r}"):
        raise error
    members = tuple(_classic_member(group, member) for member in group.members)
    return GroupDescription(
        name, group.group_state, "classic", group.protocol_type, group.protocol_data, members, coordinator
    )


def _classic_member(group: DescribedGroup, member: DescribedGroupMember) -> MemberDescription:
    partitions: Sequence[TopicPartition] = ()
    if group.protocol_type == CONSUMER:
        try:
            partitions = sorted(decode_assignment(member.member_assignment))
        except RemoteProtocolError:
            partitions = ()  # one of an assignor that writes something else
    return MemberDescription(
        member.member_id, member.group_instance_id, member.client_id, member.client_host, tuple(partitions)
    )


def read_consumer_group(response: ConsumerGroupDescribeResponse, name: str, coordinator: Broker) -> GroupDescription:
    """Return the description of a group under the protocol of KIP-848. Raises BrokerError, also for other groups."""
    return _read_modern_group(response.groups, CONSUMER, name, coordinator)


def read_share_group(response: ShareGroupDescribeResponse, name: str, coordinator: Broker) -> GroupDescription:
    """Return the description of a share group (KIP-932). Raises BrokerError, also for other groups."""
    return _read_modern_group(response.groups, SHARE, name, coordinator)


def _read_modern_group(
    groups: Iterable[DescribedConsumerGroup | DescribedShareGroup], kind: str, name: str, coordinator: Broker
) -> GroupDescription:
    group = next((each for each in groups if each.group_id == name), None)
    if group is None:
        raise RemoteProtocolError(f"description of groups: the response says nothing about {name!r}")
    if error := item_error(group.error_code, group.error_message, f"group {name!r}"):
        raise error
    members = tuple(_modern_member(member) for member in group.members)
    return GroupDescription(
        name,
        group.group_state,
        kind,
        kind,
        group.assignor_name,
        members,
        coordinator,
        group.group_epoch,
        group.assignment_epoch,
    )


def _modern_member(member: DescribedConsumerGroupMember | ShareGroupMember) -> MemberDescription:
    of_consumers = member if isinstance(member, DescribedConsumerGroupMember) else None
    return MemberDescription(
        member.member_id,
        of_consumers.instance_id if of_consumers else None,
        member.client_id,
        member.client_host,
        _assigned(member.assignment.topic_partitions),
        member.rack_id,
        member.member_epoch,
        tuple(member.subscribed_topic_names),
        (of_consumers.subscribed_topic_regex or None) if of_consumers else None,
        _assigned((of_consumers.target_assignment if of_consumers else member.assignment).topic_partitions),
    )


def _assigned(topics: Iterable[DescribedTopicPartitions]) -> tuple[TopicPartition, ...]:
    return tuple(sorted(TopicPartition(topic.topic_name, number) for topic in topics for number in topic.partitions))


# ---- positions ----------------------------------------------------------------------------------------------


def all_positions_request(group: str, versions: BrokerVersions) -> OffsetFetchRequest:
    """Return the request for all positions of a group (0.10.2 and later)."""
    if versions.has_group_lists:
        return OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id=group, topics=None),))
    return OffsetFetchRequest(group_id=group, topics=None)


def read_positions(response: OffsetFetchResponse, group: str) -> dict[TopicPartition, Position]:
    """Return the committed positions. Raises BrokerError."""
    classic = [TopicPartition(t.name, p.partition_index) for t in response.topics for p in t.partitions]
    listed = [
        TopicPartition(t.name, p.partition_index) for g in response.groups for t in g.topics for p in t.partitions
    ]
    code = next((each.error_code for each in response.groups if each.error_code), response.error_code)
    answers = read_fetch(response, classic + listed)
    code = code or next((each.error_code for each in answers.values() if each.step is not OffsetStep.DONE), 0)
    if code:
        raise broker_error(code, f"positions of group {group!r}")
    return {p: Position(each.offset.offset) for p, each in answers.items() if each.offset is not None}


def delete_positions_request(group: str, partitions: Sequence[TopicPartition]) -> OffsetDeleteRequest:
    """Return the request to delete committed positions."""
    topics = tuple(
        OffsetDeleteRequestTopic(
            name=topic, partitions=tuple(OffsetDeleteRequestPartition(partition_index=n) for n in numbers)
        )
        for topic, numbers in by_topic(partitions).items()
    )
    return OffsetDeleteRequest(group_id=group, topics=topics)


def read_deleted_positions(
    response: OffsetDeleteResponse, group: str, partitions: Collection[TopicPartition]
) -> Results[TopicPartition, None]:
    """Return the result of each partition. Raises BrokerError for an error of the group."""
    if response.error_code:
        raise broker_error(response.error_code, f"deleting positions of group {group!r}")
    answers = {
        TopicPartition(topic.name, each.partition_index): item_error(
            each.error_code, None, f"deleting the position of group {group!r} in {topic.name}/{each.partition_index}"
        )
        for topic in response.topics
        for each in topic.partitions
    }
    return item_results(partitions, answers, "OffsetDelete")


# ---- records ------------------------------------------------------------------------------------------------


def delete_records_request(before: Mapping[TopicPartition, Position | None], timeout_ms: int) -> DeleteRecordsRequest:
    """Return the request to delete the records before positions; None: all."""

    def partition(where: TopicPartition) -> DeleteRecordsPartition:
        position = before[where]
        return DeleteRecordsPartition(
            partition_index=where.partition, offset=ALL_RECORDS if position is None else int(position)
        )

    topics = tuple(
        DeleteRecordsTopic(name=topic, partitions=tuple(partition(TopicPartition(topic, n)) for n in numbers))
        for topic, numbers in by_topic(before).items()
    )
    return DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms)


def read_deleted_records(
    response: DeleteRecordsResponse, partitions: Collection[TopicPartition]
) -> Results[TopicPartition, Position]:
    """Return where the log of each partition starts now."""
    answers: dict[TopicPartition, Position | OdradekError] = {}
    for topic in response.topics:
        for each in topic.partitions:
            where = TopicPartition(topic.name, each.partition_index)
            error = item_error(each.error_code, None, f"deleting records of {where}")
            answers[where] = error or Position(each.low_watermark)
    return item_results(partitions, answers, "DeleteRecords")
