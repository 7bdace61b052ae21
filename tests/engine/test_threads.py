"""The compiled engine among threads: it lets others run, and nothing is used by two at once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from odradek import engine as engines
from odradek.engine import Engine

VALUES = [b"%06d" % n * 20 for n in range(20_000)]  # 2.4 MB: far above what is done without letting go


@pytest.fixture
def compiled() -> Engine:
    return engines.engine("compiled")


@pytest.fixture
def no_switches() -> Iterator[None]:
    """A thread runs on until it lets go by itself."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(before)


def lets_go(work: Callable[[], object], times: int) -> bool:
    """Whether another thread, which waits for nothing else, gets to run while this is done so many times."""
    called, ran = threading.Event(), threading.Event()

    def other() -> None:
        called.wait()
        ran.set()

    thread = threading.Thread(target=other)
    thread.start()
    called.set()
    got = any(work() is None or ran.is_set() for _ in range(times))
    thread.join()
    return got


@pytest.mark.usefixtures("no_switches")
@pytest.mark.parametrize(("count", "expected"), [(100, False), (len(VALUES), True)])
def test_only_large_buffers_are_worked_on_without_the_lock(compiled: Engine, count: int, expected: bool) -> None:
    data = compiled.encode_run(VALUES[:count])
    times = 100_000 if expected else 300  # the other thread may, but on a busy machine it has no processor for a while
    rows = compiled.ColumnBuilder()
    rows.decode_run(data, 0, len(data))
    packed = rows.take().values
    assert lets_go(lambda: compiled.check_run(data, 0, len(data)), times) is expected
    assert lets_go(lambda: compiled.ColumnBuilder().decode_run(data, 0, len(data)), times) is expected
    assert lets_go(lambda: compiled.PayloadBuilder().decode_run(data, 0, len(data)), times) is expected
    assert lets_go(lambda: compiled.encode_run(VALUES[:count]), times) is expected
    assert lets_go(lambda: compiled.encode_run(packed), times) is expected


def test_threads_decode_and_encode_side_by_side(engine: Engine) -> None:
    data = engine.encode_run(VALUES)

    def work(_: int) -> bool:
        rows = engine.ColumnBuilder()
        assert rows.decode_run(data, 0, len(data)) == len(data)
        values = rows.take().values
        return engine.check_run(data, 0, len(data)) == (len(data), len(VALUES)) and engine.encode_run(values) == data

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


def test_what_two_threads_use_at_once_raises_or_waits(compiled: Engine) -> None:
    data = compiled.encode_run(VALUES)
    rows = compiled.ColumnBuilder()
    counts: list[int] = []

    def work(_: int) -> int:
        try:
            assert rows.decode_run(data, 0, len(data)) == len(data)
            counts.append(len(rows))
        except RuntimeError as error:
            assert "borrowed" in str(error)
            return 0
        return 1

    with ThreadPoolExecutor(4) as pool:
        done = sum(pool.map(work, range(16)))
    assert done >= 1
    assert len(rows) == done * len(VALUES)
    assert list(rows.take().values) == VALUES * done


def test_a_list_that_is_emptied_meanwhile_is_encoded_as_it_was(compiled: Engine) -> None:
    expected = compiled.encode_run(VALUES)
    values = [bytes(bytearray(value)) for value in VALUES]  # nobody else has them
    begin = threading.Barrier(2)

    def empty() -> None:
        begin.wait()
        values.clear()

    thread = threading.Thread(target=empty)
    thread.start()
    begin.wait()
    encoded = compiled.encode_run(values)
    thread.join()
    assert encoded in (expected, b"")
