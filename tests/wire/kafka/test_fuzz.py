"""A quick round of `fuzz.py`; the long one is a script."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import allocation_of
from tests.wire.kafka import fuzz

from odradek.wire.kafka.messages.data import FetchResponse
from odradek.wire.kafka.messages.metadata import MetadataResponse


@given(data=st.binary(max_size=300), version=st.integers(0, 13))
def test_any_bytes_are_read_or_refused(data: bytes, version: int) -> None:
    fuzz.fuzz_one(fuzz.Case(MetadataResponse, version, data))
    fuzz.fuzz_one(fuzz.Case(FetchResponse, version, data))


def test_mutations_of_valid_messages_are_read_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.run(2000, seed=11) == 0
    assert capsys.readouterr().out.startswith("2000 inputs, seed 11: 0 failures")


def test_a_count_that_cannot_be_costs_no_memory() -> None:
    announced = b"\0" * 4 + (1 << 26).to_bytes(4, "big")
    case = fuzz.Case(MetadataResponse, 3, announced + b"\0" * 100)
    assert allocation_of(fuzz.fuzz_one, case) < 65536


def test_the_script_prints_the_input_that_broke_the_rule(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(case: object) -> None:
        raise KeyError("boom")

    monkeypatch.setattr(fuzz, "fuzz_one", broken)
    assert fuzz.run(5, seed=11) == 1
    assert "KeyError: 'boom'" in capsys.readouterr().err
