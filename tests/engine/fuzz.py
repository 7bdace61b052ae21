"""The same bytes through both engines.

    python -m tests.engine.fuzz --count 100000 --seed 7

makes sets of good, damaged, compressed and senseless entries and holds every function of one engine against the other:
results, places to stop, and errors. Deterministic for a seed. Exit code 1 at the first difference, which is printed.
"""

from __future__ import annotations

import random
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

from tests import fuzzing

from odradek import engine as engines
from odradek.engine import NO_LIMIT, Buffer, Engine, HeaderColumns, PackedBytes
from odradek.engine.columns import COLUMN_NAMES

MOST = (1 << 63) - 1  # the last position
ENGINES = [engines.engine("pure"), engines.engine("compiled")]

Outcome = tuple[object, ...]


def plain(value: Any) -> object:
    """What an engine gave, as lists and numbers."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, memoryview | PackedBytes | HeaderColumns):
        return value.tolist()
    if hasattr(value, "next_positions"):
        return len(value), value.payload_bytes, plain(tuple(getattr(value, name) for name in COLUMN_NAMES))
    return value


def outcome(function: Callable[..., object], *arguments: object) -> Outcome:
    """The result, or the kind of error."""
    try:
        return "gave", plain(function(*arguments))
    except (ValueError, OverflowError, TypeError, BufferError) as error:
        return "raised", type(error)


# ---- what is done with both engines -------------------------------------------------------------------------


def runs(engine: Engine, data: Buffer, start: int, stop: int, base: int, max_entry: int) -> Outcome:
    """Rows of a run, of the same run as a wrapper, of single messages and of the run once more."""
    rows, values = engine.ColumnBuilder(), engine.PayloadBuilder()
    story: list[object] = [
        outcome(engine.check_run, data, start, stop, max_entry),
        outcome(rows.decode_run, data, start, stop, base, max_entry),
        outcome(values.decode_run, data, start, stop),
        (len(rows), len(values), values.payload_bytes),
    ]
    values.append(b"appended")
    rows.add_wrapper(engine.PayloadBuilder(), -1, -2)
    rows.add_wrapper(values, 5, 7)
    rows.append(b"raw", -3, -4)
    story.append(outcome(rows.decode_run, data, start, stop, base, max_entry))
    rows.append(memoryview(b"in a wrapper"), 8, 9, 3)
    story.append(engine.crc32(bytes(data), max_entry & 0xFFFFFFFF))
    return *story, values.tolist(), len(rows), outcome(rows.take), outcome(rows.take), len(rows)


def lists(
    engine: Engine, values: Sequence[bytes | None], start: int, stop: int, limits: tuple[int, int, int]
) -> Outcome:
    return (
        outcome(engine.encode_run, values, max(limits) & 0xFF),
        outcome(engine.encode_frame, b"head", [b"", b"own"], [values, [(value,) for value in values]], b"", limits[0]),
        outcome(
            engine.encode_batches,
            [values, [(value, value, (), None) for value in values]],
            [(0, limits[0], limits[1], limits[2]), (16, -1, -1, -1)],
            start,
        ),
        outcome(engine.fit, values, start, stop, *limits),
        outcome(engine.fit, values, start, stop, *limits, True),
    )


def strings(engine: Engine, offsets: Sequence[int], data: bytes, code: str, validity: bytes | None) -> Outcome:
    ends = memoryview(array(code, offsets))
    rows = max(0, len(offsets) - 1)
    fits = validity is not None and len(validity) == rows
    packed = PackedBytes(ends, memoryview(data), memoryview(validity) if validity is not None and fits else None)
    return (
        outcome(engine.unpack, ends, data, validity),
        outcome(engine.encode_run, packed if offsets else []),
        outcome(engine.fit, packed if offsets else [], rows // 2, rows, 1 << 40, 1, 1 << 40, True),
    )


def on(engine: Engine, function: Callable[..., Outcome], arguments: Sequence[object]) -> Outcome:
    before, engines.active = engines.active, engine  # which `PackedBytes` goes by
    try:
        return function(engine, *arguments)
    finally:
        engines.active = before


def differ(name: str, *arguments: Any) -> str:
    """How the engines differ in what they make of this; empty when they do not."""
    pure, compiled = (on(engine, globals()[name], arguments) for engine in ENGINES)
    return "" if pure == compiled else f"{name}{arguments!r}\npure:     {pure!r}\ncompiled: {compiled!r}"


# ---- hostile material ---------------------------------------------------------------------------------------


def entry(payload: bytes, magic: int, attributes: int, crc: int | None = None, longer: int = 0) -> bytes:
    """One entry, field by field; perhaps with a wrong CRC or length."""
    checked = crc32(payload) if crc is None else crc
    body = bytes([magic]) + (bytes([attributes]) if magic else b"") + checked.to_bytes(4, "big") + payload
    return ((len(body) + longer) & 0xFFFFFFFF).to_bytes(4, "big") + body


def some_entry(rng: random.Random, oddity: int) -> bytes:
    """One of so many is odd."""
    payload = rng.randbytes(rng.choice([0, 0, 1, 2, 15, 16, 17, 63, 100, 130, rng.randrange(400)]))
    magic, attributes = rng.choice([0, 1, 1, 1]), rng.choice([0, 0, 0, 4, 0xFC])
    match rng.randrange(6 * oddity):
        case 0:
            return entry(payload, 1, rng.randrange(256))
        case 1:
            return entry(payload, magic, attributes, crc=rng.choice([0, crc32(payload) ^ 1 << rng.randrange(32)]))
        case 2:
            return entry(payload, magic, attributes, longer=rng.choice([-20, -6, -1, 1, 5, 1 << 31, -len(payload)]))
        case 3:
            return entry(payload, rng.randrange(256), attributes)
        case 4:
            return rng.randbytes(rng.randrange(30))
        case 5:
            return rng.choice([b"\xff", b"\0", b"\x7f"]) * rng.randrange(30)
    return entry(payload, magic, attributes)


def some_set(rng: random.Random) -> bytes:
    oddity, count = rng.choice([2, 5, 50, 1000]), rng.choice([0, 1, 2, 5, 5, 40, 40, 400])
    data = bytearray(b"".join(some_entry(rng, oddity) for _ in range(count)))
    if rng.randrange(4) == 0:
        del data[rng.randrange(len(data) + 1) :]
    if data and rng.randrange(4) == 0:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


BUFFERS: list[Callable[[bytes], Any]] = [
    bytes,
    bytearray,
    memoryview,
    lambda data: memoryview(bytearray(data)),
    lambda data: memoryview(b"<" + data + b">")[1:-1],
    lambda data: memoryview(data)[::-1],
    lambda data: memoryview(data).cast("b"),
    lambda data: memoryview(data).cast("c"),
]


def some_run(rng: random.Random) -> tuple[object, ...]:
    data = some_set(rng)
    start = rng.choice([0, 0, 0, rng.randrange(-2, len(data) + 3)])
    stop = rng.choice([len(data), len(data), rng.randrange(-2, len(data) + 3)])
    bases = [0, -start, 1 << 40, MOST - len(data), rng.randrange(-9, 9) + MOST - len(data), -MOST]
    base = min(rng.choice(bases), MOST)
    return rng.choice(BUFFERS)(data), start, stop, base, rng.choice([NO_LIMIT, NO_LIMIT, 110, 0, -5])


def some_list(rng: random.Random) -> tuple[object, ...]:
    values: list[object] = [rng.randbytes(rng.randrange(30)) for _ in range(rng.randrange(12))]
    if values and rng.randrange(5) == 0:
        values[rng.randrange(len(values))] = rng.choice([bytearray(b"array"), memoryview(b"view"), "text", None, 7])
    limits = rng.choice([100, 1 << 40, 0, -1]), rng.choice([0, 10, 34]), rng.choice([10, 25, 1 << 40])
    stop = rng.choice([len(values), rng.randrange(-1, len(values) + 2)])
    return rng.choice([values, values, tuple(values)]), rng.randrange(-1, 5), stop, limits


def some_strings(rng: random.Random) -> tuple[object, ...]:
    data = rng.randbytes(rng.randrange(100))
    ends = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(12)))
    if ends and rng.randrange(3) == 0:
        ends[rng.randrange(len(ends))] = rng.choice([-1, len(data) + 1, 0, (1 << 31) - 1, -(1 << 31)])
    flags = [rng.choice([0, 1, 1, 255]) for _ in range(max(0, len(ends) - rng.choice([1, 1, 1, 1, 0, 2])))]
    return ends, data, rng.choice("iqqBd"), rng.choice([None, bytes(flags)])


MATERIAL: list[tuple[str, Callable[[random.Random], tuple[object, ...]]]] = [
    ("runs", some_run),
    ("runs", some_run),
    ("lists", some_list),
    ("strings", some_strings),
]


# ---- the script ---------------------------------------------------------------------------------------------


def run(count: int, seed: int, alive: Callable[[], object] = lambda: None) -> int:
    """Give the exit code. `alive` is called every thousand inputs."""
    rng, began = random.Random(seed), time.perf_counter()
    for i in range(count):
        if i % 1000 == 0:
            alive()
        name, make = rng.choice(MATERIAL)
        try:
            arguments = make(rng)
            difference = differ(name, *arguments)
        except OverflowError as error:  # offsets that their own array does not take
            difference = "" if name == "strings" else repr(error)
        if difference:
            sys.stderr.write(f"input {i} of seed {seed}: {difference}\n")
            return 1
    sys.stdout.write(f"{count} inputs, seed {seed}: no difference in {time.perf_counter() - began:.0f} s\n")
    return 0


if __name__ == "__main__":
    fuzzing.main(run, __doc__, 100_000)
