"""Every error code of the table, once in answers to Produce, Fetch and ListOffsets: through the whole client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import anyio
import pytest
from tests.io.kafka.answers import metadata_response, topic_response
from tests.io.kafka.peer import Peer
from tests.io.kafka.scripted_broker import T0, Log, ScriptedBroker, versions

import odradek as od
from odradek.core.backoff import Backoff
from odradek.core.interfaces import DecoderOptions
from odradek.core.kafka.fetch_results import FetchStep, fetch_step
from odradek.core.kafka.producer_state import NextStep
from odradek.core.kafka.producer_state import _step as step_of
from odradek.types import Position
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.data import (
    FetchPartitionData,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
)
from odradek.wire.kafka.messages.metadata import MetadataRequest
from odradek.wire.kafka.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from odradek.wire.kafka.records.batch import batch_header
from odradek.wire.kafka.records.decoder import RecordDecoder
from odradek.wire.kafka.records.encode import encode_batch

pytestmark = pytest.mark.anyio

CODES = [code for code in ErrorCode if code]
HASTY = od.Tuning(backoff=Backoff(0.001, 1, 0.001), request_timeout=5.0)
VALUES = [b"%d" % n for n in range(6)]


class SequencedLog(Log):
    """A log that knows its producers, as brokers do."""

    def __init__(self) -> None:
        super().__init__()
        self.producers: dict[int, tuple[int, int, dict[int, int]]] = {}

    def write(self, data: bytes) -> tuple[int, int]:
        """Return an error code and the offset."""
        header = batch_header(memoryview(data))
        if header.producer_id < 0:
            return 0, self.append(data)
        epoch, following, recent = self.producers.get(header.producer_id, (-1, 0, {}))
        if header.producer_epoch < epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, -1
        if header.producer_epoch > epoch:
            following, recent = 0 if epoch >= 0 else header.base_sequence, {}
        if header.base_sequence in recent:
            return 0, recent[header.base_sequence]
        if header.base_sequence != following:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        offset = self.append(data)
        recent = {**recent, header.base_sequence: offset}
        self.producers[header.producer_id] = header.producer_epoch, following + header.record_count, recent
        return 0, offset


class OneBroker(ScriptedBroker):
    """A broker with one partition whose answers have an error of the test's choice.

    Attributes:
        errors: Error codes of the next answers for the partition; 0: none.
        written: What a Produce with an error has is in the log nevertheless.
    """

    def __init__(self) -> None:
        super().__init__(versions(13, 18, 11))
        self.log = SequencedLog()
        self.logs = {T0: self.log}
        self.errors: Iterator[int] = iter(())
        self.written = False

    def append(self, topic: str, part: PartitionProduceData) -> PartitionProduceResponse:
        assert part.records is not None
        code, offset = next(self.errors, 0), -1
        if not code or self.written:
            refusal, offset = self.log.write(bytes(part.records))
            code = code or refusal
        return PartitionProduceResponse(index=part.index, error_code=code, base_offset=offset)

    def read(self, topic: str, part: Any, version: int) -> FetchPartitionData:
        if code := next(self.errors, 0):
            return FetchPartitionData(partition_index=part.partition, error_code=code, high_watermark=-1)
        return super().read(topic, part, version)

    def list_offsets(self, request: ListOffsetsRequest, version: int) -> ListOffsetsResponse:
        response = super().list_offsets(request, version)
        if code := next(self.errors, 0):
            (topic,) = response.topics
            refused = replace(topic.partitions[0], error_code=code, offset=-1)
            return ListOffsetsResponse(topics=(replace(topic, partitions=(refused,)),))
        return response

    def values(self) -> list[bytes]:
        return [value for _, entry in self.log.entries for value in _values(entry)]


def _values(entry: bytes) -> list[bytes]:
    decoder = RecordDecoder(T0, Position(0), DecoderOptions())
    decoder.start_response()
    decoder.feed(memoryview(entry))
    return [value or b"" for value in decoder.take().values]


METADATA = metadata_response(topic_response("t", 1, epoch=3, topic_id=bytes(range(16))))


@pytest.fixture
def anyio_backend() -> str:
    """One loop is enough for so many cases."""
    return "asyncio"


@pytest.fixture
def broker() -> OneBroker:
    return OneBroker()


@pytest.fixture
async def cluster(broker: OneBroker, monkeypatch: pytest.MonkeyPatch) -> Any:
    answers: dict[type, Callable[[Any, int], Any]] = {
        MetadataRequest: lambda request, version: METADATA,
        InitProducerIdRequest: lambda request, version: InitProducerIdResponse(producer_id=7, producer_epoch=0),
        **dict.fromkeys((ProduceRequest, FetchRequest, ListOffsetsRequest), broker.answer),
    }
    peer = Peer(answers)

    async def dial(host: str, port: int, timeout: float, *more: Any) -> Any:
        return await peer.dial(host, port, timeout)

    monkeypatch.setattr("odradek.io.kafka.connections.connect", dial)
    async with anyio.create_task_group() as peer.group:
        async with od.connect("kafka://b:9092", tuning=HASTY) as connected:
            yield connected
        peer.group.cancel_scope.cancel()


async def produce(cluster: od.Cluster, **options: Any) -> od.Acks | od.OdradekError:
    """Send six records in batches of two, behind a first one that introduces the producer."""
    producer: od.Producer = cluster.producer(tuning=replace(HASTY, batch_bytes=70), **options)
    try:
        with anyio.fail_after(30):
            async with producer as out:
                await out.send("t", b"first", partition=0)
                return await out.send_many("t", VALUES, partition=0)
    except od.OdradekError as error:
        return error


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("code", "written"),
    [
        *[(code, False) for code in CODES if code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER],
        *[(code, True) for code in CODES if code.retriable or code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER],
    ],
    ids=lambda value: value.name if isinstance(value, ErrorCode) else "written" if value else "not written",
)
async def test_an_error_in_produce_never_loses_repeats_or_reorders_records(
    cluster: od.Cluster, broker: OneBroker, code: ErrorCode, written: bool
) -> None:
    broker.errors, broker.written = iter([0, code]), written
    acks = await produce(cluster)
    stored = [value for value in broker.values() if value != b"first"]
    if step_of(code) in (NextStep.FENCED, NextStep.FATAL) and code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        assert isinstance(acks, od.OdradekError) and acks.fatal
        assert stored == VALUES[: len(stored)]
        return
    assert isinstance(acks, od.Acks)
    lost = [failed.record.value for failed in acks.failed]
    if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:  # the right to be idempotent is lost: it goes on without
        assert (lost, stored) == ([], VALUES)
    elif lost:
        assert not code.retriable and not written
        assert (lost, stored) == (VALUES[:2], VALUES[2:])
    else:
        assert stored == VALUES


@pytest.mark.sampled(2)
@pytest.mark.parametrize("code", CODES, ids=lambda code: ErrorCode(code).name)
async def test_an_error_in_produce_without_idempotence_loses_and_reorders_nothing(
    cluster: od.Cluster, broker: OneBroker, code: ErrorCode
) -> None:
    broker.errors = iter([0, code])
    acks = await produce(cluster, acks=1)
    assert isinstance(acks, od.Acks)
    lost = [failed.record.value for failed in acks.failed]
    stored = [value for value in broker.values() if value != b"first"]
    assert lost + stored == VALUES
    assert bool(lost) == (not code.retriable and code not in (ErrorCode.MESSAGE_TOO_LARGE, 18))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("code", CODES, ids=lambda code: ErrorCode(code).name)
async def test_an_error_in_fetch_is_retried_reset_or_raised(
    cluster: od.Cluster, broker: OneBroker, code: ErrorCode
) -> None:
    broker.log.append(encode_batch([b"a", b"b"]))
    step = fetch_step(FetchPartitionData(error_code=code))
    async with cluster.reader({T0: 0}) as reader:
        broker.errors = iter([code])
        with anyio.fail_after(30):
            if step in (FetchStep.RAISE, FetchStep.OUT_OF_RANGE):
                with pytest.raises(od.BrokerError) as caught:
                    await anext(reader)
                assert caught.value.code == code
            else:
                assert (await anext(reader)).value == b"a"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("code", CODES, ids=lambda code: ErrorCode(code).name)
async def test_an_error_of_a_whole_fetch_is_no_end_of_the_cluster(
    cluster: od.Cluster, broker: OneBroker, code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.log.append(encode_batch([b"a", b"b"]))
    refusals = iter([FetchResponse(error_code=code)])
    answer = broker.fetch
    monkeypatch.setattr(broker, "fetch", lambda request, version: next(refusals, None) or answer(request, version))
    async with cluster.reader({T0: 0}) as reader:
        with anyio.fail_after(30):
            try:
                value = (await anext(reader)).value
            except od.BrokerError as error:
                assert error.code == code and not code.retriable
            else:
                assert value == b"a"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("code", CODES, ids=lambda code: ErrorCode(code).name)
async def test_an_error_in_positions_is_retried_or_raised(
    cluster: od.Cluster, broker: OneBroker, code: ErrorCode
) -> None:
    broker.log.append(encode_batch([b"a", b"b"]))
    async with cluster.reader({T0: 0}) as reader:
        assert (await anext(reader)).value == b"a"
        broker.errors = iter([code])
        reader.seek(T0, od.EARLIEST)
        with anyio.fail_after(30):
            try:
                value = (await anext(reader)).value
            except od.BrokerError as error:
                assert error.code == code and not code.retriable
            else:
                assert value == b"a" or (code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT and value is not None)
