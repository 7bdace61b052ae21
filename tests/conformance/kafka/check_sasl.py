"""Compare PLAIN and OAUTHBEARER with one line of the corpus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odradek.core.kafka.sasl import OAuthBearer, Plain
from odradek.errors import AuthFailed, ConfigError

from .case import Record


def check(record: Record) -> str | None:
    """Return what differs, or None."""
    return "; ".join(_differences_of(record)) or None


def _differences_of(line: Mapping[str, Any]) -> list[str]:
    oauth = "token" in line or ("accepts_user" not in line and "user" not in line)
    if line["direction"] == "client":
        return _check_oauth_client(line) if oauth else _check_plain_client(line)
    return _check_oauth_server(line) if oauth else _check_plain_server(line)


def _check_plain_client(line: Mapping[str, Any]) -> list[str]:
    try:
        ours = Plain(line["user"], line["password"], line["authzid"]).encode().hex()
    except ConfigError:
        ours = None
    return [] if ours == line["hex"] else [f"ours {ours} theirs {line['hex']}"]


def _check_plain_server(line: Mapping[str, Any]) -> list[str]:
    try:
        plain = Plain.decode(bytes.fromhex(line["hex"]))
    except AuthFailed:
        accepted = False
    else:
        accepted = (plain.user, plain.password) == (line["accepts_user"], line["accepts_password"])
        accepted = accepted and plain.authorize_as in (None, plain.user)
    return [] if accepted == line["accepted"] else [f"{line['hex']}: ours {accepted} theirs {line['accepted']}"]


def _check_oauth_client(line: Mapping[str, Any]) -> list[str]:
    try:
        ours = OAuthBearer(line["token"], line["extensions"], line["authzid"])
    except ConfigError:
        return [] if line["hex"] is None else [f"refused, Java writes {line['hex']}"]
    if line["hex"] is None:
        return [f"{ours!r} taken, Java refuses it"]
    theirs = bytes.fromhex(line["hex"])
    # Java writes extensions in the order of its hash map.
    if sorted(ours.encode().split(b"\x01")) != sorted(theirs.split(b"\x01")) or OAuthBearer.decode(theirs) != ours:
        return [f"ours {ours.encode()!r} theirs {theirs!r}"]
    return []


def _check_oauth_server(line: Mapping[str, Any]) -> list[str]:
    try:
        ours = OAuthBearer.decode(bytes.fromhex(line["hex"]))
    except AuthFailed:
        return [f"{line['hex']} refused, Java takes it"] if line["accepted"] else []
    if not line["accepted"]:
        return [f"{line['hex']} taken, Java refuses it"]
    theirs = (line["token"], line["extensions"], line["authzid"])
    same = (ours.token, dict(ours.extensions), ours.authorize_as) == theirs
    return [] if same else [f"{line['hex']}: ours {ours!r} theirs {theirs!r}"]
