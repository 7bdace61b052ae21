"""The connections to the brokers of one cluster: one for each broker and kind of work."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import copy
from random import random
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import anyio
from anyio.abc import TaskGroup

from odradek._version import __version__
from odradek.core.interfaces import NOT_OPEN, ClusterStatistics
from odradek.core.kafka.versions import BrokerVersions
from odradek.core.observer_calls import ObserverCalls
from odradek.errors import Closed, InternalError, Unreachable
from odradek.io.connection import ConnectionOptions
from odradek.io.connection_totals import ConnectionTotals
from odradek.io.kafka.connection import KafkaConnection
from odradek.io.kafka.handshake import Identity, KafkaHandshake, KnownVersions, Login
from odradek.io.observation import ConnectionObservation
from odradek.io.tcp import connect
from odradek.io.tls import ContextSource
from odradek.io.transport import Transport
from odradek.types import Broker
from odradek.wire.kafka.messages.metadata import MetadataRequest, MetadataResponse
from odradek.wire.kafka.schema import Request, Response

if TYPE_CHECKING:
    from odradek.io.kafka.authentication import TokenSource
    from odradek.io.proxy import Proxy

__all__ = ["BOOTSTRAP_ID", "BrokerConnections"]

BOOTSTRAP_ID = -1
"""Stands for the unknown id of a broker known only by an address in the URL."""

R = TypeVar("R", bound=Response)


class BrokerConnections:
    """Opens a connection when it is first needed, and runs it until the block ends.

    Args:
        bootstrap: The addresses of the URL.
        client_id: In every request.
        request_timeout_s: From a call to its result (s).
        options: For every connection.
        tls: The source of contexts of TLS; None without TLS.
        login: The login; None without SASL.
        tokens: The source of the login's bearer tokens.
        observer: Told of what happens to every connection.
        proxy: All connections go through it.
    """

    def __init__(
        self,
        bootstrap: frozenset[str],
        *,
        client_id: str,
        request_timeout_s: float,
        options: ConnectionOptions,
        tls: ContextSource | None = None,
        login: Login | None = None,
        tokens: TokenSource | None = None,
        observer: ObserverCalls | None = None,
        proxy: Proxy | None = None,
    ) -> None:
        self._proxy = proxy
        self._bootstrap, self._options, self._timeout_s = bootstrap, options, request_timeout_s
        self._identity = Identity(client_id, "odradek", re.sub(r"[^a-zA-Z0-9.-]", "-", __version__))
        self._tls, self._login, self._tokens, self._observer = tls, login, tokens, observer
        self.known = KnownVersions(anyio.current_time)
        self._connections: dict[tuple[Broker, str], KafkaConnection] = {}
        self._totals = ConnectionTotals()
        self._tasks: TaskGroup | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self._connections)} connections>"

    def for_thread(self) -> BrokerConnections:
        """Return connections with the same options for the event loop of another thread. They use the bearer token
        that was fetched last: fetching one is up to this loop. They have no observer, which belongs to this loop."""
        return BrokerConnections(
            self._bootstrap,
            client_id=self._identity.client_id,
            request_timeout_s=self._timeout_s,
            options=self._options,
            tls=self._tls,
            login=None if self._login is None else self._login._replace(accepted=lambda lifetime_s: None),
            proxy=self._proxy,
        )

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        if self._tokens is not None:
            self._tasks.start_soon(self._tokens.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks, self._tasks = self._tasks, None
        if tasks is not None:
            tasks.cancel_scope.cancel()
            await tasks.__aexit__(None, None, None)
        self._connections.clear()

    def get(self, broker: Broker, purpose: str) -> KafkaConnection:
        """Return the connection to a broker for a kind of work. Raises Closed outside the block."""
        connection = self._connections.get((broker, purpose))
        if connection is None:
            if self._tasks is None:
                raise Closed(NOT_OPEN)
            connection = self._new(broker, purpose)
            self._connections[broker, purpose] = connection
            self._totals.add(connection.connection)
            self._tasks.start_soon(self._run, connection)
        return connection

    def statistics(self) -> ClusterStatistics:
        """Return the counters of all connections so far."""
        return self._totals.statistics()

    def close(self, broker: Broker, purpose: str) -> None:
        """Close a connection, in the background: the next call of `get` makes another one."""
        connection = self._connections.pop((broker, purpose), None)
        if connection is not None and self._tasks is not None:
            self._tasks.start_soon(connection.connection.aclose)

    async def ask(
        self,
        broker: Broker,
        api: type[Request[R]],
        build: Callable[[BrokerVersions], Request[R]],
        purpose: str = "control",
    ) -> R:
        """Send a request to a broker over its connection for a kind of work. Cancellation: safe.

        Raises what awaiting a request raises (see `InFlightRequest`), and at once, without an attempt, the reason of
        the last failure while the connection backs off from it: another broker may answer.
        """
        connection = self.get(broker, purpose)
        if connection.connection.available_at > anyio.current_time() and connection.connection.refusal is not None:
            raise copy(connection.connection.refusal)
        return await connection.submit_built(api, build)

    async def ask_metadata(
        self, broker: Broker, build: Callable[[BrokerVersions], MetadataRequest]
    ) -> MetadataResponse:
        """Send a Metadata request to a broker, as `ask`. One without an id gets a connection for this request only,
        unless the response names its address: then the connection goes on as that broker's. Cancellation: safe."""
        if broker.id != BOOTSTRAP_ID:
            response = await self.ask(broker, MetadataRequest, build)
            self._learn_members(broker, response)
            return response
        try:
            response = await self.get(broker, "bootstrap").submit_built(MetadataRequest, build)
            self._learn_members(broker, response)
            self._keep(broker, response)
            return response
        finally:
            self.close(broker, "bootstrap")

    def _learn_members(self, asked: Broker, response: MetadataResponse) -> None:
        versions = self.known.latest.get(f"{asked.host}:{asked.port}")
        if versions is not None and versions.lists_all_brokers and response.brokers:
            self.known.members_are(f"{each.host}:{each.port}" for each in response.brokers)

    def _keep(self, bootstrap: Broker, response: MetadataResponse) -> None:
        """Keep the connection to a bootstrap address as that of the broker that the response names there, which saves
        another one with its handshake."""
        for each in response.brokers:
            broker = Broker(each.node_id, each.host, each.port)
            if broker.address == bootstrap.address and (broker, "control") not in self._connections:
                connection = self._connections.pop((bootstrap, "bootstrap"), None)
                if connection is None:  # closed by another request for the same address, which was cancelled
                    return
                self._connections[broker, "control"] = connection
                if connection.observation is not None:
                    connection.observation.serve(broker, "control")
                return

    def _new(self, broker: Broker, purpose: str) -> KafkaConnection:
        handshake = KafkaHandshake(
            broker.host, broker.port, self._identity, self.known, self._login, anyio.current_time, random
        )
        return KafkaConnection(
            broker.host,
            broker.port,
            connect=self._connect if broker.address in self._bootstrap else self._connect_advertised,
            handshake=handshake,
            client_id=self._identity.client_id,
            request_timeout_s=self._timeout_s,
            options=self._options,
            observation=None if self._observer is None else ConnectionObservation(self._observer, broker, purpose),
        )

    async def _run(self, connection: KafkaConnection) -> None:
        """Run a connection. A defect that ends it has failed its requests; others must not see it."""
        try:
            await connection.connection.run()
        except InternalError:  # logged by the connection
            self._connections = {key: each for key, each in self._connections.items() if each is not connection}
        finally:
            self._totals.remove(connection.connection)

    async def _connect(self, host: str, port: int, timeout: float) -> Transport:
        if self._tokens is not None:
            await self._tokens.ensure(f"{host}:{port}")
        if self._login is not None and self._login.prepare is not None:
            await self._login.prepare(host, timeout)
        tls = None if self._tls is None else self._tls.current()
        return await connect(host, port, timeout, tls, self._proxy, self.known.failures[f"{host}:{port}"])

    async def _connect_advertised(self, host: str, port: int, timeout: float) -> Transport:
        """Connect to an address that a broker advertises, and the URL has not: nothing shows that it can be reached."""
        try:
            return await self._connect(host, port, timeout)
        except Unreachable as error:
            if error.step in ("dns", "tcp"):
                error = Unreachable("listener", error.address, f"{error.step}: {error.why}")
                error.hint = (
                    "the cluster was reached, and names this address for one of its brokers: "
                    "check advertised.listeners, routes and firewalls"
                )
            raise error
