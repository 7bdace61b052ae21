"""Administration of access: entries of access control, passwords of users, quotas, delegation tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import NamedTuple, Protocol

from odradek.core.admin import Results

__all__ = [
    "AccessAdmin",
    "Acl",
    "AclFilter",
    "AclOperation",
    "AclPattern",
    "AclPermission",
    "AclResource",
    "DelegationToken",
    "QuotaEntity",
    "QuotaName",
    "ScramPassword",
]


class _AclNumber(IntEnum):
    @classmethod
    def _missing_(cls, value: object) -> _AclNumber:
        return cls(0)


class AclResource(_AclNumber):
    """The type of a resource. Numbers as in DescribeAcls, here and below."""

    UNKNOWN = 0
    ANY = 1
    """All of them: for filters only."""
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    """The cluster itself; its name is `kafka-cluster`."""
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclPattern(_AclNumber):
    """The way in which an entry names resources."""

    UNKNOWN = 0
    ANY = 1
    """All of them: for filters only."""
    MATCH = 2
    """All entries that concern a resource of this name: for filters only (2.0 and later)."""
    LITERAL = 3
    """The name of a resource; `*` are all of them."""
    PREFIXED = 4
    """The beginning of names of resources (2.0 and later)."""


class AclOperation(_AclNumber):
    """An operation that an entry allows or denies."""

    UNKNOWN = 0
    ANY = 1
    """All of them: for filters only."""
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(_AclNumber):
    """The effect of an entry."""

    UNKNOWN = 0
    ANY = 1
    """Both: for filters only."""
    DENY = 2
    ALLOW = 3


@dataclass(frozen=True, slots=True)
class Acl:
    """One entry of access control: `Acl(AclResource.TOPIC, "orders", "User:alice", AclOperation.READ)`.

    Args:
        resource: The type of resource.
        name: Its name, or the beginning of names if the pattern is PREFIXED.
        principal: Who it is about: `User:alice`; `User:*` is everybody.
        operation: What they may do, or may not.
        permission: ALLOW or DENY.
        host: The address that they connect from; `*` is any.
        pattern: LITERAL or PREFIXED.
    """

    resource: AclResource
    name: str
    principal: str
    operation: AclOperation
    permission: AclPermission = AclPermission.ALLOW
    host: str = "*"
    pattern: AclPattern = AclPattern.LITERAL

    def __str__(self) -> str:
        """The entry in one line: `User:alice allow read topic:orders`."""
        return _entry_text(self)


@dataclass(frozen=True, slots=True)
class AclFilter:
    """A choice of entries; by default all. Fields are those of `Acl`; None, or ANY, matches every value."""

    resource: AclResource = AclResource.ANY
    name: str | None = None
    principal: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY
    host: str | None = None
    pattern: AclPattern = AclPattern.ANY

    def __str__(self) -> str:
        """The choice in one line, as an entry; `any` stands for every value."""
        return _entry_text(self)


def _entry_text(entry: Acl | AclFilter) -> str:
    """Return an entry, or a choice of them, in the words of `odradek acl`."""
    kind = entry.resource.name.lower()
    resource = kind if entry.resource in (AclResource.CLUSTER, AclResource.ANY) else f"{kind}:{entry.name or 'any'}"
    words = [entry.principal or "any", entry.permission.name.lower(), entry.operation.name.lower(), resource]
    if entry.pattern not in (AclPattern.LITERAL, AclPattern.ANY):
        words.append(f"({entry.pattern.name.lower()})")
    if entry.host not in ("*", None):
        words.append(f"from {entry.host}")
    return " ".join(words)


class ScramPassword(NamedTuple):
    """A password that brokers have, without the password itself.

    Args:
        mechanism: `SCRAM-SHA-256` or `SCRAM-SHA-512`.
        iterations: Times that it was hashed.
    """

    mechanism: str
    iterations: int


class QuotaName(Enum):
    """A name that is none."""

    DEFAULT = 0
    """All that have no quota of their own."""
    ANY = 1
    """Every name, and DEFAULT: for filters only."""

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """The clients that a quota is for: `QuotaEntity(user="alice", client_id=QuotaName.DEFAULT)`. None: no matter which.

    Args:
        user: The name of a user.
        client_id: The name of a client.
        ip: The address of a client.
    """

    user: str | QuotaName | None = None
    client_id: str | QuotaName | None = None
    ip: str | QuotaName | None = None

    def __str__(self) -> str:
        """The clients in the words of `odradek quotas`: `user alice, client-id <default>`."""
        named = (("user", self.user), ("client-id", self.client_id), ("ip", self.ip))
        names = [(kind, f"<{name.name.lower()}>" if isinstance(name, QuotaName) else name) for kind, name in named]
        return ", ".join(f"{kind} {name}" for kind, name in names if name is not None) or "any client"


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A delegation token: log in with `token_id` as user and `password`, and `od.Security(delegation_token=True)`.

    Args:
        token_id: Its name.
        hmac: Its secret. Never shown.
        owner: Who it stands for: `User:alice`.
        requester: Who had it made; None if brokers do not say so (before 3.3).
        issued: When it was made; here and below: seconds since the epoch.
        expires: When it ends unless it is renewed.
        ends: When it ends in any case.
        renewers: Who may renew it, beside its owner; () in the answer to its creation.
    """

    token_id: str
    hmac: bytes = field(repr=False)
    owner: str
    requester: str | None
    issued: float
    expires: float
    ends: float
    renewers: tuple[str, ...] = ()


class AccessAdmin(Protocol):
    """Administration of access to one cluster. Every method may raise Unsupported, TransportError and DeadlineError."""

    async def describe_acls(self, which: AclFilter) -> Sequence[Acl]:
        """Return the entries that a filter matches, sorted."""
        ...

    async def create_acls(self, acls: Sequence[Acl]) -> Results[Acl, None]:
        """Create entries; those that exist stay."""
        ...

    async def delete_acls(self, filters: Sequence[AclFilter]) -> Results[AclFilter, Results[Acl, None]]:
        """Delete entries: filter -> the entries that it matched."""
        ...

    async def describe_users(self, users: Sequence[str] | None) -> Results[str, Sequence[ScramPassword]]:
        """Return what passwords users have; None: all users."""
        ...

    async def set_passwords(self, passwords: Mapping[str, str], mechanism: str, iterations: int) -> Results[str, None]:
        """Set the password of users for a mechanism."""
        ...

    async def delete_passwords(self, users: Sequence[str], mechanism: str) -> Results[str, None]:
        """Delete the password of users for a mechanism."""
        ...

    async def describe_quotas(self, which: QuotaEntity, *, strict: bool) -> Mapping[QuotaEntity, Mapping[str, float]]:
        """Return the quotas of the entities that match."""
        ...

    async def alter_quotas(
        self, changes: Mapping[QuotaEntity, Mapping[str, float | None]], *, validate_only: bool
    ) -> Results[QuotaEntity, None]:
        """Set quotas; None removes one."""
        ...

    async def create_token(
        self, owner: str | None, renewers: Sequence[str], lifetime_s: float | None
    ) -> DelegationToken:
        """Create a delegation token."""
        ...

    async def renew_token(self, hmac: bytes, seconds: float | None) -> float:
        """Let a token end later; return when (seconds since the epoch)."""
        ...

    async def expire_token(self, hmac: bytes, seconds: float) -> float:
        """Let a token end earlier; return when (seconds since the epoch)."""
        ...

    async def describe_tokens(self, owners: Sequence[str] | None) -> Sequence[DelegationToken]:
        """Return the tokens of these owners that this client may see; None: all."""
        ...
