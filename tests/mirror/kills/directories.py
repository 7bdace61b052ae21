"""Log directories of a cluster that has died, as the source of a mirror, and what it had before."""

from __future__ import annotations

import importlib
import random
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from odradek.testing import Kafka07Broker, KafkaCluster
from odradek.testing.kafka.releases import release

from .sources import PARTITIONS, Rows, Writer, fields_of, logs_07, messages_of, settings_for

__all__ = ["DeadSource"]

QUIET_S = 2.0
"""The cleaner of the cluster has nothing more to do when a compacted topic stays as it is for so long (s)."""
TOPICS = {
    "plain": ["none"],
    "packed": ["gzip", "snappy"],
    "transactions": ["none", "lz4"],
    "compacted": ["none", "gzip"],
}
"""Topic -> its compressions."""
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": str(20_000), "min.cleanable.dirty.ratio": "0.01"}


class DeadSource:
    """A cluster of two brokers, both of which were killed; its directories are copied.

    From 0.8 on one broker is killed while its topics are written, and the other one goes on alone: the directories of
    the first have logs that are too short, and maybe records that only it had. A transaction is open when the other one
    is killed.

    Args:
        folder: Where the directories are copied to.
        version: 0.7 or a release from 0.8.2 on.
        records: How many are written.
        seconds: How long copying is to take (s).
        seed: Of what is random.
    """

    runs = False

    def __init__(self, folder: Path, version: str, records: int, seconds: float, seed: int) -> None:
        self._random, self._rows = random.Random(seed), dict[str, Rows]()
        old = [] if version == "0.7" else ["transactions"] * (release(version).number >= (0, 11))
        self.topics: Sequence[str] = ["plain", "packed", *old, *(["compacted"] if version != "0.7" else [])]
        self._share = records // len(self.topics)
        self.fields = 1 if version == "0.7" else fields_of(version)
        directories = self._make_07(folder) if version == "0.7" else self._make(folder, version)
        self.table = f"logs = {directories}"
        size = sum(file.stat().st_size for name in self.topics for file in folder.glob(f"*/{name}-*/*.[lk]*"))
        self.limit = f"target_bytes_per_second = {max(1000, round(size / seconds))}"

    def write(self, records: int, seconds: float = 0.0) -> None:
        """Do nothing: it is dead."""
        time.sleep(seconds)

    def restart(self, pause_s: float) -> None:
        raise AssertionError("it is dead")

    def cut(self, after: int) -> bool:
        return False

    def heal(self) -> None:
        pass

    def rows(self, topic: str) -> Rows:
        return self._rows[topic]

    # ---- 0.7 ------------------------------------------------------------------------------------------------

    def _make_07(self, folder: Path) -> list[str]:
        """Each topic is on one of the brokers, whose last message is torn."""
        directories = []
        config = {"num.partitions": str(PARTITIONS), "log.flush.interval": "1", "log.file.size": str(1 << 20)}
        for broker_id, topic in enumerate(self.topics, 1):
            with Kafka07Broker(folder / f"broker{broker_id}", broker_id=broker_id, config=config) as broker:
                url = f"kafka07://{broker_id}@{broker.host}:{broker.port}"
                Writer(url, self._random, 1, broker_id, topic, ["none", "gzip"]).write(self._share)
                broker.kill()
            self._rows[topic] = logs_07(broker.log_dir, topic)
            for number in range(0, PARTITIONS, 2):
                with max(broker.log_dir.glob(f"{topic}-{number}/*.kafka")).open("ab") as file:
                    file.write(b"\0\0\0\x40\1\0torn")
            directories.append(f"{broker_id}@{broker.log_dir}")
        return directories

    # ---- 0.8 and later --------------------------------------------------------------------------------------

    def _make(self, folder: Path, version: str) -> list[str]:
        config = {"log.cleaner.enable": "true", "log.cleaner.backoff.ms": "200", "min.insync.replicas": "1"}
        if "transactions" in self.topics:
            config |= {"transaction.state.log.min.isr": "1"}
        with ExitStack() as stack:
            cluster = stack.enter_context(KafkaCluster(version, 2, config=config))
            for topic in self.topics:  # a compacted topic has one replica: each broker's cleaner keeps what it likes
                compacted = topic == "compacted"
                cluster.create_topic(topic, PARTITIONS, 1 if compacted else 2, config=COMPACTED if compacted else {})
            self._write("compacted", cluster, self._share)
            self._wait_for_cleaner(cluster, version)
            writers = self.topics[:-1]
            for topic in writers:
                self._write(topic, cluster, self._share // 2)
            dying, last = self._random.sample(list(cluster.brokers), 2)
            with ThreadPoolExecutor() as threads:
                writing = [threads.submit(self._write, topic, cluster, self._share // 2) for topic in writers]
                time.sleep(self._random.uniform(0.0, 0.5))
                dying.kill()
                for each in writing:
                    each.result()
            for topic in writers:
                self._rows[topic] = messages_of(last.bootstrap, topic, self.fields, **settings_for(version))
            if "transactions" in writers:
                _leave_open(last.bootstrap)
            last.kill()
            for broker in cluster.brokers:
                shutil.copytree(broker.data_dir, folder / f"broker{broker.broker_id}")
            return [str(folder / f"broker{broker.broker_id}") for broker in cluster.brokers]

    def _write(self, topic: str, cluster: KafkaCluster, records: int) -> None:
        writer = Writer(
            f"kafka://{cluster.bootstrap}", random.Random(self._random.random()), self.fields, -1, topic, TOPICS[topic]
        )
        writer.transactions, writer.keyed = topic == "transactions", topic == "compacted"
        writer.write(records)

    def _wait_for_cleaner(self, cluster: KafkaCluster, version: str) -> None:
        limit, quiet_until = time.monotonic() + 120, 0.0
        while time.monotonic() < limit:
            rows = messages_of(cluster.bootstrap, "compacted", self.fields, **settings_for(version))
            few = sum(map(len, rows.values())) < self._share
            if not few or rows != self._rows.get("compacted"):
                quiet_until = time.monotonic() + QUIET_S
            self._rows["compacted"] = rows
            if time.monotonic() > quiet_until:
                return
            time.sleep(0.2)
        raise TimeoutError("the cleaner does not end")


def _leave_open(bootstrap: str) -> None:
    """Write records in a transaction that does not end."""
    client = importlib.import_module("confluent_kafka")
    timeout = {"transaction.timeout.ms": 600_000, "message.timeout.ms": 60_000}
    producer = client.Producer({"bootstrap.servers": bootstrap, "transactional.id": "left-open", **timeout})
    producer.init_transactions(60)
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce("transactions", b"open", partition=partition)
    producer.flush(60)
