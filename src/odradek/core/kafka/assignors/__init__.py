"""The assignors of classic consumer groups: which member gets which partitions.

Only the leader of a group computes an assignment, so members in other languages take part in it: the names, the
order of members and the claims in the user data are those of Kafka's Java client (specification 5.1).
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
