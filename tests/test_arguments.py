"""The rules for arguments: what they take, what they refuse, and how the refusal reads."""

from __future__ import annotations

import inspect
from fractions import Fraction
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek import arguments
from odradek.arguments import REQUIRED, Option, Rule, resolve, with_options
from odradek.errors import ConfigError

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("rule", "value", "kept"),
    [
        (arguments.seconds(), 0, 0.0),
        (arguments.seconds(), Fraction(1, 2), 0.5),
        (arguments.count(), 3, 3),
        (arguments.count(0), 0, 0),
        (arguments.size_bytes(), 1 << 30, 1 << 30),
        (arguments.flag(), False, False),
        (arguments.choice("a", 1), 1, 1),
        (arguments.text(), "group", "group"),
        (arguments.pattern(), "a.*", "a.*"),
        (arguments.optional(arguments.count()), None, None),
        (arguments.function(), print, print),
        (arguments.mapping(arguments.text(), arguments.count(), "names"), {"a": 1}, {"a": 1}),
    ],
)
def test_allowed_values_are_returned(rule: Rule, value: object, kept: object) -> None:
    assert rule("x", value) == kept


@pytest.mark.parametrize(
    ("rule", "value", "error", "message"),
    [
        (arguments.seconds(), NAN, ConfigError, "x=nan: must be a number of seconds from 0 to 31536000"),
        (arguments.seconds(), INF, ConfigError, "x=inf: must be"),
        (arguments.seconds(), -1, ConfigError, "x=-1: must be"),
        (arguments.seconds(above=True), 0, ConfigError, "x=0: must be a number of seconds above 0"),
        (arguments.seconds(), "5", TypeError, "x must be a number of seconds from 0 to 31536000, not str '5'"),
        (arguments.seconds(), True, TypeError, "not bool True"),
        (arguments.seconds(), None, TypeError, "not NoneType None"),
        (arguments.seconds(), 10**400, ConfigError, "must be a number of seconds"),
        (arguments.seconds(), 1j, TypeError, "not complex 1j"),
        (arguments.count(), 1e6, TypeError, "not float 1000000.0"),
        (arguments.count(), 0, ConfigError, "x=0: must be a whole number from 1 to 2147483647"),
        (arguments.size_bytes(), 1 << 50, ConfigError, "must be a number of bytes from 1 to"),
        (arguments.flag(), 1, TypeError, "x must be True or False, not int 1"),
        (arguments.choice("fail", "skip"), "fial", ConfigError, "x='fial': must be one of 'fail', 'skip'"),
        (arguments.choice("all", 1, 0), True, TypeError, "x must be one of 'all', 1, 0, not bool True"),
        (arguments.choice("fail"), None, TypeError, "x must be one of 'fail', not NoneType None"),
        (arguments.text("a group"), "", ConfigError, "x='': must be a group of 1 to 65536 bytes in UTF-8"),
        (arguments.text("a group"), b"g", TypeError, "x must be a group, not bytes b'g'"),
        (arguments.text(), "\ud800", ConfigError, "lone surrogates"),
        (arguments.pattern(), "(", ConfigError, "not a regular expression"),
        (arguments.function(), 5, TypeError, "x must be a callable, not int 5"),
        (arguments.mapping(arguments.text(), arguments.count(), "names"), [], TypeError, "x must be names, not list"),
        (arguments.mapping(arguments.text(), arguments.count(), "names"), {"a": 0}, ConfigError, "x['a']=0: must"),
    ],
)
def test_refusals_name_the_argument_the_value_and_what_is_allowed(
    rule: Rule, value: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        rule("x", value)
    assert message in str(caught.value)


class Hostile:
    """A value that breaks whatever looks at it."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


NONSENSE = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), st.binary(max_size=9),
    st.lists(st.integers(), max_size=2), st.builds(Hostile), st.just(10**400), st.dictionaries(st.text(), st.none()),
)  # fmt: skip

RULES = [
    arguments.seconds(), arguments.count(), arguments.size_bytes(), arguments.flag(), arguments.text(),
    arguments.pattern(), arguments.choice("a", 1, True), arguments.function(),
    arguments.optional(arguments.number(-5, 5)), arguments.mapping(arguments.text(), arguments.flag(), "flags"),
]  # fmt: skip


@given(rule=st.sampled_from(RULES), value=NONSENSE)
def test_nonsense_is_kept_or_refused_with_one_of_two_errors(rule: Rule, value: object) -> None:
    try:
        rule("argument", value)
    except (ConfigError, TypeError) as error:
        assert "argument" in str(error)


class Settings(TypedDict, total=False):
    size: Annotated[int, Option(4, arguments.size_bytes(), "How large it is (bytes).")]
    group: Annotated[str, Option(REQUIRED, arguments.text(), "Name of the group.")]


def test_options_are_checked_and_defaults_filled_in() -> None:
    assert resolve(Settings, {"group": "g"}) == {"size": 4, "group": "g"}
    with pytest.raises(ConfigError, match="size=0"):
        resolve(Settings, {"group": "g", "size": 0})
    with pytest.raises(TypeError, match="option group is missing: Name of the group"):
        resolve(Settings, {})
    with pytest.raises(TypeError, match="unknown option 'sise'; choose from size, group"):
        resolve(Settings, {"group": "g", "sise": 1})


def test_a_function_shows_its_options_in_signature_and_documentation() -> None:
    @with_options(Settings)
    def make(topic: str, **options: Any) -> None:
        """Make one.

        Args:
            topic: Which.

        Raises:
            ConfigError: An option that cannot work.
        """

    parameters = inspect.signature(make).parameters
    assert list(parameters) == ["topic", "size", "group"]
    assert (parameters["size"].default, parameters["size"].annotation) == (4, int)
    assert parameters["group"].default is inspect.Parameter.empty
    assert "    topic: Which.\n    size: How large it is (bytes).\n" in (make.__doc__ or "")
    assert (make.__doc__ or "").endswith("Raises:\n    ConfigError: An option that cannot work.")
