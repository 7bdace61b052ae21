"""Frames between Java clients and brokers: what they say, and the same bytes again."""

from __future__ import annotations

from odradek.wire.kafka.headers import (
    decode_response,
    encode_request,
    header_version,
)

from .apis import APIS, decode_request, encode_response
from .case import NoCaseError, Record, difference
from .json_form import json_form

SIZE_BYTES = 4


def check(record: Record) -> str | None:
    if "json" not in record:
        raise NoCaseError  # a connection that was closed, or tokens of SASL, which are not messages
    frame = bytes.fromhex(record["hex"])
    return _request(record, frame) if record["dir"] == "c2s" else _response(record, frame)


def _request(record: Record, frame: bytes) -> str | None:
    header, request = decode_request(frame)
    version = header.request_api_version
    which = header_version(type(request), version)
    encoded = encode_request(request, version, header.correlation_id, header.client_id)
    return (
        difference("header version", record["header_version"], which)
        or difference("header", record["header"], json_form(header, which))
        or difference("value", record["json"], json_form(request, version))
        or difference("bytes", frame, b"".join(encoded)[SIZE_BYTES:])
    )


def _response(record: Record, frame: bytes) -> str | None:
    cls = APIS[record["key"]].response
    response, correlation_id = decode_response(cls, record["version"], frame)
    version: int = {"body_version": record["version"], **record}["body_version"]  # error 35 comes in version 0
    encoded = encode_response(response, version, correlation_id)
    return (
        difference("correlation id", record["header"]["correlationId"], correlation_id)
        or difference("value", record["json"], json_form(response, version))
        or difference("bytes", frame, encoded[SIZE_BYTES:])
    )
