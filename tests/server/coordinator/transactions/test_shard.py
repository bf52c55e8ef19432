"""What each request leads to in each state, and what time, markers and failovers lead to.

The numbers TX-n are the rules of Apache Kafka 4.3's coordinator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from server.coordinator.sweeps import SWEEP_RECORDS_MAX, SWEEP_STEP_MS
from server.coordinator.transactions.shard import ENDED
from server.coordinator.transactions.state import NEVER_MS, TransactionMetadata, TransactionState
from testkit.clock import WALL_MS
from tests.server.coordinator.transactions.transaction_support import (
    EPOCH,
    ID,
    NEXT_PID,
    PID,
    T0,
    T1,
    E,
    S,
    World,
)
from wire.errors import KafkaError

CT, ITS, PF = E.CONCURRENT_TRANSACTIONS, E.INVALID_TXN_STATE, E.PRODUCER_FENCED
ABORTABLE, MAPPING = E.TRANSACTION_ABORTABLE, E.INVALID_PRODUCER_ID_MAPPING
COMMIT, ABORT = True, False

SAME, BUMPED = (PID, EPOCH), (PID, EPOCH + 1)
NO_IDS = (-1, -1)
"""What an EndTxn below version 5 says of the producer: nothing."""

NOTHING = None
SETTLED = (S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT)
PREPARED = (S.PREPARE_COMMIT, S.PREPARE_ABORT)


def rows(
    event: Callable[[World], Any], **outcomes: tuple[Any, Any]
) -> list[tuple[Any, TransactionState, Any, Any]]:
    """One line of the table of events: state -> (answer, (state, epoch) logged or NOTHING)."""
    columns = {
        "empty": (S.EMPTY,), "ongoing": (S.ONGOING,), "prepared": PREPARED,
        "commit": (S.COMPLETE_COMMIT,), "abort": (S.COMPLETE_ABORT,), "settled": SETTLED,
        "prepare_commit": (S.PREPARE_COMMIT,), "prepare_abort": (S.PREPARE_ABORT,),
    }  # fmt: skip
    return [
        (event, state, answer, after)
        for column, (answer, after) in outcomes.items()
        for state in columns[column]
    ]


TABLE = [
    # InitProducerId without a producer id (TX-25, TX-27)
    *rows(
        lambda w: w.init(),
        settled=(BUMPED, (S.EMPTY, 6)),
        ongoing=(CT, (S.PREPARE_ABORT, 6)),
        prepared=(CT, NOTHING),
    ),
    # with the current one
    *rows(
        lambda w: w.init(PID, EPOCH),
        settled=(BUMPED, (S.EMPTY, 6)),
        ongoing=(CT, (S.PREPARE_ABORT, 6)),
        prepared=(CT, NOTHING),
    ),
    # with one that is over, and with somebody else's (TX-24)
    *rows(lambda w: w.init(PID, EPOCH - 1), settled=(PF, NOTHING), prepared=(CT, NOTHING)),
    *rows(
        lambda w: w.init(PID + 1, EPOCH),
        settled=(PF, NOTHING),
        ongoing=(PF, NOTHING),
        prepared=(CT, NOTHING),
    ),
    # AddPartitions: known ones, new ones (TX-33)
    *rows(
        lambda w: w.add(T0),
        settled=(0, (S.ONGOING, 5)),
        ongoing=(0, NOTHING),
        prepared=(CT, NOTHING),
    ),
    *rows(
        lambda w: w.add(T0, T1),
        settled=(0, (S.ONGOING, 5)),
        ongoing=(0, (S.ONGOING, 5)),
        prepared=(CT, NOTHING),
    ),
    # of somebody else; while markers are written nobody is looked at more closely, for he may have
    # been told the producer id that comes next
    *rows(
        lambda w: w.add(T0, pid=PID + 1),
        settled=(MAPPING, NOTHING),
        ongoing=(MAPPING, NOTHING),
        prepared=(CT, NOTHING),
    ),
    *rows(
        lambda w: w.add(T0, epoch=EPOCH - 1),
        settled=(PF, NOTHING),
        ongoing=(PF, NOTHING),
        prepared=(CT, NOTHING),
    ),
    *rows(lambda w: w.add(T0, epoch=EPOCH + 1), settled=(PF, NOTHING), ongoing=(PF, NOTHING)),
    # verify (TX-34): the producer is looked at first
    *rows(
        lambda w: w.verify(T0, T1),
        settled=({T0: ABORTABLE, T1: ABORTABLE}, NOTHING),
        ongoing=({T0: 0, T1: ABORTABLE}, NOTHING),
        prepared=(CT, NOTHING),
    ),
    *rows(
        lambda w: w.verify(T0, pid=PID + 1),
        settled=(MAPPING, NOTHING),
        ongoing=(MAPPING, NOTHING),
        prepared=(MAPPING, NOTHING),
    ),
    *rows(
        lambda w: w.verify(T0, epoch=EPOCH - 1),
        settled=(PF, NOTHING),
        ongoing=(PF, NOTHING),
        prepared=(PF, NOTHING),
    ),
    # EndTxn up to version 4. In Prepare* Kafka is in a pending state, so either way: ask again.
    *rows(
        lambda w: w.end(COMMIT, version=0),
        empty=(ITS, NOTHING),
        ongoing=(NO_IDS, (S.PREPARE_COMMIT, 5)),
        prepared=(CT, NOTHING),
        commit=(NO_IDS, NOTHING),
        abort=(ITS, NOTHING),
    ),
    *rows(
        lambda w: w.end(ABORT, version=0),
        empty=(ITS, NOTHING),
        ongoing=(NO_IDS, (S.PREPARE_ABORT, 5)),
        prepared=(CT, NOTHING),
        commit=(ITS, NOTHING),
        abort=(NO_IDS, NOTHING),
    ),
    *rows(
        lambda w: w.end(ABORT, version=0, epoch=EPOCH - 1),
        settled=(PF, NOTHING),
        ongoing=(PF, NOTHING),
        prepared=(PF, NOTHING),
    ),
    *rows(
        lambda w: w.end(COMMIT, version=0, epoch=EPOCH + 1),
        settled=(PF, NOTHING),
        ongoing=(PF, NOTHING),
        prepared=(PF, NOTHING),
    ),
    *rows(
        lambda w: w.end(COMMIT, version=0, pid=PID + 1),
        settled=(MAPPING, NOTHING),
        ongoing=(MAPPING, NOTHING),
        prepared=(MAPPING, NOTHING),
    ),
    # EndTxn 5 of the current epoch: what it ends is the next thing
    *rows(
        lambda w: w.end(COMMIT),
        settled=(ITS, NOTHING),
        ongoing=(BUMPED, (S.PREPARE_COMMIT, 6)),
        prepared=(CT, NOTHING),
    ),
    *rows(
        lambda w: w.end(ABORT),
        settled=(BUMPED, (S.PREPARE_ABORT, 6)),
        ongoing=(BUMPED, (S.PREPARE_ABORT, 6)),
        prepared=(CT, NOTHING),
    ),
    # of the epoch before: the answer was lost
    *rows(
        lambda w: w.end(COMMIT, epoch=EPOCH - 1),
        empty=(PF, NOTHING),
        ongoing=(PF, NOTHING),
        prepared=(CT, NOTHING),
        commit=(SAME, NOTHING),
        abort=(ITS, NOTHING),
    ),
    *rows(
        lambda w: w.end(ABORT, epoch=EPOCH - 1),
        empty=(PF, NOTHING),
        ongoing=(PF, NOTHING),
        prepared=(CT, NOTHING),
        commit=(ITS, NOTHING),
        abort=(SAME, NOTHING),
    ),
    # of neither, and of somebody else
    *rows(
        lambda w: w.end(ABORT, epoch=EPOCH - 2),
        settled=(PF, NOTHING),
        ongoing=(PF, NOTHING),
        prepared=(CT, NOTHING),
    ),
    *rows(
        lambda w: w.end(COMMIT, epoch=EPOCH + 1),
        settled=(PF, NOTHING),
        ongoing=(PF, NOTHING),
        prepared=(CT, NOTHING),
    ),
    *rows(
        lambda w: w.end(ABORT, pid=PID + 1),
        settled=(MAPPING, NOTHING),
        ongoing=(MAPPING, NOTHING),
        prepared=(CT, NOTHING),
    ),
]


@pytest.mark.parametrize(("event", "state", "answer", "after"), TABLE)
def test_what_a_request_leads_to(
    event: Callable[[World], Any], state: TransactionState, answer: Any, after: Any
) -> None:
    world = World()
    before = world.put(state)
    logged = len(world.log)
    assert event(world) == answer
    if after is NOTHING:
        assert world.now == before
        assert len(world.log) == logged
    else:
        assert (world.now.state, world.now.producer_epoch) == after
        assert len(world.log) == logged + 1
    assert bool(world.markers) == (world.now.is_prepared and after is not NOTHING)


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (lambda w: w.add(T0), MAPPING),
        (lambda w: w.verify(T0), MAPPING),
        (lambda w: w.end(COMMIT), MAPPING),
        (lambda w: w.end(ABORT, version=0), MAPPING),
        (lambda w: w.init(), (NEXT_PID, 0)),
        (lambda w: w.init(PID, EPOCH), (NEXT_PID, 0)),
    ],
)
def test_an_id_that_nobody_knows(ask: Callable[[World], Any], answer: Any) -> None:
    assert ask(World()) == answer


# ---- InitProducerId


def test_a_repeated_init_is_answered_alike_until_somebody_else_came() -> None:
    """TX-25"""
    world = World()
    world.put(S.EMPTY)
    assert world.init(PID, 5) == (PID, 6)
    assert world.init(PID, 5) == (PID, 6)
    assert world.init(PID, 5) == (PID, 6)
    assert world.init(PID, 6) == (PID, 7)
    assert world.init(PID, 5) == PF
    assert world.init() == (PID, 8)
    assert world.init(PID, 7) == PF, "somebody else took over: not a repetition"


def test_a_repeated_init_is_fenced_after_a_failover() -> None:
    """TX-12"""
    world = World()
    world.put(S.EMPTY)
    assert world.init(PID, 5) == (PID, 6)
    world.fail_over()
    assert world.init(PID, 5) == PF
    assert world.init(PID, 6) == (PID, 7)


def test_an_exhausted_producer_id_is_followed_by_another() -> None:
    """TX-26: 32,766 is the last epoch handed out."""
    world = World()
    world.put(S.COMPLETE_COMMIT, producer_epoch=32_765)
    assert world.init(PID, 32_765) == (PID, 32_766)
    assert world.init(PID, 32_765) == (PID, 32_766), "repeated"
    assert world.init(PID, 32_766) == (NEXT_PID, 0)
    assert world.init(PID, 32_766) == (NEXT_PID, 0), "repeated with the id that was used up"
    assert world.init(PID, 32_765) == PF
    assert world.init(NEXT_PID, 0) == (NEXT_PID, 1)
    assert world.init(PID, 32_766) == PF


def test_a_new_instance_of_an_exhausted_producer_id_gets_another() -> None:
    world = World()
    world.put(S.EMPTY, producer_epoch=32_766)
    assert world.init() == (NEXT_PID, 0)
    assert world.init(PID, 32_766) == PF, "somebody else took over"


@pytest.mark.parametrize("version", [0, 1, 2])
def test_who_takes_over_an_open_transaction_aborts_it_and_gets_the_next_epoch(version: int) -> None:
    """TX-27: the epoch of the abort is told to nobody."""
    world = World(version)
    world.put(S.ONGOING, producer_epoch=1)
    assert world.init() == CT
    assert world.where() == (S.PREPARE_ABORT, PID, 2)
    assert world.init() == CT
    markers = world.written()
    assert (markers.producer_id, markers.producer_epoch, markers.is_commit) == (PID, 2, False)
    assert markers.transaction_version == (2 if version == 2 else 0)
    assert world.where() == (S.COMPLETE_ABORT, PID, 2)
    assert world.init() == (PID, 3)
    assert world.add(T0, epoch=1) == PF, "the one before"


@pytest.mark.parametrize(
    ("version", "epoch", "aborted", "taken_over"),
    [
        (0, 32_766, (S.COMPLETE_ABORT, PID, 32_767), (NEXT_PID, 0)),
        (1, 32_767, (S.COMPLETE_ABORT, PID, 32_767), (NEXT_PID, 0)),
        (2, 32_765, (S.COMPLETE_ABORT, PID, 32_766), (NEXT_PID, 0)),
        (2, 32_766, (S.COMPLETE_ABORT, NEXT_PID, 0), (NEXT_PID, 1)),
        (2, 32_767, (S.COMPLETE_ABORT, NEXT_PID, 0), (NEXT_PID, 1)),
    ],
)
def test_fencing_the_last_epochs(version: int, epoch: int, aborted: Any, taken_over: Any) -> None:
    world = World(version)
    world.put(S.ONGOING, producer_epoch=epoch)
    assert world.init() == CT
    markers = world.written()
    assert (markers.producer_id, markers.producer_epoch) == (PID, min(epoch + 1, 32_767))
    assert world.where() == aborted
    assert world.init() == taken_over


def test_only_who_used_its_epochs_up_may_come_back_with_the_producer_id_before() -> None:
    """TX-24"""
    world = World()
    world.put(S.EMPTY, producer_id=PID + 1, previous_producer_id=PID, last_producer_epoch=32_766)
    assert world.init(PID, EPOCH) == PF, "although the epoch is the current one"
    assert world.init(PID, 32_766) == (PID + 1, EPOCH)


def test_an_epoch_above_the_last_one_handed_out_belongs_to_nobody() -> None:
    """Kafka has no answer but an unknown error."""
    world = World(1)
    world.put(S.COMPLETE_ABORT, producer_epoch=32_767)
    assert world.init(PID, 32_766) == PF


def test_a_fence_that_cannot_be_written_bumps_no_epoch() -> None:
    """TX-28"""
    world = World(1)
    before = world.put(S.ONGOING)
    world.is_writable = False
    assert world.init() == E.COORDINATOR_NOT_AVAILABLE
    assert world.init() == E.COORDINATOR_NOT_AVAILABLE
    assert world.now == before
    world.is_writable = True
    assert world.init() == CT
    assert world.where() == (S.PREPARE_ABORT, PID, 6)


def test_each_init_may_have_another_timeout() -> None:
    """TX-29"""
    world = World()
    assert world.init(timeout_ms=10) == (NEXT_PID, 0)
    assert world.now.timeout_ms == 10
    assert world.init(timeout_ms=20) == (NEXT_PID, 1)
    assert world.now.timeout_ms == 20


def test_without_producer_ids_only_those_who_need_one_wait() -> None:
    """TX-30"""
    world = World()
    world.has_ids = False
    assert world.init() == E.COORDINATOR_LOAD_IN_PROGRESS
    world.put(S.EMPTY)
    assert world.init() == (PID, 6)
    world.put(S.ONGOING, producer_epoch=32_766)
    assert world.end(COMMIT, epoch=32_766) == E.COORDINATOR_LOAD_IN_PROGRESS
    assert world.end(COMMIT, epoch=32_766, version=0) == NO_IDS, "version 1 ends with the same"


# ---- the life of a transaction


def test_a_transaction_of_version_2_from_begin_to_end() -> None:
    """TX-11, TX-13, and the worked example."""
    world = World()
    assert world.init() == (NEXT_PID, 0)
    assert (world.now.start_ms, world.now.client_version) == (-1, 0)
    world.advance(10)
    assert world.add(T0, pid=NEXT_PID, epoch=0) == 0
    started = world.now.start_ms
    assert (started, world.now.client_version) == (WALL_MS + 10, 2)
    world.advance(10)
    assert world.add(T1, pid=NEXT_PID, epoch=0) == 0
    assert world.now.start_ms == started
    assert world.now.partitions == {T0, T1}
    assert world.end(COMMIT, pid=NEXT_PID, epoch=0) == (NEXT_PID, 1)
    assert world.where() == (S.PREPARE_COMMIT, NEXT_PID, 1)
    ((markers, _),) = world.markers
    assert markers == (ID, 11, 3, NEXT_PID, 1, True, 2, {T0, T1})
    world.written()
    assert world.where() == (S.COMPLETE_COMMIT, NEXT_PID, 1)
    assert (world.now.partitions, world.now.start_ms) == (frozenset(), started)
    assert world.now.last_update_ms == WALL_MS + 20
    assert world.add(T0, pid=NEXT_PID, epoch=1) == 0
    assert world.now.partitions == {T0}


def test_transactions_of_version_1_keep_their_epoch() -> None:
    world = World(1)
    world.put(S.EMPTY)
    for is_commit in (COMMIT, ABORT, COMMIT):
        assert world.add(T0, version=0) == 0
        assert world.end(is_commit, version=0) == NO_IDS
        assert world.end(is_commit, version=0) == CT
        markers = world.written()
        assert (markers.producer_epoch, markers.transaction_version) == (EPOCH, 0)
        assert markers.is_commit is is_commit
        assert world.end(is_commit, version=0) == NO_IDS, "again"


def test_an_answer_of_version_2_that_was_lost_is_given_again_for_long() -> None:
    world = World()
    world.put(S.ONGOING)
    assert world.end(COMMIT) == BUMPED
    world.written()
    world.advance(3_600_000)
    assert world.end(COMMIT) == BUMPED
    world.fail_over()
    assert world.end(COMMIT) == BUMPED
    assert world.end(ABORT) == ITS


@pytest.mark.parametrize("is_commit", [COMMIT, ABORT])
def test_who_was_taken_over_from_is_not_taken_for_its_successor(is_commit: bool) -> None:
    """Kafka answers (producer id, epoch) of the producer of version 1 that came after it."""
    world = World()
    world.put(S.EMPTY, producer_epoch=4)
    assert world.init() == SAME, "a producer of version 1"
    world.add(T0, version=0)
    world.end(is_commit, version=0)
    world.written()
    assert world.end(is_commit, epoch=4) == PF
    assert world.end(is_commit, version=0) == NO_IDS


def test_an_abort_of_nothing_costs_an_epoch_and_no_marker() -> None:
    """Java sends it when every send of a transaction failed."""
    world = World()
    world.put(S.COMPLETE_COMMIT)
    assert world.end(ABORT) == BUMPED
    assert world.where() == (S.PREPARE_ABORT, PID, 6)
    assert world.now.start_ms == WALL_MS
    assert not world.written().partitions
    assert world.where() == (S.COMPLETE_ABORT, PID, 6)
    assert world.end(ABORT) == BUMPED, "repeated"
    assert world.end(ABORT, epoch=6) == (PID, 7)


@pytest.mark.parametrize("is_commit", [COMMIT, ABORT])
def test_the_last_epoch_of_version_2_ends_with_another_producer_id(is_commit: bool) -> None:
    """TX-44"""
    world = World()
    world.put(S.ONGOING, producer_epoch=32_766)
    assert world.end(is_commit, epoch=32_766) == (NEXT_PID, 0)
    assert (world.now.producer_id, world.now.producer_epoch) == (PID, 32_767)
    assert world.now.next_producer_id == NEXT_PID
    assert world.end(is_commit, epoch=32_766) == CT
    assert world.add(T0, pid=NEXT_PID, epoch=0) == CT, "it was told its next id"
    world.fail_over()
    markers = world.written()
    assert (markers.producer_id, markers.producer_epoch) == (PID, 32_767)
    assert (world.now.producer_id, world.now.producer_epoch) == (NEXT_PID, 0)
    assert (world.now.previous_producer_id, world.now.next_producer_id) == (PID, -1)
    assert world.end(is_commit, epoch=32_766) == (NEXT_PID, 0)
    assert world.end(not is_commit, epoch=32_766) == ITS
    assert world.end(is_commit, epoch=32_765) == MAPPING
    assert world.add(T0, pid=NEXT_PID, epoch=0) == 0
    assert world.next_id == NEXT_PID + 1, "one id, however often it was asked"


def test_a_producer_may_change_to_version_2_in_the_middle() -> None:
    """TX-77"""
    world = World(1)
    world.put(S.EMPTY)
    assert world.add(T0, version=0) == 0
    world.version = 2
    assert world.end(COMMIT) == BUMPED
    assert world.written().transaction_version == 2


@pytest.mark.parametrize(
    "ask", [lambda w: w.add(T1), lambda w: w.end(COMMIT), lambda w: w.end(ABORT)]
)
def test_version_2_is_refused_where_no_record_can_say_it_and_nothing_is_stuck(ask: Any) -> None:
    """TX-79"""
    world = World(0)
    before = world.put(S.ONGOING)
    assert ask(world) == E.UNSUPPORTED_VERSION
    assert world.now == before
    assert world.end(COMMIT, version=0) == NO_IDS


def test_what_version_2_began_is_completed_after_a_downgrade() -> None:
    world = World()
    world.put(S.ONGOING)
    assert world.end(COMMIT) == BUMPED
    world.version = 0
    world.written()
    assert world.where() == (S.COMPLETE_COMMIT, PID, 6)
    world.fail_over()
    assert world.where() == (S.COMPLETE_COMMIT, PID, 6)
    assert world.init() == (PID, 7)


# ---- markers


def test_completion_is_written_once_it_can_be() -> None:
    """TX-68"""
    world = World()
    world.put(S.ONGOING)
    world.end(COMMIT)
    world.is_writable = False
    world.written()
    world.advance(10_000)
    assert world.now.state is S.PREPARE_COMMIT
    world.is_writable = True
    world.advance(500)
    assert world.now.state is S.COMPLETE_COMMIT


def test_word_of_markers_counts_for_their_own_transaction_only() -> None:
    """In version 1 the next transaction has the same producer id and epoch."""
    world = World(1)
    world.put(S.ONGOING)
    world.end(COMMIT, version=0)
    stale = world.markers[0]
    world.written()
    world.advance(1)
    world.add(T1, version=0)
    world.end(COMMIT, version=0)
    world.markers.insert(0, stale)
    world.written()
    assert world.now.state is S.PREPARE_COMMIT
    world.written()
    assert world.now.state is S.COMPLETE_COMMIT


def test_who_loads_the_log_finishes_what_was_decided() -> None:
    """TX-73"""
    world = World()
    decided = world.put(S.PREPARE_COMMIT, client_version=2)
    world.put(S.PREPARE_ABORT, "a")
    world.put(S.COMPLETE_COMMIT, "done")
    world.put(S.ONGOING, "open")
    world.fail_over()
    sent = {markers.transactional_id: markers for markers, _ in world.markers}
    assert sent.keys() == {ID, "a"}
    assert sent[ID] == (
        ID, 11, 4, PID, decided.producer_epoch, True, 2, decided.partitions,
    )  # fmt: skip
    assert not sent["a"].is_commit
    world.written()
    assert world.now.state is S.COMPLETE_COMMIT
    assert world.shard.transactions["open"].partitions == {T0}


def test_who_leads_no_more_drops_its_markers() -> None:
    """TX-74; by leader epoch, for the next leader may be here, and faster."""
    world = World()
    world.put(S.ONGOING)
    world.end(COMMIT)
    world.shard.on_unloaded(Exception())  # type: ignore[arg-type]
    assert world.forgotten == [(11, 3)]
    assert not len(world.shard.deadlines)


# ---- waiting


def test_who_waits_for_the_end_is_told_once_and_not_of_another_end() -> None:
    world = World()
    world.put(S.ONGOING)
    world.put(S.PREPARE_ABORT, "other")
    world.end(COMMIT)
    told, of_other = world.wait(100), world.wait(100, "other")
    world.put(S.EMPTY, "third")
    world.forget("third")
    assert not world.shard.outbox
    world.written()
    assert world.shard.outbox == [(told, ENDED)]
    world.advance(99)
    assert len(world.shard.outbox) == 1
    world.advance(1)
    _, (reply, late) = world.shard.outbox
    assert isinstance(late, KafkaError)
    assert (reply, late.code) == (of_other, CT)
    world.put(S.COMPLETE_ABORT, "other")
    assert len(world.shard.outbox) == 2


@pytest.mark.parametrize("state", [*SETTLED, S.ONGOING])
def test_nobody_waits_where_nothing_is_being_ended(state: TransactionState) -> None:
    world = World()
    assert world.wait(100) is None
    world.put(state)
    assert world.wait(100) is None


def test_who_waits_is_told_that_we_lead_no_more() -> None:
    world = World()
    world.put(S.PREPARE_COMMIT)
    waiting = world.wait(100)
    error = KafkaError(E.NOT_COORDINATOR)
    world.shard.on_unloaded(error)
    assert world.shard.outbox == [(waiting, error)]
    assert not len(world.shard.deadlines)


# ---- time


def test_a_transaction_that_takes_too_long_is_aborted() -> None:
    """TX-70"""
    world = World()
    assert world.init(timeout_ms=2_000) == (NEXT_PID, 0)
    assert world.add(T0, pid=NEXT_PID, epoch=0) == 0
    world.advance(9_999)
    assert world.now.state is S.ONGOING, "looked for every 10 s"
    world.advance(1)
    assert world.where() == (S.PREPARE_ABORT, NEXT_PID, 1)
    world.written()
    assert world.where() == (S.COMPLETE_ABORT, NEXT_PID, 1)
    assert world.end(COMMIT, pid=NEXT_PID, epoch=1) == ITS


def test_a_transaction_is_not_aborted_at_its_time_but_after_it() -> None:
    world = World()
    world.put(S.EMPTY)
    world.init(timeout_ms=10_000)
    world.add(T0, epoch=6)
    world.advance(10_000)
    assert world.now.state is S.ONGOING
    world.advance(10_000)
    assert world.now.state is S.PREPARE_ABORT


def test_what_a_producer_of_version_2_sees_after_its_timeout() -> None:
    """TX-71: it may go on."""
    world = World()
    world.put(S.ONGOING, start_ms=WALL_MS - 100_000)
    world.fail_over()
    world.advance(10_000)
    world.written()
    assert world.add(T1) == PF
    assert world.end(COMMIT) == ITS
    assert world.end(ABORT) == BUMPED
    assert world.init(PID, EPOCH) == BUMPED
    assert world.now.producer_epoch == 6


@pytest.mark.parametrize("version", [0, 1])
def test_what_a_producer_of_version_1_sees_after_its_timeout(version: int) -> None:
    """TX-71: only a new start helps."""
    world = World(version)
    world.put(S.ONGOING, start_ms=WALL_MS - 100_000)
    world.fail_over()
    world.advance(10_000)
    assert world.written().producer_epoch == 6
    assert world.add(T1, version=0) == PF
    assert world.end(COMMIT, version=0) == PF
    assert world.end(ABORT, version=0) == PF
    assert world.init(PID, EPOCH) == PF
    assert world.init() == (PID, 7)


def test_a_transaction_without_a_timeout_stays() -> None:
    world = World()
    world.put(S.ONGOING, timeout_ms=NEVER_MS, start_ms=0)
    world.fail_over()
    world.advance(100_000)
    assert world.now.state is S.ONGOING


def test_an_abort_that_cannot_be_written_comes_again() -> None:
    world = World()
    world.put(S.ONGOING, start_ms=0)
    world.fail_over()
    world.is_writable = False
    world.advance(30_000)
    assert world.now.state is S.ONGOING
    world.is_writable = True
    world.advance(500)
    assert world.where() == (S.PREPARE_ABORT, PID, 6)


def test_late_transactions_do_not_hold_each_other_up() -> None:
    world = World()
    world.put(S.ONGOING, start_ms=0, producer_epoch=32_766)
    world.put(S.ONGOING, "other", start_ms=0)
    world.fail_over()
    world.has_ids = False
    world.advance(10_000)
    assert world.now.state is S.ONGOING, "there is no producer id for it"
    assert world.shard.transactions["other"].state is S.PREPARE_ABORT
    world.has_ids = True
    world.advance(500)
    assert world.now.next_producer_id == NEXT_PID


def test_nobody_looks_for_late_transactions_while_there_are_none() -> None:
    world = World()
    quiet = len(world.shard.deadlines)
    world.put(S.EMPTY)
    world.add(T0)
    assert len(world.shard.deadlines) == quiet + 1
    world.end(COMMIT)
    world.written()
    world.advance(10_000)
    assert len(world.shard.deadlines) == quiet


@pytest.mark.parametrize("state", [*SETTLED, S.ONGOING, *PREPARED])
def test_an_id_that_nobody_used_for_long_is_forgotten(state: TransactionState) -> None:
    """TX-72: never one with a transaction."""
    world = World(transactional_id_expiration_ms=7_200_000)
    world.put(state, last_update_ms=WALL_MS, timeout_ms=NEVER_MS)
    world.advance(7_199_999)
    assert ID in world.shard.transactions
    world.advance(1)
    if state in SETTLED:
        assert ID not in world.shard.transactions
        assert (world.add(T0), world.end(COMMIT), world.init(PID, EPOCH)) == (
            MAPPING, MAPPING, (NEXT_PID, 0),
        )  # fmt: skip
    else:
        assert ID in world.shard.transactions


def test_many_ids_are_forgotten_in_steps() -> None:
    world = World(transactional_id_expiration_ms=1)
    for number in range(SWEEP_RECORDS_MAX + 5):
        world.put(S.EMPTY, f"id-{number}")
    world.advance(3_600_000)
    assert len(world.shard.transactions) == 5
    world.advance(50)
    assert not world.shard.transactions
    world.fail_over()
    assert not world.shard.transactions


def test_a_step_looks_at_a_thousand_ids_whether_any_is_forgotten_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of them, from the first on, in each step: a million ids held up the timer's thread."""
    day_ms = 86_400_000
    world = World(transactional_id_expiration_ms=day_ms)
    world.advance(3_000_000)
    for number in range(2 * SWEEP_RECORDS_MAX):
        world.put(S.EMPTY, f"stays-{number}", last_update_ms=WALL_MS)
    world.put(S.EMPTY, "goes", last_update_ms=WALL_MS - day_ms)
    looked_at: list[str] = []
    is_settled: Any = vars(TransactionMetadata)["is_settled"].fget

    def look(metadata: TransactionMetadata) -> bool:
        looked_at.append(metadata.state.wire_name)
        return bool(is_settled(metadata))

    monkeypatch.setattr(TransactionMetadata, "is_settled", property(look))
    world.advance(600_000 - 1)
    assert not looked_at
    for step, is_there in enumerate([True, True, False], 1):
        world.advance(1 if step == 1 else SWEEP_STEP_MS)
        assert len(looked_at) == min(step * SWEEP_RECORDS_MAX, 2 * SWEEP_RECORDS_MAX + 1)
        assert ("goes" in world.shard.transactions) is is_there
    world.advance(3_600_000 - 1)
    assert len(looked_at) == 2 * SWEEP_RECORDS_MAX + 1, "the next search begins in an hour"


# ---- looking


def test_describe() -> None:
    """TX-48"""
    world = World()
    world.put(S.ONGOING, partitions=frozenset({T1, T0, ("s", 4)}))
    found = world.shard.describe(ID)
    assert (found.error_code, found.transaction_state) == (0, "Ongoing")
    assert (found.producer_id, found.producer_epoch) == (PID, EPOCH)
    assert (found.transaction_timeout_ms, found.transaction_start_time_ms) == (
        60_000, WALL_MS - 1_000,
    )  # fmt: skip
    assert [(topic.topic, topic.partitions) for topic in found.topics] == [
        ("s", [4]),
        ("t", [0, 1]),
    ]
