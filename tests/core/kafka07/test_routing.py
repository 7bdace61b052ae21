"""Routing tables: what each event makes of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from odradek.core.interfaces import RoutingTable
from odradek.core.kafka07.routing import BrokersChanged, Event, Kafka07RoutingTable, TopicChanged
from odradek.types import Broker, TopicPartition, by_broker

B1, B2, B10 = (Broker(n, "h", 9000 + n) for n in (1, 2, 10))


def brokers(*live: Broker) -> BrokersChanged:
    return BrokersChanged({b.id: b for b in live})


def tp(broker: int, partition: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, partition, broker)


def after(*events: Event) -> Kafka07RoutingTable:
    table = Kafka07RoutingTable()
    for event in events:
        table = table.apply(event)
    return table


def test_a_table_is_a_routing_table() -> None:
    table: RoutingTable = Kafka07RoutingTable()
    assert (table.version, table.topics, table.partitions("t"), table.registered("t")) == (0, frozenset(), (), ())
    assert table.leader(tp(1, 0)) is None


def test_an_unknown_topic_has_partition_zero_of_every_live_broker() -> None:
    for table in (after(brokers(B10, B2)), after(brokers(B10, B2), TopicChanged("t", {}))):
        assert table.partitions("t") == (tp(2, 0), tp(10, 0))
        assert table.registered("t") == ()
        assert table.topics == frozenset()


def test_partitions_sort_as_numbers() -> None:
    table = after(brokers(B10, B2), TopicChanged("t", {10: 11, 2: 1}))
    assert table.partitions("t") == (tp(2, 0), *(tp(10, n) for n in range(11)))
    assert table.topics == {"t"}


def test_who_saw_the_topic_unpublished_keeps_partition_zero_of_brokers_that_do_not_publish_it_yet() -> None:
    table = after(brokers(B1, B2), TopicChanged("t", {}), TopicChanged("t", {1: 3}))
    assert table.partitions("t") == (tp(1, 0), tp(1, 1), tp(1, 2), tp(2, 0))
    assert table.registered("t") == (tp(1, 0), tp(1, 1), tp(1, 2))


def test_who_meets_the_topic_published_uses_only_what_is_published() -> None:
    table = after(brokers(B1, B2), TopicChanged("t", {1: 3}))
    assert table.partitions("t") == (tp(1, 0), tp(1, 1), tp(1, 2))


def test_a_broker_that_comes_after_the_topic_was_published_is_not_offered() -> None:
    table = after(brokers(B1), TopicChanged("t", {}), TopicChanged("t", {1: 1}), brokers(B1, B2))
    assert table.partitions("t") == (tp(1, 0),)


def test_a_broker_that_comes_while_the_topic_is_unpublished_is_offered_and_kept() -> None:
    table = after(brokers(B1), TopicChanged("t", {}), brokers(B1, B2), TopicChanged("t", {1: 1}))
    assert table.partitions("t") == (tp(1, 0), tp(2, 0))


def test_dead_brokers_leave_every_list_and_do_not_come_back_as_an_offer() -> None:
    table = after(brokers(B1, B2), TopicChanged("t", {}), TopicChanged("t", {1: 1}), brokers(B1))
    assert table.partitions("t") == (tp(1, 0),)
    table = table.apply(brokers(B1, B2))
    assert table.partitions("t") == (tp(1, 0),)


def test_a_topic_whose_publishers_all_died_is_offered_everybody_else() -> None:
    table = after(brokers(B1, B2), TopicChanged("t", {1: 2}), brokers(B2))
    assert table.partitions("t") == (tp(2, 0),)
    assert table.topics == frozenset()


def test_shrunk_counts_are_forgotten() -> None:
    table = after(brokers(B1), TopicChanged("t", {1: 3})).apply(TopicChanged("t", {1: 1}))
    assert table.partitions("t") == (tp(1, 0),)


def test_an_event_that_says_nothing_new_changes_nothing() -> None:
    table = after(brokers(B1), TopicChanged("t", {1: 3}))
    for event in (brokers(B1), TopicChanged("t", {1: 3})):
        assert table.apply(event) is table
    assert table.apply(brokers(B1), TopicChanged("t", {1: 3})) is table


def test_several_events_make_one_version() -> None:
    table = after(brokers(B1)).apply(brokers(B1, B2), TopicChanged("t", {1: 1}), TopicChanged("u", {2: 1}))
    assert table.version == 2 and table.topics == {"t", "u"}
    assert table.partitions("u") == (tp(2, 0, "u"),)


def test_an_event_leaves_the_topics_it_does_not_touch_as_they_are() -> None:
    """The cost of a table follows what changed: 1,000 topics are not computed again for one more."""
    table = after(brokers(B1, B2), *(TopicChanged(f"t{n}", {1: 2}) for n in range(3)))
    later = table.apply(TopicChanged("u", {1: 1})).apply(brokers(B1, B2, B10))
    assert all(later.partitions(f"t{n}") is table.partitions(f"t{n}") for n in range(3))


def test_a_broker_with_another_address_leads_its_partitions_there() -> None:
    table = after(brokers(B1, B2), TopicChanged("t", {1: 2, 2: 1}))
    elsewhere = table.apply(brokers(B1._replace(port=1), B2))
    assert elsewhere.leader(tp(1, 1)) == B1._replace(port=1)
    assert elsewhere.partitions("t") == table.partitions("t")
    assert elsewhere.apply(brokers(B1)).leader(tp(2, 0)) is None


def test_a_topic_is_known_once_it_was_looked_up() -> None:
    table = after(brokers(B1))
    assert not table.has_looked_up("t")
    table = table.apply(TopicChanged("t", {}))
    assert table.has_looked_up("t") and table.looked_up == {"t"}
    assert table.counts("t") == {} and table.apply(TopicChanged("t", {1: 2})).counts("t") == {1: 2}


ids = st.integers(1, 4)
events = st.one_of(
    st.sets(ids).map(lambda live: BrokersChanged({n: Broker(n, "h", n) for n in live})),
    st.builds(TopicChanged, st.sampled_from(["t", "u"]), st.dictionaries(ids, st.integers(0, 3))),
)


@given(st.lists(events, max_size=12))
def test_after_any_events_the_table_holds_together(story: list[Event]) -> None:
    table = Kafka07RoutingTable()
    for event in story:
        before = table
        table = before.apply(event)
        assert (table.version > before.version) == (table is not before)
        for topic in ("t", "u"):
            partitions = table.partitions(topic)
            assert list(partitions) == sorted(set(partitions), key=by_broker)
            assert set(table.registered(topic)) <= set(partitions)
            assert bool(partitions) == bool(table.brokers)
            assert all(table.leader(p) is not None for p in partitions)
