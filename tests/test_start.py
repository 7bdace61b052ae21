"""What a program imports and defines until it has a cluster: counted, so that it does not grow unnoticed."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODULES = "import sys; before = set(sys.modules); {}; print(*set(sys.modules) - before)"
OPEN = "import odradek; odradek.connect('kafka://127.0.0.1:1')"
READ = f"{OPEN}.reader('t')"
DATACLASSES = f"""
import dataclasses, sys
{READ}
for name in [name for name in sys.modules if name.startswith("odradek")]:
    for value in vars(sys.modules[name]).values():
        if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == name:
            print(f"{{name}}.{{value.__name__}}")
"""
LATER = {
    *("cramjam", "fnmatch", "hmac", "importlib.resources", "json", "pathlib", "rich", "secrets", "snappy", "tempfile"),
    *("tomllib", "trio", "urllib.parse"),
    *("odradek.client.admin", "odradek.client.consumer.consumer", "odradek.client.consumer.decoded"),
    *("odradek.client.consumer.statistics", "odradek.client.producer.producer", "odradek.serde"),
    *("odradek.core.interfaces.groups", "odradek.core.interfaces.share", "odradek.core.interfaces.transactions"),
    *(
        "odradek.core.kafka.partitioners",
        "odradek.core.kafka.produce",
        "odradek.core.kafka.sasl",
        "odradek.core.kafka.transactions",
    ),
    *("odradek.core.produce.batch", "odradek.io._kazoo", "odradek.io.kafka.admin", "odradek.io.kafka.authentication"),
    *("odradek.io.kafka.membership", "odradek.io.kafka.produce_exchange", "odradek.io.kafka.producer_sequences"),
    *(
        "odradek.io.proxy",
        "odradek.io.security",
        "odradek.wire.kafka.messages.admin",
        "odradek.wire.kafka.messages.groups",
    ),
    *("odradek.wire.kafka.messages.security", "odradek.wire.kafka.messages.share_groups"),
    *("odradek.wire.kafka.messages.transactions", "odradek.wire.kafka.records.encode"),
}


def printed(program: str) -> set[str]:
    """Return the words that a new process prints."""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(ran.stdout.split())


@pytest.mark.parametrize(("program", "own"), [("import odradek", 2), (READ, 121)])
def test_a_program_imports_what_it_uses(program: str, own: int) -> None:
    modules = printed(MODULES.format(program))
    assert not modules & LATER
    assert len([name for name in modules if name.startswith("odradek")]) <= own


def test_a_reader_defines_no_dataclass_but_public_options() -> None:
    assert printed(DATACLASSES) == {"odradek.client.options.Tuning", "odradek.core.backoff.Backoff"}
