"""Waits until other processes leave the machine alone: their use of processors would be measured as ours.

The load average is no measure for that: it remembers a minute, and with it the benchmark before. The busy share of all
processors over a few seconds, from /proc/stat, is.
"""

from __future__ import annotations

from pathlib import Path
from time import monotonic, sleep

__all__ = ["QUIET_SHARE", "wait_until_quiet"]

QUIET_SHARE = 0.1
"""Busy share of all processors below which the machine counts as quiet."""
SAMPLE_SECONDS = 3.0
PATIENCE_SECONDS = 180.0
"""Longest wait for a quiet machine; then the benchmark runs all the same, and its results say so."""

STAT = Path("/proc/stat")
IDLE, IOWAIT = 3, 4
"""Columns of /proc/stat, the label left out."""


def wait_until_quiet(patience_s: float = PATIENCE_SECONDS) -> float:
    """Wait until the machine is quiet, at most `patience_s`, and say what happens.

    Returns:
        The busy share of all processors in the last sample, 0 to 1; 0 where there is no /proc/stat.
    """
    if not STAT.exists():
        print("no /proc/stat: cannot tell whether the machine is quiet")
        return 0.0
    began = monotonic()
    busy = busy_share(SAMPLE_SECONDS)
    if busy >= QUIET_SHARE:
        print(f"processors are {busy:.0%} busy; waiting until that is below {QUIET_SHARE:.0%}", flush=True)
    while busy >= QUIET_SHARE and monotonic() - began < patience_s:
        busy = busy_share(SAMPLE_SECONDS)
    waited = monotonic() - began - SAMPLE_SECONDS
    if busy >= QUIET_SHARE:
        print(f"still {busy:.0%} busy after {waited:.0f} s: measuring all the same; compare nothing with these results")
    elif waited >= SAMPLE_SECONDS:
        print(f"quiet after {waited:.0f} s")
    return busy


def busy_share(seconds: float) -> float:
    """Return the share of time that processors were busy during the next `seconds`."""
    idle, total = _times()
    sleep(seconds)
    idle_after, total_after = _times()
    return 1 - (idle_after - idle) / max(total_after - total, 1)


def _times() -> tuple[int, int]:
    """The idle time and the total time of all processors since the machine started (in ticks)."""
    ticks = [int(text) for text in STAT.read_text().splitlines()[0].split()[1:]]
    return ticks[IDLE] + ticks[IOWAIT], sum(ticks[:8])
