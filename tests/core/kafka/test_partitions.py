"""Names of partitions: their order, and Java's order of text."""

from __future__ import annotations

from odradek.core.kafka.partitions import by_topic, java_order
from odradek.types import TopicPartition


def test_partitions_sort_by_topic_and_then_by_number() -> None:
    assert sorted([TopicPartition("b", 0), TopicPartition("a", 10), TopicPartition("a", 9)]) == [
        TopicPartition("a", 9),
        TopicPartition("a", 10),
        TopicPartition("b", 0),
    ]
    assert str(TopicPartition("a", 9)) == "a/9"


def test_partitions_are_grouped_in_the_order_in_which_they_come() -> None:
    partitions = [TopicPartition("b", 2), TopicPartition("a", 0), TopicPartition("b", 1)]
    assert list(by_topic(partitions).items()) == [("b", [2, 1]), ("a", [0])]


def test_java_compares_utf_16_units() -> None:
    high, private = "\U0001f600", "\uffee"  # by code point the first is larger, by UTF-16 unit the second
    assert high > private
    assert java_order(high) < java_order(private)
    assert java_order("a") < java_order("ab") < java_order("b")
