"""Who reads what transactions wrote: consumers with read_committed, and groups' offsets.

`LedgerReader` reads one partition as a consumer does: it skips what its broker tells it is aborted.
What it gives to its application is compared with the log that is committed, batch by batch.
`OffsetReader` looks at a group's offset that transactions commit, stable and not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.sim.clients import coordinates, coordinator_of
from tests.sim.network import Reply, serve_api
from tests.sim.transactors import LEDGER, SOURCE, Transaction, TransactionalId
from tests.sim.world import InvariantBroken
from wire.control_records import ControlRecordType, control_record_type
from wire.errors import ErrorCode
from wire.messages.data import FetchRequest, FetchResponse
from wire.messages.groups import OffsetFetchRequest, OffsetFetchResponse
from wire.records import BatchHeader, iterate_headers, read_records

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster
    from tests.sim.node import SimNode

_TIMEOUT_MS = 600
_READ_COMMITTED = 1
_VERSION = 13
_OFFSET_FETCH_VERSION = 9


class LedgerReader:
    """See the module."""

    def __init__(self, cluster: SimCluster, index: int) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._index = index
        self._topic_id = b""
        self._epoch = -1
        self.position = 0
        self.rounds = 0
        """How often it came to the end of what there is."""
        self.is_over = False
        self._poll()

    def from_the_start(self) -> None:
        """Read everything again."""
        self.position = self.rounds = 0

    def _poll(self) -> None:
        if self.is_over:
            return
        self._world.after(self._world.between(20, 200), self._poll)
        image = self._cluster.some_image()
        topic = image.topics_by_name.get(LEDGER)
        registration = image.partition(LEDGER, self._index)
        if topic is None or registration is None or registration.leader < 0:
            return
        if registration.leader_epoch < self._epoch:
            return
        self._topic_id, self._epoch = topic.topic_id, registration.leader_epoch
        asked_at = self.position
        partition = FetchRequest.Topic.Partition(
            partition=self._index,
            current_leader_epoch=registration.leader_epoch,
            fetch_offset=asked_at,
            partition_max_bytes=self._world.between(100, 1 << 14),
        )
        request = FetchRequest(
            max_wait_ms=10,
            min_bytes=1,
            max_bytes=1 << 16,
            isolation_level=_READ_COMMITTED,
            topics=[FetchRequest.Topic(topic_id=topic.topic_id, partitions=[partition])],
        )
        data = b"".join(request.encode(_VERSION))

        def serve(node: SimNode, reply: Reply) -> None:
            serve_api(node, FetchRequest, data, _VERSION, reply)

        self._cluster.network.call(
            None,
            self._world.random.choice((registration.leader, *registration.isr)),
            serve,
            lambda out: self._answered(asked_at, out),
            _TIMEOUT_MS,
            needs_broker=True,
        )

    def _answered(self, asked_at: int, out: bytes | None) -> None:
        if out is None or asked_at != self.position:
            return
        response = FetchResponse.decode(out, _VERSION)
        if response.error_code or not response.responses:
            return
        answer = response.responses[0].partitions[0]
        if answer.error_code:
            return
        if answer.records:
            self._read(answer)
        else:
            self.rounds += 1
        if self._world.chance(0.05):
            self.position = self._world.between(0, self.position)

    def _read(self, answer: Any) -> None:
        """As the Java client's CompletedFetch."""
        told = sorted((t.first_offset, t.producer_id) for t in answer.aborted_transactions or ())
        aborted: set[int] = set()
        for at, header in iterate_headers(answer.records):
            while told and told[0][0] <= header.last_offset:
                aborted.add(told.pop(0)[1])
            if header.is_control:
                record = next(iter(read_records(answer.records, at, header)))
                if control_record_type(bytes(record.key)) is ControlRecordType.ABORT:
                    aborted.discard(header.producer_id)
            elif header.is_transactional and header.next_offset > self.position:
                self._check(header, header.producer_id not in aborted)
            self.position = max(self.position, header.next_offset)

    def _check(self, header: BatchHeader, is_visible: bool) -> None:
        history = self._cluster.check.transactions.histories[self._topic_id, self._index]
        span = history.at.get(header.base_offset)
        if span is None or span.marker is None:
            raise InvariantBroken(
                f"NoAbortedRead: {LEDGER}-{self._index} gave {header}, which is undecided"
            )
        if is_visible is not span.is_commit:
            raise InvariantBroken(
                f"NoAbortedRead: {LEDGER}-{self._index} at {header.base_offset} of producer "
                f"{header.producer_id}: seen {is_visible}, committed {span.is_commit}"
            )


class OffsetReader:
    """See the module; for the group of one transactional id."""

    def __init__(self, cluster: SimCluster, owner: TransactionalId) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._owner = owner
        self.last: int | None = None
        """What a stable read told last."""
        self.answers = 0
        self.is_over = False
        self._poll()

    def _poll(self) -> None:
        if self.is_over:
            return
        self._world.after(self._world.between(30, 300), self._poll)
        node_id = coordinator_of(self._cluster, self._owner.group)
        if node_id is None:
            return
        is_stable = self._world.chance(0.5)
        topic = OffsetFetchRequest.Group.Topic(name=SOURCE[0], partition_indexes=[SOURCE[1]])
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequest.Group(group_id=self._owner.group, topics=[topic])],
            require_stable=is_stable,
        )
        data = b"".join(request.encode(_OFFSET_FETCH_VERSION))
        floor = self._decided()

        def serve(node: SimNode, reply: Reply) -> None:
            def respond(out: bytes) -> None:
                reply((out, coordinates(self._cluster, node, self._owner.group)))

            serve_api(node, OffsetFetchRequest, data, _OFFSET_FETCH_VERSION, respond)

        self._cluster.network.call(
            None,
            node_id,
            serve,
            lambda told: self._answered(told, floor if is_stable else None),
            _TIMEOUT_MS,
            needs_broker=True,
        )

    def _decided(self) -> int:
        """The newest offset whose transaction was told to be committed."""
        told = (t.number for t in self._owner.transactions if t.told and t.has_offset)
        return max(told, default=-1)

    def _answered(self, told: tuple[bytes, bool] | None, floor: int | None) -> None:
        if told is None or not told[1]:
            return
        group = OffsetFetchResponse.decode(told[0], _OFFSET_FETCH_VERSION).groups[0]
        if group.error_code:
            return
        partition = group.topics[0].partitions[0]
        if partition.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT and floor is not None:
            return
        if partition.error_code:
            raise InvariantBroken(f"NoUnexpectedError: OffsetFetch of {self._owner}: {partition}")
        found = partition.committed_offset
        self.answers += 1
        if floor is not None:
            self.last = found
            if found < floor:
                raise InvariantBroken(
                    f"PendingIsPending: {self._owner.group} has {found}, committed was {floor}"
                )
        if found >= 0:
            self._check(self._owner.transactions[found - 1])

    def _check(self, transaction: Transaction) -> None:
        if not transaction.was_to_commit or transaction.told is False:
            raise InvariantBroken(f"PendingIsPending: the offset of {transaction} is told")


def check_atomicity(cluster: SimCluster, owner: TransactionalId, last: int | None) -> None:
    """Atomicity, of everything this id ever wrote; `last` is its group's offset."""
    there = _values(cluster)
    committed_offset = -1
    for transaction in owner.transactions:
        is_committed = _is_committed(transaction, there)
        if transaction.told is not None and transaction.told is not is_committed:
            raise InvariantBroken(f"Atomicity: {transaction} is not as it was told")
        if is_committed and not transaction.was_to_commit:
            raise InvariantBroken(f"Atomicity: {transaction} is there")
        if is_committed and transaction.has_offset:
            committed_offset = transaction.number
    if last != committed_offset:
        raise InvariantBroken(
            f"Atomicity: {owner.group} is at {last}, its last transaction with an offset was "
            f"{committed_offset}"
        )


def _values(cluster: SimCluster) -> dict[bytes, bool]:
    """Every record of the ledger, and whether it is committed."""
    there: dict[bytes, bool] = {}
    topic_id = cluster.check.image.topics_by_name[LEDGER].topic_id
    for (of, _), history in cluster.check.transactions.histories.items():
        for span in history.ended if of == topic_id else ():
            for _, value in span.values:
                if value in there:
                    raise InvariantBroken(f"Atomicity: {value!r} is there twice")
                there[value] = span.is_commit
    return there


def _is_committed(transaction: Transaction, there: dict[bytes, bool]) -> bool:
    values = [value for values in transaction.values.values() for value in values]
    fates = {there.get(value, False) for value in values}
    if len(fates) > 1:
        raise InvariantBroken(f"Atomicity: half of {transaction} is there")
    return fates == {True}
