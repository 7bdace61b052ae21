"""The declarations, one module per family of APIs. Names of structs are Kafka's, made unique where it has one twice.

`messages.groups` imports a module when it is first used: a program that reads needs no messages of groups.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from odradek.wire.kafka.messages import data, groups, metadata, security, share_groups, transactions

__all__ = ["data", "groups", "metadata", "security", "share_groups", "transactions"]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
