"""`simple`: every partition for as many members, every member as many partitions (PURE; SG-4).

With M members and P partitions each partition is shared by ceil(M / P) members. Who has too much
gives up some, who has too little takes what is shared least; the rest stays where it is. Where
members subscribe to different topics, this is done topic by topic.

Kafka: SimpleAssignor. Where Kafka follows the order of its hash maps (which of its partitions a
member gives up), the order here is that of topic ids and partitions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from server.coordinator.consumer.member import Partitions

NAME = "simple"

_Partition = tuple[bytes, int]
_Held = dict[_Partition, None]
"""In order; there may be tens of thousands, each of which is looked for."""


class ShareMemberSpec(NamedTuple):
    """What the assignor knows of a member."""

    topics: frozenset[bytes]
    """That it subscribes to and that exist."""
    target: Partitions
    """What it had so far."""


def assign(
    members: Mapping[str, ShareMemberSpec], assignable: Partitions, *, is_homogeneous: bool
) -> dict[str, Partitions]:
    """The target of each member, of partitions whose state is there (`assignable`)."""
    subscribed = frozenset[bytes]().union(*(member.topics for member in members.values()))
    if not subscribed:
        return {}
    targets: dict[str, dict[bytes, set[int]]] = {
        id_: {
            topic_id: set(held)
            for topic_id, held in member.target.items()
            if topic_id in subscribed or not is_homogeneous
        }
        for id_, member in members.items()
    }
    topics = sorted(subscribed)
    for shared in [topics] if is_homogeneous else [[topic_id] for topic_id in topics]:
        takers = [id_ for id_, member in members.items() if member.topics.issuperset(shared)]
        _share_out(takers, shared, assignable, targets)
    return {
        id_: {topic_id: frozenset(held) for topic_id, held in target.items() if held}
        for id_, target in targets.items()
    }


def _share_out(
    takers: Sequence[str],
    topics: Collection[bytes],
    assignable: Partitions,
    targets: dict[str, dict[bytes, set[int]]],
) -> None:
    """Share these topics among the takers; nobody else keeps any of them."""
    wanted = [(id_, index) for id_ in topics for index in sorted(assignable.get(id_, ()))]
    sharing = -(-len(takers) // len(wanted)) if wanted else 0
    quota = _quotas(takers, sharing * len(wanted))
    held: dict[str, _Held] = {
        member_id: dict.fromkeys(
            (id_, index) for id_ in topics for index in sorted(target.get(id_, ()))
        )
        for member_id, target in targets.items()
    }
    sharers: dict[_Partition, list[str]] = {partition: [] for partition in wanted}
    for member_id, mine in held.items():
        for partition in list(islice(mine, max(0, len(mine) - quota.get(member_id, 0)))):
            del mine[partition]
        for partition in mine:
            sharers.setdefault(partition, []).append(member_id)
    for partition, sharing_it in sharers.items():
        surplus = max(0, len(sharing_it) - sharing)
        for member_id in sharing_it[:surplus]:
            del held[member_id][partition]
        del sharing_it[:surplus]
    _fill([id_ for id_ in takers if len(held[id_]) < quota[id_]], quota, sharing, sharers, held)
    for member_id, target in targets.items():
        for topic_id in topics:
            target.pop(topic_id, None)
        for topic_id, index in held[member_id]:
            target.setdefault(topic_id, set()).add(index)


def _quotas(takers: Sequence[str], count: int) -> dict[str, int]:
    """How many partitions each is to have: `count` together."""
    each = count / len(takers) if takers else 0.0
    return {id_: math.ceil(each * (i + 1)) - math.ceil(each * i) for i, id_ in enumerate(takers)}


def _fill(
    lacking: list[str],
    quota: Mapping[str, int],
    sharing: int,
    sharers: Mapping[_Partition, list[str]],
    held: Mapping[str, _Held],
) -> None:
    """Give each partition that is shared too little to the next who lacks some, in turn. Who got
    it when all had their turn has it once, and it is shared less. If all of them had it before, it
    stays so, and so do those that come after it."""
    place, has_given = 0, False
    for partition, sharing_it in sharers.items():
        missing = sharing - len(sharing_it)
        while missing > 0 and lacking:
            if place >= len(lacking):
                if not has_given:
                    return
                place, has_given = 0, False
            member_id = lacking[place]
            if member_id in sharing_it:
                place += 1
                continue
            mine = held[member_id]
            mine[partition] = None
            missing, has_given = missing - 1, True
            if len(mine) >= quota[member_id]:
                del lacking[place]
            else:
                place += 1


def union(targets: Iterable[Partitions]) -> dict[bytes, set[int]]:
    """What is anybody's."""
    found: dict[bytes, set[int]] = {}
    for target in targets:
        for topic_id, partitions in target.items():
            found.setdefault(topic_id, set()).update(partitions)
    return found
