"""Byte equality with the codec of kafka-python, for every API and version it has."""

from __future__ import annotations

import importlib
import random
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from tests.conformance.kafka.apis import APIS
from tests.wire.kafka import fuzz

from odradek.wire.kafka.decode import decode
from odradek.wire.kafka.encode import encode
from odradek.wire.kafka.messages.metadata import ApiVersionsResponse
from odradek.wire.kafka.schema import Message


def imported() -> Iterator[ModuleType]:
    """The modules of kafka-python, whose warnings are not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for family in ("admin", "consumer", "metadata", "producer", "sasl"):
            yield importlib.import_module(f"kafka.protocol.{family}")


def pairs() -> Iterator[tuple[Any, type[Message]]]:
    """Their class and ours."""
    theirs = {name: value for module in imported() for name, value in vars(module).items()}
    for api in APIS.values():
        for cls in (api.request, api.response):
            if cls.__name__ in theirs:
                yield theirs[cls.__name__], cls


PAIRS = list(pairs())
VERSIONS = [
    (their, cls, version)
    for their, cls in PAIRS
    for version in range(cls.SPEC.versions[0], min(cls.SPEC.versions[1], their.max_version) + 1)
]


def test_every_request_and_response_it_has_is_compared() -> None:
    theirs = {
        name
        for module in imported()
        for name, value in vars(module).items()
        if name.endswith(("Request", "Response")) and hasattr(value, "max_version")
    }
    assert {cls.__name__ for _, cls in PAIRS} >= theirs
    assert len(PAIRS) > 70
    assert {0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 17, 18, 22, 24, 26, 28, 36} <= {cls.SPEC.key for _, cls in PAIRS}


@pytest.mark.parametrize(
    ("their", "cls", "version"), VERSIONS, ids=[f"{cls.__name__}-{version}" for _, cls, version in VERSIONS]
)
def test_both_write_the_same_bytes(their: Any, cls: type[Message], version: int) -> None:
    rng = random.Random(version)
    for value in [cls(), *(fuzz.random_value(rng, cls, version, unknown_tags=False) for _ in range(5))]:
        if isinstance(value, ApiVersionsResponse):
            object.__setattr__(value, "error_code", 0)  # with any other they read version 0
        encoded = encode(value, version)

        read = their.decode(encoded, version=version)
        read._header = None
        assert bytes(read.encode(version=version)) == encoded
        assert encode(decode(cls, version, encoded), version) == encoded
