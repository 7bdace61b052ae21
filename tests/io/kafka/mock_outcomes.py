"""A client of librdkafka's mock cluster, and what each error code makes of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
from tests.io.kafka.librdkafka import MockCluster

import odradek as od
from odradek.core.backoff import Backoff
from odradek.errors import Fenced
from odradek.io.connection import ConnectionOptions
from odradek.io.kafka.driver import KafkaDriver, KafkaOptions
from odradek.io.kafka.metadata import MetadataOptions
from odradek.types import Broker
from odradek.wire.kafka.error_codes import ErrorCode

__all__ = ["CODES", "HASTY", "connect", "expected", "outcomes"]

CODES = [*(code for code in ErrorCode if code), ErrorCode(999)]
"""All codes of the table, and one that it does not have."""

BACKOFF = Backoff(0.001, 1, 0.001)
HASTY = od.Tuning(backoff=BACKOFF)
WITHIN_S = 60.0


def connect(mock: MockCluster, session_s: float = 0.3, heartbeat_s: float = 0.01) -> od.Cluster:
    """Return a cluster that loses no time. The mock holds up members that join as long as it has a session of one that
    is gone."""
    host, _, port = mock.bootstrap.partition(":")
    options = KafkaOptions(
        ConnectionOptions(backoff=BACKOFF),
        MetadataOptions(backoff=BACKOFF),
        heartbeat_s=heartbeat_s,
        session_timeout_s=session_s,
    )
    return od.Cluster(KafkaDriver([Broker(-1, host, int(port))], options), HASTY)


async def outcomes(attempt: Callable[[ErrorCode], Awaitable[str]]) -> dict[str, str]:
    """Return the outcome for each code: what `attempt` returns, or the kind of error that it raises."""
    results: dict[str, str] = {}
    for code in CODES:
        try:
            with anyio.fail_after(WITHIN_S):
                results[code.name] = await attempt(code)
        except Fenced as error:
            assert code.name in str(error)
            results[code.name] = "fenced"
        except od.BrokerError as error:
            assert error.code == code
            results[code.name] = "error"
    return results


def expected(usual: Callable[[ErrorCode], str], special: dict[str, set[ErrorCode]]) -> dict[str, str]:
    """Return the expected outcomes: the usual ones by the properties of the code, and the special ones."""
    exceptions = {code: outcome for outcome, codes in special.items() for code in codes}
    return {code.name: exceptions.get(code) or usual(code) for code in CODES}
