"""Members under KIP-848: what heartbeats say, and how a target is reached."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.core.kafka.consumer_group_member import ConsumerGroupMember, ConsumerGroupState
from odradek.core.kafka.group_effects import Assign, Effect, Fail, Lost, ResolveTopics, Revoke, Send
from odradek.core.kafka.member_states import MAX_UNKNOWN_ERRORS, MemberSettings
from odradek.core.kafka.transaction_requests import GroupMetadata
from odradek.errors import BrokerError, Fenced, LocalProtocolError, Unsupported
from odradek.types import TopicPartition
from odradek.wire.kafka.messages.common import TopicIdPartitions
from odradek.wire.kafka.messages.groups import (
    ConsumerGroupHeartbeatAssignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatResponse,
)
from odradek.wire.kafka.schema import Response

S = ConsumerGroupState
ID_T, ID_U = b"t" * 16, b"u" * 16
NAMES = {ID_T: "t", ID_U: "u"}


def tp(*numbers: int, topic: str = "t") -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, n) for n in numbers)


def target(*numbers: int, topic_id: bytes = ID_T, epoch: int = 1, **fields: Any) -> ConsumerGroupHeartbeatResponse:
    topics = (TopicIdPartitions(topic_id=topic_id, partitions=numbers),) if numbers else ()
    return beat(epoch, assignment=ConsumerGroupHeartbeatAssignment(topic_partitions=topics), **fields)


def beat(epoch: int = 1, **fields: Any) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(member_epoch=epoch, heartbeat_interval_ms=5000, **fields)


class Driver:
    """Runs a member against answers given by the test."""

    def __init__(self, member_id: str = "uuid", **fields: Any) -> None:
        settings = MemberSettings("g", instance_id=fields.pop("instance_id", None), rack=fields.pop("rack", None))
        self.member = ConsumerGroupMember(settings, member_id, frozenset({"t"}), **fields)
        self.member.resolved({ID_T: "t"})
        self.now = 0.0
        self.revokes: list[Revoke] = []

    def state(self) -> ConsumerGroupState:
        return self.member.state

    def poll(self) -> list[Effect]:
        effects = self.member.poll(self.now)
        self.revokes += [effect for effect in effects if isinstance(effect, Revoke)]
        return effects

    def revoked(self) -> None:
        """Report that what the last `Revoke` named is given up."""
        self.member.revoked(self.revokes[-1])

    def sent(self, kind: type[Any] = ConsumerGroupHeartbeatRequest) -> Any:
        (effect,) = self.poll()
        assert isinstance(effect, Send) and isinstance(effect.request, kind), effect
        return effect.request

    def expect(self, response: Response) -> ConsumerGroupHeartbeatRequest:
        request = self.sent()
        self.member.receive(response, self.now)
        assert isinstance(request, ConsumerGroupHeartbeatRequest)
        return request

    def coordinated(self) -> Driver:
        assert self.sent(FindCoordinatorRequest) == FindCoordinatorRequest(key="g")
        self.member.receive(FindCoordinatorResponse(node_id=7, host="b7", port=9092), self.now)
        return self

    def joined(self, *numbers: int) -> Driver:
        self.coordinated().expect(target(*numbers))
        if numbers:
            assign, send = self.poll()
            assert assign == Assign(tp(*numbers)) and isinstance(send, Send)
            self.member.receive(beat(), self.now)
        else:
            assert self.poll() == [Assign(tp())]
        return self


def test_joining_says_everything_with_epoch_0() -> None:
    driver = Driver(rack="r1", server_assignor="uniform", regex="t.*").coordinated()
    request = driver.sent()
    assert (request.group_id, request.member_id, request.member_epoch) == ("g", "uuid", 0)
    assert (request.rack_id, request.server_assignor, request.subscribed_topic_regex) == ("r1", "uniform", "t.*")
    assert (request.subscribed_topic_names, request.topic_partitions) == (("t",), ())
    assert request.rebalance_timeout_ms == 300_000


def test_without_a_regex_none_is_sent() -> None:
    assert Driver().coordinated().sent().subscribed_topic_regex is None


def test_an_assignment_is_taken_and_acknowledged_at_once() -> None:
    driver = Driver().coordinated()
    driver.expect(target(0, 2, epoch=4))
    assign, send = driver.poll()
    assert assign == Assign(tp(0, 2))
    assert isinstance(send, Send) and isinstance(send.request, ConsumerGroupHeartbeatRequest)
    assert send.request.topic_partitions == (TopicIdPartitions(topic_id=ID_T, partitions=(0, 2)),)
    assert (send.request.member_epoch, send.request.subscribed_topic_names) == (4, None)
    assert driver.member.fence == GroupMetadata("g", 4, "uuid", None)
    assert "uuid of g: STABLE, epoch 4, 2 partitions" in repr(driver.member)


def test_later_heartbeats_say_only_what_changed() -> None:
    driver = Driver().joined(0)
    assert driver.poll() == [] and driver.member.tick(0.0) == 5
    driver.now = 5
    request = driver.expect(beat())
    assert (request.member_epoch, request.rebalance_timeout_ms) == (1, -1)
    assert (request.topic_partitions, request.subscribed_topic_names, request.rack_id) == (None, None, None)


def test_partitions_that_stay_are_listed_once_whatever_their_number() -> None:
    driver = Driver().joined(*range(1000))
    before, owned = driver.member.heartbeat, driver.member.owned
    driver.now = 5
    driver.expect(beat())
    after = driver.member.heartbeat
    assert before is not None and after is not None and after.topic_partitions is before.topic_partitions
    assert driver.member.owned is owned and driver.poll() == []
    driver.now = 10
    driver.expect(target(*range(1000)))
    again = driver.member.owned
    driver.now = 15
    driver.expect(beat())
    assert driver.member.owned is again and again == owned and driver.poll() == []
    driver.now = 20
    driver.expect(target(*range(999), epoch=2))
    driver.poll()
    driver.revoked()
    assert driver.sent().topic_partitions == (TopicIdPartitions(topic_id=ID_T, partitions=tuple(range(999))),)


def test_a_topic_that_was_made_again_is_listed_with_its_new_id() -> None:
    driver = Driver().joined(0)
    driver.now = 5
    driver.expect(target(0, topic_id=ID_U, epoch=2))
    driver.member.resolved({ID_U: "t"})
    driver.now = 10
    driver.poll()
    heartbeat = driver.member.heartbeat
    assert heartbeat is not None
    assert heartbeat.topic_partitions == (TopicIdPartitions(topic_id=ID_U, partitions=(0,)),)


def test_a_server_that_gives_ids_is_heard() -> None:
    driver = Driver(member_id="").coordinated()
    assert driver.expect(target(member_id="given")).member_id == ""
    assert driver.member.member_id == "given"


def test_partitions_are_given_up_before_others_are_taken() -> None:
    driver = Driver().joined(0, 1)
    driver.now = 5
    driver.expect(target(1, 2, epoch=2))
    assert driver.poll() == [Revoke(tp(0))]
    assert driver.state() is S.REVOKING and driver.member.owned == tp(0, 1)
    driver.now = 10
    assert driver.expect(beat(2)).topic_partitions is None  # not given up yet, so not said
    driver.revoked()
    assign, send = driver.poll()
    assert assign == Assign(tp(2)) and isinstance(send, Send)
    assert isinstance(send.request, ConsumerGroupHeartbeatRequest)
    assert send.request.topic_partitions == (TopicIdPartitions(topic_id=ID_T, partitions=(1, 2)),)


def test_a_target_that_only_lacks_partitions_is_acknowledged_at_once() -> None:
    driver = Driver().joined(0, 1)
    driver.now = 5
    driver.expect(target(1, epoch=2))
    driver.poll()
    driver.revoked()
    assert driver.sent().topic_partitions == (TopicIdPartitions(topic_id=ID_T, partitions=(1,)),)


def test_a_target_that_changes_while_partitions_are_given_up_is_reached_behind_it() -> None:
    driver = Driver().joined(0, 1)
    driver.now = 5
    driver.expect(target(1, epoch=2))
    driver.poll()
    driver.now = 10
    driver.expect(target(3, epoch=3))
    driver.revoked()
    assert driver.member.owned == tp(1)
    revoke, send = driver.poll()
    assert revoke == Revoke(tp(1)) and isinstance(send, Send)
    driver.member.receive(beat(3), 10)
    driver.revoked()
    assert driver.poll()[0] == Assign(tp(3))


def test_unknown_topic_ids_are_resolved_first() -> None:
    driver = Driver().joined()
    driver.now = 5
    driver.expect(target(0, topic_id=ID_U, epoch=2))
    assert driver.poll() == [ResolveTopics(frozenset({ID_U}))]
    assert driver.state() is S.RESOLVING
    driver.member.resolved({})  # the metadata does not have it yet
    assert driver.poll() == []
    driver.now = 10
    driver.expect(beat(2))
    assert driver.poll() == [ResolveTopics(frozenset({ID_U}))]
    driver.member.resolved({ID_U: "u"})
    assert driver.poll()[0] == Assign(tp(0, topic="u"))


def test_a_member_that_is_given_only_what_was_deleted_has_joined_with_nothing() -> None:
    driver = Driver().coordinated()
    driver.expect(target(0, 1, topic_id=ID_U))
    assert driver.poll() == [ResolveTopics(frozenset({ID_U}))]
    driver.member.resolved({})
    assert driver.poll() == [Assign(tp())]
    driver.now = 5
    driver.expect(target(epoch=2))
    assert driver.poll() == []
    driver.now = 10
    driver.expect(target(0, epoch=3))
    assert driver.poll()[0] == Assign(tp(0))


def test_a_new_subscription_is_said_at_once() -> None:
    driver = Driver(regex="t.*").joined(0)
    driver.member.subscribe(frozenset({"t"}), "t.*")
    assert driver.poll() == []
    driver.member.subscribe(frozenset({"t", "u"}))
    request = driver.sent()
    assert (request.subscribed_topic_names, request.subscribed_topic_regex) == (("t", "u"), "")


@pytest.mark.parametrize("code", [25, 110])
def test_a_fenced_member_loses_everything_and_joins_again_at_once(code: int) -> None:
    driver = Driver().joined(0)
    driver.now = 5
    if code == 110:
        driver.expect(beat(error_code=code))  # one without its partitions: it is not the last word
        assert driver.sent().topic_partitions is not None
        driver.member.receive(beat(error_code=code), driver.now)
    else:
        driver.expect(beat(error_code=code))
    lost, send = driver.poll()
    assert lost == Lost(tp(0)) and isinstance(send, Send)
    assert isinstance(send.request, ConsumerGroupHeartbeatRequest)
    assert (send.request.member_epoch, send.request.subscribed_topic_names) == (0, ("t",))
    assert send.request.topic_partitions == ()


def test_a_moved_coordinator_is_searched_and_everything_is_said_again() -> None:
    driver = Driver().joined(0)
    driver.now = 5
    driver.expect(beat(error_code=16))
    driver.now = 5.1
    driver.coordinated()
    assert driver.sent().subscribed_topic_names == ("t",)


def test_a_refused_first_heartbeat_waits_before_the_next() -> None:
    driver = Driver().coordinated()
    driver.expect(beat(error_code=25))
    assert driver.poll() == []
    driver.now = 0.1
    assert driver.sent().member_epoch == 0


def test_a_coordinator_that_is_not_there_is_searched_again_later() -> None:
    driver = Driver()
    driver.sent(FindCoordinatorRequest)
    driver.member.receive(FindCoordinatorResponse(error_code=15), 0.0)
    assert driver.poll() == [] and driver.member.tick(0.0) == pytest.approx(0.1)
    driver.now = 0.1
    driver.coordinated()


def test_a_coordinator_that_loads_is_asked_again_later() -> None:
    driver = Driver().joined(0)
    driver.now = 5
    driver.expect(beat(error_code=14))
    assert driver.poll() == []
    driver.now = 10
    assert driver.sent().subscribed_topic_names == ("t",)  # said again: whether it was heard is not known


def test_after_a_lost_connection_everything_is_said_again() -> None:
    driver = Driver().joined(0)
    driver.now = 5
    driver.sent()
    assert driver.member.tick(5) is None
    driver.member.connection_lost(5)
    driver.now = 6
    driver.coordinated()
    request = driver.sent()
    assert request.member_epoch == 1 and request.subscribed_topic_names == ("t",)
    assert request.topic_partitions == (TopicIdPartitions(topic_id=ID_T, partitions=(0,)),)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (82, Fenced),
        (111, Fenced),
        (112, BrokerError),
        (42, BrokerError),
        (30, BrokerError),
        (128, BrokerError),
    ],
)
def test_what_does_not_pass_stops_the_member(code: int, kind: type[Exception]) -> None:
    driver = Driver(instance_id="i").joined(0)
    driver.now = 5
    driver.expect(beat(error_code=code, error_message="because"))
    lost, fail = driver.poll()
    assert lost == Lost(tp(0)) and isinstance(fail, Fail) and isinstance(fail.error, kind)
    assert "because" in str(fail.error)
    driver.now = 100
    assert driver.poll() == [] and driver.member.tick(100) is None
    driver.member.leave()
    assert driver.state() is S.LEFT


@pytest.mark.parametrize(("code", "kind"), [(35, Unsupported), (69, BrokerError), (23, BrokerError)])
def test_a_group_that_is_gone_is_joined_again_before_the_member_stops(code: int, kind: type[Exception]) -> None:
    driver = Driver().joined(0)
    driver.now = 5
    driver.expect(beat(error_code=code))
    lost, join = driver.poll()
    assert lost == Lost(tp(0)) and driver.state() is S.JOINING
    assert isinstance(join, Send) and isinstance(join.request, ConsumerGroupHeartbeatRequest)
    assert join.request.member_epoch == 0
    driver.member.receive(beat(error_code=code), driver.now)
    (fail,) = driver.poll()
    assert isinstance(fail, Fail) and isinstance(fail.error, kind)


@pytest.mark.parametrize(("instance", "epoch"), [(None, -1), ("i", -2)])
def test_leaving_says_for_how_long(instance: str | None, epoch: int) -> None:
    driver = Driver(instance_id=instance).joined(0)
    driver.member.leave()
    assert driver.expect(beat(epoch)).member_epoch == epoch
    assert driver.state() is S.LEFT and driver.poll() == []


def test_a_member_that_never_joined_has_nothing_to_leave() -> None:
    driver = Driver().coordinated()
    driver.member.leave()
    assert driver.state() is S.LEFT


def test_a_member_whose_first_heartbeat_is_out_leaves_once_it_is_answered() -> None:
    driver = Driver().coordinated()
    driver.sent()
    driver.member.leave()
    assert driver.state() is S.LEAVING and driver.poll() == []
    driver.member.receive(target(0), 0.0)
    assert driver.expect(beat(-1)).member_epoch == -1
    assert driver.state() is S.LEFT


def test_a_member_whose_first_heartbeat_was_lost_leaves_because_it_may_have_joined() -> None:
    """The coordinator would keep partitions for it until its session has timed out."""
    driver = Driver().coordinated()
    driver.sent()
    driver.member.connection_lost(0)
    driver.member.leave()
    driver.now = 1
    driver.coordinated()
    assert driver.expect(beat(error_code=25)).member_epoch == -1
    assert driver.state() is S.LEFT


def test_a_static_member_waits_until_its_predecessor_is_gone() -> None:
    driver = Driver(instance_id="i").coordinated()
    driver.expect(beat(error_code=111, error_message="still there"))
    assert driver.poll() == []
    driver.now = 0.1
    assert driver.expect(target(0)).member_epoch == 0
    assert driver.state() is S.STABLE


def test_leaving_waits_for_the_answer_that_is_out_but_not_for_a_second_one() -> None:
    driver = Driver().joined(0)
    driver.now = 5
    driver.sent()
    driver.member.leave()
    driver.member.receive(target(0, 1), 5)
    assert driver.sent().member_epoch == -1
    driver.member.connection_lost(5)
    assert driver.state() is S.LEFT


def test_leaving_after_the_connection_broke_needs_the_coordinator_again() -> None:
    driver = Driver().joined(0)
    driver.now = 5
    driver.sent()
    driver.member.leave()
    driver.member.connection_lost(5)
    driver.now = 6
    driver.coordinated()
    assert driver.sent().member_epoch == -1


@pytest.mark.parametrize("answers", [False, True])
def test_leaving_while_the_coordinator_moves_looks_for_it_once(answers: bool) -> None:
    driver = Driver().joined(0)
    driver.now = 5
    driver.expect(beat(error_code=16))
    driver.member.leave()
    driver.now = 6
    if answers:
        driver.coordinated()
        assert driver.expect(beat(-1)).member_epoch == -1
    else:
        driver.sent(FindCoordinatorRequest)
        driver.member.connection_lost(6)
    assert driver.state() is S.LEFT


@pytest.mark.parametrize("leaves", [False, True])
def test_leaving_is_told_to_the_new_coordinator_when_the_old_one_has_moved(leaves: bool) -> None:
    driver = Driver().joined(0)
    driver.now = 5
    if leaves:
        driver.member.leave()
    assert driver.sent().member_epoch == (-1 if leaves else 1)
    if not leaves:
        driver.member.leave()
    driver.member.receive(beat(error_code=16), 5)
    driver.now = 6
    driver.coordinated()
    assert driver.expect(beat(-1)).member_epoch == -1
    assert driver.state() is S.LEFT


def test_without_a_coordinator_there_is_nothing_to_leave() -> None:
    driver = Driver().joined(0)
    driver.now = 5
    driver.sent()
    driver.member.leave()
    driver.member.connection_lost(5)
    driver.now = 6
    driver.sent(FindCoordinatorRequest)
    driver.member.receive(FindCoordinatorResponse(error_code=15), 6)
    assert driver.state() is S.LEFT


def test_what_comes_late_changes_nothing() -> None:
    driver = Driver(instance_id="i")
    driver.sent(FindCoordinatorRequest)
    driver.member.leave()
    driver.member.receive(FindCoordinatorResponse(node_id=7), 0.0)
    driver.member.revoked(Revoke(tp(0)))
    assert driver.state() is S.LEFT and driver.poll() == []


def test_answers_that_fit_nothing_are_refused() -> None:
    driver = Driver()
    with pytest.raises(LocalProtocolError, match="no request is in flight"):
        driver.member.receive(beat(), 0.0)
    driver.poll()
    with pytest.raises(LocalProtocolError, match="HeartbeatResponse is not a response to FindCoordinatorRequest"):
        driver.member.receive(HeartbeatResponse(), 0.0)


def test_a_thread_that_kept_the_member_alive_hands_over_its_epoch_and_all_is_sent_again() -> None:
    driver = Driver().joined(0)
    request = driver.member.heartbeat
    assert request is not None and (request.member_epoch, request.subscribed_topic_names) == (1, ("t",))
    assert driver.poll() == []
    driver.member.heartbeat_answered(request, target(0, 1, epoch=3))
    again = driver.expect(target(0, 1, epoch=3))
    assert (again.member_epoch, again.subscribed_topic_names, len(again.topic_partitions or ())) == (3, ("t",), 1)
    assert driver.poll()[0] == Assign(tp(1))


def test_an_answer_from_before_the_thread_took_over_does_not_bring_the_old_epoch_back() -> None:
    driver = Driver().joined(0)
    request = driver.member.heartbeat
    assert request is not None
    driver.now += 5
    driver.sent()
    driver.member.heartbeat_answered(request, beat(4))
    driver.member.receive(beat(1), driver.now)
    assert driver.sent().member_epoch == 4


def test_an_unknown_error_of_the_server_is_passed_over_ten_times_in_a_row() -> None:
    driver = Driver().joined(0)
    for _ in range(2):
        for _ in range(MAX_UNKNOWN_ERRORS):
            driver.now += 5
            driver.expect(beat(error_code=-1))
            assert driver.state() is S.STABLE and driver.member.owned == tp(0)
        driver.now += 5
        driver.expect(target(0))
    for _ in range(MAX_UNKNOWN_ERRORS + 1):
        driver.now += 5
        driver.expect(beat(error_code=-1))
    lost, fail = driver.poll()
    assert lost == Lost(tp(0)) and isinstance(fail, Fail) and "UNKNOWN_SERVER_ERROR" in str(fail.error)


def test_a_target_from_before_the_thread_took_over_is_not_taken() -> None:
    driver = Driver().joined(0)
    request = driver.member.heartbeat
    assert request is not None
    driver.now += 5
    driver.sent()
    driver.member.heartbeat_answered(request, None)  # it said that only partition 0 is owned: 1 may be gone again
    driver.member.receive(target(0, 1), driver.now)
    again = driver.expect(target(0))
    assert (again.member_epoch, again.topic_partitions) == (1, request.topic_partitions)
    assert driver.member.owned == tp(0)


@pytest.mark.parametrize("known", [None, 4])
def test_a_refusal_of_a_heartbeat_that_another_one_overtook_loses_nothing(known: int | None) -> None:
    driver = Driver().joined(0)
    request = driver.member.heartbeat
    assert request is not None
    driver.now += 5
    driver.sent()
    driver.member.heartbeat_answered(request, None if known is None else beat(known))
    driver.member.receive(beat(error_code=110), driver.now)
    again = driver.expect(target(0, epoch=4))
    assert (again.member_epoch, again.topic_partitions) == (known or 1, request.topic_partitions)
    assert driver.member.owned == tp(0) and driver.state() is S.STABLE


def test_a_heartbeat_with_everything_and_an_older_epoch_loses_nothing_when_it_is_refused() -> None:
    driver = Driver().joined(0)
    request = driver.member.heartbeat
    assert request is not None
    driver.member.heartbeat_answered(request, beat(2))
    assert driver.sent().member_epoch == 2  # it waits in the loop while the thread sends on
    driver.member.heartbeat_answered(request, beat(4))
    driver.member.receive(beat(error_code=110), driver.now)
    assert driver.expect(target(0, epoch=4)).member_epoch == 4
    assert driver.member.owned == tp(0)


def test_a_member_without_an_epoch_is_not_kept_alive() -> None:
    driver = Driver()
    assert driver.member.heartbeat is None
    driver.member.heartbeat_answered(ConsumerGroupHeartbeatRequest(), beat(9))
    assert driver.member.epoch == 0
