"""The policies for damage and data loss that the options choose."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from odradek.core.interfaces import DecoderOptions
from odradek.errors import CorruptMessage, MessageTooLarge, OdradekError
from odradek.spark.errors import DataLoss
from odradek.spark.gaps import PositionGap
from odradek.spark.options import SourceOptions

__all__ = ["decoder_options", "explained", "lost", "skipped"]

log = logging.getLogger("odradek.spark")


def decoder_options(options: SourceOptions, *, defer: bool = False) -> DecoderOptions:
    """Return the decoder's options. Messages larger than the limit are not read: where ranges may be cut has been found
    with it."""
    return DecoderOptions(
        max_message_bytes=options.max_entry,
        corrupt=options.corrupt,
        defer_decompression=defer,
        read_committed=options.read_committed,
    )


def explained(error: OdradekError) -> OdradekError:
    """The same error, with the option as Spark's users know it."""
    if isinstance(error, MessageTooLarge):
        return MessageTooLarge(error.partition, error.position, error.size, error.limit, "maxMessageBytes")
    return error


def skipped(reports: Sequence[CorruptMessage]) -> None:
    """Say what was left out."""
    if reports:
        log.warning("%d corrupt messages skipped; first: %s", len(reports), reports[0])


def lost(gaps: Sequence[PositionGap], options: SourceOptions) -> None:
    """Raise DataLoss if the options say so; else go on, which the log tells."""
    if gaps and options.fail_on_data_loss:
        raise DataLoss(gaps)
    for gap in gaps:
        log.warning("data was lost, continuing after it: %s", gap)
