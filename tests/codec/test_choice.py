"""Which engine runs, and who says so."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import odradek
from odradek import codec

TELL = "from odradek import codec; print(codec.active.NAME)"
WITHOUT = f"import sys; sys.modules['odradek.codec._compiled'] = None; {TELL}"  # an import of it fails


def python(*arguments: str, choice: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != codec.VARIABLE}
    if choice is not None:
        environment[codec.VARIABLE] = choice
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("choice", "code", "name"),
    [
        (None, TELL, "compiled"),
        ("", TELL, "compiled"),
        ("compiled", TELL, "compiled"),
        ("pure", TELL, "pure"),
        (None, WITHOUT, "pure"),
        ("pure", WITHOUT, "pure"),
    ],
)
def test_the_compiled_one_runs_unless_it_is_missing_or_unwanted(choice: str | None, code: str, name: str) -> None:
    done = python("-c", code, choice=choice)
    assert (done.stdout.strip(), done.stderr) == (name, "")


@pytest.mark.parametrize(
    ("choice", "code", "told"),
    [("compiled", WITHOUT, "_compiled"), ("fast", TELL, "ODRADEK_CODEC='fast': there is no such codec")],
)
def test_who_asks_for_one_hears_that_it_is_missing(choice: str, code: str, told: str) -> None:
    done = python("-c", code, choice=choice)
    assert done.returncode == 1
    assert "ImportError" in done.stderr or "ModuleNotFoundError" in done.stderr
    assert told in done.stderr


@pytest.mark.parametrize("name", ["pure", "compiled"])
def test_the_version_says_which_codec_runs(name: str) -> None:
    done = python("-m", "odradek.cli", "--version", choice=name)
    assert done.stdout == f"odradek {odradek.__version__} (codec: {name})\n"


def test_the_choice_is_made_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for asked, chosen in (("pure", "pure"), ("compiled", "compiled"), ("", "compiled")):
        monkeypatch.setenv(codec.VARIABLE, asked)
        assert chosen == codec._choose().NAME
    monkeypatch.setitem(sys.modules, codec.ENGINES["compiled"], None)
    assert codec._choose().NAME == "pure"


def test_use_switches_for_whoever_looks_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "active", codec.active)  # puts it back afterwards
    for name in ("pure", "compiled", "pure"):
        codec.use(name)
        assert name == codec.active.NAME
    with pytest.raises(ImportError, match="there are compiled, pure"):
        codec.use("none")
