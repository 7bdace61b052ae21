"""Choose the partition of a record as Kafka's own producer does.

A partitioner is a function `(topic, key, count) -> index | None`; None means "no preference": then a `StickyChoice` or
a `UniformChoice` returns the partition whose batch is filling now.

Source: KIP-480 (sticky), KIP-794 (strictly uniform), org.apache.kafka.common.utils.Utils.murmur2.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from struct import iter_unpack

from odradek.errors import ConfigError

__all__ = ["Murmur2", "StickyChoice", "UniformChoice", "murmur2", "positive"]

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
    """Kafka's default for records with a key: the murmur2 hash of the key modulo the number of partitions.

    Records without a key have no preference.
    """

    keyless_is_sticky = True

    def __call__(self, topic: str, key: bytes | None, count: int) -> int | None:
        return None if key is None else positive(murmur2(key)) % count


class StickyChoice:
    """The partition for records without a key: one per topic until its batch is complete, then another (KIP-480).

    Args:
        randrange: Returns a random number from 0 up to, but not including, its argument.
    """

    def __init__(self, randrange: Callable[[int], int]) -> None:
        self._randrange = randrange
        self._current: dict[str, int] = {}

    def current(self, topic: str, available: Sequence[int]) -> int:
        """Return the current partition, one of `available` (those with a leader; not empty)."""
        partition = self._current.get(topic)
        if partition is None or partition not in available:
            return self._choose(topic, available)
        return partition

    def batch_complete(self, topic: str, partition: int, available: Sequence[int]) -> None:
        """Choose another partition if there is one, because a batch of `partition` is complete."""
        if self._current.get(topic) == partition:
            self._choose(topic, [p for p in available if p != partition] or available)

    def _choose(self, topic: str, available: Sequence[int]) -> int:
        if not available:
            raise ConfigError(f"topic {topic}: no partition has a leader; wait for the metadata to change")
        self._current[topic] = partition = available[self._randrange(len(available))]
        return partition


@dataclass(slots=True)
class _Filling:
    partition: int
    produced_bytes: int = 0


@dataclass(slots=True)
class UniformChoice:
    """The partition for records without a key: changes after `batch_bytes`, and prefers short queues (KIP-794).

    The number of bytes decides, not the number of batches: a slow broker, whose batches are larger, gets no more
    than the others.

    Args:
        batch_bytes: How much one partition gets before another is chosen (bytes).
        randrange: Returns a random number from 0 up to, but not including, its argument.
    """

    batch_bytes: int
    randrange: Callable[[int], int]
    _filling: dict[str, _Filling] = field(default_factory=dict)
    _weights: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)

    def current(self, topic: str, available: Sequence[int]) -> int:
        """Return the current partition, one of `available` (those with a leader; not empty)."""
        filling = self._filling.get(topic)
        if filling is None or filling.partition not in available:
            filling = self._filling[topic] = _Filling(self._draw(topic, available))
        return filling.partition

    def appended(self, topic: str, size: int, available: Sequence[int]) -> None:
        """Count `size` bytes appended to the current partition, and choose another after `batch_bytes`."""
        filling = self._filling[topic]
        filling.produced_bytes += size
        if filling.produced_bytes >= self.batch_bytes:
            self._filling[topic] = _Filling(self._draw(topic, available))

    def update_queues(self, topic: str, queued: Mapping[int, int]) -> None:
        """Apply the number of queued batches of each partition: those with long queues are chosen less often."""
        longest = max(queued.values(), default=0)
        partitions = sorted(queued)
        self._weights[topic] = partitions, list(accumulate(longest + 1 - queued[p] for p in partitions))

    def _draw(self, topic: str, available: Sequence[int]) -> int:
        if not available:
            raise ConfigError(f"topic {topic}: no partition has a leader; wait for the metadata to change")
        partitions, sums = self._weights.get(topic, ([], []))
        if set(partitions) != set(available):  # the queues are unknown, or those of other partitions
            return available[self.randrange(len(available))]
        return partitions[bisect_right(sums, self.randrange(sums[-1]))]
