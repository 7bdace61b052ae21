"""`odradek log --ls` and `--dump`: logs and their batches, one a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import click

from odradek.cli.output import as_json
from odradek.errors import ConfigError
from odradek.segments import KafkaLog, SegmentedLog, StoredBatch, StoredProducerState

__all__ = ["HEAD", "dump_batches", "epochs_of", "log_row"]

HEAD = (
    "topic",
    "partition",
    "unit",
    "start",
    "end",
    "high_watermark",
    "recovery_point",
    "segments",
    "bytes",
    "topic_id",
    "leader_epochs",
    "directory",
)
"""The columns of `--ls`."""


def log_row(log: SegmentedLog) -> list[object]:
    """Return the row of a log."""
    known = log if isinstance(log, KafkaLog) else None
    return [
        log.partition.topic,
        log.partition.partition,
        log.unit,
        log.start,
        log.end,
        known and known.high_watermark,
        known and known.facts.recovery_point,
        len(log.segments),
        log.size,
        known and known.facts.topic_id,
        epochs_of(log) or None,
        str(log.segments[0].path.parent),
    ]


def epochs_of(log: SegmentedLog) -> list[str]:
    """Return the leader epochs that the log's checkpoint names, in words."""
    return [f"{epoch} from {start}" for epoch, start in log.facts.leader_epochs] if isinstance(log, KafkaLog) else []


def dump_batches(logs: Sequence[SegmentedLog], as_lines: bool, count: int | None) -> None:
    """Print the batches of logs, then the states of their producers.

    Raises:
        ConfigError: A log is of Kafka 0.7, which has no batches.
        OSError: A file cannot be read.
    """
    for log in logs:
        if not isinstance(log, KafkaLog):
            raise ConfigError(f"{log.segments[0].path}: a log of Kafka 0.7 has no batches to dump: print its messages")
        for batch in islice(log.stored_batches(), count):
            click.echo(as_json(_batch_json(log, batch)) if as_lines else _batch_text(batch))
        for state, where in _states(log):
            line = {"topic": log.partition.topic, "partition": log.partition.name, **state._asdict(), "from": where}
            click.echo(as_json(line) if as_lines else _state_text(state, where))


def _batch_json(log: KafkaLog, batch: StoredBatch) -> dict[str, object]:
    return {
        "topic": log.partition.topic,
        "partition": log.partition.name,
        "file": batch.path.name,
        "position": batch.base_offset,
        "next_position": batch.next_offset,
        **{
            name: value for name, value in batch._asdict().items() if name not in ("path", "base_offset", "next_offset")
        },
    }


def _batch_text(batch: StoredBatch) -> str:
    last = batch.next_offset - 1
    offsets = f"{batch.base_offset}" if last == batch.base_offset else f"{batch.base_offset}-{last}"
    parts = [f"magic {batch.magic}", batch.compression]
    if batch.record_count is not None:
        parts.append(f"{batch.record_count} records")
    if batch.timestamp is not None:
        parts.append(f"{batch.timestamp_type} time {batch.timestamp}")
    if batch.leader_epoch is not None:
        parts.append(f"leader epoch {batch.leader_epoch}")
    if batch.producer_id is not None:
        sequence = "" if batch.base_sequence is None else f" sequence {batch.base_sequence}-{batch.last_sequence}"
        parts.append(f"producer {batch.producer_id} epoch {batch.producer_epoch}{sequence}")
    parts += ["transactional"] if batch.is_transactional else []
    parts += [f"marker {batch.marker}"] if batch.marker is not None else []
    return f"{offsets}: {batch.path.name} at {batch.at}, {batch.size} bytes: {', '.join(parts)}: {batch.damage or 'ok'}"


def _states(log: KafkaLog) -> Iterator[tuple[StoredProducerState, str]]:
    for state in log.producers:
        yield state, "batches"
    snapshot = log.snapshot()
    if snapshot is not None:
        for state in snapshot[1]:
            yield state, f"snapshot at {snapshot[0]}"


def _state_text(state: StoredProducerState, where: str) -> str:
    is_open = "" if state.open_since is None else f", transaction open since {state.open_since}"
    return (
        f"producer {state.producer_id} epoch {state.epoch}: last sequence {state.last_sequence} at "
        f"{state.last_offset}, time {state.timestamp}{is_open} (from {where})"
    )
