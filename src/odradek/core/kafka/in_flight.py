"""The request that a machine has in flight, and the back-off before its next one."""

from __future__ import annotations

from typing import Generic, TypeVar

from odradek.errors import LocalProtocolError

__all__ = ["InFlight"]

R = TypeVar("R")


class InFlight(Generic[R]):
    """The request without a response, at most one, and the end of the back-off."""

    def __init__(self) -> None:
        self._request: R | None = None
        self._retry_at = 0.0

    @property
    def is_free(self) -> bool:
        """True if no request waits for its response."""
        return self._request is None

    def can_send(self, now: float) -> bool:
        """Return True if a request may be sent now: none is in flight, and the back-off is over."""
        return self._request is None and now >= self._retry_at

    def send(self, request: R) -> R:
        """Register a request as in flight, and return it."""
        self._request = request
        return request

    def complete(self, owner: object) -> R:
        """Return the request to which a response arrived, or whose connection was lost; none is in flight then.

        Args:
            owner: The machine that sent it, for the error.

        Raises:
            LocalProtocolError: No request is in flight.
        """
        if self._request is None:
            raise LocalProtocolError(f"{owner!r}: a response arrived, but no request is in flight")
        request, self._request = self._request, None
        return request

    def back_off(self, now: float, backoff_s: float) -> None:
        """Send nothing for `backoff_s` seconds from `now`."""
        self._retry_at = now + backoff_s

    def wake_at(self, now: float) -> float | None:
        """Return the end of the back-off; None if there is none, or if a request is in flight."""
        return self._retry_at if self._request is None and now < self._retry_at else None
