"""Options as Spark hands them over: taken one by one, checked as they are taken. What nobody knows is an error."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import TypeVar

from odradek.errors import ConfigError

__all__ = ["OptionMap"]

T = TypeVar("T")


class OptionMap:
    """The options of one reader or writer. Spark lower-cases their names, so these are compared without regard to case.

    Args:
        options: As they come.
        known: The names there are, as they are written.
        refused: Names that cannot be meant here -> what to do instead.

    Raises:
        ConfigError: There is one that is refused, or not known.
    """

    def __init__(self, options: Mapping[str, str], known: Collection[str], refused: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        names, wrong = {name.lower(): name for name in known}, {name.lower(): name for name in refused}
        for written in options:
            name = written.lower()
            if name in wrong:
                raise ConfigError(f"option {wrong[name]}: {refused[wrong[name]]}")
            if name not in names:
                raise ConfigError(f"unknown option {written!r}{_nearest(name, names)}")

    def has(self, name: str) -> bool:
        """Return True if the option is set."""
        return name.lower() in self._values

    def text_or(self, name: str, default: str) -> str:
        """Return the text of an option that may be empty, or the default if it is not set."""
        return str(self._values.get(name.lower(), default))

    def text(self, name: str) -> str | None:
        """Return the text of an option, or None if it is not set. Raises ConfigError if it is empty."""
        value = self._values.get(name.lower())
        if value is not None and not str(value).strip():
            raise ConfigError(f"option {name} is empty")
        return value

    def take(self, name: str, parse: Callable[[str, str], T], default: T) -> T:
        """Return the parsed value of an option, or the default if it is not set."""
        text = self.text(name)
        return default if text is None else parse(text, name)

    def one_of(self, names: tuple[str, ...]) -> str:
        """Return the one of these options that is set, or "". Raises ConfigError if several are."""
        present = [name for name in names if self.has(name)]
        if len(present) > 1:
            raise ConfigError(f"options {' and '.join(present)} exclude each other")
        return present[0] if present else ""


def _nearest(name: str, names: Mapping[str, str]) -> str:
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    return f": did you mean {names[near[0]]}?" if near else ""
