"""Metrics for Prometheus and lineage for OpenLineage: what a run has done, read back as their servers get it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest
from prometheus_client.parser import text_string_to_metric_families

from odradek.errors import ConfigError
from odradek.pipeline.commits import Commit
from odradek.pipeline.run import execute

from .workspace import Workspace, in_process

Metrics = dict[tuple[str, str | None], float]


class Server:
    """An HTTP server that keeps what it gets."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, bytes]] = []
        self.status = 200
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server.requests.append((self.command, self.path, body))
                self.send_response(server.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_POST = do_PUT

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = Thread(target=server.http.serve_forever)
    thread.start()
    yield server
    server.http.shutdown()
    thread.join()
    server.http.server_close()


def made(root: Path, lines: str) -> Workspace:
    work = Workspace(root, run_lines=lines)
    work.append([b"%03d" % number for number in range(100)])
    return work


def metrics(text: str) -> Metrics:
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {
        (sample.name.removeprefix("odradek_pipeline_"), sample.labels.get("flow")): sample.value for sample in samples
    }


def test_metrics_of_a_run_are_in_the_file_of_the_textfile_collector(tmp_path: Path) -> None:
    work = made(tmp_path, 'prometheus_file = "metrics/odradek.prom"')
    (tmp_path / "metrics").mkdir()
    summary = work.run()
    file = tmp_path / "metrics" / "odradek.prom"
    values = metrics(file.read_text())
    assert (values["rows", "orders"], values["batches", "orders"], values["files", "orders"]) == (100, 1, 1)
    assert (values["lag", "orders"], values["failed", "orders"], values["log_size", "orders"]) == (0, 0, 1300)
    assert values["last_commit_timestamp_seconds", "orders"] == pytest.approx(work.newest.written)
    assert values["run_ended_timestamp_seconds", "orders"] == pytest.approx(summary.ended)
    assert 'odradek_pipeline_lag{flow="orders",pipeline="pipeline",unit="bytes"} 0.0' in file.read_text()
    assert [path.name for path in file.parent.iterdir()] == [file.name]  # nothing is left of its replacement
    assert not work.run().flows[0].commits
    again = metrics(file.read_text())
    assert again["rows", "orders"] == 0  # of the newest run
    assert again["last_commit_timestamp_seconds", "orders"] == values["last_commit_timestamp_seconds", "orders"]


def test_metrics_say_that_a_flow_failed(tmp_path: Path) -> None:
    work = made(tmp_path, 'prometheus_file = "odradek.prom"')
    (tmp_path / "tables" / "orders").mkdir(parents=True)
    (tmp_path / "tables" / "orders" / "_delta_log").write_text("")
    assert work.run().failed
    assert metrics((tmp_path / "odradek.prom").read_text())["failed", "orders"] == 1


def test_a_run_that_follows_publishes_after_each_commit(tmp_path: Path) -> None:
    work, stop = made(tmp_path, 'prometheus_file = "odradek.prom"\nbatch_bytes = 650'), Event()
    file = tmp_path / "odradek.prom"
    counts: list[int] = []
    published: list[Metrics] = []

    def on_commit(_flow: str, commit: Commit, _lag: int | None) -> None:
        counts.append(commit.rows)
        if file.exists():
            published.append(metrics(file.read_text()))  # after the commit before this one
        if commit.batch == 1:
            work.append([b"%03d" % number for number in range(50)])  # meanwhile
        if commit.batch == 3:
            stop.set()

    execute(work.pipeline, "pipeline.toml", on_commit, in_process, every_s=0.01, stop=stop)
    published.append(metrics(file.read_text()))
    assert counts == [50, 50, 50]
    assert [each["rows", "orders"] for each in published] == [50, 100, 150]
    assert [each["lag", "orders"] for each in published] == [650, 650, 0]


def test_lineage_has_the_topics_and_the_table_of_a_run(tmp_path: Path, server: Server) -> None:
    work = made(tmp_path, f'openlineage = {{ type = "http", url = "{server.url}" }}')
    summary = work.run()
    assert summary.warnings == ()
    assert {path for _, path, _ in server.requests} == {"/api/v1/lineage"}
    start, end = (json.loads(body) for _, _, body in server.requests)
    assert (start["eventType"], end["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == end["run"]["runId"] and start["eventTime"] < end["eventTime"]
    assert (end["job"]["namespace"], end["job"]["name"]) == ("pipeline", "orders")
    assert [(each["namespace"], each["name"]) for each in end["inputs"]] == [("file", "orders")]
    (table,) = end["outputs"]
    assert (table["namespace"], table["name"]) == ("file", str(tmp_path / "tables" / "orders"))
    assert table["outputFacets"]["outputStatistics"]["rowCount"] == 100
    assert not work.run().warnings and len(server.requests) == 2  # nothing has happened


def test_lineage_says_why_a_flow_failed(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    work = made(tmp_path, f'openlineage = {{ type = "file", log_file_path = "{file}", append = true }}')
    work.run()
    (tmp_path / "tables").rename(tmp_path / "elsewhere")
    assert "there is no table" in work.error()
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert [event["eventType"] for event in events] == ["START", "COMPLETE", "START", "FAIL"]
    assert "there is no table" in events[-1]["run"]["facets"]["errorMessage"]["message"]


def test_what_cannot_be_published_is_a_warning_and_the_rows_are_there(tmp_path: Path, server: Server) -> None:
    server.status = 400
    lines = f'prometheus_file = "missing/odradek.prom"\nopenlineage = {{ type = "http", url = "{server.url}" }}'
    work = made(tmp_path, lines)
    summary = work.run()
    assert not summary.failed and len(work.values()) == 100
    assert [warning.partition(":")[0] for warning in summary.warnings] == ["Prometheus", "OpenLineage"]


@pytest.mark.parametrize(
    ("missing", "line"),
    [
        ("prometheus_client", 'prometheus_file = "odradek.prom"'),
        ("openlineage.client", 'openlineage = { type = "console" }'),
    ],
)
def test_a_missing_library_is_named_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, line: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    work = made(tmp_path, line)
    with pytest.raises(ConfigError, match=r"is not installed: pip install 'odradek\[monitoring\]'"):
        work.run()
    assert not (tmp_path / "tables").exists()
    Workspace(tmp_path).run()  # which needs neither


def test_a_transport_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.openlineage: "):
        made(tmp_path, 'openlineage = { type = "http" }').run()
