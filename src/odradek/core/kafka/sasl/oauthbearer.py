"""OAUTHBEARER mechanism: a bearer token, with extensions (RFC 7628, KIP-255, KIP-342)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from odradek.core.kafka.sasl.exchange import Exchange, decode_text, escape_name, unescape_name
from odradek.errors import AuthFailed, ConfigError

__all__ = ["OAuthBearer"]

_TOKEN = re.compile(r"[-A-Za-z0-9._~+/]+=*")
_KEY = re.compile(r"[A-Za-z]+")
_VALUE = re.compile(r"[!-~ \t\r\n]+")
_MESSAGE = re.compile(
    r"n,(?:a=(?P<authzid>(?:[^=,\0\x01]|=2C|=3D)+))?,\x01(?P<pairs>(?:[A-Za-z]+=[!-~ \t\r\n]*\x01)+)\x01"
)
_BEARER = re.compile(r"Bearer +(?P<token>[-A-Za-z0-9._~+/]+=*) *", re.IGNORECASE)
_END_AFTER_ERROR = b"\x01"


@dataclass(frozen=True, slots=True)
class OAuthBearer:
    """Credentials of the OAUTHBEARER mechanism for one exchange, because tokens expire.

    Args:
        token: The bearer token; never shown.
        extensions: Names (ASCII letters, not `auth`) and values for the broker's validator.
        authorize_as: The name to act as, if the broker allows one other than the token's; "" for none.
    """

    mechanism: ClassVar[str] = "OAUTHBEARER"
    token: str = field(repr=False)
    extensions: Mapping[str, str] = field(default_factory=dict)
    authorize_as: str = ""

    def __post_init__(self) -> None:
        if not _TOKEN.fullmatch(self.token):
            raise ConfigError("OAUTHBEARER: the token is empty or has characters not allowed there (RFC 6750)")
        for name, value in self.extensions.items():
            if not _KEY.fullmatch(name) or name == "auth":
                raise ConfigError(f"OAUTHBEARER: extension {name!r}: names must be ASCII letters, and not 'auth'")
            if not _VALUE.fullmatch(value):
                raise ConfigError(f"OAUTHBEARER: extension {name!r}: its value must be printable ASCII, not empty")

    def encode(self) -> bytes:
        """Encode the first token of the client."""
        header = f"n,{'a=' + escape_name(self.authorize_as) if self.authorize_as else ''},"
        extensions = "".join(f"{name}={value}\x01" for name, value in self.extensions.items())
        return f"{header}\x01auth=Bearer {self.token}\x01{extensions}\x01".encode()

    def exchange(self) -> Exchange:
        """Send the token. A broker that refuses it responds with the reason in JSON, and closes the connection after
        one more byte from the client.

        Raises:
            AuthFailed: The broker refused.
        """
        answer = yield self.encode()
        if answer:
            yield _END_AFTER_ERROR
            raise AuthFailed(self.mechanism, f"the broker refused the token: {answer.decode(errors='replace')[:1000]}")

    @classmethod
    def decode(cls, data: bytes) -> OAuthBearer:
        """Decode a client's first token, as a broker reads it. Raises AuthFailed if it is malformed."""
        message = _MESSAGE.fullmatch(decode_text(data, cls.mechanism))
        if message is None:
            raise AuthFailed(cls.mechanism, f"a malformed message of {len(data)} bytes")
        pairs = dict(pair.split("=", 1) for pair in message["pairs"].split("\x01")[:-1])
        bearer = _BEARER.fullmatch(pairs.pop("auth", ""))
        if bearer is None:
            raise AuthFailed(cls.mechanism, "the message has no bearer token")
        return cls(bearer["token"], pairs, unescape_name(message["authzid"]) if message["authzid"] else "")
