"""The states of a batch: every pair of state and event, and who may write them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import odradek
from odradek.core.interfaces import PartitionResult
from odradek.core.produce.batch import BrokerProduceRequest, ProduceBatch
from odradek.core.produce.batch_states import BATCH, BatchEvent, BatchState
from odradek.core.produce.partition_queue import TopicQueues
from odradek.errors import ConnectionLost, LocalProtocolError

S, E = BatchState, BatchEvent

TABLE = {
    (S.QUEUED, E.PART): S.RETURNED,
    (S.QUEUED, E.SEND): S.IN_FLIGHT,
    (S.QUEUED, E.FINISH): S.FINISHED,
    (S.QUEUED, E.REPLACE): S.REPLACED,
    (S.IN_FLIGHT, E.ANSWER): S.ANSWERED,
    (S.IN_FLIGHT, E.FINISH): S.FINISHED,
    (S.FINISHED, E.ANSWER): S.FINISHED,
    (S.FINISHED, E.REUSE): S.QUEUED,
    (S.ANSWERED, E.FINISH): S.FINISHED,
    (S.ANSWERED, E.RETURN): S.RETURNED,
    (S.ANSWERED, E.REPLACE): S.REPLACED,
    (S.RETURNED, E.RETURN): S.RETURNED,
    (S.RETURNED, E.QUEUE): S.QUEUED,
    (S.RETURNED, E.FINISH): S.FINISHED,
}

QUEUE = TopicQueues("t", "none", 1000).unassigned
REQUEST = BrokerProduceRequest(1, [], False)

EVENTS: dict[BatchEvent, Callable[[ProduceBatch], object]] = {
    E.PART: lambda batch: batch.begin_as_part(new_batch()),
    E.SEND: lambda batch: batch.send(REQUEST),
    E.ANSWER: ProduceBatch.answer,
    E.RETURN: ProduceBatch.take_back,
    E.QUEUE: ProduceBatch.queue_again,
    E.FINISH: ProduceBatch.finish,
    E.REPLACE: ProduceBatch.replace,
    E.REUSE: lambda batch: batch.begin_again(QUEUE, 2, 1.0, False),
}
"""The method for each event."""

WAYS: dict[BatchState, list[BatchEvent]] = {
    S.QUEUED: [],
    S.IN_FLIGHT: [E.SEND],
    S.ANSWERED: [E.SEND, E.ANSWER],
    S.RETURNED: [E.SEND, E.ANSWER, E.RETURN],
    S.FINISHED: [E.SEND, E.ANSWER, E.FINISH],
    S.REPLACED: [E.REPLACE],
}
"""A way to each state."""

WRITTEN_BY_THE_BATCH = {
    "attempts",
    "error",
    "last_error",
    "in_former_queue",
    "may_be_written",
    "overdue",
    "request",
    "result",
    "state",
    "waiting_queue",
}

BATCHES = {"batch", "batches", "head", "part", "whole", "refused", "failed", "oldest", "each"}
"""Names of variables that are batches in the files of the producer."""


def new_batch() -> ProduceBatch:
    return ProduceBatch(QUEUE, 1, 0.0, False)


def batch_in(state: BatchState) -> ProduceBatch:
    batch = new_batch()
    for event in WAYS[state]:
        EVENTS[event](batch)
    assert batch.state is state
    return batch


def test_the_table_is_what_is_tested_here() -> None:
    assert dict(BATCH.transitions) == TABLE


@pytest.mark.parametrize(("state", "event"), TABLE, ids=lambda each: each.name)
def test_an_event_leads_to_its_state(state: BatchState, event: BatchEvent) -> None:
    batch = batch_in(state)
    EVENTS[event](batch)
    assert batch.state is TABLE[state, event]


@pytest.mark.parametrize(
    ("state", "event"), [(s, e) for s in S for e in E if (s, e) not in TABLE], ids=lambda each: each.name
)
def test_every_other_event_is_refused_and_changes_nothing(state: BatchState, event: BatchEvent) -> None:
    batch = batch_in(state)
    names = [name for kind in ProduceBatch.__mro__ for name in getattr(kind, "__slots__", ())]
    if event is E.REUSE:  # it writes what is new first: nobody else has the batch
        names = ["state"]
    before = {name: getattr(batch, name) for name in names}
    with pytest.raises(LocalProtocolError, match=f"batch: {event.name} cannot happen in {state.name}"):
        EVENTS[event](batch)
    assert {name: getattr(batch, name) for name in names} == before


def test_every_state_can_be_reached() -> None:
    assert set(WAYS) == set(S)
    assert set(TABLE.values()) == set(S)


def test_a_batch_says_whether_it_waited_in_the_queue_of_its_partition_when_it_ended() -> None:
    assert batch_in(S.QUEUED).finish()
    assert batch_in(S.QUEUED).replace()
    assert not batch_in(S.IN_FLIGHT).finish()
    assert not batch_in(S.ANSWERED).replace()


def test_an_attempt_is_counted_and_its_request_known_until_it_has_a_result() -> None:
    batch = batch_in(S.IN_FLIGHT)
    assert batch.attempts == 1 and batch.request is REQUEST
    batch.finish()
    assert batch.request is REQUEST, "its outcome depends on what is in flight"
    batch.answer()
    assert batch.request is None
    result = PartitionResult(batch.partition)
    other = batch_in(S.ANSWERED)
    other.finish(result)
    assert other.result is result


def test_what_may_be_written_stays_so() -> None:
    batch = batch_in(S.ANSWERED)
    batch.note_failure(sent := ConnectionLost("b:9092", "cut", True))
    assert batch.may_be_written and batch.last_error is sent
    batch.note_failure(unsent := ConnectionLost("b:9092", "cut", False))
    assert batch.may_be_written and batch.last_error is unsent
    part = new_batch()
    part.begin_as_part(batch)
    assert (part.attempts, part.last_error) == (1, unsent)


# ---- who writes it ---------------------------------------------------------------------------------------------

SOURCES = Path(odradek.__file__).parent


def written(tree: ast.AST) -> Iterator[str]:
    """Yield the attributes of batches that code assigns to."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Delete):
            targets = node.targets
        for target in targets:
            for each in ast.walk(target):
                if isinstance(each, ast.Attribute) and each.attr in WRITTEN_BY_THE_BATCH and is_batch(each.value):
                    yield f"{ast.unparse(each)} (line {each.lineno})"


def is_batch(value: ast.expr) -> bool:
    if isinstance(value, ast.Subscript):
        return is_batch(value.value)
    name = value.attr if isinstance(value, ast.Attribute) else value.id if isinstance(value, ast.Name) else ""
    return name in BATCHES


@pytest.mark.parametrize("folder", ["core/produce", "client/producer", "core/kafka", "core/kafka07", "io/kafka"])
def test_nothing_but_the_batch_writes_its_state(folder: str) -> None:
    assigned = {
        file.name: list(written(ast.parse(file.read_text("utf-8"))))
        for file in (SOURCES / folder).glob("*.py")
        if file.name != "batch.py"
    }
    assert not {name: each for name, each in assigned.items() if each}


@pytest.mark.parametrize(
    "code",
    [
        "batch.state = x",
        "batch.attempts += 1",
        "a, head.waiting_queue = 1, 2",
        "request.batches[0].overdue = True",
        "part.last_error: object = None",
        "del batch.request",
    ],
)
def test_an_assignment_to_the_state_is_found(code: str) -> None:
    assert list(written(ast.parse(code)))


@pytest.mark.parametrize(
    "code", ["batch.encoded = b''", "request.pending = x", "x = batch.state", "live.finished = []"]
)
def test_other_assignments_are_allowed(code: str) -> None:
    assert not list(written(ast.parse(code)))
