"""Typed requests over one connection to one broker.

The version of a request is chosen when it leaves the queue, from the ApiVersions answer of the connection it leaves on.
`io.connection` has the rest: pipelining, deadlines, back-off, reconnection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from odradek.core.kafka.versions import BrokerVersions, needs_client_wait
from odradek.engine import Buffer
from odradek.errors import OdradekError
from odradek.io.connection import Connect, Connection, ConnectionOptions, State
from odradek.io.kafka.handshake import KafkaHandshake, Session
from odradek.io.observation import ConnectionObservation
from odradek.io.requests import Handshake, InFlightRequest, ResponseDecoder
from odradek.wire.kafka.headers import encode_request
from odradek.wire.kafka.responses import KafkaResponseDecoder
from odradek.wire.kafka.schema import Request, Response, response_of

__all__ = ["MAX_RESPONSE_BYTES", "NO_LIMITS", "Build", "KafkaConnection", "NewDecoder", "VersionLimits"]

R = TypeVar("R", bound=Response)
T = TypeVar("T")

MAX_RESPONSE_BYTES = 1 << 28
"""Maximum size of a response: brokers bound theirs by fetch limits, and Metadata of 100,000 partitions has 10 MB."""

SIZE_ESTIMATE = 256

Build = Callable[[BrokerVersions], Request[R]]
"""Function that makes a request for what the broker of a connection can do."""


class VersionLimits(NamedTuple):
    """Knowledge of a request that allows later versions of it: see `BrokerVersions.version`. Or the `exact` version."""

    topic_ids: Collection[bytes] | None = None
    transactions_v2: bool = False
    exact: int | None = None


NO_LIMITS = VersionLimits()

NewDecoder = Callable[[int, int], ResponseDecoder[T]]
"""Function that makes a decoder for a version and a correlation id."""


class KafkaConnection:
    """The connection to one broker; its owner runs `connection`.

    Args:
        host, port: Where the broker listens.
        connect: Makes the transport.
        handshake: For this broker.
        client_id: In every request.
        request_timeout_s: From a call to its result, unless the call says otherwise (s).
        options: See ConnectionOptions.
        observation: Told of what happens to the connection.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        connect: Connect,
        handshake: KafkaHandshake,
        client_id: str | None,
        request_timeout_s: float,
        options: ConnectionOptions,
        observation: ConnectionObservation | None = None,
    ) -> None:
        self.connection = Connection(
            host,
            port,
            connect=connect,
            handshake=self._begin_handshake,
            options=options,
            observation=observation,
            on_resumed=self.renew_session,
        )
        self.observation = observation
        self.client_id = client_id
        self._handshake, self._timeout_s = handshake, request_timeout_s
        self._probed_incarnation = 0
        self._next_id = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.connection!r}>"

    @property
    def address(self) -> str:
        return self.connection.address

    @property
    def is_open(self) -> bool:
        """False once the connection was closed for good."""
        return self.connection.state is not State.CLOSED

    @property
    def incarnation(self) -> int:
        """Grows whenever everything outstanding has failed: see `Connection.incarnation`."""
        return self.connection.incarnation

    @property
    def versions(self) -> BrokerVersions | None:
        """Versions of the broker as of the latest handshake; None before the first one."""
        session: Session | None = self.connection.session
        return None if session is None else session.versions

    def submit(
        self,
        request: Request[R],
        *,
        timeout_s: float | None = None,
        limits: VersionLimits = NO_LIMITS,
    ) -> InFlightRequest[R]:
        """Queue a request, after everything submitted before. Not a coroutine function: the order is that of the calls.

        Args:
            request: Must not change until it has its result.
            timeout_s: From now to the result (s); then the connection is closed, and the request fails with
                DeadlineError.
            limits: The facts about the request that allow later versions.

        Raises:
            Closed: This connection was closed.

        Awaiting the result raises what `InFlightRequest` lists, and Unsupported if the broker has no version in common.
        """
        return self.submit_built(type(request), lambda versions: request, timeout_s=timeout_s, limits=limits)

    def submit_built(
        self,
        api: type[Request[R]],
        build: Build[R],
        *,
        size: int = SIZE_ESTIMATE,
        timeout_s: float | None = None,
        limits: VersionLimits = NO_LIMITS,
    ) -> InFlightRequest[R]:
        """Queue a request that is made when it leaves the queue. See `submit`.

        Args:
            api: Its type.
            build: Makes it, for the versions of the connection that it leaves on; what it raises fails the request.
            size: Its bytes, about: for bounding what is queued.
        """
        return self._submit(_TypedRequest(self, api, build, limits, size, None), timeout_s)

    def submit_decoded(
        self,
        api: type[Request[R]],
        build: Build[R],
        new_decoder: NewDecoder[T],
        *,
        size: int = SIZE_ESTIMATE,
        timeout_s: float | None = None,
        limits: VersionLimits = NO_LIMITS,
    ) -> InFlightRequest[T]:
        """Queue a request whose response has a decoder of its own. See `submit_built`.

        Args:
            new_decoder: Called when the request leaves.
        """
        return self._submit(_TypedRequest(self, api, build, limits, size, new_decoder), timeout_s)

    def _begin_handshake(self) -> Handshake:
        """Begin the handshake of a new connection. After a loss, a broker that did not answer ApiVersions is probed
        again: it may be another release by now, or the line was cut so that it seemed to be an older one."""
        if self._probed_incarnation != self.incarnation:
            self._probed_incarnation = self.incarnation
            self._handshake.forget_release()
        return self._handshake.begin()

    def _submit(self, request: _TypedRequest[Any], timeout_s: float | None) -> InFlightRequest[Any]:
        self.renew_session()
        deadline_s = self._timeout_s if timeout_s is None else timeout_s
        observed = None if self.observation is None else self.observation.of("", request)
        pending: InFlightRequest[Any] = self.connection.submit(
            (), None, deadline_s=deadline_s, request=request, observation=observed
        )
        pending.add_done_callback(partial(self._read_throttle, request, pending))
        return pending

    def renew_session(self) -> None:
        """Authenticate again on the live connection if it is time: the broker closes it at the end of the session."""
        session: Session | None = self.connection.session
        if session is not None and session.renew_at is not None and self._handshake.clock() >= session.renew_at:
            self.connection.renew_handshake(self._handshake.reauthenticate(session.versions))

    def _read_throttle(self, request: _TypedRequest[Any], pending: InFlightRequest[Any]) -> None:
        try:
            throttle_ms = getattr(pending.result(), "throttle_time_ms", 0)
        except OdradekError:
            return
        if throttle_ms > 0:
            self.honour_throttle(request.api, request.version, throttle_ms)

    def honour_throttle(self, api: type[Request[Any]], version: int, throttle_ms: int) -> None:
        """Send nothing for as long as a response says, where the broker leaves waiting to the client (KIP-219)."""
        self.connection.throttled_seconds += throttle_ms / 1000
        if self.observation is not None:
            self.observation.throttled(throttle_ms / 1000)
        if needs_client_wait(api, version):
            self.connection.pause_sending(throttle_ms / 1000)

    def next_correlation_id(self) -> int:
        """Return a correlation id: not negative, as those of the handshake are."""
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        return self._next_id


class _TypedRequest(Generic[T]):
    """A request that is made and encoded when it leaves the queue (`io.requests.RequestEncoder`)."""

    __slots__ = ("_build", "_connection", "_limits", "_new_decoder", "api", "size", "version")

    def __init__(
        self,
        connection: KafkaConnection,
        api: type[Request[Any]],
        build: Build[Any],
        limits: VersionLimits,
        size: int,
        new_decoder: NewDecoder[T] | None,
    ) -> None:
        self._connection, self.api, self._build, self._limits = connection, api, build, limits
        self.size, self._new_decoder, self.version = size, new_decoder, -1

    @property
    def api_name(self) -> str:
        """Name of the request."""
        return self.api.__name__.removesuffix("Request")

    def encode(self, session: Session) -> tuple[Sequence[Buffer], ResponseDecoder[T] | None]:
        """Choose the version, and encode."""
        versions, limits = session.versions, self._limits
        if limits.exact is None:
            version = versions.version(self.api, topic_ids=limits.topic_ids, transactions_v2=limits.transactions_v2)
        else:
            version = versions.exactly(self.api, limits.exact)
        self.version = version
        number = self._connection.next_correlation_id()
        buffers = encode_request(self._build(versions), version, number, self._connection.client_id)
        if self._new_decoder is not None:
            return buffers, self._new_decoder(version, number)
        decoder: Any = KafkaResponseDecoder(response_of(self.api), version, number, MAX_RESPONSE_BYTES)
        return buffers, decoder
