"""Spark with processes of its own on loopback: a standalone cluster, a Connect server, and interpreters for them.

An interpreter here finds everything that the tests' own one has, except odradek: that comes as a test says.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
import pyspark

from odradek.spark.session import environment

SPARK_HOME = Path(pyspark.__file__).parent
DEADLINE_S = 120

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


def interpreter(folder: Path, *wheels: Path) -> Interpreter:
    """One with these wheels, and with all that the tests' has but odradek: what is installed there in editable mode
    is not found through another one's path."""
    venv.create(folder, with_pip=False)
    made = Interpreter(folder)
    if wheels:
        pip = [sys.executable, "-m", "pip", "--python", made.python, "install", "--quiet", "--no-index", "--no-deps"]
        subprocess.run([*pip, *map(str, wheels)], check=True, timeout=DEADLINE_S)
    (made.packages / "tests.pth").write_text("\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))
    return made


class Machine:
    """Where processes of Spark run: nothing they write lies anywhere else.

    Args:
        folder: Theirs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tmp").mkdir(parents=True)
        self.environ = {
            **{key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
            **environment(folder / "java"),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_DIRS": str(folder / "tmp"),
            "TMPDIR": str(folder / "tmp"),
        }

    @contextmanager
    def started(self, name: str, command: Sequence[str], sign: str, **environ: str) -> Iterator[str]:
        """A process, ended with all of its own at the end of the block. Yields what the sign found in its output."""
        log = self.folder / f"{name}.log"
        with (
            log.open("wb") as output,
            subprocess.Popen(
                [*command], cwd=self.folder, env={**self.environ, **environ}, stdout=output, stderr=output
            ) as process,
        ):
            try:
                yield _awaited(process, log, sign)
            finally:
                end(process)

    def run(self, command: Sequence[str], **environ: str) -> str:
        """A command that must do well. Returns what it printed."""
        done = subprocess.run(
            [*command], cwd=self.folder, env={**self.environ, **environ}, capture_output=True, text=True,
            timeout=2 * DEADLINE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout


def _awaited(process: subprocess.Popen[bytes], log: Path, sign: str) -> str:
    until = time.monotonic() + DEADLINE_S
    while not (found := re.search(sign, log.read_text("utf-8", "replace"))):
        assert process.poll() is None and time.monotonic() < until, log.read_text("utf-8", "replace")
        time.sleep(0.1)
    return found[1]


def end(process: subprocess.Popen[bytes]) -> None:
    """It and what it started."""
    tree = (
        [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        if process.poll() is None
        else []
    )
    for each in tree:
        if each.is_running():
            each.kill()


@contextmanager
def standalone(machine: Machine) -> Iterator[str]:
    """A master and a worker with two cores. Yields the URL of the master."""
    launch = str(SPARK_HOME / "bin" / "spark-class")
    deploy = "org.apache.spark.deploy"
    with ExitStack() as stack:
        serve = [launch, f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        sign = r"Starting Spark master at (spark://\S+)"
        url = stack.enter_context(machine.started("master", serve, sign, SPARK_MASTER_OPTS=NO_REST))
        work = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0", "--cores", "2", "--memory", "1g"]
        place = ["--work-dir", str(machine.folder / "work")]
        worker = [launch, f"{deploy}.worker.Worker", *work, *place, url]
        stack.enter_context(machine.started("worker", worker, r"(Successfully registered) with master"))
        yield url
