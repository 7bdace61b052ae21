"""Which engine runs, and who says so."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import odradek
from odradek import engine as engines

PRINT_ENGINE = "from odradek import engine; print(engine.active.NAME)"
WITHOUT = f"import sys; sys.modules['odradek.engine._compiled'] = None; {PRINT_ENGINE}"  # an import of it fails


def python(*arguments: str, choice: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != engines.VARIABLE}
    if choice is not None:
        environment[engines.VARIABLE] = choice
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("choice", "code", "name"),
    [
        (None, PRINT_ENGINE, "compiled"),
        ("", PRINT_ENGINE, "compiled"),
        ("compiled", PRINT_ENGINE, "compiled"),
        ("pure", PRINT_ENGINE, "pure"),
        (None, WITHOUT, "pure"),
        ("pure", WITHOUT, "pure"),
    ],
)
def test_the_compiled_one_runs_unless_it_is_missing_or_unwanted(choice: str | None, code: str, name: str) -> None:
    done = python("-c", code, choice=choice)
    assert (done.stdout.strip(), done.stderr) == (name, "")


@pytest.mark.parametrize(
    ("choice", "code", "message"),
    [("compiled", WITHOUT, "_compiled"), ("fast", PRINT_ENGINE, "ODRADEK_ENGINE='fast': there is no such engine")],
)
def test_a_missing_engine_that_is_chosen_is_an_error(choice: str, code: str, message: str) -> None:
    done = python("-c", code, choice=choice)
    assert done.returncode == 1
    assert "ImportError" in done.stderr or "ModuleNotFoundError" in done.stderr
    assert message in done.stderr


@pytest.mark.parametrize("name", ["pure", "compiled"])
def test_the_version_says_which_engine_runs(name: str) -> None:
    done = python("-m", "odradek.cli", "--version", choice=name)
    assert done.stdout == f"odradek {odradek.__version__} (engine: {name})\n"


def test_the_choice_is_made_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for asked, chosen in (("pure", "pure"), ("compiled", "compiled"), ("", "compiled")):
        monkeypatch.setenv(engines.VARIABLE, asked)
        assert chosen == engines._choose().NAME
    monkeypatch.setitem(sys.modules, engines.ENGINES["compiled"], None)
    assert engines._choose().NAME == "pure"


def test_use_switches_the_engine_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "active", engines.active)  # puts it back afterwards
    for name in ("pure", "compiled", "pure"):
        engines.use(name)
        assert name == engines.active.NAME
    with pytest.raises(ImportError, match="choose one of compiled, pure"):
        engines.use("none")
