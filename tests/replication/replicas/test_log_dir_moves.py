"""Moving a replica between the log directories of its node (AlterReplicaLogDirs, KIP-113)."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from replication.metadata.image import (
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    EMPTY_IMAGE,
    METADATA_VERSION,
    MetadataDelta,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from replication.partition import partition as partition_module
from replication.partition.follower_writes import (
    append_records_to_follower,
    truncate_follower_fully,
    truncate_follower_to,
)
from replication.partition.partition import Partition
from replication.replicas.log_dir_moves import LogDirMoves, MoveState
from replication.replicas.replica_manager import (
    AppendRequest,
    AppendResult,
    ClusterLinks,
    FetchPartition,
    FetchResult,
    ReplicaManager,
    ReplicaManagerConfig,
)
from replication.replicas.timer import Timer
from storage import files
from storage.checkpoint import PARTITION_METADATA, write_partition_metadata
from storage.config import LogConfig
from storage.directories.log_manager import LogManager
from storage.log.partition_log import PartitionLog
from storage.log.truncation import FilesBehind
from testkit.clock import WALL_MS, ManualClock
from testkit.wait import HANGS_S
from wire.errors import ErrorCode, KafkaError
from wire.messages.quorum import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse
from wire.primitives import TopicPartition
from wire.record_batch import patch_for_log
from wire.records import Record, build_batch, iterate_headers, read_records

NODE = 1
ORDERS_ID = b"orders-topic-id!"
ORDERS_0 = TopicPartition("orders", 0)
A_ID, B_ID = b"directory a -id!", b"directory b -id!"


class Scheduler:
    """Jobs run when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[str, Callable[[], object]]] = []

    def schedule_once(self, name: str, delay_ms: int, fn: Callable[[], object]) -> Any:
        self.jobs.append((name, fn))

    def schedule(self, name: str, period_ms: int, fn: Any, delay_ms: int | None = None) -> Any:
        raise AssertionError("a node alone has no periodic work of replication")

    def run(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            jobs, self.jobs = self.jobs, []
            for _, job in jobs:
                job()


class Node:
    """A broker with the directories `a` and `b` and one partition; the controller is the test."""

    def __init__(
        self,
        root: Path,
        config: LogConfig | None = None,
        *,
        leader: int = NODE,
        epoch: int = 0,
        directory: bytes = A_ID,
        metadata_version: int = 30,
    ) -> None:
        self.root = root
        self.a, self.b = root / "a", root / "b"
        for path in (self.a, self.b):
            path.mkdir(exist_ok=True)
        self.clock, self.scheduler = ManualClock(1_000), Scheduler()
        self.timer = Timer(self.clock)
        self.config = config or LogConfig(file_delete_delay_ms=0)
        self.asked: list[tuple[AssignReplicasToDirsRequest, Callable[[Any], None]]] = []
        self.failed: list[Path] = []
        self.logs = LogManager(
            {self.a: A_ID, self.b: B_ID},
            self.config,
            self.clock,
            self.scheduler,
            lambda path, error: self.failed.append(path),
        )
        self.logs.startup(lambda topic: self.config)
        self.image = replace(EMPTY_IMAGE, features={METADATA_VERSION: metadata_version})
        self.manager = ReplicaManager(
            ReplicaManagerConfig(),
            self.logs,
            lambda: self.image,
            self.timer,
            self.clock,
            NODE,
            topic_config=lambda topic: self.config,
            own_links=self.links,
        )
        self.apply(registration(leader, epoch, directory))

    def links(self) -> ClusterLinks:
        def run_fetcher(*_: Any) -> Any:
            raise AssertionError("nobody is fetched from")

        return ClusterLinks(
            lambda request, on_answer: self.asked.append((request, on_answer)),
            lambda: 7,
            run_fetcher,
            "PLAINTEXT",
            self.scheduler,
        )

    def apply(self, *partitions: PartitionRegistration) -> None:
        topics = {}
        if partitions:
            topic = TopicImage("orders", ORDERS_ID, dict(enumerate(partitions)))
            topics = {"orders": topic}
        before, self.image = self.image, image_of(self.image, topics)
        delta = MetadataDelta(before)
        if topics:
            delta.changed_topics.add("orders")
        else:
            delta.deleted_topics["orders"] = ORDERS_ID
        self.manager.apply_delta(delta, self.image)

    def apply_topics(self, changed: str, *topics: TopicImage) -> None:
        before, named = self.image, {topic.name: topic for topic in topics}
        self.image = image_of(before, named)
        delta = MetadataDelta(before)
        if changed in named:
            delta.changed_topics.add(changed)
        old = before.topics_by_name.get(changed)
        if old is not None and named.get(changed) is not old:
            delta.deleted_topics[changed] = old.topic_id
        self.manager.apply_delta(delta, self.image)

    # what a client does

    def append(self, *values: str, producer: tuple[int, int] | None = None) -> AppendResult:
        results: list[list[AppendResult]] = []
        self.manager.append_records(
            AppendRequest(
                1, 1000, [(ORDERS_0, batch(*values, producer=producer))], results.append
            )
        )  # fmt: skip
        return results[0][0]

    def read(self, offset: int = 0) -> list[str]:
        results: list[list[FetchResult]] = []
        asked = [FetchPartition("orders", ORDERS_ID, 0, offset)]
        self.manager.fetch(-1, 0, 1, 1 << 20, 0, asked, results.append)
        ((result,),) = results
        assert result.error_code == 0
        if result.records is None:
            return []
        data = result.records.read()
        result.records.close()
        return values_of(data)

    def move(self, to: Path) -> None:
        self.manager.alter_replica_log_dir(ORDERS_0, str(to))

    # what can be seen

    @property
    def state(self) -> MoveState | None:
        moves = self.manager._moves
        return None if moves is None else moves.state(ORDERS_0)

    def described(self) -> list[tuple[str, bool, int]]:
        """(directory, is future, lag) of each log."""
        return [
            (Path(info.path).name, replica.is_future, replica.offset_lag)
            for info in self.manager.describe_log_dirs(lambda *_: True)
            for replica in info.partitions
        ]

    def dirs(self) -> list[str]:
        return sorted(
            f"{path.parent.name}/{path.name.partition('.')[0]}{path.suffix and path.suffix[33:]}"
            for parent in (self.a, self.b)
            for path in parent.iterdir()
            if path.is_dir()
        )

    def controller_knows(self, code: int = 0) -> list[bytes]:
        """Answer what it was told; the directories it was told."""
        told = []
        asked, self.asked = self.asked, []
        for request, on_answer in asked:
            response = AssignReplicasToDirsResponse.Directory
            told += [directory.id for directory in request.directories]
            on_answer(
                AssignReplicasToDirsResponse(
                    error_code=0,
                    directories=[
                        response(
                            id=directory.id,
                            topics=[
                                response.Topic(
                                    topic_id=topic.topic_id,
                                    partitions=[
                                        response.Topic.Partition(
                                            partition_index=p.partition_index, error_code=code
                                        )
                                        for p in topic.partitions
                                    ],
                                )
                                for topic in directory.topics
                            ],
                        )
                        for directory in request.directories
                    ],
                )
            )
        return told

    def finish_move(self) -> None:
        self.scheduler.run(3)
        self.controller_knows()
        self.scheduler.run(3)
        assert self.state is None

    def stop(self) -> None:
        self.manager.shutdown()
        self.logs.shutdown()


def registration(
    leader: int = NODE, epoch: int = 0, directory: bytes = A_ID, partition_epoch: int | None = None
) -> PartitionRegistration:
    return PartitionRegistration(
        (NODE, 2) if leader != NODE else (NODE,),
        (directory, B_ID) if leader != NODE else (directory,),
        (NODE, 2) if leader != NODE else (NODE,),
        leader,
        leader_epoch=epoch,
        partition_epoch=epoch if partition_epoch is None else partition_epoch,
    )


def image_of(before: MetadataImage, topics: dict[str, TopicImage]) -> MetadataImage:
    return replace(
        before,
        offset=before.offset + 1,
        topics_by_name=topics,
        topics_by_id={topic.topic_id: topic for topic in topics.values()},
    )


def batch(*values: str, producer: tuple[int, int] | None = None) -> bytes:
    more: dict[str, int] = {}
    records = [Record(-1, WALL_MS, None, value.encode()) for value in values]
    if producer is not None:
        more |= {"producer_id": producer[0], "producer_epoch": 0, "base_sequence": producer[1]}
    return build_batch(records, **more)


def stamped(data: bytes, offset: int, epoch: int) -> bytes:
    """As a leader sends it."""
    return bytes(patch_for_log(data, offset, epoch)) + data[16:]


def values_of(data: bytes) -> list[str]:
    return [
        (record.value or b"").decode()
        for position, header in iterate_headers(data)
        for record in read_records(data, position, header)
    ]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_replica_moves_with_all_it_has(node: Node) -> None:
    for number in range(5):
        node.append(f"r{number}", producer=(9, number))
    node.apply(registration(epoch=3))  # an epoch without a record (KAFKA-15608)
    partition = node.manager.partition(ORDERS_0)
    before = partition.open_log()
    epochs = before.leader_epochs.entries
    assert [entry.epoch for entry in epochs] == [0, 3]
    node.move(node.b)
    assert node.described() == [("a", False, 0), ("b", True, 5)]
    node.finish_move()
    log = partition.open_log()
    assert log is not before
    assert log.directory == node.b / "orders-0"
    assert log.leader_epochs.entries == epochs
    assert log.high_watermark == 5
    assert partition.leader_log is log
    assert node.read() == [f"r{number}" for number in range(5)]
    assert node.append("again", producer=(9, 4)).base_offset == 4  # a duplicate, still known
    assert node.append("next", producer=(9, 5)).base_offset == 5
    assert node.described() == [("b", False, 0)]
    node.scheduler.run(2)
    assert node.dirs() == ["b/orders-0"]


def test_what_is_appended_during_the_move_is_there_after_it(node: Node) -> None:
    node.append("before")
    node.move(node.b)
    node.scheduler.run(2)
    node.append("while the controller is told")
    node.controller_knows()
    node.append("at the last moment")
    node.scheduler.run(2)
    assert node.state is None
    assert node.append("after").base_offset == 3
    assert node.read() == [
        "before", "while the controller is told", "at the last moment", "after",
    ]  # fmt: skip


def test_a_replica_has_moved_although_there_is_no_descriptor_to_sync_its_name_with(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fetcher must hear of it, or it is followed no more; the old log goes when it may."""
    node.append("a")
    node.move(node.b)
    moves = node.manager._moves
    assert moves is not None
    moved: list[Partition] = []
    monkeypatch.setattr(moves, "_on_moved", moved.append)
    with monkeypatch.context() as taken:
        sync = files.sync_directory

        def sync_directory(path: Path) -> None:
            if path == node.b and (path / "orders-0").exists():
                raise OSError(errno.EMFILE, "too many open files")
            sync(path)

        taken.setattr(files, "sync_directory", sync_directory)
        node.finish_move()
        assert moved == [node.manager.partition(ORDERS_0)]
        node.scheduler.run(2)
        assert node.dirs() == ["a/orders-0", "b/orders-0"]
    node.scheduler.run(3)
    assert node.dirs() == ["b/orders-0"]
    assert node.read() == ["a"]
    assert node.failed == []


def test_the_controller_knows_before_the_replica_is_elsewhere(node: Node) -> None:
    node.append("a")
    node.move(node.b)
    node.scheduler.run(5)
    assert node.state is MoveState.ASSIGNING
    assert [
        (r.broker_id, r.broker_epoch, [d.id for d in r.directories]) for r, _ in node.asked
    ] == [(NODE, 7, [B_ID])]
    node.scheduler.run(5)
    log = node.manager.partition(ORDERS_0).open_log()
    assert log.directory.parent == node.a
    node.controller_knows()
    # Its record may come as metadata before the move is done: nothing is reported back.
    node.apply(registration(directory=B_ID, partition_epoch=1))
    node.scheduler.run(2)
    assert node.asked == []
    assert node.manager.partition(ORDERS_0).open_log().directory.parent == node.b


def test_metadata_that_knows_no_directory_yet_does_not_end_the_telling(tmp_path: Path) -> None:
    """A leader is elected before the controller has written where the replica is: to report the
    old directory once more must not leave the move without an answer.
    """
    node = Node(tmp_path, directory=DIRECTORY_UNASSIGNED)
    node.append("a")
    node.move(node.b)
    node.scheduler.run(3)
    assert node.state is MoveState.ASSIGNING
    assert node.controller_knows() == [A_ID]
    node.apply(registration(directory=DIRECTORY_UNASSIGNED, partition_epoch=1))
    for _ in range(4):
        node.scheduler.run()
        node.controller_knows()
    assert node.state is None
    assert node.dirs() == ["b/orders-0"]
    assert node.asked == []
    node.stop()


def test_replicas_are_reported_when_the_cluster_begins_to_know_directories(tmp_path: Path) -> None:
    node = Node(tmp_path, directory=DIRECTORY_MIGRATING, metadata_version=16)
    node.apply(registration(directory=DIRECTORY_MIGRATING, partition_epoch=1))
    assert node.asked == [], "no record could say it"
    before, node.image = node.image, replace(node.image, features={METADATA_VERSION: 17})
    node.manager.apply_delta(MetadataDelta(before), node.image)
    assert node.controller_knows() == [A_ID]
    node.stop()


def test_a_log_that_starts_within_a_batch_is_copied(node: Node) -> None:
    node.append("a", "b", "c")
    node.append("d")
    node.manager.delete_records({ORDERS_0: 1}, 1000, lambda _: None)
    node.move(node.b)
    node.finish_move()
    log = node.manager.partition(ORDERS_0).open_log()
    assert (log.log_start_offset, log.log_end_offset) == (1, 4)
    assert node.read(1) == ["a", "b", "c", "d"]  # batches are sent whole


def test_a_log_without_records_moves_with_its_offsets(node: Node) -> None:
    node.append("a", "b")
    log = node.manager.partition(ORDERS_0).open_log()
    log.truncate_fully_and_start_at(40)
    node.move(node.b)
    node.finish_move()
    assert node.append("c").base_offset == 40


def test_a_large_log_is_copied_in_turns_and_throttled(node: Node) -> None:
    for _ in range(20):
        node.append("x" * 900_000)
    node.manager.set_throttled_rates(1, 1, 1_000_000)
    node.move(node.b)
    node.scheduler.run()
    copied = node.logs.future_logs.all()[0].size
    assert 8 << 20 <= copied < 10 << 20  # one turn
    node.scheduler.run(3)
    assert node.logs.future_logs.all()[0].size == copied  # the quota is used up
    node.manager.set_throttled_rates(1, 1)
    node.finish_move()
    assert len(node.read(19)) == 1


def test_asking_for_where_it_is_ends_a_move_and_takes_the_report_back(node: Node) -> None:
    node.append("a")
    node.move(node.b)
    node.scheduler.run(3)
    assert node.state is MoveState.ASSIGNING
    node.move(node.a)
    assert node.state is None
    assert node.controller_knows() == [B_ID]
    assert node.controller_knows() == [A_ID]
    node.scheduler.run(3)
    assert node.dirs() == ["a/orders-0"]
    assert node.read() == ["a"]
    node.move(node.a)
    assert node.described() == [("a", False, 0)]


def test_a_move_goes_on_after_a_restart(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.append("a")
    node.append("b")
    node.move(node.b)
    node.scheduler.run(3)
    node.stop()
    assert node.dirs() == ["a/orders-0", "b/orders-0-future"]
    again = Node(tmp_path)
    assert again.described() == [("a", False, 0)]  # metadata's thread opens nothing elsewhere
    again.scheduler.run()
    assert again.described() == [("a", False, 0), ("b", True, 0)]
    assert again.append("c").base_offset == 2
    again.finish_move()
    assert again.read() == ["a", "b", "c"]
    again.stop()
    last = Node(tmp_path)
    assert last.described() == [("b", False, 0)]
    assert last.read() == ["a", "b", "c"]
    last.stop()


def test_a_deleted_topic_takes_its_future_log_along(node: Node) -> None:
    node.append("a")
    node.move(node.b)
    node.scheduler.run()
    node.apply()
    node.scheduler.run(3)
    assert node.dirs() == []
    assert node.state is None


def test_a_future_log_nobody_claims_is_deleted_at_the_start(tmp_path: Path) -> None:
    left = tmp_path / "b" / "payments-3.0123456789abcdef0123456789abcdef-future"
    left.mkdir(parents=True)
    node = Node(tmp_path)
    node.scheduler.run(2)
    assert not left.exists()
    node.stop()


def test_a_future_log_of_a_topic_made_again_while_the_node_was_down_is_deleted(
    tmp_path: Path,
) -> None:
    """It was claimed by name, could not be opened, and lay there start after start."""
    node = Node(tmp_path)
    node.append("a")
    node.move(node.b)
    node.scheduler.run(3)
    node.stop()
    for left in (node.a / "orders-0", *node.b.glob("*-future")):
        write_partition_metadata(left / PARTITION_METADATA, b"orders, the last")
    again = Node(tmp_path)
    again.append("b")
    again.scheduler.run(3)
    assert again.state is None
    assert [name for name in again.dirs() if name.startswith("b/")] == []
    assert again.read() == ["b"]
    again.stop()


def test_a_follower_cuts_both_logs_and_goes_on_moving(tmp_path: Path) -> None:
    node = Node(tmp_path, leader=2, epoch=1)
    partition = node.manager.partition(ORDERS_0)

    def from_leader(offset: int, epoch: int, *values: str) -> None:
        data = stamped(batch(*values), offset, epoch)
        append_records_to_follower(partition, data, epoch, 0, 0)

    from_leader(0, 1, "a", "b")
    from_leader(2, 1, "lost")
    node.move(node.b)
    node.scheduler.run()
    future = node.logs.future_logs.all()[0]
    assert future.log_end_offset == 3
    node.apply(registration(leader=2, epoch=2))
    truncate_follower_to(partition, 2, 2)
    assert future.log_end_offset == 2
    from_leader(2, 2, "kept", "kept too")
    node.finish_move()
    log = partition.open_log()
    assert log is future
    assert [(e.epoch, e.start_offset) for e in log.leader_epochs.entries] == [(1, 0), (2, 2)]
    data = log.read(2, 1 << 20, True, 4).records
    assert data is not None
    assert values_of(data.read()) == ["kept", "kept too"]
    data.close()
    from_leader(4, 2, "next")
    assert log.log_end_offset == 5


@pytest.mark.parametrize("cut", ["truncate_to", "truncate_fully_and_start_at"])
@pytest.mark.parametrize("fails", ["its own log", "the future log"])
def test_a_cut_that_fails_half_way_leaves_nothing_in_the_future_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str, cut: str
) -> None:
    """The leader tells of a divergence as long as the follower's own log diverges: what is left in
    the copy then would be served once that has taken its place.
    """
    node = Node(tmp_path, leader=2, epoch=1)
    partition = node.manager.partition(ORDERS_0)
    lost = stamped(batch("a", "lost"), 0, 1) + stamped(batch("lost too"), 2, 1)
    append_records_to_follower(partition, lost, 1, 0, 0)
    node.move(node.b)
    node.scheduler.run()
    node.apply(registration(leader=2, epoch=2))
    current, future = partition.open_log(), node.logs.future_logs.all()[0]
    assert future.log_end_offset == 3
    with monkeypatch.context() as full:

        def no_room(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "no room")

        if fails == "its own log":  # once it is cut, before its files are
            finish = FilesBehind.finish
            full.setattr(
                FilesBehind,
                "finish",
                lambda files, log: no_room() if log is current else finish(files, log),
            )
        else:  # before anything is done
            full.setattr(future.environment.checkpoints, "lower", no_room)
        with pytest.raises(KafkaError):
            follower_cut(partition, cut)
    if current.log_end_offset:  # else what the leader sends now follows
        follower_cut(partition, cut)
    data = b"".join(stamped(batch(f"kept {at}"), at, 2) for at in range(4))
    append_records_to_follower(partition, data, 2, 0, 0)
    node.finish_move()
    moved = partition.open_log()
    assert moved is future
    assert values_of(moved.read_bytes(0, 1 << 20, 4)) == [f"kept {at}" for at in range(4)]


def follower_cut(partition: Partition, cut: str) -> None:
    if cut == "truncate_to":
        truncate_follower_to(partition, 0, 2)
    else:
        truncate_follower_fully(partition, 0, 2)


def test_what_was_read_before_a_cut_is_not_copied_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, leader=2, epoch=1)
    partition = node.manager.partition(ORDERS_0)
    append_records_to_follower(partition, stamped(batch("lost"), 0, 1), 1, 0, 0)
    node.move(node.b)
    moves = node.manager._moves
    assert moves is not None
    read = moves._read

    def read_then_cut(current: Any, future: Any) -> bytes:
        data = read(current, future)
        if data:
            truncate_follower_to(partition, 0, 1)
        return data

    monkeypatch.setattr(moves, "_read", read_then_cut)
    node.scheduler.run()
    assert node.logs.future_logs.all()[0].log_end_offset == 0


def test_a_failing_destination_ends_the_move_and_nothing_else(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.append("a")
    node.move(node.b)
    future = node.logs.future_logs.all()[0]

    def fail(*_: Any) -> int:
        raise OSError(5, "disk is gone")

    with monkeypatch.context() as broken:
        broken.setattr(files, "write_fully", fail)
        broken.setattr(files, "pwritev", fail)
        future.environment.fail(OSError(5, "disk is gone"))
        node.scheduler.run(3)
    assert node.state is None
    assert node.described() == [("a", False, 0)]
    assert node.append("b").base_offset == 1
    assert node.read() == ["a", "b"]


def test_a_name_that_cannot_be_had_leaves_the_replica_where_it_is(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.append("a")
    node.move(node.b)
    node.scheduler.run(3)
    node.controller_knows()

    def fail(*_: Any) -> None:
        raise OSError(5, "disk is gone")

    with monkeypatch.context() as broken:
        broken.setattr(files, "replace", fail)
        node.scheduler.run(1)
    node.scheduler.run(3)
    assert node.state is None
    log = node.manager.partition(ORDERS_0).open_log()
    assert log.directory == node.a / "orders-0"
    assert node.read() == ["a"]
    assert node.append("b").base_offset == 1


def test_a_failed_source_leaves_the_copy_for_the_next_start(node: Node) -> None:
    node.append("a")
    node.move(node.b)
    node.scheduler.run(2)
    node.manager.log_dir_failed(node.a, OSError(5, "disk is gone"))
    node.scheduler.run(2)
    assert node.state is None
    assert node.dirs() == ["a/orders-0", "b/orders-0-future"]


@pytest.mark.parametrize(
    ("key", "directory", "code"),
    [
        (ORDERS_0, "c", ErrorCode.LOG_DIR_NOT_FOUND),
        (("orders", 5), "b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (("nowhere", 0), "b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (("x" * 217, 0), "b", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_what_cannot_be_moved_is_refused(
    node: Node, key: TopicPartition, directory: str, code: ErrorCode
) -> None:
    with pytest.raises(KafkaError) as refused:
        node.manager.alter_replica_log_dir(key, str(node.root / directory))
    assert refused.value.code == code


def test_a_replica_that_comes_later_comes_to_the_directory_asked_for(node: Node) -> None:
    with pytest.raises(KafkaError):
        node.manager.alter_replica_log_dir(("orders", 1), str(node.a))
    with pytest.raises(KafkaError):
        node.manager.alter_replica_log_dir(("orders", 2), str(node.a))
    both = (registration(directory=DIRECTORY_UNASSIGNED),) * 2
    node.apply(registration(), *both)
    assert node.described() == [("a", False, 0)] * 3


def test_where_replicas_of_a_deleted_topic_were_asked_for_is_forgotten(node: Node) -> None:
    """A topic created again under its name is another one, and nobody asked for that."""
    with pytest.raises(KafkaError):
        node.manager.alter_replica_log_dir(("orders", 1), str(node.a))
    node.apply()
    assert node.manager.local.preferred_dirs == {}


def test_a_waiting_fsync_is_waited_for(tmp_path: Path) -> None:
    node = Node(tmp_path, LogConfig(flush_messages=1, file_delete_delay_ms=0))
    partition = node.manager.partition(ORDERS_0)
    waiting: list[Callable[[], None]] = []
    node.logs.flush_async = lambda log, done: waiting.append(lambda: (log.flush(), done(None)))
    partition._group_commit._flush_async = node.logs.flush_async
    answers: list[Any] = []
    entry = (ORDERS_0, batch("a"))
    node.manager.append_records(AppendRequest(1, 1000, [entry], answers.append))
    assert answers == []
    node.move(node.b)
    node.scheduler.run(3)
    node.controller_knows()
    node.scheduler.run(3)
    assert node.state is MoveState.ASSIGNED
    waiting.pop()()
    assert len(answers) == 1
    node.scheduler.run(3)
    assert node.state is None
    assert partition.open_log().flushed_offset == 1


def test_an_old_copy_that_stayed_is_not_served_after_the_next_start(tmp_path: Path) -> None:
    """The stop came before the old copy was renamed: the first directory's was used, silently."""
    node = Node(tmp_path)
    node.append("a")
    node.logs.get(ORDERS_0).flush()  # type: ignore[union-attr]
    shutil.copytree(node.a / "orders-0", tmp_path / "old")
    node.move(node.b)
    node.finish_move()
    node.append("b")
    node.stop()
    shutil.move(tmp_path / "old", node.a / "orders-0")
    again = Node(tmp_path, directory=B_ID)
    assert again.described() == [("b", False, 0)]
    assert again.read() == ["a", "b"]
    assert again.dirs() == ["a/orders-0-stray", "b/orders-0"]
    again.stop()


def test_old_copies_of_a_partition_that_left_are_set_aside(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "payments-3").mkdir(parents=True)
    node = Node(tmp_path)
    assert node.dirs() == ["a/orders-0", "a/payments-3-stray", "b/payments-3-stray"]
    node.stop()


def test_a_complete_copy_takes_the_place_of_a_log_whose_disk_is_gone(tmp_path: Path) -> None:
    """The controller knew it there already: an empty log in its place would lead with nothing."""
    node = Node(tmp_path)
    node.append("a")
    node.append("b")
    node.move(node.b)
    node.scheduler.run(3)
    node.stop()
    shutil.rmtree(node.a / "orders-0")
    again = Node(tmp_path, directory=B_ID)
    assert again.described() == [("b", False, 0)]
    assert again.read() == ["a", "b"]
    assert again.dirs() == ["b/orders-0"]
    again.stop()


class Hanging:
    """Renames of what is in a directory wait until the disk answers again."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_hung, self.answers = threading.Event(), threading.Event()
        real = files.replace

        def replace(source: Path, target: Path) -> None:
            if source.parent == directory and not self.answers.is_set():
                self.has_hung.set()
                self.answers.wait(HANGS_S)
            real(source, target)

        monkeypatch.setattr(files, "replace", replace)


def change_over_hangs(
    node: Node, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Hanging, threading.Thread]:
    node.append("a")
    node.move(node.b)
    node.scheduler.run(3)
    node.controller_knows()
    disk = Hanging(directory, monkeypatch)
    mover = threading.Thread(target=node.scheduler.run, daemon=True)
    mover.start()
    assert disk.has_hung.wait(30)
    return disk, mover


def test_a_hanging_change_over_holds_up_nobody_else(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It held the lock that metadata, ISR expiry and the report of a failed disk take."""
    other = TopicImage("others", b"others-topic-id!", {0: registration()})
    node.apply_topics("others", *node.image.topics_by_name.values(), other)
    disk, mover = change_over_hangs(node, node.b, monkeypatch)
    done = threading.Event()

    def others_go_on() -> None:
        for partition in node.manager.partitions():  # as ISR expiry does
            partition.maybe_shrink_isr()
        orders = node.image.topics_by_name["orders"]
        node.apply_topics("others", orders)
        node.apply_topics("others", orders, replace(other, topic_id=b"others-made-anew"))
        done.set()

    threading.Thread(target=others_go_on, daemon=True).start()
    assert done.wait(30)
    assert node.manager.partition(("others", 0)).topic_id == b"others-made-anew"
    disk.answers.set()
    mover.join(30)
    assert node.described()[-1] == ("b", False, 0)


def test_an_old_disk_that_hangs_does_not_hold_up_a_replica_that_has_left_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old copy was renamed under the partition's lock, and appends waited for that."""
    disk, mover = change_over_hangs(node, node.a, monkeypatch)
    done = threading.Event()
    threading.Thread(target=lambda: (node.append("b"), done.set()), daemon=True).start()
    assert done.wait(30)
    assert node.read() == ["a", "b"]
    disk.answers.set()
    mover.join(30)
    node.scheduler.run()
    assert node.dirs() == ["b/orders-0"]


@pytest.mark.parametrize("has_name", [False, True])
def test_a_new_disk_that_hangs_in_a_sync_does_not_hold_up_the_replica(
    node: Node, monkeypatch: pytest.MonkeyPatch, has_name: bool
) -> None:
    """What there was to write down was synced, and so was the name, under the partition's lock:
    appends waited, and with them who else was served by their thread."""
    has_hung, answers, done = (threading.Event() for _ in range(3))
    real = files.fsync_directory

    def hanging(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if path == node.b and (node.b / "orders-0").exists() is has_name:
            has_hung.set()
            answers.wait(HANGS_S)
        real(fd)

    node.append("a")
    node.move(node.b)
    node.scheduler.run(3)
    node.controller_knows()
    monkeypatch.setattr(files, "fsync_directory", hanging)
    mover = threading.Thread(target=node.scheduler.run, daemon=True)
    mover.start()
    assert has_hung.wait(30)
    threading.Thread(target=lambda: (node.append("b"), done.set()), daemon=True).start()
    assert done.wait(30)
    assert node.read() == ["a", "b"]
    answers.set()
    mover.join(30)
    node.finish_move()
    assert node.dirs() == ["b/orders-0"]
    assert node.read() == ["a", "b"]


def test_a_new_disk_that_hangs_as_an_epoch_is_copied_does_not_hold_up_the_replica(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a leader epoch began was synced with its first batch, under the partition's lock."""
    has_hung, answers, done = (threading.Event() for _ in range(3))
    real = files.fsync

    def hanging(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if node.b in path.parents and "leader-epoch" in path.name:
            has_hung.set()
            answers.wait(HANGS_S)
        real(fd)

    node.append("a")
    monkeypatch.setattr(files, "fsync", hanging)
    mover = threading.Thread(target=node.finish_move, daemon=True)
    node.move(node.b)
    mover.start()
    assert has_hung.wait(30)
    threading.Thread(target=lambda: (node.append("b"), done.set()), daemon=True).start()
    assert done.wait(30)
    answers.set()
    mover.join(30)
    node.finish_move()
    assert node.dirs() == ["b/orders-0"]
    assert node.read() == ["a", "b"]
    log = node.logs.get(("orders", 0))
    assert log is not None
    assert log.leader_epochs.entries


def test_the_old_log_stays_until_the_new_ones_name_is_on_disk(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush that somebody waits for has it there, too."""
    node.append("a")
    node.move(node.b)
    node.scheduler.run(3)
    node.controller_knows()
    steps: list[str] = []
    for name in ("replace", "fsync_directory"):
        real = getattr(files, name)

        def noting(*of: Any, real: Any = real) -> None:
            real(*of)
            path = of[0] if len(of) == 2 else Path(os.readlink(f"/proc/self/fd/{of[0]}"))
            steps.append(str(path.relative_to(node.a.parent)))

        monkeypatch.setattr(files, name, noting)
    node.scheduler.run(1)
    named = next(at for at, step in enumerate(steps) if step.endswith("-future"))
    left = steps.index("a/orders-0")
    assert "b" in steps[named:left]


def test_a_move_that_is_asked_back_just_as_it_ended_goes_back(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, mover = change_over_hangs(node, node.b, monkeypatch)
    back = threading.Thread(target=lambda: node.move(node.a), daemon=True)
    back.start()
    disk.answers.set()
    mover.join(30)
    back.join(30)
    node.finish_move()
    assert [(name, is_future) for name, is_future, _ in node.described()] == [("a", False)]
    assert node.read() == ["a"]


def test_records_deleted_while_a_move_ends_stay_deleted(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old log was asked, the copy took its place, and the old log's start moved: in vain."""
    node.append("a")
    node.append("b")
    node.move(node.b)
    node.scheduler.run(3)
    node.controller_knows()
    held = node.manager.partition(ORDERS_0)
    real = partition_module.offset_to_delete

    def meanwhile(log: Any, offset: int) -> int:
        if not held.lock.locked():
            node.scheduler.run()  # nothing keeps the move from ending here
        return real(log, offset)

    monkeypatch.setattr(partition_module, "offset_to_delete", meanwhile)
    assert held.delete_records(1) == (1, 1)
    node.scheduler.run(2)
    assert node.state is None
    assert held.open_log().directory.parent == node.b
    assert held.open_log().log_start_offset == 1
    assert node.read(1) == ["b"]


def both_move(node: Node) -> TopicPartition:
    """`orders-0` and another partition are on their way to `b`, and the controller knows."""
    other = TopicImage("others", b"others-topic-id!", {0: registration()})
    node.apply_topics("others", *node.image.topics_by_name.values(), other)
    node.append("a")
    node.move(node.b)
    node.manager.alter_replica_log_dir(("others", 0), str(node.b))
    node.scheduler.run(3)
    node.controller_knows()
    node.scheduler.jobs = [job for job in node.scheduler.jobs if job[0] == "alter-log-dirs"]
    return TopicPartition("others", 0)


def test_a_move_that_is_asked_back_in_its_last_sync_does_not_stop_the_others(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its future log was looked up after that sync, when it had gone; and nobody planned on."""
    others_0 = both_move(node)
    real = files.fsync

    def meanwhile(fd: int) -> object:
        if node.state is not None:
            node.move(node.a)
        return real(fd)

    monkeypatch.setattr(files, "fsync", meanwhile)
    node.scheduler.run(3)
    node.controller_knows()
    node.scheduler.run(3)
    assert node.manager.partition(others_0).open_log().directory.parent == node.b


def test_an_old_disk_that_cannot_be_read_does_not_stop_the_others(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a read gave was read outside of it: the error was nobody's."""
    others_0 = both_move(node)
    node.append("b")
    real = files.pread

    def broken(fd: int, size: int, position: int) -> bytes:
        if "orders-0/" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(5, "disk is gone")
        return real(fd, size, position)

    monkeypatch.setattr(files, "pread", broken)
    node.scheduler.run(4)
    node.controller_knows()
    node.scheduler.run(3)
    assert node.failed == [node.a]
    assert node.manager._moves is not None
    assert node.manager._moves.state(others_0) is None


def test_a_new_disk_that_fails_just_before_the_change_over_ends_the_moves_to_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread takes the future logs away; that one was gone stopped the mover's thread."""
    others_0 = both_move(node)
    prepare = node.logs.future_logs.prepare

    def meanwhile(future: PartitionLog, current: PartitionLog) -> None:
        prepare(future, current)
        future.environment.fail(OSError(5, "disk is gone"))
        for name, job in node.scheduler.jobs:
            if name == "log-dir-failure":
                job()

    monkeypatch.setattr(node.logs.future_logs, "prepare", meanwhile)
    node.scheduler.run(4)
    moves = node.manager._moves
    assert moves is not None
    assert (node.state, moves.state(others_0)) == (None, None)
    assert node.described() == [("a", False, 0)] * 2
    assert node.append("b").base_offset == 1


def test_the_controller_is_not_told_of_a_copy_on_a_disk_that_has_failed(node: Node) -> None:
    """It would take the replica from the ISR, and from the lead, though it is well where it is."""
    node.move(node.b)
    node.logs.future_logs.all()[0].environment.fail(OSError(5, "disk is gone"))
    node.scheduler.run(3)
    assert node.asked == []
    assert node.state is None


def test_two_who_ask_for_the_first_moves_at_once_ask_the_same(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The move of who was overtaken was known to nobody: neither a topic that is deleted nor
    another directory that is asked for ended it."""
    other = TopicImage("others", b"others-topic-id!", {0: registration()})
    node.apply_topics("others", *node.image.topics_by_name.values(), other)
    real = node.manager._make_moves

    def meanwhile(links: ClusterLinks) -> LogDirMoves:
        monkeypatch.setattr(node.manager, "_make_moves", real)
        node.manager.alter_replica_log_dir(("others", 0), str(node.b))
        return real(links)

    monkeypatch.setattr(node.manager, "_make_moves", meanwhile)
    node.move(node.b)
    assert node.manager._moves is not None
    assert node.manager._moves.count == 2
