"""Choice of the protocol of a group member, and of its assignors: by its subscription, and what the brokers have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from odradek.core.interfaces import Subscription
from odradek.core.kafka.assignors import (
    Assignor,
    CooperativeStickyAssignor,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
)
from odradek.core.kafka.member_states import NO_SUCH_GROUP, MemberSettings
from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import ConfigError, Unsupported
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.groups import ConsumerGroupHeartbeatResponse
from odradek.wire.kafka.schema import Response

__all__ = ["GroupProtocol", "assignors_of", "falls_back", "group_protocol"]


class GroupProtocol(Enum):
    """A protocol of consumer groups. Values as in `group.protocol` of Java's client."""

    CLASSIC = "classic"
    """One of the members assigns (0.9 and later)."""
    CONSUMER = "consumer"
    """The coordinator assigns (KIP-848, 4.0 and later)."""


ASSIGNORS: Mapping[str, type[Assignor]] = {
    assignor.name: assignor
    for assignor in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}
"""The assignors by their names in the protocol. A member that names none supports all of them, the first one preferred,
so that it can join the groups of all usual clients."""

_NOT_JOINABLE = NO_SUCH_GROUP | {ErrorCode.INVALID_REGULAR_EXPRESSION}


def group_protocol(subscription: Subscription, settings: MemberSettings, versions: BrokerVersions) -> GroupProtocol:
    """Return the protocol of a member: that of its subscription; else KIP-848 where brokers have it, unless the
    subscription names assignors, which only the classic protocol has.

    Raises:
        Unsupported: Brokers before 0.9 have no groups, before 2.3 no static members, before 4.0 no KIP-848.
        ConfigError: The protocol has no assignors, or brokers before 0.10.1 would remove a member that takes its
            `revoke_within`.
    """
    if not versions.has_groups:
        raise Unsupported(
            "a consumer group",
            "Kafka 0.9: with older brokers use a reader, which stores positions under the name of its `group` (0.8.1)",
        )
    if subscription.consumer_id is not None and not versions.has_static_members:
        raise Unsupported("a fixed consumer id (a static member)", "Kafka 2.3")
    if not versions.has_rebalance_timeout and subscription.revoke_within >= settings.session_timeout_s:
        raise ConfigError(
            f"revoke_within={subscription.revoke_within:g} (with callback_within for each callback): brokers before "
            "0.10.1 remove a member that takes longer to give up its partitions than its session timeout, "
            f"{settings.session_timeout_s:g} s: use less, or a longer Tuning.session_timeout"
        )
    if subscription.group_protocol is None:
        automatic = versions.has_consumer_protocol_on and subscription.assignors is None
        return GroupProtocol.CONSUMER if automatic else GroupProtocol.CLASSIC
    protocol = GroupProtocol(subscription.group_protocol)
    if protocol is GroupProtocol.CONSUMER:
        _check_consumer_protocol(subscription, versions)
    return protocol


def _check_consumer_protocol(subscription: Subscription, versions: BrokerVersions) -> None:
    if not versions.has_consumer_protocol:
        raise Unsupported('group_protocol="consumer"', "Kafka 4.0, with group.version 1 or later")
    if subscription.assignors is not None:
        raise ConfigError('assignors have no effect with group_protocol="consumer": there the brokers assign')


def assignors_of(names: Sequence[str] | None) -> list[Assignor]:
    """Return the assignors with these names; all of them for None. Raises ConfigError for an unknown name."""
    chosen = ASSIGNORS if names is None else names
    if unknown := [name for name in chosen if name not in ASSIGNORS]:
        raise ConfigError(f"assignors: {unknown[0]!r} is none of {', '.join(ASSIGNORS)}")
    return [ASSIGNORS[name]() for name in chosen]


def falls_back(response: Response) -> bool:
    """Return True if a member whose protocol was not chosen by the user has to join with the classic one instead:
    the group has classic members that cannot be joined by others, the protocol is switched off, or the coordinator
    cannot match the pattern of the subscription, as one that looks ahead (RE2)."""
    return isinstance(response, ConsumerGroupHeartbeatResponse) and response.error_code in _NOT_JOINABLE
