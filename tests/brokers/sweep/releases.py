"""The releases of the sweep, and which of them a run of the tests has."""

from __future__ import annotations

from .behaviour import BEHAVIOURS, Behaviour

__all__ = ["RELEASES", "chosen_releases", "is_tried"]

RELEASES: dict[str, str] = {
    "0.8.0": "Produce 0, Fetch 0, Metadata 0: the first of each; no positions are stored",
    "0.8.1.1": "",
    "0.8.2.2": "OffsetCommit 1: brokers store positions; lz4",
    "0.9.0.1": "JoinGroup 0: groups; OffsetCommit 2; Produce 1, Fetch 1: brokers tell how long they throttle",
    "0.10.0.1": "",
    "0.10.1.1": "",
    "0.10.2.2": "Produce 2: times; Fetch 3: limits of a whole response; JoinGroup 1: time for a rebalance; Metadata 2",
    "0.11.0.3": "InitProducerId 0, Produce 3, Fetch 5: sequences and transactions; a broker remembers one batch",
    "1.0.2": "",
    "1.1.1": "Produce 5: five batches are remembered; Fetch 7: sessions",
    "2.0.1": "",
    "2.1.1": "Produce 7: zstd; Fetch 10, Metadata 7, OffsetCommit 6: leader epochs",
    "2.2.2": "",
    "2.3.1": "JoinGroup 5: member ids from the broker; Fetch 11: the nearest replica",
    "2.4.1": "",
    "2.5.1": "JoinGroup 7, InitProducerId 3: raised epochs, generations in transactions; Produce 8, Metadata 9",
    "2.6.3": "",
    "2.7.2": "",
    "2.8.2": "Metadata 10: topics have ids, which Fetch 12 does not",
    "3.0.2": "",
    "3.1.2": "Fetch 13: sessions by topic ids",
    "3.2.3": "",
    "3.3.2": "",
    "3.4.1": "",
    "3.5.2": "",
    "3.6.2": "",
    "3.7.2": "",
    "3.8.1": "",
    "3.9.1": "",
    "4.0.0": "nothing older than Produce 3 and Fetch 4; Produce 12: transactions of version 2; groups of KIP-848",
    "4.1.0": "",
    "4.2.0": "",
    "4.3.1": "the newest: Produce 13, OffsetCommit 10: by topic ids",
}
"""Every release that the sweep runs on -> why runs of the tests have it: a version of Produce, Fetch, Metadata,
OffsetCommit, JoinGroup or InitProducerId changes what the client may do."""

_OLDEST, _NEWEST = "0.8.0", "4.3.1"
_PAIR = ("0.10.2.2", "2.8.2")


def chosen_releases(brokers: str) -> list[str]:
    """Return the releases that an option `--brokers` means: those with a reason, all, or those that it names."""
    if brokers == "matrix":
        return [version for version, why in RELEASES.items() if why]
    return list(RELEASES) if brokers == "all" else [each for each in RELEASES if each in brokers.split(",")]


def is_tried(brokers: str, version: str, each: Behaviour, seed: int) -> bool:
    """Return whether a run tries a behaviour on a chosen release that has what it is about.

    A run with `--brokers` tries everything. Any other has all behaviours on the newest release; what takes at most five
    seconds on the oldest one; that and every second of the slow ones on 0.10.2.2 or 2.8.2; and on every fourth of the
    other releases every second of those that take at most five seconds. `seed` says which: eight that follow each other
    have them all.
    """
    if brokers != "matrix" or version == _NEWEST:
        return True
    if version == _OLDEST:
        return not each.slow
    number = BEHAVIOURS.index(each)
    if version in _PAIR:
        return _PAIR.index(version) == seed % 2 and not (each.slow and (number + seed // 2) % 2)
    others = [name for name in chosen_releases(brokers) if name not in (_OLDEST, *_PAIR, _NEWEST)]
    return not each.slow and (others.index(version) + seed) % 4 == 0 and (number + seed // 4) % 2 == 0
