"""Record sets for Produce: fields, framings, and what a format does not have."""

from __future__ import annotations

from array import array

import pytest
from tests.wire.kafka.records.reading import read

from odradek.engine import PackedBytes
from odradek.errors import LocalProtocolError
from odradek.wire.compression import CompressionType
from odradek.wire.kafka.records.batch import batch_header
from odradek.wire.kafka.records.encode import encode_batch, encode_message_set, with_producer

pytestmark = pytest.mark.usefixtures("either_engine")


def test_the_header_says_who_wrote_the_batch() -> None:
    data = encode_batch(
        [b"a", b"b"], timestamps=[9, 7], producer_id=4000, producer_epoch=3, base_sequence=(1 << 31) - 1,
        is_transactional=True, compression=CompressionType.ZSTD,
    )  # fmt: skip
    batch = batch_header(memoryview(data))
    assert batch.attributes == 16 | 4
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (4000, 3, (1 << 31) - 1)
    assert (batch.base_timestamp, batch.max_timestamp, batch.record_count, batch.last_offset_delta) == (9, 9, 2, 1)
    assert (batch.base_offset, batch.leader_epoch, batch.length) == (0, -1, len(data) - 12)


def test_a_batch_gets_another_producer_and_stays_whole() -> None:
    data = encode_batch([b"a"], timestamps=[9], producer_id=4000, producer_epoch=3, base_sequence=7)
    changed = with_producer(data, 5000, 4, 8)
    assert changed == encode_batch([b"a"], timestamps=[9], producer_id=5000, producer_epoch=4, base_sequence=8)
    assert with_producer(data, 4000, 3, 7) is data


def test_records_without_timestamps_have_none() -> None:
    for data in (encode_batch([b"a"]), encode_message_set([b"a"]), encode_message_set([b"a"], magic=0)):
        assert read(data).rows[0][1] == -1


def test_packed_columns_are_written_like_lists() -> None:
    ends, data = memoryview(array("i", [0, 1, 1, 3])), memoryview(b"abc")
    packed = PackedBytes(ends, data, memoryview(b"\1\0\1"))
    times = [5, 6, 7]
    assert encode_batch(packed, packed, None, memoryview(array("q", times))) == encode_batch(
        [b"a", None, b"bc"], [b"a", None, b"bc"], None, times
    )
    assert encode_message_set(packed, packed) == encode_message_set([b"a", None, b"bc"], [b"a", None, b"bc"])


@pytest.mark.parametrize(("magic", "checksum"), [(0, 0x1A), (1, 0x82)])
def test_lz4_headers_have_the_checksum_that_readers_of_the_format_ask_for(magic: int, checksum: int) -> None:
    data = encode_message_set([b"a"], magic=magic, compression=CompressionType.LZ4)
    at = data.index(b"\x04\x22\x4d\x18")
    assert data[at + 4 : at + 7] == bytes((0x60, 0x40, checksum))


def test_a_wrapper_has_the_offset_of_its_last_message_and_the_latest_time() -> None:
    data = encode_message_set([b"a", b"b", b"c"], timestamps=[1, 9, 3], compression=CompressionType.SNAPPY)
    assert (int.from_bytes(data[:8], "big"), int.from_bytes(data[18:26], "big")) == (2, 9)


@pytest.mark.parametrize(
    "options",
    [{"magic": 2}, {"magic": 0, "timestamps": [1]}, {"magic": 1, "compression": CompressionType.ZSTD}],
)
def test_what_a_message_set_does_not_have_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(LocalProtocolError, match="there is no message set of magic"):
        encode_message_set([b"a"], **options)  # type: ignore[arg-type]


def test_no_records_make_no_batch() -> None:
    for encode in (encode_batch, encode_message_set):
        with pytest.raises(LocalProtocolError, match="at least one record"):
            encode([])


def test_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match="does not fit into its field"):
        encode_batch([b"a"], timestamps=[1 << 63])
    with pytest.raises(LocalProtocolError, match="does not fit into its field"):
        encode_batch([b"a"], producer_epoch=1 << 15)
    with pytest.raises(LocalProtocolError, match="does not fit into its field"):
        encode_message_set([b"a"], timestamps=[1 << 63])


def test_columns_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="a column has 2 rows, not 1"):
        encode_batch([b"a"], [b"k", b"l"])
    with pytest.raises(ValueError, match="a column has 0 rows, not 1"):
        encode_batch([b"a"], headers=[])
    with pytest.raises(ValueError, match="a column has 2 rows, not 1"):
        encode_message_set([b"a"], timestamps=[1, 2])
