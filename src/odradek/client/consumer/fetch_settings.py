"""How a fetcher behaves, from the options of readers and consumers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from odradek.client.options import Tuning
from odradek.core.backoff import Backoff
from odradek.core.fetch.read_ahead import LEAST_BYTES, ReadAheadLimits
from odradek.core.interfaces import DecoderOptions
from odradek.errors import ConfigError
from odradek.types import PositionSpec

__all__ = ["FetchSettings", "fetch_settings"]


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """How a fetcher behaves.

    Args:
        limits: Bounds in bytes.
        decoder: How messages are decoded.
        reset: Where a partition goes on whose position the log no longer has; None raises the broker's error.
        idle: How long to wait when no partition had anything: 0.7 answers at once, so this is the polling interval.
            It starts short for the sake of latency and grows for the sake of the broker (Scala: 1 s from the start).
        lost: How long to wait after a lost connection.
    """

    limits: ReadAheadLimits
    decoder: DecoderOptions = field(default_factory=DecoderOptions)
    reset: PositionSpec | None = None
    idle: Backoff = field(default_factory=lambda: Backoff(first_s=0.005, max_s=0.1))
    lost: Backoff = field(default_factory=Backoff)


def fetch_settings(
    tuning: Tuning,
    *,
    read_ahead_bytes: int,
    corrupt: str,
    max_message_bytes: int,
    reset: PositionSpec | Literal["fail"],
) -> FetchSettings:
    """From the options of readers and consumers. Raises ConfigError for one that cannot work."""
    if read_ahead_bytes <= 0 or max_message_bytes <= 0:
        raise ConfigError(f"ahead and max_message are numbers of bytes, not {read_ahead_bytes} and {max_message_bytes}")
    if corrupt not in ("fail", "skip", "raw"):
        raise ConfigError(f"corrupt is 'fail', 'skip' or 'raw', not {corrupt!r}")
    limits = ReadAheadLimits(
        read_ahead_bytes=read_ahead_bytes,
        part=tuning.fetch_bytes,
        least=min(LEAST_BYTES, read_ahead_bytes, tuning.fetch_bytes),
    )
    idle = Backoff(first_s=min(0.005, tuning.fetch_idle), max_s=tuning.fetch_idle)
    decoder = DecoderOptions(max_message_bytes=max_message_bytes, corrupt=corrupt, defer=True)
    return FetchSettings(limits, decoder, None if reset == "fail" else reset, idle, tuning.backoff)
