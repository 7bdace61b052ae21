"""Administration of a cluster of Kafka 0.8 or later: `core.admin.ClusterAdmin`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from random import random
from typing import Any, TypeVar

import anyio

from odradek.core.admin import (
    ClusterAdmin,
    ClusterDescription,
    ConfigChange,
    ConfigEntry,
    ConfigKind,
    CreatedTopic,
    GroupDescription,
    GroupListing,
    OffsetChoice,
    OffsetListing,
    OffsetSpec,
    Results,
    TopicDescription,
    TopicSettings,
)
from odradek.core.kafka import admin_groups as groups
from odradek.core.kafka import admin_topics as topics
from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.list_offsets import list_offsets_request, read_offset_listing
from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import BrokerError, OdradekError, Unsupported
from odradek.io.gather import gather
from odradek.io.kafka.admin_access import KafkaAccessAdmin
from odradek.io.kafka.admin_cluster import KafkaBrokersAdmin
from odradek.io.kafka.admin_requests import AdminRequests, each
from odradek.io.kafka.admin_transactions import KafkaTransactionsAdmin
from odradek.io.kafka.metadata import metadata_request
from odradek.types import Broker, Position, TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.admin import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)
from odradek.wire.kafka.messages.data import ListOffsetsRequest
from odradek.wire.kafka.messages.groups import (
    ConsumerGroupDescribeRequest,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    ListGroupsRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from odradek.wire.kafka.messages.metadata import MetadataRequest, MetadataResponse
from odradek.wire.kafka.messages.share_groups import ShareGroupDescribeRequest
from odradek.wire.kafka.schema import Request, Response

__all__ = ["KafkaAdmin"]

R = TypeVar("R", bound=Response)

NOT_OF_THIS_PROTOCOL = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)
"""Answers to a question about a group that has another protocol, or does not exist. 3.7 to 3.9 may have
ConsumerGroupDescribe and refuse it."""

SPEC_VERSIONS: Mapping[object, tuple[int, str]] = {
    OffsetSpec.MAX_TIMESTAMP: (7, "Kafka 3.0"),
    OffsetSpec.EARLIEST_LOCAL: (8, "Kafka 3.5"),
    OffsetSpec.LATEST_TIERED: (9, "Kafka 3.9"),
    OffsetSpec.EARLIEST_NOT_TIERED: (11, "Kafka 4.2"),
}
"""Offset -> first version of ListOffsets that finds it (KIP-734, KIP-405, KIP-1005, KIP-1023)."""

CONFIGS: Mapping[ConfigKind, tuple[type[Request[Any]], int, str, str]] = {
    ConfigKind.GROUP: (DescribeGroupsRequest, 6, "a configuration of a group", "Kafka 4.0"),
    ConfigKind.CLIENT_METRICS: (ListConfigResourcesRequest, 0, "metrics of clients", "Kafka 3.7, in KRaft mode"),
}
"""Kind of resource -> a request and its version that brokers have since they know the kind, what it is, and what it
needs (KIP-848, KIP-714)."""

BY_WRITING = "on older brokers, write to the topic: they create it if auto.create.topics.enable is set"
BY_TOOLS = "on older brokers, use the tools that come with them (kafka-topics.sh, kafka-configs.sh)"


class KafkaAdmin(ClusterAdmin):
    """Administration by requests to brokers. Requests that an old broker does not have raise Unsupported.

    Cancelling a change leaves it done or not done. Errors of single items are in the results; what concerns the whole
    request is raised.

    Args:
        requests: Sends requests.
    """

    def __init__(self, requests: AdminRequests) -> None:
        super().__init__("")
        self._requests = requests

    # ---- topics ---------------------------------------------------------------------------------------------

    async def describe_cluster(self) -> ClusterDescription:
        """Return the brokers (see `ClusterAdmin`)."""
        response = await self._requests.ask_any(MetadataRequest, lambda v: metadata_request(v, (), False))
        brokers = sorted(Broker(each.node_id, each.host, each.port) for each in response.brokers)
        racks = {each.node_id: each.rack for each in response.brokers if each.rack is not None}
        controller = response.controller_id if response.controller_id >= 0 else None
        return ClusterDescription(response.cluster_id, controller, tuple(brokers), racks)

    async def create_topics(
        self, settings: Mapping[str, TopicSettings], *, validate_only: bool
    ) -> Results[str, CreatedTopic]:
        """Create topics (see `ClusterAdmin`)."""
        await self._requests.require(CreateTopicsRequest, "creating a topic", f"Kafka 0.10.1: {BY_WRITING}")
        if not settings:
            return Results({}, {})
        response = await self._requests.ask_controller(
            CreateTopicsRequest,
            lambda v: topics.create_request(settings, v, self._requests.timeout_ms, validate_only=validate_only),
            lambda answer: [topic.error_code for topic in answer.topics],
            changes=not validate_only,
        )
        results = topics.read_created(response, settings)
        if results.done and not validate_only:
            await self._wait_for_leaders({name: created.topic_id for name, created in results.done.items()})
        return results

    async def delete_topics(self, names: Sequence[str]) -> Results[str, None]:
        """Delete topics (see `ClusterAdmin`)."""
        await self._requests.require(DeleteTopicsRequest, "deleting a topic", f"Kafka 0.10.1: {BY_TOOLS}")
        if not names:
            return Results({}, {})
        response = await self._requests.ask_controller(
            DeleteTopicsRequest,
            lambda v: topics.delete_request(names, v, self._requests.timeout_ms),
            lambda answer: [topic.error_code for topic in answer.responses],
        )
        return topics.read_deleted(response, names)

    async def add_partitions(self, totals: Mapping[str, int], *, validate_only: bool) -> Results[str, None]:
        """Increase the number of partitions (see `ClusterAdmin`)."""
        await self._requests.require(CreatePartitionsRequest, "adding partitions", f"Kafka 1.0: {BY_TOOLS}")
        wanted = tuple(CreatePartitionsTopic(name=name, count=n, assignments=None) for name, n in totals.items())
        request = CreatePartitionsRequest(
            topics=wanted, timeout_ms=self._requests.timeout_ms, validate_only=validate_only
        )
        response = await self._requests.ask_controller(
            CreatePartitionsRequest,
            lambda v: request,
            lambda answer: [each.error_code for each in answer.results],
            changes=not validate_only,
        )
        answers = {
            each.name: topics.item_error(each.error_code, each.error_message, f"partitions of topic {each.name!r}")
            for each in response.results
        }
        results = topics.item_results(totals, answers, "CreatePartitions")
        if results.done and not validate_only:
            await self._wait_for_leaders(dict.fromkeys(results.done), totals)
        return results

    async def describe_topics(self, names: Sequence[str]) -> Results[str, TopicDescription]:
        """Return the partitions of topics (see `ClusterAdmin`)."""
        return topics.read_topics(await self._read_metadata(names), names)

    async def _read_metadata(self, names: Sequence[str]) -> MetadataResponse:
        """Read topics. Brokers before 0.11 create those that are named, so they are asked for all."""

        def build(versions: BrokerVersions) -> MetadataRequest:
            return metadata_request(versions, None if versions.creates_named_topics else names, False)

        return await self._requests.ask_any(MetadataRequest, build)

    async def _wait_for_leaders(self, ids: Mapping[str, str | None], totals: Mapping[str, int] | None = None) -> None:
        """Wait until brokers know a leader of each partition, so that new topics can be used; not longer than a request
        may take, or until none answers: what was done is done. A topic with another id than that of its name is the one
        that was deleted before."""
        with suppress(OdradekError), anyio.move_on_after(self._requests.timeout_ms / 1000):
            for attempt in range(1_000):
                described = topics.read_topics(await self._read_metadata(list(ids)), ids).done
                if len(described) == len(ids) and all(
                    len(topic.partitions) >= (totals or {}).get(name, 1)
                    and len({topic.topic_id, ids[name]} - {None}) <= 1  # brokers before 2.8 name none
                    and all(partition.leader is not None for partition in topic.partitions)
                    for name, topic in described.items()
                ):
                    break
                await anyio.sleep(self._requests.backoff.delay(attempt, random()))
        with suppress(OdradekError):
            await self._requests.metadata.refresh()

    # ---- configuration --------------------------------------------------------------------------------------

    async def describe_topic_configs(self, names: Sequence[str]) -> Results[str, Mapping[str, ConfigEntry]]:
        """Return the configuration of topics (see `ClusterAdmin`)."""
        await self._requests.require(DescribeConfigsRequest, "describing a configuration", f"Kafka 0.11: {BY_TOOLS}")
        request = topics.describe_configs_request(topics.TOPIC, names)
        response = await self._requests.ask_any(DescribeConfigsRequest, lambda v: request)
        return topics.read_configs(response, topics.TOPIC, names)

    async def describe_broker_configs(
        self, brokers: Sequence[int | None]
    ) -> Results[int | None, Mapping[str, ConfigEntry]]:
        """Return the configuration of brokers (see `ClusterAdmin`): each of them is asked for its own."""
        await self._requests.require(DescribeConfigsRequest, "describing a configuration", f"Kafka 0.11: {BY_TOOLS}")
        if None in brokers:
            await self._requests.require(DescribeConfigsRequest, "a configuration of all brokers", "Kafka 1.1", 1)

        async def describe(number: int | None) -> Mapping[str, ConfigEntry]:
            name = _broker_name(number)
            request = topics.describe_configs_request(topics.BROKER, [name])
            response = await self._ask_broker(number, DescribeConfigsRequest, request)
            return topics.read_configs(response, topics.BROKER, [name]).check()[name]

        return await each(brokers, describe)

    async def _ask_broker(
        self, number: int | None, api: type[Request[R]], request: Request[R], *, changes: bool = False
    ) -> R:
        """Send a request to a broker about itself, or to any about all of them."""
        if number is None:
            return await self._requests.ask_any(api, lambda v: request, changes=changes, repeatable=True)
        return await self._requests.ask_broker(number, api, lambda v: request, changes=changes)

    async def alter_topic_configs(
        self, changes: Mapping[str, Mapping[str, ConfigChange]], *, validate_only: bool
    ) -> Results[str, None]:
        """Set entries (see `ClusterAdmin`). Before 2.3 the whole configuration of a topic is read and written again: a
        change by another client in between is undone."""
        if not self._requests.has(IncrementalAlterConfigsRequest):
            return await self._replace_topic_configs(changes, validate_only)
        request = topics.incremental_request(topics.TOPIC, changes, validate_only=validate_only)
        response = await self._requests.ask_any(
            IncrementalAlterConfigsRequest, lambda v: request, changes=not validate_only, repeatable=True
        )
        return topics.read_altered(response.responses, changes)

    async def _replace_topic_configs(
        self, changes: Mapping[str, Mapping[str, ConfigChange]], validate_only: bool
    ) -> Results[str, None]:
        await self._requests.require(AlterConfigsRequest, "altering a configuration", f"Kafka 0.11: {BY_TOOLS}")
        present = await self.describe_topic_configs(list(changes))
        merged = {name: topics.merged_config(entries, changes[name]) for name, entries in present.done.items()}
        if not merged:
            return Results({}, present.failed)
        request = topics.alter_request(topics.TOPIC, merged, validate_only=validate_only)
        response = await self._requests.ask_any(
            AlterConfigsRequest, lambda v: request, changes=not validate_only, repeatable=True
        )
        results = topics.read_altered(response.responses, merged)
        return Results(results.done, {**present.failed, **results.failed})

    async def alter_broker_configs(
        self, changes: Mapping[int | None, Mapping[str, ConfigChange]], *, validate_only: bool
    ) -> Results[int | None, None]:
        """Set entries (see `ClusterAdmin`). Before 2.3 brokers can only replace the whole configuration of a broker,
        which cannot be done safely: its secrets cannot be read."""
        await self._requests.require(IncrementalAlterConfigsRequest, "altering a broker's configuration", "Kafka 2.3")

        async def alter(number: int | None) -> None:
            named = {_broker_name(number): changes[number]}
            request = topics.incremental_request(topics.BROKER, named, validate_only=validate_only)
            response = await self._ask_broker(
                number, IncrementalAlterConfigsRequest, request, changes=not validate_only
            )
            topics.read_altered(response.responses, named).check()

        return await each(list(changes), alter)

    async def describe_configs(self, kind: ConfigKind, names: Sequence[str]) -> Results[str, Mapping[str, ConfigEntry]]:
        """Return the configuration of groups, or subscriptions to metrics (see `ClusterAdmin`)."""
        await self._require_configs(kind)
        request = topics.describe_configs_request(kind, names)
        response = await self._requests.ask_any(DescribeConfigsRequest, lambda v: request)
        return topics.read_configs(response, kind, names)

    async def alter_configs(
        self, kind: ConfigKind, changes: Mapping[str, Mapping[str, ConfigChange]], *, validate_only: bool
    ) -> Results[str, None]:
        """Set entries (see `ClusterAdmin`)."""
        await self._require_configs(kind)
        request = topics.incremental_request(kind, changes, validate_only=validate_only)
        response = await self._requests.ask_any(
            IncrementalAlterConfigsRequest, lambda v: request, changes=not validate_only, repeatable=True
        )
        return topics.read_altered(response.responses, changes)

    async def list_client_metrics(self) -> Sequence[str]:
        """Return the names of subscriptions (see `ClusterAdmin`)."""
        await self._require_configs(ConfigKind.CLIENT_METRICS)
        response = await self._requests.ask_any(
            ListConfigResourcesRequest,
            topics.list_client_metrics_request,
            lambda response: [response.error_code],
        )
        if response.error_code:
            raise broker_error(response.error_code, "ListConfigResources")
        return sorted(each.resource_name for each in response.config_resources)

    async def _require_configs(self, kind: ConfigKind) -> None:
        api, version, what, needs = CONFIGS[kind]
        await self._requests.require(api, what, needs, version)

    # ---- records --------------------------------------------------------------------------------------------

    async def delete_records(
        self, before: Mapping[TopicPartition, Position | None]
    ) -> Results[TopicPartition, Position]:
        """Delete records (see `ClusterAdmin`): the leader of each partition does it."""
        await self._requests.require(
            DeleteRecordsRequest, "deleting records", "Kafka 0.11: older brokers delete by age"
        )
        await self._requests.read_topics_of(before)

        async def delete(partition: TopicPartition) -> Position:
            request = groups.delete_records_request({partition: before[partition]}, self._requests.timeout_ms)
            return await self._requests.ask_leader(
                partition,
                DeleteRecordsRequest,
                lambda v: request,
                lambda response: groups.read_deleted_records(response, [partition]).check()[partition],
                "deleting records of",
                changes=True,
            )

        return await each(list(before), delete)

    async def list_offsets(
        self, specs: Mapping[TopicPartition, OffsetChoice], *, read_committed: bool
    ) -> Results[TopicPartition, OffsetListing]:
        """Find offsets (see `ClusterAdmin`): the leader of each partition knows them."""
        for at in specs.values():
            for needed in _offset_needs(at, read_committed=read_committed):
                await self._requests.require(ListOffsetsRequest, *needed)
        await self._requests.read_topics_of(specs)

        async def find(partition: TopicPartition) -> OffsetListing:
            at = specs[partition]

            def build(versions: BrokerVersions) -> ListOffsetsRequest:
                # The leader may be the first broker of its release that is met. It would take the number for a time.
                for feature, needs, version in _offset_needs(at, read_committed=read_committed):
                    if not versions.has(ListOffsetsRequest, version):
                        raise Unsupported(feature, needs)
                return list_offsets_request(
                    {partition: at}, 1, leader_epoch=lambda p: -1, read_committed=read_committed
                )

            return await self._requests.ask_leader(
                partition,
                ListOffsetsRequest,
                build,
                lambda response: read_offset_listing(response, partition, f"ListOffsets of {partition}"),
                "finding offsets of",
            )

        return await each(list(specs), find)

    # ---- groups ---------------------------------------------------------------------------------------------

    async def list_groups(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[GroupListing]:
        """Return groups (see `ClusterAdmin`): each broker lists those that it coordinates."""
        await self._requests.require(ListGroupsRequest, "listing groups", "Kafka 0.9")

        async def listed(broker: Broker) -> list[GroupListing]:
            answer = await self._requests.ask_broker(
                broker.id,
                ListGroupsRequest,
                lambda versions: groups.list_request(states, types, versions),
                lambda response: [response.error_code],
            )
            return groups.read_listed(answer, broker)

        lists = await gather(listed, await self._requests.brokers())
        return sorted({group.name: group for each in lists for group in each}.values(), key=lambda group: group.name)

    async def describe_groups(self, names: Sequence[str]) -> Results[str, GroupDescription]:
        """Return states and members of groups (see `ClusterAdmin`)."""
        await self._requests.require(DescribeGroupsRequest, "describing a group", "Kafka 0.9")
        return await each(names, self._describe_group)

    async def _describe_group(self, name: str) -> GroupDescription:
        """Describe a group by the protocol that it has: brokers do not know it by the others. Its coordinator may be of
        another release than the brokers met so far: it says itself which protocols it has."""
        try:
            return await self._requests.describe_group(
                name, ConsumerGroupDescribeRequest(group_ids=(name,)), groups.read_consumer_group
            )
        except (BrokerError, Unsupported) as error:
            if isinstance(error, BrokerError) and error.code not in NOT_OF_THIS_PROTOCOL:
                raise
        try:
            return await self._requests.describe_group(
                name, DescribeGroupsRequest(groups=(name,)), groups.read_classic_group
            )
        except BrokerError as error:
            if error.code not in NOT_OF_THIS_PROTOCOL:
                raise
            missing = error
        try:
            return await self._requests.describe_group(
                name, ShareGroupDescribeRequest(group_ids=(name,)), groups.read_share_group
            )
        except Unsupported:
            raise missing from None
        except BrokerError as error:
            if error.code != ErrorCode.UNSUPPORTED_VERSION:  # share groups are switched off, as by default in 4.1
                missing = error
        if missing.code in NOT_OF_THIS_PROTOCOL and await self._is_streams_group(name):
            raise Unsupported("describing a group of Kafka Streams", "kafka-streams-groups.sh")
        raise missing

    async def _is_streams_group(self, name: str) -> bool:
        """Return True for a group under the protocol of KIP-1071: it exists, although no description finds it."""
        listed = await self._requests.ask_coordinator(
            name,
            ListGroupsRequest,
            lambda versions: groups.list_request((), (groups.STREAMS,), versions),
            groups.read_listed,
            changes=False,
        )
        return any(group.name == name and group.type == groups.STREAMS for group in listed)

    async def delete_groups(self, names: Sequence[str]) -> Results[str, None]:
        """Delete groups (see `ClusterAdmin`)."""
        needs = "Kafka 1.1: older brokers forget the positions of a group without members after a time"
        await self._requests.require(DeleteGroupsRequest, "deleting a group", needs)

        def read(response: DeleteGroupsResponse, name: str) -> None:
            answers = {
                each.group_id: topics.item_error(each.error_code, None, f"deleting group {each.group_id!r}")
                for each in response.results
            }
            topics.item_results([name], answers, "DeleteGroups").check()

        async def delete(name: str) -> None:
            request = DeleteGroupsRequest(groups_names=(name,))
            await self._requests.ask_coordinator(
                name, DeleteGroupsRequest, lambda v: request, lambda answer, _: read(answer, name), changes=True
            )

        return await each(names, delete)

    async def group_positions(self, group: str) -> Mapping[TopicPartition, Position] | None:
        """Return all committed positions of a group (see `ClusterAdmin`): 0.10.2 and later."""
        if not self._requests.has(OffsetFetchRequest, 2):
            return None
        return await self._requests.ask_coordinator(
            group,
            OffsetFetchRequest,
            lambda versions: groups.all_positions_request(group, versions),
            lambda response, _: groups.read_positions(response, group),
            changes=False,
        )

    async def delete_positions(self, group: str, partitions: Sequence[TopicPartition]) -> Results[TopicPartition, None]:
        """Delete committed positions (see `ClusterAdmin`)."""
        await self._requests.require(OffsetDeleteRequest, "deleting a committed position", "Kafka 2.4")
        if not partitions:
            return Results({}, {})
        request = groups.delete_positions_request(group, partitions)
        return await self._requests.ask_coordinator(
            group,
            OffsetDeleteRequest,
            lambda versions: request,
            lambda response, _: groups.read_deleted_positions(response, group, partitions),
            changes=True,
        )

    # ---- more -----------------------------------------------------------------------------------------------

    @property
    def access(self) -> KafkaAccessAdmin:
        """The administration of access (see `ClusterAdmin`)."""
        return KafkaAccessAdmin(self._requests)

    @property
    def brokers(self) -> KafkaBrokersAdmin:
        """The administration of brokers (see `ClusterAdmin`)."""
        return KafkaBrokersAdmin(self._requests)

    @property
    def transactions(self) -> KafkaTransactionsAdmin:
        """The administration of transactions (see `ClusterAdmin`)."""
        return KafkaTransactionsAdmin(self._requests)


def _offset_needs(at: OffsetChoice, *, read_committed: bool) -> Iterator[tuple[str, str, int]]:
    """Yield what ListOffsets has to have to find an offset: what it is, the release, and the version."""
    version, needs = SPEC_VERSIONS.get(at, (0, ""))
    yield f"the offset {at!r}", needs, version
    if read_committed:
        yield "the end of what is committed", "Kafka 0.11", 2


def _broker_name(number: int | None) -> str:
    """Return the name of a broker's configuration; that of all of them has none."""
    return "" if number is None else str(number)
