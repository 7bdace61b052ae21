"""Calls that are repeated while their errors pass."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from odradek.core.backoff import Backoff
from odradek.errors import ConfigError, DeadlineError, OdradekError, Unreachable, Unsupported
from odradek.io.retry import first_answer, quickest_answer, retry

pytestmark = pytest.mark.anyio

SOON = Backoff(0.0001, 1.0, 0.0001)
PASSING, OTHER, FINAL = Unreachable("tcp", "b:1", "refused"), Unreachable("dns", "b:2", "unknown"), ConfigError("no")
OLD = Unsupported("DescribeConfigs", "a broker that has this API")
LATE = DeadlineError("the call", 1.0, sent=False)


def attempts(*outcomes: OdradekError | str | None) -> Callable[[], Awaitable[str]]:
    """A call that raises or returns these, one after the other; None: it never ends."""
    left = iter(outcomes)

    async def call() -> str:
        outcome = next(left)
        if outcome is None:
            await anyio.sleep_forever()
        if isinstance(outcome, OdradekError):
            raise outcome
        assert outcome is not None
        return outcome

    return call


async def test_a_call_is_repeated_until_it_succeeds() -> None:
    assert await retry(attempts(PASSING, PASSING, "done"), SOON) == "done"


async def test_an_error_that_does_not_pass_ends_it() -> None:
    with pytest.raises(ConfigError):
        await retry(attempts(PASSING, FINAL, "not reached"), SOON)


async def test_the_caller_says_which_errors_pass() -> None:
    seen: list[OdradekError] = []

    def passes(error: OdradekError) -> bool:
        seen.append(error)
        return len(seen) < 2

    with pytest.raises(Unreachable):
        await retry(attempts(FINAL, PASSING, "not reached"), SOON, passes=passes)
    assert seen == [FINAL, PASSING]


async def test_when_the_time_is_over_the_last_error_is_raised() -> None:
    with pytest.raises(Unreachable) as raised:
        await retry(attempts(PASSING, OTHER, None), SOON, limit_s=0.05, late=LATE)
    assert raised.value is OTHER


async def test_an_attempt_without_an_outcome_is_late() -> None:
    with pytest.raises(DeadlineError) as raised:
        await retry(attempts(None), SOON, limit_s=0.01, late=LATE)
    assert raised.value is LATE


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ((PASSING, "answer", FINAL), "answer"),
        ((PASSING, OTHER), OTHER),
        ((PASSING, FINAL, "not reached"), FINAL),
        ((), LATE),
    ],
)
async def test_brokers_are_asked_until_one_answers(
    outcomes: tuple[OdradekError | str, ...], expected: OdradekError | str
) -> None:
    call = attempts(*outcomes)
    try:
        result: OdradekError | str = await first_answer(range(len(outcomes)), lambda broker: call(), LATE)
    except OdradekError as error:
        result = error
    assert result is expected


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ((None, PASSING, "answer", FINAL), "answer"),
        ((None, FINAL, "not reached"), FINAL),
        ((OLD, "answer", FINAL), "answer"),
        ((PASSING, OLD), PASSING),
        ((OLD,), OLD),
        ((PASSING, OTHER), OTHER),
        ((), LATE),
    ],
)
async def test_the_next_broker_is_asked_while_one_is_silent(
    outcomes: tuple[OdradekError | str | None, ...], expected: OdradekError | str
) -> None:
    ask = attempts(*outcomes)
    try:
        assert await quickest_answer(outcomes, lambda broker: ask(), LATE, 0.01) == expected
    except OdradekError as error:
        assert error is expected
