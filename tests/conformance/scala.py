"""What the tests of scala_client.jsonl share: the cases, and a broker behind a proxy that keeps every byte."""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import anyio

from odradek.core.kafka07.znodes import broker_data
from odradek.testing import Kafka07Broker, ZooKeeperServer
from odradek.wire.kafka07.requests import Fetch, MultiFetch, Produce, Request, decode_request, encode_request

from .recorder import Recorder

CORPUS = Path(__file__).parent / "kafka07" / "scala_client.jsonl.gz"
Case = dict[str, Any]
CASES: list[Case] = [json.loads(line) for line in gzip.decompress(CORPUS.read_bytes()).splitlines()]

IMPLIED = {"brokerid": "1", "zk.sessiontimeout.ms": "30000"}
CONFIRM = MultiFetch(())


class RunningCase(NamedTuple):
    broker: Kafka07Broker
    recorder: Recorder
    zookeeper: ZooKeeperServer
    chroot: str

    @property
    def url(self) -> str:
        return f"kafka07+zk://{self.zookeeper.address}{self.chroot}"

    @property
    def static_url(self) -> str:
        return f"kafka07://1@127.0.0.1:{self.recorder.port}"

    def store(self, topic: str, partition: int, message_set: str) -> None:
        """Append, past the recorder."""
        request = encode_request(Produce(topic, partition, bytes.fromhex(message_set))) + encode_request(CONFIRM)
        with socket.create_connection(("127.0.0.1", self.broker.port), 10) as connection:
            connection.sendall(b"".join(request))
            assert connection.recv(6, socket.MSG_WAITALL) == bytes.fromhex("000000020000")

    async def until_registered(self, topics: set[str]) -> None:
        """Registration is asynchronous."""
        await until(lambda: topics <= self.zookeeper.tree(f"{self.chroot}/brokers/topics").keys() or not topics)

    def requests(self) -> list[list[Request]]:
        """Ours, by connection."""
        return [[decode_request(body) for body in line.requests()] for line in self.recorder.lines]


@contextmanager
def run_case(case: Case, zookeeper: ZooKeeperServer) -> Iterator[RunningCase]:
    chroot = f"/{case['id']}-{uuid4().hex}"
    zookeeper.create(chroot)
    address = zookeeper.address + chroot
    with (
        Kafka07Broker(zookeeper=address, config=IMPLIED | case["broker"]) as broker,
        Recorder(broker.port) as recorder,
    ):
        zookeeper.set(f"{chroot}/brokers/ids/1", broker_data("127.0.0.1", recorder.port, int(time.time() * 1000)))
        yield RunningCase(broker, recorder, zookeeper, chroot)


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - what a broker and a proxy do has no event here
            await anyio.sleep(0.005)


def frames(case: Case, direction: str) -> list[bytes]:
    return [bytes.fromhex(frame["hex"]) for frame in case["frames"] if frame["direction"] == direction]


def recorded_requests(case: Case) -> list[Request]:
    return [decode_request(frame[4:]) for frame in frames(case, "c2b")]


def parts_of(request: Fetch | MultiFetch) -> tuple[Fetch, ...]:
    return request.parts if isinstance(request, MultiFetch) else (request,)


def shown(payload: bytes) -> str:
    """As the corpus writes payloads."""
    return payload.hex() if len(payload) <= 200 else f"{payload[:8].hex()}..len{len(payload)}"
