"""The recorded cases, replayed side by side: most of their time is waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from odradek.testing import ZooKeeperServer

from .replay import Case, replay

AT_A_TIME = 8


@pytest.fixture(scope="module")
def as_recorded(request: pytest.FixtureRequest, engine: str) -> Iterator[Callable[[Case], None]]:
    """Fails with the first difference of a case. The cases of all selected tests are under way from the first on."""
    selected = [item.callspec.params["case"] for item in request.session.items if is_case(item)]  # type: ignore[attr-defined]
    # Each case once: its id names its chroot, and several tests may use it.
    cases = {case.id: case for case in selected}
    with ZooKeeperServer() as zookeeper, ThreadPoolExecutor(AT_A_TIME) as pool:
        outcomes = {case.id: pool.submit(replay, case, zookeeper) for case in cases.values()}

        def check(case: Case) -> None:
            difference = outcomes[case.id].result()
            assert difference is None, difference

        yield check
        pool.shutdown(cancel_futures=True)


def is_case(item: pytest.Item) -> bool:
    return isinstance(getattr(getattr(item, "callspec", None), "params", {}).get("case"), Case)
