"""The commands of administration against brokers of today, where Kafka's own tools show the same state."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
import pytest
from click.testing import CliRunner

import odradek as od
from odradek.cli import users
from odradek.cli.app import cli, run
from odradek.testing import KafkaCluster

from .conftest import jsons

pytestmark = pytest.mark.timeout(300)

TOOLS = {
    "acls": "org.apache.kafka.tools.AclCommand",
    "configs": "kafka.admin.ConfigCommand",
}


class Output(NamedTuple):
    """What a command printed."""

    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Its lines of JSON."""
        return jsons(self.out)


Run = Callable[..., Output]


@pytest.fixture(scope="module")
def brokers() -> Iterator[KafkaCluster]:
    """Brokers with an authorizer; users log in at one of their listeners."""
    config = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "true",
        "auto.leader.rebalance.enable": "false",
    }
    with KafkaCluster(size=2, listeners=("PLAINTEXT", "SASL_SSL"), config=config) as cluster:
        yield cluster


@pytest.fixture
def odradek(brokers: KafkaCluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command that must exit with `code`."""
    monkeypatch.setenv("ODRADEK_CLUSTER", f"kafka://{brokers.bootstrap_of('PLAINTEXT')}")

    def command(*arguments: str, code: int = 0) -> Output:
        capfd.readouterr()
        assert run(arguments) == code, capfd.readouterr()
        return Output(*capfd.readouterr())

    return command


def tool(brokers: KafkaCluster, name: str, *arguments: str) -> str:
    """Run one of Kafka's tools and return what it printed."""
    ran = brokers.brokers[0].java_tool(
        TOOLS[name], "--bootstrap-server", brokers.bootstrap_of("PLAINTEXT").partition(",")[0], *arguments
    )
    assert ran.returncode == 0, (ran.stdout, ran.stderr)
    return ran.stdout


def until(condition: Callable[[], object]) -> None:
    """Wait for brokers, which hear of changes a moment after they were accepted."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# ---- the cluster --------------------------------------------------------------------------------------------


def test_the_cluster_its_quorum_and_its_directories_are_described(odradek: Run, brokers: KafkaCluster) -> None:
    rows = odradek("cluster", "describe", "--json").rows
    assert [(row["broker"], row["address"]) for row in rows] == [
        (each.broker_id, each.bootstrap_of("PLAINTEXT")) for each in brokers.brokers
    ]
    assert sum(row["controller"] for row in rows) == 1
    assert odradek("cluster", "describe").out.startswith(f"cluster {rows[0]['cluster']}\nbroker  address")
    state, *replicas = odradek("cluster", "quorum", "--json").rows
    assert {row["id"]: row["role"] for row in replicas} == {
        number: "leader" if number == state["leader"] else "voter" for number in (1, 2)
    }
    assert odradek("cluster", "quorum").out.startswith(f"leader {state['leader']}, leader epoch ")
    directories = odradek("cluster", "log-dirs", "2", "--json").rows
    assert [(row["broker"], row["state"]) for row in directories] == [(2, "ok")]
    assert all(0 < row["free"] <= row["total"] for row in directories)


def test_features_are_listed_and_changed_only_with_apply(odradek: Run) -> None:
    def level() -> object:
        rows = odradek("cluster", "features", "--json").rows
        return next(row["level"] for row in rows if row["feature"] == "share.version")

    before = level()
    change = ("cluster", "features", "--set", "share.version=0")
    assert "INVALID_UPDATE_VERSION" in odradek(*change, code=1).err
    printed = odradek(*change, "--downgrade", "--json")
    assert printed.rows == [{"feature": "share.version", "before": before, "after": 0}]
    assert printed.err == "nothing was changed: add --apply\n" and level() == before
    odradek(*change, "--downgrade", "--apply")
    until(lambda: level() is None)
    odradek("cluster", "features", "--set", f"share.version={before}", "--apply")


def test_configurations_of_one_broker_and_of_all_are_changed(odradek: Run) -> None:
    entry = "log.cleaner.threads"

    def own(*which: str) -> dict[str, tuple[str, str]]:
        rows = odradek("cluster", "configs", *which, "--json").rows
        return {row["entry"]: (row["value"], row["source"]) for row in rows}

    dry = odradek("cluster", "configs", "--set", f"{entry}=2", "--json")
    assert dry.rows == [{"broker": "all", "entry": entry, "before": "default", "after": "2"}]
    assert "add --apply" in dry.err and entry not in own()
    assert odradek("cluster", "configs", "--set", f"{entry}=2", "--apply", "--json").rows == dry.rows
    until(lambda: own().get(entry) == ("2", "all_brokers"))
    odradek("cluster", "configs", "2", "--set", f"{entry}=1", "--apply")
    until(lambda: own("2").get(entry) == ("1", "broker"))
    until(lambda: own("1").get(entry) == ("2", "all_brokers"))
    assert odradek("cluster", "configs", "2", "1", "--delete", entry, "--apply", "--json").rows == [
        {"broker": 2, "entry": entry, "before": "1", "after": "default"},
        {"broker": 1, "entry": entry, "before": "default", "after": "default"},
    ]
    odradek("cluster", "configs", "--delete", entry, "--apply")
    until(lambda: entry not in own() and entry not in own("2"))
    assert "2" in own("2", "--all")["num.network.threads"] and len(own("2", "--all")) > len(own("2"))
    assert own("1")["ssl.key.password"][0] == "(secret)"
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_eve="visible";'
    (row,) = odradek(
        *("cluster", "configs", "1", "--json"),
        *("--set", f"listener.name.sasl_ssl.plain.sasl.jaas.config={login}"),
    ).rows
    assert row["after"] == "(secret)"


def test_a_configuration_that_brokers_refuse_is_not_changed(odradek: Run) -> None:
    refused = odradek("cluster", "configs", "1", "--set", "log.cleaner.threads=many", "--apply", code=1)
    assert refused.err.startswith("odradek: configuration of '1'") and refused.out.splitlines()[1:] == []
    assert "BROKER_NOT_AVAILABLE" in odradek("cluster", "configs", "77", code=1).err


# ---- topics and replicas ------------------------------------------------------------------------------------


def test_a_topic_is_altered_by_increments_and_its_records_are_deleted(
    odradek: Run, brokers: KafkaCluster, topic: str
) -> None:
    brokers.create_topic(topic, 2, 1)
    assert odradek("topic", "alter", topic, "--append", "cleanup.policy=compact", "--apply", "--json").rows == [
        {"topic": topic, "entry": "cleanup.policy", "before": "default", "after": "+compact"}
    ]

    def policy() -> str:
        rows = odradek("topic", "describe", topic, "--configs", "--json").rows
        return str(next(row["value"] for row in rows if row["entry"] == "cleanup.policy"))

    until(lambda: policy() == "delete,compact")
    odradek("topic", "alter", topic, "--subtract", "cleanup.policy=compact", "--apply")
    until(lambda: policy() == "delete")

    async def write() -> None:
        async with od.connect(f"kafka://{brokers.bootstrap_of('PLAINTEXT')}") as k, k.producer() as producer:
            await producer.send_many(topic, [b"x"] * 5, partition=1)

    od.run(write)
    (empty, newest) = odradek("offsets", topic, "--of", "max-timestamp", "--json").rows
    assert (empty["position"], newest["partition"]) == (None, 1)
    assert 0 <= newest["position"] < 5 and newest["timestamp"] > 0
    delete = ("topic", "delete-records", f"{topic}/1", "--json")
    planned = [{"topic": topic, "partition": 1, "begins": 0, "will_begin": 3}]
    dry = odradek(*delete, "--before", "3")
    assert dry.rows == planned and dry.err == "nothing was deleted: add --apply\n"
    assert odradek(*delete, "--before", "3", "--apply").rows == planned
    assert odradek(*delete, "--before", "1").rows[0]["will_begin"] == 3
    assert f"{topic}/1: 6 is beyond the end, 5" in odradek(*delete, "--before", "6", "--apply", code=1).err
    assert "no partition" in odradek("topic", "delete-records", f"{topic}/", "--before", "end", "--apply", code=1).err
    assert odradek("topic", "delete-records", topic, "--before", "end", "--apply", "--json").rows == [
        {"topic": topic, "partition": 0, "begins": 0, "will_begin": 0},
        {"topic": topic, "partition": 1, "begins": 3, "will_begin": 5},
    ]


def test_replicas_move_as_a_plan_says_and_the_printed_command_moves_them_back(
    odradek: Run, brokers: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    brokers.create_topic(topic, 1, 1)
    (before,) = odradek("topic", "describe", topic, "--json").rows
    (old,) = before["replicas"]
    new = 3 - old
    plan = tmp_path / "plan.json"
    parts = [{"topic": topic, "partition": 0, "replicas": [new, old], "log_dirs": ["any", "any"]}]
    plan.write_text(json.dumps({"version": 1, "partitions": parts}))
    reassign = ("cluster", "reassign", str(plan))
    dry = odradek(*reassign, "--json")
    assert dry.rows == [{"topic": topic, "partition": 0, "before": [old], "after": [new, old]}]
    assert dry.err == "nothing was changed: add --apply\n"
    assert odradek("topic", "describe", topic, "--json").rows == [before]
    *moved, undo = odradek(*reassign, "--apply", "--wait", "--json").rows
    assert moved == dry.rows

    def described() -> dict[str, Any]:
        (row,) = odradek("topic", "describe", topic, "--json").rows
        return row

    until(lambda: set(described()["in_sync"]) == {old, new})
    assert described()["leader"] == old and described()["state"] == "ok"
    elect = ("cluster", "elect", topic, "--json")
    (row,) = odradek(*elect).rows
    assert (row["leader"], row["preferred"], row["elected"]) == (old, new, False)
    (row,) = odradek(*elect, "--apply").rows
    assert row["elected"] is True
    until(lambda: described()["leader"] == new)
    assert odradek(*elect, "--apply").rows == odradek(*elect, "--unclean").rows == []
    for done in (odradek(*elect), odradek(*reassign), odradek(*reassign, "--cancel")):
        assert done.err == "there is nothing to do\n"
    write, _, command = undo["undo"].partition(" | ")
    back = CliRunner().invoke(cli, shlex.split(command)[1:], input=shlex.split(write)[1])
    assert "undo: " in back.output
    until(lambda: described()["replicas"] == [old])


def test_the_leaders_of_the_brokers_own_topics_are_elected_as_well(
    odradek: Run, brokers: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    brokers.create_topic(topic, 1, 1)
    odradek("seek", "g", "--to", "beginning", "--topic", topic, "--apply")
    offsets = ("topic", "describe", "__consumer_offsets", "--json")
    old = odradek(*offsets).rows[0]["leader"]
    new = 3 - old
    plan = tmp_path / "plan.json"
    parts = [{"topic": "__consumer_offsets", "partition": 0, "replicas": [new, old]}]
    plan.write_text(json.dumps({"partitions": parts}))
    odradek("cluster", "reassign", str(plan), "--apply", "--wait")
    (row,) = odradek("cluster", "elect", "--json", "--apply").rows
    assert (row["topic"], row["leader"], row["preferred"], row["elected"]) == ("__consumer_offsets", old, new, True)
    until(lambda: odradek(*offsets).rows[0]["leader"] == new)


def test_a_move_that_takes_long_is_shown_and_cancelled(
    odradek: Run, brokers: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    """The leader may send almost nothing: the new replica does not get in sync."""
    brokers.create_topic(topic, 1, 1, config={"leader.replication.throttled.replicas": "*"})
    (before,) = odradek("topic", "describe", topic, "--json").rows
    (old,) = before["replicas"]
    new = 3 - old
    odradek("cluster", "configs", str(old), "--set", "leader.replication.throttled.rate=1", "--apply")

    async def write() -> None:
        async with od.connect(f"kafka://{brokers.bootstrap_of('PLAINTEXT')}") as k, k.producer() as producer:
            await producer.send_many(topic, [b"x" * 900_000] * 8, partition=0)

    od.run(write)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "replicas": [new]}]}))
    odradek("cluster", "reassign", str(plan), "--apply")
    (row,) = odradek("cluster", "reassign", "--json").rows
    assert row["topic"] == topic and set(row["replicas"]) == {old, new}
    assert (row["adding"], row["removing"], row["missing"]) == ([new], [old], [new])
    until(lambda: odradek("topic", "describe", topic, "--unhealthy", "--json", code=1).rows)
    (row,) = odradek("topic", "describe", "--unhealthy", "--json", code=1).rows
    assert (row["topic"], row["state"], row["in_sync"]) == (topic, "under-replicated", [old])
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "replicas": [new, old]}]}))
    assert odradek("cluster", "reassign", str(other), "--json").rows[0]["before"] == [new]
    cancel = ("cluster", "reassign", str(plan), "--cancel", "--json")
    (row,) = odradek(*cancel).rows
    assert row["cancelled"] is False
    (row,) = odradek(*cancel, "--apply").rows
    assert row["cancelled"] is True
    until(lambda: odradek("cluster", "reassign", "--json").rows == [])
    until(lambda: odradek("topic", "describe", topic, "--json").rows == [before])
    odradek("cluster", "configs", str(old), "--delete", "leader.replication.throttled.rate", "--apply")
    (row,) = odradek("cluster", "log-dirs", "--topic", topic, "--json").rows
    assert row["broker"] == old and row["size"] > 7_000_000 and row["future"] is False


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("{", "plan.json:1: not JSON"),
        ("[]", "partitions: must be a list of moves"),
        ('{"partitions": []}', "partitions: must be a list of moves"),
        ('{"partitions": [1]}', "partitions[0]: must be an object"),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1]}, {}]}',
            "partitions[1]: topic: must be",
        ),
        ('{"partitions": [{"topic": "t", "partition": "0", "replicas": [1]}]}', "partition: must be a number"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": []}]}', "replicas: must be a list"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [true]}]}', "replicas: must be a list"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 1]}]}', "replicas: a broker comes twice"),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["/d"]}]}',
            "log_dirs: must be",
        ),
    ],
)
def test_a_mistake_of_a_plan_is_told_with_its_place(odradek: Run, tmp_path: Path, text: str, mistake: str) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(text)
    assert mistake in odradek("cluster", "reassign", str(plan), "--apply", code=2).err


def test_a_plan_for_brokers_or_partitions_that_are_not_there_moves_nothing(
    odradek: Run, brokers: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    brokers.create_topic(topic, 1, 1)
    plan = tmp_path / "plan.json"

    def refused(partition: int, broker: int) -> str:
        parts = [
            {"topic": topic, "partition": at, "replicas": [number]} for at, number in ((0, 1), (partition, broker))
        ]
        plan.write_text(json.dumps({"partitions": parts}))
        return odradek("cluster", "reassign", str(plan), "--apply", code=1).err

    assert "no broker has the id 77" in refused(1, 77)
    assert f"there is no partition {topic}/5" in refused(5, 1)
    plan.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "replicas": [1]}] * 2}))
    assert f"{topic}/0 comes twice" in odradek("cluster", "reassign", str(plan), code=2).err


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (("acl", "add", "-p", "User:dan", "-o", "read", "-r", "topic:d"), ()),
        (("quotas", "remove", "producer_byte_rate", "--user", "dan"), ()),
        (("cluster", "configs", "--delete", "log.cleaner.threads"), ()),
        (("cluster", "features", "--set", "share.version=1"), ()),
        (("topic", "alter", "same", "-c", "retention.ms=3600000"), ()),
        (("topic", "delete-records", "same", "--before", "end"), ()),
        (("seek", "of-same", "--topic", "same", "--to", "end"), ("seek", "of-same", "--shift", "0")),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_dry_run_that_would_change_nothing_says_so(
    odradek: Run, change: tuple[str, ...], again: tuple[str, ...]
) -> None:
    if "same" in change and not odradek("ls", "--json").out.count('"same"'):
        odradek("topic", "create", "same", "-p", "1", "-r", "1")
    odradek(*change, "--apply")
    until(lambda: odradek(*(again or change)).err == "there is nothing to do\n")


# ---- access -------------------------------------------------------------------------------------------------


def test_entries_of_access_control_are_added_listed_and_removed_and_the_tool_agrees(
    odradek: Run, brokers: KafkaCluster
) -> None:
    who = ("--principal", "User:carol")
    add = ("acl", "add", *who, "-o", "read", "-o", "describe", "-r", "group:orders-", "--pattern", "prefixed", "--json")
    dry = odradek(*add)
    assert dry.err == "nothing was added: add --apply\n" and odradek("acl", "list", *who, "--json").rows == []
    assert [(row["operation"], row["pattern"], row["host"]) for row in dry.rows] == [
        ("read", "prefixed", "*"),
        ("describe", "prefixed", "*"),
    ]
    assert odradek(*add, "--apply").rows == dry.rows
    odradek("acl", "add", *who, "-o", "all", "-r", "cluster", "--permission", "deny", "--host", "10.0.0.1", "--apply")
    until(lambda: len(odradek("acl", "list", *who, "--json").rows) == 3)
    listed = tool(brokers, "acls", "--list", "--principal", "User:carol")
    assert re.search(r"GROUP, name=orders-, patternType=PREFIXED", listed)
    assert re.search(r"host=10\.0\.0\.1, operation=ALL, permissionType=DENY", listed)
    matching = odradek("acl", "list", "-r", "group:orders-7", "--pattern", "match", "-o", "read", "--json").rows
    assert [row["principal"] for row in matching] == ["User:carol"]
    assert odradek("acl", "list", "-r", "group:orders-7", "--json").rows == []
    nothing = odradek("acl", "remove", *who, "-r", "group:orders-", "--json")  # literally
    assert nothing.rows == [] and nothing.err == "there is nothing to do\n"
    remove = ("acl", "remove", *who, "-r", "group", "--json")
    dry = odradek(*remove)
    assert len(dry.rows) == 2 and dry.err == "nothing was removed: add --apply\n"
    assert odradek(*remove, "--apply").rows == dry.rows
    until(lambda: [row["resource"] for row in odradek("acl", "list", *who, "--json").rows] == ["cluster"])
    odradek("acl", "remove", *who, "--apply")
    until(lambda: odradek("acl", "list", *who, "--json").rows == [])


def test_a_user_logs_in_with_the_password_that_was_set_until_it_is_removed_and_the_tool_agrees(
    odradek: Run, brokers: KafkaCluster, tmp_path: Path
) -> None:
    secret = tmp_path / "bob.txt"
    secret.write_text("of bob\n")
    put = ("users", "set", "bob", "--mechanism", "SCRAM-SHA-256", "--json")
    dry = odradek(*put)
    assert dry.rows == [
        {"user": "bob", "mechanism": "SCRAM-SHA-256", "iterations_before": None, "iterations": 8192}
    ] and dry.err.endswith("add --apply\n")
    nothing = odradek("users", "remove", "bob", code=1).err
    assert "no such password" in nothing and "add --apply" not in nothing
    odradek(*put, "--password-file", str(secret), "--apply")
    listed = [{"user": "bob", "mechanism": "SCRAM-SHA-256", "iterations": 8192}]
    until(lambda: [row for row in odradek("users", "list", "--json").rows if row["user"] == "bob"] == listed)
    odradek("quotas", "set", "producer_byte_rate=1000000", "request_percentage=12.5", "--user", "bob", "--apply")
    until(lambda: len(odradek("quotas", "list", "--user", "bob", "--json").rows) == 2)
    described = tool(brokers, "configs", "--describe", "--entity-type", "users", "--entity-name", "bob")
    assert "SCRAM-SHA-256=iterations=8192" in described
    assert "producer_byte_rate=1000000" in described and "request_percentage=12.5" in described
    odradek("quotas", "remove", "producer_byte_rate", "request_percentage", "--user", "bob", "--apply")
    log_in = (
        *("-b", brokers.bootstrap_of("SASL_SSL"), "--ssl-cafile", str(brokers.brokers[0].certificates.ca_file)),
        *("--sasl-mechanism", "SCRAM-SHA-256", "--sasl-username", "bob", "--sasl-password-file", str(secret)),
    )
    assert len(odradek("cluster", "describe", "--json", *log_in).rows) == 2
    (row,) = odradek("users", "remove", "bob", "--apply", "--json").rows
    assert row == {"user": "bob", "mechanism": "SCRAM-SHA-256", "removed": True}
    until(lambda: "bob" not in odradek("users", "list").out)
    assert "authentication with SCRAM-SHA-256 failed" in odradek("cluster", "describe", *log_in, code=1).err
    without = log_in[:4]
    assert "use a URL with +sasl, or --sasl-mechanism" in odradek("cluster", "describe", *without, code=1).err
    assert "set --ssl-cafile [or ODRADEK_SSL_CAFILE" in odradek("ls", *log_in[:2], "--tls", code=1).err


def test_a_password_comes_from_the_environment_or_a_prompt_and_never_from_arguments(
    odradek: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = ["users", "set", "dora", "--apply"]
    assert "no password: give --password-file FILE, or set ODRADEK_NEW_PASSWORD" in odradek(*put, code=2).err
    monkeypatch.setattr(users, "_is_terminal", lambda: True)
    mistyped = CliRunner().invoke(cli, put, input="one\ntwo\n")
    assert mistyped.exit_code != 0 and "dora" not in odradek("users", "list").out
    typed = CliRunner().invoke(cli, put, input="typed\ntyped\n")
    assert typed.exit_code == 0 and "typed" not in typed.output
    monkeypatch.setenv("ODRADEK_NEW_PASSWORD", "of environment")
    until(lambda: "dora" in odradek("users", "list").out)
    (row,) = odradek(*put, "--iterations", "4096", "--json").rows
    assert (row["iterations_before"], row["iterations"]) == (8192, 4096)
    odradek("users", "remove", "dora", "--apply")


def test_quotas_are_set_listed_and_removed(odradek: Run) -> None:
    put = ("quotas", "set", "producer_byte_rate=1000000", "request_percentage=12.5", "--user", "erin", "--json")
    dry = odradek(*put)
    assert dry.rows == [
        {
            "user": "erin",
            "client_id": None,
            "ip": None,
            "quota": "producer_byte_rate",
            "before": None,
            "after": 1000000,
        },
        {"user": "erin", "client_id": None, "ip": None, "quota": "request_percentage", "before": None, "after": 12.5},
    ]
    assert odradek("quotas", "list", "--user", "erin", "--json").rows == []
    odradek(*put, "--apply")
    odradek("quotas", "set", "consumer_byte_rate=5", "--default", "user", "--client-id", "c", "--apply")
    until(lambda: len(odradek("quotas", "list", "--user", "erin", "--json").rows) == 2)
    until(lambda: re.search(r"<default>\s+c\s+-\s+consumer_byte_rate\s+5", odradek("quotas", "list").out))
    (row,) = odradek("quotas", "remove", "producer_byte_rate", "--user", "erin", "--json").rows
    assert (row["before"], row["after"]) == (1000000, None)
    odradek("quotas", "remove", "producer_byte_rate", "request_percentage", "--user", "erin", "--apply")
    odradek("quotas", "remove", "consumer_byte_rate", "--default", "user", "--client-id", "c", "--apply")
    until(lambda: odradek("quotas", "list", "--json").rows == [])
    assert "nonsense" in odradek("quotas", "set", "nonsense=1", "--user", "erin", code=1).err


# ---- transactions -------------------------------------------------------------------------------------------


@contextmanager
def open_transaction(url: str, topic: str, name: str) -> Iterator[None]:
    """A transaction that is open for the duration of a block, in another thread."""
    opened, leave = Event(), Event()

    async def write() -> None:
        async with od.connect(url) as k, k.producer(transactional_id=name) as producer:
            with suppress(od.OdradekError):  # it may have been aborted
                async with producer.transaction():
                    await producer.send(topic, b"x", partition=0)
                    opened.set()
                    await anyio.to_thread.run_sync(leave.wait)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(anyio.run, write)
        try:
            until(lambda: opened.is_set() or running.done())
            yield
        finally:
            leave.set()
        running.result()


def test_an_open_transaction_is_listed_described_and_aborted(odradek: Run, brokers: KafkaCluster, topic: str) -> None:
    brokers.create_topic(topic, 2, 1)
    producers = ("transactions", "producers", topic, "--open", "--json")
    with open_transaction(f"kafka://{brokers.bootstrap_of('PLAINTEXT')}", topic, f"{topic}-id"):
        (row,) = odradek("transactions", "list", "--state", "Ongoing", "--pattern", f"{topic}.*", "--json").rows
        number = row["producer_id"]
        assert row["transactional_id"] == f"{topic}-id"
        (row,) = odradek("transactions", "describe", f"{topic}-id", "--json").rows
        assert (row["state"], row["producer_id"], row["partitions"]) == ("Ongoing", number, [f"{topic}/0"])
        (row,) = odradek(*producers).rows
        assert (row["partition"], row["producer_id"], row["transaction_start"]) == (0, number, 0)
        abort = ("transactions", "abort", f"{topic}/0", "--producer-id", str(number), "--json")
        dry = odradek(*abort)
        assert dry.rows == [
            {"topic": topic, "partition": 0, "producer_id": number, "transaction_start": 0, "aborted": False}
        ]
        assert dry.err == "nothing was aborted: add --apply\n" and len(odradek(*producers).rows) == 1
        assert odradek(*abort, "--apply").rows == [{**dry.rows[0], "aborted": True}]
        until(lambda: odradek(*producers).rows == [])
        assert "has no open transaction here" in odradek(*abort, code=1).err
    assert "TRANSACTIONAL_ID_NOT_FOUND" in odradek("transactions", "describe", f"{topic}-no", code=1).err


# ---- wrong input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("cluster configs x", "'x' is not a valid integer"),
        ("cluster configs --set a", "expected NAME=VALUE"),
        ("cluster configs --set a=1 --delete a", "several changes of a"),
        ("cluster features --set f=high", "expected FEATURE=LEVEL"),
        ("cluster features --set f=1 --unsafe", "--unsafe needs --downgrade"),
        ("cluster reassign --wait --apply", "--wait goes with PLAN and --apply"),
        ("cluster reassign no-such-file", "No such file"),
        ("topic alter t", "nothing to alter"),
        ("topic alter t --append cleanup.policy", "expected NAME=VALUE"),
        ("topic describe --configs --unhealthy", "cannot be combined"),
        ("topic delete-records t", "--before"),
        ("topic delete-records t --before -5", "expected end, a number or @TIME"),
        ("topic delete-records t --before beginning", "expected end, a number or @TIME"),
        ("offsets t --at -1h --of max-timestamp", "exclude each other"),
        ("acl add -p User:a -o read", "are required"),
        ("acl add -p a -o read -r topic:t", "'a': expected TYPE:NAME"),
        ("acl add -p User:a -o read -r topics:t", "the type must be one of topic, group"),
        ("acl add -p User:a -o read -r topic", "'topic': expected TYPE:NAME"),
        ("acl add -p User:a -o reed -r topic:t", "'reed' is not one of"),
        ("acl remove --apply", "which entries?"),
        ("acl remove -r topic: --apply", "'topic:': the name is empty"),
        ("acl add -p User:a -o read -r topic:", "'topic:': the name is empty"),
        ("acl add -p User:a -o read -r cluster:mine", "'cluster:mine': the only name of a cluster is kafka-cluster"),
        ("acl list -r cluster:mine", "'cluster:mine': the only name of a cluster is kafka-cluster"),
        ("acl remove --pattern match --apply", "which entries?"),
        ("users remove", "Missing argument"),
        ("users set a --iterations 1", "not in the range"),
        ("quotas set a=1", "whose quotas?"),
        ("quotas set a=-1 --user u", "expected NAME=VALUE, a number"),
        ("quotas set a=nan --user u", "expected NAME=VALUE, a number"),
        ("quotas list --user u --default user", "cannot be combined"),
        ("transactions abort t --producer-id 1", "expected TOPIC/PARTITION"),
        ("transactions abort t/0", "--producer-id"),
    ],
)
def test_wrong_usage_says_what_is_expected(
    arguments: str, said: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ODRADEK_CLUSTER", "kafka://127.0.0.1:1")
    assert run(arguments.split()) == 2
    assert said in capfd.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        "cluster quorum",
        "cluster features",
        "cluster features --set f=1",
        "cluster configs",
        "cluster configs --set a=1",
        "cluster log-dirs",
        "cluster elect",
        "cluster reassign",
        "cluster reassign --cancel --apply",
        "topic describe t",
        "topic describe",
        "topic delete-records t --before end",
        "topic delete t",
        "group delete g",
        "acl list",
        "acl add -p User:a -o read -r topic:t",
        "acl remove -p User:a --apply",
        "users list",
        "users set a",
        "users remove a --apply",
        "quotas list",
        "quotas set a=1 --user u",
        "transactions list",
        "transactions describe a",
    ],
)
def test_what_0_7_cannot_do_is_refused_with_what_it_needs(
    arguments: str, cluster: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments.split()) == 1
    printed = capfd.readouterr()
    assert "is not supported here: it needs" in printed.err and printed.out == ""
    assert "needs Kafka 0.10.1" not in printed.err, "each came with a release of its own"


def test_0_7_refuses_what_is_about_topics_that_it_has(
    cluster: str, put: Callable[..., object], topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    put(topic, b"x\n")
    for arguments in (
        f"cluster elect {topic} --apply",
        f"topic describe {topic}",
        f"transactions producers {topic}",
        f"transactions abort {topic}/7-0 --producer-id 1",
    ):
        assert run(arguments.split()) == 1
        assert "is not supported here: it needs" in capfd.readouterr().err
    assert run(["cluster", "describe", "--json"]) == 0
    (row,) = jsons(capfd.readouterr().out)
    assert (row["broker"], row["cluster"], row["controller"]) == (7, None, None)
