"""A share partition's rules, one by one; the model's histories are beside."""

from __future__ import annotations

import pytest

from server.share.acquisition import Acquired, AcquireMode, Fetched, Span, Wish
from server.share.in_flight import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    NEXT_STATES,
    InFlight,
    RecordState,
    Run,
)
from server.share.share_partition import (
    ACCEPT,
    COMPLETE_MAX,
    REJECT,
    RELEASE,
    RENEW,
    Acknowledgement,
    Limits,
    SharePartition,
)
from server.share.state_batches import StateBatch
from testkit.calls import calls_of
from wire.errors import ErrorCode, KafkaError

LIMITS = Limits(lock_duration_ms=30, delivery_count_limit=5)
LIMITED = AcquireMode.RECORD_LIMIT


def fetch(
    partition: SharePartition,
    *batches: tuple[int, int],
    member: str = "m",
    max_records: int = 500,
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED,
    batch_size: int = 500,
    aborted: tuple[tuple[int, int], ...] = (),
    now_ms: int = 0,
    limits: Limits = LIMITS,
) -> list[tuple[int, int, int]]:
    """Read from where the partition wants to; the log has these record batches."""
    offset = partition.next_fetch_offset
    read = [Span(*batch) for batch in batches if batch[1] >= offset]
    fetched = Fetched(offset, read, [Span(*batch) for batch in aborted])
    wish = Wish(member, max_records, now_ms + limits.lock_duration_ms, mode, batch_size)
    return [tuple(got) for got in partition.acquire(fetched, wish, limits)]


def acknowledge(
    partition: SharePartition,
    first: int,
    last: int,
    *types: int,
    member: str = "m",
    is_persisted: bool = True,
    now_ms: int = 0,
) -> list[tuple[int, ...]]:
    """Acknowledge and settle; what was persisted."""
    acks = [Acknowledgement(first, last, types)]
    change = partition.acknowledge(member, acks, LIMITS, now_ms)
    if change is None:
        return []
    partition.settle(change, is_persisted=is_persisted)
    return [tuple(batch) for batch in change.batches]


def refusal(partition: SharePartition, *acks: Acknowledgement, member: str = "m") -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        partition.acknowledge(member, acks, LIMITS, 0)
    return raised.value.code


@pytest.mark.parametrize("state", RecordState)
@pytest.mark.parametrize("after", RecordState)
def test_states_move_as_the_table_says(state: RecordState, after: RecordState) -> None:
    run = Run(0, 0, state, 1)
    if after in NEXT_STATES[state]:
        InFlight(0).turn(run, after)
        assert run.state is after
    else:
        with pytest.raises(ValueError, match="does not become"):
            InFlight(0).turn(run, after)


# ---- acquiring


def test_max_records_is_soft_for_batches_and_hard_for_records() -> None:
    assert fetch(SharePartition(0), (0, 9), (10, 19), max_records=1) == [(0, 9, 1)]
    partition = SharePartition(0)
    assert fetch(partition, (0, 9), max_records=1, mode=LIMITED) == [(0, 0, 1)]
    assert partition.next_fetch_offset == 1
    assert fetch(partition, (0, 9), max_records=4, mode=LIMITED) == [(1, 4, 1)]
    assert fetch(partition, (0, 9), max_records=500, mode=LIMITED) == [(5, 9, 1)]


def test_new_records_are_cut_at_record_batches() -> None:
    log = [(at, at + 3) for at in range(0, 20, 4)]
    assert fetch(SharePartition(0), *log, batch_size=7) == [(0, 7, 1), (8, 15, 1), (16, 19, 1)]


def test_two_members_share_the_records() -> None:
    partition = SharePartition(0)
    assert fetch(partition, (0, 9), (10, 19), member="a", max_records=5) == [(0, 9, 1)]
    assert fetch(partition, (0, 9), (10, 19), member="b") == [(10, 19, 1)]
    assert fetch(partition, (10, 19), member="a") == []


def test_an_acknowledgement_makes_a_change_for_each_run_that_it_meets() -> None:
    partition = SharePartition(0)
    assert partition.run_count(Span(0, 99)) == 0
    fetch(partition, (0, 9), (10, 19), batch_size=10)
    acknowledge(partition, 3, 4, RELEASE)
    counts = [
        partition.run_count(Span(*span)) for span in ((0, 2), (0, 3), (0, 9), (4, 10), (10, 99))
    ]
    assert counts == [1, 2, 3, 3, 1]


def test_no_more_than_max_record_locks_are_under_way() -> None:
    limits = LIMITS._replace(max_record_locks=20)
    partition = SharePartition(0)
    log = [(at, at + 9) for at in range(0, 100, 10)]
    assert fetch(partition, *log, limits=limits) == [(0, 19, 1)]
    assert not partition.can_acquire(limits)
    assert acknowledge(partition, 5, 6, RELEASE) == [(5, 6, 0, 1)]
    assert partition.can_acquire(limits)
    assert fetch(partition, *log, limits=limits) == [(5, 6, 2)]
    acknowledge(partition, 0, 9, ACCEPT)
    assert fetch(partition, *log, limits=limits) == [(20, 29, 1)]


def test_no_more_is_wanted_than_may_be_acquired() -> None:
    limits = LIMITS._replace(max_record_locks=25)
    partition = SharePartition(0)
    assert partition.last_wanted(500, 100, limits) == 24
    assert partition.last_wanted(5, 100, limits) == 4
    fetch(partition, (0, 9), (10, 19), batch_size=10, limits=limits)
    assert partition.last_wanted(500, 100, limits) == 24
    acknowledge(partition, 3, 4, RELEASE)
    acknowledge(partition, 12, 12, RELEASE)
    assert partition.last_wanted(1, 100, limits) == 4
    assert partition.last_wanted(3, 100, limits) == 12
    assert partition.last_wanted(500, 20, limits) == 12, "the log has no more"
    assert partition.last_wanted(500, 21, limits) == 24
    assert fetch(partition, (0, 9), (10, 19), (20, 29), limits=limits) == [
        (3, 4, 2), (12, 12, 2), (20, 29, 1),
    ]  # fmt: skip
    acknowledge(partition, 5, 5, RELEASE)
    assert partition.last_wanted(500, 100, limits) == 5, "there are no locks for more"


def test_as_many_as_there_are_record_locks_are_under_way_though_none_was() -> None:
    limits = LIMITS._replace(max_record_locks=3)
    partition = SharePartition(0)
    log = [(at, at) for at in range(9)]
    assert fetch(partition, *log, limits=limits) == [(0, 2, 1)]
    acknowledge(partition, 0, 2, ACCEPT)
    assert fetch(partition, *log, limits=limits) == [(3, 5, 1)]


def test_a_poisonous_record_takes_fewer_and_fewer_with_it() -> None:
    partition = SharePartition(0)
    sizes = []
    for _ in range(7):
        acquired = fetch(partition, (0, 19))
        sizes.append(sum(last - first + 1 for first, last, _ in acquired))
        for first, last, _ in acquired:
            acknowledge(partition, first, last, RELEASE)
    assert sizes == [20, 20, 20, 10, 1, 1, 1]


def test_records_that_compaction_removed_are_not_waited_for() -> None:
    partition = SharePartition(0)
    fetch(partition, (0, 4), (5, 9))
    acknowledge(partition, 0, 9, RELEASE)
    assert partition.next_fetch_offset == 0
    assert fetch(partition, (5, 9), (10, 12)) == [(5, 9, 2), (10, 12, 1)]
    assert partition.start_offset == 5


def test_records_of_an_aborted_transaction_are_archived() -> None:
    partition = SharePartition(0)
    assert fetch(partition, (0, 4), (5, 9), (10, 10), aborted=((5, 9),)) == [
        (0, 4, 1), (10, 10, 1),
    ]  # fmt: skip
    assert partition.complete_count == 5
    acknowledge(partition, 0, 4, ACCEPT)
    assert partition.start_offset == 10


def test_a_window_full_of_aborted_records_moves_on() -> None:
    limits = LIMITS._replace(max_record_locks=10)
    partition = SharePartition(0)
    assert fetch(partition, (0, 9), aborted=((0, 9),), limits=limits) == []
    assert partition.can_acquire(limits)
    assert fetch(partition, (10, 10), limits=limits) == [(10, 10, 1)]


def test_many_aborted_records_cost_no_more_each_than_few() -> None:
    def cost(count: int) -> int:
        """Every second record is of an aborted transaction."""
        limits = LIMITS._replace(max_record_locks=2 * count)
        partition = SharePartition(0)
        read = [Span(at, at) for at in range(2 * count)]
        fetched = Fetched(0, read, read[1::2])
        acquired: list[Acquired] = []
        calls = calls_of(
            lambda: acquired.extend(partition.acquire(fetched, Wish("m", 2 * count, 30), limits))
        )
        assert acquired == [(first, last, 1) for first, last in read[::2]]
        return calls

    assert cost(400) < 5 * cost(100)


def test_a_part_of_a_batch_costs_no_more_the_more_records_the_batch_has() -> None:
    """A batch of a hundred bytes may say that it has two thousand million."""

    def cost(last: int) -> int:
        partition = SharePartition(0)

        def use() -> None:
            assert fetch(partition, (0, last), max_records=2, mode=LIMITED) == [(0, 1, 1)]
            assert fetch(partition, (0, last)) == [(2, last, 1)]
            assert acknowledge(partition, 5, 6, RELEASE) == [(5, 6, 0, 1)]
            assert acknowledge(partition, 9, 9, RENEW) == []
            assert fetch(partition, (0, last), aborted=((6, 9),)) == [(5, 5, 2)]

        return calls_of(use)

    assert cost(100_000) < 2 * cost(10)


def test_one_record_of_a_batch_costs_no_more_the_more_were_given_out_alone() -> None:
    def cost(count: int) -> int:
        partition = SharePartition(0)
        limits = LIMITS._replace(max_record_locks=2 * count)
        assert fetch(partition, (0, count - 1), max_records=count) == [(0, count - 1, 1)]
        kinds = [RENEW, RELEASE] * (count // 2)
        change = partition.acknowledge("m", [Acknowledgement(0, count - 1, kinds)], LIMITS, 0)
        assert change is not None
        partition.settle(change, is_persisted=True)

        def use() -> None:
            for at in (1, 3):
                assert partition.last_wanted(1, count, limits) == count - 1
                got = fetch(partition, (0, count - 1), max_records=1, mode=LIMITED)
                assert got == [(at, at, 2)]
                assert acknowledge(partition, at, at, ACCEPT) == [(at, at, 2, 2)]

        return calls_of(use)

    assert cost(10_000) < 2 * cost(100)


# ---- after a load


def test_what_was_not_acknowledged_before_the_failover_is_handed_out_again() -> None:
    partition = SharePartition(0, [StateBatch(5, 7, ACKNOWLEDGED, 1)])
    assert partition.next_fetch_offset == 0
    assert fetch(partition, (0, 12)) == [(0, 4, 1), (8, 12, 1)]
    assert partition.next_fetch_offset == 13


def test_counts_and_complete_records_are_loaded() -> None:
    partition = SharePartition(3, [StateBatch(3, 3, ARCHIVED, 5), StateBatch(4, 5, AVAILABLE, 2)])
    assert (partition.start_offset, partition.complete_count) == (4, 0)
    assert fetch(partition, (0, 5), (6, 6)) == [(4, 5, 3), (6, 6, 1)]


def test_a_hole_that_compaction_made_does_not_stop_a_loaded_partition() -> None:
    partition = SharePartition(0, [StateBatch(10, 14, ACKNOWLEDGED, 1)])
    assert fetch(partition, (10, 14)) == []
    assert (partition.next_fetch_offset, partition.start_offset) == (15, 15)


def test_a_later_hole_that_compaction_made_is_not_looked_at_again_and_again() -> None:
    """Else who asks next is answered at once, with nothing, for as long as what is before is under
    way."""
    loaded = [StateBatch(15, 19, ACKNOWLEDGED, 1), StateBatch(25, 29, ACKNOWLEDGED, 1)]
    partition = SharePartition(10, loaded)
    assert fetch(partition, (10, 14)) == [(10, 14, 1)]
    assert partition.next_fetch_offset == 20
    assert fetch(partition, (25, 29)) == []
    assert (partition.next_fetch_offset, partition.start_offset) == (30, 10)


@pytest.mark.parametrize(
    "persisted",
    [
        [StateBatch(2, 4, AVAILABLE, 1)],
        [StateBatch(5, 9, AVAILABLE, 1), StateBatch(9, 10, AVAILABLE, 1)],
        [StateBatch(6, 5, AVAILABLE, 1)],
        [StateBatch(5, 5, ACQUIRED, 1)],
    ],
)
def test_state_that_cannot_be_is_refused(persisted: list[StateBatch]) -> None:
    with pytest.raises(ValueError, match="state from"):
        SharePartition(5, persisted)


def test_a_hole_of_one_record_is_not_passed_over() -> None:
    loaded = [StateBatch(0, 4, ACKNOWLEDGED, 1), StateBatch(6, 9, ACKNOWLEDGED, 1)]
    partition = SharePartition(0, loaded)
    assert (partition.start_offset, partition.next_fetch_offset) == (5, 5)
    assert fetch(partition, (5, 5)) == [(5, 5, 1)]
    acknowledge(partition, 5, 5, ACCEPT)
    assert partition.start_offset == 10


def test_each_hole_of_what_was_loaded_is_read_in_turn() -> None:
    loaded = [StateBatch(5, 9, ACKNOWLEDGED, 1), StateBatch(15, 19, ARCHIVED, 5)]
    partition = SharePartition(0, loaded)
    assert (partition.next_fetch_offset, partition.last_wanted(3, 0, LIMITS)) == (0, 22)
    assert fetch(partition, (0, 4)) == [(0, 4, 1)]
    assert partition.next_fetch_offset == 10
    assert fetch(partition, (10, 14)) == [(10, 14, 1)]
    assert partition.next_fetch_offset == 20


# ---- acknowledging


def test_each_record_may_have_a_type_of_its_own() -> None:
    partition = SharePartition(0)
    fetch(partition, (0, 4))
    assert acknowledge(partition, 0, 4, ACCEPT, RELEASE, REJECT, 0, ACCEPT) == [
        (0, 0, 2, 1), (1, 1, 0, 1), (2, 2, 4, 1), (3, 3, 4, 1), (4, 4, 2, 1),
    ]  # fmt: skip
    assert (partition.start_offset, partition.complete_count) == (1, 3)
    assert fetch(partition, (0, 4)) == [(1, 1, 2)]


def test_types_are_counted_from_the_first_record_that_is_acknowledged() -> None:
    partition = SharePartition(0)
    fetch(partition, (0, 4), (5, 7))
    assert acknowledge(partition, 5, 7, ACCEPT, RELEASE, REJECT) == [
        (5, 5, 2, 1),
        (6, 6, 0, 1),
        (7, 7, 4, 1),
    ]


def test_what_was_never_handed_out_cannot_be_acknowledged() -> None:
    assert refusal(SharePartition(0), Acknowledgement(0, 0, [ACCEPT])) == 121


def test_when_records_are_deleted_the_start_passes_what_is_complete_behind_them() -> None:
    partition = SharePartition(0)
    fetch(partition, (0, 4), (5, 9))
    acknowledge(partition, 5, 9, ACCEPT)
    assert partition.start_offset == 0
    partition.log_start_moved(5)
    assert partition.start_offset == 10


def test_two_records_may_have_two_types() -> None:
    partition = SharePartition(0)
    fetch(partition, (0, 1))
    assert acknowledge(partition, 0, 1, RELEASE, ACCEPT) == [(0, 0, 0, 1), (1, 1, 2, 1)]


def test_a_change_tells_the_start_of_before_it() -> None:
    partition = SharePartition(0)
    fetch(partition, (0, 4))
    change = partition.acknowledge("m", [Acknowledgement(0, 1, [ACCEPT])], LIMITS, 0)
    assert change is not None
    assert (change.start_offset, change.complete_count) == (0, 2)
    partition.settle(change, is_persisted=True)
    assert (partition.start_offset, partition.complete_count) == (2, 0)


def test_no_more_records_are_told_complete_than_the_state_has_room_for() -> None:
    """Two batches may claim that they have more than 2^31 together."""
    partition = SharePartition(0)
    last = 2 + COMPLETE_MAX
    fetch(partition, (0, 1), (2, last))
    change = partition.acknowledge("m", [Acknowledgement(1, last, [ACCEPT])], LIMITS, 0)
    assert change is not None
    assert change.complete_count == COMPLETE_MAX
    partition.settle(change, is_persisted=True)
    acknowledge(partition, 0, 0, ACCEPT)
    assert (partition.start_offset, partition.complete_count) == (last + 1, 0)


def test_what_is_not_persisted_yet_is_nobodys() -> None:
    partition = SharePartition(0)
    fetch(partition, (0, 4))
    change = partition.acknowledge("m", [Acknowledgement(0, 4, [RELEASE])], LIMITS, 0)
    assert change is not None
    assert refusal(partition, Acknowledgement(0, 4, [ACCEPT])) is ErrorCode.INVALID_RECORD_STATE
    assert fetch(partition, (0, 4), member="other") == []
    partition.settle(change, is_persisted=True)
    assert fetch(partition, (0, 4), member="other") == [(0, 4, 2)]


def test_what_could_not_be_persisted_is_its_members_again() -> None:
    partition = SharePartition(0)
    fetch(partition, (0, 4))
    acknowledge(partition, 0, 4, ACCEPT, is_persisted=False)
    assert (partition.start_offset, partition.complete_count) == (0, 0)
    assert acknowledge(partition, 0, 4, ACCEPT) == [(0, 4, 2, 1)]


def test_what_is_not_persisted_yet_is_taken_back_whole_though_compaction_ends_inside_it() -> None:
    partition = SharePartition(0)
    fetch(partition, (0, 9))
    acknowledge(partition, 0, 4, RELEASE)
    change = partition.acknowledge("m", [Acknowledgement(5, 9, [ACCEPT])], LIMITS, 0)
    assert change is not None
    assert fetch(partition, (7, 9), member="other") == []
    partition.settle(change, is_persisted=False)
    assert partition.start_offset == 5
    assert acknowledge(partition, 5, 9, ACCEPT) == [(5, 9, 2, 1)]


def test_a_lock_that_ran_out_while_it_was_not_persisted_is_noticed() -> None:
    partition = SharePartition(0)
    fetch(partition, (0, 4))
    change = partition.acknowledge("m", [Acknowledgement(0, 4, [ACCEPT])], LIMITS, 0)
    assert change is not None
    assert partition.expire_locks(30, LIMITS) is None
    partition.settle(change, is_persisted=False)
    assert partition.lock_deadline_ms == 30
    expired = partition.expire_locks(31, LIMITS)
    assert expired is not None
    assert expired.batches == [(0, 4, AVAILABLE, 1)]


def test_one_bad_acknowledgement_spoils_the_request() -> None:
    partition = SharePartition(0)
    fetch(partition, (0, 4), (5, 9))
    good = Acknowledgement(0, 4, [ACCEPT])
    assert refusal(partition, good, Acknowledgement(4, 4, [ACCEPT])) == 121
    assert refusal(partition, good, Acknowledgement(5, 10, [ACCEPT])) == 42
    assert refusal(partition, Acknowledgement(0, 10, [ACCEPT])) == 42
    assert refusal(partition, good, member="other") == 121
    assert partition.complete_count == 0
    accepted = acknowledge(partition, 0, 9, ACCEPT)
    assert [at for first, last, _, _ in accepted for at in range(first, last + 1)] == [*range(10)]


def test_a_record_may_be_renewed_and_then_accepted_but_not_the_other_way_round() -> None:
    partition = SharePartition(0)
    fetch(partition, (0, 9))
    renew, accept = Acknowledgement(0, 5, [RENEW]), Acknowledgement(5, 9, [ACCEPT])
    assert refusal(partition, accept._replace(last=5), renew._replace(first=5)) == 121
    change = partition.acknowledge("m", [renew, accept], LIMITS, 20)
    assert change is not None
    assert [batch.first for batch in change.batches] == [5, 6]
    partition.settle(change, is_persisted=True)
    assert partition.expire_locks(30, LIMITS) is None
    assert acknowledge(partition, 0, 4, ACCEPT) == [(0, 4, 2, 1)]
    assert partition.start_offset == 10


def test_what_the_start_has_passed_may_be_acknowledged_again() -> None:
    partition = SharePartition(0)
    fetch(partition, (0, 4))
    acknowledge(partition, 0, 2, ACCEPT)
    assert acknowledge(partition, 0, 1, ACCEPT) == []
    assert acknowledge(partition, 0, 4, ACCEPT) == [(3, 4, 2, 1)]


def test_a_record_is_archived_at_the_delivery_limit() -> None:
    partition = SharePartition(0)
    for count in range(1, 6):
        assert fetch(partition, (0, 0)) == [(0, 0, count)]
        state = AVAILABLE if count < 5 else ARCHIVED
        assert acknowledge(partition, 0, 0, RELEASE) == [(0, 0, state, count)]
    assert (partition.next_fetch_offset, partition.start_offset) == (1, 1)


def test_a_lock_runs_out_unless_it_is_renewed() -> None:
    partition = SharePartition(0)
    fetch(partition, (0, 4))
    assert partition.lock_deadline_ms == 30
    assert acknowledge(partition, 1, 2, RENEW, now_ms=20) == []
    expired = partition.expire_locks(30, LIMITS)
    assert expired is not None
    assert [batch.first for batch in expired.batches] == [0, 3]
    assert partition.lock_deadline_ms == 50
    assert fetch(partition, (0, 4), now_ms=30) == [(0, 0, 2), (3, 4, 2)]
    assert acknowledge(partition, 1, 2, ACCEPT) == [(1, 2, 2, 1)]


def test_a_group_may_forbid_renewal() -> None:
    partition = SharePartition(0)
    fetch(partition, (0, 4))
    limits = LIMITS._replace(is_renew_enabled=False)
    with pytest.raises(KafkaError):
        partition.acknowledge("m", [Acknowledgement(0, 4, [RENEW])], limits, 0)


def test_a_member_that_goes_leaves_its_records() -> None:
    partition = SharePartition(0)
    fetch(partition, (0, 4), member="a")
    fetch(partition, (5, 9), member="b")
    change = partition.release("a", LIMITS)
    assert change is not None
    assert change.batches == [(0, 4, AVAILABLE, 1)]
    assert partition.settle(change, is_persisted=True)
    assert partition.release("a", LIMITS) is None
    assert partition.next_fetch_offset == 0


def test_records_deleted_from_the_log_are_forgotten() -> None:
    partition = SharePartition(0)
    fetch(partition, (0, 4), (5, 9), max_records=3)
    partition.log_start_moved(3)
    assert partition.start_offset == 3
    assert acknowledge(partition, 0, 4, ACCEPT) == [(3, 4, 2, 1)]
    partition.log_start_moved(20)
    assert (partition.start_offset, partition.next_fetch_offset) == (20, 20)
    assert fetch(partition, (15, 24)) == [(20, 24, 1)]
    assert Acquired(20, 24, 1)
