"""Hostile bytes against everything that reads messages of Kafka 0.8 to 4.3.

    python -m tests.wire.kafka.fuzz --count 200000 --seed 7

mutates valid messages of every API, side and version. Deterministic for a seed. Exit code 1 at the first input that
breaks the rule of `fuzz_one`; it is printed in hexadecimal.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from tests import fuzzing
from tests.conformance.kafka.apis import APIS, decode_request
from tests.fuzzing import Mutation, cut, double, mutate, remove

from odradek.errors import RemoteProtocolError
from odradek.wire.kafka import embedded
from odradek.wire.kafka.decode import decode
from odradek.wire.kafka.encode import encode
from odradek.wire.kafka.fetch_response import FetchResponseDecoder
from odradek.wire.kafka.headers import RequestHeader, ResponseHeader, decode_response, header_version
from odradek.wire.kafka.messages.data import FetchableTopicResponse, FetchPartitionData, FetchResponse
from odradek.wire.kafka.schema import (
    BYTES,
    RECORDS,
    STRINGS,
    UUID,
    Array,
    Field,
    Kind,
    Message,
    Nested,
    Primitive,
    Struct,
    fields_of,
)

MAX_BYTES = 1 << 20
CORRELATION_ID = 7

AnyMessage = TypeVar("AnyMessage", bound=Message)


class Case(NamedTuple):
    """Bytes and what they are read as."""

    cls: type[Message]
    version: int
    data: bytes


def every_version() -> list[tuple[type[Message], int]]:
    """Every message, header and embedded schema in each of its versions."""
    classes: list[type[Message]] = [RequestHeader, ResponseHeader]
    for api in APIS.values():
        classes += [api.request, api.response]
    for value in vars(embedded).values():
        if isinstance(value, type) and issubclass(value, Message) and value is not Message:
            classes.append(value)
    return [(cls, version) for cls in classes for version in range(cls.SPEC.versions[0], cls.SPEC.versions[1] + 1)]


# ---- valid values -------------------------------------------------------------------------------------------


def random_value(rng: random.Random, cls: type[AnyMessage], version: int, unknown_tags: bool = True) -> AnyMessage:
    """A value that the version has bytes for, perhaps with unknown tagged fields."""
    value = _random_struct(rng, cls, version, cls.SPEC.is_flexible(version) and unknown_tags)
    assert isinstance(value, cls)
    return value


def _random_struct(rng: random.Random, cls: type[Struct], version: int, unknown_tags: bool) -> Struct:
    values = {f.name: _random_field(rng, f, version, unknown_tags) for f in fields_of(cls) if f.is_in(version)}
    if unknown_tags and rng.random() < 0.1:
        numbers = sorted({rng.choice([100, 127, 128, 16384, 2**31]) for _ in range(2)})
        values["unknown_tags"] = tuple((number, rng.randbytes(rng.randrange(9))) for number in numbers)
    return cls(**values)


def _random_field(rng: random.Random, field: Field, version: int, unknown_tags: bool) -> Any:
    if field.is_nullable(version) and rng.random() < 0.2:
        return None
    if field.tag is not None and rng.random() < 0.3:
        return field.default
    return _random(rng, field.kind, version, unknown_tags)


def _random(rng: random.Random, kind: Kind, version: int, unknown_tags: bool) -> Any:
    if isinstance(kind, Nested):
        return _random_struct(rng, kind.type, version, unknown_tags)
    if isinstance(kind, Array):
        return tuple(_random(rng, kind.element, version, unknown_tags) for _ in range(rng.choice([0, 1, 1, 2])))
    return _random_primitive(rng, kind)


def _random_primitive(rng: random.Random, kind: Primitive) -> Any:
    if kind in STRINGS:
        return "".join(rng.choices("ab-.\0\u00e9\u8a9e\U0001f40d", k=rng.choice([0, 1, 5, 5, 130])))
    if kind == UUID:
        return rng.randbytes(16)
    if kind in (BYTES, RECORDS):
        return rng.randbytes(rng.choice([0, 3, 40, 200]))
    if kind.name == "boolean":
        return rng.random() < 0.5
    if kind.name == "float64":
        return rng.uniform(-1e9, 1e9)
    bits = 8 * kind.size
    return rng.choice([0, 1, rng.getrandbits(bits - 1), (1 << (bits - 1)) - 1])


# ---- the rule -----------------------------------------------------------------------------------------------


def fuzz_one(case: Case) -> None:
    """Whatever the bytes: no exception but RemoteProtocolError; what could be read is written and read again alike;
    and a response to Fetch means the same in every split."""
    with suppress(RemoteProtocolError):
        decode_request(case.data)
    with suppress(RemoteProtocolError):
        embedded.decode_versioned(embedded.ConsumerProtocolSubscription, case.data)
    with suppress(RemoteProtocolError):
        value = decode(case.cls, case.version, case.data)
        again = encode(value, case.version)
        assert encode(decode(case.cls, case.version, again), case.version) == again
    if case.cls is FetchResponse:
        frame = CORRELATION_ID.to_bytes(4, "big") + case.data
        whole = whole_fetch(case.version, frame)
        assert split_fetch(case.version, frame, cuts_of(frame)) == whole, "it depends on the split"


class Failed(NamedTuple):
    """The bytes were refused."""


def whole_fetch(version: int, frame: bytes) -> FetchResponse | Failed:
    """The response as it is decoded at once."""
    try:
        response, correlation_id = decode_response(FetchResponse, version, frame)
    except RemoteProtocolError:
        return Failed()
    for topic in response.responses:
        for partition in topic.partitions:
            object.__setattr__(partition, "records", partition.records or b"")  # sinks do not tell null from nothing
    return response if correlation_id == CORRELATION_ID else Failed()


class Collector(bytearray):
    """Keeps what it is fed."""

    def feed(self, data: memoryview) -> None:
        self += data


def split_fetch(version: int, frame: bytes, cuts: list[int]) -> FetchResponse | Failed:
    """The response as it is decoded bit by bit, with the records that went to the sinks."""
    sinks: dict[int, Collector] = {}

    def open_sink(topic: FetchableTopicResponse, partition: FetchPartitionData) -> Collector:
        return sinks.setdefault(id(partition), Collector())

    decoder = FetchResponseDecoder(version, CORRELATION_ID, open_sink, MAX_BYTES)
    data = memoryview(len(frame).to_bytes(4, "big") + frame)
    try:
        for start, stop in pairwise([0, *cuts, len(data)]):
            assert decoder.feed(data[start:stop]) == stop - start
    except RemoteProtocolError:
        return Failed()
    assert decoder.done
    response = decoder.result()
    for topic in response.responses:
        for partition in topic.partitions:
            object.__setattr__(partition, "records", bytes(sinks.get(id(partition), b"")))
    return response


def cuts_of(data: bytes) -> list[int]:
    """A few positions to cut at, the same ones for the same bytes."""
    seed = sum(data)
    return sorted({seed % 7, seed % 31, seed % 257, seed % (len(data) + 1)} & set(range(len(data) + 4)))


def allocation_limit(data: bytes) -> int:
    """A struct of few bytes on the wire is an object here, with a slot for each field."""
    return 200 * len(data) + 65536


# ---- hostile inputs -----------------------------------------------------------------------------------------

NUMBERS = [0, 1, 2, 127, 128, 255, 16383, 32767, 65535, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]


def overwrite(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])


number = fuzzing.number(NUMBERS, (1, 2, 4))
MUTATIONS: list[Mutation] = [overwrite, overwrite, number, number, remove, double, cut]


def hostile(rng: random.Random, versions: list[tuple[type[Message], int]]) -> Case:
    """Valid bytes of some message, mutated; now and then read as another message, or made a frame."""
    cls, version = rng.choice(versions)
    data = bytearray(encode(random_value(rng, cls, version), version))
    if cls.SPEC.side == "request" and rng.random() < 0.2:
        header = RequestHeader(request_api_key=cls.SPEC.key, request_api_version=version)
        data[:0] = encode(header, header_version(cls, version))
    mutate(rng, data, MUTATIONS)
    if rng.random() < 0.1:
        cls, version = rng.choice(versions)
    return Case(cls, version, bytes(data))


def inputs(count: int, seed: int) -> Iterator[Case]:
    """So many hostile inputs; a tenth are responses to Fetch."""
    rng, versions = random.Random(seed), every_version()
    fetch: list[tuple[type[Message], int]] = [(cls, version) for cls, version in versions if cls is FetchResponse]
    for i in range(count):
        yield hostile(rng, versions if i % 10 else fetch)


# ---- the script ---------------------------------------------------------------------------------------------


def described(case: Case) -> tuple[str, bytes]:
    """The name of an input and its bytes."""
    return f", {case.cls.__name__} version {case.version}", case.data


def run(count: int, seed: int, alive: Callable[[], object] = lambda: None) -> int:
    """Give the exit code. `alive` is called every thousand inputs."""
    sampling = fuzzing.Sampling(20, allocation_limit)
    return fuzzing.run_inputs(fuzz_one, inputs(count, seed), described, sampling, seed=seed, alive=alive)


if __name__ == "__main__":
    fuzzing.main(run, __doc__)
