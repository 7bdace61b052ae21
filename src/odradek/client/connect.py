"""`connect`: from the URL of a cluster to a `Cluster`."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from odradek import arguments
from odradek.client.cluster import Cluster
from odradek.client.options import TUNING, Tuning
from odradek.io.drivers import DriverOptions, make_driver
from odradek.io.observation import observer_calls

if TYPE_CHECKING:
    from odradek.io.proxy import Proxy
    from odradek.io.security import Security
    from odradek.observe import Observer
    from odradek.observe.push import ClientMetrics

__all__ = ["connect", "proxy_of"]


def connect(
    url: str,
    *,
    security: Security | None = None,
    client_id: str = "odradek",
    rack: str | None = None,
    tuning: Tuning | None = None,
    observer: Observer | None = None,
    push_metrics: bool = False,
    proxy: str | None = None,
) -> Cluster:
    """Return a cluster, to be used as `async with`; nothing is opened before.

    Args:
        url: `SCHEME://SERVER,SERVER`: the scheme names the protocol of the cluster. The error for an unknown scheme
            lists all schemes and the form of their URLs. `HOST:PORT,HOST:PORT` alone are brokers of 0.8 or later, as
            with `kafka://`.
        security: Options of TLS and SASL, for the schemes with +ssl and +sasl. By default (None) the environment has
            them.
        client_id: Name of this client, for the brokers' logs, metrics and quotas (0.8 and later).
        rack: Where this client runs; it fetches from replicas in the same rack where brokers allow it (2.4 and later).
        tuning: For experts.
        observer: Told of connections, requests, batches, commits and rebalances: see `odradek.observe.Observer`.
        push_metrics: Push metrics of this client to brokers that ask for them (KIP-714, 3.7 and later; needs
            `odradek[push]`). Leaving the block pushes once more, which takes at most a second.
        proxy: URL of a proxy in front of the brokers, which looks up their names: `socks5://[user:password@]host:port`
            or `http://[user:password@]host:port` (CONNECT). By default (None) that of the environment variable
            ODRADEK_PROXY, if it is set. ZooKeeper (`kafka07+zk://`) cannot be reached through one.

    Raises:
        ConfigError: The URL is malformed, or `security` does not fit it; the message says where.
        TypeError: An argument of the wrong type.
    """
    _URL("url", url)
    tuning = TUNING.rule("tuning", tuning) or Tuning()
    rack = _RACK("rack", rack)
    metrics = _client_metrics(rack) if _FLAG("push_metrics", push_metrics) else None
    options = DriverOptions(
        connect_timeout_s=tuning.connect_timeout,
        request_timeout_s=tuning.request_timeout,
        session_timeout_s=tuning.session_timeout,
        backoff=tuning.backoff,
        security=_SECURITY("security", security),
        client_id=_CLIENT_ID("client_id", client_id),
        rack=rack,
        observer=observer_calls(observer, metrics),
        metrics=metrics,
        proxy=proxy_of(proxy),
    )
    return Cluster(make_driver(url, options), tuning)


def proxy_of(proxy: str | None) -> Proxy | None:
    """Return the proxy of this URL, by default that of the environment; None: there is none. Raises ConfigError."""
    chosen: Proxy | None = _PROXY("proxy", os.environ.get("ODRADEK_PROXY") or None if proxy is None else proxy)
    return chosen


def _client_metrics(rack: str | None) -> ClientMetrics:
    from odradek.observe.push import ClientMetrics  # which needs a package of its own

    return ClientMetrics(time.time_ns(), rack)


def _check_security(name: str, value: object) -> Any:
    from odradek.io.security import SECURITY

    return SECURITY(name, value)


def _parse_proxy(name: str, url: object) -> Any:
    from odradek.io.proxy import parse_proxy

    return parse_proxy(name, url)


_URL = arguments.instance(str, "a text such as kafka://host:port")
_FLAG = arguments.flag()
_CLIENT_ID = arguments.text("a client id", at_most=249)
_SECURITY = arguments.optional(_check_security)
_PROXY = arguments.optional(_parse_proxy)
_RACK = arguments.optional(arguments.text("a rack", at_most=249))
