"""Structs that several of these messages have in common."""

from __future__ import annotations

from odradek.wire.kafka.schema import (
    I16,
    Struct,
    struct,
)


@struct
class KRaftVersionFeature(Struct):
    min_supported_version: I16 = 0
    max_supported_version: I16 = 0
