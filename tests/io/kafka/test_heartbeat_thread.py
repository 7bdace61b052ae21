"""The thread that sends heartbeats while a loop is blocked, apart from brokers: when it ends, and what it names."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from odradek.io.connection import ConnectionOptions
from odradek.io.kafka import heartbeat_thread
from odradek.io.kafka.connections import BrokerConnections
from odradek.io.kafka.heartbeat_thread import Heartbeat, HeartbeatThread, describe_call
from odradek.types import Broker
from odradek.wire.kafka.messages.groups import HeartbeatRequest

NOWHERE = Heartbeat(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), Broker(1, "127.0.0.1", 1))
NAME = "odradek heartbeats of g"


def nowhere() -> BrokerConnections:
    return BrokerConnections(frozenset(), client_id="c", request_timeout_s=0.2, options=ConnectionOptions())


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What threads of this module have logged: others may log, too."""
    return [record.getMessage() for record in list(caplog.records) if record.threadName == NAME]


@pytest.fixture
def thread() -> Iterator[HeartbeatThread]:
    made = HeartbeatThread("g", nowhere, interval_s=0.1, max_blocked_s=1.0, rebalance_timeout_s=60.0)
    yield made
    made.stop()
    join()


def running() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


def join() -> None:
    for thread in running():
        thread.join(10)
        assert not thread.is_alive()


def test_it_ends_when_it_is_stopped_also_while_it_sends(
    thread: HeartbeatThread, caplog: pytest.LogCaptureFixture
) -> None:
    thread.start()
    thread.loop_runs(NOWHERE)
    while not lines(caplog):
        time.sleep(0.01)  # it is blocked: the thread tries to send
    thread.stop()
    join()
    assert "has blocked the event loop" in lines(caplog)[0]


def test_without_a_generation_nothing_is_sent(thread: HeartbeatThread, caplog: pytest.LogCaptureFixture) -> None:
    thread.start()
    thread.loop_runs(None)
    time.sleep(0.5)
    assert not lines(caplog) and running()


def test_it_says_once_why_it_reaches_no_coordinator_and_once_that_it_gives_up(
    thread: HeartbeatThread, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    fake = SimpleNamespace(monotonic=lambda: now, process_time=lambda: 0.0)
    monkeypatch.setattr(heartbeat_thread, "time", fake)
    thread.start()
    thread.loop_runs(NOWHERE)
    now = 0.9
    while not any("trying again" in line for line in lines(caplog)):
        time.sleep(0.01)
    now = 1.1
    while not any("no more heartbeats" in line for line in lines(caplog)):
        time.sleep(0.01)
    blocked, failed, ended = lines(caplog)
    assert "for at most 1 s, and a rebalance waits at most 60 s" in blocked
    assert "127.0.0.1:1" in failed and failed.endswith("trying again")
    assert ended.startswith("g: ")
    time.sleep(0.3)
    assert len(lines(caplog)) == 3 and running()


@pytest.mark.parametrize(("cpu", "reason"), [(0.1, "the process did not run"), (5.0, "kept Python's global lock")])
def test_a_time_in_which_no_thread_could_run_is_no_fault_of_the_loop(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, cpu: float, reason: str
) -> None:
    now, used, woken = 0.0, 0.0, 0
    thread = HeartbeatThread("g", nowhere, interval_s=0.1, max_blocked_s=3.0, rebalance_timeout_s=60.0)

    def monotonic() -> float:
        nonlocal woken
        woken += threading.current_thread().name == NAME
        return now

    fake = SimpleNamespace(monotonic=monotonic, process_time=lambda: used)
    monkeypatch.setattr(heartbeat_thread, "time", fake)
    thread.loop_runs(NOWHERE)
    thread.start()
    while not woken:
        time.sleep(0.01)
    now, used = 5.0, cpu
    while not lines(caplog):
        time.sleep(0.01)
    woken = 0
    while woken < 3:
        time.sleep(0.01)  # it looks again, and finds no fault
    thread.stop()
    join()
    (line,) = lines(caplog)
    assert line.startswith("g: no heartbeats for 5.0 s: ") and reason in line


def test_no_process_is_kept_alive_by_it() -> None:
    script = (
        "from tests.io.kafka.test_heartbeat_thread import *\n"
        "thread = HeartbeatThread('g', nowhere, interval_s=0.05, max_blocked_s=60.0, rebalance_timeout_s=60.0)\n"
        "thread.start(); thread.loop_runs(NOWHERE); time.sleep(0.5); print(len(running()))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "1\n"
    assert "Traceback" not in done.stderr


def test_the_function_that_blocks_is_named_with_its_line() -> None:
    started, done = threading.Event(), threading.Event()

    def helper() -> None:
        started.set()
        done.wait(10)

    async def handler() -> None:
        helper()

    worker = threading.Thread(target=asyncio.run, args=(handler(),))
    worker.start()
    started.wait(10)
    assert worker.ident is not None
    name = describe_call(worker.ident)
    done.set()
    worker.join()
    assert name.startswith(f"{__name__}.test_the_function_that_blocks_is_named_with_its_line.<locals>.handler (")
    assert name.endswith(f"{__file__}:{handler.__code__.co_firstlineno + 1})")
    assert describe_call(worker.ident) == "a thread that has ended"
