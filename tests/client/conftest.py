"""What tests of producers share as fixtures."""

from __future__ import annotations

import pytest
from tests.client.producing import ProducerClock

from odradek.client.producer.dispatcher import Dispatcher


@pytest.fixture
def producer_clock(monkeypatch: pytest.MonkeyPatch) -> ProducerClock:
    """The clock of the producer that is started next."""
    clock, started = ProducerClock(), Dispatcher.start

    async def start(dispatcher: Dispatcher) -> None:
        await started(dispatcher)
        clock.now = dispatcher.clock()
        dispatcher.clock = clock

    monkeypatch.setattr(Dispatcher, "start", start)
    return clock
