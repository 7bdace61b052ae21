"""PLAIN mechanism: user and password in one token (RFC 4616). The password is secret only over TLS."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from odradek.core.kafka.sasl.exchange import Exchange, decode_text
from odradek.errors import AuthFailed, ConfigError

__all__ = ["Plain"]


@dataclass(frozen=True, slots=True)
class Plain:
    """Credentials of the PLAIN mechanism.

    Args:
        user: The name to authenticate.
        password: Its password; never shown.
        authorize_as: The name to act as, if the broker allows one other than `user`; None for none.
    """

    mechanism: ClassVar[str] = "PLAIN"
    user: str
    password: str = field(repr=False)
    authorize_as: str | None = None

    def __post_init__(self) -> None:
        if "\0" in self.user or "\0" in self.password or "\0" in (self.authorize_as or ""):
            raise ConfigError("PLAIN: user, password and authorization name must not contain a NUL character")
        if self.authorize_as == "":
            raise ConfigError("PLAIN: an empty authorization name; leave it out to act as the user")

    def encode(self) -> bytes:
        """Encode the one token of the client."""
        return f"{self.authorize_as or ''}\0{self.user}\0{self.password}".encode()

    def exchange(self) -> Exchange:
        """Send the token. The broker's response is empty and proves nothing, so it is not examined."""
        yield self.encode()

    @classmethod
    def decode(cls, token: bytes) -> Plain:
        """Decode a client's token, as a broker reads it. Raises AuthFailed if it is malformed, or if the user or
        password is missing."""
        parts = decode_text(token, cls.mechanism).split("\0")
        if len(parts) != 3:
            raise AuthFailed(cls.mechanism, f"a token of {len(parts)} parts instead of 3")
        authorize_as, user, password = parts
        if not user or not password:
            raise AuthFailed(cls.mechanism, "user or password is empty")
        return cls(user, password, authorize_as or None)
