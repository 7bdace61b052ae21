"""Record sets that Java's classes wrote, byte for byte (specification 8.1)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tests.conformance.kafka import check_records, check_records_damaged
from tests.wire.kafka.records.reading import read

from odradek.core.interfaces import DecoderOptions
from odradek.errors import CorruptMessage
from odradek.wire.compression import CompressionType
from odradek.wire.kafka.records.batch import batch_header, control_type
from odradek.wire.kafka.records.encode import encode_batch, encode_message_set

pytestmark = pytest.mark.usefixtures("either_engine")

HERE = Path(__file__).parent
CORPUS = HERE.parents[2] / "conformance" / "kafka" / "corpus"
LINES = (HERE.parent / "vectors" / "record_sets.txt").read_text().splitlines()
VECTORS = {name: bytes.fromhex(data) for name, data in (line.split() for line in LINES if not line.startswith("#"))}

HEADERS = (("h", b"x"), ("n", None))
PLAIN = [(100, b"k1", b"v1"), (101, None, b"v2"), (102, b"k3", None)]
TIMES = [1000, 1001, 1005]


def rows(times: list[int], kind: int, headers: tuple[tuple[str, bytes | None], ...] = ()) -> list[tuple[object, ...]]:
    made: list[tuple[object, ...]] = []
    for (offset, key, value), time in zip(PLAIN, times, strict=True):
        made.append((offset, time, kind, key, value, headers if offset == 100 else ()))
    return made


@pytest.mark.parametrize(
    ("name", "times", "kind", "headers"),
    [
        *((name, [-1] * 3, -1, ()) for name in ("magic0_none_base100", "magic0_gzip_base100")),
        *((f"magic1_{compression}_base100", TIMES, 0, ()) for compression in ("none", "gzip", "snappy")),
        *((f"magic2_{compression}_base100", TIMES, 0, HEADERS) for compression in ("none", "gzip", "lz4", "zstd")),
        ("magic2_none_logappend", [7777] * 3, 1, ()),
        ("magic2_txn_pid", TIMES, 0, ()),
        ("magic2_truncated_tail", TIMES, 0, HEADERS),
    ],
)
def test_vectors_hold_the_records_they_were_made_of(
    name: str, times: list[int], kind: int, headers: tuple[tuple[str, bytes | None], ...]
) -> None:
    reading = read(VECTORS[name])
    assert (reading.rows, reading.error) == (rows(times, kind, headers), ())
    assert (reading.position, reading.fetch_position) == (103, 103)


def test_the_header_of_a_transactional_batch_has_producer_epoch_and_sequence() -> None:
    batch = batch_header(memoryview(VECTORS["magic2_txn_pid"]))
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (4000, 3, 17)
    assert batch.is_transactional
    assert not batch.is_control


def test_an_abort_marker_is_not_delivered_and_moves_the_position() -> None:
    data = VECTORS["magic2_abort_marker"]
    reading = read(data)
    assert (reading.rows, reading.fetch_position) == ([], 51)
    assert control_type(batch_header(memoryview(data)), data[61:]) == 0


def test_a_wrong_crc_keeps_the_position() -> None:
    reading = read(VECTORS["magic2_bad_crc"], start=100)
    assert reading.error == (CorruptMessage, "t/3", 100, "entry at offset 100: CRC mismatch")
    assert (reading.rows, reading.position) == ([], 100)


def test_plain_sets_are_written_byte_for_byte_as_java_writes_them() -> None:
    keys, values = [b"k1", None, b"k3"], [b"v1", b"v2", None]
    headers = [HEADERS, (), ()]
    # Java's vectors have base offset 100, ours start at 0 as a producer's do.
    old = encode_message_set(values, keys, magic=0)
    assert _based(VECTORS["magic0_none_base100"], old) == VECTORS["magic0_none_base100"]
    newer = encode_message_set(values, keys, TIMES, magic=1)
    assert _based(VECTORS["magic1_none_base100"], newer) == VECTORS["magic1_none_base100"]
    batch = encode_batch(values, keys, headers, TIMES, base_offset=100)
    assert batch == VECTORS["magic2_none_base100"]
    lz4 = encode_batch(values, keys, headers, TIMES, base_offset=100, compression=CompressionType.LZ4)
    assert lz4 == VECTORS["magic2_lz4_base100"]
    transactional = encode_batch(
        values, keys, None, TIMES, base_offset=100, producer_id=4000, producer_epoch=3, base_sequence=17,
        is_transactional=True,
    )  # fmt: skip
    assert transactional == VECTORS["magic2_txn_pid"]


def _based(java: bytes, ours: bytes) -> bytes:
    """Return our message set with the offsets of another of the same sizes."""
    made, at = bytearray(ours), 0
    while at < len(made):
        made[at : at + 8] = java[at : at + 8]
        at += 12 + int.from_bytes(made[at + 8 : at + 12], "big")
    return bytes(made)


@pytest.mark.parametrize(("kind", "checker"), [("records", check_records), ("records_damaged", check_records_damaged)])
def test_the_corpus_has_no_difference_on_either_engine(kind: str, checker: object) -> None:
    with gzip.open(CORPUS / f"{kind}_shared.jsonl.gz", "rt", encoding="utf-8") as lines:
        differences = [checker.check(json.loads(line)) for line in lines]  # type: ignore[attr-defined]
    assert len(differences) > 200
    assert not any(differences)


def test_the_corpus_reads_the_same_in_any_split_and_when_deferred() -> None:
    later = DecoderOptions(defer_decompression=True)
    with gzip.open(CORPUS / "records_shared.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in list(lines)[::7]:
            data = bytes.fromhex(json.loads(line)["hex"])
            whole = read(data)
            assert read(data, range(0, len(data), max(1, len(data) // 50))) == whole
            assert read(data, [13, len(data) // 2], later) == whole
