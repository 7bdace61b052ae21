"""Choose the version of each API to use with a broker, and tell which features the broker has.

A broker's response to ApiVersions, or what is known about brokers too old to respond, becomes one immutable
`BrokerVersions` per connection. Features are properties of it, so that no other code compares versions. Each is
computed once per connection: a fetch asks for nine of them.

Source: kafka-specification.md 1, 4.1, 4.2, 4.7; KIP-35, KIP-511, KIP-584, KIP-896.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from odradek.errors import ConfigError, Unsupported
from odradek.wire.kafka import messages
from odradek.wire.kafka.messages.data import (
    FetchRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
)
from odradek.wire.kafka.messages.metadata import ApiVersionsResponse, MetadataRequest
from odradek.wire.kafka.schema import ZERO_UUID, Request

__all__ = ["OLD_RELEASES", "BrokerVersions", "VersionRange", "choose", "needs_client_wait"]

AnyRequest = type[Request[Any]]


class VersionRange(NamedTuple):
    """The versions from `first` to `last`, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}" if self.first == self.last else f"{self.first} to {self.last}"


# Versions that are never chosen although both sides know them: AddPartitionsToTxn from 4 on is for brokers, and
# FindCoordinator from 4 on asks for several keys at once, which nothing here needs.
_ADD_PARTITIONS_TO_TXN, _FIND_COORDINATOR = 24, 10
_ALWAYS_AT_MOST = {_ADD_PARTITIONS_TO_TXN: 3, _FIND_COORDINATOR: 3}
_DESCRIBE_GROUPS = 15
# Above these, topics are named by id only.
_OFFSET_COMMIT, _OFFSET_FETCH = 8, 9
_WITHOUT_TOPIC_IDS = {ProduceRequest.SPEC.key: 12, FetchRequest.SPEC.key: 12, _OFFSET_COMMIT: 9, _OFFSET_FETCH: 9}
# Above these, the transaction protocol is that of KIP-890, part 2.
_TXN_OFFSET_COMMIT, _END_TXN = 28, 26
_TRANSACTIONS_V1 = {ProduceRequest.SPEC.key: 11, _TXN_OFFSET_COMMIT: 4, _END_TXN: 4}
# From these on a broker responds to a throttled request at once, and the client has to wait.
_CLIENT_WAITS_FROM = {0: 6, 1: 8, 2: 3, 3: 6, 8: 4, 9: 4, 10: 2, 11: 3, 12: 2, 13: 2, 14: 2, 15: 2, 16: 2, 18: 2}
_CLIENT_WAITS_FROM |= {19: 3, 20: 2, 32: 2}

OLD_RELEASES: Mapping[str, Mapping[int, VersionRange]] = {
    "0.8.0": {key: VersionRange(0, 0) for key in (0, 1, 2, 3)},
    "0.8.1": {key: VersionRange(0, 0) for key in (0, 1, 2, 3, 8, 9)},
    "0.8.2": {
        **{key: VersionRange(0, 0) for key in (0, 1, 2, 3, 10)},
        **{key: VersionRange(0, 1) for key in (8, 9)},
    },
    "0.9.0": {
        **{key: VersionRange(0, 0) for key in (2, 3, 10, 11, 12, 13, 14, 15, 16)},
        **{key: VersionRange(0, 1) for key in (0, 1, 9)},
        8: VersionRange(0, 2),
    },
}
"""Releases that do not respond to ApiVersions: release -> API key -> versions (kafka-specification.md 1.2)."""


def choose(api: AnyRequest, offered: VersionRange | None, supported: VersionRange, at_most: int | None = None) -> int:
    """Return the highest version that both sides know.

    Args:
        api: The request, for errors.
        offered: The versions of the broker; None if it does not have the API.
        supported: The versions of this library.
        at_most: A limit set by the user or by a condition.

    Raises:
        Unsupported: There is no such version. Says which side is too old.
    """
    name = api.SPEC.name
    if offered is None:
        raise Unsupported(name, "a broker that has this API")
    limit = supported.last if at_most is None else min(supported.last, at_most)
    version = min(offered.last, limit)
    if version >= max(offered.first, supported.first):
        return version
    ranges = f"the broker has versions {offered}, this client uses {VersionRange(supported.first, limit)}"
    if offered.last < supported.first:
        raise Unsupported(name, f"a newer broker: {ranges}")
    raise Unsupported(name, f"a newer client, or fewer restrictions on versions: {ranges}")


def needs_client_wait(api: AnyRequest, version: int) -> bool:
    """Return True if the client has to wait for `throttle_time_ms`; else the broker has already waited (KIP-219)."""
    return version >= _CLIENT_WAITS_FROM.get(api.SPEC.key, 1)


class BrokerVersions:
    """Versions that one broker offers on one connection, and the features that follow from them.

    Args:
        offered: API key -> versions.
        finalized: Feature name -> finalized level of the cluster (KIP-584).
        at_most: API key -> highest version to use, as set by the user.
        release: The release; None for brokers that respond to ApiVersions.
        features_epoch: Grows with every change of `finalized`; -1 where there is none.
    """

    def __init__(
        self,
        offered: Mapping[int, VersionRange],
        finalized: Mapping[str, int] | None = None,
        at_most: Mapping[int, int] | None = None,
        release: str | None = None,
        features_epoch: int = -1,
    ) -> None:
        self.offered, self.finalized, self.release = _repair(offered), dict(finalized or {}), release
        self.features_epoch = features_epoch
        self._at_most = dict(at_most or {})
        self._chosen: dict[tuple[int, bool, bool], int] = {}

    @classmethod
    def from_response(cls, response: ApiVersionsResponse, at_most: Mapping[int, int] | None = None) -> BrokerVersions:
        """Make one of a response without an error."""
        offered = {api.api_key: VersionRange(api.min_version, api.max_version) for api in response.api_keys}
        finalized = {feature.name: feature.max_version_level for feature in response.finalized_features}
        return cls(offered, finalized, at_most, features_epoch=response.finalized_features_epoch)

    @classmethod
    def of_release(cls, release: str, at_most: Mapping[int, int] | None = None) -> BrokerVersions:
        """Make one for a release that does not respond to ApiVersions. Raises ConfigError for any other release."""
        for known, offered in OLD_RELEASES.items():
            if release == known or release.startswith(f"{known}."):
                return cls(offered, None, at_most, known)
        raise ConfigError(
            f"broker version {release!r}: only {', '.join(OLD_RELEASES)} can be set; newer brokers report theirs"
        )

    @classmethod
    def common(cls, brokers: Sequence[BrokerVersions]) -> BrokerVersions:
        """Return what each of some brokers has: one of them may have an older version of this request, another one of
        that. Levels of features are the cluster's: those of the newest epoch count."""
        first, *others = brokers
        if not others:
            return first
        offered = {
            key: VersionRange(
                max(each.offered[key].first for each in brokers), min(each.offered[key].last for each in brokers)
            )
            for key in first.offered
            if all(key in each.offered for each in others)
        }
        newest = max(brokers, key=lambda each: each.features_epoch)
        release = min((each.release for each in brokers if each.release is not None), default=None)
        return cls(offered, newest.finalized, first._at_most, release, newest.features_epoch)

    def __repr__(self) -> str:
        return f"<BrokerVersions {self.release or f'{len(self.offered)} APIs'}>"

    def version(
        self, api: AnyRequest, *, topic_ids: Collection[bytes] | None = None, transactions_v2: bool = False
    ) -> int:
        """Return the version to use for a request.

        Args:
            api: The type of the request.
            topic_ids: The ids of the topics in it, all zero where one is not known: versions that name topics by id
                are used if all are known. With None they are not used.
            transactions_v2: True inside a transaction under the protocol of KIP-890.

        Raises:
            Unsupported: The broker does not have the API, or there is no common version.
        """
        key = api.SPEC.key
        by_id = topic_ids is not None and ZERO_UUID not in topic_ids
        chosen = self._chosen.get((key, by_id, transactions_v2))
        if chosen is None:
            chosen = self._chosen[key, by_id, transactions_v2] = self._choose(api, by_id, transactions_v2)
        return chosen

    def exactly(self, api: AnyRequest, version: int) -> int:
        """Return this version of a request. Raises Unsupported if the broker or this library does not have it."""
        supported, offered = _supported(api), self.offered.get(api.SPEC.key)
        choose(api, offered, supported)
        assert offered is not None
        if not max(offered.first, supported.first) <= version <= min(offered.last, supported.last):
            ranges = f"the broker has {offered}, this client {supported}"
            raise Unsupported(f"{api.SPEC.name} version {version}", f"one that both sides have: {ranges}")
        return version

    def names_topics_by_id(self, api: AnyRequest, topic_ids: Collection[bytes]) -> bool:
        """Return True if a request with these topics leaves in a version that names them by id, False if by name.

        That ids are known does not decide it: 2.8 to 3.0 have them in Metadata (from 10 on), and not in Fetch (from 13
        on). See `version`.
        """
        return self.version(api, topic_ids=topic_ids) > _WITHOUT_TOPIC_IDS[api.SPEC.key]

    def _choose(self, api: AnyRequest, by_id: bool, transactions_v2: bool) -> int:
        key = api.SPEC.key
        limits = [self._at_most.get(key), _ALWAYS_AT_MOST.get(key)]
        if not by_id:
            limits.append(_WITHOUT_TOPIC_IDS.get(key))
        if not transactions_v2:
            limits.append(_TRANSACTIONS_V1.get(key))
        at_most = min((limit for limit in limits if limit is not None), default=None)
        return choose(api, self.offered.get(key), _supported(api), at_most)

    def has(self, api: AnyRequest, version: int = 0) -> bool:
        """Return True if the broker and this library both have the API, in this version or a later one."""
        offered, supported = self.offered.get(api.SPEC.key), _supported(api)
        limit = self._at_most.get(api.SPEC.key, supported.last)
        return offered is not None and max(offered.first, supported.first, version) <= min(offered.last, limit)

    # ---- records ----

    @cached_property
    def produce_magic(self) -> int:
        """The record format to write: 0, 1 or 2."""
        version = self.version(ProduceRequest)
        return (version >= 2) + (version >= 3)

    @cached_property
    def has_record_batches(self) -> bool:
        """Format 2 in both directions: headers, sequences, transactions."""
        return self.has(ProduceRequest, 3) and self.has(FetchRequest, 4)

    @cached_property
    def has_headers(self) -> bool:
        return self.has_record_batches

    @cached_property
    def has_timestamps(self) -> bool:
        return self.has(ProduceRequest, 2) and self.has(FetchRequest, 2)

    @cached_property
    def has_time_index(self) -> bool:
        """ListOffsets finds records by their timestamp, not segments by the time of their file."""
        return self.has(ListOffsetsRequest, 1)

    @cached_property
    def has_file_times(self) -> bool:
        """ListOffsets can also find segments by the time of their file (before 4.0)."""
        return self.has(ListOffsetsRequest) and self.offered[ListOffsetsRequest.SPEC.key].first == 0

    @cached_property
    def has_lz4(self) -> bool:
        return self.release not in ("0.8.0", "0.8.1")

    @cached_property
    def has_zstd(self) -> bool:
        return self.has(ProduceRequest, 7) and self.has(FetchRequest, 10)

    @cached_property
    def has_whole_first_message(self) -> bool:
        """Fetch returns the first message as a whole even if it exceeds the limit; else the limit must be raised."""
        return self.has(FetchRequest, 3)

    @cached_property
    def has_read_committed(self) -> bool:
        return self.has(FetchRequest, 4)

    @cached_property
    def has_fetch_sessions(self) -> bool:
        return self.has(FetchRequest, 7)

    @cached_property
    def has_truncation_detection(self) -> bool:
        """Fetch compares the epoch of the last record read with the log (KIP-595)."""
        return self.has(FetchRequest, 12)

    @cached_property
    def needs_epoch_check(self) -> bool:
        """Leader epochs can be relied on, but it is left to the client to compare them with the log (KIP-320)."""
        has_epochs = self.has_leader_epochs and self.has(OffsetForLeaderEpochRequest, 2)
        return has_epochs and not self.has_truncation_detection

    @cached_property
    def needs_topic_check(self) -> bool:
        """Topics have ids, but Fetch names them, so that it is left to the client to notice that a topic was made again
        (2.8 to 3.0; KIP-516)."""
        return self.has(MetadataRequest, 10) and not self.has(FetchRequest, 13)

    # ---- metadata ----

    @cached_property
    def has_null_topics(self) -> bool:
        """Metadata distinguishes "all topics" from "no topics"."""
        return self.has(MetadataRequest, 1)

    @cached_property
    def creates_named_topics(self) -> bool:
        """Every Metadata request creates the topics that it names, where brokers are configured to (before 0.11)."""
        return not self.has(MetadataRequest, 4)

    @cached_property
    def may_be_beside_0_9(self) -> bool:
        """A broker of 0.9 may be in the same cluster: 4.0 lacks its versions of Fetch (KIP-896)."""
        lacks = VersionRange(-1, -1)
        return all(self.offered.get(key, lacks).first == 0 for key in (FetchRequest.SPEC.key, _DESCRIBE_GROUPS))

    @cached_property
    def lists_all_brokers(self) -> bool:
        """Metadata lists every broker; else only those that have a replica of a topic that is asked for."""
        return self.release not in ("0.8.0", "0.8.1")

    @cached_property
    def has_leader_epochs(self) -> bool:
        """Leader epochs in Metadata are reliable: before version 9 they may be stale (KAFKA-9212)."""
        return self.has(MetadataRequest, 9)

    # ---- producers ----

    @cached_property
    def has_idempotence(self) -> bool:
        return self.has(messages.transactions.InitProducerIdRequest) and self.has_record_batches

    @cached_property
    def remembered_batches(self) -> int:
        """The last batches of a producer and partition that the broker recognises if they come again (KAFKA-5494)."""
        return 5 if self.has(ProduceRequest, 5) else 1

    @cached_property
    def has_epoch_bump(self) -> bool:
        """A producer may raise its own epoch after an error (KIP-360)."""
        return self.has(messages.transactions.InitProducerIdRequest, 3)

    @cached_property
    def has_transactions(self) -> bool:
        """Hidden by brokers whose message format is older than 0.11 (kafka-specification.md 1.1, note 3)."""
        of = messages.transactions
        apis = (of.AddPartitionsToTxnRequest, of.AddOffsetsToTxnRequest, of.EndTxnRequest, of.TxnOffsetCommitRequest)
        return self.has_idempotence and all(self.has(api) for api in apis)

    @cached_property
    def has_transactions_v2(self) -> bool:
        """Produce adds partitions to the transaction, and each transaction has an epoch of its own (KIP-890)."""
        return self.finalized.get("transaction.version", 0) >= 2 and self.has(messages.transactions.EndTxnRequest, 5)

    @cached_property
    def has_group_fencing(self) -> bool:
        """Offsets in a transaction are fenced by the group's generation (KIP-447)."""
        return self.has(messages.transactions.TxnOffsetCommitRequest, 3)

    # ---- groups ----

    @cached_property
    def has_groups(self) -> bool:
        return self.has(messages.groups.JoinGroupRequest) and self.has(messages.groups.HeartbeatRequest)

    @cached_property
    def has_rebalance_timeout(self) -> bool:
        """Members have a time limit for giving up partitions; else it is their session timeout."""
        return self.has(messages.groups.JoinGroupRequest, 1)

    @cached_property
    def has_static_members(self) -> bool:
        return self.has(messages.groups.JoinGroupRequest, 5)

    @cached_property
    def has_member_lists(self) -> bool:
        """LeaveGroup has a list of members, including static ones."""
        return self.has(messages.groups.LeaveGroupRequest, 3)

    @cached_property
    def has_group_lists(self) -> bool:
        """OffsetFetch is for several groups, and names the member that sends it."""
        return self.has(messages.groups.OffsetFetchRequest, 8)

    @cached_property
    def has_stable_offsets(self) -> bool:
        """OffsetFetch can report that a transaction is about to commit offsets (KIP-447)."""
        return self.has(messages.groups.OffsetFetchRequest, 7)

    @cached_property
    def has_consumer_protocol(self) -> bool:
        """Brokers know groups under KIP-848. The previews of 3.7 to 3.9, where they choose the ids of members, do not
        count."""
        return self.has(messages.groups.ConsumerGroupHeartbeatRequest, 1)

    @cached_property
    def has_consumer_protocol_on(self) -> bool:
        """The cluster had `has_consumer_protocol` switched on when the connection was opened. Whether it has by now
        says the coordinator."""
        return self.has_consumer_protocol and self.finalized.get("group.version", 0) >= 1

    @cached_property
    def has_share_groups(self) -> bool:
        """Brokers know share groups (KIP-932): a preview in 4.1, final since 4.2. Whether the cluster has them switched
        on (`share.version`) says the coordinator."""
        return self.has(messages.share_groups.ShareFetchRequest, 1)

    @cached_property
    def has_offsets(self) -> bool:
        """Offsets can be committed, if only to ZooKeeper."""
        return self.has(messages.groups.OffsetCommitRequest)

    @cached_property
    def has_offsets_in_kafka(self) -> bool:
        """Offsets can be committed to Kafka itself; else to ZooKeeper only."""
        return self.has(messages.groups.OffsetCommitRequest, 1)

    # ---- connections ----

    @cached_property
    def has_sasl_requests(self) -> bool:
        """SASL tokens are sent in requests, and errors have a text (KIP-152)."""
        return self.has(messages.security.SaslHandshakeRequest, 1)


def _supported(api: AnyRequest) -> VersionRange:
    """Return the versions of this library: all that any release declared final."""
    return VersionRange(*api.SPEC.stable)


def _repair(offered: Mapping[int, VersionRange]) -> dict[int, VersionRange]:
    """Correct the one range that brokers misreport: for the sake of old clients 4.x lists Produce from version 0 on,
    but refuses versions below 3. It is recognized by Fetch, which it lists from version 4 on (KAFKA-18659)."""
    ranges = dict(offered)
    produce, fetch = ranges.get(ProduceRequest.SPEC.key), ranges.get(FetchRequest.SPEC.key)
    if produce is not None and fetch is not None and fetch.first >= 4:
        ranges[ProduceRequest.SPEC.key] = VersionRange(max(produce.first, 3), produce.last)
    return ranges
