"""The cluster that options name. `kafka.*` options of the connection are those of Java's clients."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from textwrap import wrap
from typing import Any

from odradek.errors import ConfigError
from odradek.io.drivers import zookeeper_url
from odradek.io.security import Security
from odradek.ranges.request import ClusterConnection, numbered_brokers_url
from odradek.spark.values import OptionMap, choice, option, parse_milliseconds, parse_text

__all__ = ["BOOTSTRAP", "CLUSTERS", "TOKEN", "parse_cluster"]

BOOTSTRAP = "kafka.bootstrap.servers"

CLUSTERS = (BOOTSTRAP, "kafka.zk.connect", "kafka.broker.list")
"""Options that name a cluster: the last two one of 0.7."""

PEM = "convert it to PEM (`keytool -list -rfc` for a truststore, `openssl pkcs12` for a keystore)"
TOKEN = "the environment variable ODRADEK_SASL_TOKEN has the bearer token"

_CONNECTION = {
    "client_id": option(parse_text, "kafka.client.id"),
    "rack": option(parse_text, "kafka.client.rack"),
    "request_timeout_s": option(parse_milliseconds, "kafka.request.timeout.ms"),
}
"""Fields of `ClusterConnection` -> the options that set them."""


def parse_cluster(option_map: OptionMap) -> ClusterConnection | None:
    """Return the cluster that the options name; None if none does.

    Raises ConfigError, Unsupported for what cannot work; no message has a secret.
    """
    name = option_map.one_of(*CLUSTERS)
    cluster = option_map.fill(ClusterConnection, _CONNECTION, url="")
    text = option_map.text(name) if name else None
    if text is None:
        return None
    try:
        if name == BOOTSTRAP:
            url, security = _kafka_url(option_map, text)
        else:
            to_url = numbered_brokers_url if name == "kafka.broker.list" else zookeeper_url
            url, security = to_url(text.strip()), None
        cluster = replace(cluster, url=url, security=security)
        cluster.connect()
    except ConfigError as error:
        message = _FIELD.sub(lambda match: _OPTION_OF.get(match[1], match[0]), error.message())
        raise ConfigError(f"option {name}: {message}") from None
    return cluster


_SCHEMES = {"plaintext": "kafka", "ssl": "kafka+ssl", "sasl_plaintext": "kafka+sasl", "sasl_ssl": "kafka+sasl+ssl"}


def _kafka_url(option_map: OptionMap, servers: str) -> tuple[str, Security]:
    """Java's clients ignore the options of SASL without SASL, and those of TLS without TLS, and so do we."""
    scheme = option_map.take(choice(_SCHEMES), "kafka", "kafka.security.protocol")
    option_map.know(*_SASL_OPTIONS, *_TLS_OPTIONS)
    security = {
        **(_sasl(option_map) if "sasl" in scheme else {}),
        **(_tls(option_map) if "ssl" in scheme else {}),
    }
    hosts = ",".join(server.strip() for server in servers.split(","))
    return f"{scheme}://{hosts}", Security(**security)


def _upper(text: str, option: str) -> str:
    return text.strip().upper()


_LOGINS: Mapping[str, tuple[set[str], str]] = {
    "PlainLoginModule": ({"username", "password"}, ""),
    "ScramLoginModule": ({"username", "password", "tokenauth"}, ""),
    "OAuthBearerLoginModule": ({"clientId", "clientSecret", "scope"}, f"; {TOKEN}"),
    "Krb5LoginModule": ({"serviceName", "useTicketCache"}, "; the ticket is that of kinit"),
}
"""Java's login modules -> their options that have a meaning here, and what stands for the others. `extension_x` of
OAuthBearerLoginModule, too."""

_JAAS = re.compile(
    r'\s*(?P<module>[\w.$]+)\s+\w+\s*(?P<options>(?:[\w.]+\s*=\s*(?:"(?:[^"\\]|\\.)*"|[^\s";]+)\s*)*);?\s*'
)
_JAAS_OPTION = re.compile(r'([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s";]+))')


def _sasl(option_map: OptionMap) -> dict[str, Any]:
    mechanism = option_map.take(_upper, None, "kafka.sasl.mechanism")
    options: dict[str, Any] = option_map.take(_login, {}, "kafka.sasl.jaas.config")
    if (service := option_map.take(parse_text, None, "kafka.sasl.kerberos.service.name")) is not None:
        options = {**options, "sasl_kerberos_service_name": service}
    oauth = {name: option_map.take(parse_text, None, *names) for name, names in _OAUTH.items()}
    options = {**options, **{name: value for name, value in oauth.items() if value is not None}}
    if mechanism is None and options:
        mechanism = "GSSAPI"  # as in Java's clients; without any option, the environment decides
    return {"sasl_mechanism": mechanism, **options}


def _login(text: str, option: str) -> dict[str, Any]:
    """`org.apache...ScramLoginModule required username="alice" password="...";` -> options of `Security`."""
    match = _JAAS.fullmatch(text)
    module = match["module"].rpartition(".")[2] if match else ""
    if match is None or module not in _LOGINS:
        raise ConfigError(f"option {option}: must be one of {', '.join(_LOGINS)}, `required`, options, and a semicolon")
    named = {name: re.sub(r"\\(.)", r"\1", quoted or bare) for name, quoted, bare in _JAAS_OPTION.findall(match[2])}
    extensions = {name[10:]: named.pop(name) for name in list(named) if name.startswith("extension_")}
    known, instead = _LOGINS[module]
    if wrong := sorted(named.keys() - known):
        raise ConfigError(f"option {option}: {module} has options that cannot be honoured: {', '.join(wrong)}{instead}")
    options = {
        "sasl_username": named.get("username"),
        "sasl_password": named.get("password"),
        "sasl_kerberos_service_name": named.get("serviceName"),
        "sasl_delegation_token": True if named.get("tokenauth", "").lower() == "true" else None,
        "sasl_oauth_client_id": named.get("clientId"),
        "sasl_oauth_client_secret": named.get("clientSecret"),
        "sasl_oauth_scope": named.get("scope"),
        "sasl_extensions": extensions or None,
    }
    return {name: value for name, value in options.items() if value is not None}


_PEM = re.compile(r"(-----BEGIN [A-Z ]+-----)([A-Za-z0-9+/=\s]+)(-----END [A-Z ]+-----)")


def _pem(text: str, option: str) -> str:
    """Return a PEM text with its lines, as OpenSSL wants them: Java's clients take it on one line, too."""
    if "-----BEGIN " not in text:
        raise ConfigError(f"option {option}: must be PEM: -----BEGIN ...-----, base64, -----END ...-----")
    return _PEM.sub(lambda block: "\n".join((block[1], *wrap("".join(block[2].split()), 64), block[3], "")), text)


_TLS = {
    "ssl_cafile": (parse_text, None, "kafka.ssl.truststore.location"),
    "ssl_certfile": (parse_text, None, "kafka.ssl.keystore.location"),
    "ssl_password": (parse_text, None, "kafka.ssl.key.password"),
    "ssl_ca_pem": (_pem, None, "kafka.ssl.truststore.certificates"),
    "ssl_certificate_pem": (_pem, None, "kafka.ssl.keystore.certificate.chain"),
    "ssl_key_pem": (_pem, None, "kafka.ssl.keystore.key"),
}
"""Options of `Security` -> parser, default and name of ours."""

_OAUTH = {
    "sasl_oauth_token_url": ("kafka.sasl.oauthbearer.token.endpoint.url",),
    "sasl_oauth_client_id": ("kafka.sasl.oauthbearer.client.credentials.client.id",),
    "sasl_oauth_client_secret": ("kafka.sasl.oauthbearer.client.credentials.client.secret",),
    "sasl_oauth_scope": ("kafka.sasl.oauthbearer.scope",),
}
"""Options of `Security` -> those of Java's clients (KIP-768, KIP-1139), which go before those of the login module."""

_SASL_OPTIONS = (
    "kafka.sasl.mechanism",
    "kafka.sasl.jaas.config",
    "kafka.sasl.kerberos.service.name",
    *(name for names in _OAUTH.values() for name in names),
)

_TLS_OPTIONS = (
    *(name for _, _, name in _TLS.values()),
    "kafka.ssl.truststore.type",
    "kafka.ssl.keystore.type",
    "kafka.ssl.endpoint.identification.algorithm",
)

_OPTION_OF = {
    **{name: option for name, (_, _, option) in _TLS.items()},
    "sasl_mechanism": "kafka.sasl.mechanism",
    "sasl_username": "kafka.sasl.jaas.config",
    "sasl_password": "kafka.sasl.jaas.config",
    "sasl_kerberos_service_name": "kafka.sasl.kerberos.service.name",
    **{name: options[0] for name, options in _OAUTH.items()},
}

_FIELD = re.compile(r"\b(?:Security\.)?((?:sasl|ssl)_\w+)\b")


def _tls(option_map: OptionMap) -> dict[str, Any]:
    _check_store(option_map, "truststore", "certificates")
    _check_store(option_map, "keystore", "certificate.chain", "key")
    options = {name: option_map.take(*declared) for name, declared in _TLS.items()}
    name = "kafka.ssl.endpoint.identification.algorithm"
    algorithm = option_map.text(name, may_be_empty=True)
    if algorithm is not None and algorithm.strip().lower() not in ("https", ""):
        raise ConfigError(f"option {name}: must be https, or empty to accept any host")
    return {**options, "ssl_check_hostname": algorithm is None or bool(algorithm.strip())}


def _check_store(option_map: OptionMap, store: str, *texts: str) -> None:
    """Refuse a store that is not PEM, and one that is given as a file and as a text.

    As in Java's clients, files are of Java's own type unless the options say otherwise.
    """
    prefix = f"kafka.ssl.{store}."
    present = [name for name in texts if option_map.text(prefix + name) is not None]
    option = option_map.one_of(prefix + "location", prefix + (present or texts)[0])
    kind = option_map.take(_upper, "PEM" if present else "JKS", prefix + "type")
    if kind != "PEM" and option:
        raise ConfigError(
            f"option {option}: a store of type {kind} cannot be read here: {PEM}, and set {prefix}type=PEM"
        )
