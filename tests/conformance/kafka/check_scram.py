"""Compare SCRAM with one line of the corpus: an exchange with all its keys, or a text that Java takes or refuses."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any

from odradek.core.kafka.sasl.scram import (
    Keys,
    Scram,
    parse_server_final,
    parse_server_first,
)
from odradek.errors import AuthFailed

from .case import Record
from .scram_server import parse_client_final, parse_client_first

PARSERS: dict[str, Callable[[str], Mapping[str, object]]] = {
    "client_first": lambda text: (lambda m: {"sasl_name": m.user, "nonce": m.nonce, "authzid": m.authorize_as})(
        parse_client_first(text)
    ),
    "server_first": lambda text: (lambda m: {"nonce": m.nonce, "salt": m.salt.hex(), "iterations": m.iterations})(
        parse_server_first(text)
    ),
    "client_final": lambda text: (
        lambda m: {"nonce": m.nonce, "channel_binding": m.channel_binding.hex(), "proof": m.proof.hex()}
    )(parse_client_final(text)),
    "server_final": lambda text: (
        lambda m: {"error": m.error, "signature": None if m.signature is None else m.signature.hex()}
    )(parse_server_final(text)),
}


def check(record: Record) -> str | None:
    """Return what differs, or None."""
    return "; ".join(_differences_of(record)) or None


def _differences_of(line: Mapping[str, Any]) -> list[str]:
    return _check_parse(line) if "message" in line else _check_exchange(line)


def _check_parse(line: Mapping[str, Any]) -> list[str]:
    try:
        parsed = PARSERS[line["message"]](line["text"])
    except AuthFailed:
        return [f"{line['text']!r} refused, Java takes it"] if line["accepted"] else []
    if not line["accepted"]:
        return [f"{line['text']!r} taken, Java refuses it"]
    return [
        f"{name}: ours {value!r} theirs {line['parsed'][name]!r}"
        for name, value in parsed.items()
        if value != line["parsed"][name]
    ]


def _check_exchange(line: Mapping[str, Any]) -> list[str]:
    scram = Scram(line["mechanism"], line["user"], line["password"], delegation_token=bool(line["extensions"]))
    keys = Keys.derive(line["mechanism"], line["password"], bytes.fromhex(line["salt"]), line["iterations"])
    auth = line["auth_message"]
    ours: dict[str, object] = {
        "extensions": dict(scram.extensions),
        "salted_password": keys.salted_password.hex(),
        "client_key": keys.client_key.hex(),
        "stored_key": keys.stored_key.hex(),
        "server_key": keys.server_key.hex(),
        "client_proof": keys.client_proof(auth).hex(),
        "server_signature": keys.server_signature(auth).hex(),
        "client_first_bare": scram.client_first(line["client_nonce"]),
        "server_final": f"v={b64encode(keys.server_signature(auth)).decode()}",
    }
    exchange = scram.exchange(line["client_nonce"])
    ours["client_first"] = next(exchange).decode()
    ours["client_final"] = exchange.send(line["server_first"].encode()).decode()
    try:
        exchange.send(line["server_final"].encode())
    except StopIteration:
        pass
    except AuthFailed as error:
        return [str(error)]
    return [f"{name}: ours {value!r} theirs {line[name]!r}" for name, value in ours.items() if value != line[name]]
