"""Errors that end a start, a request or a connection."""

from __future__ import annotations

from odradek.errors import OdradekError

__all__ = ["BrokerHalted", "OffsetNotInLog", "RequestRefused", "StartRefused"]


class StartRefused(OdradekError):
    """The broker does not start, for a reason for which the real one does not either."""


class BrokerHalted(OdradekError):
    """An append failed in the file system: the real broker halts its process (specification.md 3.1)."""


class RequestRefused(Exception):
    """The request ends its connection, without a word (specification.md 3)."""


class OffsetNotInLog(Exception):
    """A fetch outside the log: error code 1."""
