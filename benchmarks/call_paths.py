"""The ways through the library, counted with a profiler: the paths and the traces of docs/DESIGN.md.

    python -m benchmarks.call_paths [NAME ...]

A path is that of one `send`. It prints its hops in the order of the calls, each with the ring it belongs to, and how
many Python calls of the library there are in all. A hop is a function, a method or a constructor that passes on the
record, its batch or its request. Not counted as hops, but among the calls, are properties, questions that change
nothing, and parts of a hop that have a name of their own: `NO_HOPS` lists them.

A trace is longer: a fetch, a rebalance, a batch of a pipeline. It prints the functions that `TRACES` names, its stops,
and behind each the number of calls from there to the next one: a stop stands for everything up to the next. What the
event loop runs in between is among them; the traces are made so that it is little.

Comprehensions count as nothing, because later releases of Python do not call them; nor does the way a coroutine
continues. The servers are those of `odradek.testing`: a real broker for `kafka`, the embedded one for `kafka07`.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import CO_COROUTINE
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, NamedTuple

from anyio.from_thread import BlockingPortal, start_blocking_portal

import odradek
from odradek import EARLIEST, Cluster, Consumer, Producer, Reader, connect
from odradek.testing import Kafka07Broker, KafkaBroker

__all__ = ["CALL_PATHS", "TRACES", "CallPath", "Trace", "main", "send_kafka", "send_kafka07"]

LIBRARY = Path(odradek.__file__).parent
NOT_ON_THE_WAY = "testing"
"""The servers of tests are no part of a path."""

TOPIC = "traced"

GENERATED = ("<encoder of ", "<decoder of ")
"""How the file names begin of functions that are generated from a schema."""

QUESTIONS = {
    "BatchSequences.may_send",
    "BrokerQueue._due_at",
    "BrokerQueue._due_until",
    "BrokerQueue._may_send",
    "BrokerQueue._oldest",
    "BrokerVersions.version",
    "IdempotentProducer.can_send",
    "MessageSpec.is_flexible",
    "Sender._connection_changed",
    "_step",
    "are_small",
    "encoder",
    "decoder",
    "header_version",
    "next_sequence",
}
"""What objects ask themselves and each other without changing anything; properties are not listed."""

PARTS = {
    "Accumulator._apply_result",
    "Accumulator._pop_due",
    "Accumulator._return_all",
    "AsyncioTransport.get_buffer",
    "BatchSequences._meaning",
    "BrokerQueue._fill",
    "Dispatcher._acknowledge",
    "FrameDecoder.__init__",
    "FrameDecoder._take_size",
    "IdempotentProducer._acknowledge",
    "IdempotentProducer._continue",
    "IdempotentProducer.answered",
    "IdempotentProducer.stamp",
    "KafkaConnection.next_correlation_id",
    "KafkaConnection.renew_session",
    "PendingSend._complete",
    "ProduceBatch.add_waiter",
    "ProduceBatch.answer",
    "LiveBatches._forget",
    "ProduceBatch.finish",
    "ProduceBatch.send",
    "ProduceBatch.wait_in",
    "ProduceExchange._decode",
    "RequestPipeline._decode",
    "RequestPipeline._encode",
    "Router.broker",
    "Sender._continue",
    "Sender._encode",
    "_Sequences.before",
    "_check_count",
    "_columns",
    "_encoder.<locals>.encode",
    "_decoder.<locals>.decode",
    "_frame",
    "_stamp_fields",
    "_written",
    "read",
    "write",
}
"""Parts of a hop that have a name of their own, or that get neither the record nor its batch or request."""

NO_HOPS = QUESTIONS | PARTS


@dataclass
class Step:
    """One Python call inside the library."""

    name: str
    ring: str
    is_hop: bool


@dataclass
class CallPath:
    """The calls of one path.

    Attributes:
        out: From the call of the user to the socket, and until the caller waits.
        back: From the socket to the return of that call.
    """

    out: list[Step] = field(default_factory=list)
    back: list[Step] = field(default_factory=list)

    @staticmethod
    def hops(steps: Sequence[Step]) -> list[Step]:
        """Return the steps that are hops."""
        return [step for step in steps if step.is_hop]

    def __str__(self) -> str:
        lines = []
        for title, steps in (("out", self.out), ("back", self.back)):
            hops = self.hops(steps)
            lines.append(f"{title}: {len(hops)} hops, {len(steps)} calls")
            lines += [f"  {number:2} {hop.name:45} {hop.ring}" for number, hop in enumerate(hops, 1)]
        return "\n".join(lines)

    def all_calls(self) -> str:
        """Return every call, with those that are no hops in brackets."""
        return "\n".join(
            f"  {step.ring:7} {step.name if step.is_hop else f'[{step.name}]'}" for step in (*self.out, *self.back)
        )


class _Recorder:
    """Records the calls of this thread, and of threads that begin meanwhile (`sys.setprofile`), in a `with` block.

    Args:
        pause_s: How long the thread sleeps when it has written a request (s): the response is then there as a whole,
            while otherwise it may come in two reads, which makes more calls.
    """

    def __init__(self, pause_s: float = 0.0) -> None:
        self.steps: list[Step] = []
        self.sent = 0
        """How many of the steps there were when `Producer.send` had to wait for the response."""
        self._pause_s = pause_s
        self._known: set[FrameType] = set()  # coroutines that have begun: they are called again to continue

    def __enter__(self) -> _Recorder:
        threading.setprofile(self._event)
        sys.setprofile(self._event)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)
        self._known.clear()

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "c_call":
            if (module := getattr(argument, "__module__", None) or "").startswith("odradek"):
                self.steps.append(Step(f"{argument.__name__} (compiled)", module.split(".")[1].lstrip("_"), True))
            return
        if event == "return" and code is Producer.send.__code__:
            self.sent = self.sent or len(self.steps)
            return
        if event != "call":
            return
        ring = _ring(code.co_filename, code.co_name)
        if ring is None or frame in self._known:
            return
        if code.co_flags & CO_COROUTINE:
            self._known.add(frame)
        name = code.co_qualname.replace(".__init__", "()").replace(".<locals>", "")
        self.steps.append(Step(name, ring, not (code.co_qualname in NO_HOPS or _is_property(frame))))
        if self._pause_s and name == "RequestPipeline.data_sent":
            time.sleep(self._pause_s)


def _ring(filename: str, name: str) -> str | None:
    """Return the ring of a function of the library; None if it is none of the calls that count."""
    if name in ("<listcomp>", "<genexpr>", "<setcomp>", "<dictcomp>"):
        return None
    if filename.startswith(GENERATED):
        return "wire"
    path = Path(filename)
    if not path.is_relative_to(LIBRARY):
        return None
    ring = path.relative_to(LIBRARY).parts[0]
    return None if ring == NOT_ON_THE_WAY else ring.removesuffix(".py")


def _is_property(frame: FrameType) -> bool:
    owner = frame.f_locals.get("self")
    return isinstance(getattr(type(owner), frame.f_code.co_name, None), property)


async def _trace_send(url: str, topic: str) -> CallPath:
    """CallPath one `send` of a producer whose topic is known and whose broker is idle."""
    async with connect(url) as cluster, cluster.producer() as producer:
        for _ in range(3):  # the topic, the connection, and all that is made when it is first needed
            await producer.send(topic, b"before")
        await _idle()
        with _Recorder() as recorder:
            await producer.send(topic, b"the record")
        return CallPath(recorder.steps[: recorder.sent], recorder.steps[recorder.sent :])


async def _idle() -> None:
    """Let the tasks of the client run that have something to do."""
    for _ in range(20):
        await asyncio.sleep(0)


def send_kafka() -> CallPath:
    """CallPath one `send` to the newest Kafka, of a producer with its default options."""
    with KafkaBroker() as broker:
        broker.create_topic(TOPIC)
        return asyncio.run(_trace_send(f"kafka://{broker.bootstrap}", TOPIC))


def send_kafka07() -> CallPath:
    """CallPath one `send` to Kafka 0.7."""
    with Kafka07Broker() as broker:
        return asyncio.run(_trace_send(f"kafka07://{broker.address}", TOPIC))


CALL_PATHS: dict[str, Callable[[], CallPath]] = {"send_kafka": send_kafka, "send_kafka07": send_kafka07}
"""Name -> path. Add another one as a function that returns a `CallPath`."""


# ---- traces ---------------------------------------------------------------------------------------------------

ARRIVAL_S = 0.05
"""Time in which everything that a broker of this machine has sent is there (s)."""

FETCH_KAFKA = """
    RequestPipeline.data_received FetchExchange.open_sink PartitionExchange.feed PartitionFetch.feed
    RecordDecoder.feed InFlightRequest.resolve FetchSession.answered PartitionExchange.apply
    BrokerFetcher._handle_response Cursor.complete KafkaLogDecoder.take RowQueue.add_rows FetchScheduler.requeue
    FetchScheduler.next_fetch Cursor.send KafkaBrokerClient.fetch PartitionExchange() Connection.submit
    FetchExchange.positions FetchSession.request encode_request RequestPipeline.data_sent
    PartitionSet.take Cursor.take RowQueue.take_rows Consumer._deliver Batch()
"""
FETCH_KAFKA07 = """
    RequestPipeline.data_received FetchReply.feed PartitionFetch.feed MessageSetDecoder.feed InFlightRequest.resolve
    BrokerFetcher._handle_response Cursor.complete MessageSetDecoder.take RowQueue.add_rows FetchScheduler.requeue
    FetchScheduler.next_fetch Cursor.send Kafka07BrokerClient.fetch encode_request Connection.submit
    RequestPipeline.data_sent PartitionSet.take Cursor.take RowQueue.take_rows Batch()
"""
REBALANCE = """
    Member._receive_heartbeat Member._prepare_rejoin KafkaMembership._carry_out OwnedPartitions.stop_delivery
    Committer.commit OwnedPartitions.clear MemberRunner.revoked Member._subscriptions join_request
    MemberRunner._send Member._receive_join GroupLeader() MemberRunner._compute GroupTopics.read
    KafkaRoutingTable.apply Member.assign RangeAssignor.assign sync_request MemberRunner._send Member._receive_sync
    KafkaMembership._assign KafkaOffsets.fetch read_fetch OwnedPartitions.assign
"""
PIPELINE = """
    FlowRun.step BrokerCatalog.extents to_positions in_current_topics next_batch plan propose_splits pack FlowRun._jobs
    run_task read_task RangeReader() RangeReader.claim KafkaBrokerClient.fetch RecordDecoder.feed
    _RangeTask._hand_over RangeReader.deliver _Task._cover _Task._complete Decoder.decode
    JsonDecoder._add RowCollector.add_columns TimeRule.times FileWriter.add FileWriter.finish _File.write _File.close
    Storage.sync TaskOutput.add FlowRun._check coverage FlowRun._check_files Table.append Table._check_follows
    DeltaTable._append Commit.to_json DeltaTable.refresh FlowRun._add_dead_letters FlowRun._remember remember
"""


class Stop(NamedTuple):
    """A function that a trace names, and the calls from it, itself included, to the next one."""

    name: str
    ring: str
    calls: int


@dataclass
class Trace:
    """The stops of a trace, in their order. It ends when the last one is called."""

    stops: list[Stop]

    @classmethod
    def of(cls, steps: Sequence[Step], names: str) -> Trace:
        """Find the stops among calls from the last one backwards, so that nothing that happened before is among them.

        Raises LookupError, which names a stop that is not there.
        """
        wanted, indexes = names.split(), [len(steps)]
        for name in reversed(wanted):
            earlier = [index for index in range(indexes[0]) if steps[index].name == name]
            if not earlier:
                raise LookupError(f"{name} was not called before {steps[indexes[0] - 1].name}")
            indexes.insert(0, earlier[-1])
        indexes[-1] = indexes[-2] + 1  # it ends with the call of its last stop
        lengths = [after - index for index, after in pairwise(indexes)]
        stops = zip(wanted, indexes[:-1], lengths, strict=True)
        return cls([Stop(name, steps[index].ring, calls) for name, index, calls in stops])

    @property
    def calls(self) -> int:
        return sum(stop.calls for stop in self.stops)

    def __str__(self) -> str:
        lines = [f"{len(self.stops)} stops, {self.calls} calls"]
        lines += [f"  {number:2} {name:32} {ring:9} {n:4}" for number, (name, ring, n) in enumerate(self.stops, 1)]
        return "\n".join(lines)


@contextmanager
def _other_client(url: str) -> Iterator[tuple[BlockingPortal, Cluster]]:
    """Yield another client, whose event loop has a thread of its own: its calls are not recorded."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(connect(url)) as cluster:
        yield portal, cluster


async def _trace_fetch(url: str, names: str) -> Trace:
    """Return the trace of one record that arrives while the caller waits for it. The shortest one of several counts:
    commits and heartbeats come in between."""
    traces = []
    with _other_client(url) as (portal, other), portal.wrap_async_context_manager(other.producer()) as producer:
        async with connect(url) as cluster, _reading(cluster, url) as consumer:
            batches = consumer.batches()
            for number in range(6):
                portal.call(producer.send, TOPIC, b"a record")
                _let_arrive()
                with _Recorder(ARRIVAL_S) as recorder:
                    await anext(batches)
                if number >= 3:  # the first ones open connections, and make all that is made when it is first needed
                    traces.append(Trace.of(recorder.steps, names))
    return min(traces, key=lambda trace: trace.calls)


def _let_arrive() -> None:
    """Have this thread's event loop stand still until the response to its long poll is there."""
    time.sleep(ARRIVAL_S)


def _reading(cluster: Cluster, url: str) -> Consumer | Reader:
    """Return a member of a group; for 0.7, whose groups need a ZooKeeper, a reader."""
    if url.startswith("kafka07"):
        return cluster.reader([TOPIC], start=EARLIEST)
    return cluster.consumer(TOPIC, group="traced", start=EARLIEST, group_protocol="classic")


def fetch_kafka() -> Trace:
    """Trace from the response to a long poll to the next one, and to the batch of the user."""
    with KafkaBroker() as broker:
        broker.create_topic(TOPIC)
        return asyncio.run(_trace_fetch(f"kafka://{broker.bootstrap}", FETCH_KAFKA))


def fetch_kafka07() -> Trace:
    """Trace as `fetch_kafka`, in 0.7."""
    with Kafka07Broker() as broker:
        return asyncio.run(_trace_fetch(f"kafka07://{broker.address}", FETCH_KAFKA07))


async def _trace_rebalance(url: str) -> Trace:
    """Return the trace of a leader whose group gets a second member. It is paused: fetches would come in between."""
    with _other_client(url) as (portal, other):
        async with connect(url) as cluster, _member(cluster) as first:
            first.pause()
            with _Recorder(ARRIVAL_S) as recorder:
                second = portal.wrap_async_context_manager(_member(other))
                joining = asyncio.create_task(asyncio.to_thread(second.__enter__))
                while len(first.assignment) != 1:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(ARRIVAL_S)
            await joining
            await asyncio.to_thread(second.__exit__, None, None, None)
    return Trace.of(recorder.steps, REBALANCE)


def _member(cluster: Cluster) -> Consumer:
    return cluster.consumer(TOPIC, group="traced", group_protocol="classic", assignors=["range"])


def rebalance() -> Trace:
    """Trace from REBALANCE_IN_PROGRESS to the new assignment: the leader of a classic group, eager, two partitions."""
    with KafkaBroker() as broker:
        broker.create_topic(TOPIC, 2)
        return asyncio.run(_trace_rebalance(f"kafka://{broker.bootstrap}"))


def pipeline() -> Trace:
    """Trace of the second batch of a flow: one topic, values in JSON, a Delta table, its task in this process."""
    from odradek.pipeline.config import load  # needs the libraries of pipelines
    from odradek.pipeline.flow import FlowRun
    from odradek.pipeline.task import run_task

    with KafkaBroker() as broker, TemporaryDirectory() as folder, _Recorder(ARRIVAL_S) as recorder:
        broker.create_topic(TOPIC)
        url, file = f"kafka://{broker.bootstrap}", Path(folder, "pipeline.toml")
        file.write_text(
            f"""
                [source]
                kafka = "{url}"
                [flows.traced]
                topics = ["{TOPIC}"]
                decode.kind = "json"
                decode.fields = "number bigint"
                sink.kind = "delta"
                sink.path = "table"
                dead.path = "dead"
            """
        )
        flow = FlowRun("traced", load(file), follow=True)
        flow.prepare()
        with _other_client(url) as (portal, other), portal.wrap_async_context_manager(other.producer()) as producer:
            for _ in range(3):  # the first step uses the extents of `prepare`, and finds nothing
                portal.call(producer.send, TOPIC, b'{"number": 1}')
                recorder.steps.clear()
                flow.step(lambda jobs: [run_task(job) for job in jobs], None)
        return Trace.of(recorder.steps, PIPELINE)


TRACES: dict[str, Callable[[], Trace]] = {
    "fetch_kafka": fetch_kafka,
    "fetch_kafka07": fetch_kafka07,
    "rebalance": rebalance,
    "pipeline": pipeline,
}
"""Name -> trace."""


def main(names: Sequence[str]) -> None:
    """Print paths and traces, all of them by default; with `--all` every call of a path. `--quick`, which all
    benchmarks take, changes nothing. Raises KeyError for other names."""
    every: dict[str, Callable[[], CallPath | Trace]] = {**CALL_PATHS, **TRACES}
    for name in [name for name in names if not name.startswith("--")] or every:
        path = every[name]()
        print(f"{name}\n{path}")
        if "--all" in names and isinstance(path, CallPath):
            print(path.all_calls())


if __name__ == "__main__":
    main(sys.argv[1:])
