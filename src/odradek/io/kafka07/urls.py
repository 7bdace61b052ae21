"""URLs of 0.7 clusters: over ZooKeeper, or as a list of all brokers."""

from __future__ import annotations

import re
from urllib.parse import unquote

from odradek.errors import ConfigError
from odradek.io.connection import ConnectionOptions
from odradek.io.drivers import DriverOptions
from odradek.io.kafka07.broker_client import BrokerClientOptions
from odradek.io.kafka07.driver import SESSION_TIMEOUT_S, Kafka07Driver, Kafka07Options

__all__ = ["make_driver"]

BROKER_PORT = 9092
"""The port in the sample configuration of 0.7; the broker's own default is 6667 (specification.md 8)."""

ZOOKEEPER_PORT = 2181

_HOST = re.compile(r"(?:(?P<id>\d{1,9})@)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:@/?#\[\]]+)(?::(?P<port>\d{1,5}))?")


def make_driver(scheme: str, rest: str, options: DriverOptions) -> Kafka07Driver:
    """Return the driver for a URL: see `io.drivers.SCHEMES` for its two forms.

    User and password, percent-encoded where necessary, are ZooKeeper's digest credentials. Without ZooKeeper there are
    no groups and no topic lists; the id of a broker without one is its index in the list.

    Raises ConfigError for a malformed URL; the message says where, and contains no password.
    """
    if options.security is not None:
        raise ConfigError(f"security has no effect with {scheme}://: Kafka 0.7 has neither TLS nor SASL")
    if scheme != "kafka07" and options.proxy is not None:
        raise ConfigError(
            f"proxy has no effect with {scheme}://: ZooKeeper's client goes through none; name the brokers instead, as "
            "in kafka07://broker1:9092"
        )
    if scheme == "kafka07":
        return _over_brokers(rest, _driver_options(options))
    return _over_zookeeper(rest, _driver_options(options))


def _over_zookeeper(rest: str, options: Kafka07Options) -> Kafka07Driver:
    authority, slash, chroot = rest.partition("/")
    credentials, at, hosts = authority.rpartition("@")
    if "@" in chroot:
        raise ConfigError("invalid credentials in the URL: a slash in them must be written as %2F")  # secret, too
    if slash and not re.fullmatch(r"[^/?#\s]+(/[^/?#\s]+)*/?|", chroot):
        raise ConfigError(f"invalid chroot /{chroot}: it must be /name or /name/name")
    user, colon, password = credentials.partition(":")
    if at and not (user and colon):
        raise ConfigError("invalid credentials in the URL: they must be user:password@")  # not shown: they are secret
    path = f"/{chroot.rstrip('/')}" if chroot.rstrip("/") else ""
    return Kafka07Driver(
        zookeeper=",".join(_hosts(hosts, "ZooKeeper server", ZOOKEEPER_PORT)) + path,
        auth=[("digest", f"{unquote(user)}:{unquote(password)}")] if at else [],
        options=options,
    )


def _over_brokers(rest: str, options: Kafka07Options) -> Kafka07Driver:
    hosts, _, path = rest.partition("/")
    if path:
        raise ConfigError(f"/{path} after a list of brokers: only kafka07+zk:// has a chroot")
    return Kafka07Driver(brokers=_hosts(hosts, "broker", BROKER_PORT), options=options)


def _hosts(text: str, what: str, port: int) -> list[str]:
    """Return each server as `host:port` or `id@host:port`, with the default port filled in."""
    hosts = []
    for item in text.split(","):
        match = _HOST.fullmatch(item.strip())
        if match is None or (match["port"] is not None and not 0 < int(match["port"]) < 65536):
            shown = re.sub(r"^(?!\d{1,9}@).*@", "...@", item.strip())  # not a password
            raise ConfigError(f"invalid {what} {shown!r} in the URL: it must be host or host:port")
        number = f"{match['id']}@" if match["id"] is not None else ""
        hosts.append(f"{number}{match['host']}:{match['port'] or port}")
    return hosts


def _driver_options(options: DriverOptions) -> Kafka07Options:
    session_timeout_s = options.session_timeout_s or SESSION_TIMEOUT_S
    return Kafka07Options(
        session_timeout_s=session_timeout_s,
        zookeeper_timeout_s=session_timeout_s,  # as zk.connectiontimeout.ms of 0.7 (specification.md 5.3)
        connection=ConnectionOptions(options.connect_timeout_s, options.backoff),
        api=BrokerClientOptions(request_timeout_s=options.request_timeout_s),
        observer=options.observer,
        proxy=options.proxy,
    )
