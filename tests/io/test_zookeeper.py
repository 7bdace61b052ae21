"""The bridge's calls and watches, against real ZooKeepers of three generations."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from functools import partial

import anyio
import pytest

from odradek.errors import BadVersion, ConfigError, NodeExists, NoNode, NotEmpty, Unreachable, ZooKeeperError
from odradek.io.zookeeper import Node, NodeChange, NodeEvent, SessionEvent, SessionState, ZooKeeper
from odradek.testing import ZooKeeperServer

from .limits import TimeLimit, end_once_warned

pytestmark = pytest.mark.anyio

CONNECTED = SessionEvent(SessionState.CONNECTED)


def open_zookeeper(server: ZooKeeperServer, chroot: str, auth: Sequence[tuple[str, str]] = ()) -> ZooKeeper:
    return ZooKeeper(server.address + chroot, auth=auth)


async def test_a_node_is_created_read_changed_and_deleted(zookeeper: ZooKeeperServer, chroot: str) -> None:
    async with open_zookeeper(zookeeper, chroot) as zk:
        assert await zk.get("/n") is None
        assert not await zk.exists("/n")
        await zk.create("/n", b"one")
        assert await zk.get("/n") == Node(b"one", version=0, owner=0)
        assert await zk.set("/n", b"two", version=0) == 1
        assert await zk.set("/n", b"three") == 2
        assert await zk.get("/n") == Node(b"three", version=2, owner=0)
        await zk.delete("/n", version=2)
        assert await zk.get("/n") is None


async def test_what_the_server_refuses_has_an_error_of_its_own(zookeeper: ZooKeeperServer, chroot: str) -> None:
    async with open_zookeeper(zookeeper, chroot) as zk:
        await zk.create("/a", b"")
        await zk.create("/a/b", b"")
        with pytest.raises(NodeExists, match="create /a"):
            await zk.create("/a", b"")
        with pytest.raises(BadVersion, match="set /a"):
            await zk.set("/a", b"", version=7)
        with pytest.raises(BadVersion):
            await zk.delete("/a/b", version=7)
        with pytest.raises(NotEmpty):
            await zk.delete("/a")
        for refused in (zk.set("/x", b""), zk.delete("/x"), zk.create("/x/y", b"")):
            with pytest.raises(NoNode):
                await refused


@pytest.mark.parametrize("path", ["/\ud800", "/a\0b", "/../x"], ids=ascii)
async def test_an_impossible_path_is_an_error_and_the_session_goes_on(
    zookeeper: ZooKeeperServer, chroot: str, path: str
) -> None:
    async with open_zookeeper(zookeeper, chroot) as zk:
        with pytest.raises(ZooKeeperError):
            await zk.create(path + "/x", b"")
        assert await zk.exists("/")


async def test_null_data_and_no_bytes_stay_apart(zookeeper: ZooKeeperServer, chroot: str) -> None:
    async with open_zookeeper(zookeeper, chroot) as zk:
        await zk.create("/null", None)
        await zk.create("/empty", b"")
        assert [(await zk.get(path)) for path in ("/null", "/empty")] == [Node(None, 0, 0), Node(b"", 0, 0)]
        await zk.set("/empty", None)
        tree = zookeeper.tree(chroot)
    assert tree == {
        chroot: Node(None, 0, 0),
        f"{chroot}/null": Node(None, 0, 0),
        f"{chroot}/empty": Node(None, 1, 0),
    }


async def test_missing_parents_are_made_persistent_and_null(zookeeper: ZooKeeperServer, chroot: str) -> None:
    async with open_zookeeper(zookeeper, chroot) as zk:
        await zk.create("/brokers/ids/0", b"x", ephemeral=True, parents=True)
        assert await zk.get("/brokers") == await zk.get("/brokers/ids") == Node(None, 0, 0)
        assert await zk.get("/brokers/ids/0") == Node(b"x", 0, owner=zk.session_id)
        assert zk.session_id != 0


async def test_racing_creators_of_the_same_parents_all_succeed(zookeeper: ZooKeeperServer, chroot: str) -> None:
    async with open_zookeeper(zookeeper, chroot) as one, open_zookeeper(zookeeper, chroot) as two:
        async with anyio.create_task_group() as tasks:
            for n in range(20):
                zk = (one, two)[n % 2]
                tasks.start_soon(partial(zk.create, f"/a/b/c/{n}", None, parents=True))
        assert await one.children("/a/b/c") == sorted(map(str, range(20)))


async def test_only_a_change_of_a_folders_children_changes_its_number(zookeeper: ZooKeeperServer, chroot: str) -> None:
    async with open_zookeeper(zookeeper, chroot) as zk:
        assert await zk.last_child_change("/f") is None
        await zk.create("/f/a", b"", parents=True)
        changes = [await zk.last_child_change("/f")]
        await zk.set("/f/a", b"x")
        await zk.set("/f", b"x")
        assert await zk.last_child_change("/f") == changes[0]
        await zk.create("/f/b", b"")
        changes.append(await zk.last_child_change("/f"))
        await zk.delete("/f/b")
        changes.append(await zk.last_child_change("/f"))
        assert len(set(changes)) == 3


async def test_ephemeral_nodes_end_with_their_session(zookeeper: ZooKeeperServer, chroot: str) -> None:
    async with open_zookeeper(zookeeper, chroot) as zk:
        await zk.create("/e", b"", ephemeral=True)
        assert f"{chroot}/e" in zookeeper.tree(chroot)
    assert f"{chroot}/e" not in zookeeper.tree(chroot)


async def test_each_kind_of_change_is_told_once_to_who_watches(zookeeper: ZooKeeperServer, chroot: str) -> None:
    async with open_zookeeper(zookeeper, chroot) as zk:
        events = zk.events()
        assert await anext(events) == CONNECTED
        assert await zk.get("/a", watch=True) is None
        assert await zk.children("/b", watch=True) is None
        zookeeper.create(f"{chroot}/a", b"")
        assert await anext(events) == NodeEvent(NodeChange.CREATED, "/a")
        zookeeper.create(f"{chroot}/b", b"")
        assert await anext(events) == NodeEvent(NodeChange.CREATED, "/b")

        await zk.get("/a", watch=True)
        zookeeper.set(f"{chroot}/a", b"1")
        assert await anext(events) == NodeEvent(NodeChange.CHANGED, "/a")
        zookeeper.set(f"{chroot}/a", b"2")  # nobody watches: one-shot

        assert await zk.children("/b", watch=True) == []
        zookeeper.create(f"{chroot}/b/c", b"")
        assert await anext(events) == NodeEvent(NodeChange.CHILDREN, "/b")

        await zk.get("/a", watch=True)
        await zk.children("/a", watch=True)
        zookeeper.delete(f"{chroot}/a")
        assert await anext(events) == NodeEvent(NodeChange.DELETED, "/a")
        assert await zk.exists("/", watch=True)


async def test_a_change_is_never_lost_between_its_event_and_the_next_read(
    zookeeper: ZooKeeperServer, chroot: str
) -> None:
    """A reader that re-arms with every read ends with the last value, however the writes fall."""
    async with open_zookeeper(zookeeper, chroot) as reader, open_zookeeper(zookeeper, chroot) as writer:
        await writer.create("/n", b"0")
        events = reader.events()
        async with anyio.create_task_group() as tasks:

            async def write() -> None:
                for n in range(1, 101):
                    await writer.set("/n", b"%d" % n)

            tasks.start_soon(write)
            with anyio.fail_after(20):
                async for _ in events:
                    node = await reader.get("/n", watch=True)
                    if node and node.data == b"100":
                        break


async def test_a_missing_chroot_is_a_configuration_error(zookeeper: ZooKeeperServer, chroot: str) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        async with open_zookeeper(zookeeper, f"{chroot}/nowhere"):
            pass


async def test_digest_users_keep_strangers_from_their_nodes(zookeeper: ZooKeeperServer, chroot: str) -> None:
    user = [("digest", "user:secret")]
    async with open_zookeeper(zookeeper, chroot, auth=user) as zk:
        await zk.create("/mine/too", b"x", parents=True)
        assert await zk.get("/mine/too") == Node(b"x", 0, 0)
        async with open_zookeeper(zookeeper, chroot) as stranger:
            for refused in (stranger.get("/mine"), stranger.set("/mine/too", b""), stranger.create("/mine/x", b"")):
                with pytest.raises(ConfigError, match="credentials"):
                    await refused
            await stranger.create("/open", b"")
        await zk.set("/open", b"for the world")


async def test_an_unknown_kind_of_credentials_is_a_configuration_error(zookeeper: ZooKeeperServer, chroot: str) -> None:
    with pytest.raises(ConfigError, match="credentials"):
        async with open_zookeeper(zookeeper, chroot, auth=[("riddle", "speak friend")]):
            pass


@pytest.mark.parametrize("hosts", ["", ":x", "127.0.0.1:port"])
async def test_hosts_that_are_none_are_a_configuration_error(hosts: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        ZooKeeper(hosts)


async def test_a_host_without_address_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_address(*_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    limit, zk = TimeLimit(20.5, monkeypatch), ZooKeeper("no.such.host.invalid:1", connect_timeout=20.5)
    monkeypatch.setattr(socket, "getaddrinfo", no_address)  # a real look-up may take long

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end_once_warned, limit, zk)
        with pytest.raises(
            Unreachable, match=r"cannot connect to no\.such\.host\.invalid:1: zookeeper: Cannot resolve"
        ):
            async with zk:
                pass
