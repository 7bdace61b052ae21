"""State machines as data: which state may follow which."""

from __future__ import annotations

from enum import Enum

import pytest

from odradek.core.states import (
    BROKER,
    CONSUMER,
    CURSOR,
    OWNERSHIP,
    BrokerEvent,
    BrokerState,
    ConsumerEvent,
    ConsumerState,
    CursorEvent,
    CursorState,
    Machine,
    OwnershipEvent,
    OwnershipState,
)
from odradek.errors import LocalProtocolError


class Door(Enum):
    OPEN = "o"
    SHUT = "s"
    GONE = "g"


class Act(Enum):
    PUSH = "push"
    KICK = "kick"
    BURN = "burn"


DOOR = Machine(
    "door",
    Door.SHUT,
    {
        (Door.SHUT, Act.PUSH): Door.OPEN,
        (Door.SHUT, Act.KICK): Door.OPEN,
        (Door.OPEN, Act.PUSH): Door.SHUT,
        (Door.OPEN, Act.BURN): Door.GONE,
    },
)
MACHINES = [CONSUMER, OWNERSHIP, CURSOR, BROKER]


def test_a_legal_pair_leads_on() -> None:
    assert DOOR.after(Door.SHUT, Act.KICK) is Door.OPEN


def test_an_illegal_pair_is_an_error_that_names_it() -> None:
    with pytest.raises(LocalProtocolError, match="door: BURN cannot happen in SHUT"):
        DOOR.after(Door.SHUT, Act.BURN)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: str(m.name))
def test_every_state_can_be_reached(machine: Machine[Enum, Enum]) -> None:
    reached = {machine.start}
    while more := {t for (s, _), t in machine.transitions.items() if s in reached} - reached:
        reached |= more
    assert reached == set(type(machine.start))


def test_a_consumer_can_leave_from_every_state() -> None:
    for state in set(ConsumerState) - {ConsumerState.NEW, ConsumerState.LEAVING, ConsumerState.CLOSED}:
        assert CONSUMER.after(state, ConsumerEvent.EXIT) is ConsumerState.LEAVING


def test_an_expired_consumer_waits_for_its_next_assignment() -> None:
    for state in (ConsumerState.JOINING, ConsumerState.RUNNING):
        assert CONSUMER.after(state, ConsumerEvent.EXPIRE) is ConsumerState.JOINING
    assert CONSUMER.after(ConsumerState.JOINING, ConsumerEvent.ASSIGN) is ConsumerState.RUNNING


def test_a_partition_is_released_only_after_it_was_revoked_and_lost_in_any_state() -> None:
    with pytest.raises(LocalProtocolError):
        OWNERSHIP.after(OwnershipState.OWNED, OwnershipEvent.RELEASE)
    for state in (OwnershipState.OWNED, OwnershipState.REVOKING):
        assert OWNERSHIP.after(state, OwnershipEvent.LOSE) is OwnershipState.ENDED


def test_a_seek_revives_a_partition_in_any_state_while_it_is_assigned() -> None:
    for state in set(CursorState) - {CursorState.UNASSIGNED}:
        assert CURSOR.after(state, CursorEvent.SEEK) is CursorState.RESOLVING


def test_a_partition_can_be_unassigned_in_any_state() -> None:
    for state in CursorState:
        assert CURSOR.after(state, CursorEvent.UNASSIGN) is CursorState.UNASSIGNED


def test_a_broker_recovers_from_a_lost_connection() -> None:
    state = BROKER.after(BrokerState.CONNECTED, BrokerEvent.FAILED)
    assert BROKER.after(BROKER.after(state, BrokerEvent.FAILED), BrokerEvent.RESPONDED) is BrokerState.CONNECTED
