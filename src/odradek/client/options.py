"""The numbers behind the budgets: for experts. Nobody needs to set one."""

from __future__ import annotations

from dataclasses import dataclass, fields

from odradek.core.backoff import Backoff
from odradek.errors import ConfigError
from odradek.types import KiB, MiB

__all__ = ["Tuning"]


@dataclass(frozen=True, slots=True)
class Tuning:
    """What `connect` takes for all it opens. Each default is written here, once.

    Args:
        connect_timeout: For one connection, look-up included (s).
        request_timeout: For one answer of a broker (s). A connection without one is closed.
        session_timeout: ZooKeeper notices our death after this (s). The default is that of 0.7's clients.
        backoff: Between attempts after a failure.
        batch_bytes: A batch for one partition is full at this size, uncompressed.
        request_bytes: Batches for several partitions of a broker share a request up to this size. The broker's
            max.socket.request.bytes (100 MB) must not be less.
        in_flight: Produce requests a broker may owe an answer to at one time.
        fetch_bytes: One partition's part of one fetch.
        fetch_idle: Longest pause before a broker that had nothing new is asked again (s). 0.7 has no long polling:
            this is the worst added latency on a quiet topic, and its inverse the requests an idle consumer makes. Of
            more than a thousand quiet partitions each is asked after 50 us for each of them at the earliest.
    """

    connect_timeout: float = 5.0
    request_timeout: float = 10.0
    session_timeout: float = 6.0
    backoff: Backoff = Backoff(max_s=1.0)  # noqa: RUF009 - frozen
    batch_bytes: int = 256 * KiB
    request_bytes: int = 1 * MiB
    in_flight: int = 16
    fetch_bytes: int = 1 * MiB
    fetch_idle: float = 0.1

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name != "backoff" and not value > 0:
                raise ConfigError(f"Tuning.{option.name} must be more than 0, not {value!r}")
