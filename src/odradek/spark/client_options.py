"""The options `kafka.*` for clusters of 0.8 and later: those of Java's clients, as far as they have a meaning here.

Every name is in one of three tables: it is used, it has no effect on what is read or written (time-outs of groups that
are not used, sizes of sockets), or it is refused with what to do instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from odradek.client.connect import connect
from odradek.errors import ConfigError
from odradek.io.drivers import zookeeper_url
from odradek.io.security import Security
from odradek.spark.option_map import OptionMap
from odradek.spark.values import choice, parse_milliseconds

__all__ = ["BOOTSTRAP", "NO_EFFECT", "REFUSED", "USED", "ClusterOptions", "kafka_cluster"]

BOOTSTRAP = "kafka.bootstrap.servers"

USED = (
    BOOTSTRAP,
    "kafka.security.protocol",
    "kafka.sasl.mechanism",
    "kafka.sasl.jaas.config",
    "kafka.sasl.kerberos.service.name",
    "kafka.ssl.truststore.type",
    "kafka.ssl.truststore.location",
    "kafka.ssl.keystore.type",
    "kafka.ssl.keystore.location",
    "kafka.ssl.key.password",
    "kafka.ssl.endpoint.identification.algorithm",
    "kafka.client.id",
    "kafka.client.rack",
    "kafka.request.timeout.ms",
)
"""Options of the connection to a cluster."""

NO_EFFECT = tuple(
    f"kafka.{name}"
    for name in (
        *("auto.include.jmx.reporter", "client.dns.lookup", "connections.max.idle.ms", "default.api.timeout.ms"),
        *("enable.metrics.push", "metadata.max.age.ms", "metric.reporters", "metrics.num.samples"),
        *("metrics.recording.level", "metrics.sample.window.ms", "receive.buffer.bytes", "reconnect.backoff.max.ms"),
        *("reconnect.backoff.ms", "retry.backoff.max.ms", "retry.backoff.ms", "send.buffer.bytes"),
        *("socket.connection.setup.timeout.max.ms", "socket.connection.setup.timeout.ms", "ssl.keystore.password"),
        *("ssl.truststore.password",),
    )
)
"""Options of Java's clients that say how they do what is done here in another way."""

PEM = "name a PEM file, and say so by kafka.ssl.truststore.type=PEM or kafka.ssl.keystore.type=PEM"

REFUSED = {
    "kafka.zk.connect": f"it is for 0.7; {BOOTSTRAP} names the cluster",
    "kafka.broker.list": f"it is for 0.7; {BOOTSTRAP} names the cluster",
    "kafka.ssl.truststore.certificates": PEM,
    "kafka.ssl.keystore.certificate.chain": PEM,
    "kafka.ssl.keystore.key": PEM,
    "kafka.ssl.protocol": "TLS 1.2 and 1.3 are used, with the ciphers of Python: leave it out",
    "kafka.ssl.enabled.protocols": "TLS 1.2 and 1.3 are used, with the ciphers of Python: leave it out",
    "kafka.ssl.cipher.suites": "TLS 1.2 and 1.3 are used, with the ciphers of Python: leave it out",
    "kafka.ssl.provider": "there is no Java: leave it out",
    "kafka.ssl.engine.factory.class": "there is no Java: leave it out",
    "kafka.sasl.client.callback.handler.class": "there is no Java: see kafka.sasl.jaas.config",
    "kafka.sasl.login.callback.handler.class": "there is no Java: the environment variable ODRADEK_SASL_TOKEN has the "
    "bearer token",
    "kafka.sasl.login.class": "there is no Java: see kafka.sasl.jaas.config",
    "kafka.interceptor.classes": "there are no interceptors",
}
"""Options of Java's clients that cannot be honoured -> what to do instead."""

_SCHEMES = {"plaintext": "kafka", "ssl": "kafka+ssl", "sasl_plaintext": "kafka+sasl", "sasl_ssl": "kafka+sasl+ssl"}

_JAAS = re.compile(
    r'\s*(?P<module>[\w.$]+)\s+\w+\s*(?P<options>(?:[\w.]+\s*=\s*(?:"(?:[^"\\]|\\.)*"|[^\s";]+)\s*)*);?\s*'
)
_JAAS_OPTION = re.compile(r'([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s";]+))')

_LOGINS = {
    "PlainLoginModule": ("username", "password"),
    "ScramLoginModule": ("username", "password", "tokenauth"),
    "OAuthBearerLoginModule": (),
    "Krb5LoginModule": ("serviceName", "useTicketCache"),
}
"""Java's login modules -> their options that have a meaning here. `extension_x` of OAuthBearerLoginModule, too."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """A cluster to be reached over the network: the arguments of `odradek.connect`. The URL may hold a password.

    Args:
        url: Its address.
        security: Options of TLS and SASL; None: those of the environment of each process.
        client_id: Name of this client; None: the default.
        rack: Where this client runs.
        request_timeout_s: For one response of a broker (s); None: the default.
    """

    url: str
    security: Security | None = None
    client_id: str | None = None
    rack: str | None = None
    request_timeout_s: float | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url.partition('://')[0]}://...>"

    def __hash__(self) -> int:
        return hash(self.url)

    @property
    def has_watches(self) -> bool:
        """True if the cluster reports new topics and partitions by itself: through ZooKeeper."""
        return self.url.startswith(zookeeper_url(""))

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Named arguments of `odradek.connect`."""
        named = {"client_id": self.client_id} if self.client_id else {}
        return {"security": self.security, "rack": self.rack, **named}


def kafka_cluster(option_map: OptionMap) -> ClusterOptions:
    """Return the cluster that `kafka.bootstrap.servers` and the options of `USED` name.

    Raises:
        ConfigError: An option that cannot work; no message has a secret.
    """
    protocol = option_map.take("kafka.security.protocol", choice(*_SCHEMES), "plaintext")
    servers = option_map.text(BOOTSTRAP) or ""
    security = {
        **_sasl(option_map, used=protocol.startswith("sasl")),
        **_tls(option_map, used=protocol.endswith("ssl")),
    }
    try:
        cluster = ClusterOptions(
            f"{_SCHEMES[protocol]}://{','.join(server.strip() for server in servers.split(','))}",
            Security(**security),
            option_map.take("kafka.client.id", _text, None),
            option_map.take("kafka.client.rack", _text, None),
            option_map.take("kafka.request.timeout.ms", parse_milliseconds, None),
        )
        connect(cluster.url, **cluster.arguments)  # which opens nothing
    except ConfigError as error:
        raise ConfigError(f"options of {BOOTSTRAP}: {error.message()}") from None
    return cluster


def _text(text: str, option: str) -> str:
    return text


# ---- SASL ----------------------------------------------------------------------------------------------------


def _sasl(option_map: OptionMap, *, used: bool) -> dict[str, Any]:
    """Return the options of `Security` for SASL. Java's clients ignore them without SASL, and so do we."""
    mechanism = option_map.take("kafka.sasl.mechanism", lambda text, _: text.strip().upper(), None)
    jaas: dict[str, Any] = option_map.take("kafka.sasl.jaas.config", _login, {})
    service = option_map.take("kafka.sasl.kerberos.service.name", _text, None)
    if not used:
        return {}
    if service is not None:
        jaas = {**jaas, "sasl_kerberos_service_name": service}
    if mechanism is None and jaas:
        mechanism = "GSSAPI"  # as in Java's clients; without any option, the environment decides
    return {"sasl_mechanism": mechanism, **jaas}


def _login(text: str, option: str) -> dict[str, Any]:
    """`org.apache...ScramLoginModule required username="alice" password="...";` -> options of `Security`."""
    match = _JAAS.fullmatch(text)
    module = match["module"].rpartition(".")[2] if match else ""
    if match is None or module not in _LOGINS:
        raise ConfigError(f"option {option}: must be one of {', '.join(_LOGINS)}, `required`, options, and a semicolon")
    named = {name: re.sub(r"\\(.)", r"\1", quoted or bare) for name, quoted, bare in _JAAS_OPTION.findall(match[2])}
    extensions = {name[10:]: value for name, value in named.items() if name.startswith("extension_")}
    if wrong := sorted(named.keys() - {*_LOGINS[module], *(f"extension_{name}" for name in extensions)}):
        raise ConfigError(
            f"option {option}: {module} has options that cannot be honoured: {', '.join(wrong)}{_instead(module)}"
        )
    options = {
        "sasl_username": named.get("username"),
        "sasl_password": named.get("password"),
        "sasl_kerberos_service_name": named.get("serviceName"),
        "sasl_delegation_token": True if named.get("tokenauth", "").lower() == "true" else None,
        "sasl_extensions": extensions or None,
    }
    return {name: value for name, value in options.items() if value is not None}


def _instead(module: str) -> str:
    return {
        "OAuthBearerLoginModule": "; the environment variable ODRADEK_SASL_TOKEN has the bearer token",
        "Krb5LoginModule": "; the ticket is that of kinit",
    }.get(module, "")


# ---- TLS -----------------------------------------------------------------------------------------------------


def _tls(option_map: OptionMap, *, used: bool) -> dict[str, Any]:
    """Return the options of `Security` for TLS."""
    files = {}
    for store, name in (("truststore", "ssl_cafile"), ("keystore", "ssl_certfile")):
        kind = option_map.take(f"kafka.ssl.{store}.type", lambda text, _: text.strip().upper(), "JKS")
        file = option_map.take(f"kafka.ssl.{store}.location", _text, None)
        if file is not None and kind != "PEM":
            raise ConfigError(f"option kafka.ssl.{store}.location: a file of type {kind} cannot be read here: {PEM}")
        files[name] = file
    password = option_map.take("kafka.ssl.key.password", _text, None)
    algorithm = option_map.text_or("kafka.ssl.endpoint.identification.algorithm", "https").strip().lower()
    if algorithm not in ("https", ""):
        raise ConfigError(
            "option kafka.ssl.endpoint.identification.algorithm: must be https, or empty to accept any host"
        )
    return {**files, "ssl_password": password, "ssl_check_hostname": bool(algorithm)} if used else {}
