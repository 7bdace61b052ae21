"""The causes that the doctor names, each with its meaning and its remedy; pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import NamedTuple

__all__ = ["CAUSES", "CAUSE_OF_CODE", "Cause", "Diagnosis", "Report", "diagnosis", "similar"]


class Cause(NamedTuple):
    """A cause that the doctor can name.

    Args:
        severity: `error`: something cannot work; `warning`: it works badly; `notice`: it may explain what is seen.
        meaning: A sentence: what is wrong.
        remedy: What to do.
    """

    severity: str
    meaning: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One finding.

    Args:
        cause: A name of `CAUSES`.
        severity: That of the cause.
        evidence: What was seen, with addresses and numbers.
        remedy: What to do.
    """

    cause: str
    severity: str
    evidence: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Report:
    """The result of an examination.

    Args:
        findings: The worst first.
        checked: What was checked.
        skipped: Check -> why it was not made: the release lacks a request for it, or this client may not ask.
    """

    findings: Sequence[Diagnosis]
    checked: Sequence[str] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def healthy(self) -> bool:
        """True if there is no finding but notices."""
        return all(finding.severity == "notice" for finding in self.findings)


def diagnosis(cause: str, evidence: str, remedy: str = "") -> Diagnosis:
    """Return a finding, with the remedy of its cause if there is no better one."""
    return Diagnosis(cause, CAUSES[cause].severity, evidence, remedy or CAUSES[cause].remedy)


def similar(name: str, names: Collection[str]) -> str:
    """Return names that are written like this one, as the end of a sentence."""
    close = get_close_matches(name, names)
    return f"; similar: {', '.join(close)}" if close else ""


_TABLE = """
error unknown-host
The name of a server cannot be resolved to an address here.
correct the name in the URL, or add it to DNS or /etc/hosts
error nothing-listens
No process listens at the address: the port is wrong, or the broker does not run.
check the port, and that the broker runs and listens there
error no-answer
The address does not answer at all: a firewall drops packets, or there is no route.
check routes and firewalls
error tls-expected
The listener speaks TLS and the client does not.
use a URL with +ssl, or the port of a plain listener
error tls-not-spoken
The client speaks TLS and the listener does not.
use a URL without +ssl, or the port of a listener with TLS
error certificate-expired
The broker's certificate has expired.
renew the broker's certificate
error certificate-of-another-host
The broker's certificate is for another name than the one that the client connects to.
use a name of the certificate in the URL and in advertised.listeners
error certificate-not-trusted
The broker's certificate was signed by an authority that this client does not trust.
set Security(ssl_cafile=...), or ODRADEK_SSL_CAFILE, to the authority that signed it
error client-certificate-needed
The broker asks for a certificate of the client, and got none that it trusts.
set Security(ssl_certfile=...), or ODRADEK_SSL_CERTFILE
error sasl-expected
The listener expects authentication by SASL and the client does not authenticate.
use a URL with +sasl, and set mechanism, user and password
error sasl-not-spoken
The client authenticates and the listener has no SASL.
use a URL without +sasl, or another port
error credentials-refused
The broker refuses the user, the password or the token.
check user and password; the broker's log says more
error mechanism-not-enabled
The broker has not enabled the SASL mechanism of this client.
set Security(sasl_mechanism=...) to one that the broker has, or add it to sasl.enabled.mechanisms
error not-kafka
The address belongs to a ZooKeeper, not to a Kafka broker.
name the brokers in the URL, not ZooKeeper
error not-zookeeper
The address belongs to a Kafka broker, and the URL says that it is a ZooKeeper.
use a URL that begins with kafka://
error advertised-listener-unreachable
A broker answers at the address of the URL, and sends clients to another one that cannot be reached from here.
set advertised.listeners (0.8 advertised.host.name, 0.7 hostname) to an address that clients reach, not a container's
error connection-failed
A request or a connection failed for another reason.
see the evidence
error broker-down
A broker of the cluster does not run or cannot be reached.
start the broker again; its log says why it ended
error partition-offline
A partition has no leader: nothing can be written to it or read from it.
start the brokers that have its replicas
warning under-replicated
Replicas of partitions are behind their leaders: fewer brokers have the records than planned.
find out why the brokers with these replicas do not follow: down, overloaded, or out of disk
error too-few-in-sync
A partition has fewer replicas in sync than min.insync.replicas: producers with acks=all are refused.
bring the missing replicas back, or lower min.insync.replicas of the topic
error min-insync-above-replicas
A topic has min.insync.replicas above its number of replicas: producers with acks=all are always refused.
add replicas, or lower min.insync.replicas of the topic
error replication-above-brokers
Topics that brokers create need more replicas than there are brokers; without that of positions no group works.
start more brokers, or lower the property in server.properties
warning leader-imbalance
Brokers lead fewer partitions than planned, and others more: load is uneven.
elect the preferred leaders: `Admin.elect_leaders()`, or before 2.2 `kafka-preferred-replica-election.sh`
notice quota-in-force
A quota limits what this client may send or fetch: brokers delay it once it needs more.
raise the quota with `Admin.alter_quotas`
error topic-missing
The topic does not exist.
create it with `odradek topic create`, before 0.10.1 `kafka-topics.sh`, in 0.7 by a first message; or correct its name
error topic-not-allowed
This user may not use the topic, or not even know of it.
add an ACL for the user and the topic
error group-missing
The group does not exist: it has neither members nor positions.
correct its name, or start its members
error group-not-allowed
This user may not use the group, or not even know of it.
add an ACL for the user and the group
error group-has-no-members
No consumer of the group runs, so that its lag grows.
start the consumers; their log says why they ended
warning idle-members
Members of the group have no partition: there are more members than partitions.
add partitions to the topic, or stop these members
error group-keeps-rebalancing
Members come and go, and each time the group divides its partitions again.
look for members that restart, process longer than max.poll.interval.ms, or have a session timeout that is too short
error records-deleted-unread
The log no longer has the next records of the group: they were deleted before it read them.
keep records longer (retention.ms, retention.bytes), or make the consumers faster
error position-beyond-log
The group's position is behind the end of the log: the topic was made again, or its log was truncated.
set the position with `odradek seek`
error partition-stuck
A member has records to process and its position does not move: it hangs, or fails again and again.
read the member's log, and the record at the position: `odradek cat -o POSITION -c 1`
warning hot-partition
One partition gets more than its member can process, while the others keep up.
choose keys that spread, or process the records of the partition in parallel (`Consumer.each`)
warning consumer-too-slow
The group processes fewer records than producers write: its lag grows.
add members, up to the number of partitions, or make the processing faster
warning transaction-open
A transaction stays open, and holds back all consumers that read committed records only.
end its producer; if it is gone, `Admin.abort_transaction`
"""
"""Severity and name, meaning, remedy: three lines for each cause."""

_LINES = _TABLE.strip().split("\n")
CAUSES: Mapping[str, Cause] = {
    first.partition(" ")[2]: Cause(first.partition(" ")[0], meaning, remedy)
    for first, meaning, remedy in zip(_LINES[::3], _LINES[1::3], _LINES[2::3], strict=True)
}
"""Name -> cause."""

CAUSE_OF_CODE: Mapping[str, str] = {
    "UNKNOWN_TOPIC_OR_PARTITION": "topic-missing",
    "TOPIC_AUTHORIZATION_FAILED": "topic-not-allowed",
    "GROUP_AUTHORIZATION_FAILED": "group-not-allowed",
    "GROUP_ID_NOT_FOUND": "group-missing",
    "UNSUPPORTED_SASL_MECHANISM": "mechanism-not-enabled",
    "ILLEGAL_SASL_STATE": "sasl-not-spoken",
    "SASL_AUTHENTICATION_FAILED": "credentials-refused",
    "NOT_ENOUGH_REPLICAS": "too-few-in-sync",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": "too-few-in-sync",
    "INVALID_REPLICATION_FACTOR": "replication-above-brokers",
    "THROTTLING_QUOTA_EXCEEDED": "quota-in-force",
    "ILLEGAL_GENERATION": "group-keeps-rebalancing",
    "UNKNOWN_MEMBER_ID": "group-keeps-rebalancing",
    "OFFSET_OUT_OF_RANGE": "records-deleted-unread",
}
"""Name of an error code of brokers -> the cause that it mostly has."""
