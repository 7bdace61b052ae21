"""The report of a run, as text and in a real browser."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest

from odradek.pipeline.commits import Commit, Gap
from odradek.pipeline.report import KEPT, FlowSummary, RunSummary, render, write_report

from .browser import Browser, texts
from .workspace import Workspace

START = 1_795_255_200
"""2026-11-21 10:00 UTC"""

EVIL = """<script>document.title="owned"</script>'"><img src=x onerror="document.title='owned'">&amp;</svg>\u202e\x00"""


def flow(name: str = "orders", *, days: int = 30, partitions: int = 60) -> FlowSummary:
    hours = {str(START - 3600 * hour): 1000 if hour < 2 else 3 for hour in range(0, days * 24, 11)}
    commits = [
        Commit(
            name, number, hours=hours, older=7, rows=10_000, dead=2, payload=5_000_000, reasons={"type": 2},
            examples=(f"type in id: {name}/0 at {number}",), gaps=(Gap(name, "0", 0, 1, "lost"),), files=200,
            file_bytes=2_000_000, written=START + number,
        )
        for number in range(1, 6)
    ]  # fmt: skip
    result = FlowSummary(
        name, START, START + 60, lag_before=5 << 20, lag_after=60, location=f"/data/{name}",
        partitions={f"{name}/{number}": number for number in range(partitions)},
    )  # fmt: skip
    for commit in commits:
        result.add(commit, 2.0)
    return replace(result, log_size=5 << 20)


def summary(*flows: FlowSummary, run: str = "20261121T100000-abc") -> RunSummary:
    return RunSummary(run, "pipeline.toml", "0.5.0", START, START + 75, flows)


@pytest.fixture
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    return Browser(tmp_path_factory.mktemp("browser"))


def test_the_page_has_the_newest_two_days_and_folds_what_is_older() -> None:
    page = render(summary(flow()))
    before, _, after = page.partition("<summary>Older hours</summary>")
    assert "2026-11-21 10:00" in before and "2026-11-19 14:00" in before and ">older<" in before
    assert "2026-11-01" not in before and "2026-11-01" in after


def test_the_page_has_what_one_asks_for_first() -> None:
    page = render(summary(flow()))
    for expected in (
        "/data/orders", "5,000 records/s", "2.38 MiB/s", "50,000", "orders/59", "type in id: orders/0 at 3",
        "Files are small", "1,000 files of 9.77 KiB on average", "orders/0 [0, 1): lost",
    ):  # fmt: skip
        assert expected in page, expected


def test_a_failed_flow_says_why() -> None:
    page = render(summary(replace(flow(), error="it broke"), replace(flow("other"), problems=("no broker has p",))))
    assert page.count('<span class="state failed">failed</span>') == 3
    assert "it broke" in page and "no broker has p" in page


def test_names_from_outside_are_text_and_nothing_else(browser: Browser, tmp_path: Path) -> None:
    evil = replace(flow(EVIL, partitions=3), error=EVIL, problems=(EVIL,), location=EVIL)
    text = render(RunSummary(EVIL, EVIL, EVIL, START, START, [evil]), EVIL)
    page = tmp_path / "page.html"  # without the policy that forbids scripts: names must be harmless by themselves
    page.write_text(re.sub(r"<meta http-equiv[^>]*>", "", text), "utf-8")
    dom = browser.dom(page)
    shown = EVIL.replace("\u202e", "\ufffd").replace("\x00", "\ufffd")
    assert html.unescape(texts(dom, "title")[0]) == f"Pipeline run {shown}"
    assert not re.search(r"<(script|img)\b", dom)
    assert "&lt;script&gt;" in dom and "\ufffd" in dom and "\u202e" not in dom and "\x00" not in dom


def test_the_page_fetches_nothing_and_runs_no_script() -> None:
    page = render(summary(flow()))
    assert "default-src 'none'; style-src 'unsafe-inline'" in page
    assert not re.search(r"src\s*=|url\(|@import|<script|https?:", page)


@pytest.mark.parametrize("width", [390, 1400])
def test_it_fits_the_window(browser: Browser, tmp_path: Path, width: int) -> None:
    wide = replace(flow("n" * 64), error="e" * 500, location="/" + "l" * 300)
    text = render(RunSummary("r" * 100, "/" + "f" * 300, "0.5.0", START, START + 1, [wide]))
    probe = f"""<iframe srcdoc="{html.escape(text.replace("<details>", "<details open>"))}"
        style="width: {width}px; height: 900px; border: 0"></iframe><script>
        document.querySelector("iframe").onload = event => {{
            const page = event.target.contentDocument.documentElement
            document.title = page.scrollWidth + " of " + page.clientWidth
        }}</script>"""
    page = tmp_path / "page.html"
    page.write_text(f"<!DOCTYPE html><title></title>{probe}", "utf-8")
    content, _, window = texts(browser.dom(page), "title")[0].partition(" of ")
    assert int(content) <= int(window)


def test_it_is_visible_in_light_and_dark_mode(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(render(summary(flow())), "utf-8")
    images = [tmp_path / f"{name}.png" for name in ("light", "dark")]
    for image, options in zip(images, ([], ["--force-dark-mode"]), strict=True):
        assert browser.picture(page, image, "--window-size=1100,2200", *options) == (1100, 2200)
    light, dark = (image.read_bytes() for image in images)
    assert light != dark and min(len(light), len(dark)) > 30_000  # an empty page is a few kilobytes


def test_reports_have_an_index_and_old_ones_are_removed(tmp_path: Path) -> None:
    for number in range(KEPT + 2):
        path = write_report(summary(run=f"run-{number:04}"), str(tmp_path))
    assert 'href="run-0200.html"' in path.read_text("utf-8")
    names = {each.name for each in path.parent.iterdir()}
    assert len(names) == KEPT + 1 and "run-0001.html" not in names and "run-0002.html" in names
    index = path.with_name("index.html").read_text("utf-8")
    assert index.index("run-0201.html") < index.index("run-0002.html")
    assert index.count("<td>done: 0 records, 0 dead, 1 min 15 s</td>") == KEPT


def test_the_index_says_of_each_run_how_it_ended(tmp_path: Path) -> None:
    write_report(summary(flow(), run="run-1"), str(tmp_path))
    path = write_report(summary(replace(flow(EVIL), error=EVIL), run="run-2"), str(tmp_path))
    lines = re.findall("<td>(.*?)</td>", path.with_name("index.html").read_text("utf-8"))
    assert lines == ["failed: 50,000 records, 10 dead, 1 min 15 s", "done: 50,000 records, 10 dead, 1 min 15 s"]


def test_the_results_of_a_run_that_goes_on_and_on_stay_small_and_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odradek.pipeline.report.LINES", 3)
    work = Workspace(tmp_path, run_lines="batch_bytes = 160")
    for topic in ("orders", "refunds"):
        work.append([b"%06d" % number for number in range(100)], topic=topic)
    (result,) = work.run().flows
    assert [each.batch for each in result.commits] == [work.newest.batch - back for back in (2, 1, 0)]
    assert result.batches == work.newest.batch > 3 and (result.rows, result.log_size) == (200, 200 * 16)
    assert sum(result.hours.values()) + result.older == 200
    assert result.topics == ["orders", "refunds"]


def test_partitions_without_lag_are_left_out() -> None:
    page = render(summary(replace(flow(partitions=1), lag_after=0)))
    assert "Still to be read" not in page
    assert "unknown" in render(summary(replace(flow(), partitions={"orders/0": None})))
