"""Assignors of classic consumer groups: they decide which member gets which partitions.

The leader of a group computes the assignment for all members, which may run other clients. So names, the order of
members and the claims in the user data are those of Kafka's Java client (kafka-specification.md 5.1).
"""

from odradek.core.kafka.assignors.cooperative import CooperativeStickyAssignor
from odradek.core.kafka.assignors.model import Assignment, Assignor, GroupMember, Topics, without_racks
from odradek.core.kafka.assignors.range import RangeAssignor
from odradek.core.kafka.assignors.round_robin import RoundRobinAssignor
from odradek.core.kafka.assignors.sticky import StickyAssignor

__all__ = [
    "Assignment",
    "Assignor",
    "CooperativeStickyAssignor",
    "GroupMember",
    "RangeAssignor",
    "RoundRobinAssignor",
    "StickyAssignor",
    "Topics",
    "without_racks",
]
