"""`uniform`: as many partitions for each member, and few that move (PURE; UniformAssignor).

Where all members subscribe to the same topics (CG-25), every member has a quota: what it has beyond
it is taken, what it lacks is given. Else (CG-26) each topic's partitions go to those of its
subscribers who have least of all topics, and then from who has most to who has least, topic after
topic, until nothing moves. Balance comes before keeping partitions in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from server.coordinator.consumer.assignors.spec import GroupSpec
from server.coordinator.consumer.member import Partitions
from server.coordinator.java_order import hash_set_order, uuid_order

_ROUNDS_MAX = 16
"""Where subscriptions overlap, each round over all topics about halves what is out of balance."""
_NOBODY = -1


def assign(spec: GroupSpec) -> dict[str, Partitions]:
    """The target of each member."""
    if not any(member.topics for member in spec.members.values()):
        return {}
    return _equal_shares(spec) if spec.is_homogeneous else _Balance(spec).target()


# ---- the same topics for all


class _Quota(NamedTuple):
    member_id: str
    lacks: int


def _equal_shares(spec: GroupSpec) -> dict[str, Partitions]:
    topics = next(iter(spec.members.values())).topics
    held = {
        (topic_id, partition)
        for member in spec.members.values()
        for topic_id, partitions in member.target.items()
        for partition in partitions
    }
    free = [
        (topic_id, partition)
        for topic_id in hash_set_order(topics)
        for partition in range(spec.counts[topic_id])
        if (topic_id, partition) not in held
    ]
    quota, extra_left = divmod(sum(spec.counts[id_] for id_ in topics), len(spec.members))
    target: dict[str, dict[bytes, set[int]]] = {}
    below: list[_Quota] = []
    for position, (member_id, member) in enumerate(spec.members.items()):
        has_extra = extra_left > 0
        kept, taken = _keep(member.target, topics, quota + has_extra)
        free += taken
        lacks = quota + has_extra - sum(map(len, kept.values()))
        # Somebody later may fill the extra place without a move, unless all that come need one.
        if lacks > 0 and has_extra and len(spec.members) - position > extra_left:
            lacks -= 1
            has_extra = False
        if lacks > 0:
            below.append(_Quota(member_id, lacks))
        extra_left -= has_extra
        target[member_id] = kept
    left = iter(free)
    for member_id, lacks in below:
        for _, (topic_id, partition) in zip(range(lacks), left, strict=False):
            target[member_id].setdefault(topic_id, set()).add(partition)
    return _frozen(target)


def _keep(
    target: Partitions, topics: frozenset[bytes], quota: int
) -> tuple[dict[bytes, set[int]], list[tuple[bytes, int]]]:
    """At most `quota` of what a member has, topic after topic; and what it must give up."""
    kept: dict[bytes, set[int]] = {}
    taken: list[tuple[bytes, int]] = []
    for topic_id, partitions in target.items():
        if topic_id not in topics:
            continue
        ordered = sorted(partitions)
        kept_here, over = ordered[:quota], ordered[quota:]
        quota -= len(kept_here)
        taken += [(topic_id, partition) for partition in over]
        if kept_here:
            kept[topic_id] = set(kept_here)
    return kept, taken


def _frozen(target: dict[str, dict[bytes, set[int]]]) -> dict[str, Partitions]:
    return {
        member_id: {topic_id: frozenset(partitions) for topic_id, partitions in of.items()}
        for member_id, of in target.items()
    }


# ---- topics of one's own


class _Balance:
    """Members are known by their position here, in the order of the group."""

    def __init__(self, spec: GroupSpec) -> None:
        self._spec = spec
        self._members = list(spec.members)
        self._loads = [0] * len(self._members)
        """How many partitions each member has, of all topics."""
        self._subscribers: dict[bytes, list[int]] = {}
        for index, member in enumerate(spec.members.values()):
            for topic_id in member.topics:
                self._subscribers.setdefault(topic_id, []).append(index)
        self._owners = {id_: [_NOBODY] * spec.counts[id_] for id_ in self._subscribers}

    def target(self) -> dict[str, Partitions]:
        self._keep_subscribed()
        for topic_id in self._in_order(self._subscribers):
            self._give_free(topic_id)
        self._balance([id_ for id_, members in self._subscribers.items() if len(members) > 1])
        target: dict[str, dict[bytes, set[int]]] = {member_id: {} for member_id in self._members}
        for topic_id, owners in self._owners.items():
            for partition, owner in enumerate(owners):
                target[self._members[owner]].setdefault(topic_id, set()).add(partition)
        return _frozen(target)

    def _in_order(self, topic_ids: Iterable[bytes]) -> list[bytes]:
        """Most partitions a subscriber first: the others can even out what they leave uneven."""

        def key(topic_id: bytes) -> tuple[float, int, tuple[int, int]]:
            subscribers = len(self._subscribers[topic_id])
            share = self._spec.counts[topic_id] / subscribers
            return -share, subscribers, uuid_order(topic_id)

        return sorted(topic_ids, key=key)

    def _keep_subscribed(self) -> None:
        for index, member in enumerate(self._spec.members.values()):
            for topic_id, partitions in member.target.items():
                if topic_id in member.topics:
                    self._loads[index] += len(partitions)
                    for partition in partitions:
                        self._owners[topic_id][partition] = index

    def _give_free(self, topic_id: bytes) -> None:
        scale = _Scale(self._subscribers[topic_id], self._loads)
        owners = self._owners[topic_id]
        for partition in [p for p, owner in enumerate(owners) if owner == _NOBODY]:
            self._give(owners, partition, scale.least())

    def _give(self, owners: list[int], partition: int, index: int) -> None:
        if owners[partition] != _NOBODY:
            self._loads[owners[partition]] -= 1
        owners[partition] = index
        self._loads[index] += 1

    def _balance(self, topic_ids: Iterable[bytes]) -> None:
        """Move from most to least loaded, topic by topic, until a whole round moved nothing."""
        ordered = self._in_order(topic_ids)
        last_moved = -1
        for _ in range(_ROUNDS_MAX):
            for position, topic_id in enumerate(ordered):
                if position == last_moved:
                    return
                if self._balance_topic(topic_id) or last_moved < 0:
                    last_moved = position

    def _balance_topic(self, topic_id: bytes) -> bool:
        """Whether a partition of the topic was moved."""
        loads, members = self._loads, self._subscribers[topic_id]
        if max(loads[index] for index in members) - min(loads[index] for index in members) <= 1:
            return False
        owners = self._owners[topic_id]
        theirs: dict[int, list[int]] = {}
        for partition, owner in enumerate(owners):
            theirs.setdefault(owner, []).append(partition)
        scale = _Scale(members, loads)
        has_moved = False
        while not scale.is_level():
            giver = scale.most()
            while giver is not None and not theirs.get(giver):
                scale.exclude()
                giver = scale.most()
            if giver is None:
                break
            partition = theirs[giver].pop()
            taker = scale.least()
            if scale.is_level():
                break
            self._give(owners, partition, taker)
            has_moved = True
        return has_moved


class _Scale:
    """Members from the least to the most loaded, while partitions go to the ones from the others.

    Those that have least are the range [0, _low_end), and get one each in turn; then they are as
    loaded as the next ones, which join the range. Those that have most are [_high_start, _high_end)
    and give in the same way, from the end. Loads are looked at where a range grows, as they are
    then.
    """

    def __init__(self, members: Sequence[int], loads: Sequence[int]) -> None:
        self._loads = loads
        self._members = sorted(members, key=lambda index: (loads[index], index))
        self._low_end = self._next_low = 0
        self._low = loads[self._members[0]] - 1
        """How many the members of the low range have before this turn; one less: no turn yet."""
        self._high_start = self._high_end = len(self._members)
        self._next_high = self._high_end - 1
        self._high = loads[self._members[-1]] + 1

    def is_level(self) -> bool:
        """Whether moving another one would only change who has more."""
        return self._high - self._low <= 1

    def least(self) -> int:
        """Who gets the next partition."""
        if self._next_low >= self._low_end:
            self._low += 1
            while (
                self._low_end < len(self._members)
                and self._loads[self._members[self._low_end]] == self._low
            ):
                self._low_end += 1
            self._next_low = 0
        self._next_low += 1
        return self._members[self._next_low - 1]

    def most(self) -> int | None:
        """Who gives the next one; None if nobody is left."""
        if self._next_high < self._high_start:
            if self._high_end <= self._high_start and self._high_start > 0:
                # All of the range had nothing to give: go on with whoever is next.
                self._high = self._loads[self._members[self._high_start - 1]]
            else:
                self._high -= 1
            while (
                self._high_start > 0
                and self._loads[self._members[self._high_start - 1]] == self._high
            ):
                self._high_start -= 1
            self._next_high = self._high_end - 1
        if self._next_high < 0:
            return None
        self._next_high -= 1
        return self._members[self._next_high + 1]

    def exclude(self) -> None:
        """Whom `most` named last has nothing of this topic: out of the range."""
        at, last = self._next_high + 1, self._high_end - 1
        self._members[at], self._members[last] = self._members[last], self._members[at]
        self._high_end = last
