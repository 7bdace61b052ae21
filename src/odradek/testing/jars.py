"""ZooKeeper's jars: from a directory, an installed pyspark, or Maven; kept in a cache of the user's.

The lists are closed: exactly these jars run a server of that version, so nobody needs to resolve dependencies (and
the old versions' dependencies on jars that no repository has any more do not matter).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from odradek.errors import ConfigError

__all__ = ["VERSIONS", "zookeeper_jars"]

MAVEN_CENTRAL = "https://repo.maven.apache.org/maven2"
REPOSITORY_VARIABLE = "ODRADEK_MAVEN_REPOSITORY"
MAVEN_SECONDS = 600.0
"""Time limit of Maven (s); its first run fetches its own plugins as well."""

VERSIONS: dict[str, tuple[str, ...]] = {
    # metrics-core and snappy-java are "provided" in its pom, but without them it dies, or starts and never serves.
    "3.9.5": (
        "org.apache.zookeeper:zookeeper:3.9.5",
        "org.apache.zookeeper:zookeeper-jute:3.9.5",
        "io.dropwizard.metrics:metrics-core:4.2.37",
        "org.xerial.snappy:snappy-java:1.1.10.8",
        "org.slf4j:slf4j-api:2.0.17",
        "org.slf4j:slf4j-simple:2.0.17",
    ),
    "3.4.14": (
        "org.apache.zookeeper:zookeeper:3.4.14",
        "log4j:log4j:1.2.17",
        "org.slf4j:slf4j-api:1.7.36",
        "org.slf4j:slf4j-simple:1.7.36",
    ),
    "3.3.6": (
        "org.apache.zookeeper:zookeeper:3.3.6",
        "log4j:log4j:1.2.17",
    ),
}
"""ZooKeeper version -> Maven coordinates (`group:artifact:version`)."""

PYSPARK_JARS = ("zookeeper-jute", "metrics-core", "snappy-java", "slf4j-api")
"""Names of the jars in pyspark that ZooKeeper needs besides `zookeeper-<version>.jar`."""


def zookeeper_jars(version: str = "3.9.5", directory: str | os.PathLike[str] | None = None) -> list[Path]:
    """The jars that run ZooKeeper `version`.

    Looked for in this order: `directory` (every jar in it, nothing else is tried), the cache, an installed pyspark
    that brings this version, Maven Central or the mirror in its place. A download stays in the cache:
    `$XDG_CACHE_HOME/odradek` or `~/.cache/odradek`; several processes may fill it at the same time.

    Maven's own client does it when there is an `mvn` on PATH, with its settings; otherwise (or when it fails) the jars
    are read over HTTP from, in this order, `$ODRADEK_MAVEN_REPOSITORY`, a mirror of Maven Central that
    `~/.m2/settings.xml` names, Maven Central.

    Raises:
        ConfigError: They cannot be had; names what was tried.
    """
    if directory is not None:
        return _all_jars(Path(directory))
    if version not in VERSIONS:
        raise ConfigError(f"ZooKeeper {version}: give a directory with its jars, or one of {', '.join(VERSIONS)}")
    cached = _cache() / f"zookeeper-{version}"
    if not cached.is_dir():
        if jars := _pyspark_jars(version):
            return jars
        _fill(cached, VERSIONS[version])
    return _all_jars(cached)


def _all_jars(directory: Path) -> list[Path]:
    jars = sorted(directory.glob("*.jar"))
    if not jars:
        raise ConfigError(f"no jars in {directory}")
    return jars


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "odradek"


def _pyspark_jars(version: str) -> list[Path]:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return []
    jars = Path(spec.origin).parent / "jars"
    paths = [next(jars.glob(f"{name}-[0-9]*.jar"), None) for name in PYSPARK_JARS]
    main = jars / f"zookeeper-{version}.jar"
    return [main, *filter(None, paths)] if main.exists() and all(paths) else []


def _fill(target: Path, coordinates: Sequence[str]) -> None:
    """Download beside the target and rename, so that a cache directory is either absent or complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        jars = Path(scratch) / "jars"
        jars.mkdir()
        complaint = _with_maven(coordinates, Path(scratch), jars)
        if complaint:
            _with_http(coordinates, jars, complaint)
        with suppress(OSError):  # somebody else was faster: theirs is as good
            jars.rename(target)


# ---- Maven's own client -------------------------------------------------------------------------------------


def _with_maven(coordinates: Sequence[str], scratch: Path, jars: Path) -> str:
    """Let `mvn` copy the jars; returns what went wrong, or nothing."""
    maven = shutil.which("mvn")
    if maven is None:
        return "no mvn on PATH"
    (scratch / "pom.xml").write_text(_pom(coordinates), encoding="utf-8")
    command = [maven, "-B", "-q", "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
    try:
        done = subprocess.run(
            command, cwd=scratch, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=MAVEN_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0 and len(list(jars.glob("*.jar"))) == len(coordinates):
        return ""
    return f"mvn failed: {(done.stdout + done.stderr).strip()[-2000:]}"


def _pom(coordinates: Sequence[str]) -> str:
    """A project that depends on these jars and on nothing they depend on."""
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>odradek</groupId><artifactId>jars</artifactId><version>1</version><dependencies>"
        + "".join(map(_dependency, coordinates))
        + "</dependencies></project>"
    )


def _dependency(coordinate: str) -> str:
    group, artifact, version = map(escape, coordinate.split(":"))
    return (
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
    )


# ---- without it ---------------------------------------------------------------------------------------------


def _with_http(coordinates: Sequence[str], jars: Path, complaint: str) -> None:
    repository = os.environ.get(REPOSITORY_VARIABLE) or _mirror() or MAVEN_CENTRAL
    for coordinate in coordinates:
        group, artifact, version = coordinate.split(":")
        name = f"{artifact}-{version}.jar"
        url = f"{repository.rstrip('/')}/{group.replace('.', '/')}/{artifact}/{version}/{name}"
        try:
            (jars / name).write_bytes(_verified(url))
        except OSError as error:
            raise ConfigError(
                f"cannot get {coordinate}: {complaint}; {url}: {error}; {REPOSITORY_VARIABLE} names another repository"
            ) from error


def _verified(url: str) -> bytes:
    """The bytes behind a URL, checked against the SHA-1 beside it if the repository has one."""
    data = _read(url)
    try:
        digest = _read(f"{url}.sha1").split()[0].decode("ascii", "replace").lower()
    except (urllib.error.HTTPError, FileNotFoundError, IndexError):
        return data
    actual = hashlib.sha1(data, usedforsecurity=False).hexdigest()
    if digest != actual:
        raise OSError(f"its SHA-1 is {actual}, not {digest}")
    return data


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        data: bytes = answer.read()
        return data


def _mirror(settings: Path | None = None) -> str:
    """The mirror of Maven Central in the user's Maven settings, if any."""
    try:
        root = ElementTree.parse(settings or Path.home() / ".m2" / "settings.xml").getroot()
    except (OSError, ElementTree.ParseError):
        return ""
    for mirror in root.iterfind("{*}mirrors/{*}mirror"):
        covers = {part.strip() for part in mirror.findtext("{*}mirrorOf", "").split(",")}
        if covers & {"*", "central", "external:*"} and "!central" not in covers:
            return mirror.findtext("{*}url", "").strip()
    return ""
