"""The state machines as tables: every state can be reached, and left unless it is an end."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from odradek.core.kafka.consumer_group_member import CONSUMER_GROUP_MEMBER, ConsumerGroupState
from odradek.core.kafka.fetch_session import SESSION, FetchSessionState
from odradek.core.kafka.lightweight_consumer import LIGHTWEIGHT_CONSUMER, LightweightConsumerState
from odradek.core.kafka.member_states import MEMBER, ClassicMemberState
from odradek.core.kafka.metrics_push import METRICS_PUSH, MetricsPushState
from odradek.core.kafka.share_member import SHARE_GROUP_MEMBER, ShareMemberState
from odradek.core.kafka.share_session import SHARE_SESSION, ShareSessionState
from odradek.core.kafka.transaction_states import TRANSACTION, TransactionalProducerState
from odradek.core.states import Machine
from odradek.errors import LocalProtocolError

ENDS: dict[str, tuple[Machine[Any, Any], set[Enum]]] = {
    "member": (MEMBER, {ClassicMemberState.LEFT}),
    "consumer group member": (CONSUMER_GROUP_MEMBER, {ConsumerGroupState.LEFT}),
    "transaction": (TRANSACTION, {TransactionalProducerState.FATAL}),
    "fetch session": (SESSION, {FetchSessionState.OFF}),
    "share group member": (SHARE_GROUP_MEMBER, {ShareMemberState.LEFT}),
    "share session": (SHARE_SESSION, {ShareSessionState.CLOSED}),
    "push of metrics": (METRICS_PUSH, {MetricsPushState.ENDED, MetricsPushState.LEAVING}),
    "lightweight consumer": (LIGHTWEIGHT_CONSUMER, {LightweightConsumerState.STOPPED}),
}
STARTS = {FetchSessionState.OFF}  # a session that is switched off begins there


def states_of(machine: Machine[Any, Any]) -> set[Enum]:
    states: type[Enum] = type(machine.start)
    return set(states)


@pytest.mark.parametrize(("machine", "ends"), ENDS.values(), ids=ENDS)
def test_every_state_can_be_reached(machine: Machine[Any, Any], ends: set[Enum]) -> None:
    reached: set[Enum] = {machine.start, *STARTS}
    for _ in states_of(machine):
        reached |= {target for (state, _), target in machine.transitions.items() if state in reached}
    assert reached >= states_of(machine)


@pytest.mark.parametrize(("machine", "ends"), ENDS.values(), ids=ENDS)
def test_only_ends_are_never_left(machine: Machine[Any, Any], ends: set[Enum]) -> None:
    left = {state for (state, _), target in machine.transitions.items() if target is not state}
    assert states_of(machine) - left == ends


@pytest.mark.parametrize(("machine", "ends"), ENDS.values(), ids=ENDS)
def test_a_pair_that_is_not_in_the_table_is_an_error(machine: Machine[Any, Any], ends: set[Enum]) -> None:
    events = {event for _, event in machine.transitions}
    missing = [(s, e) for s in states_of(machine) for e in events if (s, e) not in machine.transitions]
    for state, event in missing:
        with pytest.raises(LocalProtocolError, match="cannot happen"):
            machine.after(state, event)
