"""Find the versions of an unknown broker by the first requests on a connection, without a long wait.

Brokers from 0.10 on respond to ApiVersions. 0.9 drops a request that it does not know and serves the next one; 0.8
closes the connection. So two requests are written back to back, and the first response reveals the version
(kafka-specification.md 1.4).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, NamedTuple

from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import RemoteProtocolError, Unsupported
from odradek.wire.kafka import messages
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
)
from odradek.wire.kafka.schema import Request, Response

__all__ = [
    "ConnectionClosed",
    "Probe",
    "ProbeOutcome",
    "Received",
    "Silent",
    "probe_after_sasl",
    "probe_sasl",
    "probe_versions",
]

FIRST_VERSION = 3  # of ApiVersions: the first with a client's name and features; 2.4 and later have it


class Probe(NamedTuple):
    """Write these requests back to back and report the first thing that happens.

    Args:
        requests: Each with the version to write it in.
        reconnect: True to use a new connection; else the one of the probe before. Late responses to requests of
            earlier probes are dropped.
    """

    requests: tuple[tuple[Request[Any], int], ...]
    reconnect: bool = False


class Received(NamedTuple):
    """The first response, and the index of its request among those of the probe."""

    number: int
    response: Response


class ConnectionClosed:
    """The broker closed the connection before it responded."""


class Silent:
    """No response and no close within the deadline of a request."""


ProbeOutcome = Received | ConnectionClosed | Silent
ProbeFlow = Generator[Probe, ProbeOutcome, BrokerVersions]


def probe_versions(
    software: str, software_version: str, second: Request[Any], at_most: Mapping[int, int] | None = None
) -> ProbeFlow:
    """Find the versions on a plaintext or TLS listener.

    Args:
        software: The client's name for the broker's log and metrics: letters, digits, `-` and `.`.
        software_version: Its version, with the same characters.
        second: The request behind ApiVersions, which 0.9 answers, in version 0.
        at_most: API key -> highest version to use, as set by the user.

    Raises:
        Unsupported: The peer is not a broker, or expects another security protocol.
    """
    ask = ApiVersionsRequest(client_software_name=software, client_software_version=software_version)
    outcome = yield Probe(((ask, FIRST_VERSION), (second, 0)), reconnect=True)
    match outcome:
        case Received(0, response):
            return (yield from _negotiate(ask, response, at_most))
        case Received():
            return (yield from _confirm_09(at_most))
        case ConnectionClosed():
            return (yield from _probe_08(at_most))
        case _:
            raise Unsupported("this address", "a Kafka broker on a plaintext or TLS listener: there was no response")


def probe_after_sasl(software: str, software_version: str, at_most: Mapping[int, int] | None = None) -> ProbeFlow:
    """Find the versions on a listener with SASL, where only ApiVersions may precede authentication.

    Raises:
        Unsupported: The broker did not respond: 0.9 and older have no SASL except raw GSSAPI tokens.
    """
    ask = ApiVersionsRequest(client_software_name=software, client_software_version=software_version)
    outcome = yield Probe(((ask, FIRST_VERSION),), reconnect=True)
    if isinstance(outcome, Received):
        return (yield from _negotiate(ask, outcome.response, at_most))
    raise Unsupported("SASL", "a broker of 0.10 or later: there was no response to ApiVersions on this listener")


def probe_sasl() -> Generator[Probe, ProbeOutcome, messages.security.SaslHandshakeResponse | None]:
    """Find out why a broker answered ApiVersions, and the connection ended before its answer to Metadata: a listener
    that expects SASL closes it, and so does whatever cuts a line. Only the former takes part in a SASL handshake.

    Returns:
        Its answer, which names its mechanisms; None from a listener without SASL, or if there is no answer.
    """
    outcome = yield Probe(((messages.security.SaslHandshakeRequest(mechanism="PLAIN"), 0),), reconnect=True)
    response = outcome.response if isinstance(outcome, Received) else None
    if not isinstance(response, messages.security.SaslHandshakeResponse):
        return None
    return None if response.error_code == ErrorCode.ILLEGAL_SASL_STATE else response


def _negotiate(ask: ApiVersionsRequest, response: Response, at_most: Mapping[int, int] | None) -> ProbeFlow:
    """Read the response; after error 35 repeat the request in the version that it names, or else in version 0
    (KIP-511). A controller closes the connection upon Metadata, which would look like a listener with SASL."""
    answer = _versions(response)
    if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
        last = max((a.max_version for a in answer.api_keys if a.api_key == ApiVersionsRequest.SPEC.key), default=0)
        outcome = yield Probe(((ask, min(last, FIRST_VERSION - 1)),))
        if not isinstance(outcome, Received):
            raise Unsupported("ApiVersions", "a broker that responds in the version it named")
        answer = _versions(outcome.response)
    if answer.error_code:
        raise broker_error(answer.error_code, "ApiVersions")
    versions = BrokerVersions.from_response(answer, at_most)
    if MetadataRequest.SPEC.key not in versions.offered:
        controller = Unsupported("this address", "a broker: the peer has no Metadata, as a controller of KRaft")
        controller.hint = "use the address of a listener for clients"
        raise controller
    return versions


def _versions(response: Response) -> ApiVersionsResponse:
    if not isinstance(response, ApiVersionsResponse):
        raise RemoteProtocolError(f"{type(response).__name__} in answer to ApiVersions")
    return response


def _confirm_09(at_most: Mapping[int, int] | None) -> ProbeFlow:
    """Confirm the release: only 0.9 and later respond to ListGroups."""
    outcome = yield Probe(((messages.groups.ListGroupsRequest(), 0),))
    if isinstance(outcome, Received):
        return BrokerVersions.of_release("0.9.0", at_most)
    raise Unsupported("this address", "a Kafka broker: it responds neither to ApiVersions nor to ListGroups")


def _probe_08(at_most: Mapping[int, int] | None) -> ProbeFlow:
    """Distinguish the releases that close the connection after an unknown key, the newest first."""
    steps: tuple[tuple[str, Request[Any]], ...] = (
        ("0.8.2", messages.groups.FindCoordinatorRequest(key="odradek")),
        ("0.8.1", messages.groups.OffsetFetchRequest(group_id="odradek")),
        ("0.8.0", MetadataRequest(topics=())),
    )
    for release, request in steps:
        outcome = yield Probe(((request, 0),), reconnect=True)
        if isinstance(outcome, Received):
            return BrokerVersions.of_release(release, at_most)
    raise Unsupported("this listener", "another security protocol: the broker closed every connection")
