"""What a program imports until it has a cluster: counted in modules, so that it does not grow unnoticed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

MODULES = "import json, sys; before = set(sys.modules); {}; print(json.dumps(sorted(set(sys.modules) - before)))"
OPEN = "import odradek; odradek.connect('kafka://127.0.0.1:1')"
READ = f"{OPEN}.reader('t')"
LATER = {
    "importlib.resources",
    "odradek.client.admin",
    "odradek.client.consumer.consumer",
    "odradek.client.producer.producer",
    "odradek.core.kafka.transactions",
    "odradek.io._kazoo",
    "odradek.io.kafka.admin",
    "odradek.io.kafka.membership",
    "odradek.wire.kafka.messages.admin",
    "odradek.wire.kafka.messages.share_groups",
    "rich",
    "trio",
}


def imported(program: str) -> set[str]:
    """Return the modules that a new process imports for a program."""
    ran = subprocess.run([sys.executable, "-c", MODULES.format(program)], capture_output=True, text=True, check=True)
    return set(json.loads(ran.stdout))


@pytest.mark.parametrize(("program", "own"), [("import odradek", 2), (READ, 160)])
def test_a_program_imports_what_it_uses(program: str, own: int) -> None:
    modules = imported(program)
    assert not modules & LATER
    assert len([name for name in modules if name.startswith("odradek")]) <= own
