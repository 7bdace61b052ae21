"""Every behaviour on every release that has what it is about; the table in the documentation comes from this run."""

from __future__ import annotations

import anyio
import pytest

from odradek.testing.kafka.releases import release

from .behaviour import BEHAVIOURS, LIMIT_S, Behaviour, Stand
from .releases import chosen_releases, is_tried
from .table import HELD, PAGE, missing, parse, render

pytestmark = [pytest.mark.brokers]


@pytest.mark.anyio
@pytest.mark.slow
@pytest.mark.timeout(int(2 * LIMIT_S))
async def test_behaviour(stand: Stand, checked: Behaviour, request: pytest.FixtureRequest) -> None:
    try:
        with anyio.fail_after(LIMIT_S):
            await checked.check(stand)
    finally:
        with anyio.CancelScope(shield=True):
            await stand.run(stand.heal)
    request.config.stash[HELD].setdefault(stand.cluster.version, set()).add(checked.text)


def test_the_page_says_what_held_on_each_release(request: pytest.FixtureRequest) -> None:
    """Runs after all others of this file."""
    held = request.config.stash[HELD]
    text = PAGE.read_text("utf-8")
    if request.config.getoption("--write-broker-table"):
        former = parse(text)
        text = render(
            text, {version: former.get(version, set()) | held.get(version, set()) for version in former | held}
        )
        PAGE.write_text(text, "utf-8")
    documented = parse(text)
    hint = "run pytest tests/brokers/sweep --brokers all --write-broker-table"
    assert {version: texts - documented.get(version, set()) for version, texts in held.items() if texts} == {
        version: set() for version in held
    }, hint
    assert missing(documented) == [], hint
    assert render(text, documented) == text, hint


def test_eight_seeds_try_what_is_quick_on_all_releases_with_a_reason_and_the_rest_on_three() -> None:
    releases = {name: release(name).number for name in chosen_releases("matrix")}
    pairs = [(name, each) for name, number in releases.items() for each in BEHAVIOURS if each.is_about(number)]
    tried = [{(name, each.text) for name, each in pairs if is_tried("matrix", name, each, seed)} for seed in range(9)]
    expected = {(name, each.text) for name, each in pairs if not each.slow or name in ("0.10.2.2", "2.8.2", "4.3.1")}
    assert set[tuple[str, str]]().union(*tried[:8]) == expected > tried[0] == tried[8]
    assert all({each.text for _, each in pairs} == {text for _, text in some} for some in tried), "each in every run"
    assert all(is_tried("2.5.1", "2.5.1", each, 0) for name, each in pairs if name == "2.5.1")


def test_texts_of_behaviours_are_unique() -> None:
    texts = [each.text for each in BEHAVIOURS]
    assert len(texts) == len(set(texts)) >= 40
    assert not any("|" in text for text in texts)
