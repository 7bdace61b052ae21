"""What a driver has no requests for is refused in words."""

from __future__ import annotations

import inspect

import pytest

from odradek.core.admin import ClusterAdmin
from odradek.errors import Unsupported

METHODS = [name for name, each in vars(ClusterAdmin).items() if inspect.iscoroutinefunction(each)]
PARTS = [name for name, each in vars(ClusterAdmin).items() if isinstance(each, property)]


@pytest.mark.parametrize("name", [name for name in METHODS if name != "group_positions"])
def test_a_method_says_what_it_needs(name: str) -> None:
    method = getattr(ClusterAdmin("a newer cluster"), name)
    arguments = dict.fromkeys(inspect.signature(method).parameters)
    with pytest.raises(Unsupported, match="needs a newer cluster"):
        method(**arguments).send(None)


@pytest.mark.parametrize("name", PARTS)
def test_a_part_says_what_it_needs(name: str) -> None:
    with pytest.raises(Unsupported, match=r"administration of .* needs a newer cluster"):
        getattr(ClusterAdmin("a newer cluster"), name)


def test_only_named_positions_can_be_read_unless_a_driver_knows_more() -> None:
    with pytest.raises(StopIteration) as done:
        ClusterAdmin("a newer cluster").group_positions("g").send(None)
    assert done.value.value is None
