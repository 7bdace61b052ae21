"""The cluster that options name, and connections to it for code that knows nothing of event loops.

`kafka.*` options of the connection are those of Java's clients. Each process has one loop, in a thread of its own, and
connections stay open as long as the process: Spark keeps Python workers from task to task, and connecting costs more
than a small task. Nothing has to be closed in the end: a worker is killed rather than ended, and a 0.7 broker keeps
nothing for a reader.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from random import random
from textwrap import wrap
from threading import Lock, Thread
from typing import Any, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from odradek.client.cluster import Cluster
from odradek.client.connect import connect
from odradek.client.options import Tuning
from odradek.core.backoff import Backoff
from odradek.errors import ConfigError, DeadlineError, OdradekError
from odradek.io.drivers import brokers_url, zookeeper_url
from odradek.io.security import Security
from odradek.spark.values import OptionMap, choice, option, parse_milliseconds, parse_text

__all__ = [
    "BOOTSTRAP",
    "CLUSTERS",
    "TOKEN",
    "ClusterOptions",
    "connected",
    "disconnect",
    "numbered_brokers_url",
    "parse_cluster",
    "retry_until",
]

T = TypeVar("T")

log = logging.getLogger("odradek.spark")

BOOTSTRAP = "kafka.bootstrap.servers"

CLUSTERS = (BOOTSTRAP, "kafka.zk.connect", "kafka.broker.list")
"""Options that name a cluster: the last two one of 0.7."""

PEM = "convert it to PEM (`keytool -list -rfc` for a truststore, `openssl pkcs12` for a keystore)"
TOKEN = "the environment variable ODRADEK_SASL_TOKEN has the bearer token"

PAUSES = Backoff(first_s=0.05, max_s=2.0)


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """A cluster to be reached over the network: arguments of `odradek.connect`. The URL may hold a password."""

    url: str
    security: Security | None = field(default=None, hash=False)  # None: the environment of each process
    client_id: str = option(parse_text, "odradek", "kafka.client.id")
    rack: str | None = option(parse_text, None, "kafka.client.rack")
    request_timeout_s: float | None = option(parse_milliseconds, None, "kafka.request.timeout.ms")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url.partition('://')[0]}://...>"

    def connect(self, tuning: Tuning | None = None) -> Cluster:
        """Return the cluster, of which nothing is opened yet."""
        return connect(self.url, security=self.security, rack=self.rack, client_id=self.client_id, tuning=tuning)

    def tuning(self, deadline_s: float) -> Tuning:
        """Return connection options under which no single wait exceeds the deadline of all of them together (s)."""
        usual = Tuning()
        return Tuning(
            connect_timeout=min(usual.connect_timeout, deadline_s),
            request_timeout=min(self.request_timeout_s or usual.request_timeout, deadline_s),
        )


# ---- options -------------------------------------------------------------------------------------------------


def parse_cluster(option_map: OptionMap) -> ClusterOptions | None:
    """Return the cluster that the options name; None if none does.

    Raises ConfigError, Unsupported for what cannot work; no message has a secret.
    """
    name = option_map.one_of(*CLUSTERS)
    cluster = option_map.fill(ClusterOptions, url="")
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


def numbered_brokers_url(text: str) -> str:
    """Return the URL for brokers with ids: `id:host:port,...`, as 0.7 writes broker.list, or `id@host:port`, as URLs
    do. Raises ConfigError."""
    items = [re.sub(r"^([0-9]+):(?=[^:]+:[0-9]+$)", r"\1@", item.strip()) for item in text.split(",")]
    if any("@" not in item for item in items):
        raise ConfigError("each broker needs its id, as in 1@host:9092: rows name brokers by their ids")
    return brokers_url(",".join(items))


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
    "OAuthBearerLoginModule": (set(), f"; {TOKEN}"),
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

_SASL_OPTIONS = ("kafka.sasl.mechanism", "kafka.sasl.jaas.config", "kafka.sasl.kerberos.service.name")

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


# ---- connections ---------------------------------------------------------------------------------------------


class _Process:
    """What one process has open. Used by one thread at a time, as everything in a Python worker."""

    lock: Lock
    portal: BlockingPortal | None
    clusters: dict[tuple[ClusterOptions, Tuning], tuple[Cluster, AbstractContextManager[Cluster]]]

    def begin(self) -> None:
        """Have nothing open: threads, and with them loops, stay behind in the parent when a process forks."""
        self.lock, self.portal, self.clusters = Lock(), None, {}


_process = _Process()
_process.begin()
os.register_at_fork(after_in_child=_process.begin)


@contextmanager
def connected(where: ClusterOptions, deadline_s: float) -> Iterator[tuple[BlockingPortal, Cluster]]:
    """Yield this cluster, opened at the first use, and the way into its event loop. When the block fails, the next one
    opens it again.

    Raises DeadlineError, which says why, if it could not be reached in time.
    """
    tuning = where.tuning(deadline_s)
    key = (where, tuning)
    with _process.lock:
        portal = _process.portal = _process.portal or _start_loop()
        if key not in _process.clusters:
            opened = portal.wrap_async_context_manager(_opened(where, tuning, deadline_s))
            _process.clusters[key] = opened.__enter__(), opened
        cluster, block = mine = _process.clusters[key]
    try:
        yield portal, cluster
    except OdradekError as error:
        with _process.lock:
            is_mine = _process.clusters.get(key) is mine
            if is_mine:
                del _process.clusters[key]
        if is_mine:
            block.__exit__(type(error), error, error.__traceback__)
        raise


def disconnect() -> None:
    """Close everything that this process has open, as long as nothing uses it. Raises what closing raises."""
    with _process.lock:
        while _process.clusters:
            _process.clusters.popitem()[1][1].__exit__(None, None, None)


@asynccontextmanager
async def _opened(where: ClusterOptions, tuning: Tuning, deadline_s: float) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        yield await retry_until(
            lambda: stack.enter_async_context(where.connect(tuning)), deadline_s, "connecting to the cluster"
        )


def _start_loop() -> BlockingPortal:
    started: Future[BlockingPortal] = Future()

    async def serve() -> None:
        async with BlockingPortal() as portal:
            started.set_result(portal)
            await portal.sleep_until_stopped()

    # A daemon: at the end of its process nobody waits for it.
    Thread(target=anyio.run, args=(serve,), name="odradek", daemon=True).start()
    return started.result()


async def retry_until(work: Callable[[], Awaitable[T]], deadline_s: float, what: str) -> T:
    """Call until it works, with growing pauses; no call begins after the deadline, and each has deadlines of its own.

    Raises DeadlineError, with the last error, or an error that trying again does not help against.
    """
    until = anyio.current_time() + deadline_s
    attempt = 0
    while True:
        try:
            return await work()
        except OdradekError as error:
            if not error.retriable:
                raise
            pause = PAUSES.delay(attempt, random())
            if anyio.current_time() + pause >= until:
                raise DeadlineError(f"{what}: {error}", deadline_s) from error
            if not attempt:
                log.warning("%s: %s; retrying", what, error)
        await anyio.sleep(pause)
        attempt += 1
