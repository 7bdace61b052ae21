"""`connect`: from the URL of a cluster to a `Cluster`."""

from __future__ import annotations

from odradek import arguments
from odradek.client.cluster import Cluster
from odradek.client.options import TUNING, Tuning
from odradek.io.drivers import DriverOptions, make_driver

__all__ = ["connect"]


def connect(url: str, *, tuning: Tuning | None = None) -> Cluster:
    """Return a cluster, to be used as `async with`; nothing is opened before.

    Args:
        url: `SCHEME://SERVER,SERVER`: the scheme names the protocol of the cluster. The error for an unknown scheme
            lists all schemes and the form of their URLs.
        tuning: For experts.

    Raises:
        ConfigError: The URL is malformed; the message says where.
        Unsupported: The scheme is known, but this version does not speak its protocol.
        TypeError: An argument of the wrong type.
    """
    _URL("url", url)
    tuning = TUNING.rule("tuning", tuning) or Tuning()
    options = DriverOptions(
        connect_timeout_s=tuning.connect_timeout,
        request_timeout_s=tuning.request_timeout,
        session_timeout_s=tuning.session_timeout,
        backoff=tuning.backoff,
    )
    return Cluster(make_driver(url, options), tuning)


_URL = arguments.instance(str, "a text such as kafka07://host:port")
