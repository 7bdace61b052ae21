"""What a run says of errors that come through Spark."""

from __future__ import annotations

import pytest

from odradek.errors import ConfigError
from odradek.pipeline.run import _Enough, _is_enough, _words


class Py4JJavaError(Exception):
    """As Spark's bridge has it."""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConfigError("ours"), "ours"),
        (Exception("a\nodradek.pipeline.errors.NotExact: flow f: twice\n at b"), "flow f: twice"),
        (ValueError("first\nsecond"), "ValueError: first"),
        (ValueError(), "ValueError: "),
        (Py4JJavaError("An error occurred while calling o1.save.\n: a.B: why\n\tat c"), "Py4JJavaError: a.B: why"),
    ],
)
def test_an_error_is_told_in_a_line(error: Exception, words: str) -> None:
    assert _words(error) == words


def test_the_end_of_a_run_is_no_error_wherever_it_was_raised() -> None:
    assert _is_enough(_Enough()) and _is_enough(RuntimeError("Traceback\nodradek.pipeline.run._Enough\n"))
    assert not _is_enough(RuntimeError("enough"))
