"""Options that name a cluster and say how to log in there: flags, environment variables and profiles, in this order."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click
from click.core import ParameterSource

from odradek.cli.profiles import SECURITY_KEYS, Profile, read_profile, read_secret
from odradek.errors import ConfigError, OdradekError
from odradek.io.drivers import url_forms
from odradek.io.security import MECHANISMS, PREFIX

__all__ = ["CLUSTER", "CONNECTION", "connection", "explain"]

_FILE = click.Path(exists=True, dir_okay=False)
CLUSTER = click.option(
    "--cluster",
    "-b",
    envvar="ODRADEK_CLUSTER",
    metavar="URL",
    help=f"{url_forms()}; HOST:PORT,... is short for kafka://HOST:PORT,... (default: $ODRADEK_CLUSTER).",
)
CONNECTION = (
    CLUSTER,
    click.option(
        "--profile",
        envvar="ODRADEK_PROFILE",
        metavar="NAME",
        help="A profile of ~/.config/odradek/config.toml, or of $ODRADEK_CONFIG: a cluster and how to log in there "
        "(default: $ODRADEK_PROFILE).",
    ),
    click.option("--tls", is_flag=True, help="Use TLS, as a URL with +ssl does; so do the options --ssl-..."),
    click.option("--ssl-cafile", type=_FILE, metavar="FILE", help="The authorities that are trusted (PEM)."),
    click.option("--ssl-certfile", type=_FILE, metavar="FILE", help="The certificate of this client (PEM)."),
    click.option("--ssl-keyfile", type=_FILE, metavar="FILE", help="Its private key (PEM)."),
    click.option(
        "--sasl-mechanism",
        type=click.Choice(MECHANISMS, case_sensitive=False),
        help="Log in, as with a URL that has +sasl; so do the other options --sasl-...",
    ),
    click.option("--sasl-username", metavar="NAME", help="The name to log in with."),
    click.option(
        "--sasl-password-file",
        type=_FILE,
        metavar="FILE",
        help="Its password. What no option says is taken from ODRADEK_SASL_PASSWORD, ODRADEK_SSL_CAFILE and so on, "
        "then from the profile.",
    ),
)
"""Options of every command that talks to a cluster."""

_FLAGS = {
    "ssl_cafile": "--ssl-cafile",
    "ssl_certfile": "--ssl-certfile",
    "ssl_keyfile": "--ssl-keyfile",
    "sasl_mechanism": "--sasl-mechanism",
    "sasl_username": "--sasl-username",
    "sasl_password": "--sasl-password-file",
}
"""Options of `Security` -> the flags that set them."""

_REPLACES = {"ssl_cafile": ("ssl_ca_pem",), "ssl_certfile": ("ssl_certificate_pem", "ssl_key_pem")}
"""Options that name a file -> the texts that `Security` would use instead of it."""


@contextmanager
def connection(options: dict[str, Any]) -> Iterator[str]:
    """Take the options of CONNECTION out of those of a command; yield the URL of the cluster. Meanwhile the environment
    has the options of TLS and SASL: `connect` takes them from there.

    Raises:
        click.UsageError: No cluster is named, or it has neither TLS nor SASL.
        ProfileError: A profile, or a file with a password, has a mistake.
    """
    cluster, name, tls = options.pop("cluster"), options.pop("profile"), options.pop("tls")
    flags = {field: options.pop(flag.removeprefix("--").replace("-", "_")) for field, flag in _FLAGS.items()}
    flags = {field: value for field, value in flags.items() if value is not None}
    if "sasl_password" in flags:
        flags["sasl_password"] = read_secret(flags["sasl_password"])
    profile = read_profile(name) if name else Profile()
    if cluster and profile.cluster not in (None, cluster):
        _note_other_cluster(name)
    url = _url(cluster, profile, tls, flags)
    try:
        with _environment(_variables(flags, profile.security)):
            yield url
    except Exception as error:
        _explain(error)
        raise


def _note_other_cluster(profile: str) -> None:
    source = click.get_current_context().get_parameter_source
    if (source("cluster"), source("profile")) == (ParameterSource.ENVIRONMENT, ParameterSource.COMMANDLINE):
        click.echo(f"odradek: ODRADEK_CLUSTER names the cluster, not profile {profile}", err=True)


def _url(cluster: str | None, profile: Profile, tls: bool, flags: Mapping[str, str]) -> str:
    """Return the URL, with the scheme that options need: those of the profile count for its own cluster."""
    url = cluster or profile.cluster
    if not url:
        raise click.UsageError("no cluster: give --cluster URL, set ODRADEK_CLUSTER, or name a profile by --profile")
    wanted = flags if cluster else {**profile.security, **flags}
    has_tls = tls or any(field.startswith("ssl_") for field in wanted)
    has_sasl = any(field.startswith("sasl_") for field in wanted)
    scheme, mark, rest = url.rpartition("://")
    if not (has_tls or has_sasl):
        return url
    if mark and not re.fullmatch(r"kafka(\+sasl)?(\+ssl)?", scheme):
        raise click.UsageError(
            f"{scheme}:// has neither TLS nor SASL: options --tls, --ssl-... and --sasl-... need 0.8"
        )
    sasl, ssl = "+sasl" * (has_sasl or "+sasl" in scheme), "+ssl" * (has_tls or "+ssl" in scheme)
    return f"kafka{sasl}{ssl}://{rest}"


def _variables(flags: Mapping[str, str], profile: Mapping[str, str]) -> dict[str, str | None]:
    """Return variables of the environment and their values: None takes one away."""
    missing = {_variable(field): value for field, value in profile.items() if not os.environ.get(_variable(field))}
    texts = [_variable(text) for field in flags for text in _REPLACES.get(field, ())]
    return {**missing, **dict.fromkeys(texts), **{_variable(field): value for field, value in flags.items()}}


def _variable(field: str) -> str:
    return PREFIX + field.upper()


@contextmanager
def _environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables of the environment for the duration of a block."""
    before = {name: os.environ.get(name) for name in variables}
    _set_variables(variables)
    try:
        yield
    finally:
        _set_variables(before)


def _set_variables(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


# ---- errors -------------------------------------------------------------------------------------------------

_OF_PROFILES = tuple(key for key in SECURITY_KEYS if key not in _FLAGS)
_TEXTS = tuple(text for texts in _REPLACES.values() for text in texts)
_FIELD = re.compile(rf"\b({'|'.join((*_FLAGS, *_OF_PROFILES, *_TEXTS))})\b(?!=)")
_VALUE = re.compile(r"Security\.(\w+)=")
_SCHEME = re.compile(r"use a URL with \+(ssl|sasl)\b")
_OF_SCHEME = {"ssl": "--tls", "sasl": "--sasl-mechanism"}
_CALL = re.compile(r"Security\(([^()]*)\)")
_OR_PYTHON = re.compile(r"sasl_token_provider(?: or|,) |,? or ODRADEK_\w+(?: and ODRADEK_\w+)?(?: in the environment)?")


def _explain(error: Exception) -> None:
    """Let an error of the library, or those of a group, say what a user of the command can set."""
    for each in error.exceptions if isinstance(error, ExceptionGroup) else ():
        _explain(each)
    if isinstance(error, OdradekError):
        error.hint = explain(error.hint)
    if isinstance(error, ConfigError):
        error.args = tuple(explain(str(part)) for part in error.args)


def explain(text: str) -> str:
    """Return a text about `Security` with the flags, environment variables and keys of profiles that set it."""
    text = _CALL.sub(lambda call: call[1].replace("=...", "").replace(", ", " and "), _OR_PYTHON.sub("", text))
    text = _VALUE.sub(lambda field: f"{_variable(field[1])}=", text)  # other values were checked before
    text = _SCHEME.sub(lambda url: f"{url[0]}, or {_OF_SCHEME[url[1]]}", text)
    return _FIELD.sub(lambda field: _ways(field[1]), text)


def _ways(field: str) -> str:
    """Return how a user of the command sets an option of `Security`."""
    of_profile = f"{field} of a profile"
    if field in _FLAGS:
        return f"{_FLAGS[field]} [or {_variable(field)}, or {of_profile}]"
    return f"{_variable(field)} [or {of_profile}]" if field in _OF_PROFILES else _variable(field)
