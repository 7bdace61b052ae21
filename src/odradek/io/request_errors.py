"""The errors of requests that fail with their connection: one for each, because each has its own `sent`."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Collection
from typing import Any

from odradek.errors import ConnectionLost, DeadlineError, InternalError, OdradekError
from odradek.io.requests import InFlightRequest

__all__ = ["ErrorOf", "connection_lost", "copies_of", "deadline_passed", "internal_error", "lost_because"]

log = logging.getLogger("odradek.io.connection")

ErrorOf = Callable[[InFlightRequest[Any]], OdradekError]
"""Function that makes the error of one request."""


def copies_of(error: OdradekError) -> ErrorOf:
    """Return the function that makes a copy of `error`, which is its cause."""

    def error_of(pending: InFlightRequest[Any]) -> OdradekError:
        own = copy.copy(error)
        own.sent = pending.sent
        return _caused(own, error)

    return error_of


def connection_lost(address: str, why: str) -> ErrorOf:
    """Return the function that makes a ConnectionLost."""
    return lambda pending: ConnectionLost(address, why, pending.sent)


def lost_because(address: str, error: OdradekError, culprit: InFlightRequest[Any] | None) -> ErrorOf:
    """Return the function for which `culprit` fails with `error`, and all other requests because of it."""

    def error_of(pending: InFlightRequest[Any]) -> OdradekError:
        if pending is culprit:
            return error
        return _caused(ConnectionLost(address, error.message(), pending.sent), error)

    return error_of


def deadline_passed(
    address: str, why: str, late: Collection[InFlightRequest[Any]], refusal: OdradekError | None
) -> ErrorOf:
    """Return the function that makes a DeadlineError for the requests in `late`, and a ConnectionLost for all others.

    Args:
        address: The broker's address.
        why: The reason of the loss.
        late: The requests whose deadline has passed.
        refusal: The cause of all errors: why the last attempt to connect failed, if it did.
    """

    def error_of(pending: InFlightRequest[Any]) -> OdradekError:
        if pending in late:
            return _caused(DeadlineError(address, pending.limit_s, pending.sent), refusal)
        return _caused(ConnectionLost(address, why, pending.sent), refusal)

    return error_of


def internal_error(address: str, bug: Exception) -> InternalError:
    """Log a defect with its traceback, and return the error that stands for it."""
    cause = bug
    while isinstance(cause, ExceptionGroup) and len(cause.exceptions) == 1:
        cause = cause.exceptions[0]
    defect = InternalError(f"connection to {address}: {type(cause).__name__}: {cause}")
    defect.__cause__ = cause
    log.error("%s; its requests fail, the next one connects again", defect.message(), exc_info=cause)
    return defect


def _caused(error: OdradekError, cause: BaseException | None) -> OdradekError:
    error.__cause__ = cause
    return error
