"""Damaged record sets: where Kafka refuses, so do we, behind the same good records; where it accepts, we may refuse."""

from __future__ import annotations

from tests.conformance.kafka.record_sets import Row, decoded_records, expected_records

from .case import Record, difference

OUTCOMES = ("ensure_valid", "iterate", "record_check", "fields_error")


def check(record: Record) -> str | None:
    decoder, rows = decoded_records(bytes.fromhex(record["hex"]))
    wrong = next((number for number, batch in enumerate(record["batches"]) if _is_damaged(batch)), None)
    if wrong is None and not record["batch_error"]:
        return _accepted(record, decoder.error, rows)
    if decoder.error is None:
        return difference("outcome", "refused", f"accepted with {len(rows)} records")
    sound = expected_records(record["batches"][:wrong])
    known = expected_records(record["batches"][: len(record["batches"]) if wrong is None else wrong + 1])
    both = min(len(known), len(rows))  # how far into a damaged batch records are read is a matter of taste
    return difference("records before the damage", sound, rows[: len(sound)]) or difference(
        "records in front of it", known[:both], rows[:both]
    )


def _is_damaged(batch: Record) -> bool:
    return any(batch.get(outcome) for outcome in OUTCOMES)


def _accepted(record: Record, error: object, rows: list[Row]) -> str | None:
    """What Kafka accepts is read alike, or refused behind records that are read alike."""
    expected = _without_types(expected_records(record["batches"]))
    return difference("records", expected if error is None else expected[: len(rows)], _without_types(rows))


def _without_types(rows: list[Row]) -> list[Row]:
    """Kafka gives all messages of a wrapper the type of its own magic, we give each that of its own."""
    return [(offset, time, *rest) for offset, time, _, *rest in rows]
