"""Members of share groups: heartbeats, assignments by id, and what ends a member."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.core.kafka.group_effects import Assign, Effect, Fail, Lost, ResolveTopics, Revoke, Send
from odradek.core.kafka.member_base import MAX_REFUSED_LEAVES
from odradek.core.kafka.member_states import MAX_UNKNOWN_ERRORS, MemberSettings
from odradek.core.kafka.share_member import ShareMember, ShareMemberState
from odradek.errors import BrokerError, LocalProtocolError, Unsupported
from odradek.types import TopicPartition
from odradek.wire.kafka.messages.common import TopicIdPartitions
from odradek.wire.kafka.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse, HeartbeatResponse
from odradek.wire.kafka.messages.share_groups import (
    ShareGroupHeartbeatAssignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from odradek.wire.kafka.schema import Response

S = ShareMemberState
ID_T, ID_U = b"t" * 16, b"u" * 16


def tp(*numbers: int, topic: str = "t") -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, number) for number in numbers)


def beat(epoch: int = 1, **fields: Any) -> ShareGroupHeartbeatResponse:
    return ShareGroupHeartbeatResponse(member_epoch=epoch, heartbeat_interval_ms=5000, **fields)


def target(*numbers: int, topic_id: bytes = ID_T, epoch: int = 1) -> ShareGroupHeartbeatResponse:
    topics = (TopicIdPartitions(topic_id=topic_id, partitions=numbers),) if numbers else ()
    return beat(epoch, assignment=ShareGroupHeartbeatAssignment(topic_partitions=topics))


class Driver:
    """Runs a member against answers given by the test."""

    def __init__(self) -> None:
        self.member = ShareMember(MemberSettings("g", rack="r1"), "id", frozenset({"t"}))
        self.member.resolved({ID_T: "t"})
        self.now = 0.0

    def poll(self) -> list[Effect]:
        return self.member.poll(self.now)

    def sent(self) -> Any:
        (send,) = [effect for effect in self.poll() if isinstance(effect, Send)]
        return send.request

    def answer(self, response: Response) -> list[Effect]:
        """Answer the request in flight; return what follows but for requests."""
        self.member.receive(response, self.now)
        return [effect for effect in self.member.poll(self.now) if not isinstance(effect, Send)]

    def find(self) -> None:
        assert isinstance(self.sent(), FindCoordinatorRequest)
        self.member.receive(FindCoordinatorResponse(node_id=1, host="h", port=9), self.now)

    def join(self, *numbers: int) -> list[Effect]:
        self.find()
        assert self.sent().member_epoch == 0
        return self.answer(target(*numbers))


def test_joining_names_topics_and_rack_and_later_heartbeats_do_not() -> None:
    driver = Driver()
    driver.find()
    join = driver.sent()
    assert join == ShareGroupHeartbeatRequest(
        group_id="g", member_id="id", member_epoch=0, rack_id="r1", subscribed_topic_names=("t",)
    )
    assert driver.answer(target(0, 1)) == [Assign(tp(0, 1))]
    assert (driver.member.state, driver.member.topic_ids) == (S.STABLE, {"t": ID_T})
    assert driver.poll() == [] and driver.member.tick(driver.now) == 5
    driver.now = 5
    later = driver.sent()
    assert (later.member_epoch, later.rack_id, later.subscribed_topic_names) == (1, None, None)


def test_an_assignment_replaces_the_one_before_and_the_same_one_is_no_news() -> None:
    driver = Driver()
    driver.join(0, 1)
    for response, expected in [
        (target(1, 2), [Assign(tp(1, 2))]),
        (target(2, 1), []),
        (beat(3), []),
        (target(), [Assign(tp())]),
    ]:
        driver.now += 5
        driver.sent()
        assert driver.answer(response) == expected
    assert driver.member.epoch == 1


def test_joining_a_group_that_has_nothing_for_it_is_an_assignment_all_the_same() -> None:
    driver = Driver()
    driver.find()
    driver.sent()
    assert driver.answer(beat()) == [Assign(tp())]


def test_topics_without_a_known_name_are_looked_up_and_then_assigned() -> None:
    driver = Driver()
    driver.find()
    driver.sent()
    assert driver.answer(target(0, topic_id=ID_U)) == [ResolveTopics(frozenset({ID_U})), Assign(tp())]
    driver.now = 5
    driver.sent()
    assert driver.answer(beat()) == [], "one question at a time"
    driver.member.resolved({})
    driver.now = 10
    driver.sent()
    assert driver.answer(beat()) == [ResolveTopics(frozenset({ID_U}))], "asked again"
    driver.member.resolved({ID_U: "u"})
    assert driver.poll() == [Assign(tp(0, topic="u"))]


@pytest.mark.parametrize("code", [110, 25, 69])
def test_a_fenced_member_joins_again_and_keeps_what_it_reads_until_the_next_assignment(code: int) -> None:
    driver = Driver()
    driver.join(0)
    driver.now = 5
    driver.sent()
    driver.member.receive(beat(error_code=code), driver.now)
    assert driver.member.owned == tp(0)
    again = driver.sent()
    assert (again.member_epoch, again.subscribed_topic_names) == (0, ("t",))
    assert driver.answer(target(0)) == [Assign(tp(0))]


def test_a_heartbeat_that_joins_in_vain_backs_off() -> None:
    driver = Driver()
    driver.find()
    driver.sent()
    driver.member.receive(beat(error_code=25), driver.now, backoff_s=2.0)
    assert driver.poll() == [] and driver.member.tick(0.0) == 2.0


@pytest.mark.parametrize("code", [15, 16])
def test_another_coordinator_is_looked_up(code: int) -> None:
    driver = Driver()
    driver.join(0)
    driver.now = 5
    driver.sent()
    driver.answer(beat(error_code=code))
    driver.now = 6
    driver.find()
    assert driver.sent().member_epoch == 1, "it is still in the group"


def test_errors_of_finding_the_coordinator_are_retried_or_end_the_member() -> None:
    driver = Driver()
    driver.sent()
    driver.answer(FindCoordinatorResponse(error_code=15))
    driver.now = 1
    driver.sent()
    (fail,) = driver.answer(FindCoordinatorResponse(error_code=30, error_message="no rights"))
    assert isinstance(fail, Fail) and isinstance(fail.error, BrokerError) and "no rights" in str(fail.error)
    assert driver.member.has_ended


def test_a_lost_connection_is_followed_by_a_heartbeat_with_everything() -> None:
    driver = Driver()
    driver.join(0)
    driver.now = 5
    driver.sent()
    driver.member.connection_lost(driver.now)
    driver.now = 6
    driver.find()
    again = driver.sent()
    assert (again.member_epoch, again.subscribed_topic_names) == (1, ("t",))


def test_a_cluster_without_the_feature_is_named() -> None:
    driver = Driver()
    driver.find()
    driver.sent()
    (fail,) = driver.answer(beat(error_code=35))
    assert isinstance(fail, Fail) and isinstance(fail.error, Unsupported) and "share.version 1" in str(fail.error)


def test_a_group_of_another_kind_is_not_joined() -> None:
    driver = Driver()
    driver.find()
    driver.sent()
    (fail,) = driver.answer(beat(error_code=69, error_message="not a share group"))
    assert isinstance(fail, Fail) and "not a share group" in str(fail.error)


def test_unknown_errors_end_the_member_only_after_many_in_a_row() -> None:
    driver = Driver()
    driver.join(0)
    for _ in range(MAX_UNKNOWN_ERRORS):
        driver.now += 10
        driver.sent()
        assert driver.answer(beat(error_code=-1)) == []
    driver.now += 10
    driver.sent()
    lost, fail = driver.answer(beat(error_code=-1, error_message="defect"))
    assert lost == Lost(tp(0)) and isinstance(fail, Fail) and "defect" in str(fail.error)


def test_leaving_says_so_and_ends() -> None:
    driver = Driver()
    driver.join(0)
    driver.member.leave()
    leave = driver.sent()
    assert (leave.member_epoch, leave.subscribed_topic_names) == (-1, None)
    driver.answer(beat(-1))
    assert driver.member.state is S.LEFT and driver.poll() == [] and driver.member.tick(0) is None


def test_leaving_before_joining_ends_at_once() -> None:
    driver = Driver()
    driver.member.leave()
    assert driver.member.state is S.LEFT


def test_leaving_while_a_heartbeat_joins_waits_for_its_answer() -> None:
    driver = Driver()
    driver.find()
    driver.sent()
    driver.member.leave()
    assert driver.member.is_leaving
    driver.member.receive(target(0), driver.now)
    assert driver.sent().member_epoch == -1
    driver.answer(beat(error_code=25))
    assert driver.member.state is S.LEFT


@pytest.mark.parametrize("answers", [False, True])
def test_leaving_while_the_coordinator_moves_looks_for_it_once(answers: bool) -> None:
    driver = Driver()
    driver.join(0)
    driver.now = 5
    driver.sent()
    driver.answer(beat(error_code=16))
    driver.member.leave()
    driver.now = 6
    if answers:
        driver.find()
        assert driver.sent().member_epoch == -1
        driver.answer(beat(-1))
    else:
        assert isinstance(driver.sent(), FindCoordinatorRequest)
        driver.member.connection_lost(driver.now)
    assert driver.member.state is S.LEFT


@pytest.mark.parametrize("leaves", [False, True])
def test_leaving_is_told_to_the_new_coordinator_when_the_old_one_has_moved(leaves: bool) -> None:
    driver = Driver()
    driver.join(0)
    driver.now = 5
    if leaves:
        driver.member.leave()
    assert driver.sent().member_epoch == (-1 if leaves else 1)
    if not leaves:
        driver.member.leave()
    driver.answer(beat(error_code=16))
    driver.now = 6
    driver.find()
    assert driver.sent().member_epoch == -1
    driver.answer(beat(-1))
    assert driver.member.state is S.LEFT


def test_coordinators_that_always_send_a_leaving_member_on_end_its_attempts() -> None:
    driver = Driver()
    driver.join(0)
    driver.now = 5
    driver.member.leave()
    leaves = 0
    while driver.member.is_leaving:
        leaves += 1
        assert driver.sent().member_epoch == -1
        driver.answer(beat(error_code=16))
        if driver.member.is_leaving:
            driver.now += 1
            driver.find()
    assert leaves == MAX_REFUSED_LEAVES + 1


@pytest.mark.parametrize("leaves", [False, True])
def test_a_member_whose_first_heartbeat_is_lost_leaves_because_it_may_have_joined(leaves: bool) -> None:
    """The coordinator would keep partitions for it until its session has timed out."""
    driver = Driver()
    driver.find()
    driver.sent()
    if leaves:
        driver.member.leave()
    driver.member.connection_lost(driver.now)
    if not leaves:
        driver.member.leave()
    driver.now = 1
    driver.find()
    assert driver.sent().member_epoch == -1
    driver.answer(beat(error_code=25))
    assert driver.member.state is S.LEFT


@pytest.mark.parametrize("step", ["find", "leave", "refused"])
def test_a_member_that_cannot_reach_its_coordinator_any_more_has_left(step: str) -> None:
    driver = Driver()
    if step == "leave":
        driver.join(0)
        driver.member.leave()
        driver.sent()
    else:
        driver.sent()
        driver.member.leave()
    if step == "refused":
        driver.answer(FindCoordinatorResponse(error_code=15))
    else:
        driver.member.connection_lost(driver.now)
    assert driver.member.state is S.LEFT


def test_a_failed_member_can_be_left() -> None:
    driver = Driver()
    driver.find()
    driver.sent()
    driver.answer(beat(error_code=29))
    driver.member.leave()
    assert driver.member.state is S.LEFT


def test_calls_that_do_not_belong_to_share_groups_are_errors() -> None:
    driver = Driver()
    driver.find()
    driver.sent()
    with pytest.raises(LocalProtocolError, match="not a response"):
        driver.member.receive(HeartbeatResponse(), driver.now)
    with pytest.raises(LocalProtocolError, match="revokes nothing"):
        driver.member._after_revoke(Revoke(tp(0)))
    assert repr(driver.member) == "<ShareMember id of g: JOINING, epoch 0, 0 partitions>"
