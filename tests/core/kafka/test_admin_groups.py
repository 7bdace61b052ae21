"""What responses about groups, positions and records mean."""

from __future__ import annotations

import pytest

from odradek.core.admin import GroupListing, MemberDescription
from odradek.core.kafka import admin_groups
from odradek.core.kafka.subscription import encode_assignment
from odradek.core.kafka.versions import BrokerVersions, VersionRange
from odradek.errors import BrokerError, RemoteProtocolError, Unsupported
from odradek.types import Broker, TopicPartition
from odradek.wire.kafka.encode import encode
from odradek.wire.kafka.messages.admin import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from odradek.wire.kafka.messages.common import DescribedTopicPartitions
from odradek.wire.kafka.messages.groups import (
    ConsumerGroupDescribeAssignment,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
    DescribedConsumerGroupMember,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsResponse,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from odradek.wire.kafka.messages.share_groups import (
    DescribedShareGroup,
    ShareGroupDescribeAssignment,
    ShareGroupDescribeResponse,
    ShareGroupMember,
)

B1 = Broker(1, "h", 9092)
A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def test_groups_are_listed_with_what_the_broker_says_of_them() -> None:
    old = ListedGroup(group_id="old", protocol_type="consumer")
    new = ListedGroup(group_id="new", protocol_type="consumer", group_state="Stable", group_type="Consumer")
    assert admin_groups.read_listed(ListGroupsResponse(groups=(old, new)), B1) == [
        GroupListing("old", "consumer", None, None),
        GroupListing("new", "consumer", "Stable", "consumer"),
    ]
    with pytest.raises(BrokerError, match="h:9092: ListGroups"):
        admin_groups.read_listed(ListGroupsResponse(error_code=15), B1)


@pytest.mark.parametrize(
    ("protocol_type", "assignment", "partitions"),
    [
        ("consumer", encode_assignment([B, A]), (A, B)),
        ("consumer", b"", ()),
        ("consumer", b"\x00", ()),
        ("connect", b"anything", ()),
    ],
)
def test_a_classic_group_is_described(
    protocol_type: str, assignment: bytes, partitions: tuple[TopicPartition, ...]
) -> None:
    member = DescribedGroupMember(
        member_id="m", group_instance_id="i", client_id="c", client_host="/h", member_assignment=assignment
    )
    group = DescribedGroup(
        group_id="g", group_state="Stable", protocol_type=protocol_type, protocol_data="range", members=(member,)
    )
    described = admin_groups.read_classic_group(DescribeGroupsResponse(groups=(group,)), "g", B1)
    assert (described.state, described.type, described.assignor) == ("Stable", "classic", "range")
    assert described.members == (MemberDescription("m", "i", "c", "/h", partitions),)


@pytest.mark.parametrize(
    "group", [DescribedGroup(group_id="g", group_state="Dead"), DescribedGroup(group_id="g", error_code=69)]
)
def test_a_group_that_does_not_exist_is_an_error_in_every_version(group: DescribedGroup) -> None:
    with pytest.raises(BrokerError, match="GROUP_ID_NOT_FOUND"):
        admin_groups.read_classic_group(DescribeGroupsResponse(groups=(group,)), "g", B1)


def test_a_share_group_is_described() -> None:
    assignment = ShareGroupDescribeAssignment(
        topic_partitions=(DescribedTopicPartitions(topic_name="t", partitions=(0,)),)
    )
    member = ShareGroupMember(
        member_id="m",
        member_epoch=2,
        client_id="c",
        client_host="/h",
        subscribed_topic_names=("t",),
        assignment=assignment,
    )
    group = DescribedShareGroup(group_id="g", group_state="Stable", group_epoch=2, members=(member,))
    described = admin_groups.read_share_group(ShareGroupDescribeResponse(groups=(group,)), "g", B1)
    assert (described.type, described.state, described.epoch) == ("share", "Stable", 2)
    assert described.members == (MemberDescription("m", None, "c", "/h", (A,), None, 2, ("t",), None, (A,)),)
    with pytest.raises(RemoteProtocolError, match="nothing about 'h'"):
        admin_groups.read_share_group(ShareGroupDescribeResponse(groups=(group,)), "h", B1)


@pytest.mark.parametrize(
    ("states", "types", "last", "needs"),
    [
        ((), (), 0, ""),
        (("Empty",), (), 3, "2.6"),
        (("Empty",), (), 4, ""),
        ((), ("share",), 4, "3.8"),
        ((), ("share",), 5, ""),
    ],
)
def test_groups_are_listed_by_state_and_type_where_brokers_know_them(
    states: tuple[str, ...], types: tuple[str, ...], last: int, needs: str
) -> None:
    versions = BrokerVersions({16: VersionRange(0, last)})
    if needs:
        with pytest.raises(Unsupported, match=needs):
            admin_groups.list_request(states, types, versions)
        return
    request = admin_groups.list_request(states, types, versions)
    assert (request.states_filter, request.types_filter) == (states, types)
    encode(request, last)


def test_a_group_of_the_new_protocol_is_described() -> None:
    owned = ConsumerGroupDescribeAssignment(
        topic_partitions=(DescribedTopicPartitions(topic_name="t", partitions=(1, 0)),)
    )
    target = ConsumerGroupDescribeAssignment(
        topic_partitions=(DescribedTopicPartitions(topic_name="t", partitions=(1,)),)
    )
    member = DescribedConsumerGroupMember(
        member_id="m",
        rack_id="r",
        member_epoch=3,
        client_id="c",
        client_host="/h",
        subscribed_topic_names=("t",),
        subscribed_topic_regex="",
        assignment=owned,
        target_assignment=target,
    )
    group = DescribedConsumerGroup(
        group_id="g",
        group_state="Stable",
        group_epoch=5,
        assignment_epoch=4,
        assignor_name="uniform",
        members=(member,),
    )
    described = admin_groups.read_consumer_group(ConsumerGroupDescribeResponse(groups=(group,)), "g", B1)
    assert (described.type, described.assignor) == ("consumer", "uniform")
    assert (described.epoch, described.assignment_epoch) == (5, 4)
    assert described.members == (MemberDescription("m", None, "c", "/h", (A, B), "r", 3, ("t",), None, (B,)),)
    missing = DescribedConsumerGroup(group_id="g", error_code=69)
    with pytest.raises(BrokerError, match="GROUP_ID_NOT_FOUND"):
        admin_groups.read_consumer_group(ConsumerGroupDescribeResponse(groups=(missing,)), "g", B1)


def test_a_response_about_another_group_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        admin_groups.read_classic_group(DescribeGroupsResponse(), "g", B1)
    with pytest.raises(RemoteProtocolError):
        admin_groups.read_consumer_group(ConsumerGroupDescribeResponse(), "g", B1)


@pytest.mark.parametrize(("last", "in_list"), [(2, False), (7, False), (8, True), (9, True)])
def test_all_positions_are_asked_for_by_null_topics(last: int, in_list: bool) -> None:
    request = admin_groups.all_positions_request(
        "g", BrokerVersions({OffsetFetchRequest.SPEC.key: VersionRange(0, last)})
    )
    assert (request.groups[0].topics if in_list else request.topics) is None


def test_positions_are_read_in_both_forms() -> None:
    old = OffsetFetchResponsePartition(partition_index=0, committed_offset=4)
    none = OffsetFetchResponsePartition(partition_index=1, committed_offset=-1)
    topics = (OffsetFetchResponseTopic(name="t", partitions=(old, none)),)
    assert admin_groups.read_positions(OffsetFetchResponse(topics=topics), "g") == {A: 4}
    new = OffsetFetchResponseTopics(name="t", partitions=(OffsetFetchResponsePartitions(committed_offset=5),))
    groups = (OffsetFetchResponseGroup(group_id="g", topics=(new,)),)
    assert admin_groups.read_positions(OffsetFetchResponse(groups=groups), "g") == {A: 5}


@pytest.mark.parametrize(
    "response",
    [
        OffsetFetchResponse(error_code=16),
        OffsetFetchResponse(groups=(OffsetFetchResponseGroup(group_id="g", error_code=16),)),
        OffsetFetchResponse(
            topics=(OffsetFetchResponseTopic(name="t", partitions=(OffsetFetchResponsePartition(error_code=16),)),)
        ),
    ],
)
def test_an_error_of_any_position_is_raised(response: OffsetFetchResponse) -> None:
    with pytest.raises(BrokerError, match="NOT_COORDINATOR"):
        admin_groups.read_positions(response, "g")


def test_each_position_is_deleted_or_has_its_own_error() -> None:
    kept = OffsetDeleteResponsePartition(partition_index=1, error_code=86)
    topic = OffsetDeleteResponseTopic(name="t", partitions=(OffsetDeleteResponsePartition(), kept))
    results = admin_groups.read_deleted_positions(OffsetDeleteResponse(topics=(topic,)), "g", [A, B])
    assert results.done == {A: None} and "GROUP_SUBSCRIBED_TO_TOPIC" in str(results.failed[B])
    with pytest.raises(BrokerError, match="NON_EMPTY_GROUP"):
        admin_groups.read_deleted_positions(OffsetDeleteResponse(error_code=68), "g", [A])


def test_deleted_records_give_the_new_start_of_each_log() -> None:
    partitions = (
        DeleteRecordsPartitionResult(low_watermark=4),
        DeleteRecordsPartitionResult(partition_index=1, low_watermark=-1, error_code=1),
    )
    topic = DeleteRecordsTopicResult(name="t", partitions=partitions)
    results = admin_groups.read_deleted_records(DeleteRecordsResponse(topics=(topic,)), [A, B])
    assert results.done == {A: 4} and "OFFSET_OUT_OF_RANGE" in str(results.failed[B])
    request = admin_groups.delete_records_request({A: None}, 1000)
    assert request.topics[0].partitions[0].offset == -1
