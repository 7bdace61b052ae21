"""`odradek lag`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import odradek as od
from odradek.cli.app import run
from odradek.cli.lag import GroupLag, _print
from odradek.core.admin import GroupDescription, MemberDescription, PartitionLag
from odradek.testing import MemoryCluster
from odradek.types import Position, TopicPartition

from .conftest import Command, Put, jsons


def test_lag_is_the_distance_from_the_committed_position_to_the_end(odradek: Command, put: Put, topic: str) -> None:
    group = f"g-{topic}"
    put(topic, b"one\ntwo\nthree\n")
    odradek("lag", group, code=1)
    assert odradek("cat", topic, "-G", group, "-c", "2") == "one\ntwo\n"
    *_, row, total = [r for r in jsons(odradek("lag", group, "--json")) if r.get("partition") != "7-1"]
    assert (row["partition"], row["committed"], row["end"], row["lag"]) == ("7-0", 26, 41, 15)
    assert total == {"group": group, "state": "Empty", "members": 0, "lag": 15}
    assert total in jsons(odradek("lag", "--json"))
    assert "total 15, Empty" in odradek("lag", group)
    odradek("lag", group, "--fail-over", "15")
    odradek("lag", group, "--fail-over", "14", code=1)
    odradek("lag", group, "--fail-over", "14", "--watch", code=1)


def test_a_group_whose_lag_cannot_be_read_keeps_no_other_from_being_printed(
    odradek: Command, put: Put, topic: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    put(topic, b"one\ntwo\nthree\n")
    groups = [f"g-{topic}-{n}" for n in (1, 2)]
    for group in groups:
        odradek("cat", topic, "-G", group, "-c", "2")

    async def group_lag(k: od.Cluster, group: str) -> GroupLag:
        if group == groups[0]:
            raise od.DeadlineError(f"positions of {group}", 10)
        return await read(k, group)

    module = import_module("odradek.cli.lag")
    read: Callable[[od.Cluster, str], Awaitable[GroupLag]] = module._group_lag
    monkeypatch.setattr(module, "_group_lag", group_lag)
    assert run(["lag", "--json"]) == 1
    printed = capfd.readouterr()
    assert groups[1] in [row["group"] for row in jsons(printed.out)] and f"positions of {groups[0]}" in printed.err
    assert run(["lag", groups[0]]) == 1


def test_a_group_is_listed_described_and_moved(odradek: Command, put: Put, topic: str, tmp_path: Path) -> None:
    group = f"g-{topic}"
    put(topic, b"one\ntwo\nthree\n", "-p", "7-0")
    assert odradek("cat", topic, "-G", group, "-c", "2") == "one\ntwo\n"
    assert group in [row["group"] for row in jsons(odradek("group", "list", "--json"))]
    assert odradek("group", "describe", group).startswith(f"{group}: Empty, zookeeper, assignor range, lag 15\n")
    (row,) = [r for r in jsons(odradek("seek", group, "--to", "beginning", "--json")) if r["partition"] == "7-0"]
    assert (row["before"], row["after"]) == (26, 0)
    odradek("seek", group, "--to", f"{topic}/7-0=13", "--apply")
    assert odradek("cat", topic, "-G", group, "-c", "1") == "two\n"
    odradek("seek", group, "--to", f"{topic}/7-0=none", "--apply", code=1)
    odradek("seek", group, "--to", f"{topic}/9-9=1", code=1)
    saved = tmp_path / "positions"
    saved.write_text(odradek("lag", group, "--json"))
    odradek("seek", group, "--to", "beginning", "--apply")
    odradek("seek", group, "--to-file", str(saved), "--apply")
    odradek("seek", group, "--shift", "-1", code=2)
    odradek("seek", f"{group}-2", "--to-group", group, "--apply")
    assert odradek("cat", topic, "-G", f"{group}-2", "-c", "1") == "three\n"
    odradek("group", "delete", group, "--apply", code=1)
    odradek("topic", "create", topic, "-p", "1", "-r", "1", code=1)


def test_lag_shows_the_members_of_a_group_that_runs() -> None:
    rows = {
        TopicPartition("t", 0): PartitionLag(Position(7), Position(10), 3, "m-1"),
        TopicPartition("t", 1): PartitionLag(None, Position(4), 4, None),
    }
    member = MemberDescription("m-1", None, "billing", "/10.0.0.1", (TopicPartition("t", 0),))
    group = GroupLag(rows, GroupDescription("g", "Stable", "classic", "consumer", "range", (member,), None))
    result = CliRunner().invoke(click.Command("p", callback=lambda: _print({"g": group}, False, False, clear=False)))
    assert result.output.splitlines() == [
        "topic  partition  committed  end  lag  member  client   host",
        "t              0  7           10    3  m-1     billing  /10.0.0.1",
        "t              1  -            4    4  -       -        -",
        "total 7, Stable",
    ]


@pytest.fixture
def leaderless(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    """A cluster in which no broker leads t/0, and where a group has committed 1 in t/0 and t/1, of 2 records each."""
    kafka = MemoryCluster({"t": 2}, brokers=2)
    for number in range(2):
        kafka.append("t", [b"1", b"2"], partition=number)
    kafka.set_committed("g", {TopicPartition("t", 0): 1, TopicPartition("t", 1): 1})
    kafka.stop_broker(1)
    monkeypatch.setattr(od, "connect", lambda url: kafka.connect())
    monkeypatch.setenv("ODRADEK_CLUSTER", "kafka://memory")
    return kafka


@pytest.mark.parametrize("command", [["lag", "g", "--fail-over", "2"], ["lag", "--fail-over", "2"]])
def test_a_lag_that_is_not_known_is_not_left_out(
    leaderless: MemoryCluster, command: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--json"]) == 1
    printed = capfd.readouterr()
    assert printed.err == "g: no broker leads t/0 now: the lag there is not known\n"
    assert jsons(printed.out)[-1] == {"group": "g", "state": "Empty", "members": 0, "lag": 1}
    leaderless.stop_broker(2)
    assert run(command) == 1
    assert capfd.readouterr().err == "g: no broker leads t/0, t/1 now: the lag there is not known\n"
    leaderless.start_broker(1)
    leaderless.start_broker(2)
    assert run(command) == 0


def test_the_position_on_a_partition_without_a_leader_can_be_restored(
    leaderless: MemoryCluster, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before, saved = leaderless.committed("g"), tmp_path / "positions"
    assert run(["lag", "g", "--json"]) == 1
    saved.write_text(capfd.readouterr().out)
    rows = {row["partition"]: row for row in jsons(saved.read_text()) if "topic" in row}
    assert (rows[0]["committed"], rows[0]["end"], rows[0]["lag"], rows[1]["lag"]) == (1, None, None, 1)
    leaderless.start_broker(1)
    leaderless.set_committed("g", dict.fromkeys(before, 2))
    assert run(["seek", "g", "--to-file", str(saved), "--apply"]) == 0 and leaderless.committed("g") == before


def test_a_file_of_positions_that_is_not_utf_8_is_refused_with_its_line(
    leaderless: MemoryCluster, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    saved = tmp_path / "positions"
    saved.write_bytes('{"group": "g", "topic": "t", "partition": 0, "committed": 1}\n'.encode("utf-16"))
    assert run(["seek", "g", "--to-file", str(saved)]) == 2
    assert "line 1 is not from `odradek lag GROUP --json`" in capfd.readouterr().err


@pytest.mark.parametrize("apply", [[], ["--apply"]])
def test_positions_that_cannot_be_shifted_are_not_left_out(
    leaderless: MemoryCluster, apply: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    before = leaderless.committed("g")
    assert run(["seek", "g", "--shift", "-1", *apply]) == 1
    assert capfd.readouterr() == ("", "Error: no broker leads t/0 now\n") and leaderless.committed("g") == before
