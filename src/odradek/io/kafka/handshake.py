"""The first requests on a new connection: find the versions of the broker, then authenticate.

`core.kafka.version_probe` and `core.kafka.sasl` decide; here their steps become requests of an `io.connection`
handshake, and what goes wrong becomes an error that names the step, the address and what to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from odradek.core.kafka.version_probe import (
    ConnectionClosed,
    Probe,
    ProbeOutcome,
    Received,
    Silent,
    probe_after_sasl,
    probe_sasl,
    probe_versions,
)
from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import (
    AuthFailed,
    ConnectionLost,
    DeadlineError,
    OdradekError,
    RemoteProtocolError,
    Unreachable,
    Unsupported,
)
from odradek.io.kafka.handshake_requests import ProbeRequest, RawToken, SaslRequest
from odradek.io.requests import RECONNECT, Handshake
from odradek.wire.kafka import messages
from odradek.wire.kafka.messages.metadata import ApiVersionsRequest, MetadataRequest
from odradek.wire.kafka.schema import Request

if TYPE_CHECKING:  # imported with the first login
    from odradek.core.kafka.sasl.authentication import Outgoing
    from odradek.core.kafka.sasl.exchange import Exchange

__all__ = ["Identity", "KafkaHandshake", "KnownVersions", "Login", "Session"]

T = TypeVar("T")

RELEASE_MEMORY_S = 600.0
"""Time for which it is remembered that a broker does not answer ApiVersions: it may be upgraded."""

SASL_ATTEMPTS = 3
"""Attempts in a row after which a connection that ends during authentication means a refusal, where brokers refuse that
way (before 1.0): whatever cuts a line looks the same."""

MIN_RENEWAL_S = 1.1
"""Minimum time between two authentications on a connection: brokers refuse the second one within a second."""

FIRST_CORRELATION_ID = -(1 << 31)
"""Requests of a handshake have negative correlation ids, so that a late response is not taken for another."""

_CLOSED_HINT = (
    "the listener may expect TLS or SASL, or the broker be one of 0.7: the scheme of the URL says what this client uses"
)
_ANSWERED_HINT = (
    "the broker, or what is in front of it, may be about to start or to end, or have as many connections as it allows "
    "(max.connections.per.ip)"
)


class Identity(NamedTuple):
    """The names of this client.

    Args:
        client_id: In every request; brokers show it in logs, metrics and quotas.
        software: The library's name, from ApiVersions 3 on (KIP-511).
        version: The library's version.
    """

    client_id: str
    software: str
    version: str


class Login(NamedTuple):
    """One SASL mechanism with credentials.

    Args:
        mechanism: Its name.
        begin: Begins an exchange with the broker on a host, for one connection.
        prepare: Awaited before a connection to a host is opened, with a time limit (s). Raises Unreachable.
        refused: Called when a broker has refused the credentials; in any thread.
        accepted: Called with the time for which a broker has accepted them (s); 0: without a limit.
    """

    mechanism: str
    begin: Callable[[str], Exchange]
    prepare: Callable[[str, float], Awaitable[None]] | None = None
    refused: Callable[[], None] = lambda: None
    accepted: Callable[[float], None] = lambda lifetime_s: None


class Session(NamedTuple):
    """The result of the handshake of one connection.

    Args:
        versions: The versions that the broker offers on it.
        renew_at: When to authenticate again, by the loop's clock (s); None: never.
    """

    versions: BrokerVersions
    renew_at: float | None = None


class KnownVersions:
    """Knowledge of the brokers of one cluster before they are asked, so that few have to be probed.

    Args:
        clock: The loop's clock (s).
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._answers = False  # a broker answered ApiVersions: others are not expected to be older
        self._unconfirmed: set[str] = set()  # addresses that then did not
        self.latest: dict[str, BrokerVersions] = {}
        """Address -> what the broker offered on its latest connection."""
        self._members: frozenset[str] = frozenset()
        self._common: BrokerVersions | None = None  # of `common`, until something changes
        self._releases: dict[str, tuple[float, BrokerVersions]] = {}
        self.failed_logins: Counter[str] = Counter()
        """Address -> attempts to authenticate in a row that ended without an answer."""
        self.failures: Counter[str] = Counter()
        """Address -> probes in a row that failed: behind another address of the host may be a broker that answers."""

    def release(self, address: str) -> BrokerVersions | None:
        """Return the versions of a broker that does not answer ApiVersions, or None."""
        until, versions = self._releases.get(address, (0.0, None))
        return versions if self._clock() < until else None

    def second_request(self, address: str) -> Request[Any] | None:
        """Return what to write behind ApiVersions, in version 0, for a broker that drops that (0.9).

        None: the broker is only asked for its versions. Of the others, the first is sent a request that every server
        has; after it, a broker that is not known yet gets one whose response is small.
        """
        known = self.latest.get(address)
        if not self._answers or address in self._unconfirmed or (known is not None and known.release is not None):
            return MetadataRequest(topics=())
        if known is None and self.all_have(lambda versions: versions.may_be_beside_0_9):
            return messages.groups.DescribeGroupsRequest()
        return None

    def learn(self, address: str, versions: BrokerVersions) -> None:
        """Remember the outcome of a probe."""
        self.latest[address], self._common = versions, None
        self._unconfirmed.discard(address)
        self.failures.pop(address, None)
        if versions.release is None:
            self._answers = True
            self._releases.pop(address, None)
        else:
            self._releases[address] = self._clock() + RELEASE_MEMORY_S, versions

    def all_have(self, feature: Callable[[BrokerVersions], bool]) -> bool:
        """Return True if every broker that was asked has a feature; True, too, before any was."""
        return all(map(feature, self._of_members()))

    def common(self) -> BrokerVersions | None:
        """Return what every broker that was asked has; None before any was."""
        if self._common is None and (members := tuple(self._of_members())):
            self._common = BrokerVersions.common(members)
        return self._common

    def members_are(self, addresses: Iterable[str]) -> None:
        """Leave out of account what is at other addresses, once one of these was asked: a broker that has left the
        cluster, or an address of the URL behind which brokers were upgraded since."""
        self._members, self._common = frozenset(addresses), None

    def _of_members(self) -> Collection[BrokerVersions]:
        of_members = [versions for address, versions in self.latest.items() if address in self._members]
        return of_members or self.latest.values()

    def forget(self, address: str) -> None:
        """Probe this broker the next time: it did not answer as expected."""
        self._unconfirmed.add(address)
        self._releases.pop(address, None)

    def forget_release(self, address: str) -> None:
        """Probe this broker the next time if it did not answer ApiVersions; one that did is asked as before."""
        if address in self._releases:
            self.forget(address)


class KafkaHandshake:
    """The handshakes of the connections to one broker.

    Args:
        host, port: The broker's address, for errors and for mechanisms that name the host.
        identity: How this client names itself.
        known: Shared by all connections of a cluster.
        login: The login; None if the listener has no SASL.
        clock: The loop's clock (s).
        random: In [0, 1): spreads the times of authenticating again.
    """

    def __init__(
        self,
        host: str,
        port: int,
        identity: Identity,
        known: KnownVersions,
        login: Login | None,
        clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._host, self._address = host, f"{host}:{port}"
        self._identity, self._known, self._login = identity, known, login
        self.clock, self._random = clock, random
        self._id = FIRST_CORRELATION_ID

    def begin(self) -> Handshake:
        """Begin the handshake of a new connection. It returns a `Session`.

        Raises:
            Unreachable: Step `version` or `sasl`: the broker closed the connection, was silent, or sent what is not
                the protocol.
            AuthFailed: The broker refused the credentials, or did not prove its own.
            Unsupported, BrokerError: The broker has no version in common with this client.
        """
        with _step("version", self._address, _CLOSED_HINT):
            versions = yield from self._versions()
        return (yield from self._authenticated(versions))

    def reauthenticate(self, versions: BrokerVersions) -> Handshake:
        """Begin to authenticate again on a live connection (KIP-368). See `begin`."""
        return (yield from self._authenticated(versions))

    def forget_release(self) -> None:
        """Probe the broker the next time if it did not answer ApiVersions."""
        self._known.forget_release(self._address)

    # ---- versions ----------------------------------------------------------------------------------------------

    def _versions(self) -> Generator[Any, Any, BrokerVersions]:
        known = self._known.release(self._address)
        if known is not None:
            return known
        software, version = self._identity.software, self._identity.version
        second = None if self._login is not None else self._known.second_request(self._address)
        flow = probe_after_sasl(software, version) if second is None else probe_versions(software, version, second)
        try:
            versions = yield from self._probe(flow)
            if versions.release is not None and versions.release.startswith("0.8"):
                versions = yield from self._confirmed(versions)
        except OdradekError as error:
            self._known.forget(self._address)
            self._known.failures[self._address] += 1
            if isinstance(error, Unsupported) and not error.hint:
                self._compare_with_before(error, asked_alone=second is None and self._login is None)
            raise
        self._known.learn(self._address, versions)
        return versions

    def _compare_with_before(self, error: Unsupported, *, asked_alone: bool) -> None:
        """Raise a better error if this broker, or others, have answered ApiVersions before: then it is not for its
        release or its security protocol that it does not answer now."""
        before = self._known.latest.get(self._address)
        if before is not None and before.release is None:
            unanswered = Unsupported("this client", "a response to ApiVersions, as there was one before")
            unanswered.hint = _ANSWERED_HINT
            raise unanswered from error
        if asked_alone:
            raise Unsupported("this client", "a response to ApiVersions, as other brokers gave it") from error

    def _probe(
        self, flow: Generator[Probe, ProbeOutcome, T], *, on_new_connection: bool = True
    ) -> Generator[Any, Any, T]:
        probe, late = next(flow), frozenset[int]()
        while True:
            if probe.reconnect and not on_new_connection:
                yield RECONNECT
                late = frozenset()
            on_new_connection = False
            outcome, late = yield from self._perform(probe, late)
            try:
                probe = flow.send(outcome)
            except StopIteration as end:
                result: T = end.value
                break
        if late:
            yield from self._skip(late)
        return result

    def _skip(self, late: Iterable[int]) -> Generator[Any, Any, None]:
        """Wait for the answers that nothing needs. Where SASL is expected, the broker closes instead."""
        try:
            yield ProbeRequest((), late, self._identity.client_id)
        except ConnectionLost as error:
            yield from self._refuse_sasl(error)
            raise

    def _refuse_sasl(self, lost: ConnectionLost) -> Generator[Any, Any, None]:
        """Raise that the listener expects SASL, if that is why the connection is lost: not once a broker of the cluster
        has served without."""
        if self._known.latest:
            return
        sasl = yield from self._probe(probe_sasl(), on_new_connection=False)
        if sasl is not None:
            refused = Unreachable("sasl", self._address, "the broker answers ApiVersions, and closes upon Metadata")
            has = f", with {' or '.join(sasl.mechanisms)}" if sasl.mechanisms else ""
            refused.hint, refused.retriable = f"the listener expects SASL: use a URL with +sasl{has}", False
            raise refused from lost

    def _perform(self, probe: Probe, late: Iterable[int]) -> Generator[Any, Any, tuple[ProbeOutcome, frozenset[int]]]:
        """Send the requests of a probe; return what happened first, and the answers that are still to come."""
        numbered = [(request, version, self._next_id()) for request, version in probe.requests]
        try:
            answer = yield ProbeRequest(numbered, late, self._identity.client_id)
        except ConnectionLost as error:
            if late:  # brokers before 2.4 refuse the version of ApiVersions, and then close upon Metadata
                yield from self._refuse_sasl(error)
            return ConnectionClosed(), frozenset()
        except DeadlineError:
            return Silent(), frozenset()
        return answer.received, answer.late

    def _confirmed(self, versions: BrokerVersions) -> Generator[Any, Any, BrokerVersions]:
        """Make sure that a broker closed the connection because of ApiVersions, and not for a reason of its own: one
        that knows the request answers it on this connection, where others close it."""
        ask = ApiVersionsRequest()
        outcome, _ = yield from self._perform(Probe(((ask, 0),)), ())
        yield RECONNECT
        if isinstance(outcome, Received):
            software, version = self._identity.software, self._identity.version
            return (yield from self._probe(probe_after_sasl(software, version)))
        return versions

    def _next_id(self) -> int:
        self._id = self._id + 1 if self._id < -1 else FIRST_CORRELATION_ID
        return self._id

    # ---- authentication ----------------------------------------------------------------------------------------

    def _authenticated(self, versions: BrokerVersions) -> Generator[Any, Any, Session]:
        if self._login is None:
            return Session(versions)
        from odradek.core.kafka.sasl import authenticate, authenticate_again_at

        mechanism = self._login.mechanism
        hint = "the broker's log says why" if versions.has_sasl_requests else "the user, password or mechanism is wrong"
        failed_logins = self._known.failed_logins
        # From 1.0 on (KIP-152) a refusal is an answer, AuthFailed, and a connection that is lost was just cut. Before,
        # a broker refuses by closing: the two look the same, and only several in a row are a refusal.
        may_pass = versions.has_sasl_requests or failed_logins[self._address] + 1 < SASL_ATTEMPTS
        try:
            with _step("sasl", self._address, hint, retriable=may_pass):
                exchange = self._login.begin(self._host)
                flow = authenticate(mechanism, exchange, sasl_requests=versions.has_sasl_requests)
                message = next(flow)
                while True:
                    answer = yield self._sasl_request(message, versions)
                    try:
                        message = flow.send(answer)
                    except StopIteration as end:
                        lifetime_ms: int = end.value
                        break
        except AuthFailed as error:
            self._login.refused()
            raise self._explained(error) from error
        except Unreachable:
            failed_logins[self._address] += 1
            raise
        failed_logins[self._address] = 0
        self._login.accepted(lifetime_ms / 1000)
        now = self.clock()
        renew_at = authenticate_again_at(now, lifetime_ms, self._random())
        return Session(versions, None if renew_at is None else max(renew_at, now + MIN_RENEWAL_S))

    def _sasl_request(self, message: Outgoing, versions: BrokerVersions) -> RawToken | SaslRequest:
        if isinstance(message, bytes):
            from odradek.core.kafka.sasl import UnansweredToken

            return RawToken(message, answered=not isinstance(message, UnansweredToken))
        version = versions.version(type(message)) if versions.has_sasl_requests else 0
        return SaslRequest(message, version, self._next_id(), self._identity.client_id)

    def _explained(self, error: AuthFailed) -> AuthFailed:
        explained = AuthFailed(error.mechanism, f"{self._address}: {error.why}")
        if "ILLEGAL_SASL_STATE" in error.why:
            explained.hint = "the listener has no SASL: use a URL without +sasl"
        elif "UNSUPPORTED_SASL_MECHANISM" in error.why:
            explained.hint = "set Security(sasl_mechanism=...) to one that the broker has"
        return explained


@contextmanager
def _step(step: str, address: str, hint: str, *, retriable: bool = True) -> Iterator[None]:
    """Turn errors of the connection into one that names the step and the address.

    Args:
        retriable: False where closing the connection is how a broker refuses.
    """
    try:
        yield
    except (ConnectionLost, DeadlineError, RemoteProtocolError, Unsupported) as error:
        unreachable = Unreachable(step, address, _reason(error))
        unreachable.hint, unreachable.retriable = error.hint or hint, retriable and _may_pass(error)
        raise unreachable from error


def _may_pass(error: OdradekError) -> bool:
    return error.retriable or isinstance(error, Unsupported)  # a broker that restarts closes connections, too


def _reason(error: OdradekError) -> str:
    if isinstance(error, ConnectionLost):
        return error.why
    if isinstance(error, DeadlineError):
        return f"no answer within {error.seconds:g} s"
    if isinstance(error, Unsupported):
        return f"{error.feature} needs {error.needs}"
    return error.message()
