"""`range`: neighbouring partitions, cut alike in every topic (PURE; RangeAssignor, CG-27).

Each topic is cut, over its subscribers in order, into as many pieces; the first ones are a
partition larger where it does not come out even. Topics with as many partitions and the same
subscribers are cut alike, so their partitions of one number meet in one member: joins rely on that.
The order is what keeps assignments: static members by their instance id first, then others by id.
"""

from __future__ import annotations

from server.coordinator.consumer.assignors.spec import GroupSpec
from server.coordinator.consumer.member import Partitions
from server.coordinator.java_order import string_order


def assign(spec: GroupSpec) -> dict[str, Partitions]:
    """The target of each member."""

    def key(member_id: str) -> tuple[bool, bytes]:
        instance_id = spec.members[member_id].instance_id
        is_dynamic = instance_id is None
        return is_dynamic, string_order(member_id if instance_id is None else instance_id)

    members = sorted(spec.members, key=key)
    target: dict[str, dict[bytes, frozenset[int]]] = {member_id: {} for member_id in members}
    for topic_id, count in spec.counts.items():
        subscribers = [id_ for id_ in members if topic_id in spec.members[id_].topics]
        if not subscribers:
            continue
        quota, larger = divmod(count, len(subscribers))
        start = 0
        for position, member_id in enumerate(subscribers):
            end = start + quota + (position < larger)
            if start < end:
                target[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(target)
