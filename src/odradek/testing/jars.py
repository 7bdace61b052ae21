"""Jars of servers: from a directory, an installed pyspark, or Maven; kept in a cache of the user's.

The package jgo finds and downloads them, with the repositories of its own settings.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from odradek.errors import ConfigError

__all__ = ["VERSIONS", "cache_directory", "maven_jars", "zookeeper_jars"]

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
"""ZooKeeper version -> Maven coordinates (`group:artifact:version`) of exactly the jars that run its server."""

PYSPARK_JARS = ("zookeeper-jute", "metrics-core", "snappy-java", "slf4j-api")
"""Names of the jars in pyspark that ZooKeeper needs besides `zookeeper-<version>.jar`."""

NOWHERE = (
    *("javax.jms:jms", "javax.mail:mail", "com.sun.jdmk:jmxtools", "com.sun.jmx:jmxri"),  # of log4j 1.2.15
    "org.apache.kafka:kafka-log4j-appender",  # of Kafka's tools from 3.5 to 3.8; needs slf4j-log4j12 1.7.36, no jar
)
"""Dependencies that no repository has, or that need such a one, and that a server does not use."""


def zookeeper_jars(version: str = "3.9.5", directory: str | os.PathLike[str] | None = None) -> list[Path]:
    """Return the jars that run ZooKeeper `version`.

    Looked for in this order: `directory` (every jar in it, nothing else is tried), an installed pyspark that brings
    this version, the cache and Maven, as for `maven_jars`.

    Raises:
        ConfigError: They cannot be had; says why and what to do.
    """
    if directory is not None:
        return _all_jars(Path(directory))
    if version not in VERSIONS:
        raise ConfigError(f"ZooKeeper {version}: give a directory with its jars, or one of {', '.join(VERSIONS)}")
    return _pyspark_jars(version) or list(maven_jars(VERSIONS[version], transitive=False))


def _all_jars(directory: Path) -> list[Path]:
    jars = sorted(directory.glob("*.jar"))
    if not jars:
        raise ConfigError(f"no jars in {directory}")
    return jars


def _pyspark_jars(version: str) -> list[Path]:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return []
    jars = Path(spec.origin).parent / "jars"
    paths = [next(jars.glob(f"{name}-[0-9]*.jar"), None) for name in PYSPARK_JARS]
    main = jars / f"zookeeper-{version}.jar"
    return [main, *filter(None, paths)] if main.exists() and all(paths) else []


def cache_directory() -> Path:
    """Return the directory of what is downloaded or made once: `$XDG_CACHE_HOME/odradek`, or below `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "odradek"


@cache
def maven_jars(coordinates: tuple[str, ...], *, transitive: bool = True) -> Sequence[Path]:
    """Return the jars of Maven coordinates, with all that they need at run time if `transitive`.

    Downloads stay in the cache, where different versions share it: `$XDG_CACHE_HOME/odradek/maven` or
    `~/.cache/odradek/maven`. A file appears there whole or not at all, so that several processes may fill it at the
    same time. The repositories are those that jgo's settings file names (section `repositories`), by default Maven
    Central; proxies are those of the environment.

    Raises:
        ConfigError: There is no jgo, or a file can neither be found in the cache nor downloaded.
    """
    try:
        from odradek.testing import maven
    except ImportError as error:
        raise ConfigError(f"jars come through the package jgo: `pip install odradek[testing]` ({error})") from error
    return maven.download(cache_directory() / "maven", coordinates, NOWHERE, transitive=transitive)
