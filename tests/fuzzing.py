"""What the fuzzers share: mutations of bytes, what an input may cost, and the script around a rule.

A fuzzer is a module with a rule `fuzz_one`, a generator of hostile inputs and a function `run` that passes both to
`run_inputs`. It is run as `python -m`, with `main`.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import signal
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

Input = TypeVar("Input")
Mutation = Callable[[random.Random, bytearray], None]

HANG_S = 60


# ---- mutations of bytes that are not empty ------------------------------------------------------------------


def overwrite(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] = rng.randrange(256)


def flip(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def remove(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.randrange(1, 12)]


def double(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    data[at:at] = data[at : at + rng.randrange(1, 40)]


def cut(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]


def number(numbers: Sequence[int], sizes: Sequence[int]) -> Mutation:
    """Return a mutation that writes one of these numbers, big-endian, in one of these sizes."""

    def write(rng: random.Random, data: bytearray) -> None:
        at, size = rng.randrange(len(data)), rng.choice(sizes)
        data[at : at + size] = (rng.choice(numbers) & ((1 << 8 * size) - 1)).to_bytes(size, "big")

    return write


def mutate(rng: random.Random, data: bytearray, mutations: Sequence[Mutation]) -> None:
    """Apply none to four of the mutations."""
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        if data:
            rng.choice(mutations)(rng, data)


# ---- the script ---------------------------------------------------------------------------------------------


class Sampling(NamedTuple):
    """How much memory an input may take, and how many inputs are measured: that takes time."""

    every: int
    limit: Callable[[bytes], int]


def allocation_of(rule: Callable[[Input], object], value: Input) -> int:
    """Return the most memory (bytes) that Python knows the rule to take at any moment, once caches are filled."""
    rule(value)
    tracemalloc.start()
    try:
        rule(value)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def run_inputs(
    rule: Callable[[Input], object],
    inputs: Iterable[Input],
    describe: Callable[[Input], tuple[str, bytes]],
    sampling: Sampling,
    *,
    seed: int,
    alive: Callable[[], object] = lambda: None,
) -> int:
    """Check the rule for every input and return the exit code: 1 at the first that breaks it, which is printed.

    Args:
        describe: The name of an input, which may be empty, and its bytes.
        seed: What the inputs were made of, for the lines that are printed.
        alive: Is called before every thousandth input.
    """
    began, count, largest, slowest = time.perf_counter(), 0, 0, 0.0
    for count, value in enumerate(inputs, 1):
        if (count - 1) % 1000 == 0:
            alive()
        name, data = describe(value)
        start = time.perf_counter()
        try:
            if (count - 1) % sampling.every == 0:
                allocated = allocation_of(rule, value)
                assert allocated <= sampling.limit(data), f"{allocated} bytes allocated for {len(data)}"
                largest = max(largest, allocated)
            else:
                rule(value)
        except Exception as error:
            sys.stderr.write(f"input {count - 1} of seed {seed}{name}: {type(error).__name__}: {error}\n{data.hex()}\n")
            return 1
        slowest = max(slowest, time.perf_counter() - start)
    seconds = time.perf_counter() - began
    sys.stdout.write(
        f"{count} inputs, seed {seed}: 0 failures in {seconds:.0f} s; slowest {1000 * slowest:.0f} ms; "
        f"most memory in a sample {largest} bytes, allowed at least {sampling.limit(b'')}\n"
    )
    return 0


def main(run: Callable[[int, int, Callable[[], object]], int], doc: str | None, count: int = 200_000) -> None:
    """Run a fuzzer as a script that ends with the exit code of `run(count, seed, alive)`.

    An input that takes longer than HANG_S ends the process with the stack of where it is. There is no thread for that:
    it would take address space of its own.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=count, help="inputs (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=7, help="of the generator (default: %(default)s)")
    options = parser.parse_args()
    faulthandler.register(signal.SIGALRM, chain=True)
    sys.exit(run(options.count, options.seed, lambda: signal.alarm(HANG_S)))
