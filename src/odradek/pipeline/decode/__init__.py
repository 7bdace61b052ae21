"""Decoding of records into columns: one file for each kind, and what they share. Only these names are public."""

from __future__ import annotations

from odradek.pipeline.decode.dead import DEAD_FIELDS, DeadReason
from odradek.pipeline.decode.decoder import RESERVED, Decoded, Decoder, Decoding, Kind, stored_name
from odradek.pipeline.decode.fields import parse_ddl

__all__ = [
    "DEAD_FIELDS",
    "RESERVED",
    "DeadReason",
    "Decoded",
    "Decoder",
    "Decoding",
    "Kind",
    "parse_ddl",
    "stored_name",
]
