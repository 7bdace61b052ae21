"""Administrative calls reach the broker that has to get them, and say what they need where there is no such request."""

from __future__ import annotations

import csv
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from tests.conformance.kafka.apis import APIS

from odradek.client.admin import Admin
from odradek.core.admin import Results
from odradek.core.admin_access import Acl, AclFilter, AclOperation, AclResource, QuotaEntity
from odradek.core.admin_cluster import Reassignment, Replica
from odradek.core.admin_transactions import ProducerDescription
from odradek.core.backoff import Backoff
from odradek.errors import BrokerError, ConnectionLost, DeadlineError, OdradekError, Unsupported
from odradek.io.connection import ConnectionOptions
from odradek.io.kafka import connections
from odradek.io.kafka.driver import KafkaDriver, KafkaOptions
from odradek.types import LATEST, Broker, Position, TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.admin import (
    AlterClientQuotasRequest,
    AlterConfigsRequest,
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeClientQuotasRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    ElectLeadersPartitionResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReplicaElectionResult,
)
from odradek.wire.kafka.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    ListGroupsRequest,
)
from odradek.wire.kafka.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    MetadataRequest,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
    SupportedFeatureKey,
)
from odradek.wire.kafka.messages.quorum import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    UpdateFeaturesRequest,
)
from odradek.wire.kafka.messages.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CreateAclsRequest,
    CreateDelegationTokenRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribedDelegationToken,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from odradek.wire.kafka.messages.transactions import (
    DescribeProducersPartition,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from odradek.wire.kafka.schema import Request, Response

from ..limits import TimeLimit
from .admin_peer import BROKERS, P0, Cluster
from .peer import EVERYTHING, Peer, everything_but

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[3]
ACL = Acl(AclResource.TOPIC, "t", "User:bob", AclOperation.READ)
BOB = QuotaEntity(user="bob")
PRODUCER = ProducerDescription(7, 2, None, None, None, Position(0))
DIRECTORY = "AAECAwQFBgcICQoLDA0ODw"
NEEDED_BY_ALL = (ApiVersionsRequest, MetadataRequest, FindCoordinatorRequest, DescribeGroupsRequest)  # the last: by 0.9


class Verb(NamedTuple):
    """A method of Admin and the request, from a version on, that it cannot do without."""

    call: Callable[[Admin], Awaitable[Any]]
    api: type[Request[Any]]
    version: int = 0


VERBS: dict[str, Verb] = {
    "create_topics": Verb(lambda a: a.create_topics({"t": 1}, replicas=1), CreateTopicsRequest),
    "delete_topics": Verb(lambda a: a.delete_topics("t"), DeleteTopicsRequest),
    "add_partitions": Verb(lambda a: a.add_partitions({"t": 2}), CreatePartitionsRequest),
    "delete_records": Verb(lambda a: a.delete_records({P0: LATEST}), DeleteRecordsRequest),
    "describe_topic_configs": Verb(lambda a: a.describe_topic_configs("t"), DescribeConfigsRequest),
    "describe_broker_configs": Verb(lambda a: a.describe_broker_configs(1), DescribeConfigsRequest),
    "alter_broker_configs": Verb(lambda a: a.alter_broker_configs({1: {"a": "b"}}), IncrementalAlterConfigsRequest),
    "describe_group_configs": Verb(lambda a: a.describe_group_configs("g"), DescribeGroupsRequest, 6),
    "alter_group_configs": Verb(lambda a: a.alter_group_configs({"g": {"a": "b"}}), DescribeGroupsRequest, 6),
    "list_client_metrics": Verb(lambda a: a.list_client_metrics(), ListConfigResourcesRequest),
    "describe_client_metrics": Verb(lambda a: a.describe_client_metrics("m"), ListConfigResourcesRequest),
    "alter_client_metrics": Verb(lambda a: a.alter_client_metrics({"m": {"a": "b"}}), ListConfigResourcesRequest),
    "list_groups": Verb(lambda a: a.list_groups(), ListGroupsRequest),
    "describe_groups": Verb(lambda a: a.describe_groups("g"), DescribeGroupsRequest),
    "delete_groups": Verb(lambda a: a.delete_groups("g"), DeleteGroupsRequest),
    "describe_acls": Verb(lambda a: a.describe_acls(), DescribeAclsRequest),
    "create_acls": Verb(lambda a: a.create_acls(ACL), CreateAclsRequest),
    "delete_acls": Verb(lambda a: a.delete_acls(ACL), DeleteAclsRequest),
    "describe_users": Verb(lambda a: a.describe_users(), DescribeUserScramCredentialsRequest),
    "set_passwords": Verb(lambda a: a.set_passwords({"bob": "x"}), AlterUserScramCredentialsRequest),
    "delete_passwords": Verb(lambda a: a.delete_passwords("bob"), AlterUserScramCredentialsRequest),
    "describe_quotas": Verb(lambda a: a.describe_quotas(), DescribeClientQuotasRequest),
    "alter_quotas": Verb(lambda a: a.alter_quotas({BOB: {"a": 1}}), AlterClientQuotasRequest),
    "create_token": Verb(lambda a: a.create_token(), CreateDelegationTokenRequest),
    "renew_token": Verb(lambda a: a.renew_token(b"h"), RenewDelegationTokenRequest),
    "expire_token": Verb(lambda a: a.expire_token(b"h"), ExpireDelegationTokenRequest),
    "describe_tokens": Verb(lambda a: a.describe_tokens(), DescribeDelegationTokenRequest),
    "reassign_partitions": Verb(lambda a: a.reassign_partitions({P0: [2]}), AlterPartitionReassignmentsRequest),
    "cancel_reassignments": Verb(lambda a: a.cancel_reassignments(P0), AlterPartitionReassignmentsRequest),
    "list_reassignments": Verb(lambda a: a.list_reassignments(), ListPartitionReassignmentsRequest),
    "elect_leaders": Verb(lambda a: a.elect_leaders(), ElectLeadersRequest),
    "describe_log_dirs": Verb(lambda a: a.describe_log_dirs(), DescribeLogDirsRequest),
    "move_replicas": Verb(lambda a: a.move_replicas({Replica(1, P0): "/d"}), AlterReplicaLogDirsRequest),
    "describe_quorum": Verb(lambda a: a.describe_quorum(), DescribeQuorumRequest),
    "add_voter": Verb(lambda a: a.add_voter(3, DIRECTORY, {"C": ("h", 1)}), AddRaftVoterRequest),
    "remove_voter": Verb(lambda a: a.remove_voter(3, DIRECTORY), RemoveRaftVoterRequest),
    "unregister_broker": Verb(lambda a: a.unregister_broker(3), UnregisterBrokerRequest),
    "describe_features": Verb(lambda a: a.describe_features(), UpdateFeaturesRequest),
    "update_features": Verb(lambda a: a.update_features({"f": 1}), UpdateFeaturesRequest),
    "list_transactions": Verb(lambda a: a.list_transactions(), ListTransactionsRequest),
    "describe_transactions": Verb(lambda a: a.describe_transactions("x"), DescribeTransactionsRequest),
    "describe_producers": Verb(lambda a: a.describe_producers(P0), DescribeProducersRequest),
    "abort_transaction": Verb(lambda a: a.abort_transaction(P0, PRODUCER), WriteTxnMarkersRequest),
}


async def run(peer: Peer, monkeypatch: pytest.MonkeyPatch, call: Callable[[Admin], Awaitable[Any]]) -> Any:
    """Call a method of an Admin whose cluster is this peer."""

    async def dial(host: str, port: int, timeout: float, *more: object) -> Any:
        return await peer.dial(host, port, timeout)

    monkeypatch.setattr(connections, "connect", dial)
    options = KafkaOptions(ConnectionOptions(backoff=Backoff(0.01, 1, 0.01)), request_timeout_s=5.0)
    async with anyio.create_task_group() as peer.group:
        async with KafkaDriver([Broker(-1, "b", 9091)], options) as driver:
            result = await call(Admin(driver))
        peer.group.cancel_scope.cancel()
    return result


def releases() -> list[str]:
    return sorted({row["release"] for row in offers()}, key=lambda release: [int(n) for n in release.split(".")])


def offers() -> list[dict[str, str]]:
    path = ROOT / "tests" / "conformance" / "kafka" / "corpus" / "api_versions.csv"
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def since(api: type[Request[Any]], version: int = 0) -> str:
    """The first release from which on all releases have a version of an API."""
    having = {row["release"] for row in offers() if int(row["api_key"]) == api.SPEC.key and int(row["max"]) >= version}
    ordered = releases()
    gaps = [index for index, release in enumerate(ordered) if release not in having]
    first = ordered[max(gaps) + 1 if gaps else 0]
    return first.removesuffix(".0") if first.count(".") == 2 else first


def documented() -> dict[str, str]:
    """Method -> the release of its row in the table of the how-to."""
    text = (ROOT / "docs" / "howto" / "admin.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+ \| ((?:`\w+`(?:, )?)+) \| ([\d.]+)", text, re.MULTILINE)
    return {name: release for names, release in rows for name in re.findall(r"`(\w+)`", names)}


@pytest.mark.parametrize("name", VERBS)
async def test_a_method_without_its_request_names_the_release_that_has_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    verb, peer = VERBS[name], Cluster()
    offered = everything_but(verb.api)
    peer.answers[ApiVersionsRequest] = lambda request, version: ApiVersionsResponse(api_keys=offered)
    if verb.api is DescribeGroupsRequest:
        offered = tuple(each for each in offered if APIS[each.api_key].name != "ConsumerGroupDescribe")

    async def refused(admin: Admin) -> Unsupported:
        with pytest.raises(Unsupported) as error:
            await verb.call(admin)
        return error.value

    error = await run(peer, monkeypatch, refused)
    assert re.match(r"Kafka (\d+(?:\.\d+)+)", error.needs)[1] == since(verb.api, verb.version)  # type: ignore[index]
    assert {type(request) for request, _ in peer.requests} <= set(NEEDED_BY_ALL)


def test_the_how_to_names_the_release_of_each_method() -> None:
    table = documented()
    assert {name: table.get(name) for name in VERBS} == {
        name: since(verb.api, verb.version) for name, verb in VERBS.items()
    }
    assert all(hasattr(Admin, name) for name in table)


def test_an_administrator_has_no_other_method() -> None:
    methods = {name for name in dir(Admin) if not name.startswith("_")}
    everywhere = {"describe_cluster", "describe_topics", "list_offsets", "group_positions", "lag", "reset_positions"}
    assert methods - VERBS.keys() == {*everywhere, "alter_topic_configs"}
    assert since(AlterConfigsRequest) == documented()["alter_topic_configs"]


# ---- the broker that a request goes to ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["set_passwords", "reassign_partitions", "list_reassignments", "elect_leaders", "update_features"]
)
async def test_what_only_the_controller_does_goes_to_it_and_again_when_it_has_moved(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    verb, peer = VERBS[name], Cluster()
    tries = 0

    def answer(request: Any, version: int) -> Response:
        nonlocal tries
        tries += 1
        if tries == 1:
            peer.controller = 2
            return refusal(verb.api, ErrorCode.NOT_CONTROLLER)
        assert "b:9092" in peer.connections
        return APIS[verb.api.SPEC.key].response()

    peer.answers[verb.api] = answer
    await run(peer, monkeypatch, verb.call)
    assert tries == 2


def refusal(api: type[Request[Any]], code: int) -> Response:
    if api is AlterUserScramCredentialsRequest:
        results = (AlterUserScramCredentialsResult(user="bob", error_code=code),)
        return AlterUserScramCredentialsResponse(results=results)
    response = APIS[api.SPEC.key].response
    return response(error_code=code)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "name", ["describe_acls", "describe_users", "describe_quotas", "describe_tokens", "renew_token", "describe_quorum"]
)
async def test_a_question_is_repeated_while_its_error_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    verb, peer = VERBS[name], Cluster()
    codes = [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ]

    def answer(request: Any, version: int) -> Response:
        return refusal(verb.api, codes.pop(0))

    peer.answers[verb.api] = answer

    async def refused(admin: Admin) -> None:
        with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
            await verb.call(admin)

    await run(peer, monkeypatch, refused)
    assert codes == []


@pytest.mark.parametrize(
    "name", ["create_token", "delete_acls", "set_passwords", "reassign_partitions", "expire_token"]
)
async def test_a_change_without_an_answer_is_not_repeated(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    verb, peer = VERBS[name], Cluster()
    peer.answers[verb.api] = lambda request, version: ConnectionAbortedError

    async def lost(admin: Admin) -> ConnectionLost:
        with pytest.raises(ConnectionLost) as error:
            await verb.call(admin)
        return error.value

    assert (await run(peer, monkeypatch, lost)).sent and peer.count(verb.api) == 1


async def test_each_broker_describes_its_directories_and_one_that_fails_keeps_no_other_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer = Cluster()
    codes = [31, 0]
    peer.answers[DescribeLogDirsRequest] = lambda request, version: DescribeLogDirsResponse(
        error_code=codes.pop(0), results=(DescribeLogDirsResult(log_dir="/d"),)
    )
    results = await run(peer, monkeypatch, lambda admin: admin.describe_log_dirs([1, 2, 9]))
    assert len(results.done) == 1 and len(results.failed) == 2
    assert "BROKER_NOT_AVAILABLE" in str(results.failed[9]) and peer.count(DescribeLogDirsRequest) == 2


async def test_replicas_are_moved_by_their_own_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()

    def answer(request: AlterReplicaLogDirsRequest, version: int) -> Response:
        (topic,) = request.dirs[0].topics
        codes = [57 if number else 0 for number in topic.partitions]
        parts = [
            AlterReplicaLogDirPartitionResult(partition_index=n, error_code=c)
            for n, c in zip(topic.partitions, codes, strict=True)
        ]
        return AlterReplicaLogDirsResponse(
            results=(AlterReplicaLogDirTopicResult(topic_name="t", partitions=tuple(parts)),)
        )

    peer.answers[AlterReplicaLogDirsRequest] = answer
    p1 = TopicPartition("t", 1)
    targets = {Replica(1, P0): "/d", Replica(1, p1): "/d", Replica(2, P0): "/d", Replica(9, P0): "/d"}
    results = await run(peer, monkeypatch, lambda admin: admin.move_replicas(targets))
    assert results.done.keys() == {Replica(1, P0), Replica(2, P0)}
    assert "LOG_DIR_NOT_FOUND" in str(results.failed[Replica(1, p1)])
    assert "broker 9" in str(results.failed[Replica(9, P0)]) and peer.count(AlterReplicaLogDirsRequest) == 2


async def test_a_move_in_progress_tells_what_is_in_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    moving = OngoingPartitionReassignment(
        partition_index=0, replicas=(2, 1), adding_replicas=(2,), removing_replicas=(1,)
    )
    peer.answers[ListPartitionReassignmentsRequest] = lambda request, version: ListPartitionReassignmentsResponse(
        topics=(OngoingTopicReassignment(name="t", partitions=(moving,)),)
    )
    partition = MetadataResponsePartition(leader_id=1, replica_nodes=(2, 1), isr_nodes=(1,))
    peer.answers[MetadataRequest] = lambda request, version: MetadataResponse(
        brokers=BROKERS, controller_id=1, topics=(MetadataResponseTopic(name="t", partitions=(partition,)),)
    )
    moves = await run(peer, monkeypatch, lambda admin: admin.list_reassignments(P0))
    assert moves == {P0: Reassignment((2, 1), (2,), (1,), (1,))} and moves[P0].missing == (2,)


async def test_leaders_are_known_after_their_election(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    elected = ReplicaElectionResult(topic="t", partition_result=(ElectLeadersPartitionResult(partition_id=0),))
    peer.answers[ElectLeadersRequest] = lambda request, version: ElectLeadersResponse(
        replica_election_results=(elected,)
    )
    results = await run(peer, monkeypatch, lambda admin: admin.elect_leaders([P0], unclean=True))
    assert results == Results({P0: True}, {})
    kinds = [type(request) for request, _ in peer.requests]
    assert MetadataRequest in kinds[kinds.index(ElectLeadersRequest) :]


async def test_an_election_before_all_brokers_end_is_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    elected = ReplicaElectionResult(topic="t", partition_result=(ElectLeadersPartitionResult(partition_id=0),))

    def elect(request: ElectLeadersRequest, version: int) -> ElectLeadersResponse:
        peer.answers[MetadataRequest] = lambda request, version: ConnectionAbortedError
        return ElectLeadersResponse(replica_election_results=(elected,))

    peer.answers[ElectLeadersRequest] = elect
    assert await run(peer, monkeypatch, lambda admin: admin.elect_leaders([P0])) == Results({P0: True}, {})


async def test_the_quorum_answers_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    partition = DescribeQuorumResponsePartitionData(leader_id=2, leader_epoch=3, high_watermark=4)
    peer.answers[DescribeQuorumRequest] = lambda request, version: DescribeQuorumResponse(
        topics=(DescribeQuorumResponseTopicData(topic_name="__cluster_metadata", partitions=(partition,)),)
    )
    described = await run(peer, monkeypatch, lambda admin: admin.describe_quorum())
    assert (described.leader, described.leader_epoch, described.high_watermark) == (2, 3, 4)


@pytest.mark.parametrize(
    ("name", "response"),
    [
        ("add_voter", AddRaftVoterResponse),
        ("remove_voter", RemoveRaftVoterResponse),
        ("unregister_broker", UnregisterBrokerResponse),
    ],
)
async def test_a_change_of_the_quorum_is_done_or_raises(
    name: str, response: type[Response], monkeypatch: pytest.MonkeyPatch
) -> None:
    verb, peer = VERBS[name], Cluster()
    assert await run(peer, monkeypatch, verb.call) is None
    peer.answers[verb.api] = lambda request, version: response(error_code=42, error_message="no")  # type: ignore[call-arg]

    async def refused(admin: Admin) -> None:
        with pytest.raises(BrokerError, match="no: INVALID_REQUEST"):
            await verb.call(admin)

    await run(peer, monkeypatch, refused)


async def test_features_come_with_the_versions_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    features = ApiVersionsResponse(
        api_keys=EVERYTHING.api_keys,
        supported_features=(SupportedFeatureKey(name="f", min_version=0, max_version=3),),
        finalized_features_epoch=5,
        finalized_features=(FinalizedFeatureKey(name="f", max_version_level=2, min_version_level=2),),
    )
    peer.answers[ApiVersionsRequest] = lambda request, version: features
    described = await run(peer, monkeypatch, lambda admin: admin.describe_features())
    assert (described.supported, described.finalized, described.epoch) == ({"f": (0, 3)}, {"f": (2, 2)}, 5)


# ---- transactions, tokens, passwords ------------------------------------------------------------------------


async def test_every_broker_lists_its_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    names = ["y", "x"]
    peer.answers[ListTransactionsRequest] = lambda request, version: ListTransactionsResponse(
        transaction_states=(ListedTransaction(transactional_id=names.pop(), producer_id=1, transaction_state="Empty"),)
    )
    listed = await run(peer, monkeypatch, lambda admin: admin.list_transactions(states="Empty", producer_ids=1))
    assert [each.transactional_id for each in listed] == ["x", "y"]


async def test_a_transaction_is_described_by_its_own_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    codes = [ErrorCode.NOT_COORDINATOR, 0]
    peer.answers[DescribeTransactionsRequest] = lambda request, version: DescribeTransactionsResponse(
        transaction_states=(TransactionState(transactional_id="x", error_code=codes.pop(0), transaction_state="Empty"),)
    )
    results = await run(peer, monkeypatch, lambda admin: admin.describe_transactions("x"))
    assert results.done["x"].state == "Empty"
    asked = [request for request, _ in peer.requests if isinstance(request, FindCoordinatorRequest)]
    assert [(request.key, request.key_type) for request in asked] == [("x", 1)] * 2


async def test_the_leader_describes_producers_and_writes_the_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER, 0]

    def producers(request: DescribeProducersRequest, version: int) -> Response:
        partition = DescribeProducersPartition(partition_index=0, error_code=codes.pop(0))
        return DescribeProducersResponse(topics=(DescribeProducersTopic(name="t", partitions=(partition,)),))

    def markers(request: WriteTxnMarkersRequest, version: int) -> Response:
        topic = WritableTxnMarkerTopicResult(name="t", partitions=(WritableTxnMarkerPartitionResult(),))
        return WriteTxnMarkersResponse(markers=(WritableTxnMarkerResult(producer_id=7, topics=(topic,)),))

    peer.answers[DescribeProducersRequest], peer.answers[WriteTxnMarkersRequest] = producers, markers
    results = await run(peer, monkeypatch, lambda admin: admin.describe_producers([P0]))
    assert results.done == {P0: []} and codes == []
    assert await run(peer, monkeypatch, lambda admin: admin.abort_transaction(P0, PRODUCER)) is None
    (sent,) = [request for request, _ in peer.requests if isinstance(request, WriteTxnMarkersRequest)]
    assert (sent.markers[0].producer_id, sent.markers[0].transaction_result) == (7, False)


async def test_a_password_is_sent_hashed_and_with_a_salt_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    peer.answers[AlterUserScramCredentialsRequest] = lambda request, version: AlterUserScramCredentialsResponse(
        results=tuple(AlterUserScramCredentialsResult(user=each.name) for each in request.upsertions)
    )
    results = await run(
        peer, monkeypatch, lambda admin: admin.set_passwords({"bob": "secret", "eve": "secret"}, iterations=4096)
    )
    assert results.done == {"bob": None, "eve": None}
    (sent,) = [request for request, _ in peer.requests if isinstance(request, AlterUserScramCredentialsRequest)]
    bob, eve = sent.upsertions
    assert len(bob.salt) >= 16 and bob.salt != eve.salt and bob.salted_password != eve.salted_password
    assert b"secret" not in bob.salted_password and (bob.mechanism, bob.iterations) == (2, 4096)


@pytest.mark.parametrize(("seconds", "sent"), [(None, -1), (2.5, 2500)])
async def test_a_token_ends_later(seconds: float | None, sent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    peer.answers[RenewDelegationTokenRequest] = lambda request, version: RenewDelegationTokenResponse(
        expiry_timestamp_ms=1500
    )
    assert await run(peer, monkeypatch, lambda admin: admin.renew_token(b"h", seconds=seconds)) == 1.5
    assert [r.renew_period_ms for r, _ in peer.requests if isinstance(r, RenewDelegationTokenRequest)] == [sent]


@pytest.mark.parametrize(("seconds", "sent"), [(0, -1), (2.5, 2500)])
async def test_a_token_ends_earlier(seconds: float, sent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    peer.answers[ExpireDelegationTokenRequest] = lambda request, version: ExpireDelegationTokenResponse(
        expiry_timestamp_ms=1500
    )
    assert await run(peer, monkeypatch, lambda admin: admin.expire_token(b"h", seconds=seconds)) == 1.5
    assert [r.expiry_time_period_ms for r, _ in peer.requests if isinstance(r, ExpireDelegationTokenRequest)] == [sent]


async def test_tokens_are_listed_by_their_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    tokens = tuple(DescribedDelegationToken(token_id=each) for each in ("b", "a"))
    peer.answers[DescribeDelegationTokenRequest] = lambda request, version: DescribeDelegationTokenResponse(
        tokens=tokens
    )
    described = await run(peer, monkeypatch, lambda admin: admin.describe_tokens("User:bob"))
    assert [token.token_id for token in described] == ["a", "b"]


async def test_users_and_entries_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    peer.answers[DescribeUserScramCredentialsRequest] = lambda request, version: DescribeUserScramCredentialsResponse()
    results = await run(peer, monkeypatch, lambda admin: admin.describe_users(["bob"]))
    assert results.failed.keys() == {"bob"}
    assert (await run(peer, monkeypatch, lambda admin: admin.create_acls([ACL]))).failed.keys() == {ACL}
    which = AclFilter(AclResource.TOPIC, "t", "User:bob", AclOperation.READ, ACL.permission, "*", ACL.pattern)
    assert (await run(peer, monkeypatch, lambda admin: admin.delete_acls(ACL))).failed.keys() == {which}
    assert (await run(peer, monkeypatch, VERBS["alter_quotas"].call)).failed.keys() == {BOB}
    assert (await run(peer, monkeypatch, VERBS["delete_passwords"].call)).failed.keys() == {"bob"}
    assert (await run(peer, monkeypatch, VERBS["cancel_reassignments"].call)).failed.keys() == {P0}


VALIDATIONS: dict[str, Callable[[Admin], Awaitable[Any]]] = {
    "create_topics": lambda a: a.create_topics({"t": 1}, replicas=1, validate_only=True),
    "add_partitions": lambda a: a.add_partitions({"t": 2}, validate_only=True),
    "alter_topic_configs": lambda a: a.alter_topic_configs({"t": {"a": "b"}}, validate_only=True),
    "alter_broker_configs": lambda a: a.alter_broker_configs({1: {"a": "b"}}, validate_only=True),
    "alter_quotas": lambda a: a.alter_quotas({BOB: {"a": 1}}, validate_only=True),
    "update_features": lambda a: a.update_features({"f": 1}, validate_only=True),
}
"""Methods that can find out whether they would change something."""


async def unanswered(call: Callable[[Admin], Awaitable[Any]], peer: Peer, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the error of a call, or of its item, when its time ends while a broker has the request."""
    limit = TimeLimit(5.0, monkeypatch)

    def silent(request: object, version: int) -> None:
        limit.end()

    peer.answers |= dict.fromkeys({api.request for api in APIS.values()} - set(NEEDED_BY_ALL), silent)

    async def outcome(admin: Admin) -> object:
        try:
            result = await call(admin)
        except OdradekError as error:
            return error
        return next(iter(result.failed.values()))

    return await run(peer, monkeypatch, outcome)


@pytest.mark.parametrize("name", VERBS.keys() - {"describe_features"})
async def test_an_error_says_whether_a_change_may_have_been_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error = await unanswered(VERBS[name].call, Cluster(), monkeypatch)
    assert isinstance(error, DeadlineError)
    assert error.sent is not name.startswith(("describe", "list"))


@pytest.mark.parametrize("name", VALIDATIONS)
async def test_what_is_only_validated_has_not_been_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not (await unanswered(VALIDATIONS[name], Cluster(), monkeypatch)).sent


@pytest.mark.parametrize("name", ["create_topics", "create_acls"])
async def test_a_later_attempt_may_have_made_a_change(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one found no broker: its error is not the one that counts."""
    peer = Cluster()

    async def call(admin: Admin) -> Any:
        await admin.describe_cluster()
        peer.refused = 2  # once at each broker
        await peer.hang_up()
        return await VERBS[name].call(admin)

    assert (await unanswered(call, peer, monkeypatch)).sent and not peer.refused
