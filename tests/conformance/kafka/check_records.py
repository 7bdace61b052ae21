"""Record sets: the records, batch headers and positions that Kafka reads."""

from __future__ import annotations

from tests.conformance.kafka.record_sets import decoded_records, expected_records, headers_of, recorded_headers

from .case import Record, difference

FILLER = b"\xff" * 8
"""The offset of what fills an answer behind records that were converted down."""


def check(record: Record) -> str | None:
    data = bytes.fromhex(record["hex"])
    decoder, rows = decoded_records(data)
    batches, valid = record["batches"], record["valid_bytes"]
    rest = data[valid:]
    # A wrapper whose own offset is below those of its messages resumes behind them.
    offsets = [record["offset"] + 1 for batch in batches for record in batch["records"]]
    return (
        difference("error", None, decoder.error)
        or difference("records", expected_records(batches), rows)
        or difference("headers", recorded_headers(batches), headers_of(data, batches))
        or difference("next", max([0, *(batch["nextOffset"] for batch in batches), *offsets]), decoder.fetch_position)
        or difference("partial tail", 0 if rest[:8] == FILLER else len(rest), decoder.partial_bytes)
    )
