"""What a server reads of a SCRAM client's messages."""

from __future__ import annotations

import re
from base64 import b64decode
from dataclasses import dataclass

from odradek.errors import AuthFailed

_BASE64 = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
_VALUE = r"[\x01-+\x2d-\x7f]+"  # ASCII without the comma: Kafka's own code takes no other characters
_VALUE_SAFE = r"[\x01-+\x2d-<>-\x7f]+"  # nor "="
_EXTENSIONS = rf"(?:,[A-Za-z]+={_VALUE})*"
_RESERVED = rf"(?:m={_VALUE},)?"
_NAME = rf"(?:{_VALUE_SAFE}|=2C|=3D)+"
_NONCE = r"[!-+\--~]+"  # printable ASCII without the comma
_CLIENT_FIRST = re.compile(
    rf"n,(?:a=(?P<authzid>{_NAME}))?,(?P<bare>{_RESERVED}n=(?P<name>{_NAME}),r=(?P<nonce>{_NONCE})"
    rf"(?P<extensions>{_EXTENSIONS}))"
)
_CLIENT_FINAL = re.compile(
    rf"(?P<bare>c=(?P<binding>{_BASE64}),r=(?P<nonce>{_NONCE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)


@dataclass(frozen=True, slots=True)
class ClientFirst:
    """The client's first message: the user and a nonce. The names are as they are sent: escaped."""

    user: str
    nonce: str
    bare: str
    authorize_as: str = ""


@dataclass(frozen=True, slots=True)
class ClientFinal:
    """The client's last message: the proof that it knows the password."""

    channel_binding: bytes
    nonce: str
    proof: bytes
    without_proof: str


def parse_client_first(text: str) -> ClientFirst:
    """Parse the client's first message. Raises AuthFailed if it is malformed."""
    m = _match(_CLIENT_FIRST, text)
    return ClientFirst(m["name"], m["nonce"], m["bare"], m["authzid"] or "")


def parse_client_final(text: str) -> ClientFinal:
    """Parse the client's last message. Raises AuthFailed if it is malformed."""
    m = _match(_CLIENT_FINAL, text)
    return ClientFinal(b64decode(m["binding"]), m["nonce"], b64decode(m["proof"]), m["bare"])


def _match(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    matched = pattern.fullmatch(text)
    if matched is None:
        raise AuthFailed("SCRAM", f"{text!r} is malformed")
    return matched
