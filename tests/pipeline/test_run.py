"""How a run starts its queries, and how it ends."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from threading import Semaphore
from typing import Any

import pytest

from odradek.pipeline.config import Pipeline, load
from odradek.pipeline.run import FlowRun, RunLimits, _is_stop_query, _StopQuery

FILE = """
[source]
brokers = "1@127.0.0.1:1"
[run]
checkpoint = "{root}/checkpoint"
[flows.a]
topics = ["t"]
[flows.a.sink]
path = "{root}/a"
[flows.b]
topics = ["t"]
[flows.b.sink]
path = "{root}/b"
"""


class Query:
    """Of Spark, and all that leads to its start: it initializes until it is told that its source is there, or that it
    has ended."""

    def __init__(self, starts: Queue[Query]) -> None:
        self._starts, self._looks = starts, Semaphore(0)
        self.message, self.isActive = "Initializing StreamExecution", True

    @property
    def readStream(self) -> Query:
        self._starts.put(self)
        return self

    writeStream = property(lambda self: self)

    def format(self, *_: object, **__: object) -> Query:
        return self

    options = load = foreachBatch = trigger = option = start = format

    @property
    def status(self) -> dict[str, Any]:
        self._looks.release()
        return {"message": self.message, "isTriggerActive": False}

    def looked_at(self) -> bool:
        """Once more."""
        return self._looks.acquire(timeout=10)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    file = tmp_path / "pipeline.toml"
    file.write_text(FILE.format(root=tmp_path))
    return load(file)


def test_a_query_starts_when_the_one_before_has_its_source_or_has_ended(pipeline: Pipeline) -> None:
    starts: Queue[Query] = Queue()
    flows = [FlowRun(name, flow, pipeline, RunLimits(), "run") for name, flow in pipeline.flows.items()] * 2
    queries: list[Any] = [Query(starts) for _ in flows]
    with ThreadPoolExecutor() as pool:
        try:
            for flow, query in zip(flows, queries, strict=True):
                pool.submit(flow._start, query)
            for ready in (True, False, True, False):
                query = starts.get(timeout=10)
                query.message = "Initializing sources"
                assert query.looked_at() and query.looked_at() and query.looked_at()
                assert starts.empty()
                if ready:
                    query.message = "Getting offsets from odradek"
                else:
                    query.isActive = False
        finally:
            for query in queries:
                query.isActive = False


def test_no_query_starts_when_a_run_has_been_ended(pipeline: Pipeline) -> None:
    starts: Queue[Query] = Queue()
    spark: Any = Query(starts)
    with pytest.raises(_StopQuery):
        FlowRun("a", pipeline.flows["a"], pipeline, RunLimits(stopped=True), "run")._start(spark)
    assert starts.empty()


def test_the_end_of_a_run_is_no_error_wherever_it_was_raised() -> None:
    assert _is_stop_query(_StopQuery()) and _is_stop_query(RuntimeError("Traceback\nodradek.pipeline.run._StopQuery\n"))
    assert not _is_stop_query(RuntimeError("enough"))
