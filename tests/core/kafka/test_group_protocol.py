"""Choice of a member's protocol and assignors."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conformance.kafka.apis import APIS

from odradek.core.interfaces import Subscription
from odradek.core.kafka.group_protocol import GroupProtocol, assignors_of, falls_back, group_protocol
from odradek.core.kafka.member_states import MemberSettings
from odradek.core.kafka.versions import BrokerVersions, VersionRange
from odradek.errors import ConfigError, Unsupported
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatResponse,
)

EVERYTHING = {key: VersionRange(*api.versions) for key, api in APIS.items()}
NEW = BrokerVersions(EVERYTHING, {"group.version": 1})
SWITCHED_OFF = BrokerVersions(EVERYTHING)
PREVIEW = BrokerVersions({**EVERYTHING, ConsumerGroupHeartbeatRequest.SPEC.key: VersionRange(0, 0)})
OLD = BrokerVersions.of_release("0.9.0")
SETTINGS = MemberSettings("g", session_timeout_s=30.0)


def choose(versions: BrokerVersions, **fields: Any) -> GroupProtocol:
    return group_protocol(Subscription("g", {"t": 1}, **fields), SETTINGS, versions)


@pytest.mark.parametrize(
    ("versions", "fields", "protocol"),
    [
        (NEW, {}, GroupProtocol.CONSUMER),
        (NEW, {"consumer_id": "one"}, GroupProtocol.CONSUMER),
        (NEW, {"assignors": ["range"]}, GroupProtocol.CLASSIC),
        (NEW, {"group_protocol": "classic"}, GroupProtocol.CLASSIC),
        (NEW, {"group_protocol": "consumer"}, GroupProtocol.CONSUMER),
        (SWITCHED_OFF, {}, GroupProtocol.CLASSIC),
        (SWITCHED_OFF, {"group_protocol": "consumer"}, GroupProtocol.CONSUMER),
        (PREVIEW, {}, GroupProtocol.CLASSIC),
        (OLD, {}, GroupProtocol.CLASSIC),
    ],
)
def test_brokers_assign_where_they_can_unless_the_subscription_says_otherwise(
    versions: BrokerVersions, fields: dict[str, Any], protocol: GroupProtocol
) -> None:
    assert choose(versions, **fields) is protocol


@pytest.mark.parametrize(
    ("versions", "fields", "error", "text"),
    [
        (BrokerVersions.of_release("0.8.2"), {}, Unsupported, r"Kafka 0\.9: .* use a reader, .* its `group`"),
        (OLD, {"consumer_id": "one"}, Unsupported, r"Kafka 2\.3"),
        (OLD, {"revoke_within": 30.0}, ConfigError, "revoke_within=30 .* session timeout, 30 s"),
        (PREVIEW, {"group_protocol": "consumer"}, Unsupported, r"Kafka 4\.0, with group\.version 1"),
        (NEW, {"group_protocol": "consumer", "assignors": ["range"]}, ConfigError, "assignors have no effect"),
    ],
)
def test_impossible_subscriptions_are_refused(
    versions: BrokerVersions, fields: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        choose(versions, **fields)


def test_assignors_have_the_names_of_the_protocol() -> None:
    assert [assignor.name for assignor in assignors_of(["sticky", "range"])] == ["sticky", "range"]
    assert len(assignors_of(None)) == 4
    with pytest.raises(ConfigError, match="'best' is none of range"):
        assignors_of(["range", "best"])


def test_only_a_group_that_cannot_be_joined_leads_back_to_the_classic_protocol() -> None:
    assert falls_back(ConsumerGroupHeartbeatResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND))
    assert falls_back(ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION))
    assert falls_back(ConsumerGroupHeartbeatResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION))
    assert not falls_back(ConsumerGroupHeartbeatResponse(error_code=ErrorCode.FENCED_MEMBER_EPOCH))
    assert not falls_back(ConsumerGroupHeartbeatResponse())
    assert not falls_back(HeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION))
