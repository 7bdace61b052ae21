"""Replay recorded cases against the embedded 0.7 broker: `python tests/conformance/replay.py FILE...`

FILE is a corpus file of the kind acceptance or random, plain or .gz; kafka07/README.md defines the format. One line is
printed for each case that differs, then the counts; the exit code is 1 when a case differs.

All cases share one real ZooKeeper, with a chroot each, as they did when they were recorded. Time is jumped where the
format allows it (flush_wait, cleanup_wait).
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import logging
import os
import re
import shutil
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from odradek.errors import NoNode, OdradekError
from odradek.testing import Kafka07Broker, ZooKeeperServer

ANSWER_SECONDS = 10.0
ZK_SECONDS = 30.0  # poll so long: on a slow machine a broker may take a while to register
ZK_ABSENT_SECONDS, ZK_GONE_SECONDS = 1.0, 4.0  # look for absence after so long; what is going may go until then
SILENCE_MS = 150
FLUSHER_MS = 1000  # whoever sleeps so long waits for the flusher, whose own thread may be late
DIGEST_FROM = 4096

IMPLIED = {"brokerid": "1", "log.cleanup.interval.mins": "1", "zk.sessiontimeout.ms": "3000"}

Step = dict[str, Any]


class Difference(Exception):
    """The broker did not do what was recorded."""


@dataclass(frozen=True)
class Case:
    id: str
    title: str
    broker: dict[str, str]
    steps: list[Step]


def read_cases(path: Path) -> Iterator[Case | None]:
    """The cases of a file in order; None for a record that is not a broker case."""
    opener: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            known = "steps" in record
            yield Case(record["id"], record["title"], record["broker"], record["steps"]) if known else None


class Peer:
    """The test's end of one connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes | bytearray) -> None:
        with suppress(OSError):  # closed by the broker already
            self._socket.sendall(data)

    def half_close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()

    def exactly(self, size: int) -> bytes:
        """The next bytes; fewer when no more come."""
        received = bytearray()
        with suppress(OSError):
            while len(received) < size and (chunk := self._socket.recv(size - len(received))):
                received += chunk
        return bytes(received)

    def closed(self) -> None:
        try:
            rest = self._socket.recv(65536)
        except TimeoutError:
            raise Difference("still open") from None
        except OSError:
            rest = b""
        self.close()
        if rest:
            raise Difference(f"expected an end, got {rest[:64].hex()}")

    def silence(self, milliseconds: float) -> None:
        self._socket.settimeout(milliseconds / 1000)
        try:
            rest = self._socket.recv(65536)
        except TimeoutError:
            self._socket.settimeout(ANSWER_SECONDS)
        except OSError as error:
            raise Difference(f"expected silence, got {error}") from None
        else:
            raise Difference(f"expected silence, got {rest[:64].hex() or 'an end'}")


class Run:
    """One case, from an empty log directory to the last step; `do` each step, in a `with` block."""

    def __init__(self, case: Case, zookeeper: ZooKeeperServer) -> None:
        self.case = case
        self.start_ms = int(time.time()) * 1000
        self.directory = Path(tempfile.mkdtemp(prefix="odradek-replay-"))
        self.peers: dict[str, Peer] = {}
        self.saved: dict[str, str] = {}
        self.seconds: dict[str, Kafka07Broker] = {}
        self.zookeeper = zookeeper
        self.chroot = f"/{case.id}"
        self.broker = self._broker(self.directory / "log", case.broker)

    def _broker(self, directory: Path, keys: dict[str, str]) -> Kafka07Broker:
        address = f"{self.zookeeper.address}{self.chroot}"
        return Kafka07Broker(directory, zookeeper=address, config=IMPLIED | keys)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, self.directory)
            self.watcher = stack.enter_context(self.zookeeper.client())
            self.watcher.create(self.chroot, None)
            stack.callback(self._drop_chroot)
            stack.callback(self._stop_seconds)
            stack.callback(self.broker.stop)
            stack.callback(self._close_peers)
            self.broker.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _drop_chroot(self) -> None:
        with suppress(NoNode):
            self.watcher.delete(self.chroot)

    def _stop_seconds(self) -> None:
        for broker in self.seconds.values():
            broker.stop()

    def _close_peers(self) -> None:
        for peer in self.peers.values():
            peer.close()
        self.peers.clear()

    def do(self, step: Step) -> None:
        arguments = {key: value for key, value in step.items() if key != "op"}
        getattr(self, f"do_{step['op']}")(**arguments)

    # ---- connections ----------------------------------------------------------------------------------------

    def do_connect(self, conn: str) -> None:
        self._connect(conn, self.broker)

    def do_connect_second(self, conn: str, name: str) -> None:
        self._connect(conn, self.seconds[name])

    def _connect(self, conn: str, broker: Kafka07Broker) -> None:
        if conn in self.peers:
            self.peers[conn].close()
        self.peers[conn] = Peer(broker.port)

    def do_send(self, conn: str, hex: str = "", data: Any = (), times: Any = ()) -> None:
        payload = bytearray(bytes_of(hex, data))
        for position, delta in times:
            struct.pack_into(">q", payload, position, self.start_ms + delta)
        self.peers[conn].send(payload)

    def do_recv(
        self, conn: str, hex: str | None = None, len: int = 0, sha256: str = "", expect: str = "", ms: int = SILENCE_MS
    ) -> None:
        peer = self.peers[conn]
        if expect == "closed":
            peer.closed()
        elif expect == "silence":
            peer.silence(ms)
        elif hex is not None:
            same("answer", bytes.fromhex(hex).hex(), peer.exactly(size_of(hex)).hex())
        else:
            same("digest of the answer", sha256, hashlib.sha256(peer.exactly(len)).hexdigest())

    def do_half_close(self, conn: str) -> None:
        self.peers[conn].half_close()

    def do_close(self, conn: str) -> None:
        self.peers[conn].close()

    # ---- time -----------------------------------------------------------------------------------------------

    def do_sleep(self, ms: float) -> None:
        time.sleep(ms / 1000)
        if ms >= FLUSHER_MS:
            self.broker.run_flusher()

    def do_flush_wait(self) -> None:
        keys = self.case.broker
        scheduler = int(keys.get("log.default.flush.scheduler.interval.ms", "3000")) / 1000
        flush = int(keys.get("log.default.flush.interval.ms", scheduler * 1000)) / 1000
        self.broker.run_flusher(time.time() + 1.5 * scheduler + 1.3 * flush + 0.5)

    def do_cleanup_wait(self) -> None:
        self.broker.run_cleanup()

    # ---- files ----------------------------------------------------------------------------------------------

    def _log(self, topic: str, partition: int) -> Path:
        return self.broker.log_dir / f"{topic}-{partition}"

    def _file(self, topic: str, partition: int, file: str | None) -> Path:
        directory = self._log(topic, partition)
        last = sorted(path.name for path in directory.glob("*.kafka"))[-1:] if file is None else [file]
        return directory / last[0]

    def do_set_mtime(self, topic: str, partition: int, file: str, delta_s: float) -> None:
        moment = self.start_ms / 1000 + delta_s
        os.utime(self._file(topic, partition, file), (moment, moment))

    def do_expect_log(self, topic: str, partition: int, files: Any) -> None:
        directory = self._log(topic, partition)
        files_now = [described(path) for path in sorted(directory.iterdir())] if directory.is_dir() else None
        same(f"{directory.name}", files, files_now)

    def do_expect_path(self, path: str, exists: bool) -> None:
        same(path, exists, (self.broker.log_dir / path).exists())

    def do_append_file(
        self, topic: str, partition: int, hex: str = "", data: Any = (), file: str | None = None
    ) -> None:
        with self._file(topic, partition, file).open("ab") as target:
            target.write(bytes_of(hex, data))

    def do_truncate_file(self, topic: str, partition: int, cut: int, file: str | None = None) -> None:
        path = self._file(topic, partition, file)
        os.truncate(path, max(path.stat().st_size - cut, 0))

    def do_patch_file(self, topic: str, partition: int, file: str, at: int, hex: str) -> None:
        with self._file(topic, partition, file).open("r+b") as target:
            target.seek(at)
            target.write(bytes.fromhex(hex))

    def do_delete_file(self, topic: str, partition: int, file: str) -> None:
        self._file(topic, partition, file).unlink()

    def do_write_path(self, path: str, hex: str = "", dir: bool = False) -> None:
        target = self.broker.log_dir / path
        (target if dir else target.parent).mkdir(parents=True, exist_ok=True)
        if not dir:
            target.write_bytes(bytes.fromhex(hex))

    # ---- high-water marks -----------------------------------------------------------------------------------

    def _high_water(self, topic: str, partition: int) -> int:
        name = topic.encode()
        body = struct.pack(">hh", 4, len(name)) + name + struct.pack(">iqi", partition, -1, 1)
        peer = Peer(self.broker.port)
        try:
            peer.send(struct.pack(">i", len(body)) + body)
            answer = peer.exactly(18)
        finally:
            peer.close()
        same("answer to OFFSETS", "0000000e000000000001", answer[:10].hex())
        return int.from_bytes(answer[10:])

    def do_expect_hw(self, topic: str, partition: int, value: int) -> None:
        same(f"high-water mark of {topic}-{partition}", value, self._high_water(topic, partition))

    def do_expect_hw_multiset(self, topic: str, partitions: list[int], values: list[int]) -> None:
        same(f"high-water marks of {topic}", values, sorted(self._high_water(topic, p) for p in partitions))

    # ---- brokers --------------------------------------------------------------------------------------------

    def do_restart(self, mode: str, expect: str, down: Any = (), immediately: bool = False) -> None:
        self._close_peers()
        if mode == "kill":
            self.broker.kill(drop_session=not immediately)
        else:
            self.broker.stop()
        for step in down:
            self.do(step)
        start(self.broker, expect)

    def do_second(self, name: str, brokerid: str, config: dict[str, str], expect: str) -> None:
        keys = self.case.broker | config | {"brokerid": brokerid}
        self.seconds[name] = self._broker(self.directory / name, keys)
        start(self.seconds[name], expect)

    def do_second_stop(self, name: str) -> None:
        self.seconds[name].stop()

    # ---- ZooKeeper ------------------------------------------------------------------------------------------

    def _path(self, path: str) -> str:
        return f"{self.chroot}{path}".rstrip("/")

    def _masked(self, text: str) -> str:
        ports = {"port": self.broker.port} | {f"port_{name}": one.port for name, one in self.seconds.items()}
        text = re.sub(r"\d{13}(?=:)", "{ms}", text)
        for name, port in ports.items():
            text = re.sub(rf":{port}$", f":{{{name}}}", text)
        return text

    def _node(self, path: str) -> tuple[str | None, str, str]:
        """Masked data, type and raw data; "absent" for a node that is not there."""
        try:
            node = self.watcher.get(self._path(path))
        except NoNode:
            return "absent", "", ""
        raw = "" if node.data is None else node.data.decode()
        return (
            None if node.data is None else self._masked(raw),
            "ephemeral" if node.owner else "persistent",
            raw,
        )

    def do_expect_zk(self, path: str, data: str | None, type: str = "", save: str = "", differs_from: str = "") -> None:
        def check() -> None:
            actual, kind, raw = self._node(path)
            same(path, [data, type], [actual, kind if type else ""])
            if differs_from and raw == self.saved[differs_from]:
                raise Difference(f"{path} still holds {raw}")
            self.saved[save] = raw

        retry_until_expected(check, absent=data == "absent")

    def do_expect_zk_children(self, path: str, children: Any) -> None:
        def check() -> None:
            try:
                actual: Any = self.watcher.children(self._path(path))
            except NoNode:
                actual = "absent"
            same(f"children of {path}", children, actual)

        retry_until_expected(check, absent=children == "absent")

    def do_zk_create(self, path: str, data: str | None, ephemeral: bool) -> None:
        content = None if data is None else data.encode()
        self.watcher.create(self._path(path), content, ephemeral=ephemeral)

    def do_zk_delete(self, path: str) -> None:
        self.watcher.delete(self._path(path))

    def do_zk_wait_gone(self) -> None:
        path = f"/brokers/ids/{self.broker.broker_id}"
        retry_until_expected(lambda: same(path, "absent", self._node(path)[0]))

    def do_zk_expire(self) -> None:
        self.broker.expire_session()


# ---- small change -------------------------------------------------------------------------------------------


def bytes_of(hex: str, data: Any) -> bytes:
    return bytes.fromhex(hex) + b"".join(bytes.fromhex(part) * count for part, count in data)


def size_of(hex: str) -> int:
    return len(hex) // 2


def described(path: Path) -> list[Any]:
    content = path.read_bytes()
    if len(content) < DIGEST_FROM:
        return [path.name, len(content), {"hex": content.hex()}]
    return [path.name, len(content), {"sha256": hashlib.sha256(content).hexdigest()}]


def same(what: str, expected: Any, actual: Any) -> None:
    if expected != actual:
        raise Difference(f"{what}: expected {shortened(expected)}, got {shortened(actual)}")


def shortened(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 300 else f"{text[:200]}...{text[-80:]} ({len(text)} characters)"


def retry_until_expected(check: Callable[[], None], absent: bool = False, seconds: float = ZK_SECONDS) -> None:
    """Repeat `check` until it passes; absence is not checked too early, when it may be about to come."""
    if absent:
        time.sleep(ZK_ABSENT_SECONDS)
        seconds = ZK_GONE_SECONDS
    deadline = time.monotonic() + seconds
    while True:
        try:
            return check()
        except Difference:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def start(broker: Kafka07Broker, expect: str) -> None:
    try:
        broker.start()
    except OdradekError as error:
        if expect != "refused":
            raise Difference(f"start refused: {error}") from error
    else:
        same("start", expect, "ok")


# ---- cases --------------------------------------------------------------------------------------------------


def replay(case: Case, zookeeper: ZooKeeperServer) -> str | None:
    """None when everything is as recorded, else what differs."""
    with Run(case, zookeeper) as run:
        for number, step in enumerate(case.steps):
            try:
                run.do(step)
            except (Difference, OSError) as difference:
                return f"{case.id} ({case.title}) step {number} {step['op']}: {difference}"
    return None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", metavar="FILE", type=Path, nargs="+")
    parser.add_argument("--only", metavar="ID", action="append", help="only this case (may be repeated)")
    parser.add_argument("--jobs", metavar="N", type=int, default=4, help="cases at a time (default 4)")
    options = parser.parse_args(arguments)

    logging.getLogger("odradek").addHandler(logging.NullHandler())  # refusing and expiring is what cases are about
    records = [record for path in options.files for record in read_cases(path)]
    cases = [record for record in records if record and (not options.only or record.id in options.only)]
    failed = 0
    with ZooKeeperServer() as server, ThreadPoolExecutor(options.jobs) as pool:
        for line in pool.map(lambda case: replay(case, server), cases):
            if line is not None:
                failed += 1
                print(line)
    print(f"{len(cases) - failed} passed, {failed} failed, {records.count(None)} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
