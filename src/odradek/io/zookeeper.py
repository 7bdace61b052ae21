"""The kazoo bridge: ZooKeeper's calls as awaitables, its watches and session as one ordered stream of events.

kazoo speaks the protocol on its own threads. Only plain values leave this module. It uses plain operations alone:
ZooKeeper 3.3 and 3.4 have no create2, and 3.3 has no transactions.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
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
from odradek.io._kazoo import LastWarning, abandon, loop_call_from_thread, make_client, shutdown_socket, stop

__all__ = ["Events", "Node", "NodeChange", "NodeEvent", "SessionEvent", "SessionState", "ZooKeeper"]

log = logging.getLogger("odradek.zookeeper")

IN_FLIGHT = 128
"""Requests handed to kazoo at a time. kazoo wakes its thread with one byte per request through a blocking socket
pair, which takes about 270 of them on Linux before it would block the event loop."""

CLOSE_S = 2.0
"""Time for a clean close before the socket is shut down, and again for kazoo's thread to end after that (s)."""


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
    """A watch fired. Watches are one-shot: read the node again with `watch=True` to be told of the next change."""

    kind: NodeChange
    path: str


class SessionEvent(NamedTuple):
    """The session changed. Every watch is gone after SUSPENDED and after EXPIRED; every ephemeral node of the
    session is gone after EXPIRED. CONNECTED follows without any action; then read again, with watches."""

    state: SessionState


class Node(NamedTuple):
    """A node's content when it was read.

    `data` None is a null node (`b""` is a node with zero bytes: most clients do not distinguish the two);
    `owner` is the session id of an ephemeral node's creator, 0 for a persistent node.
    """

    data: bytes | None
    version: int
    owner: int


class Events:
    """An endless stream of NodeEvent and SessionEvent, in the order they happened.

    It begins with the session's current state, so that "on CONNECTED, read everything with watches" is the whole
    start-up; it ends after SessionEvent(CLOSED). An event that is still queued is not queued twice, so a slow reader
    holds at most one event per kind and path. Cancellation: safe, no event is lost.
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
        # A queued node event keeps its position: its reader reads the newest data anyway. A session event moves to the
        # end, because the last one must be the state the session is in.
        if isinstance(event, SessionEvent):
            self._pending.pop(event, None)
        self._pending[event] = None
        self._wake.set()


class ZooKeeper:
    """One ZooKeeper session.

    An asynchronous context manager: inside it the session exists. Calls are queued while IN_FLIGHT others are in
    progress, for as long as the server answers any; then each waits at most `connect_timeout` for a connection and its
    answer. A call raises

    * NoNode, NodeExists, BadVersion, NotEmpty, or ZooKeeperError for anything else the server refuses;
    * DeadlineError when no answer came in time (a write may still be applied, unless it was still queued);
    * ConnectionLost when the connection died under a write, which may have been applied; reads are repeated;
    * SessionExpired when the session ended, or is not the one given as `session`; wait for CONNECTED on `events()` and
      start over;
    * ConfigError when credentials or an ACL forbid it; Closed outside the `async with` block.

    Cancellation: the request is not taken back; a write may be applied.

    Args:
        hosts: `host:port,host:port/chroot`. The chroot node must exist.
        session_timeout: Silence after which the server ends the session; servers clamp it to their limits (s).
        connect_timeout: How long entering the block, and later each call, may take (s).
        auth: `(scheme, credential)` pairs such as `("digest", "user:password")`. With any, nodes are created for
            this user alone; without, for everyone, as Kafka 0.7 does.
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
        self._warnings = LastWarning()
        self._client = make_client(hosts, session_timeout, auth, self._warnings.logger)
        self._state = SessionState.CLOSED
        self._entered = self._refused = False
        self._identity: Any = None
        self._expirations = 0
        self._answered_at = -inf
        self._folders: set[str] = set()  # nodes that have had children: no create below them needs to look for them
        self._folder_locks: dict[str, anyio.Lock] = {}
        self._waiters: set[anyio.Event] = set()
        self._streams: WeakSet[Events] = WeakSet()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.hosts} {self._state.value} session=0x{self.session_id & (1 << 64) - 1:x}>"

    @property
    def state(self) -> SessionState:
        """The session's state, as far as the event loop was told."""
        return self._state

    @property
    def session_id(self) -> int:
        """The session's id, 0 while there is none: the `owner` of the ephemeral nodes made here."""
        return int(self._identity[0]) if self._identity else 0

    # ---- opening and closing --------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._entered or self._client is None:
            raise Closed(f"{self!r} cannot be entered again")
        self._entered = True
        self._state = SessionState.SUSPENDED
        self._slots = anyio.Semaphore(IN_FLIGHT, fast_acquire=True)
        self._loop_call = loop_call_from_thread()
        self._client.add_listener(self._session_changed)
        self._client.start_async()
        try:
            await self._connect()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _connect(self) -> None:
        try:
            has_root = await self.exists("/")
        except (DeadlineError, ConnectionLost):
            why = self._warnings.last or "no answer"
            raise Unreachable("zookeeper", self.hosts, f"{why}; gave up after {self._timeout:g} s") from None
        if not has_root:
            raise ConfigError(f"the chroot of {self.hosts!r} does not exist in ZooKeeper; create it first")

    async def aclose(self) -> None:
        """End the session, and with it its ephemeral nodes. Idempotent, bounded and shielded from cancellation: when
        the server does not confirm within CLOSE_S the socket is shut down, and the server expires the session later."""
        await self._end(stop)

    async def abandon(self) -> None:
        """Disconnect as a killed process does: the server is told nothing, and ephemeral nodes stay until it expires
        the session. Otherwise like `aclose`."""
        await self._end(abandon)

    async def _end(self, how: Callable[[Any, Callable[[], None]], None]) -> None:
        client, self._client = self._client, None
        if client is None or not self._entered:
            return
        clean_close_s = CLOSE_S if self._state is SessionState.CONNECTED else 0
        self._apply(SessionState.CLOSED, None)
        ended = anyio.Event()
        threading.Thread(target=how, args=(client, partial(self._run_in_loop, ended.set)), daemon=True).start()
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(clean_close_s) as clean:
                await ended.wait()
            if clean.cancelled_caught:
                shutdown_socket(client)
                with anyio.move_on_after(CLOSE_S):
                    await ended.wait()

    # ---- events ---------------------------------------------------------------------------------------------

    def events(self) -> Events:
        """Return a stream of the events from now on. Several may be open; each gets every event."""
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
        # Going through kazoo's queue of watch callbacks keeps watches and session changes in one order.
        change = (_session_state(state, client.client_state), client.client_id)
        self._refused |= client.client_state == KeeperState.AUTH_FAILED
        client.handler.dispatch_callback(Callback("session", self._run_in_loop, (self._apply, *change)))

    def _node_changed(self, event: WatchedEvent) -> None:
        """kazoo's callback thread calls this. NONE only means that the watch died with its connection."""
        if event.type != EventType.NONE:
            self._run_in_loop(self._publish, NodeEvent(_CHANGES[event.type], event.path))

    def _run_in_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop_call(function, *arguments)

    def _apply(self, state: SessionState, identity: Any) -> None:
        if self._state is state or self._state is SessionState.CLOSED:
            return
        self._log(state)
        self._state = state
        if state is SessionState.EXPIRED:
            self._expirations += 1
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
        why = f" ({self._warnings.last})" if state is SessionState.SUSPENDED else ""
        log.log(level, "ZooKeeper %s: %s%s", self.hosts, state.value, why)

    # ---- calls ----------------------------------------------------------------------------------------------

    async def get(self, path: str, watch: bool = False) -> Node | None:
        """Read a node; None when it does not exist. A watch on an absent node waits for its creation."""
        answer = await self._read("get_async", path, watch)
        return None if answer is None else Node(answer[0], answer[1].version, answer[1].ephemeralOwner or 0)

    async def children(self, path: str, watch: bool = False) -> list[str] | None:
        """Return the names of a node's children, sorted; None when the node does not exist. Watches as `get` does."""
        answer = await self._read("get_children_async", path, watch)
        return None if answer is None else sorted(answer)

    async def exists(self, path: str, watch: bool = False) -> bool:
        """Return True if the node exists. A watch reports its creation, change or deletion."""
        watcher = self._node_changed if watch else None
        return await self._call("exists_async", path, watcher, repeat=True) is not None

    async def last_child_change(self, path: str) -> int | None:
        """Return the number of the transaction that last created or deleted a child of a node; None when the node does
        not exist."""
        stat = await self._call("exists_async", path, None, repeat=True)
        return None if stat is None else int(stat.pzxid)

    async def create(
        self, path: str, data: bytes | None, *, ephemeral: bool = False, parents: bool = False, session: int = 0
    ) -> None:
        """Create a node; `data` None makes a null node. With `parents`, missing ones are made persistent and null,
        as Kafka 0.7 makes them: once, however many nodes are created below them at the same time.

        With `session` (a `session_id`) the node is created in that session or not at all.
        """
        create = partial(self._call, "create_async", path, data, self._acl, ephemeral, session=session)
        folder = path.rpartition("/")[0]
        while parents and folder:
            if folder not in self._folders and await self._create_first(create, folder):
                return
            try:
                await create()
                return
            except NoNode:  # the folder was deleted
                self._folders.discard(folder)
        await create()

    async def _create_first(self, create: Callable[[], Awaitable[Any]], folder: str) -> bool:
        """Find out by the first creation below `folder` whether that exists, and make it if not.

        Returns True if the node was created. Other creations below the same folder wait for this one.
        """
        async with self._folder_locks.setdefault(folder, anyio.Lock()):
            if folder in self._folders:
                return False
            try:
                await create()
                created = True
            except NoNode:
                with suppress(NodeExists):
                    await self.create(folder, None, parents=True)
                created = False
            finally:
                self._folder_locks.pop(folder, None)
            self._folders.add(folder)
            return created

    async def set(self, path: str, data: bytes | None, version: int = -1, *, session: int = 0) -> int:
        """Replace a node's data if it still has `version` (-1: any). Returns the new version.

        With `session` (a `session_id`) the data is replaced in that session or not at all.
        """
        stat = await self._call("set_async", path, data, version, session=session)
        return int(stat.version)

    async def delete(self, path: str, version: int = -1, *, session: int = 0) -> None:
        """Delete a node without children if it still has `version` (-1: any); `session` as for `set`."""
        await self._call("delete_async", path, version, session=session)

    async def _read(self, method: str, path: str, watch: bool) -> Any:
        while True:
            try:
                return await self._call(method, path, self._node_changed if watch else None, repeat=True)
            except NoNode:
                # A failed read leaves no watch; `exists` does. The node may have been created in between.
                if not watch or not await self.exists(path, watch=True):
                    return None

    async def _call(self, method: str, path: str, *arguments: Any, repeat: bool = False, session: int = 0) -> Any:
        what = f"ZooKeeper {self.hosts}: {method.removesuffix('_async')} {path}"
        try:
            path.encode()  # a lone surrogate would kill kazoo's thread
            await self._acquire_slot()
            try:
                with anyio.fail_after(self._timeout):
                    return await self._attempts(partial(self._ask, session, method, path, *arguments), repeat)
            finally:
                self._slots.release()
        except TimeoutError:
            raise DeadlineError(what, self._timeout) from None
        except kz.KazooException as error:
            raise self._translated(what, error) from error
        except ValueError as error:
            raise ZooKeeperError(f"{what}: {error}") from error

    async def _acquire_slot(self) -> None:
        """Wait for one of the requests in flight to end; raise TimeoutError once the server has answered none of them
        for as long as a call may take."""
        called_at = anyio.current_time()
        while True:
            self._require_open()
            deadline = max(called_at, self._answered_at) + self._timeout
            if anyio.current_time() >= deadline:
                raise TimeoutError
            with anyio.CancelScope(deadline=deadline):
                await self._slots.acquire()
                return

    async def _attempts(self, attempt: Callable[[], Awaitable[Any]], repeat: bool) -> Any:
        """Repeat a read that failed with its connection: it changed nothing."""
        while True:
            try:
                return await attempt()
            except (kz.ConnectionLoss, kz.ConnectionClosedError):
                if not repeat or self._client is None:
                    raise

    async def _ask(self, session: int, method: str, *arguments: Any) -> Any:
        await self._wait_for_session(session)
        result = getattr(self._client, method)(*arguments)
        done = anyio.Event()
        result.rawlink(lambda _: self._run_in_loop(done.set))
        await done.wait()
        answer = result.get_nowait()
        self._answered_at = anyio.current_time()
        return answer

    async def _wait_for_session(self, session: int) -> None:
        """Wait until kazoo is in the session that the event loop knows, and in `session` if that is not 0.

        A request made in one session must not be carried out in the next, where the nodes it relied on are gone. From
        here on kazoo fails it if the session ends before it is sent, and the server if it ends before it arrives.
        """
        expirations = self._expirations
        while True:
            self._require_open()
            expired = self._expirations != expirations or self._state is SessionState.EXPIRED
            if expired or (session and session != self.session_id):
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
            return Closed(f"{what}: the session was closed")
        if isinstance(error, kz.ConnectionLoss | kz.ConnectionClosedError):
            return ConnectionLost(self.hosts, self._warnings.last or "no reason given", True)
        if isinstance(error, kz.AuthFailedError | kz.NoAuthError):
            return ConfigError(f"{what}: the credentials are refused or not sufficient ({type(error).__name__})")
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
