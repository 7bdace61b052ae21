"""Positions and lag of groups, at a real broker."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..conftest import Command, jsons
from .conftest import Put, Run


@pytest.fixture
def group(odradek: Command, put: Put, created: str) -> str:
    """A group that has read three messages of four in partition 0, and none of partition 1."""
    put(created, b"1\n2\n3\n4\n", "-p", "0")
    name = f"g-{created}"
    odradek("cat", created, "-G", name, "-c", "3")
    return name


def committed(odradek: Command, group: str) -> dict[int, int | None]:
    return {row["partition"]: row["committed"] for row in jsons(odradek("lag", group, "--json")) if "topic" in row}


@pytest.mark.parametrize(
    ("distance", "after"), [("-2", 1), ("-1", 2), ("+1", 4), ("0", 3), ("-100", 0), ("100", 4), ("1", 4)]
)
def test_positions_are_shifted_within_the_log(odradek: Command, group: str, distance: str, after: int) -> None:
    (row, *_) = jsons(odradek("seek", group, "--shift", distance, "--json"))
    assert (row["partition"], row["before"], row["after"], row["distance"]) == (0, 3, after, after - 3)
    assert committed(odradek, group)[0] == 3
    odradek("seek", group, "--shift", distance, "--apply")
    assert committed(odradek, group)[0] == after


def test_a_group_continues_where_another_one_is(odradek: Command, group: str, created: str, call: Run) -> None:
    other = f"{group}-other"
    odradek("seek", other, "--to-group", group, "--apply")
    assert committed(odradek, other)[0] == 3
    odradek("seek", other, "--to", "beginning", "--apply")
    odradek("seek", other, "--to-group", group, "--topic", created, "--apply")
    assert committed(odradek, other)[0] == 3
    code, _, errors = call("seek", other, "--to-group", group, "--topic", "no-such", "--apply")
    assert code == 1 and f"{group}: this group has no committed positions in these topics" in errors


def test_positions_are_restored_from_what_lag_has_printed(
    odradek: Command, group: str, created: str, tmp_path: Path
) -> None:
    before, saved = committed(odradek, group), tmp_path / "positions.json"
    odradek("seek", group, "--to", f"{created}/1=none", "--apply")
    saved.write_text(odradek("lag", group, "--json"))
    odradek("seek", group, "--to", "beginning", "--apply")
    assert committed(odradek, group) == {0: 0, 1: 0}
    odradek("seek", group, "--to-file", str(saved), "--apply")
    assert committed(odradek, group) == {0: before[0], 1: None}


def test_positions_of_a_file_or_a_group_beyond_the_end_are_refused(
    odradek: Command, group: str, created: str, tmp_path: Path, call: Run
) -> None:
    saved = tmp_path / "positions.json"
    row = {"group": group, "topic": created, "partition": 0, "committed": 5}
    saved.write_text(json.dumps(row))
    far = f"{group}-far"
    odradek("seek", far, "--to", f"{created}/0=5", "--force", "--apply")
    for source in (["--to-file", str(saved)], ["--to-group", far]):
        code, _, errors = call("seek", group, *source, "--apply")
        assert code == 1 and f"{created}/0: 5 is beyond the end, 4" in errors
    assert committed(odradek, group)[0] == 3
    odradek("seek", group, "--to-file", str(saved), "--apply", "--force")
    assert committed(odradek, group)[0] == 5


def test_a_position_before_the_beginning_is_refused_and_undone_with_force(
    odradek: Command, group: str, created: str, call: Run
) -> None:
    """The committed position is one of records that were deleted afterwards."""
    odradek("seek", group, "--to", f"{created}/0=1", "--apply")
    odradek("topic", "delete-records", f"{created}/0", "--before", "2", "--apply")
    for source in (["--to", f"{created}/0=1"], ["--to-group", group]):
        code, _, errors = call("seek", group, *source, "--apply")
        assert code == 1 and f"{created}/0: 1 is before the beginning, 2" in errors
    code, printed, _ = call("seek", group, "--to", f"{created}/0=2", "--apply")
    assert code == 0 and f"undo: odradek seek {group} --to {created}/0=1 --force --apply" in printed
    odradek("seek", group, "--to", f"{created}/0=1", "--force", "--apply")
    assert committed(odradek, group)[0] == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        '{"group": "g", "state": "Empty", "members": 0, "lag": 4}',
        '{"group": "g", "topic": "t", "partition": 0}',
        '{"group": "g", "topic": "t", "partition": 0, "committed": "5"}',
        '{"group": "g", "topic": "t", "partition": 0, "committed": -5}',
        "\n".join(f'{{"group": "{name}", "topic": "t", "partition": 0, "committed": 1}}' for name in "gh"),
        "\n".join(f'{{"group": "g", "topic": "t", "partition": 0, "committed": {at}}}' for at in (1, 2)),
        "[1]",
    ],
)
def test_another_file_is_wrong_usage(call: Run, tmp_path: Path, text: str) -> None:
    saved = tmp_path / "positions.json"
    saved.write_text(text)
    code, _, errors = call("seek", "g", "--to-file", str(saved))
    assert code == 2 and "--to-file" in errors


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--to", "end", "--shift", "1"],
        ["--shift", "one"],
        ["--to-file", "/no/such/file"],
        ["--to-group", "h", "--to", "end"],
        ["--to", "t/0=1,t/0=2"],
    ],
)
def test_wrong_usage_is_exit_code_2(call: Run, arguments: list[str]) -> None:
    assert call("seek", "g", *arguments)[0] == 2


def test_members_hosts_and_states_are_named(odradek: Command, call: Run, group: str, created: str) -> None:
    """What is refused of a group that has members is refused by a dry run, too."""
    command = [sys.executable, "-m", "odradek.cli", "cat", created, "-G", group, "-u"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"4\n"  # it is a member now
        until = time.monotonic() + 60
        while True:  # until it has acknowledged both partitions
            first, second, total = jsons(odradek("lag", group, "--json"))
            if (total["state"] == "Stable" and second["member"]) or time.monotonic() > until:
                break
        (member, described) = jsons(odradek("group", "describe", group, "--json"))
        listed = [row for row in jsons(odradek("lag", "--json")) if row["group"] == group]
        text = odradek("group", "describe", group)
        refused = [
            call(*command, *apply)
            for command in (["group", "delete", group, "--json"], ["seek", group, "--to", "end", "--json"])
            for apply in ([], ["--apply"])
        ]
        process.terminate()
    assert process.returncode == 143
    assert total | {"lag": 0} == {"group": group, "state": "Stable", "members": 1, "lag": 0}
    assert (first["member"], first["client"], first["host"]) == (member["member"], "odradek", member["host"])
    assert second["member"] == first["member"] and "127.0.0.1" in first["host"]
    assert member["partitions"] == [f"{created}/0", f"{created}/1"] and member["lag"] in (0, 1)
    assert (described["group"], described["state"], described["members"]) == (group, "Stable", 1)
    assert listed[0] | {"lag": 0} == total | {"lag": 0}
    assert text.startswith(f"{group}: Stable, ") and ", lag " in text.splitlines()[0]
    for code, output, errors in refused:
        assert (code, output) == (1, "") and "has 1 members (Stable)" in errors and "add --apply" not in errors
    assert odradek("lag", group).endswith(", Empty\n")
