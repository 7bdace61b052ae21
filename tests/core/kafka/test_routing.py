"""Routing tables: replaced whole, never back in leader epochs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from odradek.core.kafka.routing import OLDER_RESPONSES, BrokerEndpoint, KafkaRoutingTable
from odradek.types import TopicPartition
from odradek.wire.kafka.messages.common import NodeEndpoint
from odradek.wire.kafka.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

ID_1, ID_2 = b"1" * 16, b"2" * 16
UNKNOWN_TOPIC_OR_PARTITION = 3
ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def topic(
    name: str | None = "orders",
    *leaders: tuple[int, int],
    topic_id: bytes = bytes(16),
    errors: Sequence[int] = (),
    error: int = 0,
) -> MetadataResponseTopic:
    """A topic with a partition for each (leader, epoch)."""
    return MetadataResponseTopic(
        name=name,
        topic_id=topic_id,
        error_code=error,
        partitions=tuple(
            MetadataResponsePartition(
                partition_index=n,
                leader_id=leader,
                leader_epoch=epoch,
                error_code=errors[n] if errors else 0,
                replica_nodes=(leader, 2),
            )
            for n, (leader, epoch) in enumerate(leaders)
        ),
    )


def answer(*topics: MetadataResponseTopic, brokers: Sequence[int] = (1, 2), error: int = 0) -> MetadataResponse:
    return MetadataResponse(
        brokers=tuple(MetadataResponseBroker(node_id=n, host=f"b{n}", port=9092, rack=f"r{n}") for n in brokers),
        cluster_id="c",
        controller_id=1,
        topics=topics,
        error_code=error,
    )


def table(*topics: MetadataResponseTopic) -> KafkaRoutingTable:
    return KafkaRoutingTable().apply(answer(*topics), None)[0]


def test_a_first_answer_says_who_leads() -> None:
    new, changes = KafkaRoutingTable().apply(answer(topic("orders", (1, 5), (2, 3))), None)
    assert new.leader(ORDERS_0) == BrokerEndpoint(1, "b1", 9092, "r1")
    assert changes.moved == {ORDERS_0, ORDERS_1}
    assert (new.cluster_id, new.controller_id) == ("c", 1)
    assert sorted(new.topics["orders"].partitions) == [0, 1]
    assert new.replica_racks("orders") == [{"r1", "r2"}, {"r2"}]


def test_what_is_not_known_has_no_leader() -> None:
    empty = KafkaRoutingTable()
    assert empty.partition(ORDERS_0) is None and empty.leader(ORDERS_0) is None
    assert empty.replica_racks("orders") == []
    assert empty.topic_name(ID_1) is None
    assert table(topic("orders", (9, 1))).leader(ORDERS_0) is None  # the broker is not in the answer


def test_the_topic_of_offsets_is_internal_though_old_brokers_do_not_say_so() -> None:
    topics = table(topic("orders", (1, 5)), topic("__consumer_offsets", (1, 5))).topics
    assert {name: described.is_internal for name, described in topics.items()} == {
        "orders": False,
        "__consumer_offsets": True,
    }


def test_the_old_table_stays_as_it_is() -> None:
    old = table(topic("orders", (1, 5)))
    new, changes = old.apply(answer(topic("orders", (2, 6))), ["orders"])
    assert (old.leader(ORDERS_0), new.leader(ORDERS_0)) == (old.brokers[1], new.brokers[2])
    assert changes.moved == {ORDERS_0}


def test_leader_epochs_never_go_back() -> None:
    new, changes = table(topic("orders", (1, 5))).apply(answer(topic("orders", (2, 4))), ["orders"])
    assert new.leader(ORDERS_0) == new.brokers[1]
    assert not changes.moved


def test_an_epoch_that_many_answers_in_a_row_agree_is_lower_is_that_of_a_topic_that_was_made_again() -> None:
    """Without ids nothing else tells (2.4 to 2.7): else no leader would ever know the epoch that is kept."""
    known, lower = table(topic("orders", (1, 5))), answer(topic("orders", (2, 0)))
    for _ in range(OLDER_RESPONSES - 1):
        known = known.apply(lower, ["orders"])[0]
    known = known.apply(answer(topic("orders", (1, 5))), ["orders"])[0]  # begins to count again
    for _ in range(OLDER_RESPONSES):
        known, changes = known.apply(lower, ["orders"])
        assert known.leader(ORDERS_0) == known.brokers[1] and not changes.moved
    known, changes = known.apply(lower, ["orders"])
    assert known.leader(ORDERS_0) == known.brokers[2] and changes.moved == {ORDERS_0}


def test_without_epochs_the_last_answer_counts() -> None:
    new, changes = table(topic("orders", (1, 5))).apply(answer(topic("orders", (2, -1))), ["orders"])
    assert new.leader(ORDERS_0) == new.brokers[2]
    assert changes.moved == {ORDERS_0}


def test_a_partial_answer_leaves_other_topics_alone() -> None:
    old = table(topic("orders", (1, 5)), topic("other", (1, 1)))
    new, changes = old.apply(answer(topic("other", (2, 2))), ["other"])
    assert new.topics.keys() == {"orders", "other"}
    assert changes.moved == {TopicPartition("other", 0)}


def test_a_full_answer_drops_topics_that_are_gone() -> None:
    new, changes = table(topic("orders", (1, 5)), topic("other", (1, 1))).apply(answer(topic("other", (1, 1))), None)
    assert new.topics.keys() == {"other"}
    assert changes.removed == {ORDERS_0} and not changes.moved


def test_a_topic_that_was_asked_for_and_not_answered_is_gone() -> None:
    new, changes = table(topic("orders", (1, 5))).apply(answer(), ["orders"])
    assert "orders" not in new.topics and changes.removed == {ORDERS_0}


def test_a_recreated_topic_starts_from_scratch() -> None:
    old = table(topic("orders", (1, 50), (1, 50), topic_id=ID_1))
    new, changes = old.apply(answer(topic("orders", (1, 0), topic_id=ID_2)), ["orders"])
    partition = new.partition(ORDERS_0)
    assert partition is not None and partition.leader_epoch == 0
    assert changes.recreated == {"orders"}
    assert changes.removed == {ORDERS_0, ORDERS_1} and changes.moved == {ORDERS_0}


def test_a_topic_that_was_gone_for_a_while_is_recreated_all_the_same() -> None:
    deleted, changes = table(topic("orders", (1, 50), topic_id=ID_1)).apply(
        answer(topic("orders", error=UNKNOWN_TOPIC_OR_PARTITION)), ["orders"]
    )
    assert deleted.topic_id("orders") == ID_1 and changes.removed == {ORDERS_0} and not changes.recreated
    new, changes = deleted.apply(answer(topic("orders", (1, 0), topic_id=ID_2)), ["orders"])
    assert new.topic_id("orders") == ID_2 and changes.recreated == {"orders"}


def test_a_topic_that_an_answer_about_all_topics_left_out_is_another_one_when_it_is_back() -> None:
    former, new = topic("orders", (1, 50), topic_id=ID_1), topic("orders", (2, 0), topic_id=ID_2)
    deleted, changes = table(former).apply(answer(), None)
    assert deleted.topics["orders"].error_code == UNKNOWN_TOPIC_OR_PARTITION and changes.removed == {ORDERS_0}
    recreated, changes = deleted.apply(answer(new), None)
    assert recreated.topic_id("orders") == ID_2 and changes.recreated == {"orders"}
    later, changes = recreated.apply(answer(former), None)  # of a broker that has not heard of it
    assert later.topics == recreated.topics and not changes.recreated


def test_a_broker_that_has_not_heard_of_the_new_topic_does_not_bring_the_former_one_back() -> None:
    former, new = topic("orders", (1, 50), topic_id=ID_1), topic("orders", (2, 0), topic_id=ID_2)
    recreated = table(former).apply(answer(new), ["orders"])[0]
    later, changes = recreated.apply(answer(former), ["orders"])
    assert later.topics == recreated.topics and not changes.recreated and not changes.moved


def test_an_answer_without_ids_keeps_the_known_id() -> None:
    new, changes = table(topic("orders", (1, 5), topic_id=ID_1)).apply(answer(topic("orders", (1, 5))), ["orders"])
    assert new.topics["orders"].topic_id == ID_1 and not changes.recreated
    assert new.topic_name(ID_1) == "orders"


def test_a_topic_asked_by_id_keeps_its_known_name() -> None:
    old = table(topic("orders", (1, 5), topic_id=ID_1))
    new, _ = old.apply(answer(topic(None, (2, 6), topic_id=ID_1), topic(None, topic_id=ID_2, error=100)), ["orders"])
    assert new.leader(ORDERS_0) == new.brokers[2]
    assert new.topics.keys() == {"orders"}


def test_an_error_of_a_topic_is_kept_beside_it() -> None:
    new, _ = table(topic("orders", (1, 5))).apply(answer(topic("orders", error=29)), ["orders"])
    assert new.topics["orders"].error_code == 29 and not new.topics["orders"].partitions


@pytest.mark.parametrize(("error", "leader", "kept"), [(9, 1, 0), (5, -1, 5), (72, -1, 72)])
def test_only_a_missing_leader_makes_a_partition_unusable(error: int, leader: int, kept: int) -> None:
    partition = table(topic("orders", (1, 5), errors=[error])).partition(ORDERS_0)
    assert partition is not None and (partition.leader, partition.error_code) == (leader, kept)


def test_brokers_that_left_are_named() -> None:
    new, changes = table(topic("orders", (1, 5))).apply(answer(brokers=[2]), [])
    assert changes.brokers_gone == {1}
    assert new.leader(ORDERS_0) is None and new.partition(ORDERS_0) is not None


def test_an_answer_without_brokers_leaves_those_that_are_known() -> None:
    new, changes = table(topic("orders", (1, 5))).apply(answer(brokers=[]), [])
    assert new.leader(ORDERS_0) == BrokerEndpoint(1, "b1", 9092, "r1") and not changes.brokers_gone


def test_a_cluster_can_ask_to_begin_again() -> None:
    new, changes = table(topic("orders", (1, 5))).apply(answer(error=129), None)
    assert changes.bootstrap_again and changes.removed == {ORDERS_0} and changes.brokers_gone == {1, 2}
    assert new == KafkaRoutingTable()


def test_a_hint_with_a_newer_epoch_moves_the_leader_at_once() -> None:
    old = table(topic("orders", (1, 5)))
    new, changed = old.hint(ORDERS_0, 2, 6)
    assert changed and new.leader(ORDERS_0) == old.brokers[2]
    assert old.leader(ORDERS_0) == old.brokers[1]


def test_a_hint_can_name_a_new_broker() -> None:
    new, changed = table(topic("orders", (1, 5))).hint(
        ORDERS_0, 7, 6, [NodeEndpoint(node_id=7, host="b7", port=9, rack=None)]
    )
    assert changed and new.leader(ORDERS_0) == BrokerEndpoint(7, "b7", 9, None)


@pytest.mark.parametrize(
    ("where", "leader", "epoch"), [(ORDERS_0, 2, 5), (ORDERS_0, 9, 6), (TopicPartition("unknown", 0), 2, 6)]
)
def test_a_hint_that_says_nothing_new_changes_nothing(where: TopicPartition, leader: int, epoch: int) -> None:
    old = table(topic("orders", (1, 5)))
    assert old.hint(where, leader, epoch) == (old, False)


def test_epochs_of_a_version_that_may_be_stale_are_not_taken() -> None:
    """Before Metadata 9 (Kafka 2.4) brokers may go on naming an old epoch (KAFKA-9212)."""
    known = table(topic("orders", (1, 5)))
    after, _ = known.apply(answer(topic("orders", (2, 4))), None, leader_epochs=False)
    partition = after.partition(ORDERS_0)
    assert partition is not None
    assert (partition.leader, partition.leader_epoch) == (2, -1)
