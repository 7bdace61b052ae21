"""A cluster in memory for administrative requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream

from odradek.core.admin import TopicSettings
from odradek.core.backoff import Backoff
from odradek.errors import Unreachable
from odradek.io.connection import ConnectionOptions
from odradek.io.kafka import connections
from odradek.io.kafka.admin import KafkaAdmin
from odradek.io.kafka.driver import KafkaDriver, KafkaOptions
from odradek.types import Broker, TopicPartition
from odradek.wire.kafka.messages.admin import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from odradek.wire.kafka.messages.data import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from odradek.wire.kafka.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from odradek.wire.kafka.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

from .peer import Peer

P0 = TopicPartition("t", 0)
TOPIC = MetadataResponseTopic(name="t", partitions=(MetadataResponsePartition(leader_id=1),))
BROKERS = tuple(MetadataResponseBroker(node_id=n, host="b", port=9090 + n) for n in (1, 2))
COORDINATOR = FindCoordinatorResponse(node_id=1, host="b", port=9091)
ONE = {"t": TopicSettings(1, 1, {})}


class Cluster(Peer):
    """Two brokers, of which one is the controller, and coordinates the group.

    Attributes:
        codes: The next error codes of answers to a kind of request.
        brokers, topics: What it says of them.
        down: Addresses where nothing listens.
        refused: Number of the next connections that are refused.
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
        self.brokers: Sequence[MetadataResponseBroker] = BROKERS
        self.topics: Sequence[MetadataResponseTopic] = (TOPIC,)
        self.down: set[str] = set()
        self.refused = 0

    async def dial(self, host: str, port: int, timeout: float) -> ByteStream:
        if (address := f"{host}:{port}") in self.down:
            raise Unreachable("tcp", address, "connection refused")
        if self.refused:
            self.refused -= 1
            raise Unreachable("tcp", address, "connection refused")
        return await super().dial(host, port, timeout)

    async def fail_over(self) -> None:
        """Broker 1 dies, and 2 does its work."""
        self.down.add("b:9091")
        self.controller, self.brokers = 2, BROKERS[1:]
        self.topics = (MetadataResponseTopic(name="t", partitions=(MetadataResponsePartition(leader_id=2),)),)
        await self.hang_up()

    def code(self, request: Any) -> int:
        codes = self.codes.get(type(request))
        return codes.pop(0) if codes else 0

    def metadata(self, request: MetadataRequest, version: int) -> MetadataResponse:
        return MetadataResponse(brokers=tuple(self.brokers), controller_id=self.controller, topics=tuple(self.topics))

    def create(self, request: CreateTopicsRequest, version: int) -> CreateTopicsResponse:
        return CreateTopicsResponse(topics=(CreatableTopicResult(name="t", error_code=self.code(request)),))

    def count(self, api: type) -> int:
        return sum(type(request) is api for request, _ in self.requests)


def offsets(request: ListOffsetsRequest, version: int) -> ListOffsetsResponse:
    def listed(partitions: Sequence[ListOffsetsPartition]) -> tuple[ListOffsetsPartitionResponse, ...]:
        numbers = [each.partition_index for each in partitions]
        return tuple(ListOffsetsPartitionResponse(partition_index=n, offset=4 + n) for n in numbers)

    topics = [ListOffsetsTopicResponse(name=each.name, partitions=listed(each.partitions)) for each in request.topics]
    return ListOffsetsResponse(topics=tuple(topics))


@asynccontextmanager
async def admin_of(peer: Peer, monkeypatch: pytest.MonkeyPatch, timeout_s: float = 5.0) -> AsyncIterator[KafkaAdmin]:
    async with opened(peer, monkeypatch, timeout_s) as driver:
        yield driver.admin()


@asynccontextmanager
async def opened(peer: Peer, monkeypatch: pytest.MonkeyPatch, timeout_s: float = 5.0) -> AsyncIterator[KafkaDriver]:
    async def dial(host: str, port: int, timeout: float, *more: object) -> Any:
        return await peer.dial(host, port, timeout)

    monkeypatch.setattr(connections, "connect", dial)
    options = KafkaOptions(ConnectionOptions(backoff=Backoff(0.01, 1, 0.01)), request_timeout_s=timeout_s)
    async with anyio.create_task_group() as peer.group:
        async with KafkaDriver([Broker(-1, "b", 9091)], options) as driver:
            yield driver
        peer.group.cancel_scope.cancel()
