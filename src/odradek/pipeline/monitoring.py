"""Results of runs for monitoring, where the pipeline file asks for it: metrics for Prometheus, events of OpenLineage.

Metrics go to a file for node_exporter's textfile collector (replaced as a whole), after a run and, with `--follow`,
after each commit. Lineage goes to any transport of openlineage-python after the run: a START and a COMPLETE or FAIL
event for each flow that has committed something or failed. Neither changes the result of a run: what could not be
published is returned as a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import NAMESPACE_URL, uuid5

from odradek.errors import ConfigError
from odradek.pipeline.config import Pipeline, SourceConfig
from odradek.pipeline.report import FlowSummary, RunSummary

if TYPE_CHECKING:
    from openlineage.client.event_v2 import RunEvent

__all__ = ["Monitor"]

JOB = "odradek_pipeline"
PRODUCER = "https://pypi.org/project/odradek"

METRICS: Mapping[str, tuple[str, Callable[[RunSummary, FlowSummary], float | None]]] = {
    "run_started_timestamp_seconds": ("Start of the newest run", lambda run, _: run.started),
    "run_ended_timestamp_seconds": ("End of the newest run", lambda run, _: run.ended),
    "rows": ("Rows that the run has committed", lambda _, flow: flow.rows),
    "dead_letters": ("Records that the run could not decode", lambda _, flow: flow.dead),
    "batches": ("Batches that the run has committed", lambda _, flow: flow.batches),
    "gaps": ("Parts of logs that gave no row in the run", lambda _, flow: flow.gap_count),
    "files": ("Data files that the run has written", lambda _, flow: flow.files),
    "file_bytes": ("Bytes of these files", lambda _, flow: flow.file_bytes),
    "value_bytes": ("Bytes of the records' values", lambda _, flow: flow.payload),
    "log_size": ("Size of log that the run has read, in the flow's unit", lambda _, flow: flow.log_size),
    "lag": ("Size of log that is not in the table, in the flow's unit", lambda _, flow: flow.lag_after),
    "failed": ("1 if the flow failed or could not read everything", lambda _, flow: flow.failed),
    "last_commit_timestamp_seconds": ("Time of the newest commit in the table", lambda _, flow: flow.last_commit),
}
"""Name -> help, and value; None: unknown."""

WITH_UNIT = ("log_size", "lag")
"""The metrics with a label `unit`."""


class Monitor:
    """Publishes the results of runs.

    Args:
        pipeline: The pipeline file.
        file: Its name, which tells pipelines apart.

    Raises:
        ConfigError: A library that the pipeline file needs is missing, or does not take its settings.
    """

    def __init__(self, pipeline: Pipeline, file: str) -> None:
        self._run, self._source, self._name = pipeline.run, pipeline.source, Path(file).stem
        self._prometheus, self._lineage = None, None
        if self._run.prometheus_file is not None:
            self._prometheus = _library("prometheus_client")
        if self._run.openlineage is not None:
            try:
                transport = dict(self._run.openlineage)
                self._lineage = _library("openlineage.client").OpenLineageClient(config={"transport": transport})
            except (RuntimeError, ValueError, TypeError, KeyError) as error:
                raise ConfigError(f"run.openlineage: {error}") from error

    def publish(self, summary: RunSummary) -> list[str]:
        """Publish metrics and lineage of a run that has ended; return what could not be published."""
        return [*self.publish_metrics(summary), *_warnings("OpenLineage", lambda: self._emit(summary))]

    def publish_metrics(self, summary: RunSummary) -> list[str]:
        """Publish the metrics of a run, ended or not; return what could not be published."""
        if self._prometheus is None:
            return []
        write, registry = self._prometheus.write_to_textfile, self._registry(summary)
        return _warnings("Prometheus", lambda: write(self._run.prometheus_file, registry))

    def _registry(self, summary: RunSummary) -> Any:
        assert self._prometheus is not None
        registry = self._prometheus.CollectorRegistry()
        gauge = partial(self._prometheus.Gauge, namespace=JOB, registry=registry)
        for name, (text, value) in METRICS.items():
            labels = ["pipeline", "flow", *(["unit"] if name in WITH_UNIT else [])]
            metric = gauge(name, text, labels)
            for flow in summary.flows:
                if (number := value(summary, flow)) is not None:
                    metric.labels(*(self._name, flow.name, flow.unit)[: len(labels)]).set(number)
        return registry

    def _emit(self, summary: RunSummary) -> None:
        if self._lineage is None:
            return
        for flow in summary.flows:
            if flow.batches or flow.error:
                for event in _events(self._source, self._name, summary.run, flow):
                    self._lineage.emit(event)


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'odradek[monitoring]'") from None


def _warnings(what: str, publish: Callable[[], None]) -> list[str]:
    try:
        publish()
    except Exception as error:  # of a library and its network: the tables are right without it
        return [f"{what}: the results of the run were not published: {error}"]
    return []


# ---- lineage -------------------------------------------------------------------------------------------------


def _events(source: SourceConfig, pipeline: str, run: str, flow: FlowSummary) -> Iterator[RunEvent]:
    """Yield the events of one flow in one run."""
    from openlineage.client import event_v2 as model
    from openlineage.client.facet_v2 import error_message_run, output_statistics_output_dataset

    inputs = [model.InputDataset(_namespace(source), topic) for topic in flow.topics]
    written = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=flow.rows, size=flow.file_bytes, fileCount=flow.files
    )
    table = model.OutputDataset(*_dataset(flow.location), outputFacets={"outputStatistics": written})
    error = error_message_run.ErrorMessageRunFacet(message=flow.error, programmingLanguage="python")
    identity = str(uuid5(NAMESPACE_URL, f"{PRODUCER}/{run}/{flow.name}"))
    job = model.Job(pipeline, flow.name)
    ended = model.RunState.FAIL if flow.error else model.RunState.COMPLETE
    for state, at in ((model.RunState.START, flow.started), (ended, flow.ended)):
        facets: dict[str, Any] = {"errorMessage": error} if state is model.RunState.FAIL else {}
        yield model.RunEvent(
            eventType=state, eventTime=datetime.fromtimestamp(at, UTC).isoformat(), producer=PRODUCER,
            run=model.Run(identity, facets), job=job, inputs=inputs, outputs=[table],
        )  # fmt: skip


def _namespace(source: SourceConfig) -> str:
    """Return the cluster as OpenLineage names it; credentials are not part of it."""
    if source.kafka is not None:
        return "kafka://" + source.kafka.partition("://")[2]  # which has none
    if source.zookeeper is not None:
        return f"zookeeper://{source.zookeeper.rpartition('@')[2]}"
    return "file" if source.brokers is None else f"kafka://{source.brokers}"


def _dataset(location: str) -> tuple[str, str]:
    """Return namespace and name of a table."""
    if location.startswith("/"):
        return "file", location
    url = urlsplit(location)
    return f"{url.scheme}://{url.netloc}", url.path.strip("/") or "/"
