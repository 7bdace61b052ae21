"""URLs of clusters of Kafka 0.8 and later: a list of some brokers; the scheme says whether TLS and SASL are used."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from odradek.errors import ConfigError
from odradek.io.connection import ConnectionOptions
from odradek.io.drivers import DriverOptions
from odradek.io.kafka.connections import BOOTSTRAP_ID
from odradek.io.kafka.driver import SESSION_TIMEOUT_S, KafkaDriver, KafkaOptions
from odradek.io.kafka.metadata import MetadataOptions
from odradek.types import Broker

if TYPE_CHECKING:
    from odradek.io.security import Security

__all__ = ["make_driver"]

BROKER_PORT = 9092

BOOTSTRAP_S = 10.0
"""Time for which the addresses of the URL are tried when a cluster is opened (s): more if two connections may take
longer."""

MAX_IDLE_S = 540.0
"""Time after which an unused connection is closed: a minute before brokers do (connections.max.idle.ms)."""

_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:@/?#\[\],]+)(?::(?P<port>\d{1,5}))?")


def make_driver(scheme: str, rest: str, options: DriverOptions) -> KafkaDriver:
    """Return the driver for a URL: see `io.drivers.SCHEMES` for its forms.

    Raises ConfigError for a malformed URL, or options that contradict it; no message contains a secret.
    """
    if "@" in rest:
        raise ConfigError(f"{scheme}:// has no user: use Security(sasl_username=..., sasl_password=...)")
    tls, sasl = "+ssl" in scheme, "+sasl" in scheme
    return KafkaDriver(
        _brokers(rest.removesuffix("/")),
        KafkaOptions(
            connection=ConnectionOptions(options.connect_timeout_s, options.backoff, MAX_IDLE_S),
            metadata=MetadataOptions(max(BOOTSTRAP_S, 2 * options.connect_timeout_s), backoff=options.backoff),
            request_timeout_s=options.request_timeout_s,
            client_id=options.client_id,
            rack=options.rack,
            session_timeout_s=options.session_timeout_s or SESSION_TIMEOUT_S,
            observer=options.observer,
            metrics=options.metrics,
            proxy=options.proxy,
        ),
        _security(scheme, options.security, tls, sasl),
        tls=tls,
        sasl=sasl,
    )


def _security(scheme: str, options: Security | None, tls: bool, sasl: bool) -> Security | None:
    """Return the options with those of the environment; None if there are none, and the scheme uses none."""
    if options is None and not tls and not sasl:
        return None
    from odradek.io.security import Security

    chosen = options or Security()
    security = chosen.with_environment()
    _check_use(scheme, chosen, tls, sasl)
    return security


def _check_use(scheme: str, options: Security, tls: bool, sasl: bool) -> None:
    """Refuse options that the scheme does not use: what seems encrypted or authenticated must be."""
    if options.sasl_mechanism is not None and not sasl:
        raise ConfigError(f"options named sasl_ have no effect with {scheme}://: use a URL with +sasl")
    files = options.ssl_cafile or options.ssl_certfile
    if (files or options.ssl_ca_pem or options.ssl_certificate_pem or options.ssl_context) and not tls:
        raise ConfigError(f"options named ssl_ have no effect with {scheme}://: use a URL with +ssl")


def _brokers(text: str) -> list[Broker]:
    brokers: dict[str, Broker] = {}
    for item in text.split(","):
        match = _HOST.fullmatch(item.strip())
        if match is None or (match["port"] is not None and not 0 < int(match["port"]) < 65536):
            raise ConfigError(f"invalid broker {item.strip()!r} in the URL: it must be host or host:port")
        host = match["host"].removeprefix("[").removesuffix("]")
        broker = Broker(BOOTSTRAP_ID, host, int(match["port"] or BROKER_PORT))
        brokers[broker.address] = broker
    return list(brokers.values())
