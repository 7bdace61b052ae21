"""Handlers block the event loop for longer than the session timeout while other members join and leave: a few rounds of
what `blocked_handlers.py` does a hundred times by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from odradek.testing import KafkaBroker

from .blocked_handlers import CONFIG, Protocol, run

ROUNDS = 4


@pytest.mark.sampled(2)
@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_a_member_whose_handlers_block_its_loop_loses_no_partition(
    protocol: Protocol, report: Callable[[object], None]
) -> None:
    with KafkaBroker(config=CONFIG) as broker:
        rounds = run(broker, protocol, ROUNDS, at_once=ROUNDS)
    report(f"{ROUNDS} rounds, blocked {sum(one.blocks for one in rounds)} times")
    assert [(one.error, one.lost) for one in rounds] == [("", [])] * ROUNDS
    assert sum(one.blocks for one in rounds) >= 2 * ROUNDS
