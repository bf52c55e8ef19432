"""From what should hold for a partition to the record that makes it so, as one pure decision."""

from __future__ import annotations

from collections.abc import Sequence

from replication.controller.partition_change import Election, PartitionChange
from replication.metadata.image import (
    DIRECTORY_UNASSIGNED,
    NO_LEADER_CHANGE,
    RECOVERED,
    RECOVERING,
    PartitionRegistration,
)
from replication.raft.own_events import NO_LEADER
from wire.messages.metadata_records import PartitionChangeRecord

TOPIC = bytes(16)


def registered(
    isr: tuple[int, ...] = (1, 2, 3), leader: int = 1, **fields: tuple[int, ...]
) -> PartitionRegistration:
    replicas = fields.pop("replicas", (1, 2, 3))
    return PartitionRegistration(
        replicas,
        (TOPIC,) * len(replicas),
        isr,
        leader,
        removing_replicas=fields.pop("removing", ()),
        adding_replicas=fields.pop("adding", ()),
        **fields,  # type: ignore[arg-type]
    )


def change(
    partition: PartitionRegistration,
    alive: Sequence[int] = (1, 2, 3, 4),
    election: Election = Election.ONLINE,
    knows_directories: bool = True,
) -> PartitionChange:
    return PartitionChange(
        partition,
        alive.__contains__,
        min_isr=2,
        elr_enabled=True,
        knows_directories=knows_directories,
        election=election,
    )


def built(wanted: PartitionChange) -> PartitionChangeRecord:
    record = wanted.build(TOPIC, 0)
    assert record is not None
    return record


def test_directories_of_new_replicas_are_said_where_a_record_can_say_them() -> None:
    for knows_directories, said in ((True, [TOPIC] * 3 + [DIRECTORY_UNASSIGNED]), (False, None)):
        wanted = change(registered(), knows_directories=knows_directories)
        wanted.replicas, wanted.adding = (1, 2, 3, 4), (4,)
        record = built(wanted)
        assert (record.replicas, record.directories) == ([1, 2, 3, 4], said)


def test_the_preferred_leader_takes_over_and_the_isr_stays_as_it_is() -> None:
    record = built(change(registered(leader=2), election=Election.PREFERRED))
    assert record.leader == 1
    assert record.isr is None, "only an unclean election cuts it to the leader"
    assert record.leader_recovery_state == -1


def test_a_last_known_leader_leads_again_only_when_it_is_alive() -> None:
    """With nobody in ISR and ELR it is the last replica standing: KIP-966."""
    partition = registered((), NO_LEADER, last_known_elr=(2,))
    assert change(partition, alive=(1, 3)).build(TOPIC, 0) is None
    record = built(change(partition, alive=(1, 2, 3)))
    assert (record.leader, record.isr, record.last_known_elr) == (2, [2], [])
    assert record.leader_recovery_state == RECOVERING != RECOVERED


def test_a_last_known_leader_that_is_no_replica_any_more_does_not_lead() -> None:
    partition = registered((), NO_LEADER, last_known_elr=(4,))
    assert change(partition).build(TOPIC, 0) is None


def test_who_led_last_is_remembered_when_the_last_one_leaves() -> None:
    wanted = change(registered((2,), 2), alive=())
    wanted.isr = ()
    record = built(wanted)
    assert (record.leader, record.isr, record.last_known_elr) == (NO_LEADER, [], [2])


def test_when_two_leave_that_nobody_led_none_of_them_is_the_last_one() -> None:
    """Either may miss what the other has; they wait in the ELR."""
    wanted = change(registered((2, 3), NO_LEADER), alive=())
    wanted.isr = ()
    record = built(wanted)
    assert record.isr == []
    assert record.eligible_leader_replicas == [2, 3]
    assert record.last_known_elr is None


def test_a_move_to_wholly_other_replicas_ends_once_they_are_in_sync() -> None:
    partition = registered((1, 2, 3), replicas=(1, 2, 3), removing=(1,), adding=(2, 3))
    record = built(change(partition))
    assert (record.replicas, record.isr) == ([2, 3], [2, 3])
    assert (record.removing_replicas, record.adding_replicas) == ([], [])
    assert record.leader == 2


def test_a_move_of_as_many_does_not_wait_for_a_replica_that_stays_and_lags() -> None:
    """Kafka: only when the replication factor goes down must all that stay be in sync."""
    partition = registered((1, 4), replicas=(1, 2, 3, 4), removing=(3,), adding=(4,))
    record = built(change(partition))
    assert record.replicas == [1, 2, 4]
    assert record.isr is None
    assert record.leader == 1, "the same one, in a new epoch: who left is fenced off"


def test_a_move_to_fewer_waits_for_each_that_stays() -> None:
    partition = registered((1, 4), replicas=(1, 2, 3, 4), removing=(1, 3), adding=(4,))
    wanted = change(partition)
    assert wanted.build(TOPIC, 0) is None
    later = change(registered((1, 2, 4), replicas=(1, 2, 3, 4), removing=(1, 3), adding=(4,)))
    record = built(later)
    assert (record.replicas, record.isr, record.leader) == ([2, 4], [2, 4], 2)


def test_what_is_so_already_is_no_record() -> None:
    wanted = change(registered())
    wanted.isr = (1, 2, 3)
    assert wanted.build(TOPIC, 0) is None
    wanted = change(registered())
    wanted.isr = (1, 2)
    assert built(wanted).leader == NO_LEADER_CHANGE


def test_who_was_elected_uncleanly_is_alone_in_sync_and_nobody_else_is_eligible() -> None:
    """The others have what it lacks: they must cut it off before they may lead again."""
    partition = registered((), NO_LEADER, elr=(2, 3))
    record = built(change(partition, alive=(1,), election=Election.UNCLEAN))
    assert (record.leader, record.isr) == (1, [1])
    assert record.eligible_leader_replicas == []
    assert record.leader_recovery_state == RECOVERING
