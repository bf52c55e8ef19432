"""The controller with its threads, on a real log: answers, failures, restarts, snapshots."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from replication.controller.bootstrap import SUPPORTED_FEATURES
from replication.controller.context import ControllerConfig
from replication.controller.controller import Controller
from replication.metadata.image import ControllerRegistration, MetadataDelta, MetadataImage
from replication.metadata.loader import MetadataLoader, MetadataPublisher, SnapshotConfig
from replication.metadata.record_serde import MetadataRecordSerde
from replication.raft.driver import RaftDriver
from replication.raft.faults import FaultHandler
from replication.raft.log import RaftLog
from replication.raft.snapshots import SnapshotId
from storage import files
from testkit.clock import ManualClock
from tests.replication.controller_support import CLUSTER_ID, Schema, new_topic
from tests.replication.raft_support import (
    WAIT_S,
    Disk,
)
from wire.errors import ErrorCode, KafkaError
from wire.messages import metadata_records as m
from wire.messages.admin import CreateTopicsRequest, DeleteTopicsRequest
from wire.messages.quorum import BrokerHeartbeatRequest, BrokerRegistrationRequest
from wire.messages.security import CreateDelegationTokenRequest

INVALID_REQUEST = ErrorCode.INVALID_REQUEST


class Node:
    """Quorum, loader and controller of one node, as the broker wires them."""

    def __init__(self, path: Path, clock: ManualClock, snapshot_bytes: int = 1 << 30) -> None:
        serde = MetadataRecordSerde()
        self.clock = clock
        self.fatal: list[BaseException] = []
        faults = FaultHandler(self.fatal.append)
        self.driver = RaftDriver(1, RaftLog.open(path, clock), clock, serde, faults=faults)
        self.loader = MetadataLoader(
            self.driver, clock, snapshot_config=SnapshotConfig(snapshot_bytes, 1 << 40),
            faults=faults,
        )  # fmt: skip
        self.driver.add_listener(self.loader)
        config = ControllerConfig(
            node_id=1, cluster_id=CLUSTER_ID, delegation_token_secret_key="secret"
        )
        registration = ControllerRegistration(1, os.urandom(16), {}, dict(SUPPORTED_FEATURES))
        self.controller = Controller(
            config, self.driver, self.loader, serde, clock, Schema(),
            new_id=lambda: os.urandom(16), registration=registration, faults=faults,
        )  # fmt: skip

    def start(self, *publishers: MetadataPublisher) -> None:
        self.driver.start()
        self.loader.start(publishers)
        self.controller.start()

    def stop(self) -> None:
        # As a node stops: a snapshot that is being written is finished while the driver can still
        # give up the log below it.
        self.controller.shutdown()
        self.loader.shutdown()
        self.driver.shutdown()

    @property
    def image(self) -> MetadataImage:
        return self.loader.image

    def begin(self, request: Any) -> Answer:
        answer = Answer()
        self.controller.submit(request, answer)
        return answer

    def call(self, request: Any) -> Any:
        return self.begin(request).wait()

    def start_broker(self) -> int:
        registration = BrokerRegistrationRequest(
            broker_id=1, cluster_id=CLUSTER_ID, incarnation_id=os.urandom(16), listeners=[],
            features=[
                BrokerRegistrationRequest.Feature(
                    name=name, min_supported_version=r.minimum, max_supported_version=r.maximum
                )
                for name, r in SUPPORTED_FEATURES.items()
            ],
            rack=None, log_dirs=[b"\x55" * 16],
        )  # fmt: skip
        epoch = int(self.call(registration).broker_epoch)
        answer = self.call(
            BrokerHeartbeatRequest(
                broker_id=1, broker_epoch=epoch, current_metadata_offset=self.image.offset,
                want_fence=False, want_shut_down=False,
            )
        )  # fmt: skip
        assert not answer.is_fenced
        return epoch

    def create(self, *names: str) -> Any:
        topics = [new_topic(name, 1, 1) for name in names]
        return CreateTopicsRequest(topics=topics, validate_only=False)


class Answer:
    """What `on_complete` was called with, and that it was once."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.done = threading.Event()

    def __call__(self, value: Any) -> None:
        self.values.append(value)
        self.done.set()

    def wait(self) -> Any:
        assert self.done.wait(WAIT_S), "no answer"
        assert len(self.values) == 1
        return self.values[0]


@contextmanager
def node(path: Path, *publishers: MetadataPublisher, **options: Any) -> Iterator[Node]:
    made = Node(path, ManualClock(1_000), **options)
    made.start(*publishers)
    try:
        yield made
    finally:
        made.stop()


def test_an_answer_comes_after_the_topic_was_published(tmp_path: Path) -> None:
    published: list[set[str]] = []

    def publisher(delta: MetadataDelta, image: MetadataImage) -> None:
        published.append(set(image.topics_by_name))

    with node(tmp_path, publisher) as made:
        made.start_broker()
        seen: list[set[str]] = []
        answer = Answer()

        def on_complete(value: Any) -> None:
            seen.append(set(published[-1]))
            answer(value)

        made.controller.submit(made.create("orders"), on_complete)
        assert answer.wait().topics[0].error_code == 0
        assert seen == [{"orders"}]


def test_the_first_publication_is_the_whole_image(tmp_path: Path) -> None:
    with node(tmp_path) as made:
        made.start_broker()
        made.call(made.create("a", "b"))
    calls: list[tuple[set[str], int]] = []

    def publisher(delta: MetadataDelta, image: MetadataImage) -> None:
        calls.append((set(delta.changed_topics), len(image.topics_by_name)))

    with node(tmp_path, publisher) as made:
        assert calls[0] == ({"a", "b"}, 2)
        made.start_broker()
        made.call(made.create("c"))
        assert calls[-1] == ({"c"}, 3)


def test_even_a_refusal_waits_for_what_it_rests_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "exists already" may not be said before the existing topic is committed."""
    with node(tmp_path) as made:
        made.start_broker()
        entered, release = threading.Event(), threading.Event()
        real = files.fsync

        def slow(fd: int) -> None:
            entered.set()
            assert release.wait(WAIT_S)
            real(fd)

        monkeypatch.setattr(files, "fsync", slow)
        first = made.begin(made.create("orders"))
        assert entered.wait(WAIT_S)
        second = made.begin(made.create("orders"))
        third = made.begin(DeleteTopicsRequest(topic_names=["nope"], timeout_ms=1))
        assert not second.done.wait(0.05)
        assert not first.done.is_set()
        assert not third.done.is_set()
        release.set()
        assert first.wait().topics[0].error_code == 0
        assert second.wait().topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        third.wait()


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    with node(tmp_path) as made:
        made.start_broker()
        made.call(made.create("a"))
        topic_id = made.image.topics_by_name["a"].topic_id
        before = made.image
    with node(tmp_path) as made:
        assert made.image.topics_by_name["a"].topic_id == topic_id
        assert made.image.features == before.features
        epoch = made.start_broker()
        assert epoch > before.brokers[1].broker_epoch
        assert made.image.partition("a", 0).leader == 1  # type: ignore[union-attr]


def test_an_append_that_fails_is_as_if_it_was_never_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with node(tmp_path) as made:
        made.start_broker()
        made.call(made.create("kept"))
        real = files.pwritev

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(files, "pwritev", full)
        lost = made.call(made.create("lost"))
        assert isinstance(lost, KafkaError)
        assert lost.code == ErrorCode.NOT_CONTROLLER
        monkeypatch.setattr(files, "pwritev", real)
        made.clock.ms += 5_000
        with made.driver._wake:
            made.driver._wake.notify()
        answer = _until_active(made, made.create("lost"))
        assert answer.topics[0].error_code == 0, "the failed one left no trace"
        assert sorted(made.image.topics_by_name) == ["kept", "lost"]
        assert made.fatal == []


def _until_active(made: Node, request: Any) -> Any:
    """Retry as a client does until the node leads again."""
    for _ in range(12_000):
        answer = made.call(request)
        if not isinstance(answer, KafkaError) or answer.code != ErrorCode.NOT_CONTROLLER:
            return answer
        threading.Event().wait(0.005)
    raise AssertionError("never became active again")


def test_a_power_cut_at_any_step_keeps_every_acknowledged_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    for step in range(12, 60, 3):
        path = tmp_path / str(step)
        path.mkdir()
        acknowledged: list[str] = []
        disk.fail_at = None
        made = Node(path, ManualClock(1_000), snapshot_bytes=600)
        made.start()
        made.start_broker()
        disk.fail_at = disk.operations + step - 11
        for number in range(8):
            name = f"t{number}"
            answer = made.call(made.create(name))
            if isinstance(answer, KafkaError):
                break
            if answer.topics[0].error_code == 0:
                acknowledged.append(name)
        made.stop()  # the disk fails on: nothing is written any more
        disk.lose_unsynced(path)
        with node(path) as again:
            assert set(acknowledged) <= set(again.image.topics_by_name), f"step {step}"
            again.start_broker()
            assert again.call(again.create("after")).topics[0].error_code == 0


def test_a_snapshot_is_written_when_the_log_has_grown_and_is_what_the_next_start_reads(
    tmp_path: Path,
) -> None:
    with node(tmp_path, snapshot_bytes=2_000) as made:
        made.start_broker()
        for number in range(30):
            made.call(made.create(f"t{number}"))
        before = made.image
    directory = tmp_path / "__cluster_metadata-0"
    found = [name for name in os.listdir(directory) if name.endswith(".checkpoint")]
    assert len(found) == 1
    with node(tmp_path) as made:
        assert isinstance(made.driver.log.latest_snapshot, SnapshotId)
        assert set(made.image.topics_by_name) == set(before.topics_by_name)
        assert made.driver.log.start_offset > 0


def test_a_transaction_that_was_cut_off_is_aborted_at_the_next_start(tmp_path: Path) -> None:
    with node(tmp_path) as made:
        made.start_broker()
        begun = [
            m.BeginTransactionRecord(name="cut"),
            m.TopicRecord(name="half", topic_id=b"\x42" * 16),
        ]
        # As a controller would that dies before the end of its transaction.
        made.controller.shutdown()
        made.driver.append(made.driver.leader_epoch, begun)
    with node(tmp_path) as made:
        made.start_broker()
        made.call(made.create("whole"))
        assert sorted(made.image.topics_by_name) == ["whole"]
        assert made.fatal == []
    with node(tmp_path) as made:
        assert sorted(made.image.topics_by_name) == ["whole"]


def test_a_publisher_that_raises_does_not_stop_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reached: list[int] = []

    def broken(delta: MetadataDelta, image: MetadataImage) -> None:
        raise RuntimeError("bad directory")

    with node(tmp_path, broken, lambda delta, image: reached.append(image.offset)) as made:
        made.start_broker()
        assert made.call(made.create("a")).topics[0].error_code == 0
        assert reached[-1] == made.image.offset
    assert "bad directory" in caplog.text


def test_requests_get_a_clear_answer_when_nobody_can_serve_them(tmp_path: Path) -> None:
    with node(tmp_path) as made:
        unknown = made.call(object())
        assert unknown.code == ErrorCode.UNSUPPORTED_VERSION
    late = made.call(made.create("a"))
    assert late.code == ErrorCode.NOT_CONTROLLER


def test_a_bug_in_one_request_is_answered_and_the_next_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with node(tmp_path) as made:
        made.start_broker()
        broken = made.create("a")
        broken.topics = None
        assert made.call(broken).code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert made.call(made.create("a")).topics[0].error_code == 0


def test_a_record_that_nobody_could_read_back_is_never_written(tmp_path: Path) -> None:
    """`User:` before the longest name that a request can hold: the record was committed, and no
    node started again."""
    renewer = CreateDelegationTokenRequest.Renewer(
        principal_type="User", principal_name="x" * 32_767
    )
    request = CreateDelegationTokenRequest(renewers=[renewer], max_lifetime_ms=-1)
    with node(tmp_path) as made:
        made.start_broker()
        refused = made.call(request)
        assert isinstance(refused, KafkaError)
        assert (refused.code, "at most 32767" in refused.detail) == (INVALID_REQUEST, True)
        assert made.call(made.create("orders")).topics[0].error_code == 0
        assert made.fatal == []
    with node(tmp_path) as again:
        assert set(again.image.topics_by_name) == {"orders"}


def test_a_committed_record_that_contradicts_the_image_is_fatal(tmp_path: Path) -> None:
    with node(tmp_path) as made:
        made.start_broker()
        made.controller.shutdown()
        made.driver.append(made.driver.leader_epoch, [m.RemoveTopicRecord(topic_id=b"\x01" * 16)])
        deadline = threading.Event()
        for _ in range(12_000):
            if made.fatal:
                break
            deadline.wait(0.005)
        assert isinstance(made.fatal[0], ValueError)
