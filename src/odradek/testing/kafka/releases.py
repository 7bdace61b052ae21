"""Differences between releases of Kafka that matter for starting their brokers: jars, modes, listeners, mechanisms."""

from __future__ import annotations

import re
from typing import NamedTuple

from odradek.errors import ConfigError

__all__ = ["KRAFT", "MATRIX", "NEWEST", "OTHERS", "PROTOCOLS", "ZOOKEEPER", "Release", "release"]

NEWEST = "4.3.1"
ZOOKEEPER, KRAFT = "zookeeper", "kraft"

MATRIX: tuple[tuple[str, str], ...] = (
    ("0.8.2.2", ZOOKEEPER),
    ("0.10.1.1", ZOOKEEPER),
    ("0.11.0.3", ZOOKEEPER),
    ("2.8.2", ZOOKEEPER),
    ("3.9.1", KRAFT),
    (NEWEST, KRAFT),
)
"""Versions and modes that every run of the tests starts: the last of each generation of the protocol."""

OTHERS: tuple[tuple[str, str], ...] = (
    ("0.8.0", ZOOKEEPER),
    ("0.8.1.1", ZOOKEEPER),
    ("0.9.0.1", ZOOKEEPER),
    ("0.10.2.2", ZOOKEEPER),
    ("1.1.1", ZOOKEEPER),
    ("3.9.1", ZOOKEEPER),
    ("4.1.0", KRAFT),
    ("4.2.0", KRAFT),
)
"""Versions and modes that are started when all are asked for."""

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Security protocols of listeners."""


class Release(NamedTuple):
    """One release, and what it can."""

    version: str
    number: tuple[int, ...]

    @property
    def coordinates(self) -> tuple[str, ...]:
        """Maven coordinates of the broker, its tools, and what its own list of dependencies lacks."""
        broker = f"org.apache.kafka:kafka_{self._scala}:{self.version}"
        tools = (f"org.apache.kafka:kafka-tools:{self.version}",) if self.number >= (3, 5) else ()
        # DatatypeConverter is gone from Java 11 on.
        converter = ("javax.xml.bind:jaxb-api:2.3.1",) if (0, 10) <= self.number < (1,) else ()
        # From Java 14 on, an address that was not looked up prints as "host/<unresolved>:port", and the clients 3.4.13
        # and 3.4.14 of ZooKeeper take that text apart to find the host (ZOOKEEPER-3779).
        zookeeper = ("org.apache.zookeeper:zookeeper:3.4.10",) if (2,) <= self.number < (2, 4) else ()
        has_binding = self.number < (0, 8, 1) or (0, 8, 2) <= self.number < (1,)
        binding = () if has_binding else ("org.slf4j:slf4j-simple:1.7.36",)
        return (broker, *tools, *converter, *zookeeper, *binding)

    @property
    def _scala(self) -> str:
        """The newest Scala that the release was built for."""
        if self.number < (0, 8, 2):
            return "2.10"
        if self.number < (0, 10, 2):
            return "2.11"
        return "2.12" if self.number < (2, 4) else "2.13"

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that it runs in, the default first: KRaft as soon as it is meant for production."""
        if self.number < (2, 8):
            return (ZOOKEEPER,)
        if self.number >= (4,):
            return (KRAFT,)
        return (KRAFT, ZOOKEEPER) if self.number >= (3, 3) else (ZOOKEEPER, KRAFT)

    @property
    def protocols(self) -> tuple[str, ...]:
        """Security protocols it knows and that need no Kerberos."""
        if self.number < (0, 9):
            return PROTOCOLS[:1]
        return PROTOCOLS if self.number >= (0, 10) else PROTOCOLS[:2]

    def mechanisms(self, mode: str) -> tuple[str, ...]:
        """Return the SASL mechanisms it knows, but GSSAPI."""
        scram = (3, 5) if mode == KRAFT else (0, 10, 2)  # users of SCRAM are made before the broker starts (KIP-900)
        since = {"PLAIN": (0, 10), "SCRAM-SHA-256": scram, "SCRAM-SHA-512": scram, "OAUTHBEARER": (2, 0)}
        return tuple(name for name, number in since.items() if self.number >= number)


def release(version: str) -> Release:
    """Return the release of this version. Raises ConfigError when there can be none."""
    if not re.fullmatch(r"0\.(8|9|10|11)(\.\d{1,3}){1,2}|[1-9]\.\d{1,3}\.\d{1,3}", version):
        raise ConfigError(f"version={version[:60]!r}: must be a version of Kafka from 0.8.0 on, such as {NEWEST}")
    return Release(version, tuple(map(int, version.split("."))))
