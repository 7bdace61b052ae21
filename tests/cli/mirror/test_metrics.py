"""`odradek mirror run --metrics`."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from odradek.cli.app import run
from odradek.cli.mirror.metrics import served
from odradek.observe import MirrorCommitted
from odradek.types import TopicPartition

from ..conftest import Put


def test_metrics_are_served_during_the_block(capsys: pytest.CaptureFixture[str]) -> None:
    with served(("127.0.0.1", 0)) as observer:
        assert observer is not None
        observer.mirror_committed(MirrorCommitted("m", {TopicPartition("t", 0): 3}, {TopicPartition("t", 0): 30}, 0.1))
        (url,) = re.findall(r"^odradek: metrics: (http://127\.0\.0\.1:\d+/metrics)$", capsys.readouterr().err, re.M)
        with urlopen(url, timeout=60) as response:
            text = response.read().decode()
        assert 'odradek_mirror_records_total{mirror="m",topic="t"} 3.0' in text
        port = url.split(":")[2].split("/")[0]
        with pytest.raises(Exception, match=f"--metrics: 127.0.0.1:{port}"), served(("127.0.0.1", int(port))):
            pass
    with pytest.raises(URLError):
        urlopen(url, timeout=60)
    with served(None) as nothing:
        assert nothing is None


@pytest.mark.parametrize("address", ["9400", ":9400", "localhost:http", "localhost:70000"])
def test_an_address_has_a_host_and_a_port(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mirror", "run", str(tmp_path / "mirror.toml"), "--metrics", address]) == 2
    assert "expected HOST:PORT" in capsys.readouterr().err


def test_a_run_with_metrics(put: Put, topic: str, file: str, capfd: pytest.CaptureFixture[str]) -> None:
    put(topic, b"one\ntwo\n", "-p", "7-1")
    capfd.readouterr()
    assert run(["mirror", "run", file, "--json", "--metrics", "127.0.0.1:0"]) == 0
    printed = capfd.readouterr()
    assert printed.out == f'{{"topic": "{topic}", "records": 2}}\n'
    assert printed.err.startswith("odradek: metrics: http://127.0.0.1:")
