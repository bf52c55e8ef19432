"""Orders of events that chance hardly ever finds: faults that wait for their moment.

A story is one bad course of events, aimed at one rule: who plays which part is chance, when the
next fault comes depends on what the nodes have reached. Its steps yield what they wait for; one
that never comes ends the story, and whatever it did is undone. Nothing here looks at what the
product ought to do: the invariants do, as in every run.

    late_fetch    a follower's fetch is under way while two elections pass and comes to the leader
                  of before, who leads again; the follower has cut off by then what it asks behind
                  (E-2, KIP-320). Or that leader hears of both elections at once (H-2).
    stuck_fetch   the same, but the fetch has arrived: the leader has read for it when its thread is
                  stopped, and goes on after both elections (L6)
    lagging_heir  a leader dies that showed more than its heir knows to be committed, while one that
                  is out of the ISR ends between the two (H-6)
    amnesia       a leader's request to let a replica join is under way while the power of its
                  machine fails and it comes back without what it had (KIP-903)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from replication.partition.partition import Partition
from wire.messages.data import FetchRequest
from wire.messages.quorum import AlterPartitionRequest
from wire.primitives import TopicPartition

if TYPE_CHECKING:
    from replication.metadata.image import PartitionRegistration
    from storage.log.partition_log import PartitionLog
    from tests.sim.cluster import SimCluster
    from tests.sim.node import SimNode

_LOOK_MS = 1
_NAMES = ("late_fetch", "stuck_fetch", "lagging_heir", "amnesia")


class Wait(NamedTuple):
    """Go on when this is so; the story is over if it is not within `limit_ms`."""

    condition: Callable[[], bool]
    limit_ms: int


Story = Generator[Wait, None, None]


class StoppedThread:
    """A thread of a node that the scheduler has forgotten in the middle of its work."""

    is_stopped = False
    may_go_on = False


class Stories:
    """Tells one after the other while the clients work."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._network = cluster.network
        self._is_over = False
        if cluster.options.story_every_ms:
            self._later()

    def end(self) -> None:
        """What is held comes now."""
        self._is_over = True
        self._network.release()

    def _later(self) -> None:
        every_ms = self._cluster.options.story_every_ms
        self._world.after(self._world.between(1, 2 * every_ms), self._begin)

    def _begin(self) -> None:
        if self._is_over:
            return
        parts = self._parts()
        if parts is None:
            self._later()
            return
        name = self._cluster.options.story or self._world.random.choice(_NAMES)
        self._world.tell(f"story {name} of {parts}")
        self._go_on(getattr(self, "_" + name)(parts))

    def _parts(self) -> Parts | None:
        """A partition all of whose replicas are in sync, and who is who in it."""
        cluster, random = self._cluster, self._world.random
        if any(not node.is_serving or node.is_stopping for node in cluster.nodes.values()):
            return None
        key = TopicPartition("orders", random.randrange(cluster.options.partitions))
        registration = cluster.check.image.partition(*key)
        if registration is None or registration.leader < 0 or len(registration.isr) != 3:
            return None
        others = [b for b in registration.isr if b != registration.leader]
        random.shuffle(others)
        return Parts(cluster, key, registration.leader, *others)

    def _go_on(self, story: Story) -> None:
        wait = None if self._is_over else next(story, None)
        if wait is None:
            self._end_of(story)
        else:
            self._look(story, wait, self._world.ms + wait.limit_ms)

    def _look(self, story: Story, wait: Wait, end_ms: int) -> None:
        if self._is_over or self._world.ms > end_ms:
            self._end_of(story)
        elif wait.condition():
            self._go_on(story)
        else:
            self._world.after(_LOOK_MS, lambda: self._look(story, wait, end_ms))

    def _end_of(self, story: Story) -> None:
        story.close()
        self._network.release()
        self._later()

    def _pass(self, ms: int) -> Wait:
        end_ms = self._world.ms + ms
        return Wait(lambda: self._world.ms >= end_ms, ms + 1)

    # ---- E-2, H-2

    def _late_fetch(self, parts: Parts) -> Story:
        network, follower, leader = self._network, parts.other, parts.leader
        yield from self._follower_ahead(parts)
        network.hold(FetchRequest, follower, leader)
        late = (FetchRequest, follower, leader)
        yield Wait(lambda: bool(network.held[late]), 500)
        yield from self._two_elections(parts)
        network.release(late)
        yield self._pass(200)

    def _stuck_fetch(self, parts: Parts) -> Story:
        yield from self._follower_ahead(parts)
        with self._stopped_after_reading(parts) as thread:
            yield Wait(lambda: thread.is_stopped, 1_000)
            yield from self._two_elections(parts)
            thread.may_go_on = True
            yield self._pass(200)

    def _follower_ahead(self, parts: Parts) -> Story:
        """The preferred leader is the one that has less than the follower."""
        leader, between, follower = parts.leader, parts.one, parts.other
        self._cluster.admin.move(parts.key, [between, leader, follower])
        wanted = (between, leader, follower)
        yield Wait(lambda: parts.now.replicas == wanted, 1_000)
        self._network.hold(FetchRequest, between, leader)
        yield Wait(lambda: parts.end(follower) > parts.end(between), 500)

    def _two_elections(self, parts: Parts) -> Story:
        """The follower cuts off what it had ahead, and the leader of before leads again."""
        cluster, network, random = self._cluster, self._network, self._world.random
        leader, between, follower = parts.leader, parts.one, parts.other
        yield self._pass(self._world.between(1, 50))
        end = parts.end(follower)
        if random.random() < 0.5:
            network.hold(FetchRequest, leader, between)
        else:
            parts.node(leader).pause(1_000)
        cluster.admin.elect_preferred()
        yield Wait(lambda: parts.now.leader == between, 1_000)
        epoch = parts.now.leader_epoch
        yield Wait(lambda: parts.epoch(follower) == epoch and parts.end(follower) < end, 600)
        parts.node(between).stop()
        yield Wait(lambda: parts.now.leader == leader, 2_000)
        yield Wait(lambda: parts.leads(leader), 1_500)

    @contextmanager
    def _stopped_after_reading(self, parts: Parts) -> Iterator[StoppedThread]:
        """The next fetch of the follower is read, and then its thread stands still."""
        network, world, thread = self._network, self._world, StoppedThread()
        real = Partition.read_records

        def read_records(partition: Partition, *given: Any) -> Any:
            result = real(partition, *given)
            is_it = (
                network.arrived == (FetchRequest, parts.other, parts.leader)
                and world.node == parts.leader
                and partition.topic_partition == parts.key
                and partition.is_leader
            )
            if is_it and not thread.is_stopped:
                thread.is_stopped = True
                world.stand_still(lambda: thread.may_go_on or self._is_over, 6_000)
            return result

        with patch.object(Partition, "read_records", read_records):
            try:
                yield thread
            finally:
                thread.may_go_on = True

    # ---- H-6

    def _lagging_heir(self, parts: Parts) -> Story:
        network = self._network
        leader, heir, outside = parts.leader, parts.one, parts.other
        from_outside, from_heir = (
            (FetchRequest, outside, leader),
            (FetchRequest, heir, leader),
        )
        network.hold(*from_outside)
        yield Wait(lambda: outside not in parts.now.isr, 4_000)
        # One fetch of each: the outsider's first, then the heir's, which asks for no less.
        network.hold(*from_heir)
        yield Wait(lambda: bool(network.held[from_heir]) and bool(network.held[from_outside]), 800)
        before = parts.end(outside)
        network.release_last(from_outside)
        yield Wait(lambda: parts.end(outside) > before, 800)
        yield Wait(lambda: parts.end(leader) > parts.end(outside), 500)
        network.release(from_heir)
        yield Wait(lambda: parts.shown > parts.end(outside) >= parts.watermark(heir), 500)
        parts.node(leader).crash("is killed")
        yield Wait(lambda: parts.now.leader == heir, 3_000)
        yield self._pass(300)

    # ---- KIP-903

    def _amnesia(self, parts: Parts) -> Story:
        cluster, network = self._cluster, self._network
        leader, joining = parts.leader, parts.one
        controller = parts.node(leader).controller
        if controller is not None and controller.is_active:
            return  # it asks itself
        fetches = (FetchRequest, joining, leader)
        network.hold(*fetches)
        yield Wait(lambda: joining not in parts.now.isr, 4_000)
        for node_id in cluster.nodes:
            network.hold(AlterPartitionRequest, leader, node_id)
        network.release(fetches)
        yield Wait(lambda: joining in parts.proposed_by(leader), 1_500)
        node = parts.node(joining)
        if not node.is_up or not cluster.power_loss_is_fair(node):
            return
        broker_epoch = cluster.check.image.brokers[joining].broker_epoch
        network.hold(*fetches)
        node.crash("loses its power", power=True)

        def is_back() -> bool:
            broker = cluster.check.image.brokers[joining]
            return broker.broker_epoch != broker_epoch and not broker.fenced

        yield Wait(is_back, 5_000)
        for node_id in cluster.nodes:
            network.release((AlterPartitionRequest, leader, node_id))
        yield self._pass(200)


class Parts:
    """Who plays what in a story, and how far they are."""

    def __init__(
        self, cluster: SimCluster, key: TopicPartition, leader: int, one: int, other: int
    ) -> None:
        self._cluster = cluster
        self.key = key
        self.leader = leader
        self.one = one
        self.other = other

    def __repr__(self) -> str:
        return f"{self.key.topic}-{self.key[1]}: led by {self.leader}, {self.one}, {self.other}"

    def node(self, node_id: int) -> SimNode:
        return self._cluster.nodes[node_id]

    @property
    def now(self) -> PartitionRegistration:
        registration = self._cluster.check.image.partition(*self.key)
        assert registration is not None
        return registration

    @property
    def shown(self) -> int:
        topic = self._cluster.check.image.topics_by_name[self.key.topic]
        exposed = self._cluster.check.exposed.get((topic.topic_id, self.key[1]))
        return 0 if exposed is None else exposed.end

    def _log(self, node_id: int) -> PartitionLog | None:
        return self.node(node_id).log(self.key)

    def end(self, node_id: int) -> int:
        log = self._log(node_id)
        return -1 if log is None else log.log_end_offset

    def watermark(self, node_id: int) -> int:
        log = self._log(node_id)
        return -1 if log is None else log.high_watermark

    def _partition(self, node_id: int) -> Partition | None:
        node = self.node(node_id)
        if not node.is_broker_started:
            return None
        return node.replica_manager.local.partitions.get(self.key)

    def epoch(self, node_id: int) -> int:
        partition = self._partition(node_id)
        return -1 if partition is None else partition.leader_epoch

    def leads(self, node_id: int) -> bool:
        """By the newest metadata."""
        partition = self._partition(node_id)
        return (
            partition is not None
            and partition.is_leader
            and partition.leader_epoch == self.now.leader_epoch
        )

    def proposed_by(self, node_id: int) -> frozenset[int]:
        partition = self._partition(node_id)
        return frozenset() if partition is None else partition.role.isr_state.proposed
