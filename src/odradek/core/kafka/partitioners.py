"""Choose the partition of a record as Kafka's own producer does.

A partitioner is a function `(topic, key, count) -> index | None`; None means "no preference".

Source: org.apache.kafka.common.utils.Utils.murmur2.
"""

from __future__ import annotations

from struct import iter_unpack

from odradek.core.produce.partitioners import check_arguments

__all__ = ["Murmur2", "murmur2", "positive"]

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the 32-bit murmur2 hash of `data` as a signed number, as Java does."""
    whole = len(data) & ~3
    h = _SEED ^ len(data)
    for (k,) in iter_unpack("<I", memoryview(data)[:whole]):
        k = k * _MULTIPLIER & _MASK
        k = (k ^ k >> 24) * _MULTIPLIER & _MASK
        h = h * _MULTIPLIER & _MASK ^ k
    if whole != len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    h = (h ^ h >> 13) * _MULTIPLIER & _MASK
    h ^= h >> 15
    return h - (1 << 32) if h >> 31 else h


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

    def __call__(self, topic: str, key: bytes | None, count: int) -> int | None:
        try:
            return None if key is None else positive(murmur2(key)) % count
        except (TypeError, ZeroDivisionError):
            check_arguments(topic, key, count)
            raise
