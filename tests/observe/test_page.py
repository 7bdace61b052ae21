"""The examples of `docs/howto/observe.md` run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import odradek as od
from odradek.observe import BatchFinished, Rebalanced
from odradek.testing import MemoryCluster

PAGE = (Path(__file__).parents[2] / "docs/howto/observe.md").read_text("utf-8")
PROMETHEUS, OTEL, OWN = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def run_example(source: str, cluster: MemoryCluster | None = None, **names: Any) -> dict[str, Any]:
    """Run an example, with the cluster in the place of every URL, and return its names."""
    source = source.replace("import odradek as od\n", "")

    class Package:
        EARLIEST = od.EARLIEST

        @staticmethod
        def connect(url: str, **options: Any) -> od.Cluster:
            assert cluster is not None
            return cluster.connect(**options)

    scope: dict[str, Any] = {"od": Package, **names}
    exec(compile(source, "observe.md", "exec"), scope)
    return scope


def test_the_example_for_prometheus_serves_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    import prometheus_client

    ports: list[int] = []
    monkeypatch.setattr(prometheus_client, "start_http_server", ports.append)
    monkeypatch.setattr("odradek.observe.prometheus.PrometheusObserver.__init__", lambda observer: None)
    assert callable(run_example(PROMETHEUS)["main"]) and ports == [8000]


@pytest.mark.anyio
async def test_the_example_for_opentelemetry_sends_and_processes() -> None:
    cluster = MemoryCluster({"orders": 1})
    await run_example(OTEL, cluster)["consume"]()
    assert [stored.value for stored in cluster.records("orders")] == [b"v"]
    assert cluster.committed("billing") == {od.TopicPartition("orders", 0): 1}


def test_the_own_observer_prints(capsys: pytest.CaptureFixture[str]) -> None:
    observer = run_example(OWN)["Watch"]()
    observer.batch_finished(BatchFinished(1, "t", None, 2, 10, 0.1, 1, None))
    observer.batch_finished(BatchFinished(1, "t", None, 2, 10, 0.1, 1, od.NotWritten([], "late")))
    observer.rebalanced(Rebalanced("g", "lost", (), "the session has expired", 0.0))
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("2 records of t failed: ") and second == "g: lost 0 partitions: the session has expired"
