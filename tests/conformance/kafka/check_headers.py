"""Headers: byte for byte both ways, and value for value."""

from __future__ import annotations

from odradek.wire.kafka.decode import decode
from odradek.wire.kafka.encode import encode
from odradek.wire.kafka.headers import RequestHeader, ResponseHeader

from .case import Record, difference
from .json_form import json_form, recorded_tags, unknown_tags


def check(record: Record) -> str | None:
    cls = RequestHeader if record["header"] == "request" else ResponseHeader
    version, data = record["version"], bytes.fromhex(record["hex"])
    value = decode(cls, version, data)
    return (
        difference("value", record["json"], json_form(value, version))
        or difference("unknown tags", recorded_tags(record), unknown_tags(value, version))
        or difference("bytes", data, encode(value, version))
    )
