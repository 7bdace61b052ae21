"""The page of a comparison: HTML in one text, without scripts. What it shows of records is not trusted; see
`odradek.pages`."""

from __future__ import annotations

from functools import cache

from jinja2 import Template

from odradek._version import __version__
from odradek.mirror.verify import VerifiedMirror
from odradek.pages import count, duration, template

__all__ = ["verify_page"]


@cache
def _template() -> Template:
    return template("odradek.mirror", "verify.html")


def verify_page(result: VerifiedMirror) -> str:
    """Return the page of a comparison."""
    partitions = result.partitions
    compared = sum(each.source_records for each in partitions) + sum(each.source_records for each in result.topics)
    about = f"{'equal' if result.equal else 'different'}: {count(compared)} records, {duration(result.seconds)}"
    return _template().render(
        title=f"Mirror {result.mirror}: verify", about=about, result=result, version=__version__, compared=compared,
        size=sum(partition.bytes for partition in partitions),
        unequal=[partition for partition in partitions if not partition.equal],
    )  # fmt: skip
