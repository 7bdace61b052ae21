"""The page about hosted clusters: each of its connections is accepted as printed, without a network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trustme

import odradek as od
from odradek.io.kafka.driver import KafkaDriver

PAGE = Path(__file__).parent.parent / "docs" / "howto" / "hosted.md"
TEXT = PAGE.read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
AUTHORITY = trustme.CA()
CLIENT = AUTHORITY.issue_cert("client")
FILES = {
    "ssl_cafile": AUTHORITY.cert_pem,
    "ssl_certfile": CLIENT.cert_chain_pems[0],
    "ssl_keyfile": CLIENT.private_key_pem,
}
PROVIDERS = ["Confluent Cloud", "Amazon MSK", "Azure Event Hubs", "Aiven", "Redpanda Cloud"]


def test_each_provider_has_a_section() -> None:
    assert re.findall(r"^## (.*)", TEXT, re.MULTILINE) == PROVIDERS
    assert len(BLOCKS) == 8


@pytest.mark.parametrize("block", BLOCKS, ids=[re.findall(r"://([^/\"]+)", block)[0] for block in BLOCKS])
def test_a_connection_is_accepted_and_shows_no_secret(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for option, name in re.findall(r'(ssl_\w+)="([^"]+)"', block):
        FILES[option].write_to_path(tmp_path / name)
    names: dict[str, Any] = {}
    exec(compile(block, PAGE.name, "exec"), names)
    k = names["k"]
    assert isinstance(k, od.Cluster) and isinstance(k.driver, KafkaDriver)
    assert "SECRET" not in repr(k)
