"""Rules for arguments: one set of checks, one wording of errors.

A `Rule` takes the name and the value of an argument and returns the value as the callee uses it. A value of the wrong
type raises TypeError, one that cannot work raises ConfigError; both name the argument, the value and what is allowed.

    seconds()("latency", float("nan"))
    ConfigError: latency=nan: must be a number of seconds from 0 to 31536000

Options of a facade are declared once, as a TypedDict whose fields are annotated with an `Option`: `resolve` checks what
was given and fills in defaults, and `with_options` gives the function its signature and the documentation of each.
"""

from __future__ import annotations

import inspect
import math
import operator
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from odradek.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "REQUIRED",
    "Option",
    "Rule",
    "binary",
    "bytes_of_text",
    "check_all",
    "choice",
    "count",
    "flag",
    "function",
    "having",
    "instance",
    "listed",
    "mapping",
    "name_here",
    "number",
    "optional",
    "pair",
    "path",
    "pattern",
    "port",
    "resolve",
    "seconds",
    "sequence",
    "size_bytes",
    "text",
    "with_options",
]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

Rule = Callable[[str, object], Any]
"""`rule(name, value)` returns the value, or raises TypeError or ConfigError that names the argument."""

YEAR_S = 365 * 24 * 3600
SHOWN = 60
"""Characters of a refused value that an error shows."""


def shown(value: object) -> str:
    """Return the value as an error shows it: one line, cut at 60 characters."""
    try:
        text = repr(value)
    except Exception:  # a broken __repr__ must not hide the error
        text = f"<{type(value).__name__}>"
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def listed(items: Collection[object], limit: int = 5) -> str:
    """Return the first items as an error or a log line shows them, and how many follow."""
    text = ", ".join(map(str, islice(items, limit)))
    return f"{text} and {len(items) - limit} more" if len(items) > limit else text


def wrong_type(name: str, value: object, allowed: str) -> NoReturn:
    raise TypeError(f"{name} must be {allowed}, not {type(value).__name__} {shown(value)}")


def wrong_value(name: str, value: object, allowed: str) -> NoReturn:
    raise ConfigError(f"{name}={shown(value)}: must be {allowed}")


def check_all(rules: Mapping[str, Rule], **values: object) -> None:
    """Check arguments, each by the rule of its name."""
    for name, value in values.items():
        rules[name](name, value)


# ---- numbers --------------------------------------------------------------------------------------------------


def number(at_least: float, at_most: float, unit: str = "a number", *, above: bool = False) -> Rule:
    """Allow an int or float within bounds; never NaN, infinity or bool.

    Args:
        at_least: Smallest value allowed, unless `above`.
        at_most: Largest value allowed.
        unit: What the number is, for the error.
        above: The value must be larger than `at_least`.
    """
    allowed = f"{unit} {'above' if above else 'from'} {at_least:.15g} {'and up ' if above else ''}to {at_most:.15g}"

    def check(name: str, value: object) -> float:
        if isinstance(value, bool) or not hasattr(value, "__float__") or isinstance(value, str | bytes):
            wrong_type(name, value, allowed)
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            wrong_value(name, value, allowed)
        if not (at_least <= number <= at_most) or (above and number == at_least) or math.isnan(number):
            wrong_value(name, value, allowed)
        return number

    return check


def seconds(at_least: float = 0, at_most: float = YEAR_S, *, above: bool = False) -> Rule:
    """Allow a duration in seconds, up to a year."""
    return number(at_least, at_most, "a number of seconds", above=above)


def count(at_least: int = 1, at_most: int = (1 << 31) - 1, unit: str = "a whole number") -> Rule:
    """Allow a whole number within bounds. A float is refused even if it is whole."""
    allowed = f"{unit} from {at_least} to {at_most}"

    def check(name: str, value: object) -> int:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            wrong_type(name, value, allowed)
        number = operator.index(value)
        if not at_least <= number <= at_most:
            wrong_value(name, value, allowed)
        return number

    return check


def port() -> Rule:
    """Allow the number of a port; 0 stands for any that is free."""
    return count(0, 65535, "a port")


def size_bytes(at_least: int = 1, at_most: int = 1 << 40) -> Rule:
    """Allow a number of bytes."""
    return count(at_least, at_most, "a number of bytes")


def bytes_of_text(text: str) -> int | None:
    """Return the bytes of `134217728`, `128m` or `2 GiB`, in powers of 1024; None: it is not a size of at least 1."""
    match = re.fullmatch(r"([0-9]{1,15})\s*([bkmgt]?)(?:(?<=[kmgt])i?b)?", text.strip().lower(), re.ASCII)
    if match is None or not int(match[1]):
        return None
    return int(match[1]) << 10 * "bkmgt".index(match[2] or "b")


# ---- everything else ------------------------------------------------------------------------------------------


def flag() -> Rule:
    """Allow True or False."""
    return instance(bool, "True or False")


def instance(kinds: type | tuple[type, ...], allowed: str) -> Rule:
    """Allow an instance of these classes."""

    def check(name: str, value: object) -> object:
        if not isinstance(value, kinds):
            wrong_type(name, value, allowed)
        return value

    return check


def function(allowed: str = "a callable") -> Rule:
    """Allow anything that can be called."""

    def check(name: str, value: object) -> object:
        if not callable(value):
            wrong_type(name, value, allowed)
        return value

    return check


def having(method: str, allowed: str) -> Rule:
    """Allow anything with this method."""

    def check(name: str, value: object) -> object:
        if not callable(getattr(value, method, None)):
            wrong_type(name, value, allowed)
        return value

    return check


def path(*, exists: bool = True) -> Rule:
    """Allow the path of a file or directory, which must be there if it `exists`; returns a Path."""

    def check(name: str, value: object) -> Path:
        from pathlib import Path

        if not isinstance(value, str | os.PathLike):
            wrong_type(name, value, "a path")
        if value == "":
            wrong_value(name, value, "a path")
        path = Path(value)
        try:
            if exists:
                path.stat()
        except FileNotFoundError:
            raise ConfigError(f"{name}={str(value)!r}: no such file or directory") from None
        except (OSError, ValueError) as error:  # such as too long a name, or one that no file can have
            raise ConfigError(f"{name}={shown(value)}: {error}") from None
        return path

    return check


def optional(rule: Rule) -> Rule:
    """Allow None as well."""

    def check(name: str, value: object) -> Any:
        return None if value is None else rule(name, value)

    return check


def choice(*allowed: object) -> Rule:
    """Allow one of these values, and nothing that merely equals one (True is not 1)."""
    listed = ", ".join(map(repr, allowed))

    def check(name: str, value: object) -> object:
        for each in allowed:
            if type(each) is type(value) and each == value:
                return value
        if type(value) not in {type(each) for each in allowed}:
            wrong_type(name, value, f"one of {listed}")
        wrong_value(name, value, f"one of {listed}")

    return check


def text(what: str = "a text", *, at_least: int = 1, at_most: int = 1 << 16) -> Rule:
    """Allow a text that can be written as UTF-8, within a number of bytes."""

    def check(name: str, value: object) -> str:
        if not isinstance(value, str):
            wrong_type(name, value, what)
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            wrong_value(name, value, f"{what} that UTF-8 can encode (no lone surrogates)")
        if not at_least <= size <= at_most:
            wrong_value(name, value, f"{what} of {at_least} to {at_most} bytes in UTF-8")
        return value

    return check


def pattern() -> Rule:
    """Allow a regular expression."""
    of_text = text("a regular expression")

    def check(name: str, value: object) -> str:
        expression: str = of_text(name, value)
        try:
            re.compile(expression)
        except (re.error, RecursionError, OverflowError) as error:
            raise ConfigError(f"{name}={shown(expression)}: not a regular expression: {error}") from None
        return expression

    return check


def binary() -> Rule:
    """Allow bytes, and nothing that could change meanwhile."""
    return instance(bytes, "bytes")


def pair(first: Rule, second: Rule) -> Rule:
    """Allow a pair whose parts each follow a rule."""

    def check(name: str, value: object) -> tuple[Any, Any]:
        if not isinstance(value, tuple | list) or len(value) != 2:
            wrong_type(name, value, "a pair")
        return first(f"{name}[0]", value[0]), second(f"{name}[1]", value[1])

    return check


def sequence(item: Rule, allowed: str) -> Rule:
    """Allow a sequence whose items each follow a rule; it is returned unchanged."""

    def check(name: str, value: object) -> object:
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            wrong_type(name, value, allowed)
        for index, each in enumerate(value):
            item(f"{name}[{index}]", each)
        return value

    return check


def mapping(key: Rule, value: Rule, allowed: str) -> Rule:
    """Allow a mapping whose keys and values each follow a rule; returns a dict of its own."""

    def check(name: str, mapping: object) -> dict[Any, Any]:
        if not isinstance(mapping, Mapping):
            wrong_type(name, mapping, allowed)
        return {key(f"{name} key", k): value(f"{name}[{shown(k)}]", v) for k, v in mapping.items()}

    return check


# ---- options, declared once -----------------------------------------------------------------------------------

REQUIRED: Any = object()
"""The default of an option that has none."""


class Option(NamedTuple):
    """One option: its default, the rule for its values, and what it means (with its unit)."""

    default: Any
    rule: Rule
    doc: str


@cache
def declared(kind: type) -> Mapping[str, Option]:
    """Return the options that a TypedDict declares, by name, in order."""
    options: dict[str, Option] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        options[name] = next(each for each in get_args(hint)[1:] if isinstance(each, Option))
    return options


def resolve(kind: type, values: Mapping[str, object], where: str = "") -> Any:
    """Return all options of a TypedDict: its values, checked, and defaults for the others.

    Raises:
        TypeError: An option of the wrong type, an unknown one, or a required one that is missing.
        ConfigError: A value that cannot work.
    """
    options = declared(kind)
    refuse_unknown(values, options, where)
    resolved: dict[str, Any] = {}
    for name, option in options.items():
        if name in values:
            resolved[name] = option.rule(name, values[name])
        elif option.default is REQUIRED:
            raise TypeError(f"{where}option {name} is missing: {option.doc}")
        else:
            resolved[name] = option.default
    return resolved


def refuse_unknown(values: Collection[str], known: Collection[str], where: str = "") -> None:
    """Raise TypeError for the first option that does not exist."""
    for name in values:
        if name not in known:
            raise TypeError(f"{where}unknown option {name!r}{name_here(name)}; choose from {', '.join(known)}")


def name_here(name: str) -> str:
    """Return ` (here: ...)` for an option that another client has, by the table that its users read; "" for others."""
    from importlib.resources import files  # for this error alone: it takes longer to import than this module

    for row in files("odradek").joinpath("other_clients.md").read_text("utf-8").splitlines():
        here, *names = row.removeprefix("| ").split(" | ")
        if f"`{name.replace('.', '_')}`" in " ".join(names[:3]).replace(".", "_"):
            return f" (here: {here.replace('`', '')})"
    return ""


def with_options(kind: type) -> Callable[[F], F]:
    """Give a function that takes `**options: Unpack[kind]` the signature and documentation of each option."""

    def decorate(function: F) -> F:
        hints = get_type_hints(kind)
        options = declared(kind)
        signature = inspect.signature(function)
        kept = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        added = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if option.default is REQUIRED else option.default,
                annotation=_plain(hints[name]),
            )
            for name, option in options.items()
        ]
        function.__signature__ = signature.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
        function.__doc__ = _documented(inspect.getdoc(function) or "", options)
        return function

    return decorate


def _plain(hint: Any) -> Any:
    return hint if get_origin(hint) is None or not hasattr(hint, "__metadata__") else get_args(hint)[0]


def _documented(doc: str, options: Mapping[str, Option]) -> str:
    """Add a line for each option to the Args section, which is made if there is none."""
    lines = "\n".join(f"    {name}: {option.doc}" for name, option in options.items())
    head, section, rest = doc.partition("\nArgs:\n")
    if section:
        entries, gap, rest = rest.partition("\n\n")
        return f"{head}{section}{entries}\n{lines}{gap}{rest}"
    head, raises, rest = doc.partition("\nRaises:\n")
    return f"{head.rstrip()}\n\nArgs:\n{lines}\n" + (f"\nRaises:\n{rest}" if raises else "")
