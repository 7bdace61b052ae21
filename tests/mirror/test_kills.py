"""A short run of the program that kills a mirror and its clusters: `python -m tests.mirror.kills` runs as long as one
likes."""

from __future__ import annotations

import pytest

from .kills.run import differences, run


@pytest.mark.brokers
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.sampled(3)
@pytest.mark.parametrize("source", ["0.7", "0.10.2.2", "logs of 0.7"])
def test_a_mirror_that_is_killed_copies_every_record_once(source: str) -> None:
    logs = source.startswith("logs")
    done = run(source.removeprefix("logs of "), 3000, 3, seed=1, brokers=1, pause_s=0.3, logs=logs)
    assert done.problems == []
    assert done.records >= 3000
    assert {"mirror killed", "target killed", *(() if logs else ("source killed",))} <= done.faults.keys()


@pytest.mark.parametrize(
    ("copies", "text"),
    [
        ([1, 2, 2], "3 on the source, 3 on the target: 1 missing, 1 more, differ from record 2 on"),
        ([1, 2], "3 on the source, 2 on the target: 1 missing, 0 more, differ from record 2 on"),
        ([1, 2, 3, 3], "3 on the source, 4 on the target: 0 missing, 1 more, differ from record 3 on"),
        ([1, 3, 2], "3 on the source, 3 on the target: 0 missing, 0 more, differ from record 1 on"),
    ],
)
def test_differences_are_noticed(copies: list[int], text: str) -> None:
    assert differences({0: [1, 2, 3], 1: [4]}, {0: copies, 1: [4]}) == [f"partition 0: {text}"]
    assert differences({0: [1, 2, 3]}, {0: [1, 2, 3]}) == []
