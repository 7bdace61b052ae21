"""How a run ends."""

from __future__ import annotations

from odradek.pipeline.run import _Enough, _is_enough


def test_the_end_of_a_run_is_no_error_wherever_it_was_raised() -> None:
    assert _is_enough(_Enough()) and _is_enough(RuntimeError("Traceback\nodradek.pipeline.run._Enough\n"))
    assert not _is_enough(RuntimeError("enough"))
