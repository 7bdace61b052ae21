"""Whitelists and blacklists of topics.

Wildcard subscriptions are Java regular expressions matched against whole topic names. They are matched with `re`,
which agrees on everything usual in topic filters: literals, `.`, `*`, `+`, `?`, `{n,m}`, `|`, groups, classes, `\\d`,
`\\w`, `\\s` (all of ASCII, as in Java), look-around. Python has no `\\p{...}`, `\\Q...\\E` or `(?<name>...)`, and
Java's class arithmetic (`[a-z&&[^b]]`, `[a[b]]`) means something else there. Keep the filters of mixed groups to what
both understand.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from odradek.errors import ConfigError

__all__ = ["TopicFilter"]

REPEAT_CHOICES = 5
"""Cost of one `*` or `+` (bits): with the longest possible name it is a little more."""

MAX_CHOICES = 20
"""Bound of the cost of a filter (bits): the most expensive ones within it take 0.3 s for the longest possible name
(measured), usual ones microseconds."""


class TopicFilter(NamedTuple):
    """A whitelist or blacklist of topics: the normalised expression, and whether it excludes."""

    pattern: re.Pattern[str]
    exclude: bool

    @classmethod
    def of(cls, raw: str, *, exclude: bool) -> TopicFilter:
        """Normalise as the Scala TopicFilter does. ConfigError when `re` does not accept the result."""
        text = raw.strip(_JAVA_BLANKS).replace(",", "|").replace(" ", "").strip("\"'")
        try:
            return cls(re.compile(text, re.ASCII), exclude)
        except (re.error, ValueError, RecursionError, OverflowError) as e:
            raise ConfigError(f"topic filter {raw!r}: not a regular expression: {e}") from None

    def __contains__(self, topic: object) -> bool:
        return isinstance(topic, str) and (self.pattern.fullmatch(topic) is None) == self.exclude

    def is_costly(self) -> bool:
        """Return True if matching one topic can take longer than a fraction of a second.

        Members match each other's filters in their event loops, so such a filter of another member must not be matched.
        Refused are a repeated group that contains a repeat or an alternative that begins like another, as in `(a+)+`
        and `(a|a)*` (exponential), and more than four repeats one after the other, as in `.*a.*b.*c.*d.*` (the fifth
        power of the length of a name).
        """
        return _has_costly_repeats(self.pattern.pattern)


class _OpenGroup:
    """A group of an expression, as far as it is read."""

    def __init__(self) -> None:
        self.is_ambiguous = False  # has a repeat, or alternatives that begin alike
        self.alternatives = [""]
        self.choices = [0]  # of each alternative (bits)

    def is_undecided(self) -> bool:
        """Return True unless the first character tells which of several alternatives it is."""
        first = [text[:1] for text in self.alternatives]
        return len(first) > 1 and ("." in first or len(set(first)) < len(first))

    def add_repeat(self, choices: int) -> None:
        self.is_ambiguous = True
        self.choices[-1] += choices

    def add_group(self, inner: _OpenGroup) -> None:
        """Add a group that has ended."""
        self.is_ambiguous |= inner.is_ambiguous
        self.alternatives[-1] += "."
        self.choices[-1] += max(inner.choices)
        if inner.is_undecided():
            self.is_ambiguous = True
            self.choices[-1] += (len(inner.alternatives) - 1).bit_length()


def _has_costly_repeats(pattern: str) -> bool:
    groups = [_OpenGroup()]
    unread = _SKIPPED.sub(".", pattern.replace("(?:", "("))
    for i, character in enumerate(unread):
        group, following = groups[-1], unread[i + 1 : i + 2]
        if character == "(":
            groups.append(_OpenGroup())
        elif character == ")" and len(groups) > 1:
            groups.pop()
            groups[-1].add_group(group)
            if following in _REPEATS and (group.is_ambiguous or group.is_undecided()):
                return True
        elif character == "|":
            group.alternatives.append("")
            group.choices.append(0)
        elif character in "*+?{":
            group.add_repeat(_choices(unread, i))
        else:
            group.alternatives[-1] += character
    return max(map(max, (group.choices for group in groups))) > MAX_CHOICES


def _choices(unread: str, i: int) -> int:
    """Return in how many ways a repeat can end (bits): in one for `{3}`, and for what only changes the meaning of the
    character before it, as in `*?` and `(?=`. There is no `{3,5}`: a comma means `|` in a filter."""
    if unread[i] == "{" or unread[i - 1 : i] in ("(", *_REPEATS, "?"):
        return 0
    return 1 if unread[i] == "?" else REPEAT_CHOICES


_REPEATS = ("*", "+", "{")
_JAVA_BLANKS = "".join(map(chr, range(33)))  # removed by String.trim
# Escaped characters and character classes: they repeat nothing, and stand for one character.
_SKIPPED = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
