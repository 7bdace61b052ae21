"""One event of every kind."""

from __future__ import annotations

import odradek as od
from odradek.observe import (
    BatchDelivered,
    BatchFinished,
    BatchSent,
    BufferLevel,
    CommitFinished,
    ConnectionEnded,
    ConnectionFailed,
    ConnectionOpened,
    HeartbeatLate,
    MirrorCommitted,
    MirrorLag,
    Observer,
    PartFetched,
    ReadAheadLevel,
    Rebalanced,
    RequestFinished,
    Throttled,
)

__all__ = ["report_every_event"]


def report_every_event(observer: Observer) -> None:
    """Report one event of every kind, with and without an error where it can have one."""
    broker, partition = od.Broker(1, "b", 9092), od.TopicPartition("t", 0)
    lost = od.ConnectionLost("b:9092", "cut", True)
    observer.connection_opened(ConnectionOpened(broker, "produce", 0.01))
    observer.connection_failed(ConnectionFailed(broker, "produce", "refused"))
    observer.connection_ended(ConnectionEnded(broker, "produce", "cut", True))
    observer.throttled(Throttled(broker, "produce", 1.5))
    for error in (None, lost):
        observer.request_finished(RequestFinished(broker, "produce", "Produce", 9, 100, 50, 0.01, error))
        observer.batch_finished(BatchFinished(1, "t", partition, 10, 1000, 0.02, 1, error))
        observer.part_fetched(PartFetched(1, broker, partition, 1000, od.Position(10), error))
        observer.commit_finished(CommitFinished("g", {partition: od.Position(10)}, 0.01, error))
    observer.batch_sent(BatchSent(1, broker, partition, 10, 1000, 2, 0.01))
    observer.buffer_level(BufferLevel(1, 1000, 10_000, 3))
    observer.batch_delivered(BatchDelivered(1, "g", partition, 10, 1000, 5))
    observer.read_ahead_level(ReadAheadLevel(1, 1000, 10_000))
    observer.rebalanced(Rebalanced("g", "assigned", (partition,), "joined the group", 0.5))
    observer.heartbeat_late(HeartbeatLate("g", 4.0))
    observer.mirror_committed(MirrorCommitted("m", {partition: 10}, {partition: 1000}, 0.02))
    for seconds in (None, 1.5):
        observer.mirror_lag(MirrorLag("m", partition, 5, seconds))
