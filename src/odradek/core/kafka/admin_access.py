"""Requests about access: entries, passwords, quotas, tokens; and the results that responses name. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

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
from odradek.core.kafka.admin_topics import item_error, item_results
from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.sasl.scram import Keys
from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import OdradekError, RemoteProtocolError, Unsupported
from odradek.wire.kafka.messages.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    OpData,
)
from odradek.wire.kafka.messages.security import (
    AclCreation,
    AclDescription,
    CreatableRenewers,
    CreateAclsRequest,
    CreateAclsResponse,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribedDelegationToken,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialUpsertion,
)

__all__ = [
    "AT_ONCE",
    "BROKERS_DEFAULT",
    "MECHANISMS",
    "alter_quotas_request",
    "create_acls_request",
    "create_token_request",
    "delete_acls_request",
    "describe_acls_request",
    "describe_quotas_request",
    "describe_tokens_request",
    "read_acls",
    "read_altered_quotas",
    "read_created_acls",
    "read_created_token",
    "read_deleted_acls",
    "read_passwords",
    "read_quotas",
    "read_token",
    "salted",
]

MECHANISMS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
"""Mechanism -> its number in requests about users."""

BROKERS_DEFAULT = -1
"""Lifetime that leaves the choice to the brokers."""

AT_ONCE = -1
"""Time after which a token ends that stands for now."""


# ---- access control -----------------------------------------------------------------------------------------


def _pattern(pattern: AclPattern, versions: BrokerVersions) -> int:
    """Return the number of a pattern. Before 2.0 all entries are literal, so that ANY means the same."""
    if versions.has(DescribeAclsRequest, 1):
        return int(pattern)
    if pattern not in (AclPattern.ANY, AclPattern.LITERAL):
        raise Unsupported(f"the pattern {pattern.name} of an entry of access control", "Kafka 2.0")
    return int(AclPattern.LITERAL)


def describe_acls_request(which: AclFilter, versions: BrokerVersions) -> DescribeAclsRequest:
    """Return the request for entries. Raises Unsupported for a pattern that the broker is too old for."""
    return DescribeAclsRequest(
        resource_type_filter=int(which.resource),
        resource_name_filter=which.name,
        pattern_type_filter=_pattern(which.pattern, versions),
        principal_filter=which.principal,
        host_filter=which.host,
        operation=int(which.operation),
        permission_type=int(which.permission),
    )


def read_acls(response: DescribeAclsResponse) -> list[Acl]:
    """Return the entries, sorted. Raises BrokerError."""
    if error := item_error(response.error_code, response.error_message, "describing access control"):
        raise error
    entries = [
        _acl(resource.resource_type, resource.resource_name, resource.pattern_type, each)
        for resource in response.resources
        for each in resource.acls
    ]
    return sorted(entries, key=_order)


def _acl(kind: int, name: str, pattern: int, entry: AclDescription | DeleteAclsMatchingAcl) -> Acl:
    return Acl(
        AclResource(kind),
        name,
        entry.principal,
        AclOperation(entry.operation),
        AclPermission(entry.permission_type),
        entry.host,
        AclPattern(pattern),
    )


def _order(entry: Acl) -> tuple[int, str, int, str, str, int, int]:
    return (
        entry.resource,
        entry.name,
        entry.pattern,
        entry.principal,
        entry.host,
        entry.permission,
        entry.operation,
    )


def create_acls_request(acls: Iterable[Acl], versions: BrokerVersions) -> CreateAclsRequest:
    """Return the request to create entries. Raises as `describe_acls_request`."""
    return CreateAclsRequest(
        creations=tuple(
            AclCreation(
                resource_type=int(acl.resource),
                resource_name=acl.name,
                resource_pattern_type=_pattern(acl.pattern, versions),
                principal=acl.principal,
                host=acl.host,
                operation=int(acl.operation),
                permission_type=int(acl.permission),
            )
            for acl in acls
        )
    )


def read_created_acls(response: CreateAclsResponse, acls: Sequence[Acl]) -> Results[Acl, None]:
    """Return the result of each entry: they come in the order of the request."""
    answers = {
        acl: item_error(each.error_code, each.error_message, f"creating {acl}")
        for acl, each in zip(acls, response.results, strict=False)
    }
    return item_results(acls, answers, "CreateAcls")


def delete_acls_request(filters: Iterable[AclFilter], versions: BrokerVersions) -> DeleteAclsRequest:
    """Return the request to delete entries. Raises as `describe_acls_request`."""
    return DeleteAclsRequest(
        filters=tuple(
            DeleteAclsFilter(
                resource_type_filter=int(each.resource),
                resource_name_filter=each.name,
                pattern_type_filter=_pattern(each.pattern, versions),
                principal_filter=each.principal,
                host_filter=each.host,
                operation=int(each.operation),
                permission_type=int(each.permission),
            )
            for each in filters
        )
    )


def read_deleted_acls(
    response: DeleteAclsResponse, filters: Sequence[AclFilter]
) -> Results[AclFilter, Results[Acl, None]]:
    """Return the result of each filter, which come in the order of the request."""
    answers = {
        which: item_error(each.error_code, each.error_message, f"deleting {which}") or _matched(each)
        for which, each in zip(filters, response.filter_results, strict=False)
    }
    return item_results(filters, answers, "DeleteAcls")


def _matched(result: DeleteAclsFilterResult) -> Results[Acl, None]:
    answers: dict[Acl, OdradekError | None] = {}
    for each in result.matching_acls:
        acl = _acl(each.resource_type, each.resource_name, each.pattern_type, each)
        answers[acl] = item_error(each.error_code, each.error_message, f"deleting {acl}")
    return item_results(answers, answers, "DeleteAcls")


# ---- users --------------------------------------------------------------------------------------------------


def salted(user: str, password: str, mechanism: str, salt: bytes, iterations: int) -> ScramCredentialUpsertion:
    """Return what a broker gets to know of a password; the time this takes grows with `iterations`."""
    return ScramCredentialUpsertion(
        name=user,
        mechanism=MECHANISMS[mechanism],
        iterations=iterations,
        salt=salt,
        salted_password=Keys.derive(mechanism, password, salt, iterations).salted_password,
    )


def read_passwords(
    response: DescribeUserScramCredentialsResponse, users: Sequence[str] | None
) -> Results[str, Sequence[ScramPassword]]:
    """Return the passwords of each user. Raises BrokerError."""
    if error := item_error(response.error_code, response.error_message, "describing users"):
        raise error
    names = {number: name for name, number in MECHANISMS.items()}
    answers: dict[str, Sequence[ScramPassword] | OdradekError] = {}
    for result in response.results:
        error = item_error(result.error_code, result.error_message, f"user {result.user!r}")
        infos = [ScramPassword(names.get(i.mechanism, str(i.mechanism)), i.iterations) for i in result.credential_infos]
        answers[result.user] = error or sorted(infos)
    return item_results(answers if users is None else users, answers, "DescribeUserScramCredentials")


# ---- quotas -------------------------------------------------------------------------------------------------

ENTITY_TYPES = {"user": "user", "client_id": "client-id", "ip": "ip"}
"""Field of QuotaEntity -> its name in requests."""

EXACT, DEFAULT, ANY = 0, 1, 2
"""Ways in which a filter matches a name."""


def describe_quotas_request(which: QuotaEntity, *, strict: bool) -> DescribeClientQuotasRequest:
    """Return the request for quotas."""

    def component(kind: str, name: str | QuotaName) -> ComponentData:
        if isinstance(name, str):
            return ComponentData(entity_type=kind, match_type=EXACT, match=name)
        how = DEFAULT if name is QuotaName.DEFAULT else ANY
        return ComponentData(entity_type=kind, match_type=how, match=None)

    components = tuple(component(kind, name) for kind, name in _parts(which))
    return DescribeClientQuotasRequest(components=components, strict=strict)


def _parts(entity: QuotaEntity) -> list[tuple[str, str | QuotaName]]:
    named = [(kind, getattr(entity, field)) for field, kind in ENTITY_TYPES.items()]
    return [(kind, name) for kind, name in named if name is not None]


def read_quotas(response: DescribeClientQuotasResponse) -> dict[QuotaEntity, Mapping[str, float]]:
    """Return the quotas of each entity. Raises BrokerError."""
    if error := item_error(response.error_code, response.error_message, "describing quotas"):
        raise error
    return {
        _entity(entry.entity): {value.key: value.value for value in entry.values} for entry in response.entries or ()
    }


def _entity(parts: Iterable[EntityData]) -> QuotaEntity:
    fields = {kind: field for field, kind in ENTITY_TYPES.items()}
    names = {part.entity_type: QuotaName.DEFAULT if part.entity_name is None else part.entity_name for part in parts}
    if unknown := names.keys() - fields.keys():
        raise RemoteProtocolError(f"quotas of {', '.join(sorted(unknown))}")
    return QuotaEntity(**{fields[kind]: name for kind, name in names.items()})


def alter_quotas_request(
    changes: Mapping[QuotaEntity, Mapping[str, float | None]], *, validate_only: bool
) -> AlterClientQuotasRequest:
    """Return the request to set quotas, and to remove those whose value is None."""

    def operation(key: str, value: float | None) -> OpData:
        return OpData(key=key, remove=True) if value is None else OpData(key=key, value=value)

    entries = tuple(
        AlterClientQuotasRequestEntryData(
            entity=tuple(
                EntityData(entity_type=kind, entity_name=name if isinstance(name, str) else None)
                for kind, name in _parts(entity)
            ),
            ops=tuple(operation(*change) for change in values.items()),
        )
        for entity, values in changes.items()
    )
    return AlterClientQuotasRequest(entries=entries, validate_only=validate_only)


def read_altered_quotas(
    response: AlterClientQuotasResponse, entities: Collection[QuotaEntity]
) -> Results[QuotaEntity, None]:
    """Return the result of each entity."""
    answers: dict[QuotaEntity, OdradekError | None] = {}
    for each in response.entries:
        entity = _entity(each.entity)
        answers[entity] = item_error(each.error_code, each.error_message, f"quotas of {entity}")
    return item_results(entities, answers, "AlterClientQuotas")


# ---- delegation tokens --------------------------------------------------------------------------------------


def _principal(text: str) -> tuple[str, str]:
    kind, _, name = text.partition(":")
    return kind, name


def create_token_request(
    owner: str | None, renewers: Iterable[str], lifetime_s: float | None, versions: BrokerVersions
) -> CreateDelegationTokenRequest:
    """Return the request to create a token. Raises Unsupported if only the one who asks can be its owner."""
    named = tuple(
        CreatableRenewers(principal_type=kind, principal_name=name) for kind, name in map(_principal, renewers)
    )
    lifetime_ms = BROKERS_DEFAULT if lifetime_s is None else int(lifetime_s * 1000)
    if not versions.has(CreateDelegationTokenRequest, 3):
        if owner is not None:
            raise Unsupported("a delegation token for another user", "Kafka 3.3")
        return CreateDelegationTokenRequest(renewers=named, max_lifetime_ms=lifetime_ms)
    kind, name = (None, None) if owner is None else _principal(owner)
    return CreateDelegationTokenRequest(
        owner_principal_type=kind, owner_principal_name=name, renewers=named, max_lifetime_ms=lifetime_ms
    )


def read_created_token(response: CreateDelegationTokenResponse) -> DelegationToken:
    """Return the token. Raises BrokerError."""
    if response.error_code:
        raise broker_error(response.error_code, "creating a delegation token")
    return DelegationToken(
        response.token_id,
        bytes(response.hmac),
        f"{response.principal_type}:{response.principal_name}",
        _requester(response),
        response.issue_timestamp_ms / 1000,
        response.expiry_timestamp_ms / 1000,
        response.max_timestamp_ms / 1000,
    )


def _requester(token: CreateDelegationTokenResponse | DescribedDelegationToken) -> str | None:
    name = token.token_requester_principal_name
    return f"{token.token_requester_principal_type}:{name}" if name else None


def describe_tokens_request(owners: Iterable[str] | None) -> DescribeDelegationTokenRequest:
    """Return the request for the tokens of owners; None: of all."""
    if owners is None:
        return DescribeDelegationTokenRequest(owners=None)
    named = tuple(
        DescribeDelegationTokenOwner(principal_type=kind, principal_name=name) for kind, name in map(_principal, owners)
    )
    return DescribeDelegationTokenRequest(owners=named)


def read_token(token: DescribedDelegationToken) -> DelegationToken:
    """Return a token that was described."""
    return DelegationToken(
        token.token_id,
        bytes(token.hmac),
        f"{token.principal_type}:{token.principal_name}",
        _requester(token),
        token.issue_timestamp / 1000,
        token.expiry_timestamp / 1000,
        token.max_timestamp / 1000,
        tuple(f"{each.principal_type}:{each.principal_name}" for each in token.renewers),
    )
