"""Where jars come from: a directory, an installed pyspark, the cache, a Maven repository."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from odradek.errors import ConfigError
from odradek.testing.class_archive import ClassArchive
from odradek.testing.jars import VERSIONS, maven_jars, zookeeper_jars

VERSION = "3.3.6"
FILES = ["log4j-1.2.17.jar", "zookeeper-3.3.6.jar"]
POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version><dependencies>{}</dependencies></project>
"""
DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>"


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The cache of a fresh user on a machine whose only repository is a directory of the test."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JGO_CONFIG_FILE", str(tmp_path / "jgo.conf"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("odradek.testing.jars.importlib.util.find_spec", lambda name: None)  # no pyspark
    maven_jars.cache_clear()
    yield tmp_path / "cache" / "odradek" / "maven"
    maven_jars.cache_clear()


def publish(repository: Path, coordinate: str, *needs: str) -> Path:
    """Put a jar and its list of dependencies into the repository; `needs` are coordinates with a scope."""
    group, artifact, version = coordinate.split(":")
    directory = repository / group.replace(".", "/") / artifact / version
    directory.mkdir(parents=True)
    jar = directory / f"{artifact}-{version}.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("content", coordinate)
    jar.with_name(f"{jar.name}.sha1").write_text(hashlib.sha1(jar.read_bytes(), usedforsecurity=False).hexdigest())
    dependencies = ""
    for each in needs:
        *names, scope = each.split(":")
        dependencies += DEPENDENCY.format(*names, f"<scope>{scope}</scope>")
    (directory / f"{artifact}-{version}.pom").write_text(POM.format(group, artifact, version, dependencies))
    return jar


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Path]:
    """A Maven repository with made-up jars of ZooKeeper 3.3.6, which jgo's settings name."""
    root = tmp_path / "repository"
    for coordinate in VERSIONS[VERSION]:
        publish(root, coordinate)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(root))) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        (tmp_path / "jgo.conf").write_text(f"[repositories]\ncentral = http://127.0.0.1:{server.server_port}\n")
        yield root
        server.shutdown()
        thread.join()


def names(paths: list[Path]) -> list[str]:
    return sorted(path.name for path in paths)


def test_a_given_directory_is_the_only_one_looked_at(tmp_path: Path) -> None:
    (tmp_path / "b.jar").touch()
    (tmp_path / "a.jar").touch()
    assert names(zookeeper_jars("any version", tmp_path)) == ["a.jar", "b.jar"]
    with pytest.raises(ConfigError, match="no jars in"):
        zookeeper_jars(directory=tmp_path / "missing")


def test_an_unknown_version_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"9\.9\.9.*3\.9\.5, 3\.4\.14, 3\.3\.6"):
        zookeeper_jars("9.9.9")


def test_jars_are_downloaded_once_and_kept(repository: Path, cache: Path) -> None:
    jars = zookeeper_jars(VERSION)
    assert names(jars) == FILES
    assert all(jar.is_relative_to(cache) for jar in jars)
    for jar in repository.rglob("*.jar"):
        jar.unlink()
    maven_jars.cache_clear()
    assert zookeeper_jars(VERSION) == jars
    assert [path.name for path in cache.iterdir() if path.name.startswith(".")] == []


def test_what_a_jar_needs_at_run_time_comes_with_it(repository: Path) -> None:
    publish(repository, "a:needed:1", "a:deep:1:compile")
    publish(repository, "a:deep:1")
    publish(
        repository, "a:main:1", "a:needed:1:runtime", "a:never:1:test", "a:given:1:provided", "javax.jms:jms:1:compile"
    )
    assert names(list(maven_jars(("a:main:1",)))) == ["deep-1.jar", "main-1.jar", "needed-1.jar"]


def test_processes_that_fill_the_cache_at_once_all_find_it_complete(repository: Path, cache: Path) -> None:
    script = f"from odradek.testing.jars import maven_jars; print(*maven_jars({VERSIONS[VERSION]!r}, transitive=False))"
    processes = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for process in processes:
        output, errors = process.communicate()
        assert [Path(path).name for path in reversed(output.split())] == FILES, errors
    assert names(list(cache.rglob("*.jar"))) == FILES


def test_a_damaged_download_is_an_error_and_is_not_kept(repository: Path, cache: Path) -> None:
    next(repository.rglob("log4j-*.jar")).write_bytes(b"something else")
    with pytest.raises(ConfigError, match=r"no jars of .*zookeeper:3\.3\.6, log4j:log4j:1\.2\.17: File is not a zip"):
        zookeeper_jars(VERSION)
    assert list(cache.rglob("log4j*.jar")) == []


def test_a_jar_that_is_not_there_is_named_with_the_way_out(repository: Path) -> None:
    with pytest.raises(ConfigError, match=r"zookeeper:3\.4\.14.* not found .*mirror.*jgo\.conf.*copy that directory"):
        zookeeper_jars("3.4.14")


def test_without_a_network_the_error_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "jgo.conf").write_text("[repositories]\ncentral = http://127.0.0.1:1\n")
    with pytest.raises(ConfigError, match=r"no jars of .*refused.* downloaded once, into .*connect to the"):
        zookeeper_jars(VERSION)


def test_without_jgo_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "odradek.testing.maven", raising=False)
    monkeypatch.delattr("odradek.testing.maven", raising=False)
    monkeypatch.setitem(sys.modules, "jgo", None)
    monkeypatch.setitem(sys.modules, "jgo.config", None)
    with pytest.raises(ConfigError, match=r"pip install odradek\[testing\]"):
        zookeeper_jars(VERSION)


def test_an_installed_pyspark_has_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = ["zookeeper-jute-3.9.5", "metrics-core-4.2.37", "snappy-java-1.1.10.8", "slf4j-api-2.0.17"]
    wanted = ["zookeeper-3.9.5", *others]
    directory = tmp_path / "site" / "pyspark" / "jars"
    directory.mkdir(parents=True)
    (directory.parent / "__init__.py").touch()
    for name in [*wanted, "curator-client-5.7.1", "zookeeper-3.9.3"]:
        (directory / f"{name}.jar").touch()
    monkeypatch.undo()
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)  # the one that another test may have imported
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert zookeeper_jars("3.9.5") == [directory / f"{name}.jar" for name in wanted]
    assert "pyspark" not in sys.modules


def test_an_archive_of_classes_is_missing_once_a_jar_was_installed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java passes over an archive whose jars have other sizes or times."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jar = tmp_path / "a.jar"
    jar.write_bytes(b"jar")
    archive = ClassArchive("program", [jar])
    (written,) = (option.partition("=")[2] for option in archive.options(tmp_path))
    Path(written).touch()
    archive.keep(tmp_path)
    assert not ClassArchive("program", [jar]).is_missing()
    os.utime(jar, (1, 1))
    assert ClassArchive("program", [jar]).is_missing()


def test_no_archive_is_written_by_a_process_whose_environment_names_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java does not start with both options."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:+UseSerialGC -XX:SharedArchiveFile=spark.jsa")
    archive = ClassArchive("program", [])
    assert not archive.is_missing() and archive.options(tmp_path) == []
