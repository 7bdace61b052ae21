"""SCRAM-SHA-256 and SCRAM-SHA-512 mechanisms: both sides prove that they know the password (RFC 5802, RFC 7677).

The UTF-8 bytes of the password are used without SASLprep, as in Kafka.
"""

from __future__ import annotations

import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import new as new_hash
from hashlib import pbkdf2_hmac

from odradek.core.kafka.sasl.exchange import Exchange, decode_text, escape_name
from odradek.errors import AuthFailed, ConfigError

__all__ = [
    "MAX_ITERATIONS",
    "MIN_ITERATIONS",
    "Keys",
    "Scram",
    "parse_server_final",
    "parse_server_first",
]

MIN_ITERATIONS = 4096  # RFC 7677 and Kafka's own client refuse fewer
MAX_ITERATIONS = 1_000_000  # Kafka's tools use at most 16384; a hostile server must not cost seconds of CPU time
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

_BASE64 = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
_VALUE = r"[\x01-+\x2d-\x7f]+"  # ASCII without the comma: Kafka's own code takes no other characters
_VALUE_SAFE = r"[\x01-+\x2d-<>-\x7f]+"  # nor "="
_EXTENSIONS = rf"(?:,[A-Za-z]+={_VALUE})*"
_RESERVED = rf"(?:m={_VALUE},)?"
_NONCE = r"[!-+\--~]+"  # printable ASCII without the comma
_SERVER_FIRST = re.compile(
    rf"{_RESERVED}r=(?P<nonce>{_NONCE}),s=(?P<salt>{_BASE64}),i=0*(?P<iterations>[0-9]{{1,10}}){_EXTENSIONS}"
)
# Only a signature may be followed by extensions.
_SERVER_FINAL = re.compile(rf"e=(?P<error>{_VALUE_SAFE})|v=(?P<signature>{_BASE64}){_EXTENSIONS}")

_NO_CHANNEL_BINDING = "biws"  # base64 of the GS2 header "n,,"


@dataclass(frozen=True, slots=True)
class ServerFirst:
    """The server's first message: the combined nonce, and the salt and number of iterations of the hash."""

    nonce: str
    salt: bytes
    iterations: int


@dataclass(frozen=True, slots=True)
class ServerFinal:
    """The server's last message: its signature, or the reason for a refusal."""

    signature: bytes | None
    error: str | None


def _match(pattern: re.Pattern[str], text: str, name: str, mechanism: str) -> re.Match[str]:
    matched = pattern.fullmatch(text)
    if matched is None:
        raise AuthFailed(mechanism, f"the {name} message of {len(text)} characters is malformed")
    return matched


def parse_server_first(text: str, mechanism: str = "SCRAM") -> ServerFirst:
    """Parse the server's first message. Raises AuthFailed if it is malformed, or asks for a number of iterations that
    no 32-bit integer above 0 is."""
    m = _match(_SERVER_FIRST, text, "first server", mechanism)
    if not 0 < int(m["iterations"]) < 1 << 31:
        raise AuthFailed(mechanism, f"the server asks for {m['iterations']} iterations")
    return ServerFirst(m["nonce"], b64decode(m["salt"]), int(m["iterations"]))


def parse_server_final(text: str, mechanism: str = "SCRAM") -> ServerFinal:
    """Parse the server's last message. Raises AuthFailed if it is malformed."""
    m = _match(_SERVER_FINAL, text, "last server", mechanism)
    return ServerFinal(None if m["signature"] is None else b64decode(m["signature"]), m["error"])


@dataclass(frozen=True, slots=True, repr=False)
class Keys:
    """Keys that both sides derive from the password. Has no repr: these are secrets."""

    hash_name: str
    salted_password: bytes
    client_key: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def derive(cls, mechanism: str, password: str, salt: bytes, iterations: int) -> Keys:
        """Derive the keys; the time this takes grows with `iterations` (PBKDF2)."""
        name = HASHES[mechanism]
        salted = pbkdf2_hmac(name, password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", name)
        stored_key = new_hash(name, client_key).digest()
        return cls(name, salted, client_key, stored_key, hmac.digest(salted, b"Server Key", name))

    def client_proof(self, auth_message: str) -> bytes:
        """Return the proof that the client has the client key."""
        signature = hmac.digest(self.stored_key, auth_message.encode(), self.hash_name)
        return bytes(a ^ b for a, b in zip(self.client_key, signature, strict=True))

    def server_signature(self, auth_message: str) -> bytes:
        """Return the proof that the server has the server key."""
        return hmac.digest(self.server_key, auth_message.encode(), self.hash_name)


@dataclass(frozen=True, slots=True)
class Scram:
    """Credentials of a SCRAM mechanism.

    Args:
        mechanism: `SCRAM-SHA-256` or `SCRAM-SHA-512`.
        user: The name to authenticate; for a delegation token, its id.
        password: The password; for a delegation token, its HMAC in base64. Never shown.
        delegation_token: True if this is a delegation token (KIP-48).
    """

    mechanism: str
    user: str
    password: str = field(repr=False)
    delegation_token: bool = False

    def __post_init__(self) -> None:
        if self.mechanism not in HASHES:
            raise ConfigError(f"{self.mechanism}: not a SCRAM mechanism; use one of {', '.join(HASHES)}")
        if not self.user or "\0" in self.user:
            raise ConfigError(f"{self.mechanism}: the user name must not be empty or contain a NUL character")

    @property
    def extensions(self) -> Mapping[str, str]:
        return {"tokenauth": "true"} if self.delegation_token else {}

    def client_first(self, nonce: str) -> str:
        """Return the first message for this nonce, without the header "n,,"."""
        extensions = "".join(f",{name}={value}" for name, value in self.extensions.items())
        return f"n={escape_name(self.user)},r={nonce}{extensions}"

    def exchange(self, nonce: str) -> Exchange:
        """Run the exchange.

        Args:
            nonce: Printable ASCII without a comma, at least 20 characters, unpredictable, and never used twice.

        Raises:
            AuthFailed: The broker refused, sent a malformed message, or did not prove that it knows the password.
        """
        first = self.client_first(nonce)
        server_first = decode_text((yield f"n,,{first}".encode()), self.mechanism)
        challenge = parse_server_first(server_first, self.mechanism)
        self._check(challenge, nonce)
        keys = Keys.derive(self.mechanism, self.password, challenge.salt, challenge.iterations)
        without_proof = f"c={_NO_CHANNEL_BINDING},r={challenge.nonce}"
        auth_message = f"{first},{server_first},{without_proof}"
        proof = b64encode(keys.client_proof(auth_message)).decode()
        answer = decode_text((yield f"{without_proof},p={proof}".encode()), self.mechanism)
        final = parse_server_final(answer, self.mechanism)
        if final.signature is None:
            raise AuthFailed(self.mechanism, f"the broker refused: {final.error}")
        if not hmac.compare_digest(final.signature, keys.server_signature(auth_message)):
            raise AuthFailed(self.mechanism, "the broker did not prove that it knows the password: wrong signature")

    def _check(self, challenge: ServerFirst, nonce: str) -> None:
        if not challenge.nonce.startswith(nonce) or len(challenge.nonce) == len(nonce):
            raise AuthFailed(self.mechanism, "the broker's nonce does not continue the client's")
        if not MIN_ITERATIONS <= challenge.iterations <= MAX_ITERATIONS:
            raise AuthFailed(
                self.mechanism,
                f"the broker asks for {challenge.iterations} iterations; "
                f"from {MIN_ITERATIONS} to {MAX_ITERATIONS} are accepted",
            )
