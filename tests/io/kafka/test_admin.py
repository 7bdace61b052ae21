"""Administrative requests reach the right broker, again after it has moved, and only if that is safe."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from odradek.core.admin import ConfigSource, TopicSettings
from odradek.core.backoff import Backoff
from odradek.errors import BrokerError, ConnectionLost, DeadlineError
from odradek.io.connection import ConnectionOptions
from odradek.io.kafka import connections
from odradek.io.kafka.admin import KafkaAdmin
from odradek.io.kafka.driver import KafkaDriver, KafkaOptions
from odradek.types import Broker, Position, TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.admin import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    CreatableTopicResult,
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
)
from odradek.wire.kafka.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedConsumerGroup,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from odradek.wire.kafka.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

from ..limits import TimeLimit
from .peer import EVERYTHING, Peer

pytestmark = pytest.mark.anyio

P0 = TopicPartition("t", 0)
TOPIC = MetadataResponseTopic(name="t", partitions=(MetadataResponsePartition(leader_id=1),))
BROKERS = tuple(MetadataResponseBroker(node_id=n, host="b", port=9090 + n) for n in (1, 2))
COORDINATOR = FindCoordinatorResponse(node_id=1, host="b", port=9091)
ONE = {"t": TopicSettings(1, 1, {})}


class Cluster(Peer):
    """Two brokers, of which one is the controller, and coordinates the group.

    Attributes:
        codes: The next error codes of answers to a kind of request.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                MetadataRequest: self.metadata,
                CreateTopicsRequest: self.create,
                FindCoordinatorRequest: lambda request, version: COORDINATOR,
                DeleteGroupsRequest: lambda request, version: DeleteGroupsResponse(
                    results=(DeletableGroupResult(group_id="g", error_code=self.code(request)),)
                ),
            }
        )
        self.codes: dict[type, list[int]] = {}
        self.controller = 1

    def code(self, request: Any) -> int:
        codes = self.codes.get(type(request))
        return codes.pop(0) if codes else 0

    def metadata(self, request: MetadataRequest, version: int) -> MetadataResponse:
        return MetadataResponse(brokers=BROKERS, controller_id=self.controller, topics=(TOPIC,))

    def create(self, request: CreateTopicsRequest, version: int) -> CreateTopicsResponse:
        return CreateTopicsResponse(topics=(CreatableTopicResult(name="t", error_code=self.code(request)),))

    def count(self, api: type) -> int:
        return sum(type(request) is api for request, _ in self.requests)


@asynccontextmanager
async def admin_of(peer: Peer, monkeypatch: pytest.MonkeyPatch, timeout_s: float = 5.0) -> AsyncIterator[KafkaAdmin]:
    async def dial(host: str, port: int, timeout: float, tls: object) -> Any:
        return await peer.dial(host, port, timeout)

    monkeypatch.setattr(connections, "connect", dial)
    options = KafkaOptions(ConnectionOptions(backoff=Backoff(0.01, 1, 0.01)), request_timeout_s=timeout_s)
    async with anyio.create_task_group() as peer.group:
        async with KafkaDriver([Broker(-1, "b", 9091)], options) as driver:
            yield driver.admin()
        peer.group.cancel_scope.cancel()


async def test_a_topic_is_created_by_the_new_controller_if_the_old_one_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    peer.codes[CreateTopicsRequest] = [ErrorCode.NOT_CONTROLLER] * 2
    async with admin_of(peer, monkeypatch) as admin:
        peer.controller = 2
        assert (await admin.create_topics(ONE, validate_only=True)).done.keys() == {"t"}
    assert peer.count(CreateTopicsRequest) == 3 and "b:9092" in peer.connections


async def test_a_creation_without_an_answer_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    peer.answers[CreateTopicsRequest] = lambda request, version: ConnectionAbortedError
    async with admin_of(peer, monkeypatch) as admin:
        with pytest.raises(ConnectionLost) as lost:
            await admin.create_topics(ONE, validate_only=False)
    assert lost.value.sent and peer.count(CreateTopicsRequest) == 1


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
    old = tuple(api for api in EVERYTHING.api_keys if api.api_key != IncrementalAlterConfigsRequest.SPEC.key)
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
