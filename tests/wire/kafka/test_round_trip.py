"""Every message in every version comes back as it was."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conformance.kafka.apis import OWN_APIS
from tests.wire.kafka import fuzz

from odradek.errors import RemoteProtocolError
from odradek.wire.kafka import embedded
from odradek.wire.kafka.decode import decode
from odradek.wire.kafka.encode import encode
from odradek.wire.kafka.headers import RequestHeader, ResponseHeader
from odradek.wire.kafka.schema import Message

from .strategies import messages

EMBEDDED = [value for value in vars(embedded).values() if isinstance(value, type) and issubclass(value, Message)]
MESSAGES: list[type[Message]] = [
    *(api.request for api in OWN_APIS.values()),
    *(api.response for api in OWN_APIS.values()),
    *(cls for cls in EMBEDDED if cls is not Message),
    RequestHeader,
    ResponseHeader,
]
VERSIONS = [(cls, version) for cls in MESSAGES for version in range(cls.SPEC.versions[0], cls.SPEC.versions[1] + 1)]


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_a_message_of_any_version_comes_back_as_it_was(cls: type[Message], data: st.DataObject) -> None:
    version = data.draw(st.integers(*cls.SPEC.versions))
    value = data.draw(messages(cls, version))

    encoded = encode(value, version)

    assert decode(cls, version, encoded) == value
    assert encode(decode(cls, version, memoryview(encoded)), version) == encoded


@pytest.mark.parametrize(("cls", "version"), VERSIONS, ids=lambda part: getattr(part, "__name__", str(part)))
def test_every_version_comes_back_and_no_prefix_of_it_is_accepted(cls: type[Message], version: int) -> None:
    rng = random.Random(version)
    for value in [cls(), *(fuzz.random_value(rng, cls, version) for _ in range(2))]:
        encoded = encode(value, version)

        assert decode(cls, version, encoded) == value
        for size in range(min(len(encoded), 150)):
            with pytest.raises(RemoteProtocolError, match=f"{cls.__name__} version {version}: "):
                decode(cls, version, encoded[:size])
