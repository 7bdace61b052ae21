"""The real ZooKeeper process: started, killed, paused, restarted, never left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import psutil
import pytest

from odradek.errors import ConfigError, NodeExists, NoNode, ZooKeeperError
from odradek.io.zookeeper import Node
from odradek.testing import ZooKeeperEnsemble, ZooKeeperServer
from odradek.testing.jars import VERSIONS

pytestmark = pytest.mark.timeout(300)  # of several programs in Java, which a loaded machine starts slowly


@pytest.fixture(scope="session")
def running() -> Iterator[Callable[[str], ZooKeeperServer]]:
    """A server of each version, started when first asked for."""
    with ExitStack() as stack:
        yield cache(lambda version: stack.enter_context(ZooKeeperServer(version)))


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    """One that the test may do with as it likes."""
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def cache_of_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for archives of classes."""
    monkeypatch.setattr("odradek.testing.class_archive.cache_directory", lambda: tmp_path)
    return tmp_path / "classes"


def eventually(condition: Callable[[], bool], timeout: float = 30.0) -> bool:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_serves_nodes_and_expires_sessions(
    running: Callable[[str], ZooKeeperServer], version: str
) -> None:
    server = running(version)
    assert eventually(lambda: server.mode() == "standalone")
    server.create("/a/b", b"data")
    server.set("/a/b", None)
    with pytest.raises(NodeExists):
        server.create("/a")
    with server.client() as client:
        client.create("/a/e", b"", ephemeral=True)
        tree = server.tree("/a")
        assert tree == {
            "/a": Node(None, 0, 0),
            "/a/b": Node(None, 1, 0),
            "/a/e": Node(b"", 0, client.session_id),
        }
        assert set(server.tree()) >= {"/", "/a", "/a/b", "/a/e"}
        assert "/zookeeper" not in server.tree()
        server.expire(tree["/a/e"].owner)
        assert set(server.tree("/a")) == {"/a", "/a/b"}
        with pytest.raises(ConnectionResetError):
            client.get("/a")
        server.expire(tree["/a/e"].owner)  # there is nothing left to end
    server.delete("/a")
    assert server.tree("/a") == {}
    with pytest.raises(NoNode):
        server.delete("/a")


def test_data_and_address_survive_a_kill(server: ZooKeeperServer) -> None:
    address = server.address
    server.create("/kept", b"x")
    server.kill()
    assert not server.running
    assert server.mode() == ""
    assert repr(server) == f"<ZooKeeperServer 3.9.5 {address} down>"
    server.start()
    assert server.address == address
    assert server.tree("/kept") == {"/kept": Node(b"x", 0, 0)}
    with pytest.raises(ZooKeeperError, match="started already"):
        server.start()


def test_a_paused_server_answers_nothing_until_resumed(server: ZooKeeperServer) -> None:
    server.pause()
    assert server.mode() == ""
    assert server.running
    server.resume()
    assert eventually(lambda: server.mode() == "standalone")


def test_stop_removes_everything_and_is_idempotent(server: ZooKeeperServer) -> None:
    scratch, process = server._scratch, server._process
    assert scratch and process
    assert scratch.is_dir()
    server.stop()
    server.stop()
    assert not scratch.exists()
    assert not psutil.pid_exists(process.pid)
    with pytest.raises(ZooKeeperError, match="not running"):
        server.pause()


def test_a_data_directory_of_the_users_is_kept(tmp_path: Path) -> None:
    with ZooKeeperServer(data_dir=tmp_path / "data") as server:
        server.create("/kept", None)
        port = server.port
    with ZooKeeperServer(data_dir=tmp_path / "data", port=port) as server:
        assert server.port == port
        assert "/kept" in server.tree()


def test_a_server_that_dies_at_the_start_shows_its_log_and_leaves_nothing() -> None:
    server = ZooKeeperServer(heap="1k")
    with pytest.raises(ZooKeeperError, match=r"does not answer: (?s:.*)heap"):
        server.start()
    assert server._scratch is None
    assert not server.running


def test_a_port_in_use_and_a_missing_java_are_errors_at_once(server: ZooKeeperServer, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="in use"):
        ZooKeeperServer(port=server.port).start()
    broken = ZooKeeperServer(java=tmp_path / "java")
    with pytest.raises(ConfigError, match="the given Java"), broken:
        pass
    broken.stop()


@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGTERM, None])
def test_no_process_and_no_directory_outlives_the_test_process(way: signal.Signals | None) -> None:
    """Killed, or ended without stopping its server: somebody else's exit is what ends the Java process."""
    script = (
        "import sys\n"
        "from odradek.testing import ZooKeeperServer\n"
        "server = ZooKeeperServer()\n"
        "server.start()\n"
        "print(server._process.pid, server._scratch, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid, scratch = parent.stdout.readline().decode().split()
        assert psutil.pid_exists(int(pid))
        if way is not None:
            parent.send_signal(way)
        parent.communicate()
    assert eventually(lambda: not psutil.pid_exists(int(pid)) and not Path(scratch).exists())


@pytest.mark.anyio
async def test_it_starts_and_stops_without_blocking_the_loop() -> None:
    async with ZooKeeperServer() as server:
        assert server.running
    assert not server.running


def test_an_ensemble_elects_another_leader_and_takes_the_old_one_back() -> None:
    with ZooKeeperEnsemble() as ensemble:
        assert ensemble.address == ",".join(server.address for server in ensemble.servers)
        modes = ["follower", "follower", "leader"]
        assert eventually(lambda: sorted(server.mode() for server in ensemble.servers) == modes)
        first = ensemble.leader()
        first.create("/kept", b"x")
        first.kill()
        second = ensemble.leader()
        assert second is not first
        assert second.tree("/kept") == {"/kept": Node(b"x", 0, 0)}
        with second.client() as client:
            client.create("/e", b"", ephemeral=True)
            second.expire(client.session_id)
            assert second.tree("/e") == {}
        first.start()
        assert eventually(lambda: first.mode() == "follower")
        pids = [server._process.pid for server in ensemble.servers if server._process]
    assert len(pids) == 3
    assert not any(map(psutil.pid_exists, pids))


def test_the_first_that_stops_leaves_an_archive_of_its_classes_for_the_next(cache_of_archives: Path) -> None:
    with ZooKeeperServer() as server:
        server.create("/a", b"1")
        assert not cache_of_archives.exists()
    (archive,) = cache_of_archives.iterdir()
    with ZooKeeperServer() as server:
        assert server.tree("/").keys() == {"/"}
        assert server._process is not None
        assert str(archive) in {each.path for each in psutil.Process(server._process.pid).memory_maps()}
    assert list(cache_of_archives.iterdir()) == [archive]
