"""SASL, access control entries, delegation tokens and SCRAM credentials."""

from __future__ import annotations

from typing import Annotated

from odradek.wire.kafka.schema import (
    I8,
    I16,
    I32,
    I64,
    IGNORABLE,
    Bytes,
    Request,
    Response,
    Str,
    Struct,
    message,
    nullable,
    since,
    struct,
)


@message(key=17, side="request", versions=(0, 1), flexible=None)
class SaslHandshakeRequest(Request["SaslHandshakeResponse"]):
    """Choose a SASL mechanism."""

    mechanism: Str = ""


@message(key=17, side="response", versions=(0, 1), flexible=None)
class SaslHandshakeResponse(Response):
    error_code: I16 = 0
    mechanisms: tuple[Str, ...] = ()


@message(key=29, side="request", versions=(0, 3), flexible=2)
class DescribeAclsRequest(Request["DescribeAclsResponse"]):
    """Find access control entries."""

    resource_type_filter: I8 = 0
    resource_name_filter: Annotated[Str | None, nullable()] = ""
    pattern_type_filter: Annotated[I8, since(1)] = 3
    principal_filter: Annotated[Str | None, nullable()] = ""
    host_filter: Annotated[Str | None, nullable()] = ""
    operation: I8 = 0
    permission_type: I8 = 0


@struct
class AclDescription(Struct):
    principal: Str = ""
    host: Str = ""
    operation: I8 = 0
    permission_type: I8 = 0


@struct
class DescribeAclsResource(Struct):
    resource_type: I8 = 0
    resource_name: Str = ""
    pattern_type: Annotated[I8, since(1)] = 3
    acls: tuple[AclDescription, ...] = ()


@message(key=29, side="response", versions=(0, 3), flexible=2)
class DescribeAclsResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = ""
    resources: tuple[DescribeAclsResource, ...] = ()


@struct
class AclCreation(Struct):
    resource_type: I8 = 0
    resource_name: Str = ""
    resource_pattern_type: Annotated[I8, since(1)] = 3
    principal: Str = ""
    host: Str = ""
    operation: I8 = 0
    permission_type: I8 = 0


@message(key=30, side="request", versions=(0, 3), flexible=2)
class CreateAclsRequest(Request["CreateAclsResponse"]):
    """Create access control entries."""

    creations: tuple[AclCreation, ...] = ()


@struct
class AclCreationResult(Struct):
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = ""


@message(key=30, side="response", versions=(0, 3), flexible=2)
class CreateAclsResponse(Response):
    throttle_time_ms: I32 = 0
    results: tuple[AclCreationResult, ...] = ()


@struct
class DeleteAclsFilter(Struct):
    resource_type_filter: I8 = 0
    resource_name_filter: Annotated[Str | None, nullable()] = ""
    pattern_type_filter: Annotated[I8, since(1)] = 3
    principal_filter: Annotated[Str | None, nullable()] = ""
    host_filter: Annotated[Str | None, nullable()] = ""
    operation: I8 = 0
    permission_type: I8 = 0


@message(key=31, side="request", versions=(0, 3), flexible=2)
class DeleteAclsRequest(Request["DeleteAclsResponse"]):
    """Delete access control entries."""

    filters: tuple[DeleteAclsFilter, ...] = ()


@struct
class DeleteAclsMatchingAcl(Struct):
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = ""
    resource_type: I8 = 0
    resource_name: Str = ""
    pattern_type: Annotated[I8, since(1)] = 3
    principal: Str = ""
    host: Str = ""
    operation: I8 = 0
    permission_type: I8 = 0


@struct
class DeleteAclsFilterResult(Struct):
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = ""
    matching_acls: tuple[DeleteAclsMatchingAcl, ...] = ()


@message(key=31, side="response", versions=(0, 3), flexible=2)
class DeleteAclsResponse(Response):
    throttle_time_ms: I32 = 0
    filter_results: tuple[DeleteAclsFilterResult, ...] = ()


@message(key=36, side="request", versions=(0, 2), flexible=2)
class SaslAuthenticateRequest(Request["SaslAuthenticateResponse"]):
    """Send a token of a SASL exchange."""

    auth_bytes: Bytes = b""


@message(key=36, side="response", versions=(0, 2), flexible=2)
class SaslAuthenticateResponse(Response):
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = ""
    auth_bytes: Bytes = b""
    session_lifetime_ms: Annotated[I64, since(1), IGNORABLE] = 0


@struct
class CreatableRenewers(Struct):
    principal_type: Str = ""
    principal_name: Str = ""


@message(key=38, side="request", versions=(0, 3), flexible=2)
class CreateDelegationTokenRequest(Request["CreateDelegationTokenResponse"]):
    """Create a delegation token."""

    owner_principal_type: Annotated[Str | None, since(3), nullable()] = ""
    owner_principal_name: Annotated[Str | None, since(3), nullable()] = ""
    renewers: tuple[CreatableRenewers, ...] = ()
    max_lifetime_ms: I64 = 0


@message(key=38, side="response", versions=(0, 3), flexible=2)
class CreateDelegationTokenResponse(Response):
    error_code: I16 = 0
    principal_type: Str = ""
    principal_name: Str = ""
    token_requester_principal_type: Annotated[Str, since(3)] = ""
    token_requester_principal_name: Annotated[Str, since(3)] = ""
    issue_timestamp_ms: I64 = 0
    expiry_timestamp_ms: I64 = 0
    max_timestamp_ms: I64 = 0
    token_id: Str = ""
    hmac: Bytes = b""
    throttle_time_ms: I32 = 0


@message(key=39, side="request", versions=(0, 2), flexible=2)
class RenewDelegationTokenRequest(Request["RenewDelegationTokenResponse"]):
    """Extend the lifetime of a delegation token."""

    hmac: Bytes = b""
    renew_period_ms: I64 = 0


@message(key=39, side="response", versions=(0, 2), flexible=2)
class RenewDelegationTokenResponse(Response):
    error_code: I16 = 0
    expiry_timestamp_ms: I64 = 0
    throttle_time_ms: I32 = 0


@message(key=40, side="request", versions=(0, 2), flexible=2)
class ExpireDelegationTokenRequest(Request["ExpireDelegationTokenResponse"]):
    """Shorten or end the lifetime of a delegation token."""

    hmac: Bytes = b""
    expiry_time_period_ms: I64 = 0


@message(key=40, side="response", versions=(0, 2), flexible=2)
class ExpireDelegationTokenResponse(Response):
    error_code: I16 = 0
    expiry_timestamp_ms: I64 = 0
    throttle_time_ms: I32 = 0


@struct
class DescribeDelegationTokenOwner(Struct):
    principal_type: Str = ""
    principal_name: Str = ""


@message(key=41, side="request", versions=(0, 3), flexible=2)
class DescribeDelegationTokenRequest(Request["DescribeDelegationTokenResponse"]):
    """Describe delegation tokens."""

    owners: Annotated[tuple[DescribeDelegationTokenOwner, ...] | None, nullable()] = ()


@struct
class DescribedDelegationTokenRenewer(Struct):
    principal_type: Str = ""
    principal_name: Str = ""


@struct
class DescribedDelegationToken(Struct):
    principal_type: Str = ""
    principal_name: Str = ""
    token_requester_principal_type: Annotated[Str, since(3)] = ""
    token_requester_principal_name: Annotated[Str, since(3)] = ""
    issue_timestamp: I64 = 0
    expiry_timestamp: I64 = 0
    max_timestamp: I64 = 0
    token_id: Str = ""
    hmac: Bytes = b""
    renewers: tuple[DescribedDelegationTokenRenewer, ...] = ()


@message(key=41, side="response", versions=(0, 3), flexible=2)
class DescribeDelegationTokenResponse(Response):
    error_code: I16 = 0
    tokens: tuple[DescribedDelegationToken, ...] = ()
    throttle_time_ms: I32 = 0


@struct
class UserName(Struct):
    name: Str = ""


@message(key=50, side="request", versions=(0, 0), flexible=0)
class DescribeUserScramCredentialsRequest(Request["DescribeUserScramCredentialsResponse"]):
    """Describe the SCRAM credentials of users."""

    users: Annotated[tuple[UserName, ...] | None, nullable()] = ()


@struct
class CredentialInfo(Struct):
    mechanism: I8 = 0
    iterations: I32 = 0


@struct
class DescribeUserScramCredentialsResult(Struct):
    user: Str = ""
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = ""
    credential_infos: tuple[CredentialInfo, ...] = ()


@message(key=50, side="response", versions=(0, 0), flexible=0)
class DescribeUserScramCredentialsResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = ""
    results: tuple[DescribeUserScramCredentialsResult, ...] = ()


@struct
class ScramCredentialDeletion(Struct):
    name: Str = ""
    mechanism: I8 = 0


@struct
class ScramCredentialUpsertion(Struct):
    name: Str = ""
    mechanism: I8 = 0
    iterations: I32 = 0
    salt: Bytes = b""
    salted_password: Bytes = b""


@message(key=51, side="request", versions=(0, 0), flexible=0)
class AlterUserScramCredentialsRequest(Request["AlterUserScramCredentialsResponse"]):
    """Add, change or delete SCRAM credentials of users."""

    deletions: tuple[ScramCredentialDeletion, ...] = ()
    upsertions: tuple[ScramCredentialUpsertion, ...] = ()


@struct
class AlterUserScramCredentialsResult(Struct):
    user: Str = ""
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = ""


@message(key=51, side="response", versions=(0, 0), flexible=0)
class AlterUserScramCredentialsResponse(Response):
    throttle_time_ms: I32 = 0
    results: tuple[AlterUserScramCredentialsResult, ...] = ()
