"""Which partitions live on this node, in which role: metadata made real.

`apply_delta` is called with each committed change of the metadata image, in order, on one thread.
It deletes partitions that are gone, opens logs, makes partitions leader or follower, hands new
topic configs to the logs, and tells the coordinators (`on_partition_leadership`). Applying the same
image again changes nothing, and an older one is ignored (B-5). Against the first whole image after
a start it also renames logs that the cluster does not know (`-stray`, B-8); it never deletes those.

Transitions of one (topic, partition index) here:

    none -> hosted            the image assigns it to this node; the log is opened or created
    hosted -> none            topic deleted, or replica assigned elsewhere: the log is deleted
    hosted -> offline         its directory failed; answers KAFKA_STORAGE_ERROR until the next start
    offline -> none           topic deleted

Lock: `_state_lock` guards which partitions are here and which are offline, also against a directory
that fails. No request takes it, and it is not held across an fsync, an
unlink, delayed operations or hooks: a disk that hangs must not keep another's failure from being
heard. So a change takes it twice: what goes is taken out, then its logs are deleted; what comes is
opened and given its role, then put in, unless its directory failed meanwhile. Between those only
`apply_delta` changes roles, on its one thread. `_map_lock` is held for single operations on the map
of partitions, so that who looks through all of them (ISR expiry) waits for nobody. Order: state,
partition, log.

Duties of the caller: 1. `topic_config` must already answer from the new image when `apply_delta` is
called; 2. `log_dir_failed` is called without any lock (storage calls it from its scheduler).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from replication.metadata.tables import RESOURCE_TOPIC
from replication.partition.partition import Partition
from replication.partition.requests import IsrChange, LogDirInfo, ReplicaLogInfo
from wire.errors import ErrorCode, KafkaError
from wire.primitives import TopicPartition

if TYPE_CHECKING:
    from pathlib import Path

    from replication.metadata.image import (
        MetadataDelta,
        MetadataImage,
        PartitionRegistration,
        TopicImage,
    )
    from replication.replicas.cluster_replication import ClusterReplication
    from replication.replicas.log_dir_moves import LogDirMoves
    from storage.config import Clock, LogConfig
    from storage.directories.log_manager import LogManager
    from storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

_RESERVED_DIRECTORY_IDS = 100
"""Directory ids below this are words: unassigned, lost, migrating (KIP-858)."""

Key = tuple[str, int]
"""(topic, partition index); a TopicPartition is one."""

LeadershipHook = Callable[[TopicPartition, int | None], object]


class _Changes:
    """What one delta did, to be told when no lock is held."""

    __slots__ = ("doomed", "leadership", "partitions")

    def __init__(self) -> None:
        self.partitions: list[Partition] = []
        self.doomed: list[TopicPartition] = []
        """Partitions that are not ours any more: their logs are to be deleted."""
        self.leadership: list[tuple[TopicPartition, int | None]] = []

    @property
    def concern_others(self) -> bool:
        """Is there a partition with replicas elsewhere?"""
        return any(
            p.registration is not None and len(p.registration.replicas) > 1 for p in self.partitions
        )


class LocalReplicas:
    """The partitions of this node. `partitions` is read by requests without a lock."""

    def __init__(
        self,
        log_manager: LogManager,
        metadata: Callable[[], MetadataImage],
        clock: Clock,
        node_id: int,
        *,
        topic_config: Callable[[str], LogConfig],
        lag_ms_max: int,
        on_change: Callable[[Partition], object],
        alter_isr: Callable[[IsrChange], object] | None = None,
        cluster: Callable[[], ClusterReplication | None] | None = None,
        report_directory: Callable[[bytes, int, bytes], object] | None = None,
        moves: Callable[[bool], LogDirMoves | None] = lambda _is_needed: None,
    ) -> None:
        """`cluster` is asked for when the first partition has replicas on other nodes.
        `report_directory` (topic id, partition index, directory id) tells the controller where a
        replica is, on a node alone too: it must know at the next start which were on a disk that is
        missing then. `moves` gives the moves between directories, made now if they are needed and
        were not."""
        self.partitions: dict[Key, Partition] = {}
        self.on_partition_leadership: list[LeadershipHook] = []
        """Called with (partition, leader epoch) on becoming leader, (partition, None) after it."""
        self.log_manager = log_manager
        self._metadata = metadata
        self._clock = clock
        self._node_id = node_id
        self._topic_config = topic_config
        self._lag_ms_max = lag_ms_max
        self._on_change = on_change
        self._alter_isr = alter_isr
        self._cluster = cluster
        self._report_directory = report_directory
        self._has_cluster = False
        self._state_lock = threading.Lock()
        self._map_lock = threading.Lock()
        self.preferred_dirs: dict[tuple[bytes, int], Path] = {}
        """Where a replica (topic id, partition index) that is not here yet was asked to be put."""
        self._moves = moves
        self._offline: dict[Key, bytes] = {}
        self._is_loaded = False
        self._applied_offset = -1

    # ------------------------------------------------------------------ finding

    def get(self, key: Key) -> Partition:
        """The partition; raises what `absent` says if it is not served here."""
        partition = self.partitions.get(key)
        if partition is None:
            raise self.absent(key)
        return partition

    def hosted(self) -> list[Partition]:
        """All partitions here; waits for nobody, whatever other threads change meanwhile."""
        with self._map_lock:
            return list(self.partitions.values())

    def absent(self, key: Key) -> KafkaError:
        """Why a partition is not here: offline (56), on other nodes (6), or nowhere (3)."""
        topic, index = key
        if key in self._offline:
            return KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{topic}-{index} is in an offline log directory"
            )
        image = self._metadata().topics_by_name.get(topic)
        if image is not None and index in image.partitions:
            return KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{index} is not served by this broker"
            )
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{index} does not exist")

    @property
    def offline_count(self) -> int:
        return len(self._offline)

    # ------------------------------------------------------------------ metadata

    def apply_delta(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Make the local partitions what `image` says; only what `delta` changed is looked at."""
        if image.offset < self._applied_offset:
            logger.warning(
                "ignored old metadata offset=%s applied=%s", image.offset, self._applied_offset
            )
            return
        self._applied_offset = image.offset
        changes = _Changes()
        names: Iterable[str] = delta.changed_topics
        if not self._is_loaded and not image.is_empty:
            self._is_loaded = True
            self._rename_strays(image)
            names = image.topics_by_name
        with self._state_lock:
            self._remove_deleted(delta, changes)
            found = map(image.topics_by_name.get, {*names, *self._retriable()})
            topics = [topic for topic in found if topic is not None]
            for topic in topics:
                self._remove_unassigned(topic, changes)
        self._delete_logs(changes.doomed)
        for topic in topics:
            self._place_assigned(topic, changes)
        if self._is_loaded and not self.log_manager.offline_dirs:
            self.log_manager.future_logs.delete_unclaimed()
        self._tell(changes)
        self._tell_cluster(changes, delta.changed_brokers)
        if image.knows_directories:
            knew_them = delta.image.knows_directories
            for partition in changes.partitions if knew_them else self.hosted():
                self._report_misplaced(partition)
        changed = [name for kind, name in delta.changed_configs if kind == RESOURCE_TOPIC]
        if changed:
            self.reload_topic_configs(changed)

    def _retriable(self) -> set[str]:
        """Topics with partitions that failed although their directory is online: the disk was full.

        They are tried again with each change of metadata; an offline directory stays so (B-7), and
        while there is one, so does what has no log: it may be there.
        """
        if not self._offline:
            return set()
        failed = self.log_manager.offline_dirs
        again = []
        for key in self._offline:
            log = self.log_manager.get(TopicPartition(*key))
            if not failed or (log is not None and log.directory.parent not in failed):
                again.append(key)
        for key in again:
            del self._offline[key]
        return {topic for topic, _ in again}

    def _tell(self, changes: _Changes) -> None:
        for partition in changes.partitions:
            self._on_change(partition)
        for key, leader_epoch in changes.leadership:
            for hook in self.on_partition_leadership:
                try:
                    hook(key, leader_epoch)
                except Exception:
                    logger.exception("leadership hook failed partition=%s-%s", *key)

    def _tell_cluster(self, changes: _Changes, changed_brokers: Iterable[int] = ()) -> None:
        """Start and stop fetching; nothing of it is loaded before there is somebody to fetch from.

        After the leadership hooks: a coordinator that resigns must not wait for a fetcher.
        """
        if self._cluster is None or not (self._has_cluster or changes.concern_others):
            return
        cluster = self._cluster()
        if cluster is None:
            return
        self._has_cluster = True
        cluster.partitions_changed(changes.partitions, changed_brokers)

    def _rename_strays(self, image: MetadataImage) -> None:
        """B-8: a log without topic id, of an unknown id, or not assigned to us is set aside."""
        manager = self.log_manager
        for key in manager.copies:
            if not self._is_assigned_here(key, image):
                manager.copies.settle(key, None, None)
        for log in manager.all_logs():
            if not self._belongs_here(log, image):
                logger.warning(
                    "log is stray partition=%s-%s topic_id=%s",
                    *log.topic_partition,
                    log.topic_id and log.topic_id.hex(),
                )
                try:
                    manager.mark_stray(log.topic_partition)
                except KafkaError as error:
                    logger.error(
                        "stray log stays partition=%s-%s error=%s", *log.topic_partition, error
                    )

    def _belongs_here(self, log: PartitionLog, image: MetadataImage) -> bool:
        topic = image.topics_by_name.get(log.topic_partition.topic)
        is_of_topic = topic is not None and log.topic_id == topic.topic_id
        return is_of_topic and self._is_assigned_here(log.topic_partition, image)

    def _is_assigned_here(self, key: TopicPartition, image: MetadataImage) -> bool:
        topic = image.topics_by_name.get(key.topic)
        registration = None if topic is None else topic.partitions.get(key.partition_index)
        return registration is not None and self._node_id in registration.replicas

    def _remove_deleted(self, delta: MetadataDelta, changes: _Changes) -> None:
        deleted = delta.deleted_topics
        if not deleted:
            return
        ids = set(deleted.values())
        for partition in list(self.partitions.values()):
            if partition.topic_id in ids:
                self._remove(partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, changes)
        for key, topic_id in list(self._offline.items()):
            if topic_id in ids:
                del self._offline[key]
                self._doom_unserved(TopicPartition(*key), topic_id, changes)
        for replica in list(self.preferred_dirs):
            if replica[0] in ids:
                del self.preferred_dirs[replica]

    def _remove_unassigned(self, topic: TopicImage, changes: _Changes) -> None:
        """Take out what is another topic's of this name, and what is assigned to others."""
        for index, registration in topic.partitions.items():
            key = TopicPartition(topic.name, index)
            partition = self.partitions.get(key)
            if partition is None:
                if self._node_id not in registration.replicas:
                    self._doom_unserved(key, topic.topic_id, changes)
            elif partition.topic_id != topic.topic_id:
                self._remove(partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, changes)
            elif self._node_id not in registration.replicas:
                self._remove(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER, changes)

    def _doom_unserved(self, key: TopicPartition, topic_id: bytes, changes: _Changes) -> None:
        """A log without a partition is one whose disk was full when it was to be served."""
        log = self.log_manager.get(key)
        if log is not None and log.topic_id == topic_id:
            changes.doomed.append(key)

    def _place_assigned(self, topic: TopicImage, changes: _Changes) -> None:
        for index, registration in topic.partitions.items():
            if self._node_id not in registration.replicas:
                continue
            key = TopicPartition(topic.name, index)
            partition = self.partitions.get(key)
            is_offline = self._offline.get(key) == topic.topic_id  # until the next start (B-7)
            if not is_offline and (partition is None or partition.registration is not registration):
                self._place(key, topic, registration, partition, changes)

    def _place(
        self,
        key: TopicPartition,
        topic: TopicImage,
        registration: PartitionRegistration,
        partition: Partition | None,
        changes: _Changes,
    ) -> None:
        """Host the partition in the role the registration gives it."""
        was_leader = partition is not None and partition.is_leader
        try:
            if partition is None:
                log = self._open_log(key, topic.topic_id, registration)
                partition = self._new_partition(key, topic.topic_id)
            else:
                log = partition.open_log()
            if registration.leader == self._node_id:
                is_new = partition.make_leader(registration, log)
            else:
                is_new = partition.make_follower(registration, log)
            log = partition.open_log()
            with self._state_lock:
                if log.is_offline:
                    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "its directory failed just now")
                self._offline.pop(key, None)
                with self._map_lock:
                    self.partitions[key] = partition
            self._resume_move(partition)
        except (KafkaError, OSError) as error:
            with self._state_lock:
                self._set_offline(key, topic.topic_id, partition, changes, error)
            return
        changes.partitions.append(partition)
        if partition.is_leader:
            if is_new:
                changes.leadership.append((key, partition.leader_epoch))
        elif was_leader or is_new:
            changes.leadership.append((key, None))

    def _report_misplaced(self, partition: Partition) -> None:
        """Say where it is, if that is not where the controller thinks it is: a replica whose
        directory its broker does not have, on a new disk, is never elected."""
        log, registration = partition.log, partition.registration
        if self._report_directory is None or log is None or registration is None:
            return
        manager = self.log_manager
        actual = manager.directory_id(log.directory.parent)
        said = registration.directory(self._node_id)
        if said == actual:
            return
        moves = self._moves(False)
        to = None if moves is None else moves.destination(partition.topic_partition)
        if to is None or manager.directory_id(to) != said:
            _, index = partition.topic_partition
            self._report_directory(partition.topic_id, index, actual)

    def _resume_move(self, partition: Partition) -> None:
        """A stop interrupted a move: go on."""
        futures, key = self.log_manager.future_logs, partition.topic_partition
        moves = self._moves(True) if key in futures.found else None
        directory = None if moves is None else futures.claim(key, partition.topic_id)
        if moves is not None and directory is not None:
            moves.resume(partition, directory)

    def _new_partition(self, key: TopicPartition, topic_id: bytes) -> Partition:
        return Partition(
            key,
            topic_id,
            self._node_id,
            self._clock,
            metadata=self._metadata,
            flush_async=self.log_manager.flush_async,
            on_progress=self._on_change,
            alter_isr=self._alter_isr,
            lag_ms_max=self._lag_ms_max,
        )

    def _open_log(
        self, key: TopicPartition, topic_id: bytes, registration: PartitionRegistration
    ) -> PartitionLog:
        """The log, with its checkpointed high watermark (H-10); another topic's is set aside."""
        manager = self.log_manager
        existing = manager.get(key)
        if existing is not None and existing.topic_id != topic_id:
            logger.warning("log of another topic id is stray partition=%s-%s", *key)
            manager.mark_stray(key)
        directory = self._assigned_directory(key, topic_id, registration)
        if existing is None:
            directory = self._found_directory(key, topic_id, registration) or directory
        return manager.get_or_create(key, topic_id, self._topic_config(key.topic), directory)

    def _found_directory(
        self, key: TopicPartition, topic_id: bytes, registration: PartitionRegistration
    ) -> Path | None:
        """Where the log is that no start could open without metadata; None if there is none.

        Raises KAFKA_STORAGE_ERROR as `Copies.settle`.
        """
        manager = self.log_manager
        known = manager.directory_by_id(registration.directory(self._node_id))
        found = manager.copies.settle(key, topic_id, known)
        if found is None and known is not None:
            manager.future_logs.adopt(key, topic_id, known)
        return found

    def _assigned_directory(
        self, key: Key, topic_id: bytes, registration: PartitionRegistration
    ) -> Path | None:
        """The directory the controller knows the replica in, else the one it was asked to be in;
        None lets the log manager choose.

        Raises KAFKA_STORAGE_ERROR if that directory may be one that is offline: a new, empty
        replica elsewhere would pretend that the data never existed (B-7). One whose directory was
        not told yet is as a rule new, and made although a directory is offline, as in Kafka
        (Partition.createLogInAssignedDirectoryId). If it was not, its broker left the ISRs, where
        there was another member, when it registered, and ELRs know its stop as unclean.
        """
        preferred = self.preferred_dirs.pop((topic_id, key[1]), None)
        directory_id = registration.directory(self._node_id)
        if int.from_bytes(directory_id, "big") < _RESERVED_DIRECTORY_IDS:
            return preferred
        manager = self.log_manager
        directory = manager.directory_by_id(directory_id)
        if directory is None and manager.offline_dirs:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the assigned directory {directory_id.hex()} may be offline",
            )
        return directory

    # ------------------------------------------------------------------ leaving

    def _remove(self, partition: Partition, error: ErrorCode, changes: _Changes) -> None:
        """The partition is not ours any more: waiting requests get `error`, its log is doomed."""
        key = partition.topic_partition
        with self._map_lock:
            del self.partitions[key]
        self._stop(partition, error, changes)
        moves = self._moves(False)
        if moves is not None:
            moves.cancel(key)
        changes.doomed.append(key)
        logger.info("removed partition=%s-%s reason=%s", *key, error.name)

    def _delete_logs(self, keys: Iterable[TopicPartition]) -> None:
        for key in keys:
            try:
                self.log_manager.delete(key)
            except (KafkaError, OSError) as error:
                logger.error("deleting a log failed partition=%s-%s error=%s", *key, error)

    def _stop(self, partition: Partition, error: ErrorCode, changes: _Changes) -> None:
        partition.stop(error)
        changes.partitions.append(partition)
        changes.leadership.append((partition.topic_partition, None))

    def _set_offline(
        self,
        key: TopicPartition,
        topic_id: bytes,
        partition: Partition | None,
        changes: _Changes,
        error: Exception,
    ) -> None:
        self._offline[key] = topic_id
        with self._map_lock:
            was_here = self.partitions.pop(key, None) is not None
        if partition is not None and was_here:
            self._stop(partition, ErrorCode.KAFKA_STORAGE_ERROR, changes)
        logger.error("partition is offline partition=%s-%s error=%s", *key, error)

    def log_dir_failed(self, directory: Path, error: OSError) -> None:
        """Stop serving what is in `directory`: requests there get KAFKA_STORAGE_ERROR (B-7)."""
        changes = _Changes()
        with self._state_lock:
            for partition in list(self.partitions.values()):
                log = partition.log
                if log is not None and log.directory.parent == directory:
                    key = partition.topic_partition
                    self._set_offline(key, partition.topic_id, partition, changes, error)
        self._tell(changes)
        self._tell_cluster(changes)

    # ------------------------------------------------------------------ configs

    def reload_topic_configs(self, topics: Iterable[str] | None = None) -> None:
        """Give the logs of `topics` (None: of all topics here) their effective configs anew."""
        by_topic: dict[str, list[Partition]] = {}
        for (topic, _), partition in list(self.partitions.items()):
            by_topic.setdefault(topic, []).append(partition)
        for topic in by_topic if topics is None else topics:
            partitions = by_topic.get(topic)
            if partitions:
                self.log_manager.update_topic_config(topic, self._topic_config(topic))
                for partition in partitions:
                    partition.config_changed()
                    self._on_change(partition)

    # ------------------------------------------------------------------ describing

    def describe_log_dirs(self, wanted: Callable[[str, int], bool]) -> list[LogDirInfo]:
        """Every log directory with the sizes of the wanted logs in it; offline ones with a code."""
        manager = self.log_manager
        infos = []
        for directory in manager.log_dirs:
            path = str(directory.absolute())
            if directory in manager.offline_dirs:
                infos.append(LogDirInfo(path, int(ErrorCode.KAFKA_STORAGE_ERROR)))
                continue
            total_bytes, usable_bytes = manager.dir_space(directory)
            logs = [
                info(log)
                for info, known in (
                    (self._log_info, manager.all_logs()),
                    (self._future_info, manager.future_logs.all()),
                )
                for log in known
                if log.directory.parent == directory and wanted(*log.topic_partition)
            ]
            is_cordoned = directory in manager.cordoned_dirs
            infos.append(LogDirInfo(path, 0, total_bytes, usable_bytes, logs, is_cordoned))
        return infos

    def _log_info(self, log: PartitionLog) -> ReplicaLogInfo:
        topic, index = log.topic_partition
        lag = max(log.high_watermark - log.log_end_offset, 0)
        is_here = log.topic_partition in self.partitions
        return ReplicaLogInfo(topic, index, log.size, lag if is_here else -1)

    def _future_info(self, log: PartitionLog) -> ReplicaLogInfo:
        """Its lag is what it has still to copy."""
        topic, index = log.topic_partition
        current = self.log_manager.get(log.topic_partition)
        lag = -1 if current is None else max(current.log_end_offset - log.log_end_offset, 0)
        return ReplicaLogInfo(topic, index, log.size, lag, is_future=True)
