"""A quick round of `fuzz.py`; the long one is a script."""

from __future__ import annotations

import pytest
from tests.fuzzing import allocation_of
from tests.wire.kafka.records import fuzz


def test_mutations_of_valid_record_sets_are_read_or_refused_alike(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.run(300, seed=11) == 0
    assert capsys.readouterr().out.startswith("300 inputs, seed 11: 0 failures")


def test_counts_and_lengths_that_cannot_be_cost_no_memory() -> None:
    data = bytearray(fuzz.material()[0])
    data[57:61] = (1 << 30).to_bytes(4, "big")
    fuzz.with_checksums(data)
    assert allocation_of(fuzz.fuzz_one, bytes(data)) < 1 << 17


def test_the_script_prints_the_input_that_broke_the_rule(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(data: bytes) -> None:
        raise KeyError("boom")

    monkeypatch.setattr(fuzz, "fuzz_one", broken)
    assert fuzz.run(5, seed=11) == 1
    assert "KeyError: 'boom'" in capsys.readouterr().err
