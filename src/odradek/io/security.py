"""`Security`: how a client proves who it is, and how it knows the brokers. Options, and how a token provider is called;
`io.tls` and `io.kafka.authentication` use them."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from concurrent import futures
from dataclasses import dataclass, field, fields, replace
from typing import Any

from odradek import arguments
from odradek.errors import ConfigError, OdradekError
from odradek.io.cancellation import is_cancelled

__all__ = ["SECURITY", "Security", "TokenError", "TokenProvider", "ask_provider"]

TokenProvider = Callable[[], Awaitable[str | tuple[str, float]]]
"""An asynchronous function that returns a bearer token, or a token and the time when it expires (s since the epoch)."""


class TokenError(OdradekError):
    """A token provider has no token; `retriable` says whether it may have one later. Its text is shown in errors and
    logs, unlike those of other exceptions of providers."""


async def ask_provider(provider: TokenProvider) -> str | tuple[str, float]:
    """Return what a token provider returns. Raises what it raises, and TokenError if that has no token.

    Cancellation: that of the provider. One that raises CancelledError although this task is not cancelled, because it
    awaits a task that was, has failed: the error of `concurrent.futures` stands for it.
    """
    called: object = provider()
    if not isinstance(called, Awaitable):
        raise TokenError(f"the token provider is no asynchronous function: its call returned {type(called).__name__}")
    try:
        answer = await called
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        raise futures.CancelledError("the token provider awaits what was cancelled") from error
    match answer:
        case str() | (str(), int() | float()):
            return answer
    expected = "a text, or a text and the time when it expires (s since the epoch)"
    raise TokenError(f"the token provider returned {type(answer).__name__}, not {expected}")


MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")

PREFIX = "ODRADEK_"
"""Prefix of the environment variable that stands for an option: `ODRADEK_SASL_PASSWORD`."""


@dataclass(frozen=True, slots=True)
class Security:
    """Options of TLS and SASL, for `connect`. The scheme of the URL says which of them are used.

    An option of type str that is not given is read from the environment when `connect` is called: `sasl_password` from
    ODRADEK_SASL_PASSWORD, and so on. Secrets appear in no repr, error or log. Files of certificates and keys are read
    again for new connections once they have changed.

    Args:
        sasl_mechanism: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`, `OAUTHBEARER` or `GSSAPI`.
        sasl_username: The name to authenticate; of a delegation token, its id.
        sasl_password: Its password; of a delegation token, its HMAC.
        sasl_token: A bearer token that does not change (OAUTHBEARER); short-lived ones need `sasl_token_provider`.
        sasl_token_provider: Called for a bearer token before the first connection, and again ahead of its expiry. The
            expiry is the one it returns, that of a JSON Web Token, or the end of the session that a broker has granted
            for it; while none is known it is called for every connection.
        sasl_oauth_token_url: The token endpoint of an OpenID Connect provider, where a token is fetched by client
            credentials (KIP-768): `https://provider/oauth2/token`. Needs `pip install odradek[oidc]`.
        sasl_oauth_client_id: The client's id there.
        sasl_oauth_client_secret: Its secret.
        sasl_oauth_client_secret_file: A file with its secret, read for each token.
        sasl_oauth_scope: The scope to ask for; several are separated by spaces.
        sasl_oauth_cafile: PEM file of the authorities that are trusted for this endpoint, instead of the system's.
        sasl_aws_region: Region of an Amazon MSK cluster: the token is made of AWS credentials (IAM), found as by AWS's
            own tools. Needs `pip install odradek[msk]`.
        sasl_extensions: Names and values that go with the bearer token (KIP-342).
        sasl_delegation_token: True to say that user and password are a delegation token (SCRAM, KIP-48).
        sasl_kerberos_service_name: The brokers' service (GSSAPI).
        ssl_cafile: PEM file of the authorities that are trusted, instead of the system's.
        ssl_certfile: PEM file of the client's certificate, followed by those that lead to its authority.
        ssl_keyfile: PEM file of its private key, if that is not in `ssl_certfile`.
        ssl_ca_pem: The text of such a file of authorities; it goes before `ssl_cafile`.
        ssl_certificate_pem: The text of such a file of certificates, with the private key in it or in `ssl_key_pem`; it
            goes before `ssl_certfile`.
        ssl_key_pem: The text of the private key.
        ssl_password: Password of the private key.
        ssl_check_hostname: False to accept a certificate of another host, if it is trusted.
        ssl_context: Used as it is, instead of all other options for TLS.
    """

    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    sasl_token: str | None = field(default=None, repr=False)
    sasl_token_provider: TokenProvider | None = field(default=None, repr=False)
    sasl_oauth_token_url: str | None = None
    sasl_oauth_client_id: str | None = None
    sasl_oauth_client_secret: str | None = field(default=None, repr=False)
    sasl_oauth_client_secret_file: str | None = None
    sasl_oauth_scope: str | None = None
    sasl_oauth_cafile: str | None = None
    sasl_aws_region: str | None = None
    sasl_extensions: Mapping[str, str] = field(default_factory=dict, repr=False)
    sasl_delegation_token: bool = False
    sasl_kerberos_service_name: str | None = None
    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_ca_pem: str | None = field(default=None, repr=False)
    ssl_certificate_pem: str | None = field(default=None, repr=False)
    ssl_key_pem: str | None = field(default=None, repr=False)
    ssl_password: str | None = field(default=None, repr=False)
    ssl_check_hostname: bool = True
    ssl_context: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        for option in fields(self):
            _RULES[option.name](f"Security.{option.name}", _hidden(option.name, getattr(self, option.name)))

    def with_environment(self, environment: Mapping[str, str] = os.environ) -> Security:
        """Return the same options, with those of type str that are not set taken from environment variables."""
        missing = [name for name in _TEXTS if getattr(self, name) is None]
        read: dict[str, Any] = {name: environment.get(PREFIX + name.upper()) or None for name in missing}
        return replace(self, **read)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.ssl_context is not None:
            raise ConfigError("a Security with an ssl_context cannot go to another process: name files instead")
        return _restore, ({option.name: getattr(self, option.name) for option in fields(self)},)


def _restore(options: dict[str, Any]) -> Security:
    return Security(**options)


_TEXTS = (
    "sasl_mechanism",
    "sasl_username",
    "sasl_password",
    "sasl_token",
    "sasl_oauth_token_url",
    "sasl_oauth_client_id",
    "sasl_oauth_client_secret",
    "sasl_oauth_client_secret_file",
    "sasl_oauth_scope",
    "sasl_oauth_cafile",
    "sasl_aws_region",
    "sasl_kerberos_service_name",
    "ssl_cafile",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_ca_pem",
    "ssl_certificate_pem",
    "ssl_key_pem",
    "ssl_password",
)

_SECRETS = (
    "sasl_password",
    "sasl_token",
    "sasl_oauth_client_secret",
    "ssl_ca_pem",
    "ssl_certificate_pem",
    "ssl_key_pem",
    "ssl_password",
)


class _Secret(str):
    """A secret for a rule, whose error shows what it refuses."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<not shown>"


def _hidden(name: str, value: object) -> object:
    """Return a value as a rule may show it in an error."""
    if name not in _SECRETS or value is None:
        return value
    if not isinstance(value, str):
        raise TypeError(f"Security.{name} must be a text, not {type(value).__name__}")
    return _Secret(value)


def _region() -> arguments.Rule:
    of_text = arguments.text("the name of a region, such as eu-west-1")

    def check(name: str, value: object) -> str:
        region: str = of_text(name, value)
        if not re.fullmatch("[a-z0-9-]+", region):  # it becomes part of a host's name
            arguments.wrong_value(name, value, "the name of a region, such as eu-west-1")
        return region

    return check


_FILE = arguments.optional(arguments.path())
_TEXT = arguments.optional(arguments.text())
_RULES: dict[str, arguments.Rule] = {
    "sasl_mechanism": arguments.optional(arguments.choice(*MECHANISMS)),
    "sasl_username": _TEXT,
    "sasl_password": _TEXT,
    "sasl_token": _TEXT,
    "sasl_token_provider": arguments.optional(arguments.function("an asynchronous function that returns a token")),
    "sasl_oauth_token_url": _TEXT,
    "sasl_oauth_client_id": _TEXT,
    "sasl_oauth_client_secret": _TEXT,
    "sasl_oauth_client_secret_file": _FILE,
    "sasl_oauth_scope": _TEXT,
    "sasl_oauth_cafile": _FILE,
    "sasl_aws_region": arguments.optional(_region()),
    "sasl_extensions": arguments.mapping(arguments.text(), arguments.text(), "a mapping of names to values"),
    "sasl_delegation_token": arguments.flag(),
    "sasl_kerberos_service_name": _TEXT,
    "ssl_cafile": _FILE,
    "ssl_certfile": _FILE,
    "ssl_keyfile": _FILE,
    "ssl_ca_pem": _TEXT,
    "ssl_certificate_pem": _TEXT,
    "ssl_key_pem": _TEXT,
    "ssl_password": _TEXT,
    "ssl_check_hostname": arguments.flag(),
    "ssl_context": arguments.optional(arguments.instance(ssl.SSLContext, "an ssl.SSLContext")),
}

SECURITY = arguments.optional(arguments.instance(Security, "a Security"))
