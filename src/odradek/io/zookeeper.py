"""The kazoo bridge: ZooKeeper's calls as awaitables, its watches and session as one ordered stream of events.

kazoo speaks the protocol on threads of its own. Only plain values leave this module. Plain operations only: no
transaction and no create2, which ZooKeeper 3.3 and 3.4 do not have.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self
from weakref import WeakSet

import anyio
import anyio.lowlevel
import kazoo.exceptions as kz  # type: ignore[import-untyped]
from kazoo.protocol.states import (  # type: ignore[import-untyped]
    Callback,
    EventType,
    KazooState,
    KeeperState,
    WatchedEvent,
)
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE  # type: ignore[import-untyped]

from odradek.errors import (
    BadVersion,
    Closed,
    ConfigError,
    ConnectionLost,
    DeadlineError,
    NodeExists,
    NoNode,
    NotEmpty,
    OdradekError,
    SessionExpired,
    Unreachable,
    ZooKeeperError,
)
from odradek.io._kazoo import LastWarning, cut, desert, make_client, stop, thread_hop

__all__ = ["Events", "Node", "NodeChange", "NodeEvent", "SessionEvent", "SessionState", "ZooKeeper"]

log = logging.getLogger("odradek.zookeeper")

IN_FLIGHT = 128
"""Requests handed to kazoo at a time. kazoo wakes its thread with one byte per request through a blocking socket
pair, which takes about 270 of them on Linux before it would block the event loop."""

CLOSE_SECONDS = 2.0
"""What a courteous goodbye may take before the connection is cut; and as long again for kazoo's thread to end."""


class SessionState(enum.Enum):
    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"
    CLOSED = "closed"


class NodeChange(enum.Enum):
    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    CHILDREN = "children"


class NodeEvent(NamedTuple):
    """A watch fired. Watches are one-shot: read the node again with `watch=True` to hear of the next change."""

    kind: NodeChange
    path: str


class SessionEvent(NamedTuple):
    """The session changed. Every watch is gone after SUSPENDED and after EXPIRED; every ephemeral node of the
    session is gone after EXPIRED. CONNECTED follows by itself; then read again, with watches."""

    state: SessionState


class Node(NamedTuple):
    """What a node held when it was read.

    `data` None is a null node (`b""` is a node with zero bytes: most clients do not tell them apart);
    `owner` is the session id of an ephemeral node's creator, 0 for a persistent node.
    """

    data: bytes | None
    version: int
    owner: int


class Events:
    """An endless stream of NodeEvent and SessionEvent, in the order they happened.

    It begins with the session's present state, so that "on CONNECTED, read everything with watches" is the whole
    start-up; it ends after SessionEvent(CLOSED). What nobody has taken yet is not queued twice, so that a slow
    reader holds at most one event per kind and path. Cancellation: safe, no event is lost.
    """

    def __init__(self, first: SessionEvent) -> None:
        self._pending: dict[NodeEvent | SessionEvent, None] = {first: None}
        self._wake = anyio.Event()
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> NodeEvent | SessionEvent:
        await anyio.lowlevel.checkpoint()
        while not self._pending:
            if self._ended:
                raise StopAsyncIteration
            self._wake = anyio.Event()
            await self._wake.wait()
        event = next(iter(self._pending))
        del self._pending[event]
        self._ended = event == SessionEvent(SessionState.CLOSED)
        return event

    def _put(self, event: NodeEvent | SessionEvent) -> None:
        # A node event keeps its first place: whoever takes it reads the newest data anyway. A session event moves to
        # the end, because the last one must tell the state the session is in.
        if isinstance(event, SessionEvent):
            self._pending.pop(event, None)
        self._pending[event] = None
        self._wake.set()


class ZooKeeper:
    """One ZooKeeper session.

    An asynchronous context manager: inside it the session exists. Every call waits at most `connect_timeout` for a
    connection and its answer, and raises

    * NoNode, NodeExists, BadVersion, NotEmpty, or ZooKeeperError for anything else the server refuses;
    * DeadlineError when no answer came in time (a write may still be applied);
    * ConnectionLost when the connection died under a write, which may have been applied; reads are repeated;
    * SessionExpired when the session ended; wait for CONNECTED on `events()` and start over;
    * ConfigError when credentials or an ACL forbid it; Closed outside the `async with` block.

    Cancellation: the request is not taken back; a write may be applied.

    Args:
        hosts: `host:port,host:port/chroot`. The chroot node must exist.
        session_timeout: Seconds without a sign of life after which the server ends the session; servers have
            limits of their own (s).
        connect_timeout: Seconds that entering the block, and later each call, may take (s).
        auth: `(scheme, credential)` pairs such as `("digest", "user:password")`. With any, nodes are created for
            this user alone; without, for the world, as Kafka 0.7 does.
    """

    def __init__(
        self,
        hosts: str,
        *,
        session_timeout: float = 6.0,
        connect_timeout: float = 6.0,
        auth: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.hosts = hosts
        self._timeout = connect_timeout
        self._acl = CREATOR_ALL_ACL if auth else OPEN_ACL_UNSAFE
        self._notes = LastWarning()
        self._client = make_client(hosts, session_timeout, auth, self._notes.logger)
        self._state = SessionState.CLOSED
        self._entered = self._refused = False
        self._identity: Any = None
        self._epoch = 0
        self._waiters: set[anyio.Event] = set()
        self._streams: WeakSet[Events] = WeakSet()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.hosts} {self._state.value} session=0x{self.session_id & (1 << 64) - 1:x}>"

    @property
    def state(self) -> SessionState:
        """The session's state, as far as the loop has heard."""
        return self._state

    @property
    def session_id(self) -> int:
        """The session's id, 0 while there is none: the `owner` of the ephemeral nodes made here."""
        return int(self._identity[0]) if self._identity else 0

    # ---- life -----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._entered or self._client is None:
            raise Closed(f"{self!r} cannot be entered again")
        self._entered = True
        self._state = SessionState.SUSPENDED
        self._slots = anyio.Semaphore(IN_FLIGHT)
        self._hop = thread_hop()
        self._client.add_listener(self._session_changed)
        self._client.start_async()
        try:
            await self._first_answer()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _first_answer(self) -> None:
        try:
            found = await self.exists("/")
        except (DeadlineError, ConnectionLost):
            why = self._notes.last or "no answer"
            raise Unreachable("zookeeper", self.hosts, f"{why}; gave up after {self._timeout:g} s") from None
        if not found:
            raise ConfigError(f"the chroot of {self.hosts!r} does not exist in ZooKeeper; create it first")

    async def aclose(self) -> None:
        """End the session, and with it its ephemeral nodes. Idempotent, bounded and shielded from cancellation:
        a server that does not say goodbye within CLOSE_SECONDS is cut off, and expires the session later."""
        await self._leave(stop)

    async def abandon(self) -> None:
        """Leave as a killed process does: the server hears nothing, and ephemeral nodes stay until it expires the
        session. Otherwise like `aclose`."""
        await self._leave(desert)

    async def _leave(self, way: Callable[[Any, Callable[[], None]], None]) -> None:
        client, self._client = self._client, None
        if client is None or not self._entered:
            return
        courtesy = CLOSE_SECONDS if self._state is SessionState.CONNECTED else 0
        self._apply(SessionState.CLOSED, None)
        ended = anyio.Event()
        threading.Thread(target=way, args=(client, partial(self._tell, ended.set)), daemon=True).start()
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(courtesy) as goodbye:
                await ended.wait()
            if goodbye.cancelled_caught:
                cut(client)
                with anyio.move_on_after(CLOSE_SECONDS):
                    await ended.wait()

    # ---- events ---------------------------------------------------------------------------------------------

    def events(self) -> Events:
        """A stream of what happens from now on. Several may be open; each gets every event."""
        if self._client is None or not self._entered:
            raise Closed(f"{self!r} is not open")
        stream = Events(SessionEvent(self._state))
        self._streams.add(stream)
        return stream

    def _session_changed(self, state: str) -> None:
        """kazoo's connection thread calls this."""
        client = self._client
        if client is None:
            return
        # The detour over kazoo's queue of watch callbacks keeps watches and session in one order.
        change = (_session_state(state, client.client_state), client.client_id)
        self._refused |= client.client_state == KeeperState.AUTH_FAILED
        client.handler.dispatch_callback(Callback("session", self._tell, (self._apply, *change)))

    def _node_changed(self, event: WatchedEvent) -> None:
        """kazoo's callback thread calls this. NONE only says that the watch died with its connection."""
        if event.type != EventType.NONE:
            self._tell(self._publish, NodeEvent(_CHANGES[event.type], event.path))

    def _tell(self, function: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._hop(function, *arguments)

    def _apply(self, state: SessionState, identity: Any) -> None:
        if self._state is state or self._state is SessionState.CLOSED:
            return
        self._log(state)
        self._state = state
        if state is SessionState.EXPIRED:
            self._epoch += 1
        if state is not SessionState.SUSPENDED:
            self._identity = identity
        self._publish(SessionEvent(state))
        for waiter in self._waiters:
            waiter.set()

    def _publish(self, event: NodeEvent | SessionEvent) -> None:
        for stream in self._streams:
            stream._put(event)

    def _log(self, state: SessionState) -> None:
        level = logging.WARNING if state in (SessionState.SUSPENDED, SessionState.EXPIRED) else logging.INFO
        why = f" ({self._notes.last})" if state is SessionState.SUSPENDED else ""
        log.log(level, "ZooKeeper %s: %s%s", self.hosts, state.value, why)

    # ---- calls ----------------------------------------------------------------------------------------------

    async def get(self, path: str, watch: bool = False) -> Node | None:
        """Read a node; None when there is none. A watch on an absent node waits for its creation."""
        answer = await self._read("get_async", path, watch)
        return None if answer is None else Node(answer[0], answer[1].version, answer[1].ephemeralOwner or 0)

    async def children(self, path: str, watch: bool = False) -> list[str] | None:
        """Names of a node's children, sorted; None when there is no such node. Watches as `get` does."""
        answer = await self._read("get_children_async", path, watch)
        return None if answer is None else sorted(answer)

    async def exists(self, path: str, watch: bool = False) -> bool:
        """Whether the node is there. A watch tells of its creation, change or deletion."""
        watcher = self._node_changed if watch else None
        return await self._call("exists_async", path, watcher, repeat=True) is not None

    async def create(self, path: str, data: bytes | None, *, ephemeral: bool = False, parents: bool = False) -> None:
        """Create a node; `data` None makes a null node. With `parents`, missing ones are made persistent and null,
        as Kafka 0.7 makes them."""
        while True:
            try:
                await self._call("create_async", path, data, self._acl, ephemeral)
                return
            except NoNode:
                if not parents or path.count("/") < 2:
                    raise
            with suppress(NodeExists):
                await self.create(path.rpartition("/")[0], None, parents=True)

    async def set(self, path: str, data: bytes | None, version: int = -1) -> int:
        """Replace a node's data if it still has `version` (-1: whatever it has). Returns the new version."""
        stat = await self._call("set_async", path, data, version)
        return int(stat.version)

    async def delete(self, path: str, version: int = -1) -> None:
        """Delete a node without children if it still has `version` (-1: whatever it has)."""
        await self._call("delete_async", path, version)

    async def _read(self, method: str, path: str, watch: bool) -> Any:
        while True:
            try:
                return await self._call(method, path, self._node_changed if watch else None, repeat=True)
            except NoNode:
                # A failed read leaves no watch; `exists` does. The node may have come in between.
                if not watch or not await self.exists(path, watch=True):
                    return None

    async def _call(self, method: str, path: str, *arguments: Any, repeat: bool = False) -> Any:
        what = f"ZooKeeper {self.hosts}: {method.removesuffix('_async')} {path}"
        try:
            path.encode()  # kazoo's thread would die of a lone surrogate
            with anyio.fail_after(self._timeout):
                return await self._attempts(partial(self._ask, method, path, *arguments), repeat)
        except TimeoutError:
            raise DeadlineError(what, self._timeout) from None
        except kz.KazooException as error:
            raise self._translated(what, error) from error
        except ValueError as error:
            raise ZooKeeperError(f"{what}: {error}") from error

    async def _attempts(self, attempt: Callable[[], Awaitable[Any]], repeat: bool) -> Any:
        """A read that died with its connection is asked again: it changed nothing."""
        while True:
            try:
                return await attempt()
            except (kz.ConnectionLoss, kz.ConnectionClosedError):
                if not repeat or self._client is None:
                    raise

    async def _ask(self, method: str, *arguments: Any) -> Any:
        self._require_open()
        async with self._slots:
            await self._session()
            result = getattr(self._client, method)(*arguments)
            done = anyio.Event()
            result.rawlink(lambda _: self._tell(done.set))
            await done.wait()
            return result.get_nowait()

    async def _session(self) -> None:
        """Wait until kazoo is in the session that the loop knows of: a request made in one session must not be
        carried out in the next, where what it relied on (ephemeral nodes) is gone."""
        epoch = self._epoch
        while True:
            self._require_open()
            if self._epoch != epoch or self._state is SessionState.EXPIRED:
                raise SessionExpired(f"the ZooKeeper session at {self.hosts} expired")
            if self._identity is not None and self._client.client_id == self._identity:
                return
            await self._next_state()

    async def _next_state(self) -> None:
        change = anyio.Event()
        self._waiters.add(change)
        try:
            await change.wait()
        finally:
            self._waiters.remove(change)

    def _require_open(self) -> None:
        if self._refused:
            raise kz.AuthFailedError
        if self._state is SessionState.CLOSED:
            raise Closed(f"{self!r} is not open")

    def _translated(self, what: str, error: Exception) -> OdradekError:
        if self._client is None:
            return Closed(f"{what}: closed meanwhile")
        if isinstance(error, kz.ConnectionLoss | kz.ConnectionClosedError):
            return ConnectionLost(self.hosts, self._notes.last or "no reason given", True)
        if isinstance(error, kz.AuthFailedError | kz.NoAuthError):
            return ConfigError(f"{what}: the credentials given are refused or not enough ({type(error).__name__})")
        for theirs, ours in _ERRORS:
            if isinstance(error, theirs):
                return ours(what)
        return ZooKeeperError(f"{what}: {error!r}")


_CHANGES = {
    EventType.CREATED: NodeChange.CREATED,
    EventType.CHANGED: NodeChange.CHANGED,
    EventType.DELETED: NodeChange.DELETED,
    EventType.CHILD: NodeChange.CHILDREN,
}

_ERRORS: Sequence[tuple[type[Exception], type[ZooKeeperError]]] = (
    (kz.NoNodeError, NoNode),
    (kz.NodeExistsError, NodeExists),
    (kz.BadVersionError, BadVersion),
    (kz.NotEmptyError, NotEmpty),
    (kz.SessionExpiredError, SessionExpired),
)


def _session_state(state: str, detail: str) -> SessionState:
    if state == KazooState.LOST:
        return SessionState.EXPIRED if detail == KeeperState.EXPIRED_SESSION else SessionState.CLOSED
    return SessionState.CONNECTED if state == KazooState.CONNECTED else SessionState.SUSPENDED
