"""Errors of connections get the names of their causes, and URLs their servers."""

from __future__ import annotations

import ssl

import pytest

from odradek.doctor.causes import CAUSE_OF_CODE, CAUSES
from odradek.doctor.connections import address_findings, connection_finding, server_addresses
from odradek.errors import AuthFailed, BrokerError, DeadlineError, OdradekError, Unreachable
from odradek.io.tls import tls_error
from odradek.types import Broker


def refused(number: int, text: str) -> Exception:
    error = ssl.SSLCertVerificationError(1, text)
    error.verify_code, error.verify_message, error.reason = number, text, "CERTIFICATE_VERIFY_FAILED"
    return error


def ended(error: ssl.SSLError, reason: str) -> ssl.SSLError:
    error.reason = reason
    return error


def hinted(error: OdradekError, hint: str) -> OdradekError:
    error.hint = hint
    return error


NO_TLS = ended(ssl.SSLError(1, "wrong version number"), "WRONG_VERSION_NUMBER")
CLOSED = ended(ssl.SSLEOFError(8, "EOF occurred"), "UNEXPECTED_EOF_WHILE_READING")
ALERT = ended(ssl.SSLError(1, "alert"), "TLSV13_ALERT_CERTIFICATE_REQUIRED")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (Unreachable("dns", "b:1", "Name or service not known"), "unknown-host"),
        (Unreachable("tcp", "b:1", "Connection refused"), "nothing-listens"),
        (Unreachable("tcp", "b:1", "no answer within 5 s"), "no-answer"),
        (Unreachable("version", "b:1", "the peer speaks TLS"), "tls-expected"),
        (Unreachable("version", "b:1", "closed"), "connection-failed"),
        (tls_error("b:1", refused(10, "certificate has expired")), "certificate-expired"),
        (tls_error("b:1", refused(62, "Hostname mismatch, certificate is not valid")), "certificate-of-another-host"),
        (tls_error("b:1", refused(64, "IP address mismatch, certificate is not")), "certificate-of-another-host"),
        (tls_error("b:1", refused(20, "unable to get local issuer certificate")), "certificate-not-trusted"),
        (tls_error("b:1", ALERT), "client-certificate-needed"),
        (tls_error("b:1", NO_TLS), "tls-not-spoken"),
        (tls_error("b:1", CLOSED), "tls-not-spoken"),
        (hinted(Unreachable("sasl", "b:1", "closes"), "the listener expects SASL: use a URL"), "sasl-expected"),
        (
            hinted(Unreachable("sasl", "b:1", "closes"), "the user, password or mechanism is wrong"),
            "credentials-refused",
        ),
        (AuthFailed("PLAIN", "b:1: ILLEGAL_SASL_STATE; the broker has none"), "sasl-not-spoken"),
        (AuthFailed("PLAIN", "b:1: UNSUPPORTED_SASL_MECHANISM; the broker has GSSAPI"), "mechanism-not-enabled"),
        (AuthFailed("PLAIN", "b:1: SASL_AUTHENTICATION_FAILED: wrong"), "credentials-refused"),
        (AuthFailed("PLAIN", "b:1: the broker did not prove its own"), "credentials-refused"),
        (BrokerError(29, "TOPIC_AUTHORIZATION_FAILED"), "topic-not-allowed"),
        (BrokerError(42, "INVALID_REQUEST"), "connection-failed"),
        (DeadlineError("Metadata", 10.0), "connection-failed"),
    ],
)
def test_an_error_has_a_cause(error: OdradekError, cause: str) -> None:
    finding = connection_finding(error)
    assert finding.cause == cause
    assert finding.severity == "error"
    assert finding.evidence == error.message()
    assert finding.remedy in (error.hint, CAUSES[cause].remedy)
    assert finding.remedy


def test_an_advertised_address_is_wrong_unless_other_brokers_can_be_reached() -> None:
    brokers = {1: Broker(1, "a", 9092), 2: Broker(2, "b", 9092)}
    dns, tcp = Unreachable("dns", "a:9092", "unknown"), Unreachable("tcp", "b:9092", "Connection refused")
    wrong, down = "advertised-listener-unreachable", "broker-down"
    assert [each.cause for each in address_findings(brokers, {1: dns, 2: tcp})] == [wrong, wrong]
    assert [each.cause for each in address_findings(brokers, {1: dns})] == [wrong]
    (finding,) = address_findings(brokers, {2: tcp})
    assert finding.cause == down
    assert finding.evidence == "broker 2 advertises b:9092: cannot connect to b:9092: tcp: Connection refused"
    assert list(address_findings(brokers, {})) == []


def test_an_advertised_address_whose_certificate_is_refused_has_that_cause() -> None:
    error = tls_error("a:9092", refused(62, "Hostname mismatch"))
    (finding,) = address_findings({1: Broker(1, "a", 9092)}, {1: error})
    assert finding.cause == "certificate-of-another-host"


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("kafka://a:1,b", [("a", 1), ("b", 9092)]),
        ("a:1,b:2", [("a", 1), ("b", 2)]),
        ("kafka+sasl+ssl://[::1]:9093, [::2]/", [("::1", 9093), ("::2", 9092)]),
        ("kafka07://3@a:1,4@b", [("a", 1), ("b", 9092)]),
        ("kafka07+zk://u:p%2F@a,b:2182/chroot/x", [("a", 2181), ("b", 2182)]),
        ("kafka07+zk://a", [("a", 2181)]),
    ],
)
def test_the_servers_of_a_url(url: str, addresses: list[tuple[str, int]]) -> None:
    assert server_addresses(url) == addresses


def test_every_code_and_row_names_a_cause_of_the_table() -> None:
    assert set(CAUSE_OF_CODE.values()) <= CAUSES.keys()
    for name, cause in CAUSES.items():
        assert cause.severity in ("error", "warning", "notice"), name
        assert cause.meaning.endswith("."), name
        assert cause.remedy and not cause.remedy.endswith("."), name
