"""Where ZooKeeper's jars come from: a directory, the cache, pyspark, Maven, plain HTTP."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from odradek.errors import ConfigError
from odradek.testing import jars
from odradek.testing.jars import VERSIONS, zookeeper_jars

VERSION = "3.3.6"
FILES = ["log4j-1.2.17.jar", "zookeeper-3.3.6.jar"]


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A fresh user on a machine without Maven and pyspark."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv(jars.REPOSITORY_VARIABLE, raising=False)
    return tmp_path / "cache" / "odradek"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A Maven repository with made-up jars of ZooKeeper 3.3.6."""
    root = tmp_path / "repository"
    for coordinate in VERSIONS[VERSION]:
        group, artifact, version = coordinate.split(":")
        jar = root / group.replace(".", "/") / artifact / version / f"{artifact}-{version}.jar"
        jar.parent.mkdir(parents=True)
        jar.write_bytes(coordinate.encode())
        digest = hashlib.sha1(jar.read_bytes(), usedforsecurity=False).hexdigest()
        jar.with_name(f"{jar.name}.sha1").write_text(f"{digest}  {jar.name}\n")
    return root


class Server(ThreadingHTTPServer):
    request_queue_size = 64


@pytest.fixture
def url(repository: Path) -> Iterator[str]:
    with Server(("127.0.0.1", 0), partial(QuietHandler, directory=str(repository))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_a_given_directory_is_the_only_place_looked_at(tmp_path: Path) -> None:
    (tmp_path / "b.jar").touch()
    (tmp_path / "a.jar").touch()
    assert names(zookeeper_jars("any version", tmp_path)) == ["a.jar", "b.jar"]
    with pytest.raises(ConfigError, match="no jars in"):
        zookeeper_jars(directory=tmp_path / "missing")


def test_an_unknown_version_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"9\.9\.9.*3\.9\.5, 3\.4\.14, 3\.3\.6"):
        zookeeper_jars("9.9.9")


def test_without_maven_they_are_downloaded_once_and_kept(
    url: str, repository: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(jars.REPOSITORY_VARIABLE, url)
    assert names(zookeeper_jars(VERSION)) == FILES
    monkeypatch.setenv(jars.REPOSITORY_VARIABLE, "http://127.0.0.1:1/gone")
    assert zookeeper_jars(VERSION) == [cache / "zookeeper-3.3.6" / name for name in FILES]
    assert (cache / "zookeeper-3.3.6" / FILES[0]).read_text() == "log4j:log4j:1.2.17"
    assert names(list(cache.iterdir())) == ["zookeeper-3.3.6"]


def test_a_mirror_in_the_users_maven_settings_is_used(url: str, tmp_path: Path) -> None:
    settings = tmp_path / "home" / ".m2" / "settings.xml"
    settings.parent.mkdir(parents=True)
    settings.write_text(
        '<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0"><mirrors>'
        "<mirror><mirrorOf>other</mirrorOf><url>http://127.0.0.1:1/</url></mirror>"
        "<mirror><mirrorOf>*,!central</mirrorOf><url>http://127.0.0.1:1/</url></mirror>"
        f"<mirror><mirrorOf>other, central</mirrorOf><url> {url} </url></mirror>"
        "</mirrors></settings>"
    )
    assert names(zookeeper_jars(VERSION)) == FILES


def test_processes_that_fill_the_cache_at_once_all_find_it_complete(
    url: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(jars.REPOSITORY_VARIABLE, url)
    commands: list[list[str]] = []
    threads = [threading.Thread(target=lambda: commands.append(names(zookeeper_jars(VERSION)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert commands == [FILES] * 8
    assert names(list(cache.iterdir())) == ["zookeeper-3.3.6"]


def test_a_damaged_download_is_an_error_and_is_not_kept(
    url: str, repository: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(jars.REPOSITORY_VARIABLE, url)
    jar = repository / "log4j" / "log4j" / "1.2.17" / "log4j-1.2.17.jar"
    jar.write_bytes(b"something else")
    with pytest.raises(ConfigError, match=r"cannot get log4j:log4j:1\.2\.17: no mvn on PATH; .*its SHA-1 is"):
        zookeeper_jars(VERSION)
    assert list(cache.iterdir()) == []


def test_a_repository_without_checksums_will_do(url: str, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(jars.REPOSITORY_VARIABLE, url)
    for checksum in repository.rglob("*.sha1"):
        checksum.unlink()
    assert names(zookeeper_jars(VERSION)) == FILES


def test_a_jar_that_is_not_there_is_named_with_the_way_out(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(jars.REPOSITORY_VARIABLE, url)
    with pytest.raises(ConfigError, match=r"zookeeper:3\.4\.14.*404.*ODRADEK_MAVEN_REPOSITORY"):
        zookeeper_jars("3.4.14")


def fake_maven(directory: Path, *lines: str) -> None:
    mvn = directory / "mvn"
    directory.mkdir()
    mvn.write_text("\n".join(["#!/bin/sh -eu", *lines, ""]))
    mvn.chmod(0o755)


def test_maven_copies_them_when_it_is_there(tmp_path: Path) -> None:
    """A stand-in that looks for one jar in the project it is given, and delivers."""
    fake_maven(
        tmp_path / "bin",
        'read -r pom < pom.xml || test -n "$pom"',
        'case "$pom" in *"<artifactId>zookeeper</artifactId><version>3.3.6</version>"*) ;; *) exit 1;; esac',
        'case "$*" in *dependency:copy-dependencies*) ;; *) exit 1;; esac',
        f'for last; do :; done; for name in {" ".join(FILES)}; do : > "${{last#*=}}/$name"; done',
    )
    assert names(zookeeper_jars(VERSION)) == FILES


def test_when_maven_fails_the_download_is_tried_and_the_error_tells_both(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_maven(tmp_path / "bin", "echo no such plugin", "exit 1")
    monkeypatch.setenv(jars.REPOSITORY_VARIABLE, url)
    assert names(zookeeper_jars(VERSION)) == FILES
    with pytest.raises(ConfigError, match=r"mvn failed: no such plugin; http.*404"):
        zookeeper_jars("3.4.14")


def test_an_installed_pyspark_has_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = ["zookeeper-jute-3.9.5", "metrics-core-4.2.37", "snappy-java-1.1.10.8", "slf4j-api-2.0.17"]
    wanted = ["zookeeper-3.9.5", *others]
    directory = tmp_path / "site" / "pyspark" / "jars"
    directory.mkdir(parents=True)
    (directory.parent / "__init__.py").touch()
    for name in [*wanted, "curator-client-5.7.1", "zookeeper-3.9.3"]:
        (directory / f"{name}.jar").touch()
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)  # the one that another test may have imported
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert zookeeper_jars("3.9.5") == [directory / f"{name}.jar" for name in wanted]
    assert "pyspark" not in sys.modules
