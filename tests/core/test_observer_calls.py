"""Calls of an observer: events of fields, errors that go no further, methods that are not overridden."""

from __future__ import annotations

import typing
from typing import Any

import pytest
from tests.client.observed import Recorder

from odradek import observe
from odradek.core.observer_calls import ObserverCalls
from odradek.errors import BrokerError, ConnectionLost, NotWritten
from odradek.observe import HeartbeatLate, Observer, error_name

METHODS = [name for name in vars(Observer) if not name.startswith("_")]


def test_every_method_has_a_call_that_makes_the_event_of_its_annotation() -> None:
    recorder, failures = Recorder(), list[object]()
    calls = ObserverCalls([recorder], lambda *failure: failures.append(failure))
    assert set(vars(calls)) == set(METHODS)
    for name in METHODS:
        kind = typing.get_type_hints(getattr(Observer, name))["event"]
        fields = tuple(range(len(kind._fields)))
        getattr(calls, name)(*fields)
        assert type(recorder.events[-1]) is kind and recorder.events[-1] == fields
        assert kind.__name__ in observe.__all__
    assert not failures


def test_an_error_goes_no_further_and_is_reported_once_for_each_method() -> None:
    class Broken(Observer):
        def heartbeat_late(self, event: HeartbeatLate) -> None:
            raise ValueError(event.group)

        def throttled(self, event: Any) -> None:
            raise KeyError("t")

    failures: list[tuple[Observer, str, Exception]] = []
    calls = ObserverCalls([broken := Broken()], lambda *failure: failures.append(failure))
    for _ in range(3):
        calls.heartbeat_late("g", 1.0)
        calls.throttled("b", "produce", 1.0)
    assert [(observer, name, repr(error)) for observer, name, error in failures] == [
        (broken, "heartbeat_late", "ValueError('g')"),
        (broken, "throttled", "KeyError('t')"),
    ]


def test_several_observers_are_called_in_their_order_and_one_that_fails_keeps_no_other_from_it() -> None:
    class Broken(Observer):
        def heartbeat_late(self, event: HeartbeatLate) -> None:
            raise ValueError(event.group)

    first, second, failures = Recorder(), Recorder(), list[object]()
    calls = ObserverCalls([first, Broken(), Observer(), second], lambda *failure: failures.append(failure))
    calls.heartbeat_late("g", 1.0)
    assert first.events == second.events == [HeartbeatLate("g", 1.0)] and len(failures) == 1


def test_a_method_that_is_not_overridden_gets_no_event() -> None:
    calls = ObserverCalls([Observer()], lambda *failure: pytest.fail(str(failure)))
    assert len({getattr(calls, name) for name in METHODS}) == 1
    calls.heartbeat_late("any", "number", "of", "fields")


def test_what_stops_the_program_is_not_caught() -> None:
    class Interrupted(Observer):
        def heartbeat_late(self, event: HeartbeatLate) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ObserverCalls([Interrupted()], lambda *failure: None).heartbeat_late("g", 1.0)


def test_errors_have_names_for_labels() -> None:
    refused = BrokerError(29, "TOPIC_AUTHORIZATION_FAILED")
    delivery = NotWritten([], "w")
    assert error_name(None) == "" and error_name(refused) == "TOPIC_AUTHORIZATION_FAILED"
    assert error_name(ConnectionLost("b:1", "w", True)) == "ConnectionLost" and error_name(delivery) == "NotWritten"
    delivery.__cause__ = refused
    assert error_name(delivery) == "TOPIC_AUTHORIZATION_FAILED"
