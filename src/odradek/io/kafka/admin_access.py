"""Administration of access to a cluster of Kafka 0.11 or later: `core.admin_access.AccessAdmin`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from secrets import token_bytes
from typing import TypeVar

import anyio.to_thread

from odradek.core.admin import Results
from odradek.core.admin_access import Acl, AclFilter, DelegationToken, QuotaEntity, ScramPassword
from odradek.core.kafka import admin_access as access
from odradek.core.kafka.admin_topics import item_error, item_results
from odradek.core.kafka.broker_errors import broker_error
from odradek.io.kafka.admin_requests import AdminRequests
from odradek.wire.kafka.messages.admin import AlterClientQuotasRequest, DescribeClientQuotasRequest
from odradek.wire.kafka.messages.security import (
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    CreateDelegationTokenRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeDelegationTokenRequest,
    DescribeUserScramCredentialsRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from odradek.wire.kafka.schema import Request, Response

__all__ = ["KafkaAccessAdmin"]

R = TypeVar("R", bound=Response)

SALT_BYTES = 24
"""Size of the salt of a password: more than Kafka's own tools take."""


class KafkaAccessAdmin:
    """Administration of access by requests to brokers (see `AccessAdmin`). Any broker takes them, and forwards what the
    controller has to do; but for passwords, which before KRaft only the controller changes.

    Args:
        requests: Sends requests.
    """

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    # ---- access control -------------------------------------------------------------------------------------

    async def describe_acls(self, which: AclFilter) -> list[Acl]:
        """Return the entries that a filter matches (see `AccessAdmin`)."""
        await self._require_acls(DescribeAclsRequest)
        response = await self._requests.ask_any(
            DescribeAclsRequest,
            lambda versions: access.describe_acls_request(which, versions),
            lambda response: [response.error_code],
        )
        return access.read_acls(response)

    async def create_acls(self, acls: Sequence[Acl]) -> Results[Acl, None]:
        """Create entries (see `AccessAdmin`). That may be repeated: the same entry is not made twice."""
        await self._require_acls(CreateAclsRequest)
        response = await self._requests.ask_any(
            CreateAclsRequest,
            lambda versions: access.create_acls_request(acls, versions),
            changes=True,
            repeatable=True,
        )
        return access.read_created_acls(response, acls)

    async def delete_acls(self, filters: Sequence[AclFilter]) -> Results[AclFilter, Results[Acl, None]]:
        """Delete entries (see `AccessAdmin`). A second answer would not tell what the first request has deleted."""
        await self._require_acls(DeleteAclsRequest)
        response = await self._requests.ask_any(
            DeleteAclsRequest, lambda versions: access.delete_acls_request(filters, versions), changes=True
        )
        return access.read_deleted_acls(response, filters)

    async def _require_acls(self, api: type[Request[R]]) -> None:
        await self._requests.require(
            api, "administration of access control", "Kafka 0.11: on older brokers, use kafka-acls.sh"
        )

    # ---- users ----------------------------------------------------------------------------------------------

    async def describe_users(self, users: Sequence[str] | None) -> Results[str, Sequence[ScramPassword]]:
        """Return the passwords of users (see `AccessAdmin`)."""
        await self._require_users(DescribeUserScramCredentialsRequest)
        named = tuple(UserName(name=user) for user in users or ())  # for null, a broker that refuses does not answer
        request = DescribeUserScramCredentialsRequest(users=named)
        response = await self._requests.ask_any(
            DescribeUserScramCredentialsRequest, lambda v: request, lambda response: [response.error_code]
        )
        return access.read_passwords(response, users)

    async def set_passwords(self, passwords: Mapping[str, str], mechanism: str, iterations: int) -> Results[str, None]:
        """Set passwords (see `AccessAdmin`). The passwords themselves are not sent."""
        await self._require_users(AlterUserScramCredentialsRequest)

        def hash_all() -> tuple[ScramCredentialUpsertion, ...]:
            return tuple(
                access.salted(user, password, mechanism, token_bytes(SALT_BYTES), iterations)
                for user, password in passwords.items()
            )

        hashed = await anyio.to_thread.run_sync(hash_all, abandon_on_cancel=True)
        return await self._alter_users(list(passwords), AlterUserScramCredentialsRequest(upsertions=hashed))

    async def delete_passwords(self, users: Sequence[str], mechanism: str) -> Results[str, None]:
        """Delete passwords (see `AccessAdmin`)."""
        await self._require_users(AlterUserScramCredentialsRequest)
        number = access.MECHANISMS[mechanism]
        deletions = tuple(ScramCredentialDeletion(name=user, mechanism=number) for user in users)
        return await self._alter_users(users, AlterUserScramCredentialsRequest(deletions=deletions))

    async def _alter_users(self, users: Sequence[str], request: AlterUserScramCredentialsRequest) -> Results[str, None]:
        response = await self._requests.ask_controller(
            AlterUserScramCredentialsRequest,
            lambda v: request,
            lambda response: [each.error_code for each in response.results],
        )
        answers = {
            each.user: item_error(each.error_code, each.error_message, f"password of user {each.user!r}")
            for each in response.results
        }
        return item_results(users, answers, "AlterUserScramCredentials")

    async def _require_users(self, api: type[Request[R]]) -> None:
        await self._requests.require(
            api, "administration of users", "Kafka 2.7: on older brokers, use kafka-configs.sh"
        )

    # ---- quotas ---------------------------------------------------------------------------------------------

    async def describe_quotas(self, which: QuotaEntity, *, strict: bool) -> Mapping[QuotaEntity, Mapping[str, float]]:
        """Return quotas (see `AccessAdmin`)."""
        await self._require_quotas(DescribeClientQuotasRequest)
        request = access.describe_quotas_request(which, strict=strict)
        response = await self._requests.ask_any(
            DescribeClientQuotasRequest, lambda v: request, lambda response: [response.error_code]
        )
        return access.read_quotas(response)

    async def alter_quotas(
        self, changes: Mapping[QuotaEntity, Mapping[str, float | None]], *, validate_only: bool
    ) -> Results[QuotaEntity, None]:
        """Set quotas (see `AccessAdmin`). That may be repeated."""
        await self._require_quotas(AlterClientQuotasRequest)
        request = access.alter_quotas_request(changes, validate_only=validate_only)
        response = await self._requests.ask_any(
            AlterClientQuotasRequest, lambda v: request, changes=not validate_only, repeatable=True
        )
        return access.read_altered_quotas(response, changes)

    async def _require_quotas(self, api: type[Request[R]]) -> None:
        await self._requests.require(
            api, "administration of quotas", "Kafka 2.6: on older brokers, use kafka-configs.sh"
        )

    # ---- delegation tokens ----------------------------------------------------------------------------------

    async def create_token(
        self, owner: str | None, renewers: Sequence[str], lifetime_s: float | None
    ) -> DelegationToken:
        """Create a token (see `AccessAdmin`)."""
        await self._require_tokens(CreateDelegationTokenRequest)
        response = await self._requests.ask_any(
            CreateDelegationTokenRequest,
            lambda versions: access.create_token_request(owner, renewers, lifetime_s, versions),
            changes=True,
        )
        return access.read_created_token(response)

    async def renew_token(self, hmac: bytes, seconds: float | None) -> float:
        """Let a token end later (see `AccessAdmin`)."""
        await self._require_tokens(RenewDelegationTokenRequest)
        period = access.BROKERS_DEFAULT if seconds is None else int(seconds * 1000)
        request = RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period)
        response = await self._requests.ask_any(
            RenewDelegationTokenRequest,
            lambda v: request,
            lambda response: [response.error_code],
            changes=True,
            repeatable=True,
        )
        return _end(response.error_code, response.expiry_timestamp_ms, "renewing a delegation token")

    async def expire_token(self, hmac: bytes, seconds: float) -> float:
        """Let a token end earlier (see `AccessAdmin`). A token that has ended is not known when this is repeated."""
        await self._require_tokens(ExpireDelegationTokenRequest)
        period = int(seconds * 1000) or access.AT_ONCE
        request = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period)
        response = await self._requests.ask_any(ExpireDelegationTokenRequest, lambda v: request, changes=True)
        return _end(response.error_code, response.expiry_timestamp_ms, "ending a delegation token")

    async def describe_tokens(self, owners: Sequence[str] | None) -> list[DelegationToken]:
        """Return tokens (see `AccessAdmin`)."""
        await self._require_tokens(DescribeDelegationTokenRequest)
        request = access.describe_tokens_request(owners)
        response = await self._requests.ask_any(
            DescribeDelegationTokenRequest, lambda v: request, lambda response: [response.error_code]
        )
        if response.error_code:
            raise broker_error(response.error_code, "describing delegation tokens")
        return sorted(map(access.read_token, response.tokens), key=lambda token: token.token_id)

    async def _require_tokens(self, api: type[Request[R]]) -> None:
        await self._requests.require(api, "administration of delegation tokens", "Kafka 1.1")


def _end(code: int, expiry_ms: int, what: str) -> float:
    if code:
        raise broker_error(code, what)
    return expiry_ms / 1000
