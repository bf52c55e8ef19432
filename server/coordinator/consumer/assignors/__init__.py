"""Server-side assignors: which partitions each member of a group is to have (PURE).

An assignor is a function from a `GroupSpec` to the target of each member. `uniform` balances and
moves little; `range` gives each member neighbouring partitions, the same of every topic. Both give
what Apache Kafka's give for the same input, move for move
(tests/server/coordinator/consumer/test_assignors.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from server.coordinator.consumer.assignors import range_assignor, uniform
from server.coordinator.consumer.assignors.spec import GroupSpec, MemberSpec
from server.coordinator.consumer.member import Partitions

__all__ = ["ASSIGNORS", "Assignor", "GroupSpec", "MemberSpec"]

Assignor = Callable[[GroupSpec], dict[str, Partitions]]

ASSIGNORS: Mapping[str, Assignor] = MappingProxyType(
    {"uniform": uniform.assign, "range": range_assignor.assign}
)
"""By the name that `group.consumer.assignors` and members call them."""
