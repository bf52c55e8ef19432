"""One leader epoch, as pure decisions: each call names the epoch it means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from replication.metadata.image import BrokerRegistration, PartitionRegistration
from replication.partition.isr import UNKNOWN_OFFSET
from replication.partition.leading import IsrOutcome, Leading
from replication.partition.requests import AlteredIsr, FetchPartition, QuietAnswer
from wire.errors import ErrorCode, KafkaError

VIEW: Any = SimpleNamespace(log_start_offset=0, high_watermark=12, end_offset=12)
NODE, LAG_MS, EPOCH = 1, 30_000, 5
BROKERS = {i: BrokerRegistration(i, 70 + i, bytes(16), {}, fenced=False) for i in (1, 2, 3)}


def registered(
    epoch: int = EPOCH, isr: tuple[int, ...] = (1, 2, 3), version: int = 9, leader: int = NODE
) -> PartitionRegistration:
    return PartitionRegistration(
        (1, 2, 3), (bytes(16),) * 3, isr, leader, leader_epoch=epoch, partition_epoch=version
    )


def leading(
    registration: PartitionRegistration | None = None, before: Leading | None = None
) -> Leading:
    return Leading(NODE, registration or registered(), 10, 2, 1_000, LAG_MS, before)


def fetched(role: Leading, replica: int, offset: int, epoch: int = EPOCH) -> tuple[bool, bool]:
    fetch = FetchPartition("orders", None, 0, offset, 0, current_leader_epoch=epoch)
    return role.update_follower_fetch_state(epoch, replica, 70 + replica, fetch, 12, 2_000)


CALLS: dict[str, Callable[[Leading, int], object]] = {
    "update": lambda role, epoch: role.update(epoch, registered(epoch, version=10)),
    "change_min_isr": lambda role, epoch: role.change_min_isr(epoch, 1),
    "high_watermark": lambda role, epoch: role.high_watermark(epoch, 0, 12, 0, BROKERS),
    "update_follower_fetch_state": lambda role, epoch: fetched(role, 2, 11, epoch),
    "follower": lambda role, epoch: role.follower(epoch, 2, epoch),
    "expand_isr": lambda role, epoch: role.expand_isr(epoch, 2, BROKERS, 0),
    "shrink_isr": lambda role, epoch: role.shrink_isr(epoch, 12, 99_999),
    "low_watermark": lambda role, epoch: role.low_watermark(epoch, 0, BROKERS),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    ("epoch", "code"),
    [(EPOCH - 1, ErrorCode.FENCED_LEADER_EPOCH), (EPOCH + 1, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_what_means_another_leader_epoch_is_refused_and_changes_nothing(
    call: Callable[[Leading, int], object], epoch: int, code: ErrorCode
) -> None:
    role = leading()
    before = (role.isr_state, role.min_isr, {k: replace(v) for k, v in role.followers.items()})
    with pytest.raises(KafkaError, check=lambda error: error.code == code):
        call(role, epoch)
    assert (role.isr_state, role.min_isr, role.followers) == before
    call(role, EPOCH)


def test_an_append_that_counts_on_another_leadership_is_told_so_as_kafka_does() -> None:
    role = leading()
    for epoch in (EPOCH - 1, EPOCH + 1):
        with pytest.raises(KafkaError, check=lambda e: e.code == ErrorCode.NOT_LEADER_OR_FOLLOWER):
            role.check_epoch(epoch)
    role.check_epoch(EPOCH)


def test_an_answer_to_another_leader_epoch_is_ignored() -> None:
    role = leading(registered(isr=(1, 2)))
    fetched(role, 3, 12)
    proposed = role.expand_isr(EPOCH, 3, BROKERS, 0)
    assert proposed is not None
    answer = AlteredIsr(EPOCH, 10, (1, 2, 3))
    assert role.isr_answered(EPOCH - 1, proposed, answer) is IsrOutcome.IGNORED
    assert role.isr_state.is_inflight
    assert role.isr_answered(EPOCH, proposed, answer) is IsrOutcome.COMMITTED
    assert role.partition_epoch == 10


def test_who_still_looks_at_the_epoch_before_does_not_write_into_the_next() -> None:
    """A quiet answer takes no lock; its follower's times belong to the epoch it found."""
    old = leading()
    fetched(old, 2, 12)
    request = old.followers[2].quiet_request
    assert isinstance(request, FetchPartition)
    new = leading(registered(EPOCH + 1, isr=(1, 3), version=10), old)
    assert new.followers[2].log_end_offset == 12, "nobody else led in between"
    before = replace(new.followers[2])
    assert old.quiet_answer(2, 72, request, 5_000, VIEW) is not None
    assert new.followers[2] == before
    assert new.quiet_answer(2, 72, request, 5_000, VIEW) is None


def test_a_skipped_epoch_forgets_what_followers_told_and_an_unbroken_one_does_not() -> None:
    old = leading()
    fetched(old, 2, 12)
    assert leading(registered(EPOCH + 1, version=10), old).followers[2].log_end_offset == 12
    later = leading(registered(EPOCH + 2, version=11), old)
    assert later.followers[2].log_end_offset == UNKNOWN_OFFSET


@pytest.mark.parametrize(
    "begin",
    [
        lambda: leading(registered(leader=2)),
        lambda: leading(registered(-1)),
        lambda: leading(registered(EPOCH), leading()),
        lambda: Leading(7, registered(leader=7), 0, 1, 0, LAG_MS),
        lambda: Leading(NODE, registered(), -1, 1, 0, LAG_MS),
    ],
    ids=["another leads", "no epoch", "the same epoch", "no replica", "no offset"],
)
def test_a_leadership_that_cannot_be_is_an_error_of_ours(begin: Callable[[], Leading]) -> None:
    with pytest.raises(AssertionError):
        begin()


def test_a_leader_epoch_does_not_take_over_another() -> None:
    with pytest.raises(AssertionError):
        leading().update(EPOCH, registered(EPOCH + 1, version=10))


def test_an_append_lives_on_through_elections_that_this_node_won_and_through_no_others() -> None:
    """Who waits for acks=all hears NOT_LEADER once its records may have been cut off."""
    first = leading()
    second = leading(registered(EPOCH + 1, version=10), first)
    assert second.leads_since(EPOCH + 1)
    assert second.leads_since(EPOCH)
    assert not second.leads_since(EPOCH - 1)
    again = leading(registered(EPOCH + 2, version=11))
    assert again.leads_since(EPOCH + 2)
    assert not again.leads_since(EPOCH + 1)


@pytest.mark.parametrize(
    ("isr", "wanted", "is_enough"),
    [((1, 2), 2, True), ((1, 2), 3, False), ((1,), 2, False), ((1, 2, 3), 9, True)],
)
def test_as_many_as_min_isr_in_sync_are_enough(
    isr: tuple[int, ...], wanted: int, is_enough: bool
) -> None:
    role = leading(registered(isr=isr))
    role.change_min_isr(EPOCH, wanted)
    assert role.has_min_isr is is_enough
    assert role.has_enough_in_sync is is_enough


def test_who_is_asked_to_join_counts_for_an_acknowledgement_at_once() -> None:
    role = leading(registered(isr=(1,)))
    fetched(role, 3, 12)
    assert not role.has_enough_in_sync
    assert role.expand_isr(EPOCH, 3, BROKERS, 0) is not None
    assert role.has_enough_in_sync
    assert role.waits_for_followers, "and an append waits for it"
    assert not role.has_min_isr, "but nothing new is taken before the controller says so"


def test_in_a_new_epoch_a_member_has_the_whole_lag_time_to_show_that_it_is_there() -> None:
    role = leading(registered(isr=(1, 2)))
    assert role.shrink_isr(EPOCH, 12, 1_000 + LAG_MS) is None
    asked = role.shrink_isr(EPOCH, 12, 1_001 + LAG_MS)
    assert asked is not None
    assert asked.proposed == {1}


def test_more_metadata_of_the_epoch_leaves_what_followers_told() -> None:
    """Or each change of a replica would stop the high watermark until all have fetched again."""
    role = leading(registered(isr=(1, 2)))
    fetched(role, 2, 11)
    role.update(EPOCH, registered(isr=(1, 2), version=10))
    assert role.followers[2].log_end_offset == 11
    assert role.high_watermark(EPOCH, 10, 12, 2_000, BROKERS) == 11


def test_the_high_watermark_waits_for_one_outside_the_isr_that_keeps_up() -> None:
    """Else it would chase a moving end for ever, and never join."""
    role = leading(registered(isr=(1, 2)))
    fetched(role, 2, 12)
    fetched(role, 3, 12)
    fetched(role, 3, 11)
    assert role.high_watermark(EPOCH, 10, 12, 2_000, BROKERS) == 11
    fenced = BROKERS | {3: replace(BROKERS[3], fenced=True)}
    assert role.high_watermark(EPOCH, 10, 12, 2_000, fenced) == 12
    assert role.high_watermark(EPOCH, 10, 12, 2_001 + LAG_MS, BROKERS) == 12


def quiet(role: Leading, replica: int = 2) -> FetchPartition:
    fetched(role, replica, 12)
    request = role.followers[replica].quiet_request
    assert isinstance(request, FetchPartition)
    return request


def test_who_asks_from_the_end_again_and_again_stays_in_sync() -> None:
    role = leading(registered(isr=(1, 2)))
    request = quiet(role)
    assert role.quiet_answer(2, 72, request, 50_000, VIEW) is not None
    assert role.shrink_isr(EPOCH, 13, 50_000 + LAG_MS) is None
    asked = role.shrink_isr(EPOCH, 13, 50_001 + LAG_MS)
    assert asked is not None
    assert asked.proposed == {1}


def test_that_a_parked_fetch_is_answered_says_nothing_of_its_follower() -> None:
    role = leading(registered(isr=(1, 2)))
    request = quiet(role)
    role.quiet_answer(2, 72, request, 50_000, VIEW)
    assert role.quiet_answer(2, 72, request, None, VIEW) is not None
    assert role.shrink_isr(EPOCH, 13, 50_000 + LAG_MS) is None


def test_a_quiet_answer_tells_the_offsets_of_now() -> None:
    role = leading(registered(isr=(1, 2)))
    request = quiet(role)
    for high_watermark, log_start in ((11, 0), (12, 0), (12, 3), (12, 3)):
        view: Any = SimpleNamespace(
            log_start_offset=log_start, high_watermark=high_watermark, end_offset=12
        )
        assert role.quiet_answer(2, 72, request, 5_000, view) == QuietAnswer(
            0, high_watermark, high_watermark, log_start
        )


def test_the_controller_is_told_the_broker_epochs_that_followers_fetched_with() -> None:
    """KIP-903: it refuses a member that has started again since. -1: it need not compare."""
    role = leading(registered(isr=(1,)))
    assert role.followers[2].broker_epoch is None
    fetched(role, 3, 12)
    proposed = role.expand_isr(EPOCH, 3, BROKERS, 0)
    assert proposed is not None
    assert role.members(proposed) == ((1, -1), (3, 73))
    assert role.members(leading().isr_state.shrink((3,))) == ((1, -1), (2, -1))


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (AlteredIsr(EPOCH, 8, (1,)), IsrOutcome.IGNORED),
        (AlteredIsr(EPOCH, 9, (1, 2, 3)), IsrOutcome.COMMITTED),
        (AlteredIsr(EPOCH + 1, 10, (1,)), IsrOutcome.IGNORED),
    ],
    ids=["older than what is known", "it was so already", "of the next epoch"],
)
def test_an_answer_counts_unless_metadata_knows_more(
    answer: AlteredIsr, outcome: IsrOutcome
) -> None:
    role = leading(registered(isr=(1, 2)))
    fetched(role, 3, 12)
    proposed = role.expand_isr(EPOCH, 3, BROKERS, 0)
    assert proposed is not None
    assert role.isr_answered(EPOCH, proposed, answer) is outcome
    assert role.isr_state.is_inflight is (outcome is IsrOutcome.IGNORED)
