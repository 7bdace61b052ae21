"""Pages of HTML for people, and the texts of numbers on them. Needs jinja2.

Pages need no network and run no scripts. Names come from topics and data and are not trusted: templates escape all
text, and characters that would not be seen are replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from jinja2 import Environment, PackageLoader, PrefixLoader, Template

__all__ = ["count", "duration", "moment", "size", "template", "times"]


def count(number: float) -> str:
    """Format a number: 1,234,567."""
    return f"{number:,.0f}"


def times(number: int, one: str, many: str) -> str:
    """Format a number with its noun: 1 batch, or 2 batches."""
    return f"{count(number)} {one if number == 1 else many}"


def size(number: float) -> str:
    """Format a number of bytes: 1.2 MiB."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if number >= 1024:
            number, unit = number / 1024, larger
    return f"{number:,.0f} {unit}" if number >= 1000 else f"{number:.3g} {unit}"


def duration(seconds: float) -> str:
    """Format a number of seconds: 1 h 2 min, 3 min 4 s, or 5.6 s."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def moment(seconds: float, form: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    """Format a time (s since the epoch): 2026-11-21 12:00:00 UTC, or a number if no calendar has it."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f} s since 1970"


def template(package: str, name: str, *filters: Callable[..., str]) -> Template:
    """Return the template of a page.

    Args:
        package: The package that has it. It may extend `pages/page.html`, which has the style.
        name: The name of the file.
        filters: More filters than those of this module, by their names.
    """
    loaders = {"pages": PackageLoader("odradek", "."), "": PackageLoader(package, ".")}
    environment = Environment(autoescape=True, trim_blocks=True, finalize=_visible, loader=PrefixLoader(loaders))
    environment.filters |= {each.__name__: each for each in (count, size, duration, moment, times, *filters)}
    return environment.get_template(f"/{name}")


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")


def _visible(value: Any) -> Any:
    """Replace invisible characters of a text, and those that reverse it, by U+FFFD. Does not escape."""
    if type(value) is not str:  # such as what is escaped already
        return value
    return _CONTROL.sub("\ufffd", value.encode("utf-8", "replace").decode("utf-8"))
