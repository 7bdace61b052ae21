"""Profiles: named clusters and their options of TLS and SASL, in the user's own file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import click

from odradek.errors import ConfigError
from odradek.io.security import Security

__all__ = ["SECURITY_KEYS", "Profile", "ProfileError", "profiles_file", "read_profile", "read_secret"]

_SECRETS = ("sasl_password", "sasl_token", "ssl_password")
_FILES = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "sasl_oauth_client_secret_file", "sasl_oauth_cafile")
_TEXTS = (
    *("sasl_mechanism", "sasl_username", "sasl_kerberos_service_name", "sasl_aws_region"),
    *("sasl_oauth_token_url", "sasl_oauth_client_id", "sasl_oauth_client_secret", "sasl_oauth_scope"),
)
SECURITY_KEYS = (*_TEXTS, *_SECRETS, *_FILES)
"""Options of `Security` that a profile may have."""
_KEYS = ("cluster", *SECURITY_KEYS, *(f"{name}_file" for name in _SECRETS))


class ProfileError(click.ClickException):
    """A profile, or a file that it or an option names, has a mistake."""

    exit_code = 2


class Profile(NamedTuple):
    """A profile.

    Args:
        cluster: The URL of its cluster; None: it has none.
        security: Options of `Security` -> their values.
    """

    cluster: str | None = None
    security: Mapping[str, str] = {}


def profiles_file() -> Path:
    """Return where profiles are: $ODRADEK_CONFIG, or odradek/config.toml in the user's directory for configuration."""
    if named := os.environ.get("ODRADEK_CONFIG"):
        return Path(named)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "odradek" / "config.toml"


def read_secret(path: str | Path) -> str:
    """Return the text of a file without the newline at its end. Raises ProfileError without it."""
    try:
        return Path(path).read_text("utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ProfileError(f"{path}: {why}") from None


def read_profile(name: str) -> Profile:
    """Return the profile of this name.

    Raises:
        ProfileError: There is none, or it has a mistake: the message has file, line and key, and no secret.
    """
    return _ProfileReader(profiles_file(), name).read()


class _ProfileReader:
    """Reads one profile.

    Args:
        file: The file that has it.
        name: Its name.
    """

    def __init__(self, file: Path, name: str) -> None:
        self._file, self._name = file, name
        self._text = ""

    def read(self) -> Profile:
        keys = self._table()
        for key, value in keys.items():
            self._check(key, value, keys)
        security = {key: self._value(key, value) for key, value in keys.items() if key in SECURITY_KEYS}
        for key in _SECRETS:
            if (file := keys.get(f"{key}_file")) is not None:
                try:
                    security[key] = read_secret(self._path(f"{key}_file", file))
                except ProfileError as error:
                    self._refuse(self._path_of(f"{key}_file"), error.message)
        for key, value in security.items():
            self._check_security(key, value)
        return Profile(keys.get("cluster"), security)

    def _table(self) -> Mapping[str, Any]:
        import tomllib  # a command without a profile does not need it

        try:
            self._text = self._file.read_text("utf-8")
            file = tomllib.loads(self._text)
        except FileNotFoundError:
            raise ProfileError(
                f"{self._file}: no such file; profile {self._name} has to be in it, or in that of ODRADEK_CONFIG"
            ) from None
        except OSError as error:
            raise ProfileError(f"{self._file}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ProfileError(f"{self._file}: not TOML: {error}") from None
        for key in file:
            if key != "profiles":
                self._refuse((key,), "unknown key; known here: profiles")
        profiles = file.get("profiles", {})
        table = profiles.get(self._name) if isinstance(profiles, dict) else None
        if not isinstance(table, dict):
            names = ", ".join(profiles) if isinstance(profiles, dict) else ""
            raise ProfileError(f"{self._file}: no table [profiles.{self._name}]; the profiles are: {names or 'none'}")
        return table

    def _check(self, key: str, value: object, keys: Mapping[str, object]) -> None:
        if key not in _KEYS:
            self._refuse(self._path_of(key), f"unknown key; known here: {', '.join(_KEYS)}")
        if not isinstance(value, str) or not value or "\0" in value:
            self._refuse(self._path_of(key), "must be a text that is not empty, without zero bytes")
        if key in _SECRETS and f"{key}_file" in keys:
            self._refuse(self._path_of(key), f"cannot be combined with {key}_file")

    def _check_security(self, key: str, value: str) -> None:
        try:
            Security(**{key: value})  # type: ignore[arg-type]
        except ConfigError as error:
            self._refuse(self._path_of(key), error.message().removeprefix(f"Security.{key}").lstrip("=: "))

    def _value(self, key: str, value: str) -> str:
        return str(self._path(key, value)) if key in _FILES else value

    def _path(self, key: str, value: str) -> Path:
        """Return a path of the profile; it is relative to the file."""
        try:
            return self._file.parent / Path(value).expanduser()
        except RuntimeError:
            self._refuse(self._path_of(key), f"{value}: there is no such user, or no home directory")

    def _path_of(self, key: str) -> tuple[str, ...]:
        return "profiles", self._name, key

    def _refuse(self, key: tuple[str, ...], why: str) -> NoReturn:
        line = _line_of(self._text, key)
        raise ProfileError(f"{self._file}{'' if line is None else f':{line}'}: {'.'.join(key)}: {why}")


def _line_of(text: str, key: tuple[str, ...]) -> int | None:
    """Return the line of a key that is written below the head of its table, or is the head of one; None if it is
    written in another way."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if head := re.match(r"\s*\[+([^\]]*)\]", line):
            table = head[1].replace('"', "").replace(" ", "")
            if table.split(".")[: len(key)] == list(key):
                return number
        name = re.match(r"""\s*["']?([\w-]+)["']?\s*[=.]""", line)
        if name and ".".join(key) == ".".join(filter(None, (table, name[1]))):
            return number
    return None
