"""Settings of a fetcher, made from the options of readers and consumers."""

from __future__ import annotations

from typing import Literal, NamedTuple

from odradek.client.options import Tuning
from odradek.core.backoff import Backoff
from odradek.core.fetch.read_ahead import MIN_FETCH_BYTES, ReadAheadLimits
from odradek.core.fetch.scheduler import FetchPolicy
from odradek.core.interfaces import DecoderOptions
from odradek.errors import ConfigError
from odradek.types import AtTime, PositionSpec

__all__ = ["FetchSettings", "fetch_settings"]

FIRST_IDLE_S = 0.005
"""First pause after an empty response: short for latency. It grows to spare the broker (Scala: 1 s from the start)."""

LONG_POLL_S = 0.5
"""Time a broker may hold back an empty response, if it can (s)."""


class FetchSettings(NamedTuple):
    """Settings of a fetcher.

    Args:
        limits: Bounds in bytes.
        policy: Policy for responses that bring nothing.
        decoder: Options for decoding messages.
    """

    limits: ReadAheadLimits
    policy: FetchPolicy
    decoder: DecoderOptions = DecoderOptions()


def fetch_settings(
    tuning: Tuning,
    *,
    read_ahead_bytes: int,
    corrupt: str,
    max_message_bytes: int,
    reset: PositionSpec | AtTime | Literal["fail"],
    isolation: str,
    long_poll: bool,
    keep_encoded: str | None = None,
) -> FetchSettings:
    """Return the settings for these options. Raises ConfigError for one that cannot work.

    Args:
        long_poll: `ProtocolDriver.long_poll`. The other arguments are options of readers and consumers.
    """
    if read_ahead_bytes <= 0 or max_message_bytes <= 0:
        raise ConfigError(
            f"read_ahead_bytes={read_ahead_bytes} and max_message_bytes={max_message_bytes}: must be more than 0"
        )
    if corrupt not in ("fail", "skip", "raw"):
        raise ConfigError(f"corrupt={corrupt!r}: must be 'fail', 'skip' or 'raw'")
    if keep_encoded is not None and corrupt != "fail":
        raise ConfigError(f"keep_encoded={keep_encoded!r} needs corrupt='fail', not {corrupt!r}")
    limits = ReadAheadLimits(
        read_ahead_bytes=read_ahead_bytes,
        fetch_bytes=tuning.fetch_bytes,
        min_bytes=min(MIN_FETCH_BYTES, read_ahead_bytes, tuning.fetch_bytes),
    )
    policy = FetchPolicy(
        idle=Backoff(first_s=min(FIRST_IDLE_S, tuning.fetch_idle), max_s=tuning.fetch_idle),
        retry=tuning.backoff,
        reset=None if reset == "fail" else reset,
        long_poll_s=LONG_POLL_S if long_poll else 0.0,
    )
    decoder = DecoderOptions(
        max_message_bytes=max_message_bytes,
        corrupt=corrupt,
        defer_decompression=True,
        read_committed=isolation == "read_committed",
        keep_encoded=keep_encoded,
    )
    return FetchSettings(limits, policy, decoder)
