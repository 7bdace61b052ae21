"""Encoders of messages: one function for each message and version, generated on first use."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeVar

from odradek.engine import Buffer
from odradek.errors import LocalProtocolError
from odradek.wire.kafka.encoder_source import EncoderSource
from odradek.wire.kafka.primitives import Unwritable
from odradek.wire.kafka.schema import Message, title
from odradek.wire.kafka.source import Failure

__all__ = ["encode", "encoder"]

M = TypeVar("M", bound=Message)

Append = Callable[[Buffer], None]

_ENCODERS: dict[tuple[type[Message], int], Callable[[Any, Append], None]] = {}
_ENCODE_ERRORS = (struct.error, AttributeError, TypeError, UnicodeEncodeError, Unwritable)


def encode(value: Message, version: int) -> bytes:
    """Encode a message.

    Raises:
        LocalProtocolError: The value cannot be encoded in this version: a field that the version lacks is set, a field
            is null where that is not allowed, or a number is out of range.
        ValueError: There is no such version.
    """
    parts: list[Buffer] = []
    encoder(type(value), version)(value, parts.append)
    return b"".join(parts)


def encoder(cls: type[M], version: int) -> Callable[[M, Append], None]:
    """Return the function that passes the parts of an encoded message to `append`, in order; see `encode`."""
    made = _ENCODERS.get((cls, version))
    if made is None:
        made = _ENCODERS[cls, version] = _encoder(cls, version)
    return made


def _encoder(cls: type[Message], version: int) -> Callable[[Message, Append], None]:
    cls.SPEC.check(version)
    source = EncoderSource(cls, version).source
    write = source.compile()

    def encode(value: Message, append: Append) -> None:
        try:
            write(value, append)
        except _ENCODE_ERRORS as error:
            assert error.__traceback__ is not None
            where = _where(source.failure(error.__traceback__.tb_next))
            raise LocalProtocolError(f"{title(cls, version)}: {where}: {_problem(error)}") from None

    return encode


def _where(failure: Failure) -> str:
    """Return the path of the field; for a run of fields, that of the first one whose value does not fit its type."""
    for path, code, value in zip(failure.paths[:-1], failure.codes, failure.values, strict=False):
        try:
            struct.pack(f">{code}", eval(value, {}, failure.variables))
        except (struct.error, TypeError):
            return path
    return failure.paths[-1] or "the message"


def _problem(error: Exception) -> str:
    return "null is not allowed" if "NoneType" in str(error) else str(error)
