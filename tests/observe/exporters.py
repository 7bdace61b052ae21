"""An exporter that reads while a client is observed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

__all__ = ["write_while_it_reads"]

READINGS = 8


def write_while_it_reads(write: Callable[[int], None], read: Callable[[], float]) -> tuple[int, list[float]]:
    """Call `write` with 0, 1, ... while another thread reads, until that has read often enough. Threads are switched
    as often as Python can. Return how often `write` was called, and what was read."""
    written, readings = 0, []
    with _switching(), ThreadPoolExecutor(1) as pool:
        stop = Event()

        def export() -> None:
            while not stop.is_set():
                readings.append(read())

        exporting = pool.submit(export)
        try:
            while len(readings) < READINGS and not exporting.done():
                write(written)
                written += 1
        finally:
            stop.set()
        exporting.result(timeout=60)
    return written, readings


@contextmanager
def _switching() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
