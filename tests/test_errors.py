"""The errors: one tree, answers by attributes, and each survives pickling."""

from __future__ import annotations

import inspect
import pickle

import pytest

import odradek
from odradek import errors
from odradek.types import Position, Record, TopicPartition
from odradek.wire.kafka07.responses import broker_error

RECORD = Record(b"v", None, (), None, None, Position(7), Position(8), 0, TopicPartition("t", 0))
EXAMPLES: list[errors.OdradekError] = [
    errors.ConfigError("no such option"),
    errors.Unsupported("a header", "Kafka 0.11"),
    errors.Closed("closed"),
    errors.UsageError("entered twice"),
    errors.InternalError("decoding failed"),
    errors.DeadlineError("b1:9092", 3, True),
    errors.LocalProtocolError("too long"),
    errors.RemoteProtocolError("too short"),
    errors.CorruptMessage("t/0", 7, "checksum"),
    errors.MessageTooLarge("t/0", 7, 100, 10, "max_message_bytes"),
    broker_error(3, "fetch t/0"),
    broker_error(1, "fetch t/0"),
    errors.BrokerError(6, "NotLeaderForPartition", retriable=True, refresh_metadata=True, fence=True, fatal=True),
    errors.LogTruncated("t/0", 9, 7, 3),
    errors.TopicRecreated("t/0", 9),
    errors.Unreachable("tcp", "b1:9092", "refused"),
    errors.ConnectionLost("b1:9092", "reset", True),
    errors.SessionExpired("gone"),
    errors.GroupError("no partitions"),
    errors.AuthFailed("SCRAM-SHA-256", "the broker refused the password"),
    errors.Fenced("transactional id t1", "ProducerFenced"),
    errors.TransactionAborted("t1", "a record was rejected"),
    errors.CommitOutcomeUnknown("t1", "no answer"),
    errors.SerializationError("t", "value", "not JSON"),
    errors.DeserializationError(RECORD, "key", "not JSON", 7),
    errors.Rejected([b"v"], "too large"),
    errors.NotWritten([b"v"], "no broker"),
    errors.OutcomeUnknown([b"v"], "lost"),
    errors.Undelivered([b"v"], "late"),
]
ANSWERS = ("retriable", "refresh_metadata", "fatal", "fence", "sent", "hint")


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_with_its_answers(error: errors.OdradekError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))
    assert [getattr(again, name) for name in ANSWERS] == [getattr(error, name) for name in ANSWERS]


def test_there_is_an_example_of_every_error_that_takes_more_than_a_text() -> None:
    own = set(map(type, EXAMPLES))
    for name in errors.__all__:
        kind = getattr(errors, name)
        if "__init__" in vars(kind):
            assert any(issubclass(each, kind) for each in own), name


def test_every_error_is_below_the_root_and_named() -> None:
    kinds = {
        name for name, kind in vars(errors).items() if inspect.isclass(kind) and kind.__module__ == errors.__name__
    }
    assert kinds == set(errors.__all__)
    assert all(issubclass(getattr(errors, name), errors.OdradekError) for name in kinds)


def test_errors_of_zookeeper_nodes_and_of_servers_for_tests_are_not_among_the_front_names() -> None:
    hidden = {"NoNode", "NodeExists", "BadVersion", "NotEmpty", "SessionExpired", "ServerError"}
    hidden.add("CommitOutcomeUnknown")  # caught as OutcomeUnknown
    hidden |= {"SerializationError", "DeserializationError"}  # names of odradek.serde
    assert set(errors.__all__) - set(odradek.__all__) == hidden


def test_an_expired_session_and_a_taken_identity_fence() -> None:
    assert [name for name in errors.__all__ if getattr(errors, name).fence] == ["Fenced", "SessionExpired"]


def test_the_repr_of_a_failed_delivery_does_not_repeat_its_records() -> None:
    records: list[tuple[str, errors.OdradekError]] = []
    error = errors.Rejected(records, "there is no such partition")
    records += [("a record", error)] * 10_000  # as `Failed` refers to its error

    assert repr(error) == "<Rejected 10000 records rejected: there is no such partition>"
    assert repr(errors.DeliveryError(records, str(error))) == f"<DeliveryError 10000 records not delivered: {error}>"
