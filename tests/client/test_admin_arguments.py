"""What `Admin` takes for access, brokers and transactions, and what it refuses before anything is sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

import odradek as od
from odradek.client.admin import Admin
from odradek.client.admin_arguments import items, names, partitions
from odradek.core.admin import Append, Subtract
from odradek.core.admin_access import (
    Acl,
    AclFilter,
    AclOperation,
    AclPattern,
    AclPermission,
    AclResource,
    QuotaEntity,
    QuotaName,
)
from odradek.core.admin_cluster import Replica
from odradek.testing import MemoryCluster

pytestmark = pytest.mark.anyio

P0, P1 = od.TopicPartition("t", 0), od.TopicPartition("t", 1)
READ = Acl(AclResource.TOPIC, "t", "User:bob", AclOperation.READ)
Call = Callable[[Any], Awaitable[Any]]
"""A call of `Admin`, whose types are wrong on purpose."""


class NothingSent:
    """A driver, and its administration, of which no method may be called."""

    def __getattr__(self, name: str) -> Any:
        if name in ("access", "brokers", "transactions"):
            return self

        def refuse(*args: object, **kwargs: object) -> None:
            raise AssertionError(f"{name} was called")

        return (lambda: self) if name == "admin" else refuse


def test_one_is_taken_as_one_and_a_mapping_as_its_keys() -> None:
    assert names("x", "abc") == ["abc"] and names("x", {"a": 1, "b": 2}) == ["a", "b"]
    assert partitions("x", P0) == [P0] and partitions("x", [P1, P0, P1]) == [P1, P0]
    assert partitions("x", {P0: 3}) == [P0]


@pytest.mark.parametrize("wrong", ["t", b"t", 3, None, ["t"], ("t", 0)])
def test_a_topic_is_no_partition(wrong: object) -> None:
    with pytest.raises(TypeError, match="TopicPartition"):
        partitions("x", wrong)


def test_items_keep_their_order() -> None:
    assert items("x", [3, 1, 3], lambda name, value: value, int, "numbers") == [3, 1]


WRONG: dict[str, tuple[Call, str]] = {
    "an entry by its parts": (lambda a: a.create_acls(("topic", "t")), "an Acl"),
    "any resource": (lambda a: a.create_acls(Acl(AclResource.ANY, "t", "User:a", AclOperation.READ)), "resource: ANY"),
    "any operation": (lambda a: a.create_acls(Acl(AclResource.TOPIC, "t", "User:a", AclOperation.ANY)), "operation"),
    "any pattern": (
        lambda a: a.create_acls(
            Acl(AclResource.TOPIC, "t", "User:a", AclOperation.READ, AclPermission.ALLOW, "*", AclPattern.MATCH)
        ),
        "pattern: MATCH",
    ),
    "a name for a principal": (
        lambda a: a.create_acls(Acl(AclResource.TOPIC, "t", "bob", AclOperation.READ)),
        "User:al",
    ),
    "no name": (lambda a: a.create_acls(Acl(AclResource.TOPIC, "", "User:a", AclOperation.READ)), "name"),
    "a text for a filter": (lambda a: a.describe_acls("orders"), "an AclFilter"),
    "texts for filters": (lambda a: a.delete_acls("orders"), "an AclFilter"),
    "few iterations": (lambda a: a.set_passwords({"bob": "x"}, iterations=1), "4096"),
    "another mechanism": (lambda a: a.set_passwords({"bob": "x"}, mechanism="PLAIN"), "SCRAM-SHA-256"),
    "no password": (lambda a: a.set_passwords({"bob": ""}), "passwords"),
    "a list of users": (lambda a: a.set_passwords(["bob"]), "a mapping of passwords"),
    "a quota of nobody": (lambda a: a.alter_quotas({QuotaEntity(): {"a": 1}}), "must have a name"),
    "a quota of anybody": (lambda a: a.alter_quotas({QuotaEntity(user=QuotaName.ANY): {"a": 1}}), "ANY"),
    "a quota by name": (lambda a: a.alter_quotas({"bob": {"a": 1}}), "a QuotaEntity"),
    "a quota below zero": (lambda a: a.alter_quotas({QuotaEntity("bob"): {"a": -1}}), "a quota"),
    "a number for a user": (lambda a: a.describe_quotas(QuotaEntity(cast(Any, 7))), "which.user"),
    "an owner without a type": (lambda a: a.create_token(owner="bob"), "User:alice"),
    "a token as a text": (lambda a: a.renew_token("hmac"), "bytes"),
    "no lifetime": (lambda a: a.create_token(lifetime=0), "lifetime"),
    "a topic to be moved": (lambda a: a.reassign_partitions({"t": [1]}), "TopicPartition"),
    "one broker": (lambda a: a.reassign_partitions({P0: 1}), "a sequence of broker ids"),
    "leaders of a topic": (lambda a: a.elect_leaders("t"), "a TopicPartition, or several"),
    "a broker by name": (lambda a: a.describe_log_dirs("b1"), "a broker id"),
    "a partition without a broker": (lambda a: a.move_replicas({P0: "/d"}), "a Replica"),
    "a level below zero": (lambda a: a.update_features({"f": -1}), "a level"),
    "a listener without a port": (lambda a: a.add_voter(1, "id", {"C": "h:1"}), "a pair"),
    "producers of a topic": (lambda a: a.describe_producers("t"), "a TopicPartition, or several"),
    "a producer by number": (lambda a: a.abort_transaction(P0, 7), "a ProducerDescription"),
    "an age below zero": (lambda a: a.list_transactions(longer_than=-1), "longer_than"),
    "an item that is empty": (lambda a: a.alter_topic_configs({"t": {"x": Append("")}}), "an item of a list"),
    "a number as a value": (lambda a: a.alter_topic_configs({"t": {"x": 3}}), "a value"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_a_mistake_is_named_before_anything_is_sent(name: str) -> None:
    call, says = WRONG[name]
    with pytest.raises((TypeError, od.ConfigError), match=says):
        await call(Admin(cast(Any, NothingSent())))


async def test_a_password_is_not_shown() -> None:
    with pytest.raises(od.ConfigError) as error:
        await Admin(cast(Any, NothingSent())).set_passwords({"bob": "hidden\udc80"})
    assert "hidden" not in str(error.value) and error.value.__cause__ is None


@pytest.mark.parametrize(
    "call",
    [
        lambda a: a.describe_acls(),
        lambda a: a.create_acls([READ]),
        lambda a: a.delete_acls([AclFilter(), READ]),
        lambda a: a.describe_users("bob"),
        lambda a: a.describe_quotas(QuotaEntity(user="bob", ip=QuotaName.DEFAULT)),
        lambda a: a.alter_quotas({QuotaEntity(client_id=QuotaName.DEFAULT): {"a": None}}),
        lambda a: a.create_token(owner="User:bob", renewers=["User:eve"], lifetime=5),
        lambda a: a.describe_tokens(["User:bob"]),
        lambda a: a.reassign_partitions({P0: [1], P1: None}),
        lambda a: a.list_reassignments([P0]),
        lambda a: a.elect_leaders(P0, unclean=True),
        lambda a: a.describe_log_dirs([1, 2]),
        lambda a: a.move_replicas({Replica(1, P0): "/d"}),
        lambda a: a.update_features({"f": 2}, downgrade=True, unsafe=True),
        lambda a: a.alter_broker_configs({1: {"x": Subtract("y"), "z": None}}),
    ],
)
async def test_what_an_in_memory_cluster_does_not_have_is_refused_in_words(call: Call) -> None:
    async with MemoryCluster({"t": 2}).connect() as k:
        with pytest.raises(od.Unsupported, match="a real broker"):
            await call(k.admin)
