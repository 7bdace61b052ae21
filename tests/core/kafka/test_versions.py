"""Version choice: the highest both sides know, within the conditions; and what a broker can do."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.kafka.apis import APIS

from odradek.core.kafka.versions import OLD_RELEASES, BrokerVersions, VersionRange, choose, needs_client_wait
from odradek.errors import ConfigError, Unsupported
from odradek.wire.kafka.messages.data import FetchRequest, ProduceRequest
from odradek.wire.kafka.messages.groups import FindCoordinatorRequest, JoinGroupRequest, OffsetCommitRequest
from odradek.wire.kafka.messages.metadata import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    MetadataRequest,
)
from odradek.wire.kafka.messages.transactions import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from odradek.wire.kafka.schema import ZERO_UUID

ID = b"1" * 16

# What a 4.3 broker advertises for the APIs that have conditions.
MODERN = BrokerVersions(
    {
        **{key: VersionRange(0, 99) for key in APIS},
        ProduceRequest.SPEC.key: VersionRange(0, 13),
        FetchRequest.SPEC.key: VersionRange(4, 18),
    },
    {"transaction.version": 2, "group.version": 1, "share.version": 1},
)


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20), st.integers(0, 20), st.none() | st.integers(0, 20))
def test_a_chosen_version_is_the_highest_in_both_ranges(a: int, b: int, c: int, d: int, at_most: int | None) -> None:
    offered, supported = VersionRange(min(a, b), max(a, b)), VersionRange(min(c, d), max(c, d))
    limit = 99 if at_most is None else at_most
    common = [
        v
        for v in range(21)
        if offered.first <= v <= offered.last and supported.first <= v <= min(supported.last, limit)
    ]
    if common:
        assert choose(MetadataRequest, offered, supported, at_most) == common[-1]
    else:
        with pytest.raises(Unsupported):
            choose(MetadataRequest, offered, supported, at_most)


def test_an_exact_version_is_taken_if_both_sides_have_it() -> None:
    assert MODERN.exactly(FetchRequest, 13) == 13  # which is not chosen without ids of topics
    assert MODERN.version(FetchRequest) == 12
    first, last = MetadataRequest.SPEC.stable
    assert [MODERN.exactly(MetadataRequest, version) for version in (first, last)] == [first, last]
    for version, ranges in ((3, "the broker has 4 to 18, this client 0 to"), (99, "the broker has 4 to 18")):
        with pytest.raises(Unsupported, match=rf"Fetch version {version} .*: {ranges}"):
            MODERN.exactly(FetchRequest, version)
    with pytest.raises(Unsupported, match="a broker that has this API"):
        BrokerVersions({}).exactly(FetchRequest, 1)


def test_an_error_says_which_side_is_too_old_and_names_both_ranges() -> None:
    with pytest.raises(
        Unsupported, match=r"Metadata is not supported here: it needs a newer broker: .* 0 to 1, .* 4 to 9"
    ):
        choose(MetadataRequest, VersionRange(0, 1), VersionRange(4, 9))
    with pytest.raises(Unsupported, match=r"a newer client.* 7, .* 0 to 3"):
        choose(MetadataRequest, VersionRange(7, 7), VersionRange(0, 9), 3)
    with pytest.raises(Unsupported, match="a broker that has this API"):
        choose(MetadataRequest, None, VersionRange(0, 9))


def test_versions_without_topic_ids_are_used_unless_all_ids_are_known() -> None:
    assert MODERN.version(FetchRequest) == MODERN.version(FetchRequest, topic_ids=[ID, ZERO_UUID]) == 12
    assert MODERN.version(FetchRequest, topic_ids=[ID]) == 18
    assert MODERN.version(OffsetCommitRequest) == 9
    assert MODERN.version(ProduceRequest, topic_ids=[ID], transactions_v2=True) == 13


@pytest.mark.parametrize(
    ("fetch", "topic_ids", "by_id"),
    [(12, [ID], False), (13, [ID], True), (18, [ID, ID], True), (18, [ID, ZERO_UUID], False), (18, [ZERO_UUID], False)],
)
def test_the_version_of_a_fetch_decides_whether_it_names_topics_by_id(
    fetch: int, topic_ids: list[bytes], by_id: bool
) -> None:
    assert up_to(fetch=fetch, metadata=12).names_topics_by_id(FetchRequest, topic_ids) is by_id


def test_transactions_of_the_first_protocol_keep_to_its_versions() -> None:
    assert MODERN.version(ProduceRequest) == 11
    assert MODERN.version(ProduceRequest, transactions_v2=True) == 12
    assert (MODERN.version(EndTxnRequest), MODERN.version(EndTxnRequest, transactions_v2=True)) == (4, 5)
    assert (MODERN.version(TxnOffsetCommitRequest), MODERN.version(TxnOffsetCommitRequest, transactions_v2=True)) == (
        4,
        5,
    )


def test_versions_for_brokers_and_unfinished_ones_are_never_chosen() -> None:
    assert MODERN.version(AddPartitionsToTxnRequest) == 3
    assert MODERN.version(InitProducerIdRequest) == 5
    assert MODERN.version(FindCoordinatorRequest) == 3


def test_the_user_can_lower_a_version() -> None:
    versions = BrokerVersions(MODERN.offered, at_most={MetadataRequest.SPEC.key: 4})
    assert versions.version(MetadataRequest) == 4
    assert not versions.has_leader_epochs and MODERN.has_leader_epochs


def test_produce_of_a_4_x_broker_begins_at_3_whatever_it_says() -> None:
    assert MODERN.offered[ProduceRequest.SPEC.key] == (3, 13)
    old = BrokerVersions({0: VersionRange(0, 9), 1: VersionRange(0, 12)})
    assert old.offered[0] == (0, 9)


def test_an_answer_to_api_versions_is_read() -> None:
    response = ApiVersionsResponse(
        api_keys=(ApiVersion(api_key=3, min_version=0, max_version=7), ApiVersion(api_key=999, max_version=1)),
        finalized_features=(FinalizedFeatureKey(name="group.version", max_version_level=1, min_version_level=1),),
    )
    versions = BrokerVersions.from_response(response, {3: 5})
    assert versions.version(MetadataRequest) == 5
    assert versions.finalized == {"group.version": 1}
    assert repr(versions) == "<BrokerVersions 2 APIs>"


@pytest.mark.parametrize(
    ("release", "magic", "commit", "groups"),
    [("0.8.0", 0, None, False), ("0.8.1.1", 0, 0, False), ("0.8.2", 0, 1, False), ("0.9.0.1", 0, 2, True)],
)
def test_old_releases_are_known_by_their_name(release: str, magic: int, commit: int | None, groups: bool) -> None:
    versions = BrokerVersions.of_release(release)
    assert (versions.produce_magic, versions.has_groups) == (magic, groups)
    assert versions.has_lz4 is (release[:5] in ("0.8.2", "0.9.0"))
    assert not versions.has_timestamps
    assert versions.has_offsets is (release[:5] != "0.8.0")
    assert versions.has_offsets_in_kafka is bool(commit)
    if commit is None:
        with pytest.raises(Unsupported, match="OffsetCommit"):
            versions.version(OffsetCommitRequest)
    else:
        assert versions.version(OffsetCommitRequest) == commit
    assert release.startswith(str(versions.release)) and repr(versions) == f"<BrokerVersions {versions.release}>"


@pytest.mark.parametrize("release", ["0.7.2", "0.10.0", "0.8", "4.0", ""])
def test_other_releases_cannot_be_set(release: str) -> None:
    with pytest.raises(ConfigError, match=r"only 0\.8\.0, 0\.8\.1, 0\.8\.2, 0\.9\.0"):
        BrokerVersions.of_release(release)


def up_to(**last: int) -> BrokerVersions:
    keys = {"produce": 0, "fetch": 1, "offsets": 2, "metadata": 3, "init": 22}
    return BrokerVersions({keys[name]: VersionRange(0, version) for name, version in last.items()})


@pytest.mark.parametrize(("produce", "fetch", "magic"), [(0, 0, 0), (1, 1, 0), (2, 2, 1), (2, 3, 1), (3, 4, 2)])
def test_the_record_format_follows_from_the_versions(produce: int, fetch: int, magic: int) -> None:
    versions = up_to(produce=produce, fetch=fetch)
    assert versions.produce_magic == magic
    assert versions.has_timestamps is (magic >= 1)
    assert versions.has_record_batches is versions.has_headers is (magic == 2)
    assert versions.has_read_committed is (fetch >= 4)
    assert versions.has_whole_first_message is (fetch >= 3)


def test_capabilities_begin_with_the_versions_that_have_them() -> None:
    assert up_to(fetch=7).has_fetch_sessions and not up_to(fetch=6).has_fetch_sessions
    assert up_to(offsets=1).has_time_index and not up_to(offsets=0).has_time_index
    assert up_to(metadata=1).has_null_topics and not up_to(metadata=0).has_null_topics
    assert up_to(produce=7, fetch=10).has_zstd and not up_to(produce=7, fetch=9).has_zstd
    assert up_to(init=3).has_epoch_bump and not up_to(init=2).has_epoch_bump
    assert up_to(produce=3, fetch=4, init=0).has_idempotence and not up_to(produce=3, fetch=4).has_idempotence


def test_what_brokers_have_in_common_is_what_each_of_them_has() -> None:
    one = BrokerVersions({0: VersionRange(0, 8), 1: VersionRange(0, 11), 22: VersionRange(0, 1)})
    other = BrokerVersions({0: VersionRange(3, 8), 1: VersionRange(4, 10), 28: VersionRange(0, 3)})
    for brokers in ((one, other), (other, one)):
        common = BrokerVersions.common(brokers)
        assert common.offered == {0: VersionRange(3, 8), 1: VersionRange(4, 10)}
        assert common.release is None
    assert BrokerVersions.common([one]) is one


def test_levels_of_features_are_those_of_the_newest_epoch() -> None:
    offered = {0: VersionRange(0, 8)}
    before = BrokerVersions(offered, {"x": 1, "y": 1}, features_epoch=7)
    after = BrokerVersions(offered, {"x": 2}, features_epoch=8)
    starting = BrokerVersions(offered)  # it has not heard of any yet
    for brokers in permutations((before, after, starting)):
        common = BrokerVersions.common(brokers)
        assert common.finalized == {"x": 2} and common.features_epoch == 8


def test_the_release_that_brokers_have_in_common_is_the_oldest_one() -> None:
    old = [BrokerVersions.of_release(release) for release in ("0.9.0", "0.8.1", "0.8.2")]
    common = BrokerVersions.common([MODERN, *old])
    assert common.release == "0.8.1"
    assert not common.has_lz4 and not common.lists_all_brokers


def test_hidden_transaction_apis_mean_no_transactions() -> None:
    assert MODERN.has_transactions and MODERN.has_group_fencing
    hidden = BrokerVersions({k: v for k, v in MODERN.offered.items() if k not in (24, 25, 26, 28)})
    assert hidden.has_idempotence and not hidden.has_transactions


def test_the_second_transaction_protocol_needs_the_finalized_feature() -> None:
    assert MODERN.has_transactions_v2
    assert not BrokerVersions(MODERN.offered, {"transaction.version": 1}).has_transactions_v2


def test_the_consumer_protocol_is_no_preview_and_whether_it_is_on_says_the_coordinator() -> None:
    assert MODERN.has_consumer_protocol and MODERN.has_consumer_protocol_on
    off = BrokerVersions(MODERN.offered)
    assert off.has_consumer_protocol and not off.has_consumer_protocol_on
    preview = BrokerVersions({**MODERN.offered, 68: VersionRange(0, 0)}, MODERN.finalized)
    assert not preview.has_consumer_protocol  # 3.7 to 3.9
    assert not BrokerVersions({}).has_consumer_protocol


def test_other_capabilities_of_a_modern_broker() -> None:
    assert MODERN.has_static_members and MODERN.has_member_lists and MODERN.has_group_lists
    assert MODERN.has_stable_offsets and MODERN.has_sasl_requests
    assert not BrokerVersions({JoinGroupRequest.SPEC.key: VersionRange(0, 4)}).has_static_members


def test_the_client_waits_itself_only_from_the_versions_of_kip_219_on() -> None:
    assert needs_client_wait(FetchRequest, 8) and not needs_client_wait(FetchRequest, 7)
    assert needs_client_wait(EndTxnRequest, 1) and not needs_client_wait(EndTxnRequest, 0)


def test_no_old_release_offers_what_is_not_supported() -> None:
    for offered in OLD_RELEASES.values():
        for key, versions in offered.items():
            first, last = APIS[key].request.SPEC.stable
            assert first <= versions.first <= versions.last <= last
