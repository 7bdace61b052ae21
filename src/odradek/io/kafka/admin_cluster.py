"""Administration of brokers and partitions of Kafka 1.0 or later: `core.admin_cluster.BrokersAdmin`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from odradek.core.admin import Results
from odradek.core.admin_cluster import Features, LogDirectory, QuorumDescription, Reassignment, Replica
from odradek.core.kafka import admin_cluster as cluster
from odradek.core.kafka.admin_topics import item_error, read_topics
from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import OdradekError
from odradek.io.kafka.admin_requests import AdminRequests, each
from odradek.io.kafka.metadata import metadata_request
from odradek.types import TopicPartition
from odradek.wire.kafka.messages.admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsRequest,
    DescribeLogDirsRequest,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
)
from odradek.wire.kafka.messages.metadata import ApiVersionsRequest, MetadataRequest
from odradek.wire.kafka.messages.quorum import (
    AddRaftVoterRequest,
    DescribeQuorumRequest,
    RemoveRaftVoterRequest,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)

__all__ = ["KafkaBrokersAdmin"]

REASSIGN = "on older brokers, use kafka-reassign-partitions.sh"

CLIENT_SOFTWARE = ("odradek", "1")
"""Names of this client in ApiVersions, which refuses empty ones."""


class KafkaBrokersAdmin:
    """Administration of brokers by requests (see `BrokersAdmin`): to the controller, or in KRaft mode to any broker,
    which forwards them; what concerns directories, to each broker.

    Args:
        requests: Sends requests.
    """

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    # ---- replicas and leaders -------------------------------------------------------------------------------

    async def reassign(self, targets: Mapping[TopicPartition, Sequence[int] | None]) -> Results[TopicPartition, None]:
        """Begin to move replicas (see `BrokersAdmin`)."""
        await self._requests.require(AlterPartitionReassignmentsRequest, "moving replicas", f"Kafka 2.4: {REASSIGN}")
        request = cluster.reassign_request(targets, self._requests.timeout_ms)

        def codes(response: AlterPartitionReassignmentsResponse) -> list[int]:
            return [response.error_code, *(p.error_code for topic in response.responses for p in topic.partitions)]

        response = await self._requests.ask_controller(AlterPartitionReassignmentsRequest, lambda v: request, codes)
        return cluster.read_reassigned(response, targets)

    async def list_reassignments(
        self, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, Reassignment]:
        """Return the moves in progress (see `BrokersAdmin`)."""
        await self._requests.require(
            ListPartitionReassignmentsRequest, "listing moves of replicas", f"Kafka 2.4: {REASSIGN}"
        )
        request = cluster.list_reassignments_request(partitions, self._requests.timeout_ms)
        response = await self._requests.ask_controller(
            ListPartitionReassignmentsRequest, lambda v: request, lambda response: [response.error_code], changes=False
        )
        moves = cluster.read_reassignments(response)
        in_sync = await self._in_sync(sorted({partition.topic for partition in moves}))
        return {where: replace(move, in_sync=in_sync.get(where, ())) for where, move in sorted(moves.items())}

    async def _in_sync(self, topics: Sequence[str]) -> dict[TopicPartition, tuple[int, ...]]:
        if not topics:
            return {}
        response = await self._requests.ask_any(MetadataRequest, lambda v: metadata_request(v, topics, False))
        described = read_topics(response, topics).done.values()
        return {each.partition: each.in_sync for topic in described for each in topic.partitions}

    async def elect_leaders(
        self, partitions: Collection[TopicPartition] | None, *, unclean: bool
    ) -> Results[TopicPartition, bool]:
        """Elect leaders (see `BrokersAdmin`)."""
        needs = "Kafka 2.2: on older brokers, use kafka-preferred-replica-election.sh"
        await self._requests.require(ElectLeadersRequest, "electing leaders", needs)
        if partitions is not None and not partitions:
            return Results({}, {})

        def codes(response: ElectLeadersResponse) -> list[int]:
            results = [each for topic in response.replica_election_results for each in topic.partition_result]
            return [response.error_code, *(each.error_code for each in results)]

        response = await self._requests.ask_controller(
            ElectLeadersRequest,
            lambda v: cluster.elect_request(partitions, v, self._requests.timeout_ms, unclean=unclean),
            codes,
        )
        results = cluster.read_elected(response, partitions)
        with suppress(OdradekError):  # what was done is done
            await self._requests.metadata.refresh()
        return results

    # ---- log directories ------------------------------------------------------------------------------------

    async def describe_log_dirs(self, brokers: Sequence[int] | None) -> Results[int, Sequence[LogDirectory]]:
        """Return log directories (see `BrokersAdmin`): each broker knows its own."""
        await self._requests.require(DescribeLogDirsRequest, "describing log directories", "Kafka 1.0")
        request = DescribeLogDirsRequest(topics=None)

        async def describe(number: int) -> Sequence[LogDirectory]:
            response = await self._requests.ask_broker(
                number, DescribeLogDirsRequest, lambda v: request, lambda response: [response.error_code]
            )
            return cluster.read_log_dirs(response)

        if brokers is None:
            brokers = sorted(broker.id for broker in await self._requests.brokers())
        return await each(brokers, describe)

    async def move_replicas(self, targets: Mapping[Replica, str]) -> Results[Replica, None]:
        """Begin to move replicas to other directories (see `BrokersAdmin`): each broker moves its own."""
        await self._requests.require(AlterReplicaLogDirsRequest, "moving replicas to another directory", "Kafka 1.0")
        by_broker: dict[int, dict[TopicPartition, str]] = defaultdict(dict)
        for replica, path in targets.items():
            by_broker[replica.broker][replica.partition] = path

        async def move(number: int) -> Results[Replica, None]:
            request = cluster.move_replicas_request(by_broker[number])
            response = await self._requests.ask_broker(
                number, AlterReplicaLogDirsRequest, lambda v: request, changes=True
            )
            return cluster.read_moved(response, number, by_broker[number])

        moved = await each(list(by_broker), move)
        failed: dict[Replica, OdradekError] = {}
        for results in moved.done.values():
            failed |= results.failed
        failed |= {each: moved.failed[each.broker] for each in targets if each.broker in moved.failed}
        return Results({each: None for each in targets if each not in failed}, failed)

    # ---- quorum ---------------------------------------------------------------------------------------------

    async def describe_quorum(self) -> QuorumDescription:
        """Return the state of the quorum (see `BrokersAdmin`)."""
        await self._requests.require(DescribeQuorumRequest, "describing the quorum", "Kafka 3.3, in KRaft mode")
        response = await self._requests.ask_any(
            DescribeQuorumRequest,
            lambda v: cluster.describe_quorum_request(),
            lambda response: [response.error_code, *(p.error_code for t in response.topics for p in t.partitions)],
        )
        return cluster.read_quorum(response)

    async def add_voter(self, voter: int, directory_id: str, listeners: Mapping[str, tuple[str, int]]) -> None:
        """Add a controller to the quorum (see `BrokersAdmin`)."""
        await self._requests.require(
            AddRaftVoterRequest, "adding a controller to the quorum", "Kafka 3.9, in KRaft mode"
        )
        request = cluster.add_voter_request(voter, directory_id, listeners, self._requests.timeout_ms)
        response = await self._requests.ask_any(AddRaftVoterRequest, lambda v: request, changes=True)
        if error := item_error(response.error_code, response.error_message, f"adding controller {voter}"):
            raise error

    async def remove_voter(self, voter: int, directory_id: str) -> None:
        """Remove a controller from the quorum (see `BrokersAdmin`)."""
        needs = "Kafka 3.9, in KRaft mode"
        await self._requests.require(RemoveRaftVoterRequest, "removing a controller from the quorum", needs)
        request = cluster.remove_voter_request(voter, directory_id)
        response = await self._requests.ask_any(RemoveRaftVoterRequest, lambda v: request, changes=True)
        if error := item_error(response.error_code, response.error_message, f"removing controller {voter}"):
            raise error

    async def unregister_broker(self, broker: int) -> None:
        """Forget a broker (see `BrokersAdmin`)."""
        await self._requests.require(UnregisterBrokerRequest, "unregistering a broker", "Kafka 3.3, in KRaft mode")
        request = UnregisterBrokerRequest(broker_id=broker)
        response = await self._requests.ask_any(UnregisterBrokerRequest, lambda v: request, changes=True)
        if error := item_error(response.error_code, response.error_message, f"unregistering broker {broker}"):
            raise error

    # ---- features -------------------------------------------------------------------------------------------

    async def describe_features(self) -> Features:
        """Return the features of the cluster (see `BrokersAdmin`): brokers tell them with the versions of requests."""
        await self._requests.require(UpdateFeaturesRequest, "describing features", "Kafka 2.7")

        def build(versions: BrokerVersions) -> ApiVersionsRequest:
            name, version = CLIENT_SOFTWARE
            return ApiVersionsRequest(client_software_name=name, client_software_version=version)

        response = await self._requests.ask_any(ApiVersionsRequest, build, lambda response: [response.error_code])
        return cluster.read_features(response)

    async def update_features(
        self, levels: Mapping[str, int], *, downgrade: bool, unsafe: bool, validate_only: bool
    ) -> Results[str, None]:
        """Set levels of features (see `BrokersAdmin`)."""
        await self._requests.require(UpdateFeaturesRequest, "changing features", "Kafka 2.7")
        response = await self._requests.ask_controller(
            UpdateFeaturesRequest,
            lambda v: cluster.update_features_request(
                levels,
                v,
                self._requests.timeout_ms,
                downgrade=downgrade,
                unsafe=unsafe,
                validate_only=validate_only,
            ),
            lambda response: [response.error_code],
            changes=not validate_only,
        )
        return cluster.read_updated_features(response, levels)
