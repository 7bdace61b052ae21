"""Carries out the schedule: each track in a thread of its own, until the time is over."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from odradek.errors import OdradekError
from odradek.testing import KafkaBroker, KafkaCluster
from odradek.testing.kafka.releases import ZOOKEEPER

from .schedule import TRACKS, Fault, faults
from .workers import Worker

__all__ = ["PROTOCOL_VERSIONS", "Tracks"]

STEP_S = 0.05
PROTOCOL_VERSIONS = ("inter.broker.protocol.version", "log.message.format.version")
"""Properties that keep brokers in ZooKeeper mode at an older release while they are upgraded one by one."""
FEATURES = "org.apache.kafka.tools.FeatureCommand"


class Tracks:
    """The faults of one run.

    Args:
        topics: Topic -> number of partitions, whose leaders are moved.
        transforms: Services that are killed and paused; the members if there is none.
        members: Members of groups, the same.
        log: A file with a line for each fault.
        upgrade_to: The release of which brokers are after they were killed; without it they keep theirs.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        topics: dict[str, int],
        transforms: Sequence[Worker],
        members: Sequence[Worker],
        log: Path,
        upgrade_to: str | None = None,
    ) -> None:
        self.done: Counter[str] = Counter()
        """Kind of fault -> how many were carried out."""
        self.failed: Counter[str] = Counter()
        """Kind of fault -> how many could not be, such as moves of leaders between brokers of which one is down."""
        self.problems: list[str] = []
        """Workers that did not end as they should."""
        self._cluster, self._transforms, self._members = cluster, transforms or members, members
        self._upgrade_to, self._has_new_features = upgrade_to, False
        self._partitions = [(topic, partition) for topic, count in topics.items() for partition in range(count)]
        self._log, self._began, self._end = log.open("a", encoding="utf-8"), time.monotonic(), 0.0
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def run(self, seed: int, seconds: float, watch: Callable[[], None]) -> None:
        """Carry out faults for so long, and call `watch` meanwhile. Afterwards everything runs and passes again."""
        self._end = time.monotonic() + seconds
        try:
            with ThreadPoolExecutor(len(TRACKS)) as threads:
                tracks = [threads.submit(self._track, seed, name) for name in TRACKS]
                try:
                    while wait(tracks, timeout=0.5).not_done:
                        watch()
                finally:
                    self._stopped.set()
            for track in tracks:
                track.result()
        finally:
            for broker in self._cluster.brokers:
                broker.proxy.heal()
            self._log.close()

    def _track(self, seed: int, name: str) -> None:
        for fault in faults(seed, name):
            self._sleep(fault.wait_s)
            if self._over():
                return
            self._note(f"{name}: {fault}")
            try:
                getattr(self, f"_{fault.kind}")(fault)
            except (OdradekError, OSError) as error:
                self.failed[fault.kind] += 1
                self._note(f"{name}: {fault.kind} failed: {error!s:.200}")
            else:
                self.done[fault.kind] += 1

    def _over(self) -> bool:
        return self._stopped.is_set() or time.monotonic() >= self._end

    def _sleep(self, seconds: float) -> None:
        until = min(time.monotonic() + seconds, self._end)
        while time.monotonic() < until and not self._stopped.is_set():
            time.sleep(STEP_S)

    def _note(self, line: str) -> None:
        with self._lock:
            self._log.write(f"{time.strftime('%H:%M:%S')} {time.monotonic() - self._began:8.2f} {line}\n")
            self._log.flush()

    # ---- brokers --------------------------------------------------------------------------------------------

    def _broker(self, fault: Fault) -> KafkaBroker:
        return self._cluster.brokers[fault.target % len(self._cluster.brokers)]

    def _kill(self, fault: Fault) -> None:
        broker = self._broker(fault)
        broker.kill()
        self._sleep(fault.lasting_s)
        if self._upgrade_to is not None:
            self._upgrade(broker, self._upgrade_to)
        broker.launch()  # `start` would remove its data if it could not serve in time
        broker.wait_ready()

    def _upgrade(self, broker: KafkaBroker, version: str) -> None:
        """Prepare the start of a broker that is down: of the newer release, or, once all are, with its protocols."""
        if broker.version != version:
            broker.change_release(version)
            self._note(f"brokers: {broker.broker_id} is upgraded to {version}")
        elif any(each.version != version for each in self._cluster.brokers):
            return
        elif self._cluster.mode == ZOOKEEPER:
            for name in PROTOCOL_VERSIONS:
                broker.config.pop(name, None)
        elif not self._has_new_features:
            other = next(each for each in self._cluster.brokers if each is not broker)
            address, number = f"{other.host}:{other.plaintext_port}", ".".join(version.split(".")[:2])
            done = other.java_tool(FEATURES, "--bootstrap-server", address, "upgrade", "--release-version", number)
            self._has_new_features = done.returncode == 0
            self._note(f"brokers: features of {number}: {done.stdout}")

    def _pause(self, fault: Fault) -> None:
        broker = self._broker(fault)
        broker.pause()
        self._sleep(fault.lasting_s)
        broker.resume()

    def _move_leader(self, fault: Fault) -> None:
        topic, partition = self._partitions[fault.target % len(self._partitions)]
        leader = self._cluster.leader(topic, partition)
        others = [broker for broker in self._cluster.brokers if broker is not leader]
        self._cluster.move_leader(topic, partition, others[fault.amount % len(others)])

    # ---- lines ----------------------------------------------------------------------------------------------

    def _cut(self, fault: Fault) -> None:
        self._broker(fault).proxy.cut(reset=fault.sudden)

    def _cut_request(self, fault: Fault) -> None:
        """Cut what is open, and then the next connection in the middle of a request."""
        proxy = self._broker(fault).proxy
        proxy.cut_after(client_bytes=fault.amount)
        proxy.cut(reset=fault.sudden)

    def _cut_response(self, fault: Fault) -> None:
        proxy = self._broker(fault).proxy
        proxy.cut_after(server_bytes=fault.amount)
        proxy.cut(reset=fault.sudden)

    def _stall(self, fault: Fault) -> None:
        self._broker(fault).proxy.stall()
        self._heal_later(fault)

    def _throttle(self, fault: Fault) -> None:
        self._broker(fault).proxy.throttle(2000 + fault.amount)
        self._heal_later(fault)

    def _delay(self, fault: Fault) -> None:
        self._broker(fault).proxy.delay(fault.amount / 100_000)
        self._heal_later(fault)

    def _split(self, fault: Fault) -> None:
        self._broker(fault).proxy.split(1 + fault.amount % 100)
        self._heal_later(fault)

    def _refuse(self, fault: Fault) -> None:
        proxy = self._broker(fault).proxy
        proxy.refuse()
        proxy.cut(reset=fault.sudden)
        self._heal_later(fault)

    def _heal_later(self, fault: Fault) -> None:
        self._sleep(fault.lasting_s)
        self._broker(fault).proxy.heal()

    # ---- workers --------------------------------------------------------------------------------------------

    def _kill_transform(self, fault: Fault) -> None:
        self._kill_one(self._transforms, fault)

    def _pause_transform(self, fault: Fault) -> None:
        self._pause_one(self._transforms, fault)

    def _kill_member(self, fault: Fault) -> None:
        self._kill_one(self._members, fault)

    def _pause_member(self, fault: Fault) -> None:
        self._pause_one(self._members, fault)

    def _stop_member(self, fault: Fault) -> None:
        """Let a member leave its group, and come back."""
        worker = self._members[fault.target % len(self._members)]
        self.problems += filter(None, [worker.leave()])
        self._sleep(fault.lasting_s)
        worker.start()

    def _kill_one(self, workers: Sequence[Worker], fault: Fault) -> None:
        worker = workers[fault.target % len(workers)]
        worker.kill()
        self._sleep(fault.lasting_s / 4)
        worker.start()

    def _pause_one(self, workers: Sequence[Worker], fault: Fault) -> None:
        worker = workers[fault.target % len(workers)]
        worker.pause()
        self._sleep(fault.lasting_s)
        worker.resume()
