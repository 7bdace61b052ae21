"""Members of classic groups: the whole way in and out, and every error on it, on a clock that stands still."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from odradek.core.kafka.assignors import (
    Assignor,
    CooperativeStickyAssignor,
    RangeAssignor,
    StickyAssignor,
    without_racks,
)
from odradek.core.kafka.group_effects import (
    Assign,
    Compare,
    Compute,
    Effect,
    Fail,
    GroupCoordinator,
    Lost,
    Revoke,
    Send,
)
from odradek.core.kafka.member import Member
from odradek.core.kafka.member_base import MAX_REFUSED_LEAVES
from odradek.core.kafka.member_states import MAX_UNKNOWN_ERRORS, ClassicMemberState, MemberSettings
from odradek.core.kafka.subscription import decode_assignment, decode_member, encode_assignment, encode_subscription
from odradek.core.kafka.transaction_requests import GroupMetadata
from odradek.errors import BrokerError, ConfigError, Fenced, LocalProtocolError, RemoteProtocolError
from odradek.types import TopicPartition
from odradek.wire.kafka.embedded import ConsumerProtocolSubscription, decode_versioned
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from odradek.wire.kafka.schema import Response

S, E = ClassicMemberState, ErrorCode
TOPICS = without_racks({"t": 4, "u": 1})


def tp(*numbers: int, topic: str = "t") -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, n) for n in numbers)


class Driver:
    """Runs a member against answers given by the test."""

    def __init__(self, *assignors: Assignor, **settings: Any) -> None:
        self.member = Member(MemberSettings("g", **settings), assignors or (RangeAssignor(),), frozenset({"t"}))
        self.now = 0.0
        self.revokes: list[Revoke] = []
        self.effects: list[Effect] = []

    def state(self) -> ClassicMemberState:
        return self.member.state

    def poll(self) -> list[Effect]:
        effects = self.member.poll(self.now)
        self.revokes += [effect for effect in effects if isinstance(effect, Revoke)]
        return effects

    def revoked(self) -> None:
        """Report that what the last `Revoke` named is given up."""
        self.member.revoked(self.revokes[-1])

    def sent(self, kind: type[Any]) -> Any:
        """The next effects: none but one request of this kind."""
        (effect,) = self.poll()
        assert isinstance(effect, Send) and isinstance(effect.request, kind), effect
        return effect.request

    def expect(self, kind: type[Any], response: Response) -> Any:
        request = self.sent(kind)
        self.answer(response)
        return request

    def answer(self, response: Response) -> None:
        self.member.receive(response, self.now)

    def coordinated(self) -> Driver:
        self.expect(FindCoordinatorRequest, FindCoordinatorResponse(node_id=7, host="b7", port=9092))
        return self

    def join(self, generation: int = 1, *, leader: str = "other", protocol: str | None = None) -> JoinGroupRequest:
        name = protocol or next(iter(self.member._assignors))
        request = self.expect(
            JoinGroupRequest,
            JoinGroupResponse(generation_id=generation, protocol_name=name, leader=leader, member_id="me"),
        )
        assert isinstance(request, JoinGroupRequest)
        return request

    def sync(self, *numbers: int) -> SyncGroupRequest:
        request = self.expect(SyncGroupRequest, SyncGroupResponse(assignment=encode_assignment(sorted(tp(*numbers)))))
        assert isinstance(request, SyncGroupRequest)
        return request

    def stable(self, *numbers: int) -> Driver:
        self.coordinated().join()
        self.sync(*numbers)
        compare = [] if self.member.settings.instance_id is None else [Compare(frozenset({"t"}))]
        assert self.poll() == [Assign(tp(*numbers)), *compare]
        return self

    def heartbeat(self, code: int = 0) -> HeartbeatRequest:
        self.now += 3
        request = self.expect(HeartbeatRequest, HeartbeatResponse(error_code=code))
        assert isinstance(request, HeartbeatRequest)
        return request


def subscription(request: JoinGroupRequest, index: int = 0) -> ConsumerProtocolSubscription:
    return decode_versioned(ConsumerProtocolSubscription, request.protocols[index].metadata)[0]


def owned(request: JoinGroupRequest) -> frozenset[TopicPartition]:
    topics = subscription(request).owned_partitions
    return frozenset(TopicPartition(t.topic, n) for t in topics for n in t.partitions)


# ---- the way in ----


def test_a_follower_joins_syncs_and_gets_its_partitions() -> None:
    driver = Driver(rack="r1")
    assert driver.expect(
        FindCoordinatorRequest, FindCoordinatorResponse(node_id=7, host="b7", port=9092)
    ) == FindCoordinatorRequest(key="g")
    (send,) = driver.poll()
    assert isinstance(send, Send) and send.node == GroupCoordinator(7, "b7", 9092) and send.timeout_s == 305
    request = send.request
    assert isinstance(request, JoinGroupRequest)
    assert (request.group_id, request.member_id, request.protocol_type) == ("g", "", "consumer")
    assert (request.session_timeout_ms, request.rebalance_timeout_ms) == (45_000, 300_000)
    assert [p.name for p in request.protocols] == ["range"]
    assert subscription(request).topics == ("t",) and subscription(request).rack_id == "r1"
    assert driver.poll() == []  # one request is out
    driver.answer(JoinGroupResponse(generation_id=3, protocol_name="range", leader="other", member_id="me"))
    sync = driver.sync(0, 2)
    assert (sync.generation_id, sync.member_id, sync.protocol_name, sync.assignments) == (3, "me", "range", ())
    assert driver.poll() == [Assign(tp(0, 2))]
    assert driver.state() is S.STABLE and driver.member.owned == tp(0, 2)
    assert driver.member.fence == GroupMetadata("g", 3, "me", None)
    assert "me of g: STABLE, generation 3, 2 partitions" in repr(driver.member)


def test_a_leader_asks_for_metadata_and_shares_out() -> None:
    driver = Driver().coordinated()
    range_ = RangeAssignor()
    members = tuple(
        JoinGroupResponseMember(
            member_id=name,
            metadata=encode_subscription(range_, topics, owned=(), previous=(), generation=-1, rack=None),
        )
        for name, topics in (("me", ["t"]), ("you", ["t", "u"]))
    )
    driver.expect(
        JoinGroupRequest,
        JoinGroupResponse(generation_id=1, protocol_name="range", leader="me", member_id="me", members=members),
    )
    assert driver.poll() == [Compute(frozenset({"t", "u"}))]
    driver.member.assign(TOPICS)
    sync = driver.sync(0, 1)
    shares = {a.member_id: decode_assignment(a.assignment) for a in sync.assignments}
    assert shares == {"me": sorted(tp(0, 1)), "you": [*sorted(tp(2, 3)), *tp(0, topic="u")]}
    assert driver.poll() == [Assign(tp(0, 1))]
    driver.member.metadata_changed(TOPICS)
    assert driver.poll() == []
    driver.member.metadata_changed(without_racks({"t": 5, "u": 1}))
    assert driver.poll() == [Revoke(tp(0, 1))]


def test_partitions_that_appear_while_the_assignment_is_handed_out_are_joined_for() -> None:
    driver = Driver(CooperativeStickyAssignor()).coordinated()
    mine = encode_subscription(CooperativeStickyAssignor(), ["t"], owned=(), previous=(), generation=-1, rack=None)
    response = JoinGroupResponse(
        generation_id=1,
        protocol_name="cooperative-sticky",
        leader="me",
        member_id="me",
        members=(JoinGroupResponseMember(member_id="me", metadata=mine),),
    )
    driver.expect(JoinGroupRequest, response)
    driver.poll()
    driver.member.metadata_changed(without_racks({"t": 3}))
    driver.member.assign(without_racks({"t": 4}))
    driver.sent(SyncGroupRequest)
    driver.member.metadata_changed(without_racks({"t": 5}))
    driver.answer(SyncGroupResponse(assignment=encode_assignment(sorted(tp(0, 1, 2, 3)))))
    assign, join = driver.poll()
    assert assign == Assign(tp(0, 1, 2, 3))
    assert isinstance(join, Send) and isinstance(join.request, JoinGroupRequest)
    driver.member.metadata_changed(without_racks({"t": 5}))
    driver.answer(response)
    driver.poll()
    driver.member.assign(without_racks({"t": 5}))
    driver.sync(0, 1, 2, 3, 4)
    assert driver.poll() == [Assign(tp(4))]


def test_a_subscription_that_changes_while_the_member_joins_is_joined_for() -> None:
    driver = Driver().coordinated()
    driver.sent(JoinGroupRequest)
    driver.member.subscribe(frozenset({"t", "u"}))
    driver.answer(JoinGroupResponse(generation_id=1, protocol_name="range", leader="other", member_id="me"))
    driver.sync()
    assign, join = driver.poll()
    assert assign == Assign(frozenset())
    assert isinstance(join, Send) and isinstance(join.request, JoinGroupRequest)
    assert subscription(join.request).topics == ("t", "u")


def test_a_returning_static_leader_does_not_share_out() -> None:
    driver = Driver(instance_id="i").coordinated()
    response = JoinGroupResponse(
        generation_id=1, protocol_name="range", leader="me", member_id="me", skip_assignment=True
    )
    assert driver.expect(JoinGroupRequest, response).group_instance_id == "i"
    assert driver.sync(1).assignments == ()
    driver.poll()
    driver.member.metadata_changed(without_racks({"t": 50}))
    assert driver.poll() == []  # how many there were when the group assigned, it does not know


@pytest.mark.parametrize(
    ("members", "partitions", "joins_again"),
    [
        pytest.param({"me": tp(0), "other": tp(1)}, 2, False, id="all is as it was"),
        pytest.param({"me": tp(0), "other": tp(1)}, 3, True, id="a partition was added"),
        pytest.param({"me": tp(0), "other": tp()}, 2, True, id="a topic of which nobody had anything"),
        pytest.param({"me": tp(0), "third": tp(1)}, 2, True, id="the predecessor of this member led"),
        pytest.param({"me": tp(0), "other": tp(1), "third": tp(2)}, 2, False, id="the topic was deleted"),
    ],
)
def test_a_static_member_that_comes_back_joins_again_if_its_group_lacks_something(
    members: dict[str, frozenset[TopicPartition]], partitions: int, joins_again: bool
) -> None:
    driver = Driver(instance_id="i").stable(0)
    driver.member.compare(members, without_racks({"t": partitions}))
    if not joins_again:
        assert driver.poll() == []
        return
    assert driver.poll() == [Revoke(tp(0))]
    driver.revoked()
    first = subscription(driver.join(2))
    driver.sync(0, 1)
    assert first.generation_id == 1  # unlike the one before: what is the same would not make the group rebalance
    assert driver.poll() == [Assign(tp(0, 1))]  # and compares nothing any more
    driver.member.compare({}, without_racks({"t": 50}))
    assert driver.poll() == []


def test_a_static_member_that_comes_back_leaves_out_topics_of_its_predecessor() -> None:
    driver = Driver(instance_id="i").coordinated()
    driver.join()
    former = encode_assignment([*tp(0), *tp(0, topic="former")])
    driver.expect(SyncGroupRequest, SyncGroupResponse(assignment=former))
    assign, compare, revoke = driver.poll()
    assert (assign, compare, revoke) == (Assign(tp(0)), Compare(frozenset({"t"})), Revoke(tp(0)))


def test_a_static_leader_that_comes_back_compares_the_topics_of_all_members() -> None:
    driver = Driver(instance_id="i").coordinated()
    other = encode_subscription(RangeAssignor(), ["u"], owned=(), previous=(), generation=-1, rack=None)
    members = (JoinGroupResponseMember(member_id="other", metadata=other),)
    driver.expect(
        JoinGroupRequest,
        JoinGroupResponse(
            generation_id=1,
            protocol_name="range",
            leader="me",
            member_id="me",
            skip_assignment=True,
            members=members,
        ),
    )
    driver.sync(0)
    assert driver.poll() == [Assign(tp(0)), Compare(frozenset({"u"}))]
    driver.member.compare({"me": tp(0), "other": tp(0, topic="u")}, without_racks({"u": 1}))
    assert driver.poll() == []
    driver.member.metadata_changed(without_racks({"u": 2}))
    assert driver.poll() == [Revoke(tp(0))]


def test_a_static_member_that_shares_out_compares_nothing() -> None:
    driver = Driver(instance_id="i").coordinated()
    driver.join(leader="me")
    assert driver.poll() == [Compute(frozenset())]
    driver.member.assign(TOPICS)
    driver.sync(0)
    assert driver.poll() == [Assign(tp(0))]


def test_the_member_id_that_the_coordinator_asks_for_is_taken_at_once() -> None:
    driver = Driver().coordinated()
    driver.expect(JoinGroupRequest, JoinGroupResponse(error_code=79, member_id="given"))
    assert driver.sent(JoinGroupRequest).member_id == "given"


def test_a_coordinator_that_never_accepts_is_not_asked_in_a_loop() -> None:
    driver = Driver().coordinated()
    driver.expect(JoinGroupRequest, JoinGroupResponse(error_code=25))
    assert driver.poll() == []
    driver.now = 1
    driver.expect(JoinGroupRequest, JoinGroupResponse(error_code=79, member_id="first"))
    driver.expect(JoinGroupRequest, JoinGroupResponse(error_code=79, member_id="second"))
    assert driver.poll() == [] and driver.member.member_id == "second"


def test_no_bytes_of_assignment_mean_no_partitions() -> None:
    driver = Driver().coordinated()
    driver.join()
    driver.expect(SyncGroupRequest, SyncGroupResponse(assignment=b""))
    assert driver.poll() == [Assign(frozenset())] and driver.state() is S.STABLE


def test_a_protocol_that_was_not_offered_stops_the_member() -> None:
    driver = Driver().coordinated()
    driver.join(protocol="magic")
    (fail,) = driver.poll()
    assert isinstance(fail, Fail) and "'magic'" in str(fail.error)


# ---- rebalances ----


def test_an_eager_member_gives_everything_up_before_it_joins_again() -> None:
    driver = Driver(StickyAssignor()).stable(0, 1)
    assert driver.heartbeat(27).generation_id == 1
    assert driver.poll() == [Revoke(tp(0, 1))]
    assert driver.member.fence.generation == 1  # commits are still accepted
    driver.heartbeat(27)  # said again while it gives up: nothing new
    assert driver.poll() == [] and driver.state() is S.REVOKING
    driver.revoked()
    request = driver.join(2)
    assert request.member_id == "me" and owned(request) == frozenset()
    claims = StickyAssignor().claims([], -1, subscription(request).user_data)
    assert (frozenset(claims[0]), claims[1]) == (tp(0, 1), 1)
    driver.sync(1, 2)
    assert driver.poll() == [Assign(tp(1, 2))]


def test_an_eager_member_with_nothing_joins_at_once() -> None:
    driver = Driver().stable()
    driver.heartbeat(27)
    assert isinstance(driver.sent(JoinGroupRequest), JoinGroupRequest)


def test_a_cooperative_member_keeps_what_it_has_and_gives_up_only_what_is_missing() -> None:
    driver = Driver(CooperativeStickyAssignor()).stable(0, 1)
    driver.heartbeat(27)
    request = driver.join(2)
    assert owned(request) == tp(0, 1) and subscription(request).generation_id == 1
    driver.sync(1, 2)
    assert driver.poll() == [Revoke(tp(0)), Assign(tp(2))]
    driver.revoked()
    again = driver.join(3)  # so that the others can have it
    assert owned(again) == tp(1, 2)
    driver.sync(1, 2)
    assert driver.poll() == [Assign(frozenset())] and driver.state() is S.STABLE


def test_a_member_is_cooperative_only_with_all_of_its_assignors() -> None:
    assert Driver(CooperativeStickyAssignor()).member.cooperative
    assert not Driver(CooperativeStickyAssignor(), RangeAssignor()).member.cooperative


def test_a_new_subscription_is_a_reason_to_join_again() -> None:
    driver = Driver().stable()
    driver.member.subscribe(frozenset({"t"}))
    assert driver.poll() == []
    driver.member.subscribe(frozenset({"t", "u"}))
    assert subscription(driver.sent(JoinGroupRequest)).topics == ("t", "u")


def test_a_commit_refused_for_a_rebalance_makes_a_stable_member_join_again() -> None:
    driver = Driver().stable()
    driver.member.commit_refused(driver.member.fence, 27)
    driver.sent(JoinGroupRequest)


def test_a_rebalance_during_sync_is_joined_again() -> None:
    driver = Driver().coordinated()
    driver.join()
    driver.expect(SyncGroupRequest, SyncGroupResponse(error_code=27))
    assert driver.sent(JoinGroupRequest).member_id == "me"


def test_a_rebalance_in_answer_to_join_waits_before_the_next_attempt() -> None:
    driver = Driver().coordinated()
    driver.expect(JoinGroupRequest, JoinGroupResponse(error_code=27))
    assert driver.poll() == [] and driver.member.tick(driver.now) == pytest.approx(0.1)
    driver.now = 0.1
    driver.sent(JoinGroupRequest)


# ---- heartbeats ----


def test_heartbeats_go_out_at_their_interval() -> None:
    driver = Driver().stable(0)
    assert driver.member.tick(0.0) == 3
    driver.now = 2.9
    assert driver.poll() == []
    driver.now = 3
    request = driver.sent(HeartbeatRequest)
    assert (request.group_id, request.generation_id, request.member_id) == ("g", 1, "me")
    assert driver.member.tick(3) is None  # its answer is waited for
    driver.answer(HeartbeatResponse())
    assert driver.member.tick(3) == 6


def test_heartbeats_go_on_while_partitions_are_given_up() -> None:
    driver = Driver().stable(0)
    driver.heartbeat(27)
    driver.poll()
    assert driver.heartbeat().generation_id == 1


def test_a_session_without_an_answer_makes_the_coordinator_unknown() -> None:
    driver = Driver().stable(0)
    driver.now = 45
    driver.coordinated()
    assert driver.state() is S.STABLE and driver.member.owned == tp(0)
    driver.heartbeat()


@pytest.mark.parametrize("code", [22, 25])
def test_a_generation_that_is_gone_loses_everything(code: int) -> None:
    driver = Driver(CooperativeStickyAssignor()).stable(0, 1)
    driver.heartbeat(code)
    lost, send = driver.poll()
    assert lost == Lost(tp(0, 1)) and driver.member.fence.generation == -1
    assert isinstance(send, Send) and isinstance(send.request, JoinGroupRequest)
    assert send.request.member_id == ("me" if code == 22 else "")
    assert owned(send.request) == frozenset()


def test_a_coordinator_that_moved_is_searched_and_the_place_is_kept() -> None:
    driver = Driver().stable(0)
    driver.heartbeat(16)
    assert driver.poll() == []
    driver.now += 0.1
    driver.coordinated()
    assert driver.state() is S.STABLE
    assert driver.heartbeat().generation_id == 1


def test_a_coordinator_that_loads_is_asked_again_later() -> None:
    driver = Driver().stable(0)
    driver.heartbeat(14)
    assert driver.member.coordinator is not None and driver.member.tick(driver.now) == pytest.approx(3.1)


def test_a_coordinator_that_is_not_there_yet_is_searched_again() -> None:
    driver = Driver()
    driver.expect(FindCoordinatorRequest, FindCoordinatorResponse(error_code=15))
    assert driver.poll() == []
    driver.now = 0.1
    driver.sent(FindCoordinatorRequest)


def test_a_lost_connection_keeps_the_member_id() -> None:
    driver = Driver().coordinated()
    driver.join()
    driver.sent(SyncGroupRequest)
    driver.member.connection_lost(driver.now)
    driver.now = 1
    driver.coordinated()
    assert driver.sent(JoinGroupRequest).member_id == "me"


# ---- commits ----


def test_a_refused_commit_of_this_generation_loses_the_partitions() -> None:
    driver = Driver().stable(0)
    assert not driver.member.commit_refused(driver.member.fence, 25)
    lost, _ = driver.poll()
    assert lost == Lost(tp(0)) and isinstance(lost, Lost)
    assert lost.reason == "the group has removed this member (UNKNOWN_MEMBER_ID)"


def test_a_generation_that_has_ended_is_no_removal() -> None:
    driver = Driver().stable(0)
    driver.heartbeat(22)
    lost, _ = driver.poll()
    assert isinstance(lost, Lost)
    assert lost.reason == "the group has ended the generation of this member (ILLEGAL_GENERATION)"


def test_a_refused_commit_of_an_older_generation_says_nothing_about_this_one() -> None:
    driver = Driver().stable(0)
    assert driver.member.commit_refused(GroupMetadata("g", 0, "me"), 25), "it may be sent with this one"
    assert driver.poll() == [] and driver.member.owned == tp(0)


@pytest.mark.parametrize(("code", "again"), [(22, True), (25, True), (82, False), (12, False)])
def test_a_refused_commit_while_joining_is_left_to_the_answer(code: int, again: bool) -> None:
    driver = Driver(CooperativeStickyAssignor()).stable(0)
    driver.heartbeat(27)
    driver.sent(JoinGroupRequest)
    assert driver.member.commit_refused(driver.member.fence, code) is again
    assert driver.state() is S.JOINING and driver.member.owned == tp(0)


# ---- errors that stop ----


def test_an_unknown_error_of_the_server_is_passed_over_ten_times_in_a_row() -> None:
    driver = Driver().stable(0)
    for _ in range(2):
        for _ in range(MAX_UNKNOWN_ERRORS):
            driver.heartbeat(-1)
            assert driver.state() is S.STABLE and driver.member.owned == tp(0)
        driver.heartbeat()
    for _ in range(MAX_UNKNOWN_ERRORS + 1):
        driver.heartbeat(-1)
    lost, fail = driver.poll()
    assert lost == Lost(tp(0)) and isinstance(fail, Fail) and "UNKNOWN_SERVER_ERROR" in str(fail.error)


@pytest.mark.parametrize(
    ("error", "names"),
    [
        (E.INVALID_SESSION_TIMEOUT, ["Tuning.session_timeout is 45 s", "group.max.session.timeout.ms"]),
        (E.GROUP_MAX_SIZE_REACHED, ["group.max.size"]),
        (E.INCONSISTENT_GROUP_PROTOCOL, ["offers range: ", "the option assignors", "one of consumers"]),
    ],
)
def test_an_error_that_an_option_causes_names_it(error: ErrorCode, names: list[str]) -> None:
    driver = Driver().coordinated()
    driver.expect(JoinGroupRequest, JoinGroupResponse(error_code=error))
    (fail,) = driver.poll()
    assert isinstance(fail, Fail) and all(name in str(fail.error) for name in names)


@pytest.mark.parametrize("code", [23, 24, 26, 30, 35, 81, 999])
def test_what_does_not_pass_stops_the_member(code: int) -> None:
    driver = Driver().coordinated()
    driver.expect(JoinGroupRequest, JoinGroupResponse(error_code=code))
    (fail,) = driver.poll()
    assert isinstance(fail, Fail) and isinstance(fail.error, BrokerError) and fail.error.code == code
    driver.now = 100
    assert driver.poll() == [] and driver.member.tick(100) is None
    driver.member.leave(member_lists=True)
    assert driver.state() is S.LEFT


def test_a_fenced_instance_stops_and_loses_everything() -> None:
    driver = Driver(instance_id="i").stable(0)
    driver.heartbeat(82)
    lost, fail = driver.poll()
    assert lost == Lost(tp(0))
    assert isinstance(fail, Fail) and isinstance(fail.error, Fenced) and "group instance i" in str(fail.error)


def test_answers_that_fit_nothing_are_refused() -> None:
    driver = Driver()
    with pytest.raises(LocalProtocolError, match="no request is in flight"):
        driver.answer(HeartbeatResponse())
    driver.poll()
    with pytest.raises(LocalProtocolError, match="OffsetCommitResponse is not a response to FindCoordinatorRequest"):
        driver.answer(OffsetCommitResponse())


def test_a_leader_reads_the_subscription_of_kafka_go() -> None:
    whole = encode_subscription(RangeAssignor(), ["t"], owned=(), previous=(), generation=-1, rack=None)
    assert whole.endswith(bytes(4) + b"\xff" * 6)  # no owned partitions, no generation, no rack
    member = decode_member(RangeAssignor(), JoinGroupResponseMember(member_id="m", metadata=b"\0\1" + whole[2:-10]))
    assert member.topics == {"t"} and member.owned == ()


def test_a_subscription_that_cannot_be_read_is_named() -> None:
    with pytest.raises(RemoteProtocolError, match="the subscription of member m7"):
        decode_member(RangeAssignor(), JoinGroupResponseMember(member_id="m7", metadata=b"\x00"))


@pytest.mark.parametrize("settings", [{"heartbeat_interval_s": 16.0}, {"heartbeat_interval_s": 0.0}])
def test_heartbeats_must_be_at_most_a_third_of_the_session(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="at most a third"):
        Driver(**settings)


def test_a_member_needs_an_assignor() -> None:
    assignors: Sequence[Assignor] = ()
    with pytest.raises(ConfigError, match="at least one assignor"):
        Member(MemberSettings("g"), assignors, frozenset())


# ---- the way out ----


@pytest.mark.parametrize("lists", [True, False])
def test_leaving_names_the_member(lists: bool) -> None:
    driver = Driver().stable(0)
    driver.member.leave(member_lists=lists, reason="done")
    request = driver.expect(LeaveGroupRequest, LeaveGroupResponse(error_code=25))
    if lists:
        assert [(m.member_id, m.reason) for m in request.members] == [("me", "done")] and request.member_id == ""
    else:
        assert (request.member_id, request.members) == ("me", ())
    assert driver.state() is S.LEFT and driver.poll() == []


def test_a_static_member_keeps_its_place() -> None:
    driver = Driver(instance_id="i").stable(0)
    driver.member.leave(member_lists=True)
    assert driver.state() is S.LEFT and driver.poll() == []


def test_a_member_that_never_joined_has_nothing_to_leave() -> None:
    driver = Driver().coordinated()
    driver.member.leave(member_lists=True)
    assert driver.state() is S.LEFT


def test_leaving_waits_for_the_answer_that_is_out() -> None:
    driver = Driver().stable(0)
    driver.now = 3
    driver.sent(HeartbeatRequest)
    driver.member.leave(member_lists=True)
    assert driver.poll() == []
    driver.answer(HeartbeatResponse(error_code=25))
    driver.sent(LeaveGroupRequest)
    driver.member.connection_lost(driver.now)
    assert driver.state() is S.LEFT


def test_leaving_while_joining_takes_the_id_that_the_answer_gives() -> None:
    driver = Driver().stable(0)
    driver.heartbeat(27)
    driver.poll()
    driver.revoked()
    driver.sent(JoinGroupRequest)
    driver.member.leave(member_lists=True)
    driver.answer(JoinGroupResponse(member_id="renamed"))
    assert driver.sent(LeaveGroupRequest).members[0].member_id == "renamed"


def test_leaving_is_told_to_the_new_coordinator_when_the_old_one_has_moved() -> None:
    driver = Driver().stable(0)
    driver.member.leave(member_lists=True)
    driver.expect(LeaveGroupRequest, LeaveGroupResponse(error_code=16))
    assert driver.poll() == []
    driver.now += 1
    driver.expect(FindCoordinatorRequest, FindCoordinatorResponse(node_id=8))
    (send,) = driver.poll()
    assert isinstance(send, Send) and isinstance(send.request, LeaveGroupRequest)
    assert send.node is not None and send.node.node_id == 8
    driver.answer(LeaveGroupResponse())
    assert driver.state() is S.LEFT and driver.poll() == []


@pytest.mark.parametrize("answer", ["found", "refused", "lost"])
def test_a_member_that_leaves_while_its_coordinator_moves_looks_for_it_once(answer: str) -> None:
    driver = Driver().stable(0)
    driver.heartbeat(16)
    driver.member.leave(member_lists=True)
    driver.now += 1
    driver.sent(FindCoordinatorRequest)
    if answer == "found":
        driver.answer(FindCoordinatorResponse(node_id=8))
        driver.expect(LeaveGroupRequest, LeaveGroupResponse())
    elif answer == "refused":
        driver.answer(FindCoordinatorResponse(error_code=15))
    else:
        driver.member.connection_lost(driver.now)
    assert driver.state() is S.LEFT and driver.poll() == []


def test_coordinators_that_always_send_a_leaving_member_on_end_its_attempts() -> None:
    driver = Driver().stable(0)
    driver.member.leave(member_lists=True)
    leaves = 0
    while driver.state() is S.LEAVING:
        leaves += 1
        driver.expect(LeaveGroupRequest, LeaveGroupResponse(error_code=16))
        if driver.state() is S.LEAVING:
            driver.now += 1
            driver.expect(FindCoordinatorRequest, FindCoordinatorResponse(node_id=8))
    assert leaves == MAX_REFUSED_LEAVES + 1


def test_leaving_while_syncing_drops_the_assignment() -> None:
    driver = Driver().coordinated()
    driver.join()
    driver.sent(SyncGroupRequest)
    driver.member.leave(member_lists=True)
    driver.answer(SyncGroupResponse(assignment=encode_assignment(sorted(tp(0)))))
    assert driver.member.owned == frozenset()
    driver.sent(LeaveGroupRequest)


def test_what_comes_late_changes_nothing() -> None:
    driver = Driver(instance_id="i").stable(0)
    driver.now = 3
    driver.sent(HeartbeatRequest)
    driver.member.leave(member_lists=True)
    driver.answer(HeartbeatResponse())
    driver.member.revoked(Revoke(tp(0)))
    driver.member.assign(TOPICS)
    driver.member.commit_refused(driver.member.fence, 25)
    assert driver.state() is S.LEFT and driver.poll() == []


def test_an_error_that_a_thread_got_for_this_generation_counts_and_one_for_an_older_does_not() -> None:
    driver = Driver().stable(0)
    request = driver.member.heartbeat
    assert isinstance(request, HeartbeatRequest)
    driver.member.heartbeat_answered(HeartbeatRequest(group_id="g", member_id="me"), HeartbeatResponse(error_code=25))
    assert driver.poll() == [] and driver.member.owned == tp(0)
    driver.member.heartbeat_answered(request, HeartbeatResponse(error_code=27))
    assert driver.poll() == [Revoke(tp(0))]
    assert Driver().member.heartbeat is None
