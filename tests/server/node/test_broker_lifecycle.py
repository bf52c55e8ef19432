"""A broker's life as the controller sees it; time and the controller are played by the test."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from replication.metadata.image import MetadataDelta
from server.network.listeners import Listener
from server.node.broker_lifecycle import BrokerLifecycle, BrokerState, LifecycleConfig
from testkit.clock import ManualTimer
from tests.server.handler_support import broker_registration, image_of
from wire.errors import ErrorCode, KafkaError
from wire.messages.metadata_records import FeatureLevelRecord
from wire.messages.quorum import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)

LISTENERS = [Listener("PLAINTEXT", "one.example", 9092), Listener("INSIDE", "one", 9094)]
DIRECTORY, OTHER_DIRECTORY = b"d" * 16, b"e" * 16


class Life(ManualTimer):
    """Broker 1, its clock and timer, and the controller that answers when the test says so."""

    def __init__(self, is_alone: bool = False, **config: int) -> None:
        super().__init__(1_000)
        self.asked: list[tuple[Any, Any]] = []
        self.fatal: list[BaseException] = []
        self.cordoned: list[bytes] | None = None
        self.brokers = [broker_registration(1), broker_registration(2)]
        self.lifecycle = BrokerLifecycle(
            1,
            "cluster",
            b"i" * 16,
            lambda request, on_answer: self.asked.append((request, on_answer)),
            lambda: image_of(brokers=self.brokers, offset=42),
            self,
            self,
            LifecycleConfig(**config),
            is_alone=is_alone,
            on_fatal=self.fatal.append,
            cordoned_log_dirs=lambda: self.cordoned,
        )

    # the controller

    def start(self) -> BrokerRegistrationRequest:
        self.lifecycle.start(LISTENERS, {"metadata.version": (7, 30)}, "rack-a", [DIRECTORY], 17)
        return self.asked[-1][0]

    def running(self) -> Life:
        self.start()
        self.answer(BrokerRegistrationResponse(error_code=0, broker_epoch=100))
        self.answer(heard(is_fenced=False))
        assert self.lifecycle.state is BrokerState.RUNNING
        return self

    def answer(self, answer: Any) -> Any:
        """Answer the request under way; returns that request."""
        request, on_answer = self.asked.pop(0)
        on_answer(answer)
        return request

    def only(self) -> BrokerHeartbeatRequest:
        """The one request under way, a heartbeat."""
        ((request, _),) = self.asked
        assert isinstance(request, BrokerHeartbeatRequest)
        return request


def heard(
    is_fenced: bool = False,
    should_shut_down: bool = False,
    code: int = 0,
    is_caught_up: bool = True,
) -> BrokerHeartbeatResponse:
    return BrokerHeartbeatResponse(
        error_code=code,
        is_caught_up=is_caught_up,
        is_fenced=is_fenced,
        should_shut_down=should_shut_down,
    )


def test_registration_says_who_the_broker_is_and_where() -> None:
    life = Life()
    request = life.start()
    assert (request.broker_id, request.cluster_id, request.rack) == (1, "cluster", "rack-a")
    assert [(one.name, one.host, one.port) for one in request.listeners] == [
        (one.name, one.host, one.port) for one in LISTENERS
    ]
    assert [one.security_protocol for one in request.listeners] == [0, 0]
    assert (request.log_dirs, request.previous_broker_epoch) == ([DIRECTORY], 17)
    assert life.lifecycle.state is BrokerState.STARTING


def test_a_registered_broker_heartbeats_at_once_until_it_is_unfenced() -> None:
    life = Life()
    life.start()
    life.answer(BrokerRegistrationResponse(error_code=0, broker_epoch=100))
    heartbeat = life.only()
    assert (heartbeat.broker_epoch, heartbeat.current_metadata_offset) == (100, 42)
    assert (heartbeat.want_fence, heartbeat.want_shut_down) == (False, False)
    for is_caught_up, pause_ms in ((False, 10), (False, 10), (True, 10), (True, 20), (True, 40)):
        life.answer(heard(is_fenced=True, is_caught_up=is_caught_up))
        life.pass_(pause_ms - 1)
        assert life.asked == []
        life.pass_(1)
    life.answer(heard(is_fenced=False))
    assert life.lifecycle.state is BrokerState.RUNNING
    assert life.lifecycle.await_running()


def test_a_running_broker_heartbeats_in_every_interval() -> None:
    life = Life().running()
    for _ in range(3):
        life.pass_(1_999)
        assert life.asked == []
        life.pass_(1)
        life.answer(heard())


@pytest.mark.parametrize("is_alone", [False, True])
def test_cordoned_directories_are_told_once_they_are_known_and_at_once_when_they_change(
    is_alone: bool,
) -> None:
    life = Life(is_alone)
    life.lifecycle.cordoned_log_dirs_changed()
    assert life.asked == [], "nobody knows this broker yet"
    life.start()
    life.answer(BrokerRegistrationResponse(error_code=0, broker_epoch=100))
    assert life.only().cordoned_log_dirs is None
    life.answer(heard(is_fenced=False))
    for cordoned in ([DIRECTORY], []):
        life.cordoned = cordoned
        life.lifecycle.cordoned_log_dirs_changed()
        assert life.only().cordoned_log_dirs == cordoned
        life.answer(heard(is_fenced=False))


def test_a_node_alone_sends_no_heartbeats_once_it_runs() -> None:
    life = Life(is_alone=True).running()
    life.pass_(60_000)
    assert life.asked == []
    assert life.is_idle


def test_one_heartbeat_is_under_way_however_slow_the_controller() -> None:
    life = Life().running()
    life.pass_(2_000)
    life.pass_(20_000)
    assert len(life.asked) == 1


@pytest.mark.parametrize(
    "refusal",
    [
        KafkaError(ErrorCode.REQUEST_TIMED_OUT),
        KafkaError(ErrorCode.DUPLICATE_BROKER_REGISTRATION),
        BrokerRegistrationResponse(error_code=101),
    ],
)
def test_registration_is_tried_again_with_growing_pauses(refusal: Any) -> None:
    life = Life()
    life.start()
    for pause_ms in (100, 200, 400, 800, 1000, 1000):
        life.answer(refusal)
        life.pass_(pause_ms - 1)
        assert life.asked == []
        life.pass_(1)
        assert isinstance(life.asked[0][0], BrokerRegistrationRequest)
    life.answer(BrokerRegistrationResponse(error_code=0, broker_epoch=5))
    assert life.lifecycle.broker_epoch == 5


def test_registration_is_given_up_after_its_timeout_with_the_reason() -> None:
    life = Life(initial_broker_registration_timeout_ms=3_000)
    life.start()
    while life.asked:
        life.answer(KafkaError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, "another one lives"))
        life.pass_(1_000)
    assert life.ms == pytest.approx(4_000, abs=1_001)
    with pytest.raises(KafkaError, match=r"initial\.broker\.registration\.timeout\.ms.*another"):
        life.lifecycle.await_running()
    life.pass_(60_000)
    assert life.asked == []


def test_what_no_time_will_heal_fails_at_once() -> None:
    life = Life()
    life.start()
    life.answer(KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, "expected abc"))
    with pytest.raises(KafkaError, match="INCONSISTENT_CLUSTER_ID expected abc"):
        life.lifecycle.await_running()


def test_directories_are_said_again_once_the_cluster_can_know_them() -> None:
    """metadata.version reached 3.7-IV2: no record could hold what the registration said."""
    life = Life().running()
    own = replace(broker_registration(1), incarnation_id=b"i" * 16)
    delta = MetadataDelta(image_of(brokers=[own]))
    delta.replay(FeatureLevelRecord(name="metadata.version", feature_level=17))
    life.lifecycle.on_metadata(delta, delta.apply(43, 1, 1))
    assert life.answer(KafkaError(ErrorCode.REQUEST_TIMED_OUT)).log_dirs == [DIRECTORY]
    life.pass_(100)
    assert life.answer(KafkaError(ErrorCode.REQUEST_TIMED_OUT)).log_dirs == [DIRECTORY]
    life.pass_(200)
    again = BrokerRegistrationResponse(error_code=0, broker_epoch=100)
    assert life.answer(again).incarnation_id == own.incarnation_id
    assert life.only().broker_epoch == 100
    life.answer(heard())
    delta.replay(replace(own, directories=(DIRECTORY,)).to_record())
    life.lifecycle.on_metadata(delta, delta.apply(44, 1, 1))
    assert life.asked == []


def test_a_running_broker_whose_directories_are_refused_goes_on() -> None:
    life = Life().running()
    own = replace(broker_registration(1), incarnation_id=b"i" * 16)
    delta = MetadataDelta(image_of(brokers=[own]))
    delta.replay(FeatureLevelRecord(name="metadata.version", feature_level=17))
    life.lifecycle.on_metadata(delta, delta.apply(43, 1, 1))
    life.answer(KafkaError(ErrorCode.INVALID_REGISTRATION))
    life.pass_(100)
    life.only()
    assert life.lifecycle.state is BrokerState.RUNNING


def test_waiting_to_run_can_be_given_up() -> None:
    life = Life()
    life.start()
    assert not life.lifecycle.await_running(lambda: True)


def test_failed_heartbeats_are_tried_again_soon_and_then_less_often() -> None:
    life = Life().running()
    life.pass_(2_000)
    for pause_ms in (100, 200, 400, 800, 1000):
        life.answer(heard(code=ErrorCode.STALE_BROKER_EPOCH))
        life.pass_(pause_ms - 1)
        assert life.asked == []
        life.pass_(1)
    life.answer(heard())
    life.pass_(1_999)
    assert life.asked == []


def test_a_broker_that_was_fenced_while_it_slept_asks_until_it_is_not(caplog: Any) -> None:
    life = Life().running()
    life.pass_(2_000)
    life.answer(heard(is_fenced=True))
    assert life.lifecycle.is_fenced
    assert "fenced by the controller" in caplog.text
    life.pass_(10)
    life.answer(heard(is_fenced=False))
    assert not life.lifecycle.is_fenced
    life.pass_(1_999)
    assert life.asked == []


def test_a_failed_directory_is_reported_at_once_and_ever_after() -> None:
    life = Life().running()
    life.lifecycle.log_dir_failed(DIRECTORY)
    assert life.only().offline_log_dirs == [DIRECTORY]
    life.answer(heard())
    life.pass_(2_000)
    assert life.only().offline_log_dirs == [DIRECTORY]
    life.pass_(60_000)
    assert life.fatal == []


def test_a_directory_that_fails_while_a_heartbeat_is_under_way_goes_with_the_next() -> None:
    life = Life().running()
    life.pass_(2_000)
    life.lifecycle.log_dir_failed(DIRECTORY)
    life.lifecycle.log_dir_failed(OTHER_DIRECTORY)
    assert life.answer(heard()).offline_log_dirs == []
    assert life.only().offline_log_dirs == [DIRECTORY, OTHER_DIRECTORY]


def test_a_failed_directory_nobody_hears_of_ends_the_process() -> None:
    life = Life().running()
    life.lifecycle.log_dir_failed(DIRECTORY)
    for _ in range(40):
        if life.asked:
            life.answer(KafkaError(ErrorCode.REQUEST_TIMED_OUT))
        life.pass_(1_000)
    assert len(life.fatal) == 1
    assert "log.dir.failure.timeout.ms" in str(life.fatal[0])


def in_background(call: Any) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def test_controlled_shutdown_asks_until_the_controller_lets_it_go() -> None:
    life = Life().running()
    life.lifecycle.begin_controlled_shutdown()
    assert life.only().want_shut_down
    for _ in range(3):
        life.answer(heard(should_shut_down=False))
        life.pass_(50)
        assert life.only().want_shut_down
    waiter = in_background(lambda: life.lifecycle.await_controlled_shutdown(60))
    life.answer(heard(should_shut_down=True))
    waiter.join(60)
    assert not waiter.is_alive()
    life.pass_(60_000)
    assert life.asked == []
    assert life.lifecycle.state is BrokerState.SHUTTING_DOWN


def test_controlled_shutdown_follows_a_heartbeat_that_is_under_way() -> None:
    life = Life().running()
    life.pass_(2_000)
    life.lifecycle.begin_controlled_shutdown()
    assert not life.answer(heard()).want_shut_down
    assert life.only().want_shut_down


def test_the_last_broker_stops_without_asking() -> None:
    life = Life().running()
    life.brokers = [broker_registration(1), broker_registration(2, fenced=True)]
    life.lifecycle.await_controlled_shutdown(60)
    assert life.asked == []


def test_without_controlled_shutdown_a_broker_stops_without_asking() -> None:
    life = Life(controlled_shutdown_enable=False).running()
    life.lifecycle.await_controlled_shutdown(60)
    assert life.lifecycle.state is BrokerState.RUNNING
    life.lifecycle.shutdown()
    life.pass_(60_000)
    assert life.asked == []  # the others learn of it from the silence


def test_a_broker_that_never_ran_stops_without_asking() -> None:
    life = Life()
    life.start()
    life.lifecycle.await_controlled_shutdown(60)
    assert isinstance(life.asked[0][0], BrokerRegistrationRequest)
    assert len(life.asked) == 1


def test_controlled_shutdown_is_given_up_when_no_controller_answers(caplog: Any) -> None:
    life = Life().running()

    def say_nothing_for_a_session(*_asked: Any) -> None:
        life.ms += 9_001

    life.lifecycle._submit = say_nothing_for_a_session
    life.lifecycle.await_controlled_shutdown(3_600)
    assert "controlled shutdown given up" in caplog.text


def test_after_shutdown_nothing_is_said_and_late_answers_are_ignored() -> None:
    life = Life().running()
    life.pass_(2_000)
    life.lifecycle.shutdown()
    life.answer(heard())
    life.lifecycle.log_dir_failed(DIRECTORY)
    life.pass_(60_000)
    assert life.asked == []
    assert life.fatal == []
