"""The part of a cluster for tests that its brokers share: id, users, certificates, and ZooKeeper or the voters."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from odradek.errors import ConfigError
from odradek.io.zookeeper import Node
from odradek.testing.kafka.config import ClusterSettings
from odradek.testing.kafka.credentials import ScramCredential, scram_credentials
from odradek.testing.kafka.releases import KRAFT, ZOOKEEPER, Release
from odradek.testing.kafka.storage import random_id
from odradek.testing.zookeeper import ZooKeeperServer

if TYPE_CHECKING:
    from odradek.testing.kafka.certificates import Certificates

__all__ = ["USERS", "ClusterSetup"]

USERS = {"alice": "alice-secret"}


class ClusterSetup:
    """State that the brokers of a cluster share; see KafkaBroker for the arguments.

    Raises:
        ConfigError: The release does not have the mode or a listener.
    """

    def __init__(
        self,
        release: Release,
        mode: str | None,
        listeners: Sequence[str],
        users: Mapping[str, str] | None,
        certificate: str,
        zookeeper: ZooKeeperServer | None,
        java: str | os.PathLike[str] | None,
    ) -> None:
        self.release, self.listeners = release, tuple(listeners)
        self.size = 1
        self.mode = mode or release.modes[0]
        if self.mode not in release.modes:
            raise ConfigError(f"mode={mode!r}: Kafka {release.version} runs in mode {' or '.join(release.modes)}")
        for protocol in listeners:
            if protocol not in release.protocols:
                known = ", ".join(release.protocols)
                raise ConfigError(f"listeners: Kafka {release.version} has no {protocol}, but {known}")
        if not listeners:
            raise ConfigError(f"listeners: must name at least one of {', '.join(release.protocols)}")
        self.users = dict(USERS if users is None else users)
        for user in self.users:
            if not re.fullmatch(r"[A-Za-z0-9._-]+", user):  # in paths of ZooKeeper, options of tools, Java's own files
                raise ConfigError(f"users: {user!r}: a name has ASCII letters, digits, and . _ -")
        self.cluster_id = random_id()
        self.voters: dict[int, int] = {}
        """Broker id -> port of its controller."""
        self._certificate = certificate
        self._zookeeper, self._java = zookeeper, java
        self._own: ZooKeeperServer | None = None
        self._chroot = ""

    @cached_property
    def certificates(self) -> Certificates | None:
        """The certificates of its brokers, if a listener has TLS."""
        if not any(protocol.endswith("SSL") for protocol in self.listeners):
            return None
        try:
            from odradek.testing.kafka.certificates import Certificates
        except ImportError as error:
            raise ConfigError(f"certificates are made by trustme: `pip install odradek[testing]` ({error})") from error
        return Certificates(self._certificate)

    @property
    def settings(self) -> ClusterSettings:
        """Return what the properties of each broker follow from."""
        where = f"{self._zookeeper.address}{self._chroot}" if self._zookeeper else ""
        return ClusterSettings(self.release, self.mode, self.size, where, self.voters)

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The SASL mechanisms that its listeners take; none without such a listener."""
        has_sasl = any(protocol.startswith("SASL") for protocol in self.listeners)
        return self.release.mechanisms(self.mode) if has_sasl else ()

    @property
    def scram(self) -> list[ScramCredential]:
        """Credentials of the users that brokers store."""
        return scram_credentials(self.users, self.mechanisms)

    # ---- ZooKeeper ------------------------------------------------------------------------------------------

    @property
    def zookeeper(self) -> ZooKeeperServer:
        """The server of its nodes, in ZooKeeper mode, while it runs."""
        if self._zookeeper is None:
            raise ConfigError(f"Kafka {self.release.version} in mode {self.mode} has no ZooKeeper now")
        return self._zookeeper

    def start(self) -> None:
        """Make what the first broker needs. Idempotent."""
        if self.mode == KRAFT or self._chroot:
            return
        if self._zookeeper is None:
            self._own = ZooKeeperServer(java=self._java)
            self._own.start()
            self._zookeeper = self._own
        self._chroot = f"/kafka-{self.cluster_id}"  # brokers of one version: others do not understand its nodes
        self.zookeeper.create(self._chroot)
        for user in self.users:
            if config := {each.mechanism: each.node_value for each in self.scram if each.user == user}:
                self.create(f"/config/users/{user}", {"version": 1, "config": config})

    def stop(self) -> None:
        """Stop the ZooKeeper that was started here. Idempotent."""
        own, self._own, self._chroot = self._own, None, ""
        if own is not None:
            own.stop()
            self._zookeeper = None

    def nodes(self, path: str) -> dict[str, Node]:
        """Return the nodes of the cluster at this path of ZooKeeper and below, by path."""
        nodes = self.zookeeper.tree(self._chroot + path)
        return {each.removeprefix(self._chroot): node for each, node in nodes.items()}

    def create(self, path: str, value: Mapping[str, object]) -> None:
        """Create a node of the cluster. Raises NodeExists."""
        self.zookeeper.create(self._chroot + path, json.dumps(value).encode())

    def is_registered_without_topics(self, broker_id: int) -> bool:
        """Return whether ZooKeeper names this broker, and a controller, and no topic."""
        topics = self.nodes("/brokers/topics").keys() - {"/brokers/topics"}
        return not topics and bool(self.nodes(f"/brokers/ids/{broker_id}") and self.nodes("/controller"))

    def expire_registration(self, broker_id: int) -> None:
        """End the session of a broker that was killed: its number is free again at once."""
        if self.mode == ZOOKEEPER:
            for node in self.nodes(f"/brokers/ids/{broker_id}").values():
                self.zookeeper.expire(node.owner)
