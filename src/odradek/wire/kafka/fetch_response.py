"""The response to Fetch as it arrives: record bytes go to their sinks at once, without being copied or put together.

Everything but the records is decoded in sections, each by one generated function: what precedes the topics, what
precedes the partitions of a topic, what precedes the records of a partition, and the tagged fields after each of them.
A section that is not complete waits until more bytes have come.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple, Protocol

from odradek.engine import Buffer
from odradek.errors import RemoteProtocolError
from odradek.wire.decoding import WHOLE_BYTES
from odradek.wire.kafka.decode import (
    DECODE_ERRORS,
    head_decoder,
    problem_of,
    run_decoder,
    section_decoder,
    tail_decoder,
)
from odradek.wire.kafka.decoder_source import min_size
from odradek.wire.kafka.headers import ResponseHeader, header_version
from odradek.wire.kafka.messages.data import FetchableTopicResponse, FetchPartitionData, FetchResponse
from odradek.wire.kafka.primitives import Malformed, TooShort, count_error, length_error
from odradek.wire.kafka.responses import FrameDecoder
from odradek.wire.kafka.schema import Nested

__all__ = ["FetchResponseDecoder", "OpenSink", "RecordSink"]

STEP_BYTES = 256  # an incomplete section is tried again with this many more bytes, or twice as many as it had


class RecordSink(Protocol):
    """Receiver of the record bytes of one partition. They are valid during the call only."""

    def feed(self, data: memoryview, /) -> None: ...


OpenSink = Callable[[FetchableTopicResponse, FetchPartitionData], RecordSink | None]
"""Function that returns the sink for the records of a partition; None: they are skipped. The topic has no partitions
yet; the partition has everything but its records and, perhaps, its tagged fields."""


_PartitionsDecoder = Callable[
    [Buffer, int, int, list[FetchPartitionData], list[tuple[FetchPartitionData, int, int]]], tuple[int, int]
]


class _Sections(NamedTuple):
    """The functions that decode what is not records, for one version."""

    header: Callable[[Buffer, int], tuple[ResponseHeader, int]]
    response: Callable[[Buffer, int], tuple[FetchResponse, int, int]]
    topic: Callable[[Buffer, int], tuple[FetchableTopicResponse, int, int]]
    partition: Callable[[Buffer, int], tuple[FetchPartitionData, int, int]]
    partitions: _PartitionsDecoder
    response_end: Callable[[Buffer, int, FetchResponse], int]
    topic_end: Callable[[Buffer, int, FetchableTopicResponse], int]
    partition_end: Callable[[Buffer, int, FetchPartitionData], int]
    least_topic: int
    least_partition: int
    flexible: bool


@cache
def _sections(version: int) -> _Sections:
    response, topic, partition = FetchResponse, FetchableTopicResponse, FetchPartitionData
    flexible = response.SPEC.is_flexible(version)
    return _Sections(
        section_decoder(ResponseHeader, header_version(response, version)),
        head_decoder(response, response, version),
        head_decoder(response, topic, version),
        head_decoder(response, partition, version),
        run_decoder(response, partition, version),
        tail_decoder(response, response, version),
        tail_decoder(response, topic, version),
        tail_decoder(response, partition, version),
        min_size(Nested(topic), version, flexible),
        min_size(Nested(partition), version, flexible),
        flexible,
    )


class FetchResponseDecoder(FrameDecoder):
    """Decodes one response to Fetch.

    Args:
        version: As it was requested.
        correlation_id: As it was requested.
        open_sink: Called for each partition that has record bytes, when they begin.
        max_bytes: Most bytes the response may have, without its size.
    """

    def __init__(self, version: int, correlation_id: int, open_sink: OpenSink, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self.whole_bytes = min(max_bytes, WHOLE_BYTES)
        FetchResponse.SPEC.check(version)
        self._version, self._correlation_id, self._open_sink = version, correlation_id, open_sink
        self._sections = _sections(version)
        self._held = bytearray()  # of a section that is not complete
        self._retry_at = 0  # how many bytes of it there must be for trying again
        self._next: Callable[[memoryview, int], int] = self._header
        self._beyond = 0  # bytes of the frame after those that a section is decoded from
        self._sink: RecordSink | None = None
        self._missing = 0  # record bytes of the current partition that have not come yet
        self._unopened = False  # none of them has come, and no sink was asked for
        self._response = FetchResponse()
        self._topic, self._topics, self._topics_left = FetchableTopicResponse(), list[FetchableTopicResponse](), 0
        self._partition, self._partitions, self._partitions_left = FetchPartitionData(), list[FetchPartitionData](), 0

    def __repr__(self) -> str:
        state = "done" if self.done else f"{len(self._topics)} topics, {self._left} bytes missing"
        return f"<{type(self).__name__} version {self._version}: {state}>"

    def result(self) -> FetchResponse:
        """Return the response, once `done`, with None for the records of every partition."""
        assert self.done, "the response is not complete"
        return self._response

    # ---- bytes --------------------------------------------------------------------------------------------

    def _take(self, part: memoryview) -> None:
        used, size = 0, len(part)
        while used < size:
            if self._missing:
                used = self._feed_sink(part, used)
            elif self._held:
                used = self._continue_section(part, used)
            elif self._next == self._partition_head and (whole := self._whole_partitions(part, used)) > used:
                used = whole
            else:
                used = self._begin_section(part, used)

    def _end(self) -> None:
        if self._next != self._reject_extra_bytes:
            raise self._error("the bytes end too early")

    def _whole_partitions(self, part: memoryview, start: int) -> int:
        """Take those partitions of a topic that have arrived completely, and return the position after them."""
        spans: list[tuple[FetchPartitionData, int, int]] = []
        end, left = self._sections.partitions(part, start, self._partitions_left, self._partitions, spans)
        for partition, begin, stop in spans:
            if (sink := self._open_sink(self._topic, partition)) is not None:
                sink.feed(part[begin:stop])
        self._partitions_left = left
        if not left:
            self._next_partition()
        return end

    def _feed_sink(self, part: memoryview, start: int) -> int:
        if self._unopened:
            self._sink, self._unopened = self._open_sink(self._topic, self._partition), False
        stop = min(start + self._missing, len(part))
        self._missing -= stop - start
        if self._sink is not None:
            self._sink.feed(part[start:stop])
        if not self._missing:
            self._records_end()
        return stop

    def _begin_section(self, part: memoryview, start: int) -> int:
        self._beyond = self._left
        try:
            return self._next(part, start)
        except DECODE_ERRORS as error:
            self._check(error, len(part) - start)
        self._held += part[start:]
        self._retry_at = 2 * len(self._held)
        return len(part)

    def _continue_section(self, part: memoryview, start: int) -> int:
        """Add bytes to an incomplete section and try again. The steps double: what comes byte by byte is not decoded
        from its beginning with every byte."""
        stop = min(start + max(STEP_BYTES, len(self._held)), len(part))
        self._held += part[start:stop]
        after = len(part) - stop
        self._beyond = self._left + after
        if len(self._held) < self._retry_at and self._beyond:
            return stop
        section = memoryview(bytes(self._held))
        try:
            used = self._next(section, 0)
        except DECODE_ERRORS as error:
            self._check(error, len(section))
            self._retry_at = 2 * len(section)
            return stop
        self._held.clear()
        self._left += after  # what is left of the section's bytes is taken first, as if it came alone
        self._take(section[used:])
        self._left -= after
        return stop

    def _check(self, error: Exception, available: int) -> None:
        """Raise RemoteProtocolError unless more bytes can make the section complete."""
        if isinstance(error, TooShort):
            hopeless = error.needed > available + self._beyond
        else:
            hopeless = isinstance(error, Malformed | UnicodeDecodeError)
        if hopeless or not self._beyond:
            raise self._error(problem_of(error)) from None

    def _error(self, problem: str) -> RemoteProtocolError:
        path = ""
        if self._next in (self._topic_head, self._partition_head, self._partition_tail, self._topic_tail):
            path = f"responses[{len(self._topics)}]"
            if self._next in (self._partition_head, self._partition_tail):
                path += f".partitions[{len(self._partitions)}]"
        byte = int.from_bytes(self._size, "big") - self._left
        return RemoteProtocolError(
            f"FetchResponse version {self._version}: {path or 'the message'} before byte {byte}: {problem}"
        )

    # ---- sections: each decodes from a position, notes what comes next, and returns the next position -----

    def _header(self, data: memoryview, start: int) -> int:
        header, end = self._sections.header(data, start)
        if header.correlation_id != self._correlation_id:
            raise Malformed(f"correlation id {header.correlation_id}, expected {self._correlation_id}")
        self._next = self._response_head
        return end

    def _response_head(self, data: memoryview, start: int) -> int:
        response, count, end = self._sections.response(data, start)
        self._check_count(count, self._sections.least_topic, len(data) - end)
        self._response, self._topics_left = response, count
        self._next_topic()
        return end

    def _topic_head(self, data: memoryview, start: int) -> int:
        topic, count, end = self._sections.topic(data, start)
        self._check_count(count, self._sections.least_partition, len(data) - end)
        self._topic, self._partitions_left = topic, count
        self._partitions = []
        self._next_partition()
        return end

    def _partition_head(self, data: memoryview, start: int) -> int:
        partition, size, end = self._sections.partition(data, start)
        left = len(data) - end + self._beyond
        if size > left or size < -1:
            raise length_error(size, left)
        self._partition = partition
        if size > 0:
            self._missing, self._unopened = size, True
        else:
            self._records_end()
        return end

    def _partition_tail(self, data: memoryview, start: int) -> int:
        end = self._sections.partition_end(data, start, self._partition)
        self._partition_done()
        return end

    def _topic_tail(self, data: memoryview, start: int) -> int:
        end = self._sections.topic_end(data, start, self._topic)
        self._topic_done()
        return end

    def _response_tail(self, data: memoryview, start: int) -> int:
        end = self._sections.response_end(data, start, self._response)
        self._next = self._reject_extra_bytes
        return end

    def _reject_extra_bytes(self, data: memoryview, start: int) -> int:
        raise Malformed(f"{len(data) - start + self._beyond} unexpected bytes follow")

    # ---- what comes next ----------------------------------------------------------------------------------

    def _check_count(self, count: int, minimum: int, left: int) -> None:
        left += self._beyond
        if not 0 <= count <= left // minimum:
            raise count_error(count, left)

    def _next_topic(self) -> None:
        if self._topics_left:
            self._next = self._topic_head
            return
        object.__setattr__(self._response, "responses", tuple(self._topics))
        self._next = self._response_tail if self._sections.flexible else self._reject_extra_bytes

    def _next_partition(self) -> None:
        if self._partitions_left:
            self._next = self._partition_head
            return
        object.__setattr__(self._topic, "partitions", tuple(self._partitions))
        if self._sections.flexible:
            self._next = self._topic_tail
        else:
            self._topic_done()

    def _records_end(self) -> None:
        if self._sections.flexible:
            self._next = self._partition_tail
        else:
            self._partition_done()

    def _partition_done(self) -> None:
        self._partitions.append(self._partition)
        self._partitions_left -= 1
        self._next_partition()

    def _topic_done(self) -> None:
        self._topics.append(self._topic)
        self._topics_left -= 1
        self._next_topic()
