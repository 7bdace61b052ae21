"""The error that stands for an error code, made in one place."""

from __future__ import annotations

from odradek.errors import BrokerError
from odradek.wire.kafka.error_codes import ErrorCode

__all__ = ["broker_error"]


def broker_error(code: int, context: str) -> BrokerError:
    """Return the error for a code.

    Args:
        code: The number on the wire; an unknown one keeps its number.
        context: What was asked, and what the broker said besides.
    """
    return BrokerError(code, ErrorCode(code).name, context)
