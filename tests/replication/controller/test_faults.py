"""What nobody expected ends the process, whichever loop or callback it happens in; what a client
did wrong, or one publisher, does not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from replication.controller import controller as controller_module
from replication.controller.controller import Controller
from replication.controller.periodic import PeriodicTasks
from replication.metadata.image import MetadataDelta
from replication.metadata.loader import MetadataLoader
from replication.raft.core import RaftCore
from replication.raft.delivery import Delivery
from replication.raft.driver import RaftDriver
from replication.raft.faults import FaultHandler
from replication.raft.own_events import NO_LEADER
from testkit.clock import ManualClock
from tests.replication.controller.test_controller import Node, node
from tests.replication.raft_support import (
    WAIT_S,
    Recorder,
)
from wire.errors import ErrorCode, KafkaError


class Unexpected(Exception):
    """What the parts below are made to raise."""


def fail(*_: Any, **__: Any) -> Any:
    raise Unexpected("nobody thought of this")


class Watched(Node):
    """A node that says when its process would have ended."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, ManualClock(1_000))
        self.ended = threading.Event()
        self.recorder = Recorder()
        self.driver._delivery.listeners.insert(0, self.recorder)
        self.fatal = _Told(self.ended)  # type: ignore[assignment]
        faults = FaultHandler(self.fatal.append)
        for part in (self.driver, self.loader, self.controller):
            part._faults = faults

    def has_ended(self, why: type[BaseException] = Unexpected) -> None:
        assert self.ended.wait(WAIT_S), "the process lives on"
        assert isinstance(self.fatal[0], why)


class _Told(list[BaseException]):
    def __init__(self, ended: threading.Event) -> None:
        super().__init__()
        self._ended = ended

    def append(self, error: BaseException) -> None:
        super().append(error)
        self._ended.set()


@contextmanager
def watched(path: Path, *publishers: Any) -> Iterator[Watched]:
    made = Watched(path)
    made.start(*publishers)
    made.start_broker()
    made.call(made.create("kept"))
    try:
        yield made
    finally:
        made.stop()


def ask(made: Watched) -> None:
    """A request that moves everything: it is decided, replayed, appended, committed, published."""
    made.begin(made.create("more"))


def wake(made: Watched) -> None:
    made.controller._notify()


def lose_and_win(made: Watched) -> None:
    """The controller renounces, the quorum elects this node again, the controller claims."""
    made.driver.resign(made.driver.leader_epoch)
    made.recorder.wait_for(lambda: made.recorder.leaders[-1][0] == NO_LEADER)
    made.clock.ms += 5_000
    with made.driver._wake:
        made.driver._wake.notify()


FAULTS: list[tuple[Any, str, Callable[[Watched], None]]] = [
    # the raft driver's thread, and those it calls
    (RaftDriver, "turn", ask),
    (RaftDriver, "has_work", ask),
    (RaftCore, "step", ask),
    (Delivery, "advance", ask),
    (Controller, "handle_commit", ask),
    (MetadataLoader, "handle_commit", ask),
    (Controller, "handle_leader_change", lose_and_win),
    # the controller's thread
    (Controller, "turn", wake),
    (Controller, "_wait_for_work", ask),
    (Controller, "_take_event", ask),
    (Controller, "_append", ask),
    (RaftDriver, "append", ask),
    (Controller, "_renounce", lose_and_win),
    (controller_module.bootstrap, "activation_records", lose_and_win),
    (Controller, "_hear_waiting_heartbeats", lose_and_win),
    (PeriodicTasks, "next_due_ms", wake),
    (PeriodicTasks, "run", lose_and_win),
    # the loader's
    (MetadataLoader, "turn", ask),
    (MetadataLoader, "_replay", ask),
    (MetadataLoader, "_publish", ask),
    (MetadataLoader, "_maybe_write_snapshot", ask),
]


@pytest.mark.parametrize(("owner", "name", "provoke"), FAULTS, ids=[f"{f[1]}" for f in FAULTS])
def test_an_error_in_a_loop_or_a_callback_ends_the_process_and_takes_nothing(
    owner: Any,
    name: str,
    provoke: Callable[[Watched], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with watched(tmp_path) as made, monkeypatch.context() as broken:
        is_property = isinstance(vars(owner).get(name), property)
        broken.setattr(owner, name, property(fail) if is_property else fail)
        provoke(made)
        made.has_ended()
    assert "failed and the process ends error=Unexpected('nobody thought of this')" in caplog.text
    with node(tmp_path) as again:
        assert "kept" in again.image.topics_by_name
        again.start_broker()
        assert again.call(again.create("after")).topics[0].error_code == 0


def test_the_callback_of_a_publication_is_one_of_them(tmp_path: Path) -> None:
    """The controller's answers come from there: without it nobody is answered any more."""
    with watched(tmp_path) as made:
        made.loader.when_published(fail)
        ask(made)
        made.has_ended()


def test_records_that_cannot_be_replayed_are_not_appended_and_end_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched(tmp_path) as made:
        end_offset = made.driver.log.end_offset
        with monkeypatch.context() as broken:
            broken.setattr(MetadataDelta, "replay_all", fail)
            ask(made)
            made.has_ended()
        assert made.driver.log.end_offset == end_offset


def test_a_driver_whose_listener_cannot_even_be_told_that_nobody_leads_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched(tmp_path) as made, monkeypatch.context() as broken:
        broken.setattr(Controller, "handle_commit", fail)
        broken.setattr(Controller, "handle_leader_change", fail)
        ask(made)
        made.has_ended()


def test_who_waits_for_the_loader_is_let_go_when_it_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched(tmp_path) as made:
        with monkeypatch.context() as broken:
            broken.setattr(MetadataLoader, "_replay", fail)
            ask(made)
            made.has_ended()
        assert made.loader.caught_up_image() is None
        assert not made.loader.install([])


def test_an_upgrade_that_breaks_the_quorum_is_no_request_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched(tmp_path) as made:
        monkeypatch.setattr(RaftDriver, "upgrade_kraft_version", fail)
        with pytest.raises(Unexpected):
            made.controller._upgrade_kraft_version(1, False)
        made.has_ended()


def test_a_decision_that_fails_costs_its_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched(tmp_path) as made:
        with monkeypatch.context() as broken:
            broken.setattr(controller_module, "decide", fail)
            answer = made.call(made.create("more"))
        assert isinstance(answer, KafkaError)
        assert answer.code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert made.call(made.create("more")).topics[0].error_code == 0
        assert made.fatal == []


def test_a_publisher_or_a_snapshot_that_fails_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with watched(tmp_path, fail) as made:
        with monkeypatch.context() as broken:
            broken.setattr(RaftDriver, "write_snapshot", fail)
            made.loader.write_snapshot(made.image)
        assert made.call(made.create("more")).topics[0].error_code == 0
        assert made.fatal == []
    assert "snapshot failed" in caplog.text
    assert "publishing metadata failed" in caplog.text


def test_without_a_way_to_end_a_process_the_error_goes_on() -> None:
    with pytest.raises(Unexpected):
        FaultHandler().fatal("test", Unexpected("x"))
