"""`odradek cat` at a real broker."""

from __future__ import annotations

import subprocess
import sys

import anyio
import pytest

import odradek as od

from ...ended_transactions import transactions_ended
from ..conftest import Command, jsons
from .conftest import Put, Run

LINES = b"""\
{"partition": 0, "timestamp": 1000000, "key": "a", "value": "one", "headers": [{"name": "h", "value": "1"}]}
{"partition": 0, "timestamp": 2000000, "key": "b", "value": "two"}
{"partition": 0, "timestamp": 3000000, "key": "a", "value": "three", "headers": [{"name": "h", "value": "2"}]}
{"partition": 1, "timestamp": 2500000, "key": "c", "value": "four", "headers": [{"name": "g", "value": null}]}
"""


@pytest.fixture
def four(put: Put, created: str) -> str:
    """A topic of two partitions with four messages."""
    put(created, LINES, "--json")
    return created


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        (["--until", "@2000"], "one"),
        (["--until", "@2500"], "one two"),
        (["--until", "@9999999"], "four one three two"),
        (["--until", "2", "-p", "0"], "one two"),
        (["--until", "2"], "four one two"),
        (["--until", "0"], ""),
        (["--until", "99999"], "four one three two"),
        (["--until", "end", "-o", "1", "-p", "0"], "three two"),
        (["--until", "1", "-o", "2", "-p", "0"], ""),
        (["-o", "@2000", "--until", "@3000"], "four two"),
        (["--grep", "^t.*e"], "three"),
        (["--key", "a"], "one three"),
        (["--key", "a", "--grep", "one"], "one"),
        (["--header", "h"], "one three"),
        (["--header", "g"], "four"),
        (["--header", "h=2"], "three"),
        (["--header", "h", "--header", "h=1"], "one"),
        (["--grep", "o", "-c", "1", "-p", "0"], "one"),
        (["-o", "-1", "--key", "a"], "three"),
        (["--isolation", "read_committed"], "four one three two"),
        (["-o", "-1", "--isolation", "read_committed", "-p", "0"], "three"),
    ],
)
def test_what_is_printed(odradek: Command, four: str, options: list[str], printed: str) -> None:
    assert sorted(odradek("cat", four, *options).split()) == printed.split()


def test_keys_values_and_headers_are_printed_in_hex_or_base64_and_sizes_are_their_own(
    odradek: Command, four: str
) -> None:
    format = ["-c", "1", "-p", "0", "-f", "%k %K %s %S %h|"]
    assert odradek("cat", four, *format, "--encoding", "hex") == "61 1 6f6e65 3 h=31|"
    assert odradek("cat", four, *format, "--encoding", "base64") == "YQ== 1 b25l 3 h=MQ==|"
    assert odradek("cat", four, *format) == "a 1 one 3 h=1|"


def test_several_topics_and_expressions_of_their_names(odradek: Command, put: Put, topic: str, call: Run) -> None:
    names = [f"{topic}-a", f"{topic}-b"]
    for name in names:
        put(name, name[-1].encode())
    assert sorted(odradek("cat", *names).split()) == ["a", "b"]
    assert sorted(odradek("cat", names[0], "-t", names[1], names[0]).split()) == ["a", "b"]
    assert sorted(odradek("cat", f"^{topic}-[ab]").split()) == ["a", "b"]
    assert odradek("cat", f"^{topic}-b$", "-o", "-1") == "b\n"
    rows = jsons(odradek("cat", f"^{topic}", "--json", "-p", "0"))
    assert sorted((row["topic"], row["partition"]) for row in rows) == [(name, 0) for name in names]
    assert sorted(odradek("cat", f"^{topic}-.$", "-G", f"g-{topic}", "-c", "2").split()) == ["a", "b"]
    assert sorted(odradek("cat", *names, "-G", f"h-{topic}", "-c", "2").split()) == ["a", "b"]
    code, _, errors = call("cat", f"^{topic}-no")
    assert code == 1 and f"^{topic}-no: no topic has such a name" in errors


@pytest.mark.parametrize("options", [[], ["-F"], ["-O", "parquet"]])
def test_a_position_beyond_the_end_is_an_error(call: Run, four: str, options: list[str]) -> None:
    code, output, errors = call("cat", four, "-p", "0", "-o", "4", *options)
    assert (code, output) == (1, "")
    assert f"{four}/0: 4 is beyond the end, 3" in errors
    assert call("cat", four, "-p", "0", "-o", "3", "-e") == (0, "", "")


async def transactions(cluster: str, topic: str) -> None:
    async with od.connect(cluster) as k:
        first = od.TopicPartition(topic, 0)
        async with k.producer(transactional_id=topic) as out:
            for value in (b"good", b"bad"):
                try:
                    async with out.transaction():
                        await out.send(topic, value, partition=first)
                        if value == b"bad":
                            raise ZeroDivisionError
                except ZeroDivisionError:
                    pass
        await transactions_ended(k, topic)


@pytest.mark.parametrize("options", [[], ["-o", "-9"], ["-O", "arrow"]])
def test_messages_of_aborted_transactions_are_left_out(
    odradek: Command, created: str, cluster: str, options: list[str]
) -> None:
    anyio.run(transactions, cluster, created)
    if "-O" in options:
        command = [sys.executable, "-m", "odradek.cli", "cat", created, *options, "--isolation", "read_committed"]
        printed = subprocess.run(command, capture_output=True, check=True).stdout
        assert b"good" in printed and b"bad" not in printed
        return
    assert odradek("cat", created, *options).split() == ["good", "bad"]
    assert odradek("cat", created, *options, "--isolation", "read_committed").split() == ["good"]


def test_an_open_transaction_is_not_waited_for(created: str, cluster: str) -> None:
    printed: list[bytes] = []

    async def read(*options: str) -> None:
        command = [sys.executable, "-m", "odradek.cli", "cat", created, "--isolation", "read_committed", *options]
        printed.append((await anyio.run_process(command)).stdout)

    async def main() -> None:
        async with od.connect(cluster) as k:
            first = od.TopicPartition(created, 0)
            async with k.producer() as out:
                await out.send(created, b"plain", partition=first)
            async with k.producer(transactional_id=f"{created}-2") as out, out.transaction():
                await out.send(created, b"open", partition=first)
                async with anyio.create_task_group() as tasks:
                    for options in ([], ["-o", "-9"], ["--until", "99"]):
                        tasks.start_soon(read, *options)

    anyio.run(main)
    assert printed == 3 * [b"plain\n"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["t", "--until", "-5"],
        ["t", "--until", "soon"],
        ["t", "--until", "5", "-F"],
        ["t", "--until", "5", "-o", "-5"],
        ["t", "--until", "5", "-G", "g"],
        ["t", "-F", "-e"],
        ["t", "--grep", "("],
        ["^(", "-e"],
        ["^a", "b", "-G", "g"],
        ["t", "--isolation", "some"],
        ["t", "--encoding", "utf-16"],
        ["t", "--registry-keys"],
        ["t", "--registry", "nonsense"],
        ["t", "-O", "arrow", "--key", "a"],
    ],
)
def test_wrong_usage_is_exit_code_2(call: Run, arguments: list[str]) -> None:
    assert call("cat", *arguments)[0] == 2
