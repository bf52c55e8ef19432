"""The controller without threads: turn by turn, on a log and a loader moved by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from replication.controller import context
from replication.controller.context import ControllerConfig
from replication.controller.controller import Controller
from replication.metadata.image import (
    EMPTY_IMAGE,
    ControllerRegistration,
    MetadataDelta,
    MetadataImage,
    TransactionBuffer,
)
from replication.metadata.record_serde import MetadataRecordSerde
from replication.raft.driver import CommittedBatch
from replication.raft.voter_set import VoterSet
from testkit.clock import ManualClock
from tests.replication.controller_support import CLUSTER_ID, Cluster, Schema, new_topic
from wire.errors import ErrorCode, KafkaError
from wire.messages import metadata_records as m
from wire.messages.admin import (
    CreateTopicsRequest,
    IncrementalAlterConfigsRequest,
)
from wire.messages.quorum import BrokerHeartbeatRequest, BrokerRegistrationRequest


class Quorum:
    """Driver and loader in one: `commit` makes what was appended committed and published."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.committed = 0
        self.between: list[Any] = []
        """What the quorum itself writes before the next append."""
        self.epoch = -1
        self.image: MetadataImage = EMPTY_IMAGE
        self.published: list[Any] = []
        self.listeners: list[Controller] = []
        self.voters = VoterSet.of_ids(1)
        self._transactions = TransactionBuffer()
        self._serde = MetadataRecordSerde()

    # as the driver
    def add_listener(self, listener: Controller) -> None:
        self.listeners.append(listener)

    def next_offset(self, epoch: int) -> int:
        if epoch != self.epoch:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        return len(self.records)

    def append(self, epoch: int, records: Sequence[Any]) -> int:
        assert epoch == self.epoch
        self.records += self.between
        self.between = []
        self.records += [self._serde.decode(self._serde.encode(record)) for record in records]
        return len(self.records) - 1

    # as the loader
    @property
    def in_transaction(self) -> bool:
        return self._transactions.in_transaction

    def when_published(self, callback: Any) -> None:
        self.published.append(callback)

    # for tests
    def elect(self, leader_id: int, epoch: int) -> None:
        """What is not committed is gone; `leader_id` leads."""
        del self.records[self.committed :]
        self.epoch = epoch if leader_id == 1 else -1
        for listener in self.listeners:
            listener.handle_leader_change(leader_id, epoch)

    def deliver(self) -> None:
        """The driver commits all there is; the loader is not that far yet."""
        first, self.committed = self.committed, len(self.records)
        if first == self.committed:
            return
        batch = CommittedBatch(
            first, self.committed - 1, max(self.epoch, 1), 1, 100, self.records[first:]
        )
        for listener in self.listeners:
            listener.handle_commit([batch])

    def load(self) -> None:
        """The loader replays what is committed and publishes."""
        delta = MetadataDelta(self.image)
        first = self.image.offset + 1
        delta.replay_all(self._transactions.filter(self.records[first : self.committed]))
        self.image = delta.apply(self.committed - 1, max(self.epoch, 1), 1)
        for callback in self.published:
            callback(self.image.offset)

    def commit(self) -> None:
        self.deliver()
        self.load()


class Made:
    """A controller on that quorum."""

    def __init__(
        self,
        quorum: Quorum | None = None,
        registration: ControllerRegistration | None = None,
        **config: Any,
    ) -> None:
        self.clock = ManualClock(1_000)
        self.quorum = quorum or Quorum()
        self.woken = 0
        self.controller = Controller(
            ControllerConfig(node_id=1, cluster_id=CLUSTER_ID, **config),
            self.quorum,  # type: ignore[arg-type]
            self.quorum,  # type: ignore[arg-type]
            MetadataRecordSerde(),
            self.clock,
            Schema(),
            new_id=iter(bytes([number]) * 16 for number in range(1, 200)).__next__,
            registration=registration,
        )
        self.controller.on_wake = self._wake

    def _wake(self) -> None:
        self.woken += 1

    def turns(self) -> int:
        """Turn until there is nothing more to do."""
        for count in range(1000):
            if not self.controller.turn():
                return count
        raise AssertionError("work without end")

    def activate(self, epoch: int = 1) -> Made:
        self.quorum.elect(1, epoch)
        self.turns()
        self.quorum.commit()
        return self

    def ask(self, request: Any) -> list[Any]:
        """The answers, once they come."""
        answers: list[Any] = []
        self.controller.submit(request, answers.append)
        return answers

    def call(self, request: Any) -> Any:
        answers = self.ask(request)
        self.turns()
        self.quorum.commit()
        (answer,) = answers
        return answer

    def start_broker(self, broker_id: int, incarnation: int = 1) -> int:
        support = Cluster()
        support.register(broker_id, incarnation)
        known = support.image.brokers[broker_id]
        registered = self.call(
            BrokerRegistrationRequest(
                broker_id=broker_id, cluster_id=CLUSTER_ID, incarnation_id=known.incarnation_id,
                listeners=[],
                features=[
                    BrokerRegistrationRequest.Feature(
                        name=name, min_supported_version=r.minimum,
                        max_supported_version=r.maximum,
                    )
                    for name, r in known.features.items()
                ],
                rack=None, log_dirs=list(known.directories),
            )
        )  # fmt: skip
        assert not self.heartbeat(broker_id).is_fenced
        return int(registered.broker_epoch)

    def heartbeat_of(self, broker_id: int) -> BrokerHeartbeatRequest:
        return BrokerHeartbeatRequest(
            broker_id=broker_id, broker_epoch=self.quorum.image.brokers[broker_id].broker_epoch,
            current_metadata_offset=self.quorum.image.offset, want_fence=False,
            want_shut_down=False,
        )  # fmt: skip

    def heartbeat(self, broker_id: int) -> Any:
        return self.call(self.heartbeat_of(broker_id))

    def create(self, name: str, partitions: int, factor: int = 1) -> None:
        request = CreateTopicsRequest(
            topics=[new_topic(name, partitions, factor)], validate_only=False
        )
        assert self.call(request).topics[0].error_code == 0


@pytest.fixture
def made() -> Made:
    return Made().activate()


TOPIC = CreateTopicsRequest(topics=[new_topic("orders", 1, 1)], validate_only=False)


def test_a_turn_is_one_request_and_an_idle_turn_says_so(made: Made) -> None:
    assert made.turns() == 0
    first, second = made.ask(TOPIC), made.ask(object())
    assert made.woken >= 2
    assert made.controller.turn()
    assert made.controller.turn()
    assert not made.controller.turn()
    made.quorum.commit()
    assert first[0].topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert second[0].code == ErrorCode.UNSUPPORTED_VERSION


def test_voters_written_while_the_controller_decides_do_not_fail_the_decision(made: Made) -> None:
    made.start_broker(1)
    made.quorum.between = [m.NoOpRecord()]
    answers = made.ask(TOPIC)
    made.turns()
    made.quorum.committed = len(made.quorum.records) - 1
    made.quorum.load()
    assert answers == [], "its record is not committed yet"
    made.quorum.commit()
    assert answers[0].topics[0].error_code == 0
    again = made.call(TOPIC)
    assert again.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_node_alone_has_nothing_due(made: Made) -> None:
    made.start_broker(1)
    assert made.controller.next_due_ms() is None


def test_a_cluster_has_and_the_turn_at_that_time_does_it(made: Made) -> None:
    made.start_broker(1)
    made.start_broker(2)
    due_ms = made.controller.next_due_ms()
    assert due_ms == made.clock.ms + 500
    made.clock.ms = due_ms - 1
    assert made.turns() == 0
    made.clock.ms = due_ms
    count = len(made.quorum.records)
    assert made.turns() == 1
    assert [type(r) for r in made.quorum.records[count:]] == [m.NoOpRecord]


def test_a_silent_broker_is_fenced_when_its_session_ends_not_a_second_later(made: Made) -> None:
    made.start_broker(1)
    made.start_broker(2)
    began_ms = made.clock.ms
    while (due_ms := made.controller.next_due_ms()) is not None and due_ms < began_ms + 9_000:
        made.clock.ms = due_ms
        made.turns()
    made.clock.ms = began_ms + 9_000
    made.turns()
    made.quorum.commit()
    assert made.quorum.image.brokers[2].fenced


def test_a_process_that_died_as_controller_and_broker_leads_nothing_until_it_registers() -> None:
    first = Made().activate()
    first.start_broker(1)
    first.start_broker(2)
    quorum = first.quorum
    quorum.listeners.remove(first.controller)
    quorum.published.clear()
    again = Made(quorum, ControllerRegistration(1, b"\x77" * 16, {}, {})).activate(epoch=2)
    assert again.controller.is_active
    again.turns()
    quorum.commit()
    brokers = quorum.image.brokers
    assert (brokers[1].fenced, brokers[2].fenced) == (True, False)


def test_a_controller_that_stood_still_fences_nobody(made: Made) -> None:
    made.start_broker(1)
    made.start_broker(2)
    made.clock.ms += 60_000
    made.turns()
    made.quorum.commit()
    assert not made.quorum.image.brokers[2].fenced


@pytest.mark.parametrize("idle_ms", [0, 500, 60_000])
@pytest.mark.parametrize("still_ms", [6_000, 8_000, 9_500, 60_000])
def test_how_long_it_stood_still_is_known_whatever_it_waited_for(
    idle_ms: int, still_ms: int
) -> None:
    """No NoOpRecord is due before the session ends; the heartbeats are in sockets not yet read."""
    made = Made(metadata_max_idle_interval_ms=idle_ms).activate()
    made.start_broker(1)
    made.start_broker(2)
    began_ms = made.clock.ms
    while (due_ms := made.controller.next_due_ms()) is not None and due_ms < began_ms + 2_000:
        made.clock.ms = due_ms
        made.turns()
    made.clock.ms = began_ms + 2_000 + still_ms
    for _ in range(10):  # until it has read them
        made.turns()
        made.clock.ms += 100
    made.quorum.commit()
    assert not made.quorum.image.brokers[2].fenced


def test_heartbeats_in_the_queue_of_a_busy_controller_count(made: Made) -> None:
    made.start_broker(1)
    made.start_broker(2)
    for _ in range(100):
        made.ask(object())
    for _ in range(20):  # it gets to one request a second, and a heartbeat comes each second
        made.ask(made.heartbeat_of(2))
        made.clock.ms += 1_000
        made.controller.turn()
    made.quorum.commit()
    assert not made.quorum.image.brokers[2].fenced


def test_nobody_else_takes_away_a_heartbeat_that_waits(made: Made) -> None:
    """What is said in a broker's name with an epoch that is not its own is none of its heartbeats,
    and does not take the place of one."""
    made.start_broker(1)
    made.start_broker(2)
    for _ in range(8):
        made.clock.ms += 1_000
        made.turns()
    for _ in range(4):
        made.ask(object())
    made.ask(made.heartbeat_of(2))
    another = made.heartbeat_of(2)
    another.broker_epoch -= 1
    made.ask(another)
    for _ in range(3):
        made.clock.ms += 1_000
        made.controller.turn()
    made.quorum.commit()
    assert not made.quorum.image.brokers[2].fenced


def test_requests_wait_while_the_loader_catches_up() -> None:
    first = Made().activate()
    first.start_broker(1)
    quorum = first.quorum
    second = Made(quorum)
    second.controller.handle_commit(
        [CommittedBatch(0, quorum.committed - 1, 1, 1, 1, quorum.records)]
    )
    loaded, quorum.image = quorum.image, EMPTY_IMAGE
    quorum.listeners.remove(first.controller)
    quorum.elect(1, 2)
    answers = second.ask(TOPIC)
    assert second.turns() == 1, "the leader change only"
    assert not second.controller.is_active
    quorum.image = loaded
    woken = second.woken
    for callback in quorum.published:
        callback(loaded.offset)
    assert second.woken > woken
    second.turns()
    assert second.controller.is_active
    quorum.commit()
    assert answers[0].topics[0].error_code == 0


def test_what_is_not_committed_when_leadership_ends_is_answered_not_controller(made: Made) -> None:
    made.start_broker(1)
    committed = made.ask(TOPIC)
    made.turns()
    made.quorum.deliver()
    lost = made.ask(CreateTopicsRequest(topics=[new_topic("lost", 1, 1)], validate_only=False))
    made.turns()
    made.quorum.elect(2, 9)
    made.turns()
    assert lost[0].code == ErrorCode.NOT_CONTROLLER
    assert committed == [], "it waits for the loader"
    made.quorum.load()
    assert committed[0].topics[0].error_code == 0
    assert made.ask(TOPIC) == []
    made.activate(10)
    again = made.call(CreateTopicsRequest(topics=[new_topic("lost", 1, 1)], validate_only=False))
    assert again.topics[0].error_code == 0, "no trace of the first try"


def test_a_restarted_image_gives_every_broker_a_fresh_session(made: Made) -> None:
    made.start_broker(1)
    made.start_broker(2)
    made.clock.ms += 8_000
    made.quorum.elect(2, 2)
    made.turns()
    made.clock.ms += 8_000
    made.activate(3)
    made.clock.ms += 8_000
    made.turns()
    made.quorum.commit()
    assert not made.quorum.image.brokers[2].fenced


@pytest.fixture
def many(made: Made, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Brokers 1 and 2 share 60 partitions, and a batch holds 50 records."""
    made.start_broker(1)
    made.start_broker(2)
    made.create("many", 60, 2)
    monkeypatch.setattr(context, "RECORDS_PER_BATCH_MAX", 50)
    return made


def when_fenced(made: Made, *silent: int) -> dict[int, int]:
    """How long the new controller waits for each of these brokers."""
    began_ms = made.clock.ms
    fenced_ms: dict[int, int] = {}
    while len(fenced_ms) < len(silent):
        due_ms = made.controller.next_due_ms()
        assert due_ms is not None
        made.clock.ms = due_ms
        made.turns()
        made.quorum.commit()
        for broker_id in silent:
            if made.quorum.image.brokers[broker_id].fenced:
                fenced_ms.setdefault(broker_id, made.clock.ms - began_ms)
    return fenced_ms


def test_the_broker_of_a_leader_the_quorum_gave_up_has_been_silent_since_then(made: Made) -> None:
    """Node 2 led the quorum and died: its broker need not be waited for a whole session more."""
    made.start_broker(1)
    made.start_broker(2)
    made.start_broker(3)
    for leader_id in (2, -1):
        made.quorum.elect(leader_id, 5)
        made.turns()
    made.clock.ms += 1_000  # elections
    made.activate(6)
    fenced_ms = when_fenced(made, 2, 3)
    assert fenced_ms == {2: 9_000 - 2_000 - 1_000, 3: 9_000}


def test_a_leader_given_up_long_ago_tells_nothing_of_its_broker(made: Made) -> None:
    """Node 2 led, and came back; node 1, which took over, lost the quorum and leads again."""
    made.start_broker(1)
    made.start_broker(2)
    for leader_id in (2, -1):
        made.quorum.elect(leader_id, 5)
        made.turns()
    made.activate(6)
    assert not made.heartbeat(2).is_fenced
    made.quorum.elect(-1, 7)
    made.turns()
    made.clock.ms += 60_000
    made.activate(8)
    assert when_fenced(made, 2) == {2: 9_000}


def test_a_leader_that_is_none_any_more_when_its_controller_hears_of_it_does_nothing(
    made: Made,
) -> None:
    made.controller.handle_leader_change(1, 7)  # as a node that led when it crashed
    made.turns()
    assert not made.controller.is_active


def test_a_node_that_does_not_lead_is_never_late(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    made.quorum.elect(2, 5)
    made.turns()
    made.clock.ms += 100_000
    made.quorum.elect(3, 6)
    made.turns()
    assert "stood still" not in caplog.text


def test_the_death_of_a_broker_with_very_many_partitions_is_one_transaction(many: Made) -> None:
    made = many
    count = len(made.quorum.records)
    request = made.heartbeat_of(2)
    request.want_fence = True
    answers = made.ask(request)
    made.turns()
    written = made.quorum.records[count:]
    assert type(written[0]) is m.BeginTransactionRecord
    assert type(written[-1]) is m.EndTransactionRecord
    changes = [r for r in written if type(r) is m.PartitionChangeRecord]
    assert len(changes) == 60
    # Half of it committed: readers see nothing of it yet.
    made.quorum.committed = count + 50
    made.quorum.load()
    assert not made.quorum.image.brokers[2].fenced
    assert answers == []
    made.quorum.commit()
    assert made.quorum.image.brokers[2].fenced
    assert answers[0].is_fenced
    partitions = made.quorum.image.topics_by_name["many"].partitions.values()
    assert {p.leader for p in partitions} == {1}


def test_a_transaction_the_leader_died_in_is_aborted_and_done_again(many: Made) -> None:
    made = many
    count = len(made.quorum.records)
    request = made.heartbeat_of(2)
    request.want_fence = True
    answers = made.ask(request)
    made.turns()
    made.quorum.committed = count + 50
    made.quorum.load()
    made.activate(5)
    assert answers[0].code == ErrorCode.NOT_CONTROLLER
    assert not made.quorum.image.brokers[2].fenced
    assert made.call(request).is_fenced
    assert made.quorum.image.brokers[2].fenced


def test_where_there_are_no_transactions_yet_a_broker_of_very_many_partitions_is_unfenced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its registration is written without the marks of one, and nobody else writes anything: a node
    alone would wait for what stands behind them for ever."""
    made = Made(features={"metadata.version": context.TRANSACTIONS_SINCE - 1}).activate()
    made.start_broker(1)
    made.create("many", 60)
    monkeypatch.setattr(context, "RECORDS_PER_BATCH_MAX", 50)
    made.start_broker(1, incarnation=2)
    assert not any(type(r) is m.BeginTransactionRecord for r in made.quorum.records)


def test_a_changed_config_of_unclean_elections_is_acted_on_in_the_next_turn(made: Made) -> None:
    made.start_broker(1)
    resource = IncrementalAlterConfigsRequest.Resource
    entry = resource.Config(name="unclean.leader.election.enable", config_operation=0, value="true")
    made.create("orders", 1)
    answers = made.ask(
        IncrementalAlterConfigsRequest(
            resources=[resource(resource_type=2, resource_name="orders", configs=[entry])],
            validate_only=False,
        )
    )
    made.controller.turn()
    made.turns()
    assert made.controller.next_due_ms() is None, "done, and the node is alone"
    made.quorum.commit()
    assert answers[0].responses[0].error_code == 0


def test_shutdown_leaves_nobody_without_an_answer(made: Made) -> None:
    made.start_broker(1)
    queued = made.ask(TOPIC)
    made.controller.shutdown()
    assert queued[0].code == ErrorCode.NOT_CONTROLLER
    assert made.ask(TOPIC)[0].code == ErrorCode.NOT_CONTROLLER


def test_another_leaders_records_at_the_same_offsets_are_no_yes_to_what_we_decided(
    made: Made,
) -> None:
    """Found by simulation: the loader published them before the controller's thread had heard that
    it leads no longer, and a partition's leader took its ISR change for committed."""
    made.start_broker(1)
    answers = made.ask(TOPIC)
    made.turns()
    lost = len(made.quorum.records) - made.quorum.committed
    assert lost > 0
    made.quorum.elect(2, 2)
    made.quorum.records += [m.NoOpRecord()] * lost
    made.quorum.commit()
    assert [answer.code for answer in answers] == [ErrorCode.NOT_CONTROLLER]
    made.turns()
    assert len(answers) == 1
