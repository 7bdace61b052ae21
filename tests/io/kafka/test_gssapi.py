"""Kerberos where its KDC is away, on a double of the package `gssapi`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

import odradek as od
from odradek.errors import AuthFailed, ConfigError, Unreachable
from odradek.io.kafka import connections
from odradek.io.kafka.authentication import login
from odradek.io.kafka.gssapi import fetch_ticket

pytestmark = pytest.mark.anyio

UNREACHABLE, NO_CREDENTIALS = 2529639068, 2529639053
"""Minor status codes, as the package has them: unsigned."""


class GSSError(Exception):
    def __init__(self, min_code: int, text: str) -> None:
        super().__init__(text)
        self.min_code = min_code


class Kdc:
    """What the next step of a security context does."""

    def __init__(self) -> None:
        self.error: GSSError | None = None
        self.failures = 1000  # steps that raise it
        self.answers = threading.Event()
        self.answers.set()
        self.threads: list[int] = []

    def step(self, token: bytes | None = None) -> bytes:
        self.threads.append(threading.get_ident())
        self.answers.wait(10)
        if self.error is not None and len(self.threads) <= self.failures:
            raise self.error
        return b"token"


@pytest.fixture
def kdc(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kdc]:
    made = Kdc()
    package: Any = SimpleNamespace(
        Name=lambda name, kind: name,
        NameType=SimpleNamespace(hostbased_service=1),
        SecurityContext=lambda name, usage: SimpleNamespace(step=made.step, complete=False),
        exceptions=SimpleNamespace(GSSError=GSSError),
    )
    monkeypatch.setitem(sys.modules, "gssapi", package)
    yield made
    made.answers.set()


async def test_a_ticket_is_fetched_in_a_thread(kdc: Kdc) -> None:
    await fetch_ticket("kafka", "b", 5)
    assert len(kdc.threads) == 1 and kdc.threads[0] != threading.get_ident()


async def test_a_kdc_that_does_not_answer_holds_nothing_up_and_is_named(kdc: Kdc) -> None:
    kdc.answers.clear()
    with pytest.raises(Unreachable, match="b: sasl: no Kerberos ticket: no answer from the KDC") as caught:
        await fetch_ticket("kafka", "b", 0.05)
    assert caught.value.retriable and "krb5.conf" in caught.value.hint


async def test_a_kdc_that_cannot_be_reached_may_come_back(kdc: Kdc) -> None:
    kdc.error = GSSError(UNREACHABLE, "Cannot contact any KDC for realm 'R'")
    with pytest.raises(Unreachable, match="no Kerberos ticket: Cannot contact any KDC") as caught:
        await fetch_ticket("kafka", "b", 5)
    assert caught.value.retriable
    exchange = login(od.Security(sasl_mechanism="GSSAPI"), None).begin("b")
    with pytest.raises(Unreachable, match="no Kerberos ticket: Cannot contact any KDC"):
        next(exchange)
    kdc.error = None
    await fetch_ticket("kafka", "b", 5)


async def test_without_credentials_authentication_fails(kdc: Kdc) -> None:
    kdc.error = GSSError(NO_CREDENTIALS, "No Kerberos credentials available")
    await fetch_ticket("kafka", "b", 5)
    with pytest.raises(AuthFailed, match="No Kerberos credentials available"):
        next(login(od.Security(sasl_mechanism="GSSAPI"), None).begin("b"))


async def test_a_cluster_is_opened_once_the_kdc_answers(kdc: Kdc, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection waits for the ticket, and is tried again."""
    connected: list[str] = []

    async def connect(host: str, port: int, *rest: object) -> None:
        connected.append(host)
        raise ConfigError("seen")

    monkeypatch.setattr(connections, "connect", connect)
    kdc.error = GSSError(UNREACHABLE, "Cannot contact any KDC for realm 'R'")
    kdc.failures = 2
    cluster = od.connect("kafka+sasl://b:1", security=od.Security(sasl_mechanism="GSSAPI"))

    with anyio.fail_after(30), pytest.raises(od.OdradekError, match="seen"):
        async with cluster:
            pass
    assert connected[0] == "b" and len(kdc.threads) > 2
