"""CRC-32C in plain Python, at the speed of a library that computes it for snappy."""

from __future__ import annotations

from collections.abc import Sequence

import cramjam

from odradek.engine.interface import Buffer

__all__ = ["crc32c"]

_POLYNOMIAL = 0x82F63B78
_BLOCK = 1 << 16
"""Bytes for which a snappy stream holds one checksum."""
_SMALL = 192
"""Up to this many bytes, a table is faster than a snappy stream."""


def _table() -> list[int]:
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _table()


def crc32c(data: Buffer, before: int = 0, /) -> int:
    view = memoryview(data)
    first = len(view) % _BLOCK if len(view) > _SMALL else len(view)
    crc = _crc_of_few(view[:first], before) if first <= _SMALL else _after(before, first) ^ _crcs(view[:first])[0]
    if first < len(view):
        for block in _crcs(view[first:]):
            crc = _after(crc, _BLOCK) ^ block
    return crc


def _crc_of_few(data: memoryview, before: int) -> int:
    crc = before ^ 0xFFFFFFFF
    for byte in data.tobytes():
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _crcs(data: memoryview) -> list[int]:
    """Return the CRC-32C of each block of 64 KiB: a framed snappy stream has it in each of its chunks, masked.

    So plain Python computes it at the speed of a library that is a dependency anyway, instead of at 20 MB/s.
    """
    stream = memoryview(cramjam.snappy.compress(data))
    crcs, at = [], 10  # behind the stream identifier
    while at < len(stream):
        size = int.from_bytes(stream[at + 1 : at + 4], "little")
        masked = int.from_bytes(stream[at + 4 : at + 8], "little") - 0xA282EAD8 & 0xFFFFFFFF
        crcs.append((masked << 15 | masked >> 17) & 0xFFFFFFFF)
        at += 4 + size
    return crcs


def _after(crc: int, size: int) -> int:
    """Return what a CRC contributes to that of the same bytes followed by `size` more."""
    if not crc:
        return 0
    power = 0
    while size:
        if size & 1:
            crc = _apply(_operator(power), crc)
        size >>= 1
        power += 1
    return crc


def _apply(operator: Sequence[int], crc: int) -> int:
    """Multiply a matrix, a number for each of its 32 columns, with a vector of 32 bits."""
    product = 0
    for column in operator:
        if crc & 1:
            product ^= column
        crc >>= 1
    return product


_OPERATORS: list[list[int]] = []


def _operator(power: int) -> list[int]:
    """Return the matrix that carries a CRC over 2 ** `power` bytes of zeros."""
    while len(_OPERATORS) <= power:
        if not _OPERATORS:
            columns = [1 << bit for bit in range(32)]
            _OPERATORS.append([_TABLE[column & 0xFF] ^ column >> 8 for column in columns])
        else:
            last = _OPERATORS[-1]
            _OPERATORS.append([_apply(last, column) for column in last])
    return _OPERATORS[power]
