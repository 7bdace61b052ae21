"""Jars by their Maven coordinates: found and downloaded by the package jgo, kept in a cache of the user's."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jgo.config import GlobalSettings
from jgo.maven import Artifact, Dependency, MavenContext, PythonResolver

from odradek.errors import ConfigError

__all__ = ["download"]

DOWNLOADS = 4
"""Downloads at a time."""
TIMEOUT_S = 60
"""Limit for a repository to answer (s)."""


def download(
    cache: Path, coordinates: Sequence[str], exclusions: Iterable[str] = (), *, transitive: bool = True
) -> list[Path]:
    """Return the jars of these coordinates (`group:artifact:version`), downloaded where the cache does not have them.

    Args:
        cache: Directory of the jars of all versions.
        exclusions: Projects (`group:artifact`) to leave out of what the others need.
        transitive: Add what the jars need at run time.

    Raises:
        ConfigError: A file is neither in the cache nor to be had; says why and what to do.
    """
    cache.mkdir(parents=True, exist_ok=True)
    repositories = GlobalSettings.load().repositories or None
    context = MavenContext(_WholeFiles(), repo_cache=cache, remote_repos=repositories, timeout=TIMEOUT_S)
    excluded = [context.project(*project.split(":")) for project in exclusions]
    wanted = [context.create_dependency(each, excluded) for each in coordinates]
    try:
        if transitive:
            wanted, needed = context.resolver.resolve(wanted)
            wanted += filter(_runs_with, needed)
        with ThreadPoolExecutor(DOWNLOADS) as threads:
            return list(threads.map(lambda each: each.artifact.resolve(), wanted))
    except (OSError, RuntimeError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"no jars of {', '.join(coordinates)}: {error}. They are downloaded once, into {cache}: connect to the "
            "network, name a mirror in the section [repositories] of jgo's settings file (~/.config/jgo.conf), or copy "
            "that directory from a machine that has it"
        ) from error


def _runs_with(dependency: Dependency) -> bool:
    return dependency.scope in ("compile", "runtime") and not dependency.optional


class _WholeFiles(PythonResolver):
    """A resolver whose files appear in the cache whole or not at all: several processes may fill it at the same time,
    and each may be interrupted."""

    def download(self, artifact: Artifact) -> Path | None:
        """Download beside the cache's files, check, and rename."""
        target = artifact.cached_path
        assert target is not None  # the context has a cache
        with tempfile.TemporaryDirectory(prefix=".download-", dir=artifact.context.repo_cache) as scratch:
            context = MavenContext(
                self, repo_cache=Path(scratch), remote_repos=artifact.context.remote_repos, timeout=TIMEOUT_S
            )
            component = context.project(artifact.groupId, artifact.artifactId).at_version(artifact.version)
            path = super().download(component.artifact(artifact.classifier, artifact.packaging))
            assert path is not None
            if artifact.packaging == "jar" and (damaged := zipfile.ZipFile(path).testzip()):
                raise OSError(f"{path.name} is damaged: {damaged}")
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
        return target
