"""The registry of protocol drivers: the scheme of a cluster's URL picks one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

from odradek.core.backoff import Backoff
from odradek.core.interfaces import ProtocolDriver
from odradek.core.observer_calls import ObserverCalls
from odradek.errors import ConfigError

if TYPE_CHECKING:
    from odradek.io.proxy import Proxy
    from odradek.io.security import Security
    from odradek.observe.push import ClientMetrics

__all__ = ["SCHEMES", "DriverOptions", "brokers_url", "make_driver", "url_forms", "zookeeper_url"]


class DriverOptions(NamedTuple):
    """Options of every driver.

    Args:
        connect_timeout_s: For one connection, look-up included (s).
        request_timeout_s: For one response of a broker (s).
        session_timeout_s: After this long without a sign of life a group considers this client dead (s); None: the
            driver's default.
        backoff: Between attempts to connect.
        security: Options of TLS and SASL; None: those of the environment.
        client_id: Name of this client, for the brokers' logs, metrics and quotas.
        rack: Where this client runs.
        observer: Told of what the driver does.
        metrics: Metrics of this client, for brokers that ask for them; one of those that are told.
        proxy: All connections to brokers go through it.
    """

    connect_timeout_s: float
    request_timeout_s: float
    session_timeout_s: float | None
    backoff: Backoff
    security: Security | None = None
    client_id: str = "odradek"
    rack: str | None = None
    observer: ObserverCalls | None = None
    metrics: ClientMetrics | None = None
    proxy: Proxy | None = None


class Scheme(NamedTuple):
    """One scheme: the form of its URLs, and the module with its `make_driver(scheme, rest, options)`."""

    form: str
    module: str


SCHEMES: Mapping[str, Scheme] = {
    "kafka07+zk": Scheme("kafka07+zk://[user:password@]zk1[:2181],zk2[:2181][/chroot]", "odradek.io.kafka07.urls"),
    "kafka07": Scheme("kafka07://[id@]broker1[:9092],[id@]broker2[:9092]", "odradek.io.kafka07.urls"),
    **{
        scheme: Scheme("kafka[+sasl][+ssl]://broker1[:9092],broker2[:9092]", "odradek.io.kafka.urls")
        for scheme in ("kafka", "kafka+ssl", "kafka+sasl", "kafka+sasl+ssl")
    },
}
"""Every scheme that there is a driver for."""


def url_forms() -> str:
    """Return the forms of a cluster's URL, for error messages and help texts."""
    return " or ".join(dict.fromkeys(scheme.form for scheme in SCHEMES.values()))


def brokers_url(addresses: str) -> str:
    """Return the URL of a cluster without ZooKeeper, for a list of all its brokers (`host:port,...`)."""
    return f"kafka07://{addresses}"


def zookeeper_url(address: str) -> str:
    """Return the URL of a cluster that registers with this ZooKeeper (`host:port,.../chroot`)."""
    return f"kafka07+zk://{address}"


def make_driver(url: str, options: DriverOptions) -> ProtocolDriver:
    """Return the driver for a cluster's URL; its module is imported now, and nothing is opened. `host:port,host:port`
    without a scheme are brokers of `kafka://`.

    Raises:
        ConfigError: The scheme is unknown (the message lists those that exist) or the rest is malformed.
    """
    scheme, mark, rest = url.partition("://")
    if not mark:
        if not all(":" in broker for broker in url.split(",")):
            raise ConfigError(f"the URL of a cluster has no scheme; it is {url_forms()}")
        scheme, rest = "kafka", url
    if scheme not in SCHEMES:
        raise ConfigError(f"unknown scheme {scheme!r} in the URL of a cluster; it is {url_forms()}")
    make = import_module(SCHEMES[scheme].module).make_driver
    return cast(Callable[[str, str, DriverOptions], ProtocolDriver], make)(scheme, rest, options)
