"""Spark with processes of its own on loopback: a standalone cluster, a Connect server, and interpreters for them.

An interpreter made here finds everything that the tests' own one has, except odradek: that comes as a test says.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from odradek.spark.session import environment

from .classes import STARTUP, spark_environ, spark_home

DEADLINE_S = 480
"""For each process to do what it is for: on two quiet cores all need less than 20."""

NO_REST = "-Dspark.master.rest.enabled=false"
"""Of the master: its second way to submit, for which it would take a fixed port."""


class Interpreter(NamedTuple):
    """A virtual environment."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def packages(self) -> Path:
        return Path(sysconfig.get_path("purelib", "venv", {"base": str(self.folder)}))


def without_paths() -> dict[str, str]:
    """The environment, without where other tests make Spark look for sources."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def interpreter(folder: Path, *wheels: Path) -> Interpreter:
    """One with these wheels, and with all that the tests' own one has but odradek: what is installed there in editable
    mode is not found through somebody else's path."""
    venv.create(folder, with_pip=False)
    made = Interpreter(folder)
    if wheels:
        pip = [sys.executable, "-I", "-m", "pip", "--isolated", "--python", made.python]  # no sources on its path
        subprocess.run(
            [*pip, "install", "--quiet", "--no-index", "--no-deps", *map(str, wheels)],
            env=without_paths(), check=True, timeout=DEADLINE_S,
        )  # fmt: skip
    ours = [path for path in sys.path if Path(path).name == "site-packages"]
    (made.packages / "tests.pth").write_text("\n".join(ours))
    shutil.copy(STARTUP / "sitecustomize.py", made.packages)
    return made


class Machine:
    """Where processes of Spark run: what they write lies below its folder.

    Args:
        folder: Is made.
        python: Runs drivers and tasks.
    """

    def __init__(self, folder: Path, python: Interpreter) -> None:
        self.folder = folder
        (folder / "tmp").mkdir(parents=True)
        path = (python.folder / "bin", spark_home() / "bin", os.environ["PATH"])
        self.environ = {
            **without_paths(),
            **environment(folder / "java"),
            **spark_environ(),
            "PATH": os.pathsep.join(map(str, path)),
            "PYSPARK_PYTHON": python.python,
            "PYSPARK_DRIVER_PYTHON": python.python,
            "SPARK_LOCAL_DIRS": str(folder / "tmp"),
            "TMPDIR": str(folder / "tmp"),
        }

    @contextmanager
    def started(self, name: str, command: Sequence[str], sign: str, **environ: str) -> Iterator[str]:
        """A process, killed with all of its own at the end of the block. Yields what the sign finds in its output."""
        log = self.folder / f"{name}.log"
        environment = {**self.environ, **environ}
        with (
            log.open("wb") as out,
            subprocess.Popen(command, cwd=self.folder, env=environment, stdout=out, stderr=out) as process,
        ):
            try:
                yield _awaited(process, log, sign)
            finally:
                _kill(process)

    def run(self, line: str, folder: Path) -> str:
        """A line for the shell that must do well. Returns what it printed."""
        done = subprocess.run(
            ["bash", "-euc", line], cwd=folder, env=self.environ, capture_output=True, text=True,
            timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def _awaited(process: subprocess.Popen[bytes], log: Path, sign: str) -> str:
    until = time.monotonic() + DEADLINE_S
    while not (match := re.search(sign, log.read_text("utf-8", "replace"))):
        assert process.poll() is None and time.monotonic() < until, log.read_text("utf-8", "replace")
        time.sleep(0.1)
    return match[1]


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        for each in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
            if each.is_running():
                each.kill()


@contextmanager
def standalone(machine: Machine) -> Iterator[str]:
    """A master, and a worker with two cores: each application has an executor. Yields the URL of the master."""
    deploy = "org.apache.spark.deploy"
    ports = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    sign = r"Starting Spark master at (spark://\S+)"
    serve = ["spark-class", f"{deploy}.master.Master", *ports]
    with machine.started("master", serve, sign, SPARK_MASTER_OPTS=NO_REST) as url:
        size = ["--cores", "2", "--memory", "1g", "--work-dir", str(machine.folder / "work")]
        work = ["spark-class", f"{deploy}.worker.Worker", *ports, *size, url]
        with machine.started("worker", work, "(Successfully registered) with master"):
            yield url
