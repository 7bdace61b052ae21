"""Choose the partition of a record as Kafka's own producer does.

A partitioner is a function `(topic, key, count) -> index | None`; None means "no preference".

Source: org.apache.kafka.common.utils.Utils.murmur2.
"""

from __future__ import annotations

from odradek import engine
from odradek.core.produce.partitioners import check_arguments

__all__ = ["Murmur2", "murmur2", "positive"]


def murmur2(data: bytes) -> int:
    """Return the 32-bit murmur2 hash of `data` as a signed number, as Java does."""
    return engine.active.murmur2(data)


def positive(number: int) -> int:
    """Return the number with its sign bit cleared. This is not its absolute value."""
    return number & 0x7FFFFFFF


class Murmur2:
    """`murmur2(key) % count`, the sign bit of the hash cleared: the rule of Kafka's Java producer, and so of Kafka
    Streams, Connect, Spark, aiokafka and kafka-python, and of librdkafka as `murmur2_random`. The default but for 0.7.

    Records without a key have no preference.
    Source: org.apache.kafka.clients.producer.internals.BuiltInPartitioner.
    """

    keyless_is_sticky = True
    key_hash = "murmur2"

    def __call__(self, topic: str, key: bytes | None, count: int) -> int | None:
        try:
            return None if key is None else positive(engine.active.murmur2(key)) % count
        except (TypeError, ZeroDivisionError):
            check_arguments(topic, key, count)
            raise
