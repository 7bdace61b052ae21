"""Checks of a subscription against what the brokers of a cluster can do."""

from __future__ import annotations

from odradek.core.interfaces import Subscription
from odradek.core.kafka.member_states import MemberSettings
from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import ConfigError, Unsupported

__all__ = ["check_subscription"]


def check_subscription(subscription: Subscription, settings: MemberSettings, versions: BrokerVersions) -> None:
    """Check that brokers can do what a subscription needs.

    Raises:
        Unsupported: Brokers before 0.9 have no groups; before 2.3 no static members.
        ConfigError: Brokers before 0.10.1 would remove a member that takes its `revoke_within`.
    """
    if not versions.has_groups:
        raise Unsupported(
            "a consumer group",
            "Kafka 0.9: with older brokers use a reader, and store positions by `driver.offsets(group)` (0.8.1)",
        )
    if subscription.consumer_id is not None and not versions.has_static_members:
        raise Unsupported("a fixed consumer id (a static member)", "Kafka 2.3")
    if not versions.has_rebalance_timeout and subscription.revoke_within >= settings.session_timeout_s:
        raise ConfigError(
            f"revoke_within={subscription.revoke_within:g}: brokers before 0.10.1 remove a member that takes longer to "
            f"give up its partitions than its session timeout, {settings.session_timeout_s:g} s: use less, or a longer "
            "Tuning.session_timeout"
        )
