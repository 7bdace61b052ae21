"""The report of a run, in a real browser."""

from __future__ import annotations

import html
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from odradek.pipeline import plots
from odradek.pipeline.ledger import LedgerGap
from odradek.pipeline.report import render, write_report
from odradek.pipeline.summary import BatchSummary, FlowSummary, RunSummary, Volume

from .browser import Browser, texts

START = 1_795_255_200.0
"""2026-11-21 10:00 UTC"""

EVIL = """<script>document.title="owned"</script>'"><img src=x onerror="document.title='owned'">&amp;</svg>\u202e\x00"""


def flow(name: str = "orders", *, topics: int = 3, hours: int = 24, batches: int = 5, **also: object) -> FlowSummary:
    volumes = {
        f"topic-{topic:03}": {
            int(START) - 3600 * hour: Volume(1000 + 10 * topic + hour, 100_000 + hour) for hour in range(hours)
        }
        for topic in range(topics)
    }
    made = [
        BatchSummary(number, START + 10 * number + 8, 7.5, 1000, 5 << 20, number, (batches - number - 1) * 5 << 20)
        for number in range(batches)
    ]
    fields: dict[str, object] = {
        "started": START, "ended": START + 60, "batches": made, "bytes": 123_456_789, "reasons": {"not JSON": 10},
        "lag_before": 25 << 20, "lag_after": 0, "hours": volumes, "files": 7, "file_bytes": 9 << 20,
    }  # fmt: skip
    return FlowSummary(name, **(fields | also))  # type: ignore[arg-type]


def summary(*flows: FlowSummary, run: str = "20261121-1") -> RunSummary:
    return RunSummary(run, "pipeline.toml", "0.5.0", START, START + 75, flows)


@pytest.fixture
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    return Browser(tmp_path_factory.mktemp("browser"))


def seen(browser: Browser, folder: Path, run: RunSummary, *options: str) -> str:
    page = folder / "report.html"
    write_report(run, page)
    return browser.dom(page, *options)


def test_the_page_shows_the_results_of_the_run(browser: Browser, tmp_path: Path) -> None:
    dom = seen(
        browser,
        tmp_path,
        summary(flow(), flow("clicks", error="no broker", gaps=[LedgerGap("t", "1-0", 5, 1029, "gone")])),
    )
    assert texts(dom, "title")[0] == "Pipeline run 20261121-1"
    assert texts(dom, "h1") == ["Pipeline run failed"]
    assert texts(dom, "h2") == ["orders", "clicks"]
    assert texts(dom, "dd")[:2] == ["10,000", "235 MiB of payload"]
    assert "2026-11-21 10:00:00 UTC to 2026-11-21 10:01:15 UTC" in dom and "1 min 15 s" in dom
    titles = ["Lag"] + 2 * [
        "Records by topic, per hour (UTC)", "Bytes by topic, per hour (UTC)", "Topics",
        "Batches: bytes of log, from 2026-11-21 10:00:00 UTC", "Dead letters by reason",
    ]  # fmt: skip
    assert texts(dom, "figcaption") == titles
    assert "The flow failed: no broker" in texts(dom, "p")
    cells = texts(dom, "td")
    for cell in ("2026-11-21 10:00:08 UTC", "7.5 s", "5 MiB", "20 MiB", "1 KiB", "gone"):
        assert cell in cells


def test_every_plot_has_a_table_of_what_it_shows(browser: Browser, tmp_path: Path) -> None:
    dom = seen(browser, tmp_path, summary(flow()))
    figures = re.findall(r"<figure>.*?</figure>", dom, re.DOTALL)
    assert len(figures) == 6
    for number, figure in enumerate(figures):
        assert re.search(r'<svg class="plot" role="img" aria-label="[^"]+"', figure)
        assert ("<table>" in figure) is (number != 1)  # records and bytes by hour share one
    for table in re.findall(r"<table>.*?</table>", dom, re.DOTALL):
        assert "<caption>" in table and '<th scope="col">' in table and '<th scope="row">' in table


def test_names_from_outside_are_text_and_nothing_else(browser: Browser, tmp_path: Path) -> None:
    hours = {EVIL: {int(START): Volume(5, 5)}, "a" * 249: {int(START): Volume(4, 4)}, "\ud800": {0: Volume(1, 1)}}
    gaps = [LedgerGap(EVIL, EVIL, 0, 1, EVIL)]
    flows = [FlowSummary(EVIL, START, START, hours=hours, gaps=gaps, reasons={EVIL: 3}, error=EVIL), flow(EVIL)]
    page = tmp_path / "report.html"
    write_report(RunSummary(EVIL, EVIL, EVIL, START, START, flows), page)
    # The policy that forbids scripts is taken out: names must be harmless by themselves.
    page.write_text(re.sub(r"<meta http-equiv[^>]*>", "", page.read_text("utf-8")), "utf-8")
    dom = browser.dom(page)
    shown = EVIL.replace("\u202e", "\ufffd").replace("\x00", "\ufffd")
    assert html.unescape(texts(dom, "title")[0]) == f"Pipeline run {shown}"
    assert not re.search(r"<(script|img)\b", dom)
    assert "&lt;script&gt;" in dom and "\ufffd" in dom and "\u202e" not in dom and "\x00" not in dom


def test_the_page_fetches_nothing_and_runs_no_script(tmp_path: Path) -> None:
    page = render(summary(flow()))
    assert "default-src 'none'; style-src 'unsafe-inline'" in page
    assert not re.search(r"(?:src|href)\s*=|url\(|@import|<script|https?:", page)


def test_a_run_without_anything(browser: Browser, tmp_path: Path) -> None:
    nothing = FlowSummary("orders", START, START + 2)
    dom = seen(browser, tmp_path, summary(nothing))
    assert texts(dom, "h1") == ["Pipeline run done"]
    assert "There was nothing new to read." in texts(dom, "p")
    assert "<svg" not in dom and texts(dom, "dd")[0] == "0" and "not known" in dom
    assert "<h2" not in seen(browser, tmp_path, summary())


def test_many_topics_are_the_largest_and_the_rest(browser: Browser, tmp_path: Path) -> None:
    dom = seen(browser, tmp_path, summary(flow(topics=500, hours=200, batches=300)))
    assert "per 3 hours" in "".join(texts(dom, "figcaption"))
    legend = texts(re.findall(r'<ul class="legend">.*?</ul>', dom, re.DOTALL)[0], "li")
    assert len(legend) == 8 and legend[0] == "topic-499" and legend[-1] == "the rest: 493 topics"
    assert "the rest: 485 topics" in dom
    assert len(dom) < 1_000_000
    assert texts(dom, "th").count("topic-000") == 1  # in its table, though in no plot


def test_long_tables_say_what_they_leave_out(tmp_path: Path) -> None:
    page = render(summary(flow(reasons={f"reason {number}": number + 1 for number in range(700)})))
    assert "Dead letters by reason: 500 rows; 200 more are left out" in page


@pytest.mark.parametrize("width", [500, 1200])
def test_it_fits_the_window(browser: Browser, tmp_path: Path, width: int) -> None:
    wide = flow("n" * 64, error="e" * 500, reasons={"r" * 300: 5})
    page = tmp_path / "report.html"
    write_report(RunSummary("r" * 200, "/" + "f" * 300, "0.5.0", START, START + 1, [wide]), page)
    probe = "<script>document.title = document.documentElement.scrollWidth + ' of ' + innerWidth</script></body>"
    text = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text("utf-8")).replace("</body>", probe)
    page.write_text(text.replace("<details>", "<details open>"), "utf-8")
    content, _, window = texts(browser.dom(page, f"--window-size={width},900"), "title")[0].partition(" of ")
    assert int(content) <= int(window)


def test_no_text_is_cut_off_at_the_end_of_a_plot(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write_report(summary(flow(hours=25)), page)  # the last of 25 hours has a label
    probe = """<script>document.title = Math.max(...[...document.querySelectorAll("svg text")].map(
        text => text.getBBox().x + text.getBBox().width - text.ownerSVGElement.viewBox.baseVal.width
    ))</script></body>"""
    page.write_text(re.sub(r"<meta http-equiv[^>]*>", "", page.read_text("utf-8")).replace("</body>", probe), "utf-8")
    assert -plots.WIDTH < float(texts(browser.dom(page), "title")[0]) <= 0


def test_plots_are_visible_in_light_and_dark_mode(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write_report(summary(flow()), page)
    images = [tmp_path / f"{name}.png" for name in ("light", "dark")]
    for image, options in zip(images, ([], ["--force-dark-mode"]), strict=True):
        assert browser.picture(page, image, "--window-size=1100,2200", *options) == (1100, 2200)
    light, dark = (image.read_bytes() for image in images)
    assert light != dark and min(len(light), len(dark)) > 30_000  # an empty page is a few kilobytes


def test_a_report_replaces_another_and_leaves_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "reports" / "run.html"
    for run in ("first", "second"):
        write_report(summary(run=run), page)
    assert list(page.parent.iterdir()) == [page] and "run second" in page.read_text("utf-8")


@example([("", 5e-324)])
@given(st.lists(st.tuples(st.text(max_size=40), st.floats(0, 1e18)), max_size=20))
def test_plots_are_valid_for_any_values(named: list[tuple[str, float]]) -> None:
    bars = [plots.Bar(name, value) for name, value in named]
    spans = [plots.TimeSpan(at, at + value / 1e9, value, name) for at, (name, value) in enumerate(named)]
    labels = [name for name, _ in named]
    for drawn in (
        plots.rows("t", bars),
        plots.columns("t", labels, [("a", [value for _, value in named]), ("b", [1.0] * len(named))], binary=True),
        plots.columns("t", labels, []),
        plots.timeline("t", spans),
    ):
        for shape in ET.fromstring(drawn).iter("rect"):
            x, width = float(shape.attrib["x"]), float(shape.attrib["width"])
            assert x >= 0 and x + width <= plots.WIDTH + 1


def test_numbers_are_written_for_people() -> None:
    assert [plots.size(n) for n in (0, 1, 1023, 1024, 5 << 20, 1000 << 30, 1 << 60)] == [
        "0 B", "1 B", "1,023 B", "1 KiB", "5 MiB", "1,000 GiB", "1,024 PiB"
    ]  # fmt: skip
    assert [plots.duration(s) for s in (0.04, 59.94, 60, 3599.6, 3720)] == [
        "0.0 s", "59.9 s", "1 min 0 s", "1 h 0 min", "1 h 2 min"
    ]  # fmt: skip
    assert plots.count(1234567) == "1,234,567"
    assert plots.moment(1e20) == "100000000000000000000 s since 1970"
    assert plots.short("a" * 50, 11) == "aaaa...aaaa" and plots.short("a", 11) == "a"
