"""Decoders of messages: one function for each message and version, generated on first use.

Every length and count is checked against the remaining bytes before anything is allocated for it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeVar

from odradek.engine import Buffer
from odradek.errors import RemoteProtocolError
from odradek.wire.kafka.decoder_source import DecoderSource
from odradek.wire.kafka.primitives import DECODE_ERRORS, Malformed
from odradek.wire.kafka.schema import Message, Struct, title
from odradek.wire.kafka.source import Failure

__all__ = [
    "DECODE_ERRORS",
    "decode",
    "decoder",
    "head_decoder",
    "problem_of",
    "run_decoder",
    "section_decoder",
    "tail_decoder",
]

M = TypeVar("M", bound=Message)
T = TypeVar("T", bound=Struct)

_DECODERS: dict[tuple[type[Message], int], Callable[[Buffer, int], tuple[Any, int]]] = {}


def decode(cls: type[M], version: int, data: Buffer, start: int = 0) -> M:
    """Decode a message that extends to the end of `data`.

    Raises:
        RemoteProtocolError: The bytes are not a valid message of this version, or more bytes follow it.
    """
    read: Callable[[Buffer, int], tuple[M, int]] = _DECODERS.get((cls, version)) or decoder(cls, version)
    value, end = read(data, start)
    if end != len(data):
        raise RemoteProtocolError(f"{title(cls, version)}: {len(data) - end} unexpected bytes follow at byte {end}")
    return value


def decoder(cls: type[M], version: int) -> Callable[[Buffer, int], tuple[M, int]]:
    """Return the function that decodes a message at a position, and also returns the position after it.

    The function raises RemoteProtocolError. Fields that the version lacks get their defaults. A buffer that is not
    `bytes` is copied first.

    Raises:
        ValueError: There is no such version.
    """
    made = _DECODERS.get((cls, version))
    if made is None:
        made = _DECODERS[cls, version] = _decoder(cls, version)
    return made


def head_decoder(message: type[Message], cls: type[T], version: int) -> Callable[[Buffer, int], tuple[T, int, int]]:
    """Return the function that decodes a struct of a message up to the content of its last field without a tag.

    It returns the struct, with that field's default, the length or count of the field (-1: null) and the position
    after that. It raises one of DECODE_ERRORS.
    """
    return DecoderSource(message, version).head(cls).compile()


def run_decoder(
    message: type[Message], cls: type[T], version: int
) -> Callable[[Buffer, int, int, list[T], list[tuple[T, int, int]]], tuple[int, int]]:
    """Return the function that decodes consecutive structs of a message as far as they are whole; see
    `DecoderSource.run`. It raises nothing."""
    return DecoderSource(message, version, "read(data, p, left, items, spans)").run(cls).compile()


def tail_decoder(message: type[Message], cls: type[T], version: int) -> Callable[[Buffer, int, T], int]:
    """Return the function that decodes the tagged fields of a struct of a message, and returns the position after
    them. It raises one of DECODE_ERRORS."""
    return DecoderSource(message, version, "read(data, p, value)").tail(cls).compile()


def section_decoder(cls: type[M], version: int) -> Callable[[Buffer, int], tuple[M, int]]:
    """Return a decoder that raises one of DECODE_ERRORS: its caller knows the place to name."""
    return DecoderSource(cls, version).message(cls).compile()


def problem_of(error: Exception) -> str:
    """Return the text for one of DECODE_ERRORS."""
    if isinstance(error, Malformed):
        return str(error)
    return "not UTF-8" if isinstance(error, UnicodeDecodeError) else "the bytes end too early"


def _decoder(cls: type[Message], version: int) -> Callable[[Buffer, int], tuple[Any, int]]:
    cls.SPEC.check(version)
    source = DecoderSource(cls, version).message(cls)
    read: Callable[[bytes, int], tuple[Any, int]] = source.compile()

    def decode(data: Buffer, start: int) -> tuple[Any, int]:
        data = bytes(data)  # not a copy if it is bytes already
        try:
            return read(data, start)
        except DECODE_ERRORS as error:
            assert error.__traceback__ is not None
            where = _where(source.failure(error.__traceback__.tb_next))
            raise RemoteProtocolError(f"{title(cls, version)}: {where}: {problem_of(error)}") from None

    return decode


def _where(failure: Failure) -> str:
    """Return the path of the field and the byte; for a run of fields, those of the first field that is cut off."""
    position: int = failure.variables["p"]
    for path, code in zip(failure.paths[:-1], failure.codes, strict=False):
        after = position + struct.calcsize(f">{code}")
        if after > failure.variables["end"]:
            return f"{path} at byte {position}"
        position = after
    return f"{failure.paths[-1] or 'the message'} at byte {position}"
