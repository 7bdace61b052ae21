"""Which versions an unknown broker has: every release's way of answering, or not."""

from __future__ import annotations

import pytest

from odradek.core.kafka.version_probe import (
    ConnectionClosed,
    Probe,
    ProbeFlow,
    ProbeOutcome,
    Received,
    Silent,
    probe_after_sasl,
    probe_sasl,
    probe_versions,
)
from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import BrokerError, RemoteProtocolError, Unsupported
from odradek.wire.kafka.messages.groups import FindCoordinatorResponse, ListGroupsResponse, OffsetFetchResponse
from odradek.wire.kafka.messages.metadata import ApiVersion, ApiVersionsResponse, MetadataRequest, MetadataResponse
from odradek.wire.kafka.messages.security import SaslHandshakeResponse

MODERN = ApiVersionsResponse(api_keys=(ApiVersion(api_key=3, max_version=12),))
METADATA = MetadataResponse()


def run(flow: ProbeFlow, *outcomes: ProbeOutcome) -> tuple[BrokerVersions | None, list[Probe]]:
    """Drive the flow with these outcomes; return what it found out, or None where it wants more."""
    probes = [next(flow)]
    for outcome in outcomes:
        try:
            probes.append(flow.send(outcome))
        except StopIteration as stop:
            return stop.value, probes
    return None, probes


def described(probes: list[Probe]) -> list[tuple[bool, list[str]]]:
    return [(p.reconnect, [f"{type(r).__name__} {version}" for r, version in p.requests]) for p in probes]


def plaintext() -> ProbeFlow:
    return probe_versions("odradek", "1.0", MetadataRequest())


def test_a_modern_broker_is_known_after_one_answer() -> None:
    versions, probes = run(plaintext(), Received(0, MODERN))
    assert versions is not None and versions.offered == {3: (0, 12)}
    assert described(probes) == [(True, ["ApiVersionsRequest 3", "MetadataRequest 0"])]


@pytest.mark.parametrize(("listed", "version"), [((), 0), ((ApiVersion(api_key=18, max_version=2),), 2)])
def test_error_35_is_asked_again_in_the_version_it_names(listed: tuple[ApiVersion, ...], version: int) -> None:
    refused = ApiVersionsResponse(error_code=35, api_keys=listed)
    versions, probes = run(plaintext(), Received(0, refused), Received(0, MODERN))
    assert versions is not None and versions.offered == {3: (0, 12)}
    assert described(probes)[1] == (False, [f"ApiVersionsRequest {version}"])


def test_a_second_refusal_is_an_error() -> None:
    refused = ApiVersionsResponse(error_code=35)
    with pytest.raises(BrokerError, match="UNSUPPORTED_VERSION"):
        run(plaintext(), Received(0, refused), Received(0, refused))
    with pytest.raises(Unsupported, match="ApiVersions"):
        run(plaintext(), Received(0, refused), ConnectionClosed())


def test_an_answer_to_another_api_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="MetadataResponse in answer to ApiVersions"):
        run(plaintext(), Received(0, METADATA))


def test_0_9_drops_the_first_request_and_answers_the_second() -> None:
    versions, probes = run(plaintext(), Received(1, METADATA), Received(0, ListGroupsResponse()))
    assert versions is not None and versions.release == "0.9.0"
    assert described(probes)[1] == (False, ["ListGroupsRequest 0"])


def test_what_answers_metadata_alone_is_refused() -> None:
    with pytest.raises(Unsupported, match="neither to ApiVersions nor to ListGroups"):
        run(plaintext(), Received(1, METADATA), ConnectionClosed())


def test_0_8_closes_and_is_told_apart_by_its_keys() -> None:
    versions, probes = run(plaintext(), ConnectionClosed(), Received(0, FindCoordinatorResponse()))
    assert versions is not None and versions.release == "0.8.2"
    versions, _ = run(plaintext(), ConnectionClosed(), ConnectionClosed(), Received(0, OffsetFetchResponse()))
    assert versions is not None and versions.release == "0.8.1"
    versions, probes = run(
        plaintext(), ConnectionClosed(), ConnectionClosed(), ConnectionClosed(), Received(0, METADATA)
    )
    assert versions is not None and versions.release == "0.8.0"
    assert described(probes)[1:] == [
        (True, ["FindCoordinatorRequest 0"]),
        (True, ["OffsetFetchRequest 0"]),
        (True, ["MetadataRequest 0"]),
    ]


def test_a_listener_that_always_closes_wants_another_security_protocol() -> None:
    with pytest.raises(Unsupported, match="another security protocol"):
        run(plaintext(), ConnectionClosed(), ConnectionClosed(), ConnectionClosed(), ConnectionClosed())


def test_a_silent_address_is_no_broker() -> None:
    with pytest.raises(Unsupported, match="there was no response"):
        run(plaintext(), Silent())


def test_behind_sasl_only_api_versions_is_asked() -> None:
    versions, probes = run(probe_after_sasl("odradek", "1.0", {3: 4}), Received(0, MODERN))
    assert versions is not None and versions.offered == {3: (0, 12)}
    assert described(probes) == [(True, ["ApiVersionsRequest 3"])]


@pytest.mark.parametrize("outcome", [ConnectionClosed(), Silent()])
def test_no_answer_behind_sasl_is_an_error(outcome: ProbeOutcome) -> None:
    with pytest.raises(Unsupported, match="SASL"):
        run(probe_after_sasl("odradek", "1.0"), outcome)


@pytest.mark.parametrize(
    ("outcome", "expects_sasl"),
    [
        (Received(0, SaslHandshakeResponse(mechanisms=("PLAIN",))), True),
        (Received(0, SaslHandshakeResponse(error_code=33, mechanisms=("GSSAPI",))), True),
        (Received(0, SaslHandshakeResponse(error_code=34)), False),
        (ConnectionClosed(), False),
        (Silent(), False),
    ],
)
def test_only_a_listener_that_takes_part_in_sasl_expects_it(outcome: ProbeOutcome, expects_sasl: bool) -> None:
    flow = probe_sasl()
    assert described([next(flow)]) == [(True, ["SaslHandshakeRequest 0"])]
    with pytest.raises(StopIteration) as stop:
        flow.send(outcome)
    assert (stop.value.value is not None) == expects_sasl
