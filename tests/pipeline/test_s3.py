"""Tables on an S3-compatible store: moto's server, on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest

from odradek.pipeline.task import TaskJob, TaskOutput

from .test_flow import numbers
from .workspace import Workspace, run_all

KINDS = pytest.mark.parametrize("kind", ["delta", "iceberg"])


class Server:
    """A store in its own process, which keeps its objects while it is stopped."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.url = f"http://127.0.0.1:{self._said()}"

    def _said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def order(self, what: str) -> None:
        """Let it `stop` or `start`, and wait until it has."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        assert self._said() == what


class Store(NamedTuple):
    """A store, and a bucket of it."""

    server: Server
    bucket: str

    @property
    def url(self) -> str:
        return self.server.url

    def options(self, kind: str) -> dict[str, str]:
        """Return its options, as deltalake or pyiceberg name them."""
        if kind == "iceberg":
            return {
                "s3.endpoint": self.url,
                "s3.access-key-id": "key",
                "s3.secret-access-key": "secret",
                "s3.region": "us-east-1",
                "s3.connect-timeout": "2",
            }
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "aws_conditional_put": "etag",
            "max_retries": "1",
        }


SERVER = """
import socket
import sys
from moto.server import ThreadedMotoServer

kept = socket.socket()  # never listens, and nobody else gets the port while the server is stopped
kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
kept.bind(("127.0.0.1", 0))

def start():
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=kept.getsockname()[1], verbose=False)
    server.start()
    return server

server = start()
print(kept.getsockname()[1], flush=True)
for order in sys.stdin:
    if order == "stop\\n":
        server.stop()
    else:
        server = start()
    print(order, end="", flush=True)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        yield Server(process)
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def store(server: Server) -> Store:
    bucket = f"bucket-{uuid4().hex[:8]}"
    for _ in range(100):
        try:
            urllib.request.urlopen(urllib.request.Request(f"{server.url}/{bucket}", method="PUT"), timeout=30).close()
            return Store(server, bucket)
        except ConnectionError:
            time.sleep(0.1)
    raise AssertionError("the store does not answer")


def workspace(root: Path, store: Store, kind: str) -> Workspace:
    options = "\n".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in store.options(kind).items())
    work = Workspace(root, kind, more='corrupt = "dead"', run_lines="max_error_percent = 50")
    file = root / "pipeline.toml"
    text = file.read_text().replace('"tables/', f'"s3://{store.bucket}/')
    file.write_text(f"{text}\n[flows.orders.sink.options]\n{options}\n")
    return work


def rows(work: Workspace) -> list[bytes]:
    return sorted(row["value"] for batch in work.table.rows(["value"], None) for row in batch.to_pylist())


@KINDS
def test_every_record_is_in_a_table_on_a_store_once(tmp_path: Path, store: Store, kind: str) -> None:
    work = workspace(tmp_path, store, kind)
    work.append(numbers(0, 100))
    summary = work.run()
    assert not summary.failed, summary.flows[0].error
    work.append(numbers(100, 50))
    assert work.run().flows[0].rows == 50
    assert rows(work) == numbers(0, 150)
    assert not list(tmp_path.rglob("*.parquet"))


@KINDS
def test_a_table_on_a_store_is_compacted_and_cleaned(tmp_path: Path, store: Store, kind: str) -> None:
    work = workspace(tmp_path, store, kind)
    for first in (0, 50, 100):
        work.append(numbers(first, 50))
        assert not work.run().failed
    table = work.table
    small = {Path(file.path).name for file in table.files()}
    assert table.compact(1 << 20) == {"removed": 3, "added": 1}
    removed = table.clean(0, dry_run=False)
    assert small == {Path(path).name for path in removed if path.endswith(".parquet")}
    assert rows(work) == numbers(0, 150)
    work.append(numbers(150, 10))
    assert not work.run().failed
    assert rows(work) == numbers(0, 160)


@KINDS
@pytest.mark.parametrize("by", ["clean", "another program"])
def test_no_commit_on_a_store_lists_a_file_that_is_gone(tmp_path: Path, store: Store, kind: str, by: str) -> None:
    """`clean` leaves what a run has written; what something else deletes is read again."""
    work = workspace(tmp_path, store, kind)
    work.append(numbers(0, 100))
    assert not work.run().failed
    work.append(numbers(100, 50))

    def delete(jobs: Sequence[TaskJob]) -> list[TaskOutput]:
        output = run_all(jobs)
        if by == "clean":
            table = work.table
            table.clean(0, dry_run=False)
        else:
            jobs[0].target.storage.remove(output[0].files[0].path)
        return output

    error = work.run(delete).flows[0].error
    assert ("the driver does not see it" in error) == (by == "another program"), error
    assert not work.run().failed
    assert rows(work) == numbers(0, 150)


@KINDS
@pytest.mark.parametrize("moment", ["before", "writing", "committing"])
def test_a_store_that_is_away_for_a_while_fails_the_run_and_the_next_one_continues(
    tmp_path: Path, store: Store, kind: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    work = workspace(tmp_path, store, kind)
    work.append(numbers(0, 100))
    assert not work.run().failed
    work.append(numbers(100, 50))

    def run_tasks(jobs: Sequence[TaskJob]) -> list[TaskOutput]:
        if moment == "writing":
            store.server.order("stop")
        output = run_all(jobs)
        if moment == "committing":
            store.server.order("stop")
        return output

    if moment == "before":
        store.server.order("stop")
    error = work.run(run_tasks).flows[0].error
    store.server.order("start")
    assert f"s3://{store.bucket}/orders" in error and "see that it can be reached, and run again" in error
    assert not work.run().failed
    assert rows(work) == numbers(0, 150)
