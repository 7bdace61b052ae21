"""The commands against a broker of today."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable

import pytest

from odradek.cli.app import run
from odradek.testing import KafkaBroker

from .conftest import Command, jsons, put_here

Write = Callable[..., None]
PYTHON = [sys.executable, "-m", "odradek.cli"]


@pytest.fixture(scope="session")
def cluster(odradek_kafka: KafkaBroker) -> str:
    return f"kafka://{odradek_kafka.bootstrap}"


@pytest.fixture
def odradek(cluster: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run a command that must exit with `code`; return its output."""
    monkeypatch.setenv("ODRADEK_CLUSTER", cluster)

    def command(*arguments: str, code: int = 0) -> str:
        capfd.readouterr()
        assert run(arguments) == code
        return capfd.readouterr().out

    return command


@pytest.fixture
def created(odradek: Command, topic: str) -> str:
    """A topic with two partitions."""
    odradek("topic", "create", topic, "--partitions", "2", "--replicas", "1")
    return topic


@pytest.fixture
def put(odradek: Command, capfd: pytest.CaptureFixture[str]) -> Write:
    """Run `odradek put` with this standard input."""

    def write(topic: str, data: bytes, *arguments: str) -> None:
        put_here(capfd, topic, *arguments, data=data)

    return write


@pytest.mark.parametrize(
    ("line", "options", "format", "printed"),
    [
        (b"hello\n", [], "%s", "hello"),
        (b"k:v\n", ["-K", ":"], "%k=%s %K %S", "k=v 1 1"),
        (b"v\n", ["-k", "fixed"], "%k=%s", "fixed=v"),
        (b"v\n", ["-H", "a=1", "-H", "b=x=y"], "%h", "a=1,b=x=y"),
        (b"k:\n", ["-K", ":", "-Z"], "%k %S", "k -1"),
        (b":v\n", ["-K", ":", "-Z"], "%K %s", "-1 v"),
        (b":v\n", ["-K", ":"], "%K %s", "0 v"),
        (b"v\n", ["-z", "zstd"], "%t/%p@%o %n", "TOPIC/1@0 1"),
    ],
)
def test_keys_headers_and_nulls_come_out_as_they_went_in(
    odradek: Command, put: Write, created: str, line: bytes, options: list[str], format: str, printed: str
) -> None:
    put(created, line, "-p", "1", *options)
    assert odradek("cat", created, "-f", format) == printed.replace("TOPIC", created)


def test_timestamps_and_nulls_are_printed(odradek: Command, put: Write, created: str) -> None:
    put(created, b"k:\n", "-K", ":", "-Z", "-H", "h=1")
    assert odradek("cat", created, "-f", "%k %s", "-Z") == "k NULL"
    (row,) = jsons(odradek("cat", created, "--json"))
    assert odradek("cat", created, "-f", "%T") == str(row["timestamp"])
    assert (row["key"], row["value"], row["headers"]) == ("k", None, [{"name": "h", "value": "1"}])
    assert odradek("cat", created, "-o", "@-1h", "-f", "%k") == "k"
    assert odradek("cat", created, "-o", "end") == ""


@pytest.mark.parametrize("count", [0, 1, 7, 500])
def test_the_last_messages_are_printed(odradek: Command, put: Write, created: str, count: int) -> None:
    put(created, "\n".join(map(str, range(100))).encode(), "-p", "0")
    assert odradek("cat", created, "-o", f"-{count}").split() == [str(n) for n in range(100)][100 - min(100, count) :]


def test_topics_and_positions_are_listed(
    odradek: Command, put: Write, created: str, odradek_kafka: KafkaBroker
) -> None:
    put(created, b"a\nb\nc\n", "-p", "1")
    number = odradek_kafka.broker_id
    assert {"topic": created, "partitions": 2, "brokers": [number]} in jsons(odradek("ls", "--json"))
    _, second = jsons(odradek("ls", created, "--json"))
    assert (second["partition"], second["broker"], second["latest"], second["records"]) == (1, number, 3, 3)
    assert jsons(odradek("offsets", created, "--json"))[1] == {"partition": 1, "earliest": 0, "latest": 3}
    assert jsons(odradek("offsets", created, "--at", "-1h", "--json"))[1] == {"partition": 1, "position": 0}


def test_a_group_reads_lags_seeks_and_goes_back(odradek: Command, put: Write, created: str) -> None:
    group = f"g-{created}"
    put(created, b"1\n2\n3\n4\n", "-p", "0")
    assert odradek("cat", created, "-G", group, "-c", "3") == "1\n2\n3\n"
    assert jsons(odradek("lag", group, "--json"))[-1] == {"group": group, "state": "Empty", "members": 0, "lag": 1}
    dry = jsons(odradek("seek", group, "--to", "beginning", "--json"))
    assert dry[0] == {"topic": created, "partition": 0, "before": 3, "after": 0, "distance": -3}
    assert jsons(odradek("lag", group, "--json"))[-1]["lag"] == 1
    applied = jsons(odradek("seek", group, "--to", "beginning", "--apply", "--json"))
    assert applied[:-1] == dry and jsons(odradek("lag", group, "--json"))[-1]["lag"] == 4
    undo = shlex.split(applied[-1]["undo"])
    odradek(*undo[1:])
    assert jsons(odradek("lag", group, "--json"))[-1]["lag"] == 1
    odradek("seek", group, "--to", f"{created}/0=none", "--apply")
    assert jsons(odradek("lag", group, "--json"))[0]["committed"] is None
    described = odradek("group", "describe", group)
    assert described.startswith(f"{group}: Empty, consumer")
    assert {"group": group, "type": "consumer", "state": "Empty", "protocol": "consumer"} in jsons(
        odradek("group", "list", "--json")
    )
    assert jsons(odradek("group", "delete", group, "--json"))[0]["deleted"] is False
    odradek("group", "delete", group, "--apply")
    odradek("group", "describe", group, code=1)


def test_a_topic_is_described_by_its_replicas_or_its_configuration(
    odradek: Command, created: str, odradek_kafka: KafkaBroker
) -> None:
    me = odradek_kafka.broker_id
    first, second = jsons(odradek("topic", "describe", created, "--json"))
    assert first == {"topic": created, "partition": 0, "leader": me, "replicas": [me], "in_sync": [me], "state": "ok"}
    assert second["partition"] == 1
    odradek("topic", "alter", created, "-c", "retention.ms=60000", "--apply")
    entries = jsons(odradek("topic", "describe", created, "--configs", "--json"))
    assert {"topic": created, "entry": "retention.ms", "value": "60000", "source": "topic"} in entries
    odradek("topic", "describe", f"{created}-no", code=1)


def test_the_brokers_of_the_cluster_are_listed(odradek: Command, odradek_kafka: KafkaBroker) -> None:
    (row,) = jsons(odradek("cluster", "describe", "--json"))
    assert odradek("cluster", "describe").startswith(f"cluster {row.pop('cluster')}\n")
    assert row == {
        "broker": odradek_kafka.broker_id,
        "address": odradek_kafka.bootstrap,
        "rack": None,
        "controller": True,
    }


def test_a_position_beyond_the_end_is_refused_without_force(
    odradek: Command, put: Write, created: str, capfd: pytest.CaptureFixture[str]
) -> None:
    group = f"g-{created}"
    put(created, b"1\n2\n", "-p", "0")
    odradek("seek", group, "--to", f"{created}/0=3", code=1)
    odradek("seek", group, "--to", f"{created}/0=3", "--apply", code=1)
    odradek("lag", group, code=1)  # nothing was committed
    odradek("seek", group, "--to", f"{created}/0=2", "--apply")
    odradek("seek", group, "--to", f"{created}/0=3", "--force", "--apply")
    capfd.readouterr()
    assert run(["lag", group]) == 0
    assert f"{created}/0: 3 is beyond the end, 2" in capfd.readouterr().err


def test_messages_of_several_megabytes_are_written_and_read(odradek: Command, put: Write, topic: str) -> None:
    """More than the default limits of producers and readers: a topic may allow it."""
    odradek("topic", "create", topic, "-p", "1", "-r", "1", "-c", "max.message.bytes=10000000")
    put(topic, b"x" * 6_000_000 + b"\n" + b"y\n")
    for arguments in (("-c", "2"), ("-o", "-2"), ("-G", f"g-{topic}", "-c", "2")):
        printed = odradek("cat", topic, "-f", "%S\\n", *arguments)
        assert printed == "6000000\n1\n", arguments
    odradek("cat", topic, "--max-message-bytes", "1000000", code=1)
    with pytest.raises(subprocess.CalledProcessError) as caught:
        put(topic, b"x" * 6_000_000, "--max-message-bytes", "1000000")
    assert b"raise max_message_bytes" in caught.value.stderr


def test_a_topic_is_created_altered_and_deleted_and_nothing_happens_without_apply(odradek: Command, topic: str) -> None:
    (row,) = jsons(odradek("topic", "create", topic, "-p", "2", "-r", "1", "-c", "retention.ms=60000", "--json"))
    assert row == {"topic": topic, "partitions": 2, "replicas": 1}
    change = ["topic", "alter", topic, "-p", "3", "-c", "retention.ms=70000", "-c", "max.message.bytes=5000"]
    for apply in ([], ["--apply"]):
        rows = jsons(odradek(*change, *apply, "--json"))
        assert [(row["entry"], row["before"], row["after"]) for row in rows] == [
            ("partitions", 2, 3),
            ("retention.ms", "60000", "70000"),
            ("max.message.bytes", "default", "5000"),
        ]
    odradek("topic", "alter", topic, "--partitions", "1", "--apply", code=1)
    odradek("topic", "alter", topic, "-c", "retention.ms=never", code=1)
    assert len(jsons(odradek("ls", topic, "--json"))) == 3
    assert jsons(odradek("topic", "delete", topic, "--json")) == [{"topic": topic, "partitions": 3, "deleted": False}]
    assert len(jsons(odradek("ls", topic, "--json"))) == 3
    odradek("topic", "delete", topic, "--apply")
    odradek("topic", "delete", topic, "--apply", code=1)


@pytest.mark.parametrize(
    "arguments",
    [
        ["seek", "g", "--to", "-5"],
        ["seek", "g", "--to", "t/x=1"],
        ["seek", "g", "--to", "t/0=1", "--topic", "t"],
        ["topic", "alter", "t"],
        ["topic", "create", "t", "-c", "retention.ms"],
        ["topic", "create"],
        ["put", "t", "-H", "no value"],
        ["put", "t", "-k", "a", "-K", ":"],
    ],
)
def test_wrong_usage_is_exit_code_2(odradek: Command, arguments: list[str]) -> None:
    odradek(*arguments, code=2)


def test_a_group_without_positions_needs_topics(odradek: Command, created: str) -> None:
    odradek("seek", f"g-{created}", "--to", "end", code=1)
    odradek("seek", f"g-{created}", "--to", "end", "--topic", created, "--apply")
    assert [row["committed"] for row in jsons(odradek("lag", f"g-{created}", "--json"))[:-1]] == [0, 0]


def test_a_list_of_brokers_is_short_for_its_url(odradek: Command, created: str, odradek_kafka: KafkaBroker) -> None:
    assert len(jsons(odradek("ls", created, "--json", "-b", odradek_kafka.bootstrap))) == 2


def test_a_reader_that_closes_the_pipe_is_success(put: Write, created: str) -> None:
    put(created, b"line\n" * 50_000)
    done = subprocess.run(
        f"{shlex.join(PYTHON)} cat {created} | head -1; exit ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, b"line\n", b"")
