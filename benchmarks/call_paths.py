"""The way of one record through the library, counted with a profiler: the paths of docs/DESIGN.md.

    python -m benchmarks.call_paths [NAME ...]

A path prints its hops in the order of the calls, each with the ring it belongs to, and how many Python calls of the
library there are in all. A hop is a function, a method or a constructor that passes on the record, its batch or its
request. Not counted as hops, but among the calls, are properties, questions that change nothing, and parts of a hop
that have a name of their own: `NO_HOPS` lists them. Comprehensions count as nothing, because later releases of Python
do not call them; nor does the way a coroutine continues.

The servers are those of `odradek.testing`: a real broker for `kafka`, the embedded one for `kafka07`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from inspect import CO_COROUTINE
from pathlib import Path
from types import FrameType
from typing import Any

import odradek
from odradek import Producer, connect
from odradek.testing import Kafka07Broker, KafkaBroker

__all__ = ["CALL_PATHS", "CallPath", "main", "send_kafka", "send_kafka07"]

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
    "RequestPipeline._has_more",
    "Sender._connection_changed",
    "_step",
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
    "IdempotentProducer._next_step",
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
    "ProduceExchange._end",
    "ProduceExchange._take",
    "RequestPipeline._decode",
    "RequestPipeline._encode",
    "RequestPipeline._resolve",
    "Router.broker",
    "Sender._apply_result",
    "Sender._encode",
    "_Sequences.before",
    "_check_count",
    "_columns",
    "_encoder.<locals>.encode",
    "_decoder.<locals>.decode",
    "_frame",
    "_set_sniffio_asyncio",
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


class _Counter:
    """Counts the calls of this thread between `begin` and `end` (`sys.setprofile`)."""

    def __init__(self) -> None:
        self.path = CallPath()
        self._is_out = True
        self._known: set[FrameType] = set()  # coroutines that have begun: they are called again to continue

    def begin(self) -> None:
        sys.setprofile(self._event)

    def end(self) -> None:
        sys.setprofile(None)
        self._known.clear()

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        steps = self.path.out if self._is_out else self.path.back
        if event == "c_call":
            if (module := getattr(argument, "__module__", None) or "").startswith("odradek"):
                steps.append(Step(f"{argument.__name__} (compiled)", module.split(".")[1].lstrip("_"), True))
            return
        if event == "return" and code is Producer.send.__code__:
            self._is_out = False
            return
        if event != "call":
            return
        ring = _ring(code.co_filename, code.co_name)
        if ring is None or frame in self._known:
            return
        if code.co_flags & CO_COROUTINE:
            self._known.add(frame)
        name = code.co_qualname.replace(".__init__", "()").replace(".<locals>", "")
        steps.append(Step(name, ring, not (code.co_qualname in NO_HOPS or _is_property(frame))))


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
        counter = _Counter()
        counter.begin()
        try:
            await producer.send(topic, b"the record")
        finally:
            counter.end()
        return counter.path


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


def main(names: Sequence[str]) -> None:
    """Print paths, all of them by default; with `--all` every call. `--quick`, which all benchmarks take, changes
    nothing. Raises KeyError for other names."""
    for name in [name for name in names if not name.startswith("--")] or CALL_PATHS:
        path = CALL_PATHS[name]()
        print(f"{name}\n{path}")
        if "--all" in names:
            print(path.all_calls())


if __name__ == "__main__":
    main(sys.argv[1:])
