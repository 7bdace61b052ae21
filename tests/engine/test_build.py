"""What is built where there is a Rust compiler, and where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

import odradek

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
BUILD = "import sys; from setuptools import build_meta as b; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"
BUILT = ("*.so", "target", "build", "dist", "*.egg-info", "__pycache__", ".*", "_build")
OWN = f"cp3{sys.version_info.minor}"
QUICK = {"CARGO_PROFILE_RELEASE_LTO": "off", "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16"}
"""Cargo compiles in a quarter of the time."""
TAG = f"{OWN}-{OWN}t" if sysconfig.get_config_var("Py_GIL_DISABLED") else "cp311-abi3"
"""Free-threaded interpreters have no stable ABI before 3.15."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The project, without anything that was built in it."""
    return shutil.copytree(ROOT, tmp_path / "checkout", ignore=shutil.ignore_patterns(*BUILT))


@pytest.fixture
def no_cargo(tmp_path: Path) -> str:
    """A search path with nothing on it."""
    (tmp_path / "nothing").mkdir()
    return os.fspath(tmp_path / "nothing")


def build(what: str, checkout: Path, path: str) -> tuple[Path, str]:
    """Give what was built, and what was said meanwhile."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PATH": path, "CARGO_TARGET_DIR": os.fspath(ROOT / "rust/target"), **QUICK}
    done = subprocess.run(
        [sys.executable, "-c", BUILD, what, os.fspath(checkout.parent)],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return checkout.parent / done.stdout.splitlines()[-1], done.stderr


def contents(wheel: Path) -> set[str]:
    with ZipFile(wheel) as opened:
        return set(opened.namelist())


def compiled(wheel: Path) -> list[str]:
    return [name for name in contents(wheel) if name.startswith("odradek/engine/_compiled.") and name[-4:] != ".pyi"]


def test_with_cargo_the_wheel_has_the_engine_for_all_versions(checkout: Path) -> None:
    wheel, _ = build("wheel", checkout, os.environ["PATH"])
    assert wheel.name.startswith(f"odradek-{odradek.__version__}-{TAG}-")
    assert {"odradek/py.typed", "odradek/engine/_compiled.pyi", "pytest_odradek.py"} <= contents(wheel)
    assert compiled(wheel)


def test_without_cargo_the_wheel_is_for_every_platform(checkout: Path, no_cargo: str) -> None:
    wheel, output = build("wheel", checkout, no_cargo)
    assert wheel.name == f"odradek-{odradek.__version__}-py3-none-any.whl"
    assert "without its compiled engine, because cargo and rustc cannot be found" in output
    assert {"odradek/py.typed", "odradek/engine/pure.py", "pytest_odradek.py"} <= contents(wheel)
    assert not compiled(wheel)


def test_a_compiler_that_fails_costs_the_engine_and_not_the_package(checkout: Path) -> None:
    (checkout / "rust/engine/src/lib.rs").write_text("this is no Rust")
    wheel, _ = build("wheel", checkout, os.environ["PATH"])
    assert not compiled(wheel)


def test_a_source_distribution_has_all_that_a_build_needs(checkout: Path, no_cargo: str) -> None:
    (checkout / "rust/target/release").mkdir(parents=True)
    (checkout / "rust/target/release/left.over").touch()
    (checkout / "src/odradek/engine/_compiled.abi3.so").touch()
    archive, _ = build("sdist", checkout, no_cargo)
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    for needed in ("setup.py", "rust/Cargo.lock", "rust/engine/src/lib.rs", "rust/binding/src/lib.rs", "scripts/test"):
        assert needed in names
    assert not [name for name in names if "target" in Path(name).parts or name.endswith((".so", ".pyc"))]
