"""A quick round of `fuzz.py`; the long one is a script."""

from __future__ import annotations

import mmap
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import allocation_of
from tests.wire import fuzz


@given(data=st.binary(max_size=400))
def test_any_bytes(data: bytes) -> None:
    fuzz.fuzz_one(data)


@given(seed=st.integers(0, 1 << 32))
def test_mutations_of_valid_bytes(seed: int) -> None:
    fuzz.fuzz_one(fuzz.hostile(random.Random(seed), fuzz.material()))


def test_memory_stays_within_its_bound() -> None:
    rng, valid = random.Random(3), fuzz.material()
    for data in [*valid, *(fuzz.hostile(rng, valid) for _ in range(100))]:
        assert allocation_of(fuzz.fuzz_one, data) <= fuzz.allocation_limit(data), data.hex()


def test_the_script_ends_with_a_line_that_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.run(300, seed=11) == 0
    assert capsys.readouterr().out.startswith("300 inputs, seed 11: 0 failures")


def test_the_script_notices_memory_that_is_taken_and_not_touched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def reserve(data: bytes) -> None:
        mmap.mmap(-1, 1 << 36, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0).close()

    if fuzz.address_space():
        monkeypatch.setattr(fuzz, "fuzz_one", reserve)
        assert fuzz.run(1, seed=11) == 1
        assert "the process grew by" in capsys.readouterr().err


def test_the_script_prints_the_input_that_broke_the_rule(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(data: bytes) -> None:
        raise KeyError("boom")

    monkeypatch.setattr(fuzz, "fuzz_one", broken)
    assert fuzz.run(5, seed=11) == 1
    assert "input 0 of seed 11: KeyError: 'boom'" in capsys.readouterr().err
