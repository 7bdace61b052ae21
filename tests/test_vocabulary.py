"""The check of the code's words finds what it is there to find; `scripts/test` runs it."""

from __future__ import annotations

import runpy
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "vocabulary"
MAIN = runpy.run_path(str(SCRIPT))["main"]


def checked(root: Path, files: dict[str, str]) -> list[str]:
    """The findings for a checkout that has just these files."""
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    with redirect_stdout(StringIO()) as out:
        status = MAIN([str(root)])
    findings = out.getvalue().splitlines()
    assert status == (1 if findings else 0)
    return findings


def test_a_class_name_may_appear_once_in_src(tmp_path: Path) -> None:
    files = {
        "src/a.py": "class Queue: ...\nclass Holder:\n    class _Part: ...\n",
        "src/b/c.py": "class Queue: ...\nclass _Part: ...\n",
        "tests/d.py": "class Queue: ...\n",
    }
    assert checked(tmp_path, files) == [
        "src/b/c.py:1: Queue: another class has this name: src/a.py:1",
        "src/b/c.py:2: _Part: another class has this name: src/a.py:3",
    ]


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("def take_turn(): ...", "take_turn"),
        ("class FetchLot: ...", "FetchLot"),
        ("def f(given): ...", "given"),
        ("async def _pump(): ...", "_pump"),
        ("STRIKES = 3", "STRIKES"),
        ("def f(self):\n    self.last_place = 1", "last_place"),
        ("import os as lane", "lane"),
        ("for piece in (): ...", "piece"),
        ("(room := 1)", "room"),
        ("try: ...\nexcept OSError as verdict: ...", "verdict"),
        ("match 1:\n    case found: ...", "found"),
        ("class Reader:\n    era: int", "era"),
    ],
)
@pytest.mark.parametrize("directory", ["src", "tests", "benchmarks", "docs/_ext"])
def test_a_banned_word_is_found_in_every_kind_of_name(code: str, name: str, directory: str, tmp_path: Path) -> None:
    (line,) = checked(tmp_path, {f"{directory}/a.py": code})
    assert f": {name}: " in line and line.startswith(f"{directory}/a.py:")


def test_a_banned_word_is_found_in_the_name_of_a_module(tmp_path: Path) -> None:
    assert checked(tmp_path, {"src/bell.py": ""}) == ["src/bell.py:1: bell: 'bell' is no word for a name"]


@pytest.mark.parametrize(
    "code",
    [
        "replace = placeholder = lookup = TurnkeySystem = 1",
        "import os\nfor root in os.walk('.'): ...",
        "text = 'the place of each lane'",
        "def test_every_record_is_found_in_its_place(): ...",
    ],
)
def test_other_names_uses_and_texts_are_not_findings(code: str, tmp_path: Path) -> None:
    assert checked(tmp_path, {"src/a.py": code}) == []


def test_metaphors_are_wrong_in_names_of_tests_as_well(tmp_path: Path) -> None:
    assert len(checked(tmp_path, {"tests/a.py": "def test_the_bell_rings(): ..."})) == 1


def test_a_name_is_reported_once_a_file(tmp_path: Path) -> None:
    assert len(checked(tmp_path, {"src/a.py": "place = 1\nplace = 2\n"})) == 1


@pytest.mark.parametrize(
    "code",
    [
        '"""What this is for."""',
        'class A:\n    """Whoever reads."""',
        'def f():\n    """Until it ends."""',
        'class A:\n    def f(self):\n        """`How` it is done."""',
        'LIMIT = 3\n"""So many at a time."""',
        'class A:\n    limit: int = 3\n    """Of each broker."""',
        'def f():\n    """Returns a number."""',
    ],
)
def test_a_docstring_with_a_wrong_beginning_is_a_finding(code: str, tmp_path: Path) -> None:
    (line,) = checked(tmp_path, {"src/a.py": code})
    assert ": the docstring begins with '" in line


@pytest.mark.parametrize(
    "code",
    [
        '"""Values of the wire format."""',
        'def f():\n    """Return a number."""',
        'def _f():\n    """What is private."""',
        'class _A:\n    def f(self):\n        """What is private."""',
        'def f():\n    "no documentation" if 1 else 2',
        'class A:\n    """In-memory log."""',
    ],
)
def test_other_docstrings_are_not_findings(code: str, tmp_path: Path) -> None:
    assert checked(tmp_path, {"src/a.py": code}) == []
