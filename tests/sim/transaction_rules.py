"""What must hold of transactions, by name; looked at as records become committed, and after events.

    LegalMoves                a transactional id takes the steps of the state table only, a decision
                              never flips, epochs never go back (T-2)
    EpochForEachTransaction   who ends a transaction of version 2, and whoever ends somebody else's,
                              takes the next epoch (T-4, T-7)
    PrepareBeforeMarkers      no marker is asked for whose Prepare record is not committed (TX-3)
    MarkersBeforeComplete     every partition of a transaction has its marker when the coordinator
                              says that it is complete (no lost marker, T-5)
    EveryPartitionIsKnown     data of a transaction is committed only where its coordinator is going
                              to send a marker (T-6)
    OneOutcome                markers of one transaction all say the same, on every partition
    EndedByItsOwn             no transaction of version 2 ends by a marker of the one before (TX-60)
    CoordinatorsInOrder       no marker of a coordinator follows one of the next (T-5)
    StableIsExact             every replica's LSO is its first undecided transaction below its HW,
                              or its HW (V-2, TX-63)
    LSONeverGoesBack          while a process runs (V-2), unless a marker is cut off that a snapshot
                              knew when it started, above its HW, but not where (as in Kafka)
    NoAbortedRead             a read_committed consumer that skips what it is told is aborted sees
                              records of committed transactions, each of them, and no others (TX-64)
    Fencing                   who was replaced commits nothing any more (T-4)
    Atomicity                 a transaction's records, in all partitions, and its offsets are there
                              for good together or not at all; what was said of it is so
    PendingIsPending          a group's offsets are told when their transaction is committed, not
                              before, and a stable read tells them as soon as that is decided (T-8)
    Liveness                  every transaction ends, and nothing keeps readers back (T-10, T-11)

`Transactions` is told of every record as it is exposed (`invariants.Exposed`): by then it can be
read, and is on the whole ISR.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from replication.metadata.topic_names import TRANSACTION_STATE_TOPIC
from server.coordinator.transactions.records import decode_transaction
from server.coordinator.transactions.state import (
    BUMPS_EPOCHS,
    LEGAL_PREVIOUS,
    TransactionMetadata,
    TransactionState,
)
from tests.sim.batches import headers_of
from tests.sim.world import InvariantBroken
from wire.control_records import ControlRecordType, parse_end_txn_marker
from wire.primitives import TopicPartition
from wire.records import BatchHeader, read_records

if TYPE_CHECKING:
    from replication.metadata.image import MetadataImage
    from storage.log.partition_log import PartitionLog
    from tests.sim.node import SimNode
    from wire.messages.transactions import WriteTxnMarkersRequest

Where = tuple[bytes, int]
"""Topic id and partition."""


class Span:
    """One transaction on one partition, from its first record to its marker."""

    __slots__ = ("epoch", "first", "has_own_epoch", "is_commit", "marker", "producer_id", "values")

    def __init__(self, producer_id: int, epoch: int, first: int, has_own_epoch: bool) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.first = first
        self.has_own_epoch = has_own_epoch
        self.marker: int | None = None
        self.is_commit = False
        self.values: list[tuple[int, bytes]] = []


class History:
    """The transactions that are committed to the log of one partition."""

    def __init__(self) -> None:
        self.open: dict[int, Span] = {}
        """By producer id."""
        self.ended: list[Span] = []
        """In the order of their markers."""
        self.at: dict[int, Span] = {}
        """By the base offset of each batch."""
        self.markers: dict[int, int] = {}
        """How many, by producer id."""
        self.coordinators: dict[int, int] = {}

    def undecided(self, high_watermark: int, loaded_to: int, ended: Collection[int] = ()) -> int:
        """The first offset of a transaction that is undecided for who knows so much; else that.

        A marker that was in the log when its producers were last loaded counts at once, in Kafka
        too: a snapshot does not say which ends are replicated. It says what was decided for good.
        `ended`: producers whose markers the replica has, and nobody has shown yet.
        """
        found = high_watermark
        for producer_id, span in self.open.items():
            if producer_id not in ended:
                found = min(found, span.first)
        for span in reversed(self.ended):
            assert span.marker is not None
            if span.marker < max(high_watermark, loaded_to):
                break
            found = min(found, span.first)
        return found


class Transactions:
    """One for a cluster; see the module."""

    def __init__(self) -> None:
        self.histories: dict[Where, History] = {}
        self.states: dict[str, TransactionMetadata] = {}
        """By transactional id, as the log of its coordinator says."""
        self.ages: dict[int, int] = {}
        """By producer id: numbers in the order they came to be."""
        self._owners: dict[int, str] = {}
        self._counted: dict[str, dict[TopicPartition, int]] = {}
        """By id in Prepare: how many markers its producer had on each partition before."""
        self._outcomes: dict[tuple[int, int], bool] = {}
        self._asked: list[tuple[int, int, bool]] = []
        self._prepared: set[tuple[int, int, bool]] = set()
        self._stable: dict[tuple[int, Where], tuple[PartitionLog, int, int, int]] = {}
        """By replica: its log, how often that was truncated, its end then, and its LSO."""
        self.image: MetadataImage | None = None
        self.echoes: dict[tuple[int, int], Callable[[], None]] = {}
        """By producer id and epoch: what happens when that transaction is open somewhere."""

    # ---- what brokers ask of each other

    def markers_asked_for(self, request: WriteTxnMarkersRequest) -> None:
        """WriteTxnMarkers is about to be served."""
        self._asked += [
            (marker.producer_id, marker.producer_epoch, marker.transaction_result)
            for marker in request.markers
        ]

    @staticmethod
    def is_unfair(source: SimNode, incarnation: int, request: WriteTxnMarkersRequest) -> bool:
        """A marker below version 2 that comes late ends the next transaction of its producer, for
        nothing tells them apart (that is why there is version 2, KIP-890). So it must not be late:
        whoever sent it still waits for it."""
        if all(marker.transaction_version >= BUMPS_EPOCHS for marker in request.markers):
            return False
        if not source.is_up or source.incarnation != incarnation:
            return True
        waiting = source.transaction_markers._transactions
        for marker in request.markers:
            transaction = waiting.get(marker.producer_id)
            keys = {TopicPartition(t.name, i) for t in marker.topics for i in t.partition_indexes}
            if transaction is None or not keys <= transaction.missing:
                return True
        return False

    # ---- what becomes committed

    def note(self, key: TopicPartition, where: Where, data: Any, position: int,
             header: BatchHeader) -> None:  # fmt: skip
        """A batch is exposed."""
        if key.topic == TRANSACTION_STATE_TOPIC:
            for record in read_records(data, position, header):
                self._note_state(bytes(record.key or b""), record.value)
        elif header.is_transactional:
            history = self.histories.setdefault(where, History())
            records = list(read_records(data, position, header))
            if header.is_control:
                self._note_marker(key, history, header, records[0])
            else:
                self._note_data(key, history, header, records)

    def _note_data(
        self, key: TopicPartition, history: History, header: BatchHeader, records: list[Any]
    ) -> None:
        producer_id, epoch = header.producer_id, header.producer_epoch
        state = self.states.get(self._owners.get(producer_id, ""))
        span = history.open.get(producer_id)
        if span is None:
            has_own_epoch = state is not None and state.client_version >= BUMPS_EPOCHS
            span = Span(producer_id, epoch, header.base_offset, has_own_epoch)
            history.open[producer_id] = span
            self.echoes.pop((producer_id, epoch), _nothing)()
        history.at[header.base_offset] = span
        span.values += [(record.offset, bytes(record.value or b"")) for record in records]
        if (
            state is None
            or (state.producer_id, state.producer_epoch) != (producer_id, epoch)
            or state.state is not TransactionState.ONGOING
            or key not in state.partitions
        ) and not self._is_being_ended(state, producer_id, key):
            raise InvariantBroken(
                f"EveryPartitionIsKnown: {key} has data of producer {producer_id} epoch {epoch}, "
                f"its coordinator has {state}"
            )

    @staticmethod
    def _is_being_ended(
        state: TransactionMetadata | None, producer_id: int, key: TopicPartition
    ) -> bool:
        """Decided while data was still on its way to the followers: its marker follows."""
        return (
            state is not None
            and state.is_prepared
            and state.producer_id == producer_id
            and key in state.partitions
        )

    def _note_marker(
        self, key: TopicPartition, history: History, header: BatchHeader, record: Any
    ) -> None:
        marker = parse_end_txn_marker(record)
        producer_id, epoch = header.producer_id, header.producer_epoch
        is_commit = marker.type is ControlRecordType.COMMIT
        history.markers[producer_id] = history.markers.get(producer_id, 0) + 1
        known = history.coordinators.get(producer_id, -1)
        if marker.coordinator_epoch < known:
            raise InvariantBroken(
                f"CoordinatorsInOrder: {key} at {header.base_offset}: marker for {producer_id} of "
                f"coordinator epoch {marker.coordinator_epoch} after {known}"
            )
        history.coordinators[producer_id] = marker.coordinator_epoch
        span = history.open.pop(producer_id, None)
        if span is None:
            return
        span.marker, span.is_commit = header.base_offset, is_commit
        history.ended.append(span)
        if span.has_own_epoch and epoch <= span.epoch:
            raise InvariantBroken(
                f"EndedByItsOwn: {key}: marker of epoch {epoch} ends {producer_id} of {span.epoch}"
            )
        if epoch > span.epoch and self._outcomes.setdefault(
            (producer_id, epoch), is_commit
        ) is not is_commit:  # fmt: skip
            raise InvariantBroken(f"OneOutcome: {producer_id} epoch {epoch} on {key}: both")

    def _note_state(self, key: bytes, value: bytes | None) -> None:
        record = decode_transaction(key, None if value is None else bytes(value))
        assert record is not None
        name, now, _ = record
        assert now is not None, "nothing expires in a run"
        before = self.states.get(name)
        if before is not None:
            self._check_move(name, before, now)
        elif now.state is not TransactionState.EMPTY:
            raise InvariantBroken(f"LegalMoves: {name} begins with {now}")
        self.states[name] = now
        self._owners[now.producer_id] = name
        for producer_id in (now.producer_id, now.next_producer_id):
            self.ages.setdefault(producer_id, len(self.ages))
        if now.is_prepared:
            is_commit = now.state is TransactionState.PREPARE_COMMIT
            self._prepared.add((now.producer_id, now.producer_epoch, is_commit))
            self._counted[name] = {
                key: self._marker_count(key, now.producer_id) for key in now.partitions
            }
        elif before is not None and before.is_prepared:
            for partition, count in self._counted.pop(name).items():
                if self._marker_count(partition, before.producer_id) <= count:
                    raise InvariantBroken(
                        f"MarkersBeforeComplete: {name} is complete, {partition} has no marker"
                    )

    def _marker_count(self, key: TopicPartition, producer_id: int) -> int:
        assert self.image is not None
        topic = self.image.topics_by_name.get(key.topic)
        history = None if topic is None else self.histories.get((topic.topic_id, key[1]))
        return 0 if history is None else history.markers.get(producer_id, 0)

    @staticmethod
    def _check_move(name: str, before: TransactionMetadata, now: TransactionMetadata) -> None:
        moved = f"{name} went from {before} to {now}"
        if before.state not in LEGAL_PREVIOUS[now.state]:
            raise InvariantBroken(f"LegalMoves: {moved}")
        if now.producer_id != before.producer_id:
            return
        if now.producer_epoch < before.producer_epoch:
            raise InvariantBroken(f"LegalMoves: {moved}")
        bumps = now.client_version >= BUMPS_EPOCHS
        if now.is_prepared and bumps and now.producer_epoch == before.producer_epoch:
            raise InvariantBroken(f"EpochForEachTransaction: {moved}")

    # ---- after every event

    def check(self) -> None:
        """PrepareBeforeMarkers; what is exposed by this event is noted."""
        asked, self._asked = self._asked, []
        for marker in asked:
            if marker not in self._prepared:
                raise InvariantBroken(f"PrepareBeforeMarkers: {marker} (producer, epoch, commit)")

    def check_replica(
        self, node_id: int, where: Where, key: TopicPartition, log: PartitionLog, shown: int
    ) -> None:
        """StableIsExact, LSONeverGoesBack. Of what is not shown yet nothing is known here."""
        history = self.histories.get(where)
        if history is None or log.high_watermark > shown:
            return
        stable = log.last_stable_offset
        known = self._stable.get((node_id, where))
        loaded_to = log.log_end_offset
        if known is not None and known[0] is log:
            is_cut = known[1] != log.truncations and log.log_end_offset < known[2]
            if stable < known[3] and not is_cut:
                raise InvariantBroken(
                    f"LSONeverGoesBack: {key} on {node_id}: {stable} after {known[3]}"
                )
            if known[1] == log.truncations:
                loaded_to = known[2]
        self._stable[node_id, where] = log, log.truncations, loaded_to, stable
        least = history.undecided(log.high_watermark, 0)
        most = history.undecided(log.high_watermark, loaded_to)
        if stable > most:
            ended = {
                header.producer_id
                for _, _, header in headers_of(log, log.high_watermark, loaded_to)
                if header.is_control
            }
            most = history.undecided(log.high_watermark, loaded_to, ended)
        if not least <= stable <= most:
            raise InvariantBroken(
                f"StableIsExact: {key} on {node_id}: LSO {stable}, not {least} to {most}; HW "
                f"{log.high_watermark}, log end {log.log_end_offset}"
            )

    # ---- the end

    def open_transactions(self) -> list[str]:
        """What of it is undecided anywhere."""
        ids = [f"{name} {state}" for name, state in self.states.items() if not state.is_settled]
        spans = [
            f"{where[0].hex()}-{where[1]}: producer {span.producer_id} from {span.first}"
            for where, history in self.histories.items()
            for span in history.open.values()
        ]
        return ids + spans


def _nothing() -> None:
    pass
