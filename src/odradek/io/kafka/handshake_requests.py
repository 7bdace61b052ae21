"""Requests and responses of a handshake: several requests at once, of which the first answer counts; SASL requests; raw
SASL tokens. All are sans-IO."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from odradek.core.kafka.version_probe import Received
from odradek.engine import Buffer
from odradek.errors import RemoteProtocolError
from odradek.wire.kafka.headers import decode_response, encode_request
from odradek.wire.kafka.responses import FrameDecoder, KafkaResponseDecoder
from odradek.wire.kafka.schema import Request, Response, response_of

__all__ = ["FirstAnswer", "ProbeRequest", "RawToken", "SaslRequest"]

MAX_RESPONSE_BYTES = 1 << 20
"""Maximum size of a response during the handshake (bytes)."""

MAX_SKIPPED_BYTES = 1 << 28
"""Maximum size of a response that is skipped (bytes): Metadata of all topics may be large."""

SIZE_ESTIMATE = 64

_ID = struct.Struct(">i")
_OTHER_PROTOCOLS = {b"\x15\x03": "TLS", b"\x16\x03": "TLS", b"HT": "HTTP"}


class FirstAnswer(NamedTuple):
    """The first answer to a probe, and the correlation ids of the answers that are still to come."""

    received: Received
    late: frozenset[int]


class ProbeRequest:
    """Requests written back to back (see `io.requests.RequestEncoder`); the result is a `FirstAnswer`.

    Without requests it waits until all late answers have been skipped; the result is None.

    Args:
        requests: Each with its version and correlation id.
        late: Correlation ids of earlier requests whose answers are skipped.
        client_id: For the headers.
    """

    def __init__(
        self, requests: Sequence[tuple[Request[Any], int, int]], late: Iterable[int], client_id: str | None
    ) -> None:
        self._requests, self._late, self._client_id = requests, frozenset(late), client_id
        self.size = SIZE_ESTIMATE * len(requests)

    def encode(self, session: object) -> tuple[Sequence[Buffer], ProbeDecoder]:
        """Encode all requests."""
        buffers: list[Buffer] = []
        expected: dict[int, tuple[type[Response], int]] = {}
        for request, version, number in self._requests:
            buffers += encode_request(request, version, number, self._client_id)
            expected[number] = response_of(type(request)), version
        return buffers, ProbeDecoder(expected, self._late)


class ProbeDecoder:
    """Decodes the first answer to any of some requests, and skips late answers to earlier ones.

    Args:
        expected: Correlation id -> response and version, in the order in which they were sent.
        late: See `ProbeRequest`.
    """

    whole_bytes = 0
    """Any piece will do."""

    def __init__(self, expected: Mapping[int, tuple[type[Response], int]], late: frozenset[int]) -> None:
        self.done = False
        """The answer is complete."""
        self._expected, self._late = expected, set(late)
        self._frame = _Frame(self._late)
        self._answer: FirstAnswer | None = None

    def feed(self, data: memoryview) -> int:
        """Take the next bytes and return how many. Raises RemoteProtocolError: the peer does not speak Kafka, or
        answers what was not asked."""
        used = 0
        while used < len(data) and not self.done:
            used += self._frame.feed(data[used:])
            if self._frame.done:
                self._end_frame(self._frame)
        return used

    def result(self) -> FirstAnswer | None:
        """Return the first answer; None if none was asked for."""
        return self._answer

    def _end_frame(self, frame: _Frame) -> None:
        self._frame = _Frame(self._late)
        number = frame.correlation_id
        if number in self._late:
            self._late.discard(number)
            self.done = not self._expected and not self._late
            return
        numbers = list(self._expected)
        if number not in self._expected:
            raise RemoteProtocolError(f"correlation id {number}, expected one of {numbers}")
        cls, version = self._expected[number]
        response, _ = decode_response(cls, version, frame.content)
        index = numbers.index(number)
        self._answer = FirstAnswer(Received(index, response), frozenset(numbers[index + 1 :]))
        self.done = True


class _Frame(FrameDecoder):
    """One frame: its correlation id, and its content unless it is late.

    Args:
        late: Correlation ids of frames whose content is not kept.
    """

    def __init__(self, late: set[int]) -> None:
        super().__init__(MAX_SKIPPED_BYTES)
        self.content = bytearray()
        self._late = late

    @property
    def correlation_id(self) -> int:
        """Id of the request that it answers."""
        number: int = _ID.unpack_from(self.content)[0]
        return number

    def _take_size(self, data: memoryview) -> int:
        try:
            return super()._take_size(data)
        except RemoteProtocolError as error:
            raise _other_protocol(bytes(self._size)) or error from None

    def _take(self, part: memoryview) -> None:
        if len(self.content) < _ID.size:
            missing = _ID.size - len(self.content)
            self.content += part[:missing]
            part = part[missing:]
        if not part or self.correlation_id in self._late:
            return
        self.content += part
        if len(self.content) > MAX_RESPONSE_BYTES:
            raise RemoteProtocolError(f"a response of more than {MAX_RESPONSE_BYTES} bytes during the handshake")

    def _end(self) -> None:
        if len(self.content) < _ID.size:
            raise RemoteProtocolError(f"a response of {len(self.content)} bytes")


def _other_protocol(start: bytes) -> RemoteProtocolError | None:
    """Return the error for a peer that speaks another protocol, known by its first bytes."""
    name = _OTHER_PROTOCOLS.get(start[:2])
    if name is None:
        return None
    error = RemoteProtocolError(f"the peer speaks {name}")
    error.retriable = False
    error.hint = f"use a URL with {'+ssl' if name == 'TLS' else 'the port of a broker'}"
    return error


class SaslRequest:
    """A SASL request with a known version (see `io.requests.RequestEncoder`)."""

    size = SIZE_ESTIMATE

    def __init__(self, request: Request[Any], version: int, correlation_id: int, client_id: str | None) -> None:
        self._request, self._version, self._id, self._client_id = request, version, correlation_id, client_id

    def encode(self, session: object) -> tuple[Sequence[Buffer], KafkaResponseDecoder[Any]]:
        """Encode the request."""
        buffers = encode_request(self._request, self._version, self._id, self._client_id)
        response = response_of(type(self._request))
        return buffers, KafkaResponseDecoder(response, self._version, self._id, MAX_RESPONSE_BYTES)


class RawToken:
    """A SASL token in a frame of its own (see `io.requests.RequestEncoder`); the result is the broker's token.

    Args:
        token: The client's token.
        answered: False if the broker has no token for it: the result is None.
    """

    size = SIZE_ESTIMATE

    def __init__(self, token: bytes, *, answered: bool = True) -> None:
        self._token, self._answered = token, answered

    def encode(self, session: object) -> tuple[Sequence[Buffer], RawTokenDecoder | None]:
        """Put the size in front."""
        decoder = RawTokenDecoder() if self._answered else None
        return [_ID.pack(len(self._token)) + self._token], decoder


class RawTokenDecoder(FrameDecoder):
    """Decodes one token of a broker."""

    def __init__(self) -> None:
        super().__init__(MAX_RESPONSE_BYTES)
        self._token = bytearray()

    def result(self) -> bytes:
        """Return the token, once `done`."""
        return bytes(self._token)

    def _take(self, part: memoryview) -> None:
        self._token += part

    def _end(self) -> None:
        pass
