"""The effects and answers of requests (specification.md 3, App. D)."""

from __future__ import annotations

import struct
from collections import Counter

from odradek.engine import Buffer
from odradek.testing.kafka07.errors import BrokerHalted, OffsetNotInLog, RequestRefused
from odradek.testing.kafka07.log import PartitionLog, Slice
from odradek.testing.kafka07.log_store import IllegalTopic, LogStore, WrongPartition
from odradek.testing.kafka07.validate import InvalidSet, PayloadTooLarge, check_set
from odradek.wire.kafka07.requests import Fetch, MultiFetch, MultiProduce, Offsets, Produce, Request
from odradek.wire.kafka07.responses import Kafka07ErrorCode, encode_offsets

__all__ = ["AnswerPart", "Handler"]

AnswerPart = Buffer | Slice
"""A part of an answer: bytes to send, or a range of a file to send."""

_PART = struct.Struct(">ih")  # size of what follows, error code

_FetchedPart = tuple[int, Slice | None]


class Handler:
    """Requests on `logs`, counted by kind."""

    def __init__(self, logs: LogStore) -> None:
        self.logs = logs
        self.counts: Counter[str] = Counter()

    def handle(self, request: Request) -> list[AnswerPart]:
        """The answer; empty for a produce. Raises Refused: the connection is closed without one; BrokerHalted."""
        self.counts[type(request).__name__.lower()] += 1
        if isinstance(request, Produce):
            self._produce(request)
            return []
        if isinstance(request, Fetch):
            return _part(self._fetch(request))
        if isinstance(request, MultiProduce):
            for part in request.parts:
                self._produce(part)
            return []
        if isinstance(request, MultiFetch):
            return self._multi_fetch(request)
        return self._offsets(request)

    def _produce(self, request: Produce) -> None:
        try:
            log = self.logs.find_or_create(request.topic, request.partition)
        except OSError as error:  # a name too long for the file system
            raise RequestRefused(str(error)) from error
        try:
            valid = check_set(request.message_set, self.logs.config.max_message_size)
        except PayloadTooLarge:
            return  # and nobody is told
        except InvalidSet as error:
            raise RequestRefused(str(error)) from error
        try:
            log.append(request.message_set, valid)
        except OSError as error:
            raise BrokerHalted(f"{log.directory}: {error}") from error

    def _fetch(self, request: Fetch) -> _FetchedPart:
        try:
            log = self.logs.find(request.topic, request.partition)
            return Kafka07ErrorCode.NO_ERROR, log.read(request.offset, request.max_bytes) if log else None
        except IllegalTopic:
            return Kafka07ErrorCode.UNKNOWN, None
        except WrongPartition:
            return Kafka07ErrorCode.WRONG_PARTITION, None
        except OffsetNotInLog:
            return Kafka07ErrorCode.OFFSET_OUT_OF_RANGE, None

    def _multi_fetch(self, request: MultiFetch) -> list[AnswerPart]:
        fetched = [self._fetch(part) for part in request.parts]
        size = 2 + sum(6 + (body.length if body else 0) for _, body in fetched)
        parts: list[AnswerPart] = [_PART.pack(_int32(size), Kafka07ErrorCode.NO_ERROR)]
        for part in fetched:
            parts += _part(part)
        return parts

    def _offsets(self, request: Offsets) -> list[AnswerPart]:
        log = self.logs.find(request.topic, request.partition)
        return [*encode_offsets(_offsets_of(log, request))]


def _part(fetched: _FetchedPart) -> list[AnswerPart]:
    error, body = fetched
    if body is None:
        return [_PART.pack(2, error)]
    return [_PART.pack(_int32(body.length + 2), error), body]


def _int32(size: int) -> int:
    """As Java adds."""
    return (size + 2**31) % 2**32 - 2**31


def _offsets_of(log: PartitionLog | None, request: Offsets) -> list[int]:
    if log is not None:
        return log.offsets_before(request.time, request.max_number)
    return [0] if request.time in (-1, -2) else []  # whatever max_number is (specification.md 4.1)
