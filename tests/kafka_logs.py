"""Log directories of Kafka 0.8 and later, made by hand."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from odradek import engine
from odradek.wire.compression import CompressionType
from odradek.wire.kafka.records.encode import encode_batch, encode_message_set

__all__ = ["T0", "batch", "index_of", "marker", "messages", "with_crc", "write_log"]

T0 = 1_700_000_000_000
"""The timestamp of offset 0 (ms); that of each offset is one second later."""


def batch(
    offsets: Sequence[int],
    compression: CompressionType = CompressionType.NONE,
    *,
    values: Sequence[bytes] | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
    is_transactional: bool = False,
    epoch: int = 0,
) -> bytes:
    """A batch of records with these adjacent offsets: their numbers are the values, and the keys of all even ones."""
    data = bytearray(
        encode_batch(
            [b"%d" % offset for offset in offsets] if values is None else values,
            [None if offset % 2 else b"k%d" % offset for offset in offsets],
            [(("h", b"%d" % offset),) if offset % 3 == 0 else () for offset in offsets],
            [T0 + 1000 * offset for offset in offsets],
            compression=compression,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
            is_transactional=is_transactional,
            base_offset=offsets[0],
        )
    )
    data[12:16] = epoch.to_bytes(4, "big")  # the CRC is of what follows
    return bytes(data)


def marker(offset: int, producer: int, *, commit: bool, epoch: int = 0) -> bytes:
    """The end of a transaction."""
    data = bytearray(
        encode_batch(
            [struct.pack(">hi", 0, 0)],
            [struct.pack(">hh", 0, commit)],
            None,
            [T0 + 1000 * offset],
            producer_id=producer,
            producer_epoch=0,
            is_transactional=True,
            is_control=True,
            base_offset=offset,
        )
    )
    data[12:16] = epoch.to_bytes(4, "big")
    return bytes(data)


def messages(offsets: Sequence[int], magic: int, compression: CompressionType = CompressionType.NONE) -> bytes:
    """Messages of magic 0 or 1 with these adjacent offsets; those of magic 0 that are compressed must begin at 0."""
    times = [T0 + 1000 * offset for offset in offsets] if magic else None
    data = bytearray(
        encode_message_set([b"%d" % offset for offset in offsets], None, times, magic=magic, compression=compression)
    )
    if compression:
        data[:8] = offsets[-1].to_bytes(8, "big")
        return bytes(data)
    at = 0
    for offset in offsets:
        data[at : at + 8] = offset.to_bytes(8, "big")
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return bytes(data)


def write_log(directory: Path, segments: dict[int, bytes], *, index_every: int = 0) -> Path:
    """A log directory with segments by their first offset; with an index entry for each so many entries."""
    directory.mkdir(parents=True, exist_ok=True)
    for start, data in segments.items():
        path = directory / f"{start:020}.log"
        path.write_bytes(data)
        if index_every:
            path.with_suffix(".index").write_bytes(index_of(data, start, index_every))
    return directory


def index_of(data: bytes, start: int, every: int) -> bytes:
    """The index of a segment of batches."""
    entries, at, number = b"", 0, 0
    while at < len(data):
        base, length = struct.unpack_from(">qi", data, at)
        last = base + (struct.unpack_from(">i", data, at + 23)[0] if data[at + 16] == 2 else 0)
        if number and number % every == 0:
            entries += struct.pack(">ii", last - start, at)
        at, number = at + 12 + length, number + 1
    return entries


def with_crc(data: bytes) -> bytes:
    """A batch with the CRC of what it has become."""
    return data[:17] + engine.active.crc32c(data[21:]).to_bytes(4, "big") + data[21:]
