"""Requests about access, and what their responses mean."""

from __future__ import annotations

import hashlib

import pytest

from odradek.core.admin import Results
from odradek.core.admin_access import (
    Acl,
    AclFilter,
    AclOperation,
    AclPattern,
    AclPermission,
    AclResource,
    DelegationToken,
    QuotaEntity,
    QuotaName,
    ScramPassword,
)
from odradek.core.kafka import admin_access as access
from odradek.core.kafka.versions import BrokerVersions, VersionRange
from odradek.errors import BrokerError, RemoteProtocolError, Unsupported
from odradek.wire.kafka.encode import encode
from odradek.wire.kafka.messages.admin import (
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntryData,
    DescribeClientQuotasEntryData,
    DescribeClientQuotasResponse,
    EntityData,
    ValueData,
)
from odradek.wire.kafka.messages.security import (
    AclCreationResult,
    AclDescription,
    CreateAclsResponse,
    CreateDelegationTokenResponse,
    CredentialInfo,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsResponse,
    DescribeAclsResource,
    DescribeAclsResponse,
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

READ = Acl(AclResource.TOPIC, "orders", "User:bob", AclOperation.READ)
DENY = Acl(AclResource.GROUP, "g", "User:*", AclOperation.ALL, AclPermission.DENY, "10.0.0.1", AclPattern.PREFIXED)


def versions(*apis: tuple[int, int]) -> BrokerVersions:
    """A broker that has these APIs up to these versions."""
    return BrokerVersions({key: VersionRange(0, last) for key, last in apis})


# ---- access control -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [1, 3])
def test_entries_go_into_requests_and_come_out_of_responses_unchanged(last: int) -> None:
    (read, deny) = access.create_acls_request([READ, DENY], versions((29, last))).creations
    assert (read.resource_type, read.resource_name, read.resource_pattern_type) == (2, "orders", 3)
    assert (read.principal, read.host, read.operation, read.permission_type) == ("User:bob", "*", 3, 3)
    described = DescribeAclsResponse(
        resources=tuple(
            DescribeAclsResource(
                resource_type=each.resource_type,
                resource_name=each.resource_name,
                pattern_type=each.resource_pattern_type,
                acls=(
                    AclDescription(
                        principal=each.principal,
                        host=each.host,
                        operation=each.operation,
                        permission_type=each.permission_type,
                    ),
                ),
            )
            for each in (deny, read)
        )
    )
    assert access.read_acls(described) == [READ, DENY]


def test_a_value_that_is_not_known_yet_is_unknown() -> None:
    entry = AclDescription(principal="User:a", host="*", operation=99, permission_type=99)
    resource = DescribeAclsResource(resource_type=99, resource_name="x", pattern_type=99, acls=(entry,))
    (acl,) = access.read_acls(DescribeAclsResponse(resources=(resource,)))
    unknown = (AclResource.UNKNOWN, AclOperation.UNKNOWN, AclPermission.UNKNOWN, AclPattern.UNKNOWN)
    assert (acl.resource, acl.operation, acl.permission, acl.pattern) == unknown


@pytest.mark.parametrize("pattern", [AclPattern.ANY, AclPattern.LITERAL])
def test_before_patterns_every_entry_is_literal(pattern: AclPattern) -> None:
    old = versions((29, 0))
    request = access.describe_acls_request(AclFilter(pattern=pattern), old)
    assert request.pattern_type_filter == 3
    encode(request, 0)
    encode(access.delete_acls_request([AclFilter(pattern=pattern)], old), 0)
    encode(access.create_acls_request([READ], old), 0)


@pytest.mark.parametrize("pattern", [AclPattern.MATCH, AclPattern.PREFIXED])
def test_other_patterns_are_refused_where_there_are_none(pattern: AclPattern) -> None:
    with pytest.raises(Unsupported, match=f"{pattern.name}.*2.0"):
        access.describe_acls_request(AclFilter(pattern=pattern), versions((29, 0)))
    assert access.describe_acls_request(AclFilter(pattern=pattern), versions((29, 1))).pattern_type_filter == pattern


def test_a_broker_without_entries_says_so() -> None:
    with pytest.raises(BrokerError, match="No Authorizer"):
        access.read_acls(DescribeAclsResponse(error_code=54, error_message="No Authorizer is configured"))


def test_each_entry_is_created_or_has_its_own_error() -> None:
    response = CreateAclsResponse(results=(AclCreationResult(), AclCreationResult(error_code=42, error_message="no")))
    results = access.read_created_acls(response, [READ, DENY])
    assert results.done == {READ: None} and "no" in str(results.failed[DENY])
    assert access.read_created_acls(CreateAclsResponse(), [READ]).failed.keys() == {READ}


def test_a_filter_tells_what_it_has_deleted() -> None:
    every, some, missing = AclFilter(), AclFilter(name="a"), AclFilter(name="b")
    matches = tuple(
        DeleteAclsMatchingAcl(
            error_code=code,
            resource_type=2,
            resource_name=name,
            principal="User:bob",
            host="*",
            operation=3,
            permission_type=3,
        )
        for name, code in [("orders", 0), ("other", 31)]
    )
    response = DeleteAclsResponse(
        filter_results=(
            DeleteAclsFilterResult(matching_acls=matches),
            DeleteAclsFilterResult(error_code=42, error_message="refused"),
        )
    )
    results = access.read_deleted_acls(response, [every, some, missing])
    assert results.done[every].done == {READ: None}
    assert [acl.name for acl in results.done[every].failed] == ["other"]
    assert "refused" in str(results.failed[some]) and isinstance(results.failed[missing], RemoteProtocolError)


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (READ, "User:bob allow read topic:orders"),
        (DENY, "User:* deny all group:g (prefixed) from 10.0.0.1"),
        (Acl(AclResource.CLUSTER, "kafka-cluster", "User:a", AclOperation.ALTER), "User:a allow alter cluster"),
        (AclFilter(), "any any any any"),
        (AclFilter(AclResource.TOPIC, principal="User:bob"), "User:bob any any topic:any"),
        (AclFilter(AclResource.GROUP, "g", pattern=AclPattern.MATCH), "any any any group:g (match)"),
    ],
)
def test_errors_name_an_entry_in_the_words_of_the_command(entry: Acl | AclFilter, text: str) -> None:
    assert str(entry) == text


def test_an_entry_that_is_refused_is_named_in_words() -> None:
    response = CreateAclsResponse(results=(AclCreationResult(error_code=42, error_message="no"),))
    refused = access.read_created_acls(response, [DENY]).failed[DENY]
    assert "creating User:* deny all group:g (prefixed) from 10.0.0.1: no" in str(refused)


# ---- users --------------------------------------------------------------------------------------------------


def test_a_password_is_salted_as_kafka_does() -> None:
    salted = access.salted("bob", "secret", "SCRAM-SHA-256", b"salt", 4096)
    assert (salted.name, salted.mechanism, salted.iterations, salted.salt) == ("bob", 1, 4096, b"salt")
    assert salted.salted_password == hashlib.pbkdf2_hmac("sha256", b"secret", b"salt", 4096)
    assert access.salted("bob", "secret", "SCRAM-SHA-512", b"salt", 4096).mechanism == 2


def test_users_have_passwords_or_an_error() -> None:
    infos = (CredentialInfo(mechanism=2, iterations=8192), CredentialInfo(mechanism=1, iterations=4096))
    response = DescribeUserScramCredentialsResponse(
        results=(
            DescribeUserScramCredentialsResult(user="bob", credential_infos=infos),
            DescribeUserScramCredentialsResult(user="eve", error_code=91, error_message="no such user"),
        )
    )
    results = access.read_passwords(response, None)
    assert results.done == {"bob": [ScramPassword("SCRAM-SHA-256", 4096), ScramPassword("SCRAM-SHA-512", 8192)]}
    assert "no such user" in str(results.failed["eve"])
    assert access.read_passwords(response, ["joe"]).failed.keys() == {"joe"}
    with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
        access.read_passwords(DescribeUserScramCredentialsResponse(error_code=31), None)


# ---- quotas -------------------------------------------------------------------------------------------------


def test_quotas_are_found_by_names_defaults_and_anything() -> None:
    which = QuotaEntity(user="bob", client_id=QuotaName.DEFAULT, ip=QuotaName.ANY)
    request = access.describe_quotas_request(which, strict=True)
    assert request.strict
    assert [(each.entity_type, each.match_type, each.match) for each in request.components] == [
        ("user", 0, "bob"),
        ("client-id", 1, None),
        ("ip", 2, None),
    ]
    assert access.describe_quotas_request(QuotaEntity(), strict=False).components == ()


def test_quotas_are_read_by_entity() -> None:
    entity = (EntityData(entity_type="user", entity_name="bob"), EntityData(entity_type="client-id", entity_name=None))
    entry = DescribeClientQuotasEntryData(entity=entity, values=(ValueData(key="producer_byte_rate", value=1.5),))
    assert access.read_quotas(DescribeClientQuotasResponse(entries=(entry,))) == {
        QuotaEntity("bob", QuotaName.DEFAULT): {"producer_byte_rate": 1.5}
    }
    with pytest.raises(BrokerError):
        access.read_quotas(DescribeClientQuotasResponse(error_code=31, entries=None))
    odd = DescribeClientQuotasEntryData(entity=(EntityData(entity_type="planet", entity_name="x"),))
    with pytest.raises(RemoteProtocolError, match="planet"):
        access.read_quotas(DescribeClientQuotasResponse(entries=(odd,)))


def test_quotas_are_set_and_removed() -> None:
    bob, default = QuotaEntity("bob"), QuotaEntity(client_id=QuotaName.DEFAULT)
    changes: dict[QuotaEntity, dict[str, float | None]] = {bob: {"a": 1.0, "b": None}, default: {}}
    request = access.alter_quotas_request(changes, validate_only=True)
    first, second = request.entries
    assert request.validate_only and [(op.key, op.value, op.remove) for op in first.ops] == [
        ("a", 1.0, False),
        ("b", 0.0, True),
    ]
    assert [(part.entity_type, part.entity_name) for part in second.entity] == [("client-id", None)]
    response = AlterClientQuotasResponse(
        entries=(
            AlterClientQuotasResponseEntryData(entity=first.entity),
            AlterClientQuotasResponseEntryData(entity=second.entity, error_code=42, error_message="bad"),
        )
    )
    results = access.read_altered_quotas(response, changes)
    assert results.done == {bob: None} and "quotas of client-id <default>: bad" in str(results.failed[default])
    assert str(QuotaEntity("bob", "app")) == "user bob, client-id app" and str(QuotaEntity()) == "any client"


# ---- delegation tokens --------------------------------------------------------------------------------------


def test_a_token_is_asked_for_as_the_broker_can_read_it() -> None:
    new = access.create_token_request("User:bob", ["User:eve"], 2.5, versions((38, 3)))
    assert (new.owner_principal_type, new.owner_principal_name, new.max_lifetime_ms) == ("User", "bob", 2500)
    assert [(each.principal_type, each.principal_name) for each in new.renewers] == [("User", "eve")]
    own = access.create_token_request(None, [], None, versions((38, 3)))
    assert (own.owner_principal_type, own.max_lifetime_ms) == (None, -1)
    encode(own, 3)
    encode(access.create_token_request(None, ["User:eve"], 1, versions((38, 2))), 2)
    with pytest.raises(Unsupported, match=r"3\.3"):
        access.create_token_request("User:bob", [], None, versions((38, 2)))


def test_a_token_is_read_and_its_secret_not_shown() -> None:
    response = CreateDelegationTokenResponse(
        principal_type="User",
        principal_name="bob",
        token_requester_principal_type="User",
        token_requester_principal_name="alice",
        issue_timestamp_ms=1000,
        expiry_timestamp_ms=2500,
        max_timestamp_ms=4000,
        token_id="id",
        hmac=b"hidden",
    )
    token = access.read_created_token(response)
    assert token == DelegationToken("id", b"hidden", "User:bob", "User:alice", 1.0, 2.5, 4.0)
    assert "hidden" not in repr(token)
    with pytest.raises(BrokerError, match="DELEGATION_TOKEN_AUTH_DISABLED"):
        access.read_created_token(CreateDelegationTokenResponse(error_code=61))


def test_tokens_are_described_with_those_who_may_renew_them() -> None:
    described = DescribedDelegationToken(
        principal_type="User",
        principal_name="bob",
        issue_timestamp=1000,
        expiry_timestamp=2000,
        max_timestamp=3000,
        token_id="id",
        hmac=b"h",
        renewers=(DescribedDelegationTokenRenewer(principal_type="User", principal_name="eve"),),
    )
    assert access.read_token(described) == DelegationToken("id", b"h", "User:bob", None, 1, 2, 3, ("User:eve",))
    assert access.describe_tokens_request(None).owners is None
    (owner,) = access.describe_tokens_request(["User:a:b"]).owners or ()
    assert (owner.principal_type, owner.principal_name) == ("User", "a:b")


def test_results_of_entries_are_typed() -> None:
    assert isinstance(access.read_deleted_acls(DeleteAclsResponse(), []), Results)
