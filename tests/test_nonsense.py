"""Nonsense in every argument of every public callable: it works, or it is refused at once by an error that names it."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import anyio
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import odradek as od
from odradek import arguments, segments
from odradek.client.options import ConsumerOptions, ProducerOptions, ReaderOptions
from odradek.testing import FaultProxy, Kafka07Broker, KafkaBroker, KafkaCluster, ZooKeeperEnsemble, ZooKeeperServer
from odradek.testing.memory.cluster import MemoryCluster
from odradek.types import Columns
from odradek.wire.kafka07.message_set import encode_set

P0 = od.TopicPartition("t", 0, 1)
LIMIT_S = 60.0
"""A call that takes longer hangs."""

DELIVER_S = 30.0
"""A record that takes longer is not delivered."""


class Unshowable:
    """A value that breaks whatever looks at it."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


# fmt: off
WRONG = [
    None, True, False, 0, 1, -1, 5, 1 << 31, 1 << 63, 10**400, -(10**400), 0.0, 0.5, 1e6, float("nan"),
    float("inf"), -float("inf"), 1j, "", "0", "latest", "a/b", "..", "\ud800", "\0", "x" * 5000, "{", b"", b"t",
    b"\xff", bytearray(b"a"), [], [None], ["t"], [1, 2], (), (1, 2, 3), {}, {1: 2}, {"t": None}, {P0: "x"}, {"t"},
    object(), Unshowable(), [Unshowable()], {"t": Unshowable()}, print, od.EARLIEST, P0, od.AtTime(float("nan")),
    od.AtTime("x"), od.TopicPartition(None, None, None), od.TopicPartition("t", "0", 0), od.Tuning(),  # type: ignore[arg-type]
]
# fmt: on
# Of indices: hypothesis shows a strategy when another thread draws a random number, and some of these break that.
NONSENSE = st.sampled_from(range(len(WRONG))).map(lambda number: WRONG[number])


def check(error: Exception, name: str) -> None:
    """Fail unless the error is of an allowed kind and says one of these words: the argument, or what it is about."""
    assert isinstance(error, TypeError | od.OdradekError), f"{name}: {error!r}"
    assert any(word in str(error) for word in name.split("|")), f"{name} is not named: {error!r}"


def refused_or_works(name: str, call: Callable[[], object]) -> None:
    try:
        call()
    except Exception as error:
        check(error, name)


# ---- made without a cluster -----------------------------------------------------------------------------------

COLUMNS = Columns([b"v"], [0], [9])
KEYED: dict[str, object] = {"topic": "t", "key": b"k", "count": 3}
VALUES: list[tuple[str, Callable[..., object], dict[str, object]]] = [
    ("Tuning", od.Tuning, {name: getattr(od.Tuning(), name) for name in inspect.signature(od.Tuning).parameters}),
    ("Backoff", od.Backoff, {"first_s": 0.1, "factor": 2.0, "max_s": 1.0}),
    ("connect", od.connect, {"url": "kafka07://127.0.0.1:1", "tuning": None}),
    (
        "connect",
        od.connect,
        {
            "url": "kafka://127.0.0.1:1",
            "security": None,
            "client_id": "me",
            "rack": None,
            "tuning": None,
            "proxy": None,
        },
    ),
    (
        "Security",
        od.Security,
        {name: getattr(od.Security(), name) for name in inspect.signature(od.Security).parameters},
    ),
    ("run", od.run, {"main": print, "backend": "no such loop"}),
    ("Cluster", od.Cluster, {"driver": od.connect("kafka07://127.0.0.1:1").driver, "tuning": od.Tuning()}),
    ("KeyHash", od.KeyHash().__call__, KEYED),
    ("Murmur2", od.Murmur2().__call__, KEYED),
    ("JavaHash", od.JavaHash().__call__, KEYED),
    ("RandomPartitioner", od.RandomPartitioner, {"randrange": random.Random(1).randrange}),
    ("RandomPartitioner", od.RandomPartitioner(random.Random(1).randrange).__call__, KEYED),
    ("RoundRobin", od.RoundRobin().__call__, KEYED),
    ("Batch", od.Batch, {"partition": P0, "columns": COLUMNS}),
    (
        "GroupBatch",
        od.GroupBatch,
        {"partition": P0, "columns": COLUMNS, "span": None, "changed": None, "positions": None},
    ),
    ("GroupTable", od.GroupTable, {"table": None, "batches": ()}),
    ("Acks", od.Acks, {"acks": (), "failed": ()}),
    ("FaultProxy", FaultProxy, {"target_host": "127.0.0.1", "target_port": 1, "port": 0}),
    ("Kafka07Broker", Kafka07Broker, {"log_dir": "log", "broker_id": 1, "host": "::1", "port": 0, "zookeeper": None}),
    ("Kafka07Broker", Kafka07Broker, {"log_dir": "log", "config": {}}),
    (
        "KafkaBroker",
        KafkaBroker,
        {
            "version": "4.3.1",
            "mode": None,
            "broker_id": 1,
            "listeners": ["SSL"],
            "users": None,
            "certificate": "valid",
            "config": None,
            "zookeeper": None,
            "java": None,
            "heap": "256m",
        },
    ),
    ("KafkaCluster", KafkaCluster, {"version": "4.3.1", "size": 3, "mode": None, "listeners": ["SSL"]}),
    (
        "ZooKeeperServer",
        ZooKeeperServer,
        {"version": "3.9.5", "port": 0, "data_dir": None, "java": None, "jars": None, "tick_ms": 100, "heap": "128m"},
    ),
    ("ZooKeeperServer", ZooKeeperServer, {"session_ms": (500, 60_000)}),
    ("ZooKeeperEnsemble", ZooKeeperEnsemble, {"size": 1, "version": "3.9.5", "tick_ms": 100}),
    *[
        (kind.__name__, kind, dict.fromkeys(kind._fields))
        for kind in (od.Ack, od.AtTime, od.Broker, od.Failed, od.ProducerRecord, od.Record, od.TopicPartition)
    ],
]


@pytest.mark.parametrize(("title", "function", "good"), VALUES, ids=lambda value: value if type(value) is str else "")
@given(data=st.data(), nonsense=NONSENSE)
def test_nonsense_given_to_what_needs_no_cluster_is_refused_by_name(
    title: str, function: Callable[..., object], good: dict[str, object], data: st.DataObject, nonsense: object
) -> None:
    name = data.draw(st.sampled_from(sorted(good)))
    names = {"run": "main|backend", "connect": f"url|URL|{name}"}.get(title, name)
    refused_or_works(names, lambda: function(**{**good, name: nonsense}))


def test_every_public_callable_is_given_nonsense_here() -> None:
    names = {name for name in od.__all__ if callable(getattr(od, name))}
    errors = {name for name in names if isinstance(kind := getattr(od, name), type) and issubclass(kind, Exception)}
    without_arguments_or_below = {"Position", "Producer", "Consumer", "Reader", "ShareConsumer"}
    made_by_a_consumer = {"ShareBatch", "ShareRecord"}
    assert names - errors - without_arguments_or_below - made_by_a_consumer <= {title for title, *_ in VALUES}


# ---- options --------------------------------------------------------------------------------------------------

ALSO = {"include": "subscription", "exclude": "subscription", "group": "group name", "topics": "topic"}
"""What an error may say instead of the name of the option."""


@pytest.mark.parametrize(
    ("maker", "kind"), [("producer", ProducerOptions), ("reader", ReaderOptions), ("consumer", ConsumerOptions)]
)
@given(data=st.data(), nonsense=NONSENSE)
def test_a_nonsensical_option_is_refused_when_the_object_is_made(
    maker: str, kind: type, data: st.DataObject, nonsense: object
) -> None:
    name = data.draw(st.sampled_from([*arguments.declared(kind), *["topics"] * (maker != "producer")]))
    keywords = {"group": "g"} if maker == "consumer" else {}
    keywords |= {} if maker == "producer" else {"topics": "t"}
    try:
        getattr(od.connect("kafka07+zk://127.0.0.1:1"), maker)(**{**keywords, name: nonsense})
    except od.Closed:
        assert maker == "producer"  # which is made after its options were checked
    except Exception as error:
        check(error, f"{name}|{ALSO.get(name, name)}")


# ---- segments -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> segments.SegmentedLog:
    directory = tmp_path_factory.mktemp("logs") / "t-0"
    directory.mkdir()
    (directory / f"{0:020}.kafka").write_bytes(encode_set([b"a", b"b"]))
    return segments.open(directory)


RANGE: dict[str, object] = {"start": None, "until": None, "corrupt": "fail"}
FILES: list[tuple[str, dict[str, object]]] = [
    ("open", {"path": "nowhere"}),
    ("logs", {"path": "nowhere"}),
    ("left_out", {"path": "nowhere"}),
    ("position_at", {"timestamp_ms": 0}),
    ("batches", {**RANGE, "read_committed": False}),
    ("arrow", {**RANGE, "max_bytes": 100}),
    ("verify", {"advance": None}),
]


@pytest.mark.parametrize(("function", "good"), FILES)
@given(data=st.data(), nonsense=NONSENSE)
def test_nonsense_given_to_segments_is_refused_by_name(
    log: segments.SegmentedLog, function: str, good: dict[str, object], data: st.DataObject, nonsense: object
) -> None:
    name = data.draw(st.sampled_from(sorted(good)))
    call = getattr(segments if "path" in good else log, function)
    refused_or_works(f"{name}|kafka files", lambda: call(**{**good, name: nonsense}))


# ---- what is open ---------------------------------------------------------------------------------------------

TABLE = pa.table({"v": [b"a"]})
Call = tuple[str, dict[str, object]]
SEND: dict[str, object] = {
    "topic": "t", "value": b"v", "key": None, "partition": None, "headers": (), "timestamp": None
}  # fmt: skip
OPEN: dict[str, list[Call]] = {
    "producer": [
        ("send", SEND),
        ("put", SEND),
        ("try_put", SEND),
        ("send_many", {"topic": "t", "rows": [b"a"], "partition": None}),
        ("send_arrow", {"topic": "t", "data": TABLE, "value": "v", "key": None, "headers": None, "timestamp": None}),
    ],
    "reader": [
        ("seek", {"partition": P0, "start": 0}),
        ("pause", {"partitions": P0}),
        ("resume", {"partitions": P0}),
        ("batches", {"max_records": None, "max_wait": 0.0}),
        ("arrow", {"max_bytes": 100, "max_wait": 0.0}),
    ],
    "cluster": [("partitions", {"topic": "t"}), ("positions", {"topic": "t", "at": od.EARLIEST})],
}
WORDS = {"headers": "header", "rows": "value and key"}
"""What an error may say instead of the name of the argument."""


async def outcome(target: object, call: Call, name: str, nonsense: object, *, argument: str = "") -> None:
    """Call with nonsense, and fail if it hangs or raises what it must not."""
    method, good = call
    keywords = {**good, argument or name: nonsense}
    positional = [keywords.pop("partitions")] if "partitions" in keywords and len(keywords) == 1 else []
    try:
        with anyio.fail_after(LIMIT_S):
            result = getattr(target, method)(*positional, **keywords)
            if isinstance(result, Awaitable):
                await result
    except Exception as error:
        check(error, f"{name}|{WORDS.get(name, name)}")


def alone(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run in a loop; fail if a task is left."""

    async def watched() -> None:
        await main()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    anyio.run(watched)


@pytest.fixture(scope="module")
def broker() -> Iterator[Kafka07Broker]:
    with Kafka07Broker(broker_id=1, config={"log.flush.interval": "1"}) as broker:
        yield broker


@pytest.mark.parametrize(("kind", "call"), [(kind, call) for kind, calls in OPEN.items() for call in calls])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_nonsense_given_to_an_open_object_is_refused_by_name_and_ends_nothing(
    broker: Kafka07Broker, kind: str, call: Call, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(call[1])))
    nonsense = data.draw(NONSENSE)

    async def main() -> None:
        async with (
            od.connect(f"kafka07://1@{broker.address}") as cluster,
            cluster.producer(deliver_within=DELIVER_S) as producer,
            cluster.reader({P0: od.EARLIEST}) as reader,
        ):
            targets = {"cluster": cluster, "producer": producer, "reader": reader}
            await outcome(targets[kind], call, name, nonsense)
            await producer.flush()
            producer.failures.take()
            assert (await producer.send("t", b"after", partition=P0)).confirmed

    alone(main)


PARTITION = od.TopicPartition("t", 0)
ADMIN: list[Call] = [
    ("create_topics", {"topics": "u", "partitions": 1, "replicas": 1, "config": {}, "validate_only": True}),
    ("delete_topics", {"topics": "u"}),
    ("add_partitions", {"totals": {"t": 2}, "validate_only": True}),
    ("describe_topics", {"topics": "t"}),
    ("delete_records", {"before": {PARTITION: 0}}),
    ("describe_topic_configs", {"topics": "t"}),
    ("describe_broker_configs", {"brokers": 1}),
    ("alter_topic_configs", {"changes": {"t": {"a": "b"}}, "validate_only": True}),
    ("alter_broker_configs", {"changes": {1: {"a": "b"}}, "validate_only": True}),
    ("describe_group_configs", {"groups": "g"}),
    ("alter_group_configs", {"changes": {"g": {"a": "b"}}, "validate_only": True}),
    ("describe_client_metrics", {"subscriptions": "m"}),
    ("alter_client_metrics", {"changes": {"m": {"a": "b"}}, "validate_only": True}),
    ("describe_groups", {"groups": "g"}),
    ("delete_groups", {"groups": "g"}),
    ("group_positions", {"group": "g"}),
    ("reset_positions", {"group": "g", "positions": {PARTITION: 0}, "dry_run": True}),
]


@pytest.mark.parametrize("call", ADMIN)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_nonsense_given_to_the_administration_is_refused_by_name(call: Call, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(call[1])))
    nonsense = data.draw(NONSENSE)

    async def main() -> None:
        async with MemoryCluster({"t": 1}).connect() as cluster:
            await outcome(cluster.admin, call, f"{name}|not supported here", nonsense, argument=name)
            assert (await cluster.admin.describe_cluster()).brokers

    alone(main)


class Stopped(Exception):
    """Ends `each`."""


async def stop(record: od.Record) -> None:
    raise Stopped


GROUP: list[Call] = [
    (
        "each",
        {
            "handle": stop, "parallel": 1, "order": "partition", "key": None, "retries": 0,
            "backoff": od.Backoff(0, 1, 0), "dead_letter": None,
        },
    ),
    *[
        (method, {name: PARTITION if value == P0 else value for name, value in good.items()})
        for method, good in OPEN["reader"]
    ],
]  # fmt: skip


@pytest.mark.parametrize("call", GROUP)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_nonsense_given_to_a_consumer_is_refused_by_name(call: Call, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(call[1])))
    nonsense = data.draw(NONSENSE)
    if nonsense is P0:
        nonsense = PARTITION  # one that there is, as P0 is on the broker of other tests

    async def main() -> None:
        memory = MemoryCluster({"t": 1})
        memory.append("t", [b"a"])
        memory.set_committed("g", {PARTITION: 0})
        async with memory.connect() as cluster, od.Consumer(cluster.driver, "t", group="g") as consumer:
            try:
                await outcome(consumer, call, name, nonsense)
            except (AssertionError, Stopped) as error:
                if "Stopped" not in repr(error):
                    raise
            assert consumer.state.name == "RUNNING"

    alone(main)
