"""What must hold after every event, by the names of the reliability reference (section 2).

    OneLeaderPerRaftEpoch     no two voters lead one epoch of the quorum
    SameCommittedMetadata     every node is given the same committed records, in order (K-10)
    OneLeaderPerEpoch         no two brokers lead a partition under one leader epoch (E-1)
    EpochsNeverGoBack         a replica's leader epoch does not (E-1)
    LeadsAsRegistered         nobody leads by what the metadata says of an earlier incarnation (B-3)
    LeaderInIsr               who leads in the metadata stands in the ISR
    OrderOfOffsets            log start <= LSO <= HW <= LEO
    StartsWhereAskedFor       no log begins behind what DeleteRecords asked for, of its own topic id
    HWNeverGoesBack           while a process runs, and in one leader epoch (H-1); one that was read
                              from a disk whose page cache was lost may have outlived its records
    StrongIsr                 what was below any presumed leader's HW, or acknowledged, is on every
                              member of the true ISR and of the ELR
    RefusedIsNotThere         NOT_ENOUGH_REPLICAS is not told of a batch that is in the log (H-11)
    JoinsWithAll              who is proposed for the ISR has that, when it is proposed (H-6)
    SameBelowHW               no offset below a HW has two contents, on any replica, for any reader
    NewestStays               every replica has the newest record of each key, if compacted, that
                              lies below its HW
    CleanedOnce               up to where a log is noted as cleaned, no key is there twice
    NotedIsTrue               no checkpoint, in memory or on disk, says more of a log than is so
                              (S-6, H-10, L1, L4)
    WorkersSyncRecords        who publishes metadata syncs no records: a disk may take its time (N6)
    ReadBelowHW               a consumer is given nothing that is not committed (V-1)
    NothingHurries            a fetch without news is not answered before its time is over
    OffsetNeverGoesBack       a group's committed offset (section G)

Those of transactions are in `tests.sim.transaction_rules`.

`Exposed` is the log that somebody may have seen: it grows with the high watermark of whoever thinks
that it leads, and with each acknowledgement, and each replica is compared to it.

The true ISR is that of the newest image any node has; a member whose page cache was lost is not
counted on until the controller knows its new incarnation, for then it is out of ISR and ELR (B-3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from replication.metadata.image import EMPTY_IMAGE, MetadataImage, PartitionRegistration
from replication.raft.batches import CommittedBatch
from replication.raft.events import SnapshotId
from storage.checkpoint import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    OffsetCheckpoint,
)
from storage.log.append_source import FROM_CLIENT
from storage.log.partition_log import PartitionLog
from tests.sim.batches import headers_of
from tests.sim.transaction_rules import Transactions
from tests.sim.world import InvariantBroken
from wire.primitives import TopicPartition
from wire.records import BatchHeader, read_records

if TYPE_CHECKING:
    from replication.partition.isr import IsrState
    from replication.partition.partition import Partition
    from tests.sim.cluster import SimCluster
    from tests.sim.node import SimNode


class Batch(NamedTuple):
    """What makes a batch the same on two replicas; its bytes are compared at the end."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    crc: int

    @classmethod
    def of(cls, header: BatchHeader) -> Batch:
        return cls(header.base_offset, header.next_offset, header.leader_epoch, header.crc)


class Keyed(NamedTuple):
    """A record of a compacted topic."""

    key: bytes | None
    value: bytes | None


class Exposed:
    """The committed log of one partition of one topic id."""

    def __init__(self) -> None:
        self.end = 0
        self.batches: dict[int, Batch] = {}
        self.records: dict[int, Keyed] = {}
        """By offset, of a compacted topic."""
        self.newest: dict[bytes | None, int] = {}
        """Where the newest record of each key is."""
        self.last: Batch | None = None
        self.compared: dict[int, tuple[int, int, int]] = {}
        """By node: incarnation, truncations of its log, and up to where it was compared."""
        self.partition_epoch = -1
        """Of the ISR that a leader was told of, which no image may have yet."""
        self.isr_checked: tuple[object, int] | None = None


def batches_of(log: PartitionLog, start: int, end: int) -> list[Batch]:
    """The batches in [start, end)."""
    return [Batch.of(header) for _, _, header in headers_of(log, start, end)]


def records_of(log: PartitionLog, start: int, end: int) -> dict[int, Keyed]:
    """By offset, the records in [start, end)."""
    return {
        record.offset: Keyed(_bytes(record.key), _bytes(record.value))
        for data, position, header in headers_of(log, start, end)
        for record in read_records(data, position, header)
        if record.offset < end
    }


def _bytes(data: Any) -> bytes | None:
    return None if data is None else bytes(data)


class Invariants:
    """One for a cluster; see the module."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self.image: MetadataImage = EMPTY_IMAGE
        """The newest that any node has."""
        self.exposed: dict[tuple[bytes, int], Exposed] = {}
        self.transactions = Transactions()
        self.raft_leaders: dict[int, int] = {}
        self._asked_starts: dict[tuple[bytes, int], int] = {}
        self._metadata: list[tuple[int, int, int, str]] = []
        self._metadata_at: dict[int, int] = {}
        self._leaders: dict[tuple[bytes, int, int], int] = {}
        self._epochs: dict[tuple[int, bytes, int], int] = {}
        self._watermarks: dict[tuple[int, bytes, int], tuple[PartitionLog, int, int]] = {}
        """By replica: its log, its high watermark, and the one it began this process with."""
        self._acknowledged: list[tuple[TopicPartition, PartitionLog, int]] = []
        self._checked_image: MetadataImage | None = None
        self._ran: dict[SimNode, None] = {}
        self._proposed: dict[tuple[int, bytes, int], IsrState] = {}

    def broken(self, name: str, text: str) -> InvariantBroken:
        return InvariantBroken(f"{name}: {text}")

    # ---- what nodes tell

    def metadata_listener(self, node: SimNode) -> MetadataListener:
        return MetadataListener(self, node)

    def committed(self, node: SimNode, batches: Sequence[CommittedBatch]) -> None:
        """SameCommittedMetadata."""
        for batch in batches:
            said = (batch.base_offset, batch.last_offset, batch.epoch, repr(list(batch.records)))
            at = self._metadata_at.setdefault(batch.base_offset, len(self._metadata))
            if at == len(self._metadata):
                self._metadata.append(said)
            elif self._metadata[at] != said:
                raise self.broken(
                    "SameCommittedMetadata",
                    f"node {node.node_id} was given {said}, others {self._metadata[at]}",
                )

    def logs_opened(self, node: SimNode) -> None:
        """After a start every log is compared anew; after `kill -9` nothing may be missing."""
        if node.node_id in self._cluster.disks.failed:
            return  # the new process is about to end itself
        for key, before in node.dead_logs.items():
            log = node.log_manager.get(key)
            is_known = log is not None and log.topic_id == before.topic_id
            is_ours = self._is_replica(node, key, before)
            if node.lost_power_in is not None or before.is_offline or not is_ours:
                continue
            if not is_known or log is None or log.log_end_offset < before.log_end_offset:
                end = log.log_end_offset if log is not None else None
                raise self.broken(
                    "NothingLostWithTheProcess",
                    f"{key} on {node.node_id} ended at {before.log_end_offset}, now at {end}",
                )

    def _is_replica(self, node: SimNode, key: TopicPartition, log: PartitionLog) -> bool:
        registration = self.image.partition(*key)
        topic = self.image.topics_by_name.get(key.topic)
        return (
            registration is not None
            and topic is not None
            and topic.topic_id == log.topic_id
            and node.node_id in registration.replicas
        )

    def deletion_asked_for(self, key: TopicPartition, log: PartitionLog, before: int) -> None:
        """DeleteRecords is about to be served by this log."""
        assert log.topic_id is not None
        own = log.topic_id, key[1]
        self._asked_starts[own] = max(before, self._asked_starts.get(own, 0))

    def start_asked_for(self, topic_id: bytes, index: int) -> int:
        """Up to where records may be gone, because somebody asked for it."""
        return self._asked_starts.get((topic_id, index), 0)

    def node_gone(self, node: SimNode) -> None:
        for key in [k for k in self._watermarks if k[0] == node.node_id]:
            del self._watermarks[key]

    # ---- after every event

    def ran(self, node: SimNode) -> None:
        """Code of this node ran: nothing else changes what it thinks and has."""
        self._ran[node] = None

    def check(self) -> None:
        """Look at the nodes whose code ran."""
        nodes = [node for node in self._ran if node.is_up]
        self._ran.clear()
        for node in nodes:
            image = node.loader.image
            if image.offset > self.image.offset:
                self.image = image
        for node in nodes:
            self._check_node(node)
        self.settle()
        self.transactions.check()
        for node in nodes:
            self._check_stable(node)
        if self.image is not self._checked_image:
            self._checked_image = self.image
            self._check_image()

    def _check_stable(self, node: SimNode) -> None:
        if not node.is_broker_started:
            return
        for partition in node.replica_manager.local.partitions.values():
            log, key = partition.log, partition.topic_partition
            where = partition.topic_id, key[1]
            exposed = self.exposed.get(where)
            if log is not None and exposed is not None and log.topic_id == where[0]:
                self.transactions.check_replica(node.node_id, where, key, log, exposed.end)

    def settle(self) -> None:
        """Note what was acknowledged in this event; before a disk may forget it."""
        acknowledged, self._acknowledged = self._acknowledged, []
        for key, log, end in acknowledged:
            self._expose(key, log, end)

    def _check_node(self, node: SimNode) -> None:
        core = node.raft.core
        if core.is_leader:
            leader = self.raft_leaders.setdefault(core.epoch, node.node_id)
            if leader != node.node_id:
                raise self.broken(
                    "OneLeaderPerRaftEpoch", f"{leader} and {node.node_id} lead {core.epoch}"
                )
        if node.is_broker_started:
            for partition in node.replica_manager.local.partitions.values():
                log = partition.log
                if log is not None:
                    self._check_replica(node, partition, log)

    def _check_replica(self, node: SimNode, partition: Partition, log: PartitionLog) -> None:
        watermark, end = log.high_watermark, log.log_end_offset
        key = (partition.topic_id, partition.topic_partition[1])
        own = (node.node_id, *key)
        if not log.log_start_offset <= log.last_stable_offset <= watermark <= end:
            raise self.broken(
                "OrderOfOffsets",
                f"{partition} on {node.node_id}: start {log.log_start_offset}, "
                f"LSO {log.last_stable_offset}, HW {watermark}, LEO {end}",
            )
        if log.log_start_offset > self._asked_starts.get(key, 0):
            raise self.broken(
                "StartsWhereAskedFor",
                f"{partition} on {node.node_id} begins at {log.log_start_offset}, "
                f"asked for was {self._asked_starts.get(key, 0)}",
            )
        epoch = partition.leader_epoch
        if self._epochs.get(own, -1) > epoch:
            raise self.broken("EpochsNeverGoBack", f"{partition} on {node.node_id}")
        self._epochs[own] = epoch
        self._check_watermark(node, partition, log)
        if partition.leader_log is None:
            return
        if partition.role.isr_state.is_inflight:
            self._check_proposed(node, partition)
        registered = node.loader.image.brokers.get(node.node_id)
        if registered is None or registered.incarnation_id != node.incarnation_id:
            raise self.broken(
                "LeadsAsRegistered (B-3)",
                f"{partition} is led by {node.node_id} as what it was before it started",
            )
        leader = self._leaders.setdefault((*key, epoch), node.node_id)
        if leader != node.node_id:
            raise self.broken("OneLeaderPerEpoch", f"{partition}: {leader} and {node.node_id}")
        exposed = self.exposed.get(key)
        if exposed is None:
            exposed = self.exposed[key] = Exposed()
        exposed.partition_epoch = max(exposed.partition_epoch, partition.role.partition_epoch)
        if watermark > exposed.end:
            self._expose(partition.topic_partition, log, watermark)

    def _check_watermark(self, node: SimNode, partition: Partition, log: PartitionLog) -> None:
        own = (node.node_id, partition.topic_id, partition.topic_partition[1])
        watermark = log.high_watermark
        known, before, first = self._watermarks.get(own, (None, 0, 0))
        if known is not log:
            before = first = watermark
        is_outlived = before == first and node.node_id in node.world.forgetful
        if watermark < before and not is_outlived:
            raise self.broken(
                "HWNeverGoesBack", f"{partition} on {node.node_id}: {watermark} after {before}"
            )
        self._watermarks[own] = log, watermark, first

    def _check_proposed(self, node: SimNode, partition: Partition) -> None:
        """JoinsWithAll, when a leader that was not replaced asks for a new member of the ISR.

        A member that came back meanwhile as another incarnation is the controller's to refuse.
        """
        state, key = partition.role.isr_state, partition.topic_partition
        registration = self.image.partition(*key)
        own = (node.node_id, partition.topic_id, key[1])
        if self._proposed.get(own) is state:
            return
        self._proposed[own] = state
        exposed = self.exposed.get((partition.topic_id, key[1]))
        if (
            registration is None
            or exposed is None
            or registration.leader_epoch != partition.leader_epoch
        ):
            return
        for broker_id in sorted(state.proposed - state.isr):
            broker = self.image.brokers.get(broker_id)
            log = self._cluster.nodes[broker_id].log(key)
            if (
                broker is not None
                and log is not None
                and broker.broker_epoch == partition.role.followers[broker_id].broker_epoch
                and not self.is_tainted(broker_id)
                and log.log_end_offset < exposed.end
            ):
                raise self.broken(
                    "JoinsWithAll (H-6)",
                    f"{partition}: {broker_id} is to join {sorted(state.isr)}, its log ends at "
                    f"{log.log_end_offset}, shown is {exposed.end}",
                )

    def expose(self, key: TopicPartition, log: PartitionLog, end: int) -> None:
        """Somebody acknowledges everything below `end`; looked at after the event."""
        self._acknowledged.append((key, log, end))

    def refuse(self, key: TopicPartition, log: PartitionLog, header: BatchHeader) -> None:
        """Somebody says that an idempotent producer's batch is not written."""
        if log.producer_state.find_duplicate(header, FROM_CLIENT) is not None:
            raise self.broken("RefusedIsNotThere", f"{key}: {header}")

    def _expose(self, key: TopicPartition, log: PartitionLog, end: int) -> None:
        assert log.topic_id is not None
        exposed = self.exposed.setdefault((log.topic_id, key[1]), Exposed())
        if end <= exposed.end:
            return
        self.transactions.image = self.image
        for data, position, header in list(headers_of(log, exposed.end, end)):
            exposed.batches[header.base_offset] = exposed.last = Batch.of(header)
            self.transactions.note(key, (log.topic_id, key[1]), data, position, header)
        if self._cluster.is_compacted(key.topic):
            shown = records_of(log, exposed.end, end)
            exposed.records.update(shown)
            exposed.newest.update((record.key, offset) for offset, record in shown.items())
        exposed.end = end
        if not self._is_other(key, log):  # a broker may lead a topic that was deleted meanwhile
            self._check_isr(key, exposed)

    # ---- true ISR

    def _check_image(self) -> None:
        for topic in self.image.topics_by_name.values():
            for index, registration in topic.partitions.items():
                if registration.leader >= 0 and registration.leader not in registration.isr:
                    raise self.broken("LeaderInIsr", f"{topic.name}-{index}: {registration}")
                exposed = self.exposed.get((topic.topic_id, index))
                if exposed is not None:
                    self._check_isr(TopicPartition(topic.name, index), exposed)

    def _check_isr(self, key: TopicPartition, exposed: Exposed) -> None:
        """StrongIsr by length and by the last record's epoch: where two logs have a record of one
        epoch at one offset, they are the same up to there. Contents follow in `compare`."""
        registration = self.image.partition(*key)
        if registration is None or exposed.isr_checked == (registration, exposed.end):
            return
        if self._is_overtaken(registration, exposed):
            return
        for broker_id in self.in_sync(registration):
            node = self._cluster.nodes[broker_id]
            log = node.log(key)
            if log is None or self._is_other(key, log):
                continue  # it has not read of this partition yet, or of its end
            if log.log_end_offset < exposed.end:
                raise self.broken(
                    "StrongIsr",
                    f"{key.topic}-{key[1]}: {broker_id} of ISR {registration.isr} ELR "
                    f"{registration.elr} ends at {log.log_end_offset}, shown is {exposed.end}",
                )
        exposed.isr_checked = (registration, exposed.end)

    @staticmethod
    def _is_overtaken(registration: PartitionRegistration, exposed: Exposed) -> bool:
        """A controller that answered a leader and ended: who counts now is in no image yet."""
        return registration.partition_epoch < exposed.partition_epoch

    @staticmethod
    def _epoch_of(log: PartitionLog, offset: int) -> int:
        entries = log.leader_epochs.entries
        return max((e.epoch for e in entries if e.start_offset <= offset), default=-1)

    def _is_other(self, key: TopicPartition, log: PartitionLog) -> bool:
        topic = self.image.topics_by_name.get(key.topic)
        return topic is None or topic.topic_id != log.topic_id

    def in_sync(self, registration: PartitionRegistration) -> list[int]:
        """The members of ISR and ELR whose disks count."""
        return [b for b in (*registration.isr, *registration.elr) if not self.is_tainted(b)]

    def is_tainted(self, broker_id: int) -> bool:
        node = self._cluster.nodes[broker_id]
        if node.lost_power_in is None:
            return False
        broker = self.image.brokers.get(broker_id)
        if broker is None or broker.incarnation_id <= node.lost_power_in:
            return True
        node.lost_power_in = None
        return False

    # ---- contents, every now and then

    def compare(self) -> None:
        """SameBelowHW on every replica, StrongIsr by content; what is written down."""
        for node in self._cluster.nodes.values():
            if node.is_broker_started:
                self.compare_noted(node)
        for topic in self.image.topics_by_name.values():
            for index, registration in topic.partitions.items():
                exposed = self.exposed.get((topic.topic_id, index))
                if exposed is None:
                    continue
                key = TopicPartition(topic.name, index)
                overtaken = self._is_overtaken(registration, exposed)
                counted = [] if overtaken else self.in_sync(registration)
                for node in self._cluster.nodes.values():
                    log = node.log(key)
                    if log is None or log.topic_id != topic.topic_id:
                        continue
                    if node.node_id in counted:
                        self._compare(node, key, log, exposed, exposed.end)
                    elif node.is_up and node.lost_power_in is None:
                        end = min(log.high_watermark, exposed.end)
                        self._compare(node, key, log, exposed, end)

    def compare_noted(self, node: SimNode) -> None:
        """NotedIsTrue."""
        written: dict[Path, Mapping[TopicPartition, int]] = {}
        for log in node.log_manager.all_logs():
            said = (
                (RECOVERY_POINT_CHECKPOINT, log.flushed_offset),
                (LOG_START_OFFSET_CHECKPOINT, log.log_start_offset),
                (HIGH_WATERMARK_CHECKPOINT, log.high_watermark),
                (CLEANER_OFFSET_CHECKPOINT, log.log_end_offset),
            )
            for kind, most in said if not log.is_closed else ():
                file = log.directory.parent / kind
                if file not in written:
                    written[file] = OffsetCheckpoint(file).read()
                known = log.environment.checkpoints.get(kind, log.topic_partition)
                noted = max(known or 0, written[file].get(log.topic_partition, 0))
                if noted > most:
                    raise self.broken(
                        "NotedIsTrue",
                        f"{kind} of {log.topic_partition} on {node.node_id}: {noted}, not {most}",
                    )

    def _compare_keys(
        self, node: SimNode, key: TopicPartition, log: PartitionLog, exposed: Exposed, end: int
    ) -> None:
        """NewestStays, CleanedOnce, SameBelowHW by records.

        A replica that fetched from a cleaned log ends, while it catches up, between a record that
        is gone and the one that took its place: it must have what nothing newer was shown of."""
        found = records_of(log, log.log_start_offset, log.log_end_offset)
        where = f"{key.topic}-{key[1]} on {node.node_id}"
        for offset, record in found.items():
            if offset < end and exposed.records.get(offset) != record:
                known = exposed.records.get(offset)
                raise self.broken("SameBelowHW", f"{where} at {offset}: {record}, shown: {known}")
        for record_key, offset in exposed.newest.items():
            if offset < end and offset not in found and exposed.records[offset].value is not None:
                raise self.broken("NewestStays", f"{where}: {record_key!r} of {offset} is gone")
        cleaned = log.environment.checkpoints.get(CLEANER_OFFSET_CHECKPOINT, key) or 0
        clean = [record.key for offset, record in found.items() if offset < cleaned]
        if len(clean) != len(set(clean)):
            raise self.broken("CleanedOnce", f"{where} is noted as cleaned to {cleaned}: {clean}")

    def _compare(
        self, node: SimNode, key: TopicPartition, log: PartitionLog, exposed: Exposed, end: int
    ) -> None:
        if self._cluster.is_compacted(key.topic):
            if node.is_up:
                self._compare_keys(node, key, log, exposed, end)
            return
        incarnation, truncations, done = exposed.compared.get(node.node_id, (-1, -1, 0))
        if (incarnation, truncations) != (node.incarnation, log.truncations):
            done = 0
        done = max(done, log.log_start_offset)
        if done >= end:
            return
        for batch in batches_of(log, done, end):
            known = exposed.batches.get(batch.base_offset)
            if known != batch:
                raise self.broken(
                    "SameBelowHW",
                    f"{key.topic}-{key[1]} on {node.node_id}: {batch}, shown was {known}",
                )
            done = batch.next_offset
        if done < end:
            raise self.broken(
                "StrongIsr",
                f"{key.topic}-{key[1]} on {node.node_id} has nothing from {done} to {end}",
            )
        exposed.compared[node.node_id] = (node.incarnation, log.truncations, done)


class MetadataListener:
    """A raft listener that compares what each node is given."""

    def __init__(self, check: Invariants, node: SimNode) -> None:
        self._check = check
        self._node = node

    def handle_snapshot(
        self, snapshot_id: SnapshotId, timestamp: int, records: Sequence[Any]
    ) -> None:
        """Its image is compared by what comes of it."""

    def handle_commit(self, batches: Sequence[CommittedBatch]) -> None:
        self._check.committed(self._node, batches)

    def handle_leader_change(self, leader_id: int, epoch: int) -> None:
        """Looked at after the event."""
