"""Administrative requests reach the right broker, again after it has moved, and only if that is safe."""

from __future__ import annotations

import re
from typing import Any

import anyio
import pytest

from odradek.client.admin import Admin
from odradek.core.admin import ConfigKind, ConfigSource, OffsetChoice, OffsetListing, OffsetSpec
from odradek.errors import BrokerError, ConnectionLost, DeadlineError, GroupError, Unsupported
from odradek.io.kafka import admin_requests, driver
from odradek.types import EARLIEST, LATEST, Broker, Position, TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.admin import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from odradek.wire.kafka.messages.admin import ConfigResource as ListedResource
from odradek.wire.kafka.messages.data import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from odradek.wire.kafka.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DeleteGroupsRequest,
    DescribedConsumerGroup,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from odradek.wire.kafka.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from odradek.wire.kafka.messages.share_groups import (
    DescribedShareGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from odradek.wire.kafka.schema import Request, Response

from ..limits import TimeLimit
from .admin_peer import BROKERS, COORDINATOR, ONE, P0, TOPIC, Cluster, admin_of, offsets, opened
from .peer import EVERYTHING, everything_but

pytestmark = pytest.mark.anyio


async def test_a_topic_is_created_by_the_new_controller_if_the_old_one_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    peer.codes[CreateTopicsRequest] = [ErrorCode.NOT_CONTROLLER] * 2
    async with admin_of(peer, monkeypatch) as admin:
        peer.controller = 2
        assert (await admin.create_topics(ONE, validate_only=True)).done.keys() == {"t"}
    assert peer.count(CreateTopicsRequest) == 3 and "b:9092" in peer.connections


async def test_a_topic_is_created_by_the_new_controller_if_the_old_one_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    async with admin_of(peer, monkeypatch) as admin:
        await peer.fail_over()
        assert (await admin.create_topics(ONE, validate_only=True)).done.keys() == {"t"}


async def test_a_new_topic_is_not_the_one_of_its_name_that_was_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    old, new = (MetadataResponseTopic(name="t", topic_id=bytes([n]) * 16, partitions=TOPIC.partitions) for n in (1, 2))
    answers = [old, old, new]

    def metadata(request: MetadataRequest, version: int) -> MetadataResponse:
        topic = answers[0] if len(answers) == 1 or not request.topics else answers.pop(0)
        return MetadataResponse(brokers=BROKERS, controller_id=1, topics=(topic,))

    peer.answers[MetadataRequest] = metadata
    peer.answers[CreateTopicsRequest] = lambda request, version: CreateTopicsResponse(
        topics=(CreatableTopicResult(name="t", topic_id=new.topic_id),)
    )
    async with admin_of(peer, monkeypatch) as admin:
        created = (await admin.create_topics(ONE, validate_only=False)).done["t"]
        assert (await admin.describe_topics(["t"])).done["t"].topic_id == created.topic_id


async def test_a_creation_without_an_answer_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    peer.answers[CreateTopicsRequest] = lambda request, version: ConnectionAbortedError
    async with admin_of(peer, monkeypatch) as admin:
        with pytest.raises(ConnectionLost) as lost:
            await admin.create_topics(ONE, validate_only=False)
    assert lost.value.sent and peer.count(CreateTopicsRequest) == 1


async def test_topics_that_were_changed_before_all_brokers_end_are_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    peer, limit = Cluster(), TimeLimit(16.4, monkeypatch)  # 80 % of the time-out

    def metadata(request: MetadataRequest, version: int) -> Any:
        if not peer.count(CreateTopicsRequest) + peer.count(CreatePartitionsRequest):
            return peer.metadata(request, version)
        limit.end()
        return ConnectionAbortedError

    peer.answers[MetadataRequest] = metadata
    peer.answers[CreatePartitionsRequest] = lambda request, version: CreatePartitionsResponse(
        results=(CreatePartitionsTopicResult(name="t"),)
    )
    async with admin_of(peer, monkeypatch, 20.5) as admin:
        assert (await admin.create_topics(ONE, validate_only=False)).done.keys() == {"t"}
        assert (await admin.add_partitions({"t": 2}, validate_only=False)).done.keys() == {"t"}


async def test_an_unknown_controller_is_looked_up_until_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    peer.controller = -1
    limit = TimeLimit(20.5, monkeypatch)

    async def end_limit() -> None:
        before = peer.count(MetadataRequest)
        while peer.count(MetadataRequest) < before + 2:  # noqa: ASYNC110 - what a peer was sent has no event
            await anyio.sleep(0.01)
        limit.end()

    async with admin_of(peer, monkeypatch, 20.5) as admin, anyio.create_task_group() as tasks:
        tasks.start_soon(end_limit)
        with pytest.raises((BrokerError, DeadlineError)):
            await admin.create_topics(ONE, validate_only=False)
    assert peer.count(CreateTopicsRequest) == 0


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
async def test_a_group_is_deleted_once_its_coordinator_is_found(
    code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = Cluster()
    peer.codes[DeleteGroupsRequest] = [code]
    async with admin_of(peer, monkeypatch) as admin:
        assert (await admin.delete_groups(["g"])).done == {"g": None}
    assert (peer.count(DeleteGroupsRequest), peer.count(FindCoordinatorRequest)) == (2, 2)


async def test_a_coordinator_is_looked_up_at_the_next_broker_while_one_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "SILENCE_S", 0.01)
    peer = Cluster()
    answers: list[Response | None] = [None, COORDINATOR]
    peer.answers[FindCoordinatorRequest] = lambda request, version: answers.pop(0)
    async with admin_of(peer, monkeypatch) as admin:
        with anyio.fail_after(3):
            assert (await admin.delete_groups(["g"])).done == {"g": None}


async def test_an_error_of_a_group_is_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    peer.codes[DeleteGroupsRequest] = [ErrorCode.NON_EMPTY_GROUP]
    async with admin_of(peer, monkeypatch) as admin:
        assert "NON_EMPTY_GROUP" in str((await admin.delete_groups(["g"])).failed["g"])
    assert peer.count(DeleteGroupsRequest) == 1


@pytest.mark.parametrize(
    ("code", "type_"), [(0, "consumer"), (ErrorCode.GROUP_ID_NOT_FOUND, "classic"), (35, "classic")]
)
async def test_a_group_is_described_by_the_protocol_that_it_has(
    code: int, type_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = Cluster()
    peer.answers[ConsumerGroupDescribeRequest] = lambda request, version: ConsumerGroupDescribeResponse(
        groups=(DescribedConsumerGroup(group_id="g", group_state="Stable", error_code=code),)
    )
    peer.answers[DescribeGroupsRequest] = lambda request, version: DescribeGroupsResponse(
        groups=(DescribedGroup(group_id="g", group_state="Stable"),)
    )
    async with admin_of(peer, monkeypatch) as admin:
        described = (await admin.describe_groups(["g"])).done["g"]
    assert (described.type, described.coordinator) == (type_, Broker(1, "b", 9091))


async def test_a_question_goes_to_the_next_broker_while_one_is_silent_and_a_change_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin_requests, "SILENCE_S", 0.01)
    peer = Cluster()
    asked: list[object] = []

    def answer(request: Request[Any], version: int) -> Response | None:
        asked.append(request)
        return peer.default(request, version) if len(asked) == 2 else None  # the first broker is silent

    peer.answers |= dict.fromkeys((DescribeConfigsRequest, IncrementalAlterConfigsRequest), answer)
    async with admin_of(peer, monkeypatch) as admin:
        await admin.describe_topic_configs(["t"])
        assert len(asked) == 2
        with anyio.move_on_after(0.2) as late:
            await admin.alter_topic_configs({"t": {"a": "b"}}, validate_only=False)
    assert late.cancelled_caught and len(asked) == 3


async def test_records_are_deleted_by_the_new_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    peer.codes[DeleteRecordsRequest] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]

    def answer(request: DeleteRecordsRequest, version: int) -> DeleteRecordsResponse:
        result = DeleteRecordsPartitionResult(low_watermark=4, error_code=peer.code(request))
        return DeleteRecordsResponse(topics=(DeleteRecordsTopicResult(name="t", partitions=(result,)),))

    peer.answers[DeleteRecordsRequest] = answer
    async with admin_of(peer, monkeypatch) as admin:
        assert (await admin.delete_records({P0: Position(4)})).done == {P0: 4}
    assert peer.count(DeleteRecordsRequest) == 2


async def test_where_only_a_whole_configuration_can_be_written_other_entries_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer = Cluster()
    old = everything_but(IncrementalAlterConfigsRequest)
    peer.answers[ApiVersionsRequest] = lambda request, version: ApiVersionsResponse(api_keys=old)
    entries = (
        DescribeConfigsResourceResult(name="a", value="1", config_source=ConfigSource.TOPIC),
        DescribeConfigsResourceResult(name="b", value="2", config_source=ConfigSource.TOPIC),
        DescribeConfigsResourceResult(name="c", value="3", config_source=ConfigSource.DEFAULT),
    )
    peer.answers[DescribeConfigsRequest] = lambda request, version: DescribeConfigsResponse(
        results=(DescribeConfigsResult(resource_type=2, resource_name="t", configs=entries),)
    )
    peer.answers[AlterConfigsRequest] = lambda request, version: AlterConfigsResponse(
        responses=(AlterConfigsResourceResponse(resource_name="t"),)
    )
    async with admin_of(peer, monkeypatch) as admin:
        results = await admin.alter_topic_configs({"t": {"a": None, "d": "4"}}, validate_only=False)
    assert results.done == {"t": None}
    (written,) = [request for request, _ in peer.requests if isinstance(request, AlterConfigsRequest)]
    assert {entry.name: entry.value for entry in written.resources[0].configs} == {"b": "2", "d": "4"}


@pytest.mark.parametrize("changes", [False, True])
async def test_a_broker_that_is_too_old_leaves_a_request_to_another_one(
    changes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While brokers are upgraded. Nothing is known of the older one until the request goes there."""
    peer = Cluster()
    old = ApiVersionsResponse(api_keys=everything_but(IncrementalAlterConfigsRequest, DescribeConfigsRequest))
    async with admin_of(peer, monkeypatch) as admin:
        peer.answers[ApiVersionsRequest] = lambda request, version: (
            old if peer.connections[-1] == "b:9091" else EVERYTHING
        )
        if changes:
            await admin.alter_topic_configs({"t": {"a": "b"}}, validate_only=False)
        else:
            await admin.describe_topic_configs(["t"])
    assert peer.count(IncrementalAlterConfigsRequest if changes else DescribeConfigsRequest) == 1
    assert peer.connections[-2:] == ["b:9091", "b:9092"]


@pytest.mark.parametrize("asked", ["deleting", "offset"])
async def test_what_brokers_have_since_their_upgrade_can_be_asked_for(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program was connected before. A broker that it has no request for meanwhile says nothing of its upgrade."""
    peer = Cluster()
    peer.answers[ListOffsetsRequest] = offsets
    peer.answers[ApiVersionsRequest] = lambda request, version: ApiVersionsResponse(
        api_keys=everything_but(DeleteGroupsRequest, ListOffsetsRequest)
    )
    async with admin_of(peer, monkeypatch) as admin:

        async def ask() -> object:
            if asked == "deleting":
                return await admin.delete_groups(["g"])
            return await admin.list_offsets({P0: OffsetSpec.MAX_TIMESTAMP}, read_committed=True)

        with pytest.raises(Unsupported):
            await ask()
        peer.answers[ApiVersionsRequest] = lambda request, version: EVERYTHING
        await peer.hang_up()
        await ask()


async def test_a_request_that_an_older_broker_does_not_have_any_more_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cluster went back to an older release while the program was connected."""
    peer = Cluster()
    async with admin_of(peer, monkeypatch) as admin:
        peer.answers[ApiVersionsRequest] = lambda request, version: ApiVersionsResponse(
            api_keys=everything_but(DeleteGroupsRequest)
        )
        await peer.hang_up()
        failed = (await admin.delete_groups(["g"])).failed
        assert isinstance(failed["g"], Unsupported)


def offer_up_to(peer: Cluster, api: type[Request[Any]], version: int) -> None:
    """Have a cluster offer one API up to a version only."""
    offered = (*everything_but(api), ApiVersion(api_key=api.SPEC.key, min_version=0, max_version=version))
    peer.answers[ApiVersionsRequest] = lambda request, version: ApiVersionsResponse(api_keys=offered)


def named(request: DescribeConfigsRequest, version: int) -> DescribeConfigsResponse:
    """An answer with one entry for each resource that is asked for."""
    results = tuple(
        DescribeConfigsResult(
            resource_type=each.resource_type,
            resource_name=each.resource_name,
            configs=(DescribeConfigsResourceResult(name="a", value="1"),),
        )
        for each in request.resources
    )
    return DescribeConfigsResponse(results=results)


async def test_each_broker_knows_its_own_configuration_and_any_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    peer.answers[DescribeConfigsRequest] = named
    peer.answers[IncrementalAlterConfigsRequest] = lambda request, version: IncrementalAlterConfigsResponse(
        responses=tuple(AlterConfigsResourceResponse(resource_name=each.resource_name) for each in request.resources)
    )
    async with admin_of(peer, monkeypatch) as admin:
        described = await admin.describe_broker_configs([None, 1, 9])
        altered = await admin.alter_broker_configs({None: {"a": "2"}, 9: {"a": "2"}}, validate_only=False)
    assert described.done.keys() == {None, 1} and described.failed.keys() == altered.failed.keys() == {9}
    assert altered.done == {None: None}
    asked = [request.resources for request, _ in peer.requests if isinstance(request, DescribeConfigsRequest)]
    assert sorted(each.resource_name for (each,) in asked) == ["", "1"]


async def test_a_broker_that_has_joined_or_moved_since_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    peer.answers[DescribeConfigsRequest] = named
    peer.brokers = BROKERS[:1]
    async with admin_of(peer, monkeypatch) as admin:
        peer.brokers = BROKERS
        assert (await admin.describe_broker_configs([2])).done.keys() == {2}
        await peer.hang_up()
        peer.down.add("b:9092")
        peer.brokers = (BROKERS[0], MetadataResponseBroker(node_id=2, host="b", port=9093))
        assert (await admin.describe_broker_configs([2])).done.keys() == {2}


async def test_a_configuration_of_all_brokers_needs_1_1(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    offer_up_to(peer, DescribeConfigsRequest, 0)
    peer.answers[DescribeConfigsRequest] = named
    async with admin_of(peer, monkeypatch) as admin:
        with pytest.raises(Unsupported, match=r"all brokers.*1\.1"):
            await admin.describe_broker_configs([1, None])
        assert (await admin.describe_broker_configs([1])).done.keys() == {1}


@pytest.mark.parametrize("kind", ConfigKind)
async def test_configurations_of_other_kinds_are_described_and_altered(
    kind: ConfigKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = Cluster()
    peer.answers[DescribeConfigsRequest] = named
    refused = AlterConfigsResourceResponse(resource_name="no", error_code=ErrorCode.INVALID_CONFIG)
    peer.answers[IncrementalAlterConfigsRequest] = lambda request, version: IncrementalAlterConfigsResponse(
        responses=(AlterConfigsResourceResponse(resource_name="g"), refused)
    )
    async with admin_of(peer, monkeypatch) as admin:
        described = await admin.describe_configs(kind, ["g", "h"])
        altered = await admin.alter_configs(kind, {"g": {"a": "2"}, "no": {"a": None}}, validate_only=True)
    assert described.done["h"]["a"].value == "1" and described.done.keys() == {"g", "h"}
    assert altered.done == {"g": None} and "INVALID_CONFIG" in str(altered.failed["no"])
    asked, sent = [request for request, _ in peer.requests][-2:]
    assert {each.resource_type for each in (*asked.resources, *sent.resources)} == {kind} and sent.validate_only


@pytest.mark.parametrize("newest", [0, 1])
async def test_subscriptions_to_metrics_are_listed(newest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    offer_up_to(peer, ListConfigResourcesRequest, newest)
    peer.codes[ListConfigResourcesRequest] = [0, ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    peer.answers[ListConfigResourcesRequest] = lambda request, version: ListConfigResourcesResponse(
        config_resources=(ListedResource(resource_name="m2"), ListedResource(resource_name="m1")),
        error_code=peer.code(request),
    )
    async with admin_of(peer, monkeypatch) as admin:
        assert await admin.list_client_metrics() == ["m1", "m2"]
        with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
            await admin.list_client_metrics()
    assert peer.requests[-1] == (ListConfigResourcesRequest(resource_types=(16,) if newest else ()), newest)


async def test_offsets_are_found_by_the_new_leader_and_one_that_fails_keeps_no_other_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer = Cluster()
    peer.codes[ListOffsetsRequest] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]

    def answer(request: ListOffsetsRequest, version: int) -> ListOffsetsResponse:
        listed = ListOffsetsPartitionResponse(offset=4, timestamp=7, error_code=peer.code(request))
        return ListOffsetsResponse(topics=(ListOffsetsTopicResponse(name="t", partitions=(listed,)),))

    peer.answers[ListOffsetsRequest] = answer
    no = TopicPartition("t", 1)
    async with admin_of(peer, monkeypatch) as admin:
        results = await admin.list_offsets({P0: OffsetSpec.MAX_TIMESTAMP, no: EARLIEST}, read_committed=False)
    assert results.done == {P0: OffsetListing(Position(4), 7, None)} and peer.count(ListOffsetsRequest) == 2
    assert "UNKNOWN_TOPIC_OR_PARTITION" in str(results.failed[no])


async def test_offsets_are_found_by_the_new_leader_if_the_old_one_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    peer.answers[ListOffsetsRequest] = offsets
    async with admin_of(peer, monkeypatch) as admin:
        assert (await admin.list_offsets({P0: LATEST}, read_committed=False)).done
        await peer.fail_over()
        assert (await admin.list_offsets({P0: LATEST}, read_committed=False)).done


async def test_offsets_are_found_in_a_partition_that_was_added_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    peer.answers[ListOffsetsRequest] = offsets
    added = TopicPartition("t", 1)
    async with admin_of(peer, monkeypatch) as admin:
        assert (await admin.list_offsets({P0: LATEST}, read_committed=False)).done
        partitions = [MetadataResponsePartition(partition_index=n, leader_id=1) for n in (0, 1)]
        peer.topics = (MetadataResponseTopic(name="t", partitions=tuple(partitions)),)
        results = await admin.list_offsets({P0: LATEST, added: LATEST}, read_committed=False)
    assert {partition: each.position for partition, each in results.done.items()} == {P0: 4, added: 5}


async def test_a_topic_that_may_not_be_read_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    peer.answers[ListOffsetsRequest] = offsets
    peer.topics = (TOPIC, MetadataResponseTopic(name="secret", error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    secret = TopicPartition("secret", 0)
    async with admin_of(peer, monkeypatch) as admin:
        results = await admin.list_offsets({P0: LATEST, secret: LATEST}, read_committed=False)
    assert results.done.keys() == {P0} and "TOPIC_AUTHORIZATION_FAILED" in str(results.failed[secret])


@pytest.mark.parametrize(
    ("at", "last", "committed", "needs"),
    [
        (OffsetSpec.MAX_TIMESTAMP, 6, False, "3.0"),
        (OffsetSpec.EARLIEST_LOCAL, 7, False, "3.5"),
        (OffsetSpec.LATEST_TIERED, 8, False, "3.9"),
        (OffsetSpec.EARLIEST_NOT_TIERED, 10, False, "4.2"),
        (LATEST, 1, True, "0.11"),
    ],
)
async def test_an_offset_that_brokers_are_too_old_for_is_not_asked_for(
    at: OffsetChoice, last: int, committed: bool, needs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = Cluster()
    offered = [each if each.api_key != 2 else ApiVersion(api_key=2, max_version=last) for each in EVERYTHING.api_keys]
    peer.answers[ApiVersionsRequest] = lambda request, version: ApiVersionsResponse(api_keys=tuple(offered))
    async with admin_of(peer, monkeypatch) as admin:
        with pytest.raises(Unsupported, match=re.escape(needs)):
            await admin.list_offsets({P0: at}, read_committed=committed)
    assert peer.count(ListOffsetsRequest) == 0


async def test_an_offset_that_the_leader_alone_is_too_old_for_is_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """While brokers are upgraded. The leader would take the number that stands for the offset for a time."""
    peer = Cluster()
    peer.answers[ListOffsetsRequest] = offsets
    async with admin_of(peer, monkeypatch) as admin:
        offer_up_to(peer, ListOffsetsRequest, 6)  # on new connections, as that to the leader
        results = await admin.list_offsets({P0: OffsetSpec.MAX_TIMESTAMP}, read_committed=False)
    assert isinstance(results.failed[P0], Unsupported) and "Kafka 3.0" in str(results.failed[P0])
    assert peer.count(ListOffsetsRequest) == 0


async def test_a_group_that_is_no_other_one_is_a_share_group_or_one_of_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    peer.answers[ConsumerGroupDescribeRequest] = lambda request, version: ConsumerGroupDescribeResponse(
        groups=(DescribedConsumerGroup(group_id="g", error_code=69),)
    )
    peer.answers[DescribeGroupsRequest] = lambda request, version: DescribeGroupsResponse(
        groups=(DescribedGroup(group_id="g", error_code=69),)
    )
    peer.answers[ShareGroupDescribeRequest] = lambda request, version: ShareGroupDescribeResponse(
        groups=(DescribedShareGroup(group_id="g", group_state="Empty"),)
    )
    async with opened(peer, monkeypatch) as cluster:
        admin = cluster.admin()
        assert (await admin.describe_groups(["g"])).done["g"].type == "share"
        with pytest.raises(GroupError, match="'g' is a share group, which commits no positions"):
            await Admin(cluster).reset_positions("g", {}, dry_run=True)
        codes = [69, 35]  # there is no such group, and share groups are switched off
        peer.answers[ShareGroupDescribeRequest] = lambda request, version: ShareGroupDescribeResponse(
            groups=(DescribedShareGroup(group_id="g", error_code=codes.pop()),)
        )
        for _ in range(2):
            assert "GROUP_ID_NOT_FOUND" in str((await admin.describe_groups(["g"])).failed["g"])
        codes = [69]
        peer.answers[ListGroupsRequest] = lambda request, version: ListGroupsResponse(
            groups=(ListedGroup(group_id="g", group_type="streams"),)
        )
        assert isinstance((await admin.describe_groups(["g"])).failed["g"], Unsupported)


@pytest.mark.parametrize("code", [0, ErrorCode.GROUP_ID_NOT_FOUND])
async def test_a_coordinator_that_is_too_old_for_other_groups_describes_a_classic_one(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While brokers are upgraded. Nothing is known of the coordinator until the first request goes there."""
    peer = Cluster()
    old = ApiVersionsResponse(api_keys=everything_but(ConsumerGroupDescribeRequest, ShareGroupDescribeRequest))
    peer.answers[DescribeGroupsRequest] = lambda request, version: DescribeGroupsResponse(
        groups=(DescribedGroup(group_id="g", group_state="Stable", protocol_type="consumer", error_code=code),)
    )
    async with admin_of(peer, monkeypatch) as admin:
        peer.answers[ApiVersionsRequest] = lambda request, version: old
        results = await admin.describe_groups(["g"])
    if code:
        assert "GROUP_ID_NOT_FOUND" in str(results.failed["g"])
    else:
        assert results.done["g"].state == "Stable"


async def test_a_coordinator_that_was_upgraded_describes_groups_of_all_protocols(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The program was connected before."""
    peer = Cluster()
    old = ApiVersionsResponse(api_keys=everything_but(ConsumerGroupDescribeRequest, ShareGroupDescribeRequest))
    peer.answers[ApiVersionsRequest] = lambda request, version: old
    peer.answers[ConsumerGroupDescribeRequest] = lambda request, version: ConsumerGroupDescribeResponse(
        groups=(DescribedConsumerGroup(group_id=request.group_ids[0], error_code=peer.code(request)),)
    )
    peer.answers[DescribeGroupsRequest] = lambda request, version: DescribeGroupsResponse(
        groups=tuple(DescribedGroup(group_id=name, group_state="Dead") for name in request.groups)
    )
    peer.answers[ShareGroupDescribeRequest] = lambda request, version: ShareGroupDescribeResponse(
        groups=(DescribedShareGroup(group_id="s"),)
    )
    peer.codes[ConsumerGroupDescribeRequest] = [ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND]
    async with admin_of(peer, monkeypatch) as admin:
        assert "GROUP_ID_NOT_FOUND" in str((await admin.describe_groups(["g"])).failed["g"])
        peer.answers[ApiVersionsRequest] = lambda request, version: EVERYTHING
        await peer.hang_up()
        types = [(await admin.describe_groups([name])).done[name].type for name in ("g", "s")]
    assert types == ["consumer", "share"]


async def test_groups_are_listed_again_while_their_broker_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    peer.codes[ListGroupsRequest] = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    peer.answers[ListGroupsRequest] = lambda request, version: ListGroupsResponse(
        error_code=peer.code(request), groups=(ListedGroup(group_id="g", group_state="Empty"),)
    )
    async with admin_of(peer, monkeypatch) as admin:
        assert [group.name for group in await admin.list_groups(["Empty"])] == ["g"]
    assert peer.count(ListGroupsRequest) == 3  # two brokers, one of them twice
    assert all(
        request.states_filter == ("Empty",) for request, _ in peer.requests if isinstance(request, ListGroupsRequest)
    )


async def test_groups_are_those_of_the_brokers_that_there_are_now(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    names = iter("abcdefgh")
    peer.answers[ListGroupsRequest] = lambda request, version: ListGroupsResponse(
        groups=(ListedGroup(group_id=next(names), protocol_type="consumer"),)
    )
    peer.brokers = BROKERS[:1]
    async with opened(peer, monkeypatch) as cluster:
        assert [len(await cluster.admin().list_groups()), len(await cluster.groups())] == [1, 1]
        peer.brokers = BROKERS
        assert len(await cluster.admin().list_groups()) == 2
        await peer.fail_over()
        assert [len(await cluster.groups()), len(await cluster.admin().list_groups())] == [1, 1]
