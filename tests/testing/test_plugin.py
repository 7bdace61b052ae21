"""The pytest plugin, as a user's own test run sees it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)  # of several programs in Java, which a loaded machine starts slowly

USER_TESTS = """
import socket

from odradek.testing import FaultProxy, ZooKeeperServer

seen = []

def test_one(odradek_zookeeper, odradek_chroot):
    assert isinstance(odradek_zookeeper, ZooKeeperServer)
    host, slash, chroot = odradek_chroot.partition("/")
    assert host == odradek_zookeeper.address
    assert list(odradek_zookeeper.tree(slash + chroot)) == [slash + chroot]
    seen.append((odradek_zookeeper, odradek_chroot))

def test_two_shares_the_server_and_has_a_chroot_of_its_own(odradek_zookeeper, odradek_chroot):
    assert seen[0][0] is odradek_zookeeper
    assert seen[0][1] != odradek_chroot

def test_three_has_brokers_and_a_proxy(odradek_zookeeper, odradek_chroot, odradek_kafka07_broker, odradek_fault_proxy):
    one, two = odradek_kafka07_broker(broker_id=1), odradek_kafka07_broker(broker_id=2)
    chroot = "/" + odradek_chroot.partition("/")[2]
    ids = odradek_zookeeper.tree(chroot + "/brokers/ids")
    assert {path.rpartition("/")[2] for path in ids} == {"ids", "1", "2"}
    proxy = odradek_fault_proxy(one.host, one.port)
    assert isinstance(proxy, FaultProxy)
    socket.create_connection((proxy.host, proxy.port)).close()
"""


FAILING_TEST = """
import time

def test_one(odradek_kafka_broker):
    broker = odradek_kafka_broker("0.8.2.2")
    while "[Kafka Server 1], started" not in broker.log_path.read_text():  # it may answer before it says so
        time.sleep(0.05)
    assert broker.port == 0
"""


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "COV"))}
    return subprocess.run([sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True)


def test_the_fixtures_work_in_a_users_test_run(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(USER_TESTS)
    plugins = ("-p", "no:randomly", "-p", "no:asyncio", "-p", "no:cacheprovider")
    done = run("-m", "pytest", "-q", *plugins, "-W", "error", cwd=tmp_path)
    assert "3 passed" in done.stdout, done.stdout + done.stderr


def test_the_report_of_a_failed_test_names_the_logs_of_its_brokers(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(FAILING_TEST)
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", cwd=tmp_path)
    assert "1 failed" in done.stdout, done.stdout + done.stderr
    assert "[Kafka Server 1], started" in done.stdout
    kept = re.search(r"<KafkaBroker 0\.8\.2\.2 .*, log kept: (\S+)", done.stdout)
    assert kept
    log = Path(kept[1])
    assert "[Kafka Server 1], started" in log.read_text()
    log.unlink()


def test_loading_the_plugin_imports_nothing_of_odradek(tmp_path: Path) -> None:
    """Every pytest run in the environment loads it, whatever the project and whichever extras are there."""
    script = "import sys, pytest_odradek; print([name for name in sys.modules if name.startswith('odradek')])"
    done = run("-c", script, cwd=tmp_path)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_names_are_found_when_asked_for_and_unknown_ones_are_errors(tmp_path: Path) -> None:
    script = "import odradek.testing as t; print([getattr(t, n).__name__ for n in t.__all__]); t.Nope"
    done = run("-c", script, cwd=tmp_path)
    assert "'FaultProxy'" in done.stdout
    assert "module 'odradek.testing' has no attribute 'Nope'" in done.stderr
