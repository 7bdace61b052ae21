"""Fetch sessions: what is sent, what an answer changes, and that doubt leads to a full request."""

from __future__ import annotations

from typing import NoReturn

import pytest

from odradek.core.kafka.fetch_session import FetchPosition, FetchRequestSettings, FetchSession, FetchSessionState
from odradek.types import TopicPartition
from odradek.wire.kafka.messages.data import (
    FetchableTopicResponse,
    FetchPartitionData,
    FetchRequest,
    FetchResponse,
)

SETTINGS = FetchRequestSettings(max_wait_ms=100, min_bytes=1, max_bytes=1000, read_committed=True, rack="r1")
BY_ID = SETTINGS._replace(by_id=True)
A, B, C = (TopicPartition("t", n) for n in range(3))
ID_1, ID_2 = b"1" * 16, b"2" * 16


def at(offset: int, topic_id: bytes = bytes(16)) -> FetchPosition:
    return FetchPosition(offset, 100, 3, topic_id=topic_id)


def sent(request: FetchRequest) -> dict[int, int]:
    return {p.partition: p.fetch_offset for t in request.topics for p in t.partitions}


def forgotten(request: FetchRequest) -> list[int]:
    return [n for t in request.forgotten_topics_data for n in t.partitions]


def answer(
    *partitions: int, session: int = 7, error: int = 0, topic: str = "t", topic_id: bytes = bytes(16)
) -> FetchResponse:
    data = tuple(FetchPartitionData(partition_index=n) for n in partitions)
    topics = (FetchableTopicResponse(topic=topic, topic_id=topic_id, partitions=data),) if data else ()
    return FetchResponse(error_code=error, session_id=session, responses=topics)


def opened() -> FetchSession:
    session = FetchSession()
    session.request({A: at(1), B: at(2)}, SETTINGS)
    assert session.answered(answer(0, 1))
    return session


def test_the_first_request_is_full_and_asks_for_a_session() -> None:
    request = FetchSession().request({A: at(1), B: at(2)}, SETTINGS)
    assert (request.session_id, request.session_epoch, sent(request)) == (0, 0, {0: 1, 1: 2})
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (100, 1, 1000)
    assert (request.isolation_level, request.rack_id) == (1, "r1")
    assert request.topics[0].partitions[0].current_leader_epoch == 3


def test_a_session_sends_only_what_changed() -> None:
    session = opened()
    request = session.request({A: at(5), B: at(2), C: at(0)}, SETTINGS)
    assert (request.session_id, request.session_epoch) == (7, 1)
    assert sent(request) == {0: 5, 2: 0} and forgotten(request) == []
    assert session.answered(answer(0))
    request = session.request({A: at(5), C: at(0)}, SETTINGS)
    assert (request.session_epoch, sent(request), forgotten(request)) == (2, {}, [1])


class Unread(dict[TopicPartition, FetchPosition]):
    """Positions that nobody looks through."""

    def items(self) -> NoReturn:
        raise AssertionError("thousands of them would be compared")


def test_a_session_that_gets_the_same_mapping_again_compares_nothing() -> None:
    session, positions = opened(), Unread({A: at(5), B: at(2)})
    session.request(dict(positions), SETTINGS)
    assert session.answered(answer())
    session._remembered = positions
    request = session.request(positions, SETTINGS)
    assert (request.session_epoch, sent(request), forgotten(request)) == (2, {}, [])


def test_without_a_session_every_request_is_full() -> None:
    session = FetchSession(enabled=False)
    for _ in range(2):
        request = session.request({A: at(1)}, SETTINGS)
        assert (request.session_id, request.session_epoch, sent(request)) == (0, -1, {0: 1})
        assert session.answered(answer(0, session=0))
    session.connection_lost()
    assert session.state is FetchSessionState.OFF and session.request({A: at(1)}, SETTINGS).session_epoch == -1


def test_a_refused_session_is_asked_for_again() -> None:
    session = FetchSession()
    session.request({A: at(1)}, SETTINGS)
    assert session.answered(answer(0, session=0))
    request = session.request({A: at(1)}, SETTINGS)
    assert (request.session_id, request.session_epoch, sent(request)) == (0, 0, {0: 1})


def test_a_forgotten_session_is_replaced_by_a_new_one() -> None:
    session = opened()
    session.request({A: at(1)}, SETTINGS)
    assert not session.answered(answer(session=0, error=70))
    request = session.request({A: at(1), B: at(2)}, SETTINGS)
    assert (request.session_id, request.session_epoch, sent(request)) == (0, 0, {0: 1, 1: 2})


@pytest.mark.parametrize(("error", "refused"), [(71, True), (106, True), (29, False)])
def test_an_error_closes_the_session_and_asks_for_another(error: int, refused: bool) -> None:
    session = opened()
    session.request({A: at(1)}, SETTINGS)
    assert session.answered(answer(session=0, error=error)) is not refused
    request = session.request({A: at(1), B: at(2)}, SETTINGS)
    assert (request.session_id, request.session_epoch, sent(request)) == (7, 0, {0: 1, 1: 2})
    assert session.answered(answer(0, 1, session=8))
    assert session.request({A: at(1), B: at(2)}, SETTINGS).session_id == 8


def test_after_a_lost_connection_the_next_request_is_full() -> None:
    session = opened()
    session.connection_lost()
    assert session.is_full
    request = session.request({A: at(1)}, SETTINGS)
    assert (request.session_id, request.session_epoch, sent(request)) == (7, 0, {0: 1})
    session.connection_lost()
    assert session.state is FetchSessionState.REPLACING


def test_a_refusal_that_says_something_of_partitions_is_an_answer() -> None:
    session = opened()
    session.request({A: at(1)}, SETTINGS)
    assert session.answered(answer(0, session=0, error=71))
    assert session.is_full


def test_an_answer_with_other_partitions_than_asked_for_counts_and_closes_its_session() -> None:
    session = opened()
    session.request({A: at(1), B: at(2)}, SETTINGS)
    assert session.answered(answer(2))
    request = session.request({A: at(1), B: at(2)}, SETTINGS)
    assert (request.session_id, request.session_epoch, sent(request)) == (7, 0, {0: 1, 1: 2})


def test_a_full_answer_must_have_all_partitions_unless_it_is_throttled() -> None:
    session = FetchSession()
    session.request({A: at(1), B: at(2)}, SETTINGS)
    assert session.answered(answer(0))
    assert (session.state, session.session_id) == (FetchSessionState.REPLACING, 7)  # or it stays open at the broker
    assert session.answered(answer(session=0))
    assert session.state is FetchSessionState.NONE


def test_a_topic_with_another_id_is_forgotten_and_sent_again() -> None:
    session = FetchSession()
    session.request({A: at(1, ID_1)}, BY_ID)
    assert session.answered(answer(0, topic="", topic_id=ID_1))
    request = session.request({A: at(0, ID_2)}, BY_ID)
    assert request.session_epoch == 1
    assert request.forgotten_topics_data[0].topic_id == ID_1
    assert request.topics[0].topic_id == ID_2


def test_a_session_is_by_name_where_fetch_has_no_ids_although_they_are_known() -> None:
    """Kafka 2.8 to 3.0: Metadata has topic ids, Fetch has not."""
    session = FetchSession()
    session.request({A: at(1, ID_1), B: at(2, ID_1)}, SETTINGS)
    assert session.answered(answer(0, 1))
    assert session.state is FetchSessionState.OPEN
    request = session.request({A: at(5, ID_1), B: at(2, ID_1)}, SETTINGS)
    assert (request.session_epoch, sent(request), forgotten(request)) == (1, {0: 5}, [])
    assert session.answered(answer(0))
    assert session.state is FetchSessionState.OPEN


def test_a_session_by_name_goes_on_when_the_id_of_a_topic_changes() -> None:
    session = FetchSession()
    session.request({A: at(1, ID_1)}, SETTINGS)
    assert session.answered(answer(0))
    request = session.request({A: at(0, ID_2)}, SETTINGS)
    assert (request.session_epoch, sent(request), forgotten(request)) == (1, {0: 0}, [])
    assert session.answered(answer(0))
    assert session.state is FetchSessionState.OPEN


@pytest.mark.parametrize(("before", "after"), [(SETTINGS, BY_ID), (BY_ID, SETTINGS)])
def test_a_session_by_name_is_none_by_id(before: FetchRequestSettings, after: FetchRequestSettings) -> None:
    session = FetchSession()
    session.request({A: at(1, ID_1)}, before)
    assert session.answered(answer(0, topic_id=ID_1))
    request = session.request({A: at(1, ID_1)}, after)
    assert (request.session_id, request.session_epoch, sent(request)) == (7, 0, {0: 1})


def test_the_epoch_goes_from_its_last_number_to_1() -> None:
    session = opened()
    session.epoch = 0x7FFFFFFF
    session.request({A: at(1), B: at(2)}, SETTINGS)
    assert session.answered(answer())
    assert session.epoch == 1
