"""The dashboard of `docs/observe`: every metric and label of its queries is one that the observer exposes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Metric
from tests.observe.every_event import report_every_event

from odradek.observe.prometheus import PrometheusObserver

ROOT = Path(__file__).parents[2]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "docs/observe/grafana-dashboard.json").read_text("utf-8"))
TARGETS = [(panel["title"], target) for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
OF_PROMETHEUS = {"instance", "le"}


@pytest.fixture(scope="module")
def metrics() -> list[Metric]:
    registry = CollectorRegistry()
    report_every_event(PrometheusObserver(registry))
    return list(registry.collect())


@pytest.fixture(scope="module")
def labels(metrics: list[Metric]) -> dict[str, set[str]]:
    """Labels of each sample, by its name."""
    return {sample.name: set(sample.labels) for metric in metrics for sample in metric.samples}


@pytest.mark.parametrize(("panel", "target"), TARGETS, ids=lambda value: value if isinstance(value, str) else "query")
def test_a_query_names_metrics_and_labels_that_there_are(
    panel: str, target: dict[str, str], labels: dict[str, set[str]]
) -> None:
    expression = target["expr"]
    names = re.findall(r"\bodradek_\w+", expression)
    assert names and all(name in labels for name in names), (panel, names)
    known = set.intersection(*(labels[name] for name in names)) | OF_PROMETHEUS
    by = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")}
    shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
    assert by | shown <= known, (panel, by | shown)
    assert not by or shown <= by | {"instance"}
    for name, matchers in re.findall(r"\b(odradek_\w+){([^}]*)}", expression):
        assert set(re.findall(r"(\w+)=~", matchers)) <= labels[name]


def test_every_family_is_on_the_dashboard_or_part_of_one_that_is(metrics: list[Metric]) -> None:
    queries = " ".join(target["expr"] for _, target in TARGETS)
    missing = {metric.name for metric in metrics if metric.name not in queries}
    assert missing == {"odradek_produced_bytes", "odradek_fetched_bytes", "odradek_delivered_bytes"} | {
        "odradek_delivered_batches"
    }


def test_the_page_lists_every_metric(metrics: list[Metric]) -> None:
    page = (ROOT / "docs/howto/observe.md").read_text("utf-8")
    listed = set(re.findall(r"`(odradek_\w+)`", page))
    exposed = {metric.name + ("_total" if metric.type == "counter" else "") for metric in metrics}
    assert listed == exposed
