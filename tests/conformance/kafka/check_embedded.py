"""Schemas inside of messages and records: byte for byte both ways, and value for value."""

from __future__ import annotations

from odradek.wire.kafka import embedded
from odradek.wire.kafka.decode import decode
from odradek.wire.kafka.encode import encode
from odradek.wire.kafka.schema import Message

from .case import Record, difference
from .json_form import json_form, recorded_tags, unknown_tags
from .messages import control_records


def check(record: Record) -> str | None:
    name = record["schema"]
    cls: type[Message] = getattr(embedded if hasattr(embedded, name) else control_records, name)
    version, data = record["version"], bytes.fromhex(record["hex"])
    if record["version_prefixed"]:
        value, prefix = embedded.decode_versioned(cls, data)
        encoded = embedded.encode_versioned(value, version)
    else:
        value, prefix = decode(cls, version, data), version
        encoded = encode(value, version)
    return (
        difference("version", version, prefix)
        or difference("value", record["json"], json_form(value, version))
        or difference("unknown tags", recorded_tags(record), unknown_tags(value, version))
        or difference("bytes", data, encoded)
    )
