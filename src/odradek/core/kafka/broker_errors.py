"""Errors made of error codes."""

from __future__ import annotations

from odradek.errors import BrokerError
from odradek.wire.kafka.error_codes import ErrorCode

__all__ = ["broker_error"]


def broker_error(code: int, context: str) -> BrokerError:
    """Return the error for a code, with the attributes of the error table.

    Args:
        code: The number on the wire; an unknown one keeps its number.
        context: The request, and the broker's own text if there is one.
    """
    error = ErrorCode(code)
    return BrokerError(
        code,
        error.name,
        context,
        retriable=error.retriable,
        refresh_metadata=error.refresh_metadata,
        fatal=error.fatal,
        fence=error.fence,
    )
