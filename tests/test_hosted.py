"""The page about hosted clusters: each of its connections is accepted as printed, without a network."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
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


def test_the_token_of_iam_is_passed_on_with_its_expiry_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    signer: Any = ModuleType("aws_msk_iam_sasl_signer")
    signer.MSKAuthTokenProvider = SimpleNamespace(
        generate_auth_token=lambda region: (f"of {region}", 1_800_000_000_500)
    )
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", signer)
    names: dict[str, Any] = {}
    (block,) = [block for block in BLOCKS if "token_provider" in block]
    exec(compile(block, PAGE.name, "exec"), names)
    assert asyncio.run(names["token"]()) == ("of eu-central-1", 1_800_000_000.5)
