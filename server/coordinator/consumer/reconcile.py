"""The next step of one member towards the target assignment (PURE; CurrentAssignmentBuilder).

A partition is in the hands of one member at a time: it is told to give back what is no longer its
own, says in a heartbeat that it has, and only then is another one told to take it, in that one's
own heartbeat (CG-23). So a member goes from Stable over UnrevokedPartitions, while it still owns
what it must give back, to the target's epoch, and there waits as UnreleasedPartitions until others
have given back what is its own. Its epoch stays that of the old target until everything is given
back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from server.coordinator.consumer.member import ConsumerMember, Held, MemberState, Partitions
from wire.errors import ErrorCode, KafkaError

IsHeld = Callable[[bytes, int], bool]
"""Whether any member has a partition, or is still giving it back."""


def reconciled(
    member: ConsumerMember,
    target_epoch: int,
    target: Partitions,
    subscribed: Collection[bytes],
    is_held: IsHeld,
    owned: Partitions | None,
    *,
    has_subscription_changed: bool,
) -> ConsumerMember:
    """The member one step further; the same object if nothing is to be done.

    `subscribed`: ids of the topics that it subscribes to now. `owned`: what it says that it owns,
    None if it says nothing. Raises FENCED_MEMBER_EPOCH if its state is of a later version and it
    does not come with empty hands.
    """
    if member.state is MemberState.UNKNOWN:
        if owned is None or owned:
            raise KafkaError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The consumer group member is in a unknown state. "
                "The member must abandon all its partitions and rejoin.",
            )
        return _towards(member, target_epoch, target_epoch, target, subscribed, is_held, owned)
    stays = (
        member.epoch == target_epoch
        if member.state is MemberState.STABLE
        else member.state is MemberState.UNREVOKED_PARTITIONS and _owns(owned, member.revoking)
    )
    if not stays:
        return _towards(member, member.epoch, target_epoch, target, subscribed, is_held, owned)
    return _without_unsubscribed(member, subscribed, owned) if has_subscription_changed else member


def _owns(owned: Partitions | None, held: Held) -> bool:
    """Whether the member still has any of these: it does as long as it does not say what it has."""
    if owned is None:
        return True
    return any(
        not partitions.isdisjoint(held[topic_id])
        for topic_id, partitions in owned.items()
        if topic_id in held
    )


def _without_unsubscribed(
    member: ConsumerMember, subscribed: Collection[bytes], owned: Partitions | None
) -> ConsumerMember:
    """Take away what it no longer subscribes to, at once and without a new epoch."""
    gone = {id_: held for id_, held in member.assigned.items() if id_ not in subscribed}
    if not gone:
        return member
    assigned = {id_: held for id_, held in member.assigned.items() if id_ not in gone}
    revoking = {**member.revoking}
    for topic_id, held in gone.items():
        revoking[topic_id] = {**revoking.get(topic_id, {}), **held}
    if _owns(owned, revoking):
        return member.moved(member.epoch, MemberState.UNREVOKED_PARTITIONS, assigned, revoking)
    return member.moved(member.epoch, member.state, assigned, member.revoking)


def _towards(
    member: ConsumerMember,
    epoch: int,
    target_epoch: int,
    target: Partitions,
    subscribed: Collection[bytes],
    is_held: IsHeld,
    owned: Partitions | None,
) -> ConsumerMember:
    """Keep what the target has too, give back the rest, take what is free."""
    wanted = {id_: partitions for id_, partitions in target.items() if id_ in subscribed}
    kept, revoking = _split(member.assigned, wanted)
    if _owns(owned, revoking) and revoking:
        return member.moved(epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    assigned = {topic_id: dict(held) for topic_id, held in kept.items()}
    waits = False
    for topic_id, partitions in wanted.items():
        own = member.revoking.get(topic_id, {})
        for partition in partitions.difference(kept.get(topic_id, ())):
            if is_held(topic_id, partition) and partition not in own:
                waits = True
            else:
                assigned.setdefault(topic_id, {})[partition] = target_epoch
    state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
    return member.moved(target_epoch, state, assigned, {})


def _split(held: Held, wanted: Partitions) -> tuple[Held, Held]:
    """What of it is wanted, and what is not."""
    kept: dict[bytes, Mapping[int, int]] = {}
    rest: dict[bytes, Mapping[int, int]] = {}
    nothing: frozenset[int] = frozenset()
    for topic_id, epochs in held.items():
        partitions = wanted.get(topic_id, nothing)
        for into, is_wanted in ((kept, True), (rest, False)):
            part = {p: at for p, at in epochs.items() if (p in partitions) is is_wanted}
            if part:
                into[topic_id] = part
    return kept, rest
