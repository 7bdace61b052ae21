"""Batches as Produce requests: the format each release takes, and what each answer means."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.columns import ENGINES, PRODUCER_RECORDS, pack, packed_records, using
from tests.encoded import encoded_columns, undecodable

from odradek.core.interfaces import DecoderOptions, PartitionBatch, ProducerRecord
from odradek.core.kafka.produce import bytes_for, encode_into, encode_small, read_produce
from odradek.core.kafka.producer_state import ProducerIdentity, Stamp
from odradek.core.kafka.versions import BrokerVersions, VersionRange
from odradek.core.produce.packed_records import EncodedRecords, PackedRecords
from odradek.engine import HeaderColumns, Headers, PackedBytes
from odradek.errors import BrokerError, CorruptMessage, MessageTooLarge, RemoteProtocolError, Unsupported
from odradek.types import Columns, Position, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.data import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from odradek.wire.kafka.records.batch import batch_header
from odradek.wire.kafka.records.decoder import RecordDecoder
from odradek.wire.kafka.records.encode import with_producer

WHERE = TopicPartition("t", 0)
NOW = 1_700_000_000_000
NO_LIMIT = 1 << 30


def versions(produce: int, fetch: int = 11) -> BrokerVersions:
    return BrokerVersions({0: VersionRange(0, produce), 1: VersionRange(0, fetch)})


V080, V09, V010, V011, V21, V40 = (
    BrokerVersions.of_release("0.8.0"),
    BrokerVersions.of_release("0.9.0"),
    versions(2, 3),
    versions(3, 5),
    versions(7),
    versions(12, 17),
)


def batch(*records: bytes | ProducerRecord, compression: str = "none", stamp: Stamp | None = None) -> PartitionBatch:
    return PartitionBatch(WHERE, records, compression, stamp=stamp)


def decoded(data: bytes) -> Columns:
    decoder = RecordDecoder(WHERE, Position(0), DecoderOptions())
    decoder.start_response()
    decoder.feed(memoryview(data))
    assert decoder.error is None
    return decoder.take()


@pytest.mark.parametrize(
    ("broker", "magic", "times"),
    [(V080, 0, None), (V09, 0, None), (V010, 1, [NOW, 5]), (V011, 2, [NOW, 5]), (V21, 2, [NOW, 5]), (V40, 2, [NOW, 5])],
    ids=["0.8.0", "0.9", "0.10", "0.11", "2.1", "4.0"],
)
def test_a_batch_has_the_format_of_its_broker(broker: BrokerVersions, magic: int, times: list[int] | None) -> None:
    records = (ProducerRecord(b"v", b"k"), ProducerRecord(None, b"gone", (), 5))
    data = encode_into(batch(*records), broker, NO_LIMIT, NOW)
    columns = decoded(data)
    assert data[16] == magic
    assert list(columns.values) == [b"v", None]
    assert list(columns.keys or ()) == [b"k", b"gone"]
    assert (None if columns.timestamps is None else list(columns.timestamps)) == times


STAMP = Stamp(WHERE, ProducerIdentity(5, 1, "tx"), 3, 2)


@pytest.mark.parametrize("stamp", [None, STAMP], ids=["plain", "transactional"])
def test_small_batches_are_encoded_at_once_to_the_same_bytes(stamp: Stamp | None) -> None:
    records: list[list[bytes | ProducerRecord]] = [
        [b"a", ProducerRecord(None, b"k", (), 9)],
        [ProducerRecord(b"b" * 100)],
    ]
    batches = [PartitionBatch(WHERE, run, stamp=stamp) for run in records]
    assert encode_small(batches, V40, NO_LIMIT, NOW)
    assert [each.encoded for each in batches] == [
        encode_into(PartitionBatch(WHERE, run, stamp=stamp), V40, NO_LIMIT, NOW) for run in records
    ]


@pytest.mark.parametrize(
    ("second", "broker", "limit"),
    [
        (PartitionBatch(WHERE, [b"x"]), V010, NO_LIMIT),
        (PartitionBatch(WHERE, [b"x"], "gzip"), V40, NO_LIMIT),
        (PartitionBatch(WHERE, [b"x"], encoded=b"as it was sent"), V40, NO_LIMIT),
        (PartitionBatch(WHERE, cast(Any, pack([b"x"]))), V40, NO_LIMIT),
        (PartitionBatch(WHERE, [ProducerRecord(b"x", None, [("name", b"")])]), V40, NO_LIMIT),
        (PartitionBatch(WHERE, [b"x"] * 200), V40, NO_LIMIT),
        (PartitionBatch(WHERE, [b"x" * 100]), V40, 100),
    ],
    ids=["messages", "compressed", "encoded before", "packed", "headers", "many records", "too large"],
)
def test_what_is_not_small_and_plain_is_encoded_one_by_one(
    second: PartitionBatch, broker: BrokerVersions, limit: int
) -> None:
    first, before = PartitionBatch(WHERE, [b"y"]), second.encoded
    assert not encode_small([first, second], broker, limit, NOW)
    assert (first.encoded, second.encoded) == (None, before)


@pytest.mark.parametrize("values", [[b"a", b"bc"], pack([b"a", b"bc"])], ids=["list", "packed"])
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_plain_values_are_encoded_with_every_compression(values: Any, compression: str) -> None:
    data = encode_into(PartitionBatch(WHERE, values, compression), V40, NO_LIMIT, NOW)
    assert list(decoded(data).values) == [b"a", b"bc"]


def encoded(
    records: Any, broker: BrokerVersions, compression: str, stamp: Stamp | None, limit: int = NO_LIMIT
) -> bytes | type[Exception]:
    try:
        return encode_into(PartitionBatch(WHERE, records, compression, stamp=stamp), broker, limit, NOW)
    except (Unsupported, MessageTooLarge) as error:
        return type(error)


@given(
    rows=PRODUCER_RECORDS.filter(len),
    broker=st.sampled_from([V080, V09, V010, V011, V40]),
    compression=st.sampled_from(["none", "gzip", "snappy"]),
    stamp=st.sampled_from([None, STAMP]),
    kind=st.sampled_from("iq"),
    limit=st.sampled_from([NO_LIMIT, 100, 30]),
    start=st.integers(0, 3),
)
@example([ProducerRecord(b"v", None, (("h", b""),)), ProducerRecord(b"w")], V010, "none", None, "i", NO_LIMIT, 1)
def test_records_in_columns_have_the_bytes_that_they_have_one_by_one(
    rows: list[ProducerRecord],
    broker: BrokerVersions,
    compression: str,
    stamp: Stamp | None,
    kind: str,
    limit: int,
    start: int,
) -> None:
    start = min(start, len(rows) - 1)
    packed = packed_records(rows, kind)[start:]
    made: list[bytes | type[Exception]] = []
    for engine in ENGINES:
        with using(engine):
            made += (encoded(each, broker, compression, stamp, limit) for each in (list(packed), packed))
    assert all(each == made[0] for each in made)


@pytest.mark.parametrize(("broker", "headers"), [(V09, ()), (V010, ()), (V40, (("h", b"1"), ("i", None)))])
def test_no_object_is_made_for_a_record_in_columns(
    broker: BrokerVersions, headers: Headers, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [ProducerRecord(b"v", b"k", headers, 5), ProducerRecord(None, None, (), 6)]
    expected, packed = encode_into(batch(*rows), broker, NO_LIMIT, NOW), packed_records(rows)
    for kind in PackedRecords, PackedBytes, HeaderColumns:
        monkeypatch.setattr(kind, "__iter__", None)
    monkeypatch.setattr(PackedBytes, "tolist", None)
    with using("compiled"):
        assert encode_into(PartitionBatch(WHERE, packed), broker, NO_LIMIT, NOW) == expected


def test_headers_are_kept() -> None:
    headers = (("a", b"1"), ("b", None))
    data = encode_into(batch(b"x", ProducerRecord(b"v", None, headers)), V011, NO_LIMIT, NOW)
    assert [tuple(row) for row in decoded(data).headers or ()] == [(), headers]


@pytest.mark.parametrize(
    ("made", "broker", "needs"),
    [
        (batch(ProducerRecord(b"v", None, (("a", b"1"),))), V010, "0.11"),
        (batch(b"v", compression="zstd"), V011, "2.1"),
        (batch(b"v", compression="lz4"), V080, "0.8.2"),
    ],
    ids=["headers", "zstd", "lz4"],
)
def test_what_a_broker_cannot_store_is_refused(made: PartitionBatch, broker: BrokerVersions, needs: str) -> None:
    with pytest.raises(Unsupported, match=needs):
        encode_into(made, broker, NO_LIMIT, NOW)


@pytest.mark.parametrize(
    ("broker", "compression", "limit", "fits"),
    [
        (V40, "none", 100, False),
        (V40, "none", 200, True),
        (V010, "none", 50, True),
        (V010, "none", 49, False),
        (V010, "gzip", 90, False),
    ],
)
def test_the_size_limit_is_that_of_the_unit_that_the_broker_checks(
    broker: BrokerVersions, compression: str, limit: int, fits: bool
) -> None:
    made = batch(bytes(50), bytes(range(50)), compression=compression)
    if fits:
        assert encode_into(made, broker, limit, NOW)
    else:
        with pytest.raises(MessageTooLarge, match=f"larger than {limit}"):
            encode_into(made, broker, limit, NOW)


def test_a_batch_is_encoded_again_only_for_another_format() -> None:
    made = batch(b"v")
    first = bytes_for(made, V40, NO_LIMIT, NOW)
    assert bytes_for(made, V21, NO_LIMIT, NOW + 1) is first
    assert bytes_for(made, V010, NO_LIMIT, NOW + 1)[16] == 1


def test_a_batch_leaves_with_the_stamp_that_it_has_then() -> None:
    made = batch(b"v", b"w", compression="lz4", stamp=Stamp(WHERE, ProducerIdentity(7, 1), 10, 2))
    first = bytes_for(made, V40, NO_LIMIT, NOW)
    assert batch_header(memoryview(first))[9:12] == (7, 1, 10)
    assert bytes_for(made, V40, NO_LIMIT, NOW) is first
    made.stamp = Stamp(WHERE, ProducerIdentity(7, 2), 0, 2)
    second = bytes_for(made, V40, NO_LIMIT, NOW)
    assert batch_header(memoryview(second))[9:12] == (7, 2, 0)
    assert list(decoded(second).values) == [b"v", b"w"]
    assert with_producer(second, 7, 1, 10) == first


@pytest.mark.parametrize("broker", [V09, V010])
def test_a_message_set_has_no_place_for_a_stamp(broker: BrokerVersions) -> None:
    """An idempotent producer writes to a broker before 0.11, while a cluster is upgraded."""
    made = batch(b"v", stamp=Stamp(WHERE, ProducerIdentity(7, 1), 0, 1))
    first = encode_into(made, broker, NO_LIMIT, NOW)
    assert bytes_for(made, broker, NO_LIMIT, NOW) is first
    made.stamp = Stamp(WHERE, ProducerIdentity(7, 2), 0, 1)
    assert bytes_for(made, broker, NO_LIMIT, NOW) is first
    assert list(decoded(first).values) == [b"v"]
    assert batch_header(memoryview(bytes_for(made, V40, NO_LIMIT, NOW)))[9:12] == (7, 2, 0)


def test_a_batch_of_a_transaction_says_so() -> None:
    made = batch(b"v", stamp=Stamp(WHERE, ProducerIdentity(7, 3, "tx"), 0, 1))
    data = bytes_for(made, V40, NO_LIMIT, NOW)
    assert batch_header(memoryview(data)).is_transactional
    plain = bytes_for(batch(b"v", stamp=Stamp(WHERE, ProducerIdentity(7, 3), 0, 1)), V40, NO_LIMIT, NOW)
    assert not batch_header(memoryview(plain)).is_transactional


def answer(code: int = 0, *, topic_id: bytes = bytes(16), **fields: Any) -> ProduceResponse:
    partition = PartitionProduceResponse(index=0, error_code=code, **fields)
    name = "" if any(topic_id) else "t"
    return ProduceResponse(
        responses=(TopicProduceResponse(name=name, topic_id=topic_id, partition_responses=(partition,)),)
    )


def read(response: ProduceResponse, *records: bytes, **more: Any) -> Any:
    made = [batch(*(records or (b"v",)))]
    ids = more.pop("topic_ids", {})
    return read_produce(response, made, address="b:9092", topic_ids=ids, **more)[0]


def test_a_result_has_offset_and_times() -> None:
    result = read(answer(base_offset=5, log_append_time_ms=9, log_start_offset=2))
    assert result == (WHERE, None, 5, 9, 2, {})
    assert read(answer(base_offset=-1))[2:5] == (None, None, None)


def test_topics_are_recognised_by_their_ids() -> None:
    topic_id = bytes(range(16))
    assert read(answer(base_offset=5, topic_id=topic_id), topic_ids={"t": topic_id}).position == 5


def test_a_partition_that_is_missing_in_the_answer_may_be_written() -> None:
    error = read(ProduceResponse()).error
    assert isinstance(error, RemoteProtocolError) and error.sent and error.retriable


@pytest.mark.parametrize(
    ("code", "base_offset", "retriable", "sent"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, True, False),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, 0, True, True),
        (ErrorCode.KAFKA_STORAGE_ERROR, 7, True, True),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 7, True, True),
        (ErrorCode.REQUEST_TIMED_OUT, -1, True, True),
        (ErrorCode.NOT_ENOUGH_REPLICAS, -1, True, False),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, -1, True, True),
        (ErrorCode.UNKNOWN_SERVER_ERROR, -1, False, True),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1, False, False),
        (999, -1, False, False),
    ],
)
def test_an_error_says_whether_to_try_again_and_whether_it_was_written(
    code: int, base_offset: int, retriable: bool, sent: bool
) -> None:
    error = read(answer(code, base_offset=base_offset)).error
    assert isinstance(error, BrokerError)
    assert (error.code, error.retriable, error.sent) == (code, retriable, sent)
    assert "b:9092: produce to t/0" in str(error)


def test_a_batch_that_is_too_large_can_be_divided_and_a_record_cannot() -> None:
    several, one = (read(answer(ErrorCode.MESSAGE_TOO_LARGE), *records).error for records in ([b"a", b"b"], [b"a"]))
    assert isinstance(several, MessageTooLarge)
    assert isinstance(one, BrokerError) and "max.message.bytes" in one.hint


def test_what_a_topic_in_an_older_format_does_not_take_is_said() -> None:
    error = read(answer(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)).error
    assert isinstance(error, BrokerError) and "message.format.version" in error.hint


def test_records_that_the_broker_objects_to_are_named() -> None:
    bad = BatchIndexAndErrorMessage(batch_index=1, batch_index_error_message="no key")
    nameless = BatchIndexAndErrorMessage(batch_index=2)
    result = read(
        answer(ErrorCode.INVALID_RECORD, record_errors=(bad, nameless), error_message="why"), b"a", b"b", b"c"
    )
    assert result.record_errors == {1: "no key", 2: ""}
    assert "why" in str(result.error)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (None, "produce to t/0: no key: INVALID_RECORD"),
        ("why", "produce to t/0: why: no key: INVALID_RECORD"),
        ("why: [message='no key']", "produce to t/0: why: [message='no key']: INVALID_RECORD"),
    ],
)
def test_what_the_broker_objects_to_in_the_only_record_is_said_once(said: str | None, text: str) -> None:
    bad = BatchIndexAndErrorMessage(batch_index=0, batch_index_error_message="no key")
    result = read(answer(ErrorCode.INVALID_RECORD, record_errors=(bad,), error_message=said), b"a")
    assert text in str(result.error)


def test_the_leader_that_an_answer_names_is_passed_on() -> None:
    heard: list[tuple[Any, ...]] = []
    leader = LeaderIdAndEpoch(leader_id=2, leader_epoch=5)
    read(answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=leader), on_leader=lambda *named: heard.append(named))
    read(answer(ErrorCode.NOT_LEADER_OR_FOLLOWER), on_leader=lambda *named: heard.append(named))
    assert heard == [(WHERE, 2, 5, ())]


# ---- batches that are passed on -------------------------------------------------------------------------------

PASSED = [ProducerRecord(b"a", b"k", (), 5), ProducerRecord(b"b" * 99, None, (), 6)]


@pytest.mark.parametrize("stamp", [None, STAMP], ids=["plain", "transactional"])
def test_a_batch_of_the_compression_wanted_is_passed_on(stamp: Stamp | None) -> None:
    records = EncodedRecords(encoded_columns(PASSED, first_offset=70))
    passed = PartitionBatch(WHERE, records, "lz4:3", stamp=stamp)
    data = bytes_for(passed, V40, NO_LIMIT, NOW)
    header = batch_header(memoryview(data))
    assert data[61:] == records.batch.data[61:]
    assert (header.base_offset, header.is_transactional) == (0, stamp is not None)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (
        (-1, -1, -1) if stamp is None else (5, 1, 3)
    )
    passed.stamp = STAMP._replace(base_sequence=50)
    again = batch_header(memoryview(bytes_for(passed, V40, NO_LIMIT, NOW)))
    assert (again.base_sequence, again.record_count) == (50, 2)


@pytest.mark.parametrize(
    ("broker", "compression", "magic"), [(V40, "gzip", 2), (V40, "none", 2), (V010, "lz4", 1), (V09, "lz4", 0)]
)
def test_for_another_format_or_compression_it_is_decoded(broker: BrokerVersions, compression: str, magic: int) -> None:
    data = encode_into(batch(*PASSED, compression=compression), broker, NO_LIMIT, NOW)
    passed = PartitionBatch(WHERE, EncodedRecords(encoded_columns(PASSED)), compression)
    assert encode_into(passed, broker, NO_LIMIT, NOW) == data
    assert data[16] == magic and list(decoded(data).values) == [b"a", b"b" * 99]


def test_what_cannot_be_decoded_cannot_be_encoded_otherwise() -> None:
    damaged = EncodedRecords(undecodable(2, CompressionType.GZIP))
    with pytest.raises(CorruptMessage):
        encode_into(PartitionBatch(WHERE, damaged, "lz4"), V40, NO_LIMIT, NOW)
    assert encode_into(PartitionBatch(WHERE, damaged, "gzip"), V40, NO_LIMIT, NOW)[61:] == damaged.batch.data[61:]


def test_a_batch_that_is_passed_on_is_measured_too() -> None:
    records = EncodedRecords(encoded_columns(PASSED))
    with pytest.raises(MessageTooLarge):
        encode_into(PartitionBatch(WHERE, records, "lz4"), V40, len(records.batch.data) - 1, NOW)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ],
)
def test_a_batch_that_is_damaged_inside_is_not_sent_again_and_certainly_not_written(code: ErrorCode) -> None:
    for columns, is_damaged in ((undecodable(2), True), (encoded_columns(PASSED), False)):
        passed = PartitionBatch(WHERE, EncodedRecords(columns), "lz4")
        (result,) = read_produce(answer(code), [passed], address="b:1", topic_ids={})
        if is_damaged and code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
            assert isinstance(result.error, CorruptMessage)
            assert not (result.error.retriable or result.error.sent)
        else:
            assert isinstance(result.error, BrokerError) and result.error.code == code
