"""The counters of all connections of a cluster, those that have ended included."""

from __future__ import annotations

from functools import reduce

from odradek.core.interfaces import ClusterStatistics
from odradek.io.connection import Connection, State, Statistics

__all__ = ["ConnectionTotals"]

_CONNECTED = (State.HANDSHAKING, State.CONNECTED, State.THROTTLED)


class ConnectionTotals:
    """Adds up what the connections of one cluster have counted."""

    def __init__(self) -> None:
        self._open: set[Connection] = set()
        self._ended = ClusterStatistics()

    def add(self, connection: Connection) -> None:
        """Count a connection from now on."""
        self._open.add(connection)

    def remove(self, connection: Connection) -> None:
        """Keep the counters of a connection that has ended, without the connection."""
        self._open.discard(connection)
        self._ended = _plus(self._ended, connection.statistics())

    def statistics(self) -> ClusterStatistics:
        """Return the sums."""
        connected = [connection for connection in self._open if connection.state in _CONNECTED]
        total = reduce(_plus, [connection.statistics() for connection in self._open], self._ended)
        return total._replace(
            brokers=len({connection.address for connection in connected}),
            connections=len(connected),
        )


def _plus(total: ClusterStatistics, one: Statistics) -> ClusterStatistics:
    return total._replace(
        connects=total.connects + one.connects,
        losses=total.losses + one.losses,
        requests=total.requests + one.requests,
        sent_bytes=total.sent_bytes + one.sent_bytes,
        received_bytes=total.received_bytes + one.received_bytes,
        throttled_seconds=total.throttled_seconds + one.throttled_seconds,
    )
