"""`Admin`, the part that is about access: entries of access control, passwords, quotas, delegation tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from odradek import arguments
from odradek.client.admin_arguments import NAME, AdminPart, items, names
from odradek.core.admin import Results
from odradek.core.admin_access import (
    AccessAdmin,
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
from odradek.errors import ConfigError

__all__ = ["AdminOfAccess"]

_ANY_ACL, _ANY_QUOTA = AclFilter(), QuotaEntity()
_ACL = arguments.instance(Acl, "an Acl")
_FILTER = arguments.instance((Acl, AclFilter), "an AclFilter, or an Acl")
_QUOTAS = arguments.mapping(
    NAME,
    arguments.optional(arguments.number(0, 1e300, "a quota, or None")),
    "a mapping of quotas to their values",
)
_ITERATIONS = arguments.count(4096, 16384, "a number of iterations")  # what brokers accept
_MECHANISM = arguments.choice("SCRAM-SHA-256", "SCRAM-SHA-512")
_LIFETIME = arguments.optional(arguments.seconds(above=True))
_FLAG = arguments.flag()
_HMAC = arguments.binary()


class AdminOfAccess(AdminPart):
    """Access to a cluster."""

    @property
    def _access(self) -> AccessAdmin:
        return self._driver.admin().access

    async def describe_acls(self, which: AclFilter | Acl = _ANY_ACL) -> Sequence[Acl]:
        """Return entries of access control, sorted. Cancellation: safe.

        Args:
            which: Those that match this filter; an `Acl` matches itself.

        Raises:
            Unsupported: The brokers are older than 0.11; older than 2.0, for other patterns than literal ones.
            BrokerError: They have no authorizer, or this user may not see entries.
        """
        return await self._access.describe_acls(_filter("which", which))

    async def create_acls(self, acls: Acl | Iterable[Acl]) -> Results[Acl, None]:
        """Create entries of access control. One that exists stays, and is done.

        Raises:
            Unsupported: As `describe_acls`.
            ConfigError: One of them has a value that is for filters only.
        """
        wanted = items("acls", acls, _acl, Acl, "an Acl, or several")
        return await self._access.create_acls(wanted)

    async def delete_acls(
        self, filters: AclFilter | Acl | Iterable[AclFilter | Acl]
    ) -> Results[AclFilter, Results[Acl, None]]:
        """Delete all entries of access control that match a filter; an `Acl` matches itself.

        Returns:
            Filter -> the entries that it matched, each of which is deleted, or has an error.

        Raises:
            Unsupported: As `describe_acls`.
            TransportError: No answer; entries may have been deleted if the error says `sent`.
        """
        if isinstance(filters, Acl):
            filters = [filters]
        return await self._access.delete_acls(items("filters", filters, _filter, AclFilter, "an AclFilter, or several"))

    # ---- users ----------------------------------------------------------------------------------------------

    async def describe_users(self, users: str | Iterable[str] | None = None) -> Results[str, Sequence[ScramPassword]]:
        """Return for which mechanisms of SCRAM users have a password; None: all that have one. Cancellation: safe.

        Raises:
            Unsupported: The brokers are older than 2.7; in KRaft mode, than 3.5.
        """
        return await self._access.describe_users(None if users is None else names("users", users))

    async def set_passwords(
        self, passwords: Mapping[str, str], *, mechanism: str = "SCRAM-SHA-512", iterations: int = 8192
    ) -> Results[str, None]:
        """Set passwords of users for SCRAM (KIP-554). They are salted and hashed here, and not sent themselves.

        Args:
            passwords: User -> password.
            mechanism: `SCRAM-SHA-256` or `SCRAM-SHA-512`. Passwords for the other one stay.
            iterations: Times that they are hashed, from 4096 to 16384.

        Raises:
            Unsupported: As `describe_users`.
        """
        secret = arguments.text("a password")
        checked = arguments.mapping(NAME, lambda name, value: _secret(secret, name, value), "a mapping of passwords")
        return await self._access.set_passwords(
            checked("passwords", passwords), _MECHANISM("mechanism", mechanism), _ITERATIONS("iterations", iterations)
        )

    async def delete_passwords(
        self, users: str | Iterable[str], *, mechanism: str = "SCRAM-SHA-512"
    ) -> Results[str, None]:
        """Delete passwords of users for SCRAM; those for the other mechanism stay.

        Raises:
            Unsupported: As `describe_users`.
        """
        return await self._access.delete_passwords(names("users", users), _MECHANISM("mechanism", mechanism))

    # ---- quotas ---------------------------------------------------------------------------------------------

    async def describe_quotas(
        self, which: QuotaEntity = _ANY_QUOTA, *, strict: bool = False
    ) -> Mapping[QuotaEntity, Mapping[str, float]]:
        """Return quotas of clients: entity -> the name of each quota -> its value. Cancellation: safe.

        Args:
            which: Those of entities that have these names; by default all.
            strict: Those of entities that have no other names as well.

        Raises:
            Unsupported: The brokers are older than 2.6.
        """
        return await self._access.describe_quotas(_entity("which", which), strict=_FLAG("strict", strict))

    async def alter_quotas(
        self, changes: Mapping[QuotaEntity, Mapping[str, float | None]], *, validate_only: bool = False
    ) -> Results[QuotaEntity, None]:
        """Set quotas of clients, such as `{QuotaEntity(user="alice"): {"producer_byte_rate": 1e6}}` (bytes per second).

        Args:
            changes: Entity -> quota -> its value; None removes it. Other quotas stay.
            validate_only: Find out whether they can be set, without doing it.

        Raises:
            Unsupported: The brokers are older than 2.6.
        """
        checked = arguments.mapping(_named_entity, _QUOTAS, "a mapping of entities to quotas")("changes", changes)
        return await self._access.alter_quotas(checked, validate_only=_FLAG("validate_only", validate_only))

    # ---- delegation tokens ----------------------------------------------------------------------------------

    async def create_token(
        self, *, owner: str | None = None, renewers: str | Iterable[str] = (), lifetime: float | None = None
    ) -> DelegationToken:
        """Create a delegation token, with which others can log in for a time (KIP-48). In KRaft mode brokers know it a
        moment later.

        Args:
            owner: Who it stands for, such as `User:alice` (3.3 and later); None: the user of this client.
            renewers: Who may renew it, beside its owner.
            lifetime: It ends after that in any case (s); None: as brokers are configured.

        Raises:
            Unsupported: The brokers are older than 1.1, or than an argument needs.
            BrokerError: They have no key for tokens, or this client has not logged in by SASL or TLS.
            TransportError: No answer; there may be a token if the error says `sent`.
        """
        return await self._access.create_token(
            None if owner is None else _principal("owner", owner),
            items("renewers", renewers, _principal, str, "a principal, or several"),
            _LIFETIME("lifetime", lifetime),
        )

    async def renew_token(self, hmac: bytes, *, seconds: float | None = None) -> float:
        """Let a delegation token end this long from now (s), but not after its end; None: as brokers are configured.

        Returns:
            When it ends (seconds since the epoch).

        Raises:
            Unsupported: The brokers are older than 1.1.
            BrokerError: There is no such token, it has ended, or this client may not renew it.
        """
        return await self._access.renew_token(_HMAC("hmac", hmac), _LIFETIME("seconds", seconds))

    async def expire_token(self, hmac: bytes, *, seconds: float = 0) -> float:
        """Let a delegation token end this long from now (s); 0: now. Returns and raises as `renew_token`."""
        return await self._access.expire_token(_HMAC("hmac", hmac), arguments.seconds()("seconds", seconds))

    async def describe_tokens(self, owners: str | Iterable[str] | None = None) -> Sequence[DelegationToken]:
        """Return the delegation tokens of these owners that this client may see; None: all that it may see.

        Raises:
            Unsupported: The brokers are older than 1.1.
        """
        wanted = None if owners is None else items("owners", owners, _principal, str, "a principal, or several")
        return await self._access.describe_tokens(wanted)


def _acl(name: str, value: object) -> Acl:
    """Allow an entry that can exist."""
    acl: Acl = _ACL(name, value)
    for field, only_in_filters in {
        "resource": (AclResource.ANY, AclResource.UNKNOWN),
        "operation": (AclOperation.ANY, AclOperation.UNKNOWN),
        "permission": (AclPermission.ANY, AclPermission.UNKNOWN),
        "pattern": (AclPattern.ANY, AclPattern.MATCH, AclPattern.UNKNOWN),
    }.items():
        if (number := getattr(acl, field)) in only_in_filters:
            raise ConfigError(f"{name}.{field}: {number.name} is for filters only")
    _principal(f"{name}.principal", acl.principal)
    NAME(f"{name}.name", acl.name)
    return acl


def _filter(name: str, value: object) -> AclFilter:
    each: Acl | AclFilter = _FILTER(name, value)
    if isinstance(each, AclFilter):
        return each
    return AclFilter(each.resource, each.name, each.principal, each.operation, each.permission, each.host, each.pattern)


def _principal(name: str, value: object) -> str:
    text: str = NAME(name, value)
    if not all(text.partition(":")):
        arguments.wrong_value(name, value, "a type and a name, such as User:alice")
    return text


def _secret(rule: arguments.Rule, name: str, value: object) -> str:
    """Check a password without showing it."""
    try:
        text: str = rule(name, value)
    except (TypeError, ConfigError):
        raise ConfigError("passwords: each must be a text that is not empty") from None
    return text


def _entity(name: str, value: object) -> QuotaEntity:
    entity: QuotaEntity = arguments.instance(QuotaEntity, "a QuotaEntity")(name, value)
    for field in ("user", "client_id", "ip"):
        each = getattr(entity, field)
        if each is not None and not isinstance(each, QuotaName):
            NAME(f"{name}.{field}", each)
    return entity


def _named_entity(name: str, value: object) -> QuotaEntity:
    """Allow an entity that can have quotas."""
    entity = _entity(name, value)
    parts = [entity.user, entity.client_id, entity.ip]
    if QuotaName.ANY in parts or not any(parts):
        raise ConfigError(f"{name}={entity}: must have a name or DEFAULT; ANY is for filters only")
    return entity
