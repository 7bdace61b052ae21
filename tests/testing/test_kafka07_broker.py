"""The embedded broker as a test sees it: lives, threads, bounds. What it answers is in the recorded corpus."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from odradek.errors import Closed, ConfigError
from odradek.testing import Kafka07Broker
from odradek.testing.kafka07 import BrokerHalted, StartRefused
from odradek.testing.kafka07.config import BrokerConfig
from odradek.testing.kafka07.requests import Handler
from odradek.testing.kafka07.server import FILE_READ_BYTES, READ_BYTES, ServedConnection, Server, tune
from odradek.wire.kafka07.message_set import encode_set
from odradek.wire.kafka07.requests import Fetch, MultiFetch, Produce

from .kafka07_talk import BARRIER, BARRIER_ANSWER, Talk, frame

AT_ONCE = {"log.flush.interval": "1"}
NEVER = {"log.flush.interval": "1000000", "log.default.flush.scheduler.interval.ms": "3600000"}
HELLO = encode_set([b"hello"])


@pytest.fixture
def broker() -> Iterator[Kafka07Broker]:
    with Kafka07Broker(config=AT_ONCE) as broker:
        yield broker


@pytest.fixture
def threads() -> Callable[[], list[str]]:
    """Function that returns the names of the brokers' threads, without those of brokers that other tests share."""
    others = set(threading.enumerate())
    return lambda: [
        thread.name
        for thread in threading.enumerate()
        if thread not in others and thread.name.startswith("kafka07-broker")
    ]


# ---- lives ----------------------------------------------------------------------------------------------------------


def test_plain_with_block_serves_and_leaves_nothing_behind(threads: Callable[[], list[str]]) -> None:
    with Kafka07Broker(broker_id=7, config=AT_ONCE) as broker:
        assert threads() == ["kafka07-broker-7"]
        with Talk(broker) as talk:
            talk.produce("t", b"hello")
            assert talk.fetch("t") == (0, HELLO)
        directory = broker.log_dir
        assert (directory / "t-0").is_dir()
    assert not directory.exists()
    assert threads() == []
    assert repr(broker) == f"<Kafka07Broker 7 127.0.0.1:{broker.port} down>"


@pytest.mark.anyio
async def test_async_with_block_works_on_every_loop() -> None:
    async with Kafka07Broker(config=AT_ONCE) as broker:
        async with await anyio.connect_tcp(broker.host, broker.port) as stream:
            await stream.send(frame(Produce("t", 0, HELLO)) + frame(Fetch("t", 0, 0, 1000)))
            answer = b""
            while len(answer) < 6 + len(HELLO):
                answer += await stream.receive()
            assert answer == bytes.fromhex("000000110000") + HELLO
        await anyio.to_thread.run_sync(broker.flush)
    assert not broker.running


@pytest.mark.anyio
async def test_a_cancelled_async_with_block_stops_its_broker() -> None:
    with anyio.CancelScope() as scope:
        async with Kafka07Broker() as broker:
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert not broker.running


def test_a_broker_dropped_without_stop_takes_its_temporary_directory_with_it() -> None:
    broker = Kafka07Broker()
    directory = broker.log_dir
    assert directory.is_dir()
    del broker
    gc.collect()
    assert not directory.exists()


def test_restart_keeps_port_and_data_and_start_is_idempotent(tmp_path: Path) -> None:
    with Kafka07Broker(tmp_path, config=NEVER) as broker:
        port = broker.port
        with Talk(broker) as talk:
            talk.produce("t", b"hello")
        broker.restart()
        broker.start()
        assert broker.port == port
        with Talk(broker) as talk:
            assert talk.fetch("t") == (0, HELLO)
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_kill_cuts_sockets_and_marks_nothing(tmp_path: Path) -> None:
    broker = Kafka07Broker(tmp_path, config=NEVER)
    broker.start()
    with Talk(broker) as talk:
        talk.produce("t", b"hello")
        broker.kill()
        assert talk.closed()
    broker.kill()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((broker.host, broker.port))
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    (tmp_path / "t-0" / "00000000000000000000.kafka").write_bytes(HELLO + b"garbage")
    with broker, Talk(broker) as talk:
        assert talk.fetch("t") == (0, HELLO)


def test_a_start_that_is_refused_says_why_and_can_be_tried_again(
    tmp_path: Path, threads: Callable[[], list[str]]
) -> None:
    broker = Kafka07Broker(tmp_path)
    (tmp_path / "nodash").mkdir()
    with pytest.raises(StartRefused, match="nodash"):
        broker.start()
    assert (threads(), broker.running) == ([], False)
    (tmp_path / "nodash").rmdir()
    with broker:
        assert broker.running


def test_topic_log_retention_size_is_refused_as_by_the_real_one() -> None:
    with (
        pytest.raises(StartRefused, match=r"topic\.log\.retention\.size"),
        Kafka07Broker(config={"topic.log.retention.size": "t:1"}),
    ):
        pass


def test_a_port_that_is_taken_is_an_error_that_names_it(broker: Kafka07Broker) -> None:
    with pytest.raises(ConfigError, match=str(broker.port)), Kafka07Broker(port=broker.port):
        pass


def test_a_broker_that_is_down_says_so() -> None:
    broker = Kafka07Broker()
    for method in (broker.flush, broker.run_flusher, broker.run_cleanup, broker.statistics, broker.expire_session):
        with pytest.raises(Closed):
            method()
    broker.stop()
    broker.kill()


def test_a_failing_disk_halts_the_broker_and_stop_raises_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    broker = Kafka07Broker()
    broker.start()
    with Talk(broker) as talk, monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        talk.send(Produce("t", 0, HELLO), BARRIER)
        assert talk.closed()
    with pytest.raises(BrokerHalted, match="No space left"):
        broker.stop()
    assert not (broker.log_dir / ".kafka_cleanshutdown").exists()
    with broker, Talk(broker) as talk:
        talk.sync()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_mistake_of_the_broker_surfaces_at_its_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Kafka07Broker()
    broker.start()
    with Talk(broker) as talk, monkeypatch.context() as patch:
        patch.setattr("odradek.testing.kafka07.server.decode_request", lambda body: 1 / 0)
        talk.send(BARRIER)
        assert talk.closed()
    with pytest.raises(ZeroDivisionError):
        broker.stop()


# ---- time -----------------------------------------------------------------------------------------------------------


def test_flush_on_command_and_by_a_clock_that_was_moved() -> None:
    with Kafka07Broker(config=NEVER) as broker, Talk(broker) as talk:
        talk.produce("t", b"hello")
        broker.run_flusher()
        assert talk.fetch("t") == (0, b"")
        broker.flush()
        assert talk.fetch("t") == (0, HELLO)
        talk.produce("t", b"hello")
        broker.run_flusher(now=4e9)
        assert talk.fetch("t") == (0, HELLO * 2)


def test_the_flush_scheduler_runs_by_itself() -> None:
    config = {"log.flush.interval": "1000", "log.default.flush.scheduler.interval.ms": "10"}
    with Kafka07Broker(config=config) as broker, Talk(broker) as talk:
        talk.produce("t", b"hello")
        while talk.fetch("t") == (0, b""):
            pass
        assert talk.fetch("t") == (0, HELLO)


def test_retention_by_a_clock_that_was_moved() -> None:
    with Kafka07Broker(config=AT_ONCE | {"log.retention.hours": "1"}) as broker, Talk(broker) as talk:
        talk.produce("t", b"hello")
        broker.run_cleanup()
        assert talk.offsets("t", -2) == [0]
        broker.run_cleanup(now=4e9)
        assert talk.offsets("t", -2) == [len(HELLO)]


# ---- sockets --------------------------------------------------------------------------------------------------------


def test_statistics_count_what_went_over_the_sockets(broker: Kafka07Broker) -> None:
    with Talk(broker) as talk, Talk(broker) as refused:
        talk.produce("t", b"hello")
        talk.fetch("t")
        refused.socket.sendall(bytes.fromhex("00000000"))
        assert refused.closed()
        statistics = broker.statistics()
        assert repr(broker) == f"<Kafka07Broker 1 {broker.address} 1 connections>"
    assert statistics.requests == {"produce": 1, "multifetch": 1, "fetch": 1}
    assert (statistics.connections, statistics.connections_total, statistics.refused) == (1, 2, 1)
    sent = len(frame(Produce("t", 0, HELLO)) + frame(BARRIER) + frame(Fetch("t", 0, 0, 1 << 20)))
    assert statistics.bytes_in == sent + 4
    assert statistics.bytes_out == len(BARRIER_ANSWER) + 6 + len(HELLO)


def test_a_slow_reader_does_not_make_it_grow_nor_anybody_wait(broker: Kafka07Broker) -> None:
    size, asked = 900_000, 200
    with Talk(broker) as slow, Talk(broker) as other:
        slow.produce("t", bytes(size))
        slow.send(*[Fetch("t", 0, 0, 1 << 20)] * asked)
        for _ in range(20):
            other.sync()
        assert broker.statistics().bytes_out < 20 * size  # what the sockets and one buffer hold
        for _ in range(asked):
            error, data = slow.answer()
            assert (error, len(data)) == (0, size + 10)


def test_a_slow_reader_of_one_multifetch_gets_every_byte(broker: Kafka07Broker) -> None:
    value = os.urandom(700_000)
    data = encode_set([value])
    with Talk(broker) as talk:
        talk.produce("t", value)
        talk.send(MultiFetch((Fetch("t", 0, 0, 1 << 20),) * 40), BARRIER)
        broker.statistics()
        assert int.from_bytes(talk.read(4)) == 2 + 40 * (6 + len(data))
        assert talk.read(2) == b"\0\0"
        for _ in range(40):
            assert talk.answer() == (0, data)
        assert talk.read(6) == BARRIER_ANSWER


def test_a_half_closed_slow_reader_gets_every_answer_then_the_end(broker: Kafka07Broker) -> None:
    with Talk(broker) as talk:
        talk.produce("t", bytes(900_000))
        talk.send(*[Fetch("t", 0, 0, 1 << 20)] * 30)
        talk.socket.shutdown(1)
        assert [len(talk.answer()[1]) for _ in range(30)] == [900_010] * 30
        assert talk.closed()


def test_the_largest_request_byte_by_byte_at_its_seams(broker: Kafka07Broker) -> None:
    values = [bytes([i % 256]) * 1000 for i in range(6000)]  # 6 MB: the receive buffer grows and is given back
    whole = frame(Produce("t", 0, encode_set(values))) + frame(BARRIER)
    with Talk(broker) as talk:
        for cut in (1, 3, 4, 5, 100_000, len(whole) - 1):
            talk.socket.sendall(whole[:cut])
            broker.statistics()
            talk.socket.sendall(whole[cut:])
            assert talk.read(6) == BARRIER_ANSWER
        assert talk.offsets("t", max_number=1) == [6 * len(encode_set(values))]


def test_a_declared_size_takes_no_memory_before_its_bytes_come() -> None:
    server = Server(BrokerConfig(), Handler(None), lambda why: None)  # type: ignore[arg-type]
    connection = ServedConnection(server)
    declared, received = 100_000_000, 0
    data = memoryview(declared.to_bytes(4) + bytes(3_000_000))
    while received < len(data):
        buffer = connection.get_buffer(-1)
        assert received + len(buffer) <= 2 * received + 2 * READ_BYTES
        chunk = data[received : received + len(buffer)]
        buffer[: len(chunk)] = chunk
        connection._end += len(chunk)  # buffer_updated, but for the answer
        received += len(chunk)


def test_a_segment_deleted_under_a_slow_reader_ends_the_connection(broker: Kafka07Broker) -> None:
    with Talk(broker) as talk:
        talk.produce("t", bytes(900_000))
        talk.send(*[Fetch("t", 0, 0, 1 << 20)] * 50)
        talk.read(1000)
        broker.run_cleanup(now=4e9)
        assert len(talk.read(50 * 900_016)) < 49 * 900_016


def test_many_connections_from_many_threads_at_once(broker: Kafka07Broker) -> None:
    def work(number: int) -> list[int]:
        with Talk(broker) as talk:
            for _ in range(20):
                talk.produce(f"t{number % 4}", b"x" * 90)
                broker.flush()
            return talk.offsets(f"t{number % 4}", max_number=1)

    with ThreadPoolExecutor(8) as pool:
        ends = list(pool.map(work, range(16)))
    with Talk(broker) as talk:
        assert [talk.offsets(f"t{i}", max_number=1) for i in range(4)] == [[4 * 20 * 100]] * 4
    assert max(ends) == [8000]


def test_small_answers_are_not_held_back(broker: Kafka07Broker) -> None:
    """With Nagle's delay one waits until the answer before it is acknowledged: 40 ms on Linux."""
    with Talk(broker) as talk:
        talk.sync()
        run = broker._current_run
        assert run is not None
        served = run.call(
            lambda: [c._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for c in run.server.connections]
        )
    assert [bool(on) for on in served] == [True]


def test_a_stretch_of_a_file_that_cannot_go_straight_to_the_socket_is_read(
    broker: Kafka07Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []

    def sendfile(to: int, file: int, position: int, count: int) -> int:
        refused.append(count)
        raise OSError(errno.EINVAL, "not on this file system")

    monkeypatch.setattr(os, "sendfile", sendfile)
    value = os.urandom(900_000)
    with Talk(broker) as talk:
        talk.produce("t", value)
        assert talk.fetch("t") == (0, encode_set([value]))
    assert refused[0] == 900_010 - FILE_READ_BYTES


@pytest.mark.parametrize(
    ("key", "option"), [("socket.send.buffer", socket.SO_SNDBUF), ("socket.receive.buffer", socket.SO_RCVBUF)]
)
def test_kernel_buffers_are_set_only_when_asked_for(key: str, option: int) -> None:
    with socket.socket() as connection:
        default = connection.getsockopt(socket.SOL_SOCKET, option)
        tune(connection, BrokerConfig())
        assert connection.getsockopt(socket.SOL_SOCKET, option) == default
        tune(connection, BrokerConfig.parse({key: "40000"}))
        assert 40_000 <= connection.getsockopt(socket.SOL_SOCKET, option) <= 80_000 != default


def test_an_accepted_connection_has_no_nagle_delay(broker: Kafka07Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or an answer would wait for the peer to acknowledge the one before it, 40 ms."""
    made: list[int] = []
    connection_made = ServedConnection.connection_made

    def observe(self: ServedConnection, transport: asyncio.BaseTransport) -> None:
        connection_made(self, transport)
        accepted = transport.get_extra_info("socket")
        made.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(ServedConnection, "connection_made", observe)
    with Talk(broker) as talk:
        talk.offsets("t")
    assert made
    assert all(made)
