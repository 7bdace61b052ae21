"""`run` in processes of its own: signals, exit codes, values and errors."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from odradek.client.run import run
from odradek.errors import NotWritten
from odradek.testing import Kafka07Broker

BACKENDS = ["asyncio", "trio"]

WORKER = """
import sys
import anyio
from odradek.client.run import run

class Draining:
    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc):
        with anyio.CancelScope(shield=True):
            print("draining", flush=True)
            {drain}
            print("drained", flush=True)

async def main(name):
    async with Draining():
        print("ready", name, flush=True)
        await anyio.sleep_forever()

run(main, "steady", backend={backend!r})
"""

Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a worker, and see to it that it ends."""
    workers: list[subprocess.Popen[str]] = []

    def begin(code: str) -> subprocess.Popen[str]:
        worker = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        workers.append(worker)
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready steady\n"
        return worker

    yield begin
    for worker in workers:
        worker.kill()
        worker.communicate()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_pain_ctrl_c_and_sigterm_drain_and_exit(start: Start, number: signal.Signals, backend: str) -> None:
    worker = start(WORKER.format(backend=backend, drain="await anyio.sleep(0)"))
    worker.send_signal(number)
    out, err = worker.communicate(timeout=100)
    assert (out, err, worker.returncode) == ("draining\ndrained\n", "", 128 + number)


PRODUCING = """
import anyio
from odradek.client.connect import connect
from odradek.client.run import run

async def main():
    async with connect({url!r}) as k, k.producer(latency=1000) as out:
        for n in range(1000):
            await out.put("t", b"%d" % n)
        print("ready steady", flush=True)
        await anyio.sleep_forever()

run(main, backend={backend!r})
"""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_pain_ctrl_c_and_sigterm_flush_the_producer(start: Start, number: signal.Signals, backend: str) -> None:
    with Kafka07Broker() as broker:
        worker = start(PRODUCING.format(url=f"kafka07://{broker.address}", backend=backend))
        worker.send_signal(number)
        _, err = worker.communicate(timeout=100)
        assert (err, worker.returncode) == ("", 128 + number)
        stored = b"".join(path.read_bytes() for path in broker.log_dir.rglob("*.kafka"))
        assert len(stored) == 1000 * 10 + sum(len(b"%d" % n) for n in range(1000))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_second_signal_ends_it_at_once(start: Start, backend: str) -> None:
    worker = start(WORKER.format(backend=backend, drain="await anyio.sleep_forever()"))
    worker.send_signal(signal.SIGTERM)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "draining\n"
    worker.send_signal(signal.SIGINT)
    out, _ = worker.communicate(timeout=100)
    assert (out, worker.returncode) == ("", -signal.SIGINT)


@pytest.mark.parametrize("backend", BACKENDS)
def test_main_returns_its_value(backend: str) -> None:
    async def main(first: int, second: int) -> int:
        return first + second

    assert run(main, 1, 2, backend=backend) == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_errors_come_out_as_they_are(backend: str) -> None:
    async def main() -> None:
        raise NotWritten([], "no broker")

    with pytest.raises(NotWritten):
        run(main, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_main_may_end_the_program_with_a_code_of_its_own(backend: str) -> None:
    async def main() -> None:
        sys.exit(3)

    with pytest.raises(SystemExit) as ended:
        run(main, backend=backend)
    assert ended.value.code == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_main_that_ends_by_itself_in_spite_of_a_signal_returns_its_value(backend: str) -> None:
    import anyio

    async def main() -> str:
        with anyio.CancelScope(shield=True):
            signal.raise_signal(signal.SIGTERM)
            await anyio.sleep(0.05)
        return "done"

    before = signal.getsignal(signal.SIGTERM)
    assert run(main, backend=backend) == "done"
    assert signal.getsignal(signal.SIGTERM) == before
