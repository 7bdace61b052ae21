"""Users of a broker for tests, as its configuration wants them, and tokens that it takes."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from typing import NamedTuple

from odradek.core.kafka.sasl.scram import MIN_ITERATIONS, Keys
from odradek.testing.kafka.releases import Release

__all__ = ["ScramCredential", "jaas_file", "jaas_properties", "scram_credentials", "unsecured_token"]

SALT = b"odradek"
LOGIN = "org.apache.kafka.common.security."


class ScramCredential(NamedTuple):
    """A user's password as a broker stores it for one mechanism (RFC 5802, section 3)."""

    user: str
    mechanism: str
    keys: Keys

    @property
    def format_option(self) -> str:
        """The argument of `--add-scram` of the tool that formats log directories (KIP-900)."""
        return (
            f'{self.mechanism}=[name={self.user},iterations={MIN_ITERATIONS},salt="{_base64(SALT)}",'
            f'saltedpassword="{_base64(self.keys.salted_password)}"]'
        )

    @property
    def node_value(self) -> str:
        """The value of the mechanism in the user's node in ZooKeeper (KIP-84)."""
        keys = f"stored_key={_base64(self.keys.stored_key)},server_key={_base64(self.keys.server_key)}"
        return f"salt={_base64(SALT)},{keys},iterations={MIN_ITERATIONS}"


def scram_credentials(users: Mapping[str, str], mechanisms: tuple[str, ...]) -> list[ScramCredential]:
    """Return what a broker stores of the users for those of the mechanisms that are SCRAM."""
    return [
        ScramCredential(user, mechanism, Keys.derive(mechanism, password, SALT, MIN_ITERATIONS))
        for user, password in users.items()
        for mechanism in mechanisms
        if mechanism.startswith("SCRAM")
    ]


def jaas_file(release: Release, users: Mapping[str, str]) -> str:
    """Return the file of `java.security.auth.login.config`: the users of PLAIN and the module of SCRAM."""
    plain = "".join(f" user_{user}={_quoted(password)}" for user, password in users.items())
    modules = [f"{LOGIN}plain.PlainLoginModule required{plain};"]
    if release.number >= (0, 10, 2):
        modules.append(f"{LOGIN}scram.ScramLoginModule required;")
    return "KafkaServer {\n  " + "\n  ".join(modules) + "\n};\n"


def jaas_properties(listener: str) -> dict[str, object]:
    """Return the property that lets a listener take OAUTHBEARER tokens: its module is at odds with others in a file."""
    module = f'{LOGIN}oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
    return {f"listener.name.{listener.lower()}.oauthbearer.sasl.jaas.config": module}


def unsecured_token(user: str, lifetime_s: float = 3600.0, **claims: object) -> str:
    """Return an OAUTHBEARER token without a signature, as the broker's unsecured validator takes it (KIP-255).

    Args:
        user: The claim `sub`: the principal.
        lifetime_s: Seconds until it expires (s); negative for one that has expired.
        claims: Further claims, such as `scope`.
    """
    now = time.time()
    issued = int(min(now, now + lifetime_s)) - 1  # never later than the broker's clock, however it rounds
    payload = {"sub": user, "iat": issued, "exp": now + lifetime_s, **claims}
    parts = (json.dumps(each).encode() for each in ({"alg": "none", "typ": "JWT"}, payload))
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts) + "."


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
