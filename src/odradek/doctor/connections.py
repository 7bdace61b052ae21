"""Connections that fail, and addresses that brokers advertise: errors in, findings out; pure.

What is wrong with a connection is in its error already (`io.tcp`, `io.tls`, `io.kafka.handshake`), as step, words and
hint. Here it gets the name of its cause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from odradek.doctor.causes import CAUSE_OF_CODE, Diagnosis, diagnosis
from odradek.errors import AuthFailed, BrokerError, OdradekError, Unreachable
from odradek.types import Broker

__all__ = ["address_findings", "connection_finding", "server_addresses"]

_BY_STEP = (
    ("dns", "", "unknown-host"),
    ("tcp", "no answer within", "no-answer"),
    ("tcp", "", "nothing-listens"),
    ("version", "speaks TLS", "tls-expected"),
    ("tls", "has expired", "certificate-expired"),
    ("tls", "mismatch", "certificate-of-another-host"),
    ("tls", "certificate is not accepted", "certificate-not-trusted"),
    ("tls", "client certificate that it trusts", "client-certificate-needed"),
    ("tls", "not speak TLS", "tls-not-spoken"),
    ("sasl", "expects SASL", "sasl-expected"),
    ("sasl", "user, password or mechanism is wrong", "credentials-refused"),
)
"""Step of an `Unreachable`, words of its text -> cause; the first row that fits."""


def connection_finding(error: OdradekError) -> Diagnosis:
    """Return the finding for an error."""
    cause = "connection-failed"
    if isinstance(error, Unreachable):
        fitting = (name for step, words, name in _BY_STEP if step == error.step and words in str(error))
        cause = next(fitting, cause)
    elif isinstance(error, AuthFailed):
        codes = (cause for code, cause in CAUSE_OF_CODE.items() if code in error.why)
        cause = next(codes, "credentials-refused")
    elif isinstance(error, BrokerError):
        cause = CAUSE_OF_CODE.get(error.name, cause)
    return diagnosis(cause, error.message(), "" if cause == "unknown-host" else error.hint)


def address_findings(brokers: Mapping[int, Broker], failures: Mapping[int, Unreachable]) -> Iterator[Diagnosis]:
    """Return findings about the addresses that brokers advertise. One where nothing listens is that of a broker that is
    down if others can be reached; otherwise it is wrong.

    Args:
        brokers: The live brokers, as the cluster lists them.
        failures: Id -> why its address cannot be reached from here.
    """
    for number, error in failures.items():
        if error.step == "tls":
            yield connection_finding(error)
            continue
        down = error.step == "tcp" and len(failures) < len(brokers)
        evidence = f"broker {number} advertises {brokers[number].address}: {error.message()}"
        yield diagnosis("broker-down" if down else "advertised-listener-unreachable", evidence)


def server_addresses(url: str) -> Sequence[tuple[str, int]]:
    """Return host and port of each server of a URL that `odradek.connect` has accepted."""
    scheme, _, rest = url.rpartition("://")
    authority = rest.partition("/")[0]
    default = ":2181" if scheme == "kafka07+zk" else ":9092"
    addresses = []
    for listed in (authority.rpartition("@")[2] if scheme == "kafka07+zk" else authority).split(","):
        server = listed.strip().rpartition("@")[2]
        host, _, port = (server if ":" in server.rpartition("]")[2] else server + default).rpartition(":")
        addresses.append((host.strip("[]"), int(port)))
    return addresses
