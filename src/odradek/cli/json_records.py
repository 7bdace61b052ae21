"""Records as lines of JSON: as `odradek cat` prints them, and `odradek put` takes them again."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import click

from odradek.cli.output import as_json
from odradek.core.interfaces import ProducerRecord
from odradek.types import Record, TopicPartition

__all__ = ["ENCODERS", "ENCODING", "json_line", "parse_line", "partition_id"]

ENCODERS: Mapping[str, Callable[[bytes], bytes]] = {
    "text": bytes,
    "base64": b64encode,
    "hex": lambda value: value.hex().encode(),
}
_DECODERS: Mapping[str, Callable[[str], bytes]] = {
    "": str.encode,
    "_base64": partial(b64decode, validate=True),
    "_hex": bytes.fromhex,
}
"""What the name of a field ends in -> makes bytes of its text."""

ENCODING = click.option(
    "--encoding",
    type=click.Choice(list(ENCODERS)),
    default="text",
    show_default=True,
    help="Print keys, values and headers as they are, or in base64 or hex: in JSON as key_base64, value_hex and so on. "
    "With text, JSON has base64 of what is not UTF-8.",
)


def partition_id(partition: TopicPartition) -> int | str:
    """Return what JSON calls a partition: its number; its name `BROKER-N` where each broker numbers its own (0.7)."""
    return partition.partition if partition.broker < 0 else partition.name


def json_line(record: Record, encoding: str = "text", parsed: Collection[str] = ()) -> bytes:
    """Return a record as a JSON object on a line of its own.

    Args:
        record: The record.
        encoding: One of `ENCODERS`. Text that is not UTF-8 is in base64.
        parsed: `key`, `value`: which of them are JSON already, and become a part of the object.
    """
    fields: dict[str, Any] = {
        "topic": record.topic,
        "partition": partition_id(record.partition),
        "position": record.position,
        "next_position": record.next_position,
        "inner_index": record.inner_index,
    }
    if record.timestamp is not None:
        fields["timestamp"] = record.timestamp
    if record.headers:
        fields["headers"] = [{"name": name, **_field("value", value, encoding)} for name, value in record.headers]
    for name, data in (("key", record.key), ("value", record.value)):
        if name in parsed and data is not None:
            fields[name] = json.loads(data)
        elif name == "value" or data is not None:
            fields |= _field(name, data, encoding)
    return as_json(fields).encode() + b"\n"


def _field(name: str, value: bytes | None, encoding: str) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        text = ENCODERS[encoding](value).decode()
    except UnicodeDecodeError:
        return {name + "_base64": b64encode(value).decode()}
    return {name if encoding == "text" else f"{name}_{encoding}": text}


def parse_line(line: bytes) -> tuple[ProducerRecord, str | None]:
    """Return the record of a line that `json_line` may have made, and the name of its partition, if it has one. Where
    the record was read (`topic`, `position` and so on) does not matter. Raises ValueError."""
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    if not any(f"value{ending}" in fields for ending in _DECODERS):
        raise ValueError("no value; one that is null is written as null")
    timestamp, number, headers = fields.get("timestamp"), fields.get("partition"), fields.get("headers") or []
    if timestamp is not None and (type(timestamp) is not int or timestamp < 0):
        raise ValueError(f"timestamp: {timestamp!r} is no number of milliseconds")
    if number is not None and type(number) not in (int, str):
        raise ValueError(f"partition: {number!r} is no number or name")
    if not isinstance(headers, list) or not all(isinstance(each, dict) for each in headers):
        raise ValueError("headers: must be a list of objects with name and value")
    pairs = [(_name(each), _bytes("value", each)) for each in headers]
    record = ProducerRecord(_bytes("value", fields), _bytes("key", fields), pairs, timestamp)
    return record, None if number is None else str(number)


def _name(header: Mapping[str, Any]) -> str:
    name = header.get("name")
    if not isinstance(name, str):
        raise ValueError("headers: one has no name")
    return name


def _bytes(name: str, fields: Mapping[str, Any]) -> bytes | None:
    endings = [ending for ending in _DECODERS if name + ending in fields]
    if len(endings) > 1:
        raise ValueError(f"both {name + endings[0]} and {name + endings[1]}")
    text = fields[name + endings[0]] if endings else None
    if text is None:
        return None
    if not isinstance(text, str):
        raise ValueError(f"{name}: must be a text or null, not {as_json(text)[:40]}")
    try:
        return _DECODERS[endings[0]](text)
    except ValueError as error:
        raise ValueError(f"{name + endings[0]}: {error}") from None
