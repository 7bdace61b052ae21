"""The public API on the recorded broker cases of producing, fetching, offsets, segments, retention and restarts.

Each case is played against the embedded broker as it was recorded, but what it sends goes through our clients: its
message sets through producers, its fetches through a reader, its offset requests through `positions`. What they give is
compared with what the broker gives to a plain socket, which is what the corpus proves of it.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

import odradek as od
from odradek.core.interfaces import BrokerClient
from odradek.errors import (
    BrokerError,
    ConfigError,
    ConnectionLost,
    CorruptMessage,
    MessageTooLarge,
    OdradekError,
    Rejected,
)
from odradek.testing import ZooKeeperServer
from odradek.types import EARLIEST, LATEST, Broker, Position, PositionSpec, TopicPartition
from odradek.wire.compression import CompressionError
from odradek.wire.kafka07.entries import scan
from odradek.wire.kafka07.requests import Fetch, MultiFetch, Offsets, Produce, encode_request
from odradek.wire.kafka07.topic_names import is_legal_topic

from .conversations import LIMIT, Row, Talk, entries_of, rows_of, values_of
from .replay import Case, Peer, Run, Step, bytes_of, read_cases

pytestmark = pytest.mark.usefixtures("engine")

FAMILIES = (*range(1, 6), 11, 18, 19, *range(22, 30), 31, 32)
LEFT_OUT = {"A18.14"}
"""max.message.size=0: such a broker takes empty messages only, and a producer has no option for it."""

CASES = [
    case
    for case in read_cases(Path(__file__).parent / "kafka07" / "acceptance.jsonl.gz")
    if case and int(case.id[1:3]) in FAMILIES and case.id not in LEFT_OUT
]
OURS = {
    *("connect", "send", "expect_hw", "expect_log"),
    *("flush_wait", "cleanup_wait", "set_mtime", "restart"),
    *("append_file", "truncate_file", "patch_file", "delete_file", "write_path", "zk_wait_gone"),
}
"""Steps we take; the others are about bytes on connections we do not make, or about ZooKeeper."""

COMPRESSIONS = ("none", "gzip", "snappy")


@pytest.fixture(scope="module")
def zookeeper(engine: str) -> Iterator[ZooKeeperServer]:
    """One for each engine: cases name their chroots."""
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as portal:
        yield portal


class ClientRun(Run):
    """A case in which our clients do the talking."""

    def __init__(self, case: Case, zookeeper: ZooKeeperServer, portal: BlockingPortal) -> None:
        super().__init__(case, zookeeper)
        self._portal = portal
        self._talks: dict[str, Talk] = {}
        self._limit = int(case.broker.get("max.message.size", "1000000"))
        self.written: defaultdict[TopicPartition, list[bytes]] = defaultdict(list)

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self._k = self._open(od.connect(f"kafka07://{self.broker.broker_id}@{self.broker.address}"))
            self._producers = [
                self._open(self._k.producer(compression=compression, max_message_bytes=self._limit))
                for compression in COMPRESSIONS
            ]
        except BaseException:
            self._stack.close()
            raise
        return self

    def _open(self, manager: Any) -> Any:
        return self._stack.enter_context(self._portal.wrap_async_context_manager(manager))

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        async def call() -> Any:
            with anyio.fail_after(60):
                return await function(*arguments)

        return self._portal.call(call)

    # ---- steps ----------------------------------------------------------------------------------------------

    def do_connect(self, conn: str) -> None:
        self._talks[conn] = Talk(LIMIT)

    def do_send(self, conn: str, hex: str = "", data: Any = (), times: Any = ()) -> None:
        payload = bytearray(bytes_of(hex, data))
        for position, delta in times:
            struct.pack_into(">q", payload, position, self.start_ms + delta)
        for exchange in self._talks[conn].send(bytes(payload)):
            for part in exchange.parts:
                match part:
                    case Produce():
                        self._produce(part)
                    case Fetch():
                        self._fetch(part)
                    case Offsets():
                        self._positions(part)

    def do(self, step: Step) -> None:
        if step["op"] in OURS:
            super().do(step)

    def do_expect_hw(self, topic: str, partition: int, value: int) -> None:
        self._positions(Offsets(topic, partition, -1, 1))

    def do_expect_log(self, topic: str, partition: int, files: Any) -> None:
        self._fetch(Fetch(topic, partition, 0, 1 << 20))

    def partition(self, part: Produce | Fetch | Offsets) -> TopicPartition:
        return TopicPartition(part.topic, part.partition, self.broker.broker_id)

    # ---- producing ------------------------------------------------------------------------------------------

    def _produce(self, part: Produce) -> None:
        """What a producer can be asked to send: sets without damage, to partitions that exist."""
        count = int(self.case.broker.get("num.partitions", "1"))
        if not part.message_set:  # nothing to a producer; but the topic it makes is part of the case
            with closing(Peer(self.broker.port)) as peer:
                peer.send(b"".join(encode_request(part) + encode_request(MultiFetch(()))))
                peer.exactly(6)
        elif self.broker.running and -1 <= part.partition < count:
            for compression, values in runs(bytes(part.message_set)):
                if part.partition < 0:
                    self._send_anywhere(part.topic, compression, values)
                else:
                    self._send(self.partition(part), compression, values)

    def _send_anywhere(self, topic: str, compression: int, values: list[bytes]) -> None:
        for value in values:
            ack = self._call(self._producers[compression].send, topic, value)
            self.written[ack.partition].append(value)

    def _send(self, partition: TopicPartition, compression: int, values: list[bytes]) -> None:
        """Too large a message is refused by itself: the broker would drop the whole set without a word (case 18)."""
        send_many = self._producers[compression].send_many
        acks = self._call(lambda: send_many(partition.topic, values, partition=partition))
        refused = [failed.record.value for failed in acks.failed]
        assert all(isinstance(failed.error, Rejected) for failed in acks.failed)
        if not is_legal_topic(partition.topic):
            assert refused == values
        elif not compression:  # compressed, it is the size of the wrapper that counts
            assert refused == [value for value in values if len(value) > self._limit]
        assert acks.written == len(values) - len(refused)
        self.written[partition] += [value for value in values if value not in refused]

    # ---- fetching -------------------------------------------------------------------------------------------

    def _fetch(self, part: Fetch) -> None:
        """A reader from the same offset gives the whole messages the broker gives to that fetch, or its error."""
        if not self.broker.running or part.max_bytes < 0:
            return
        error, data = self._raw_fetch(part)
        partition = self.partition(part)
        if error:
            rows, why = self._read(partition, part.offset, None)
            impossible = part.offset < 0 or part.partition < 0  # refused before the broker is asked
            assert not rows and (isinstance(why, ConfigError) if impossible else why.code == error)
        elif part.offset in {row[0] for row in self._disk(partition)}:
            rows = [row for entry in entries_of(data, part.offset) for row in rows_of(entry)]
            if rows:
                self._same(partition, part.offset, rows[-1][1], rows)

    def _same(self, partition: TopicPartition, start: Any, until: Any, expected: list[Row]) -> None:
        rows, error = self._read(partition, start, until)
        if error is not None:  # what comes before the damage was delivered
            assert damaged(self.case), error
            expected = [row for row in expected if row[0] < error.position]
        assert rows == expected

    def _raw_fetch(self, part: Fetch) -> tuple[int, bytes]:
        with closing(Peer(self.broker.port)) as peer:
            peer.send(b"".join(encode_request(part)))
            size, error = struct.unpack(">ih", peer.exactly(6))
            return error, peer.exactly(size - 2)

    def _read(self, partition: TopicPartition, start: Any, until: Any) -> tuple[list[Row], Any]:
        """What a reader gives, and what it raises."""
        rows: list[Row] = []

        async def read() -> OdradekError | None:
            try:
                async with self._k.reader({partition: start}, until=until) as reader:
                    async for record in reader:
                        rows.append((record.position, record.next_position, record.value))
            except (BrokerError, ConfigError, CorruptMessage, MessageTooLarge) as error:
                return error
            return None

        return rows, self._call(read)

    def _disk(self, partition: TopicPartition) -> list[Row]:
        """Everything in the files of a partition."""
        files = sorted(self._log(partition.topic, partition.partition).glob("*.kafka"))
        return [
            row
            for file in files
            for entry in entries_of(file.read_bytes(), int(file.name.removesuffix(".kafka")))
            for row in rows_of(entry)
        ]

    # ---- positions ------------------------------------------------------------------------------------------

    def _positions(self, request: Offsets) -> None:
        if not self.broker.running or request.max_number < 1 or request.time < -2:
            return
        at = PositionSpec(request.time) if request.time < 0 else od.AtTime(request.time / 1000)
        if (expected := self._raw_positions(request)) is None:
            with pytest.raises(ConnectionLost):
                self._call(self._ask, request, at)
        else:
            assert self._call(self._ask, request, at) == expected

    async def _ask(self, request: Offsets, at: PositionSpec | od.AtTime) -> Sequence[Position]:
        broker = Broker(self.broker.broker_id, self.broker.host, self.broker.port)
        api: BrokerClient = self._k.driver.broker(broker, purpose="control")
        return await api.positions(self.partition(request), at, request.max_number)

    def _raw_positions(self, request: Offsets) -> list[int] | None:
        """None: the broker closes."""
        with closing(Peer(self.broker.port)) as peer:
            peer.send(b"".join(encode_request(request)))
            head = peer.exactly(10)
            count = int.from_bytes(head[6:])
            return list(struct.unpack(f">{count}q", peer.exactly(8 * count))) if head else None

    # ---- the end --------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """What was confirmed is there, in order, once; but for what retention or damage took."""
        if not self.broker.running:
            return
        self.broker.flush()
        ops = {step["op"] for step in self.case.steps}
        for partition, values in filter(lambda item: item[1], self.written.items()):
            stored = self._disk(partition)
            if not damaged(self.case):
                assert [value for _, _, value in stored] == values[len(values) - len(stored) :]
                assert "cleanup_wait" in ops or len(stored) == len(values)
            self._same(partition, EARLIEST, LATEST, stored)


def damaged(case: Case) -> bool:
    return any(step["op"] == "restart" and step.get("down") for step in case.steps)


def runs(message_set: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """The set as calls of producers: plain messages together, each wrapper by itself. Nothing when it is damaged."""
    entries = list(scan(message_set))
    try:
        opened = [(entry.compression, values_of(bytes(entry.raw)[4:])) for entry in entries if not entry.damage]
    except CompressionError:
        return
    if len(opened) != len(entries):
        return
    plain: list[bytes] = []
    for compression, values in opened:
        if not compression:
            plain += values
            continue
        yield from [(0, plain)] if plain else []
        plain = []
        yield compression, values
    yield from [(0, plain)] if plain else []


@pytest.mark.sampled(2, "engine")
@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES])
def test_a_case_through_the_public_api(case: Case, zookeeper: ZooKeeperServer, portal: BlockingPortal) -> None:
    with ClientRun(case, zookeeper, portal) as run:
        for step in case.steps:
            run.do(step)
        run.finish()
