"""The page of a comparison: what it says, and that it trusts no text."""

from __future__ import annotations

from html.parser import HTMLParser

from odradek.mirror.stored import SourcePosition
from odradek.mirror.verify import Difference, VerifiedMirror, VerifiedPartition
from odradek.mirror.verify_page import verify_page
from odradek.types import TopicPartition

END = SourcePosition(10)


class Page(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def _partition(topic: str, **fields: object) -> VerifiedPartition:
    made = VerifiedPartition(TopicPartition(topic, 1, 7), TopicPartition(topic, 4), END, 10, done=True, hash="ab" * 32)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def _page(*partitions: VerifiedPartition, mirror: str = "m") -> Page:
    return Page(verify_page(VerifiedMirror(mirror, "source-id", "target-id", 1_700_000_000, 2.0, list(partitions))))


def test_a_page_has_the_counts_of_each_partition() -> None:
    page = _page(
        _partition("orders", source_records=12345, target_records=12345, bytes=2048, not_compared=77, others=3)
    )
    for text in ("equal", "orders/7-1", "orders/4", "12,345", "77", "2 KiB", "abababababababab", "2023-11-14"):
        assert text in page.text
    assert "different" not in page.text


def test_a_page_has_differences_and_errors() -> None:
    page = _page(
        _partition("orders", difference=Difference("missing", 3, 900, 2, None, "value b'gone'", "")),
        _partition("clicks", error="no broker"),
        _partition("good"),
    )
    for text in ("different", "missing", "900, message 2", "value b'gone'", "not there", "no broker", "clicks/4"):
        assert text in page.text


def test_no_text_becomes_a_tag() -> None:
    bad = "<script>alert('1')</script>\u202e"
    difference = Difference(bad, 3, 900, 2, 5, bad, bad)
    page = _page(_partition(bad, difference=difference), _partition(bad, error=bad), mirror=bad)
    assert not page.tags & {"script", "link", "img", "iframe"}
    assert not page.attributes & {"src", "href", "onclick"}
    assert page.text.count("alert('1')") >= 8
    assert "\u202e" not in page.text
