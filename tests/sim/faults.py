"""What goes wrong in a run while the clients work, and how often; `Options` says which of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.sim.clients import Producer
from tests.sim.stories import Stories
from wire.messages.transactions import AddPartitionsToTxnRequest, WriteTxnMarkersRequest
from wire.primitives import TopicPartition

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster
    from tests.sim.node import SimNode


class Faults:
    """What goes wrong while the clients work."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._network = cluster.network
        options = cluster.options
        network = self._network
        network.loss, network.repeat, network.slow = options.loss, options.repeat, options.slow
        network.slow_ms = options.slow_ms
        self._every(options.cut_every_ms, self._cut)
        self._every(options.pause_every_ms, self._pause)
        self._every(options.crash_every_ms, self._crash)
        self._every(options.power_every_ms, self._power)
        self._every(options.tear_every_ms, self._tear)
        self._every(options.sync_fails_every_ms, self._fail_sync)
        self._every(options.stop_every_ms, self._stop)
        self._every(options.move_every_ms, self._move)
        self._every(options.topic_every_ms, self._topic)
        self._every(options.records_every_ms, self._records)
        self._every(options.step_every_ms, self._step)
        self._every(options.full_every_ms, self._fill)
        self._every(options.hang_every_ms, self._hang)
        self._every(options.shortage_every_ms, self._run_short)
        self._every(options.rot_every_ms, self._rot)
        self._every(options.late_every_ms, self._come_late)
        self._topics = 0
        self._stories = Stories(cluster)

    def end(self) -> None:
        network = self._network
        network.loss = network.repeat = network.slow = 0.0
        network.cut = set()
        self._stories.end()
        self._is_over = True

    _is_over = False

    def _every(self, period_ms: int, action: Callable[[], None]) -> None:
        if not period_ms:
            return

        def again() -> None:
            if not self._is_over:
                action()
                self._every(period_ms, action)

        self._world.after(1 + self._world.random.randrange(2 * period_ms), again)

    def _one(self) -> SimNode:
        return self._world.random.choice(list(self._cluster.nodes.values()))

    def _cut(self) -> None:
        random, ids = self._world.random, list(self._cluster.nodes)
        links = [(a, b) for a in ids for b in ids if a != b]
        kind = random.randrange(5)
        cut: set[tuple[int, int]] = set()
        if kind == 0:
            lonely = random.choice(ids)
            cut = {link for link in links if lonely in link}
        elif kind == 1:
            cut = {random.choice(links)}
        elif kind == 2:
            lonely = random.choice(ids)
            cut = {(a, b) for a, b in links if a == lonely}
        elif kind == 3:
            one = random.choice(links)
            cut = {one, one[::-1]}
        self._network.cut = cut
        self._world.tell(f"links cut: {sorted(cut)}")

    def _pause(self) -> None:
        self._one().pause(self._world.between(50, 3_000))

    def _crash(self) -> None:
        node = self._one()
        if node.is_up and not self._cluster.is_recovering():
            node.crash("is killed")

    def _power(self) -> None:
        cluster = self._cluster
        if cluster.options.flushes and self._world.chance(0.2):
            for node in cluster.nodes.values():
                node.crash("loses its power", power=True)
            return
        node = self._one()
        if node.is_up and cluster.power_loss_is_fair(node):
            node.crash("loses its power", power=True)

    def _tear(self) -> None:
        node = self._one()
        if node.is_up and not self._cluster.is_recovering():
            self._cluster.disks.die_after(node.node_id, self._world.between(0, 12))

    def _fail_sync(self) -> None:
        node = self._one()
        if node.is_up and self._cluster.power_loss_is_fair(node):
            self._cluster.disks.fail_next_sync(node.node_id)

    def _stop(self) -> None:
        node = self._one()
        if node.is_up and not node.is_stopping:
            node.stop()

    def _move(self) -> None:
        random, cluster = self._world.random, self._cluster
        if random.random() < 0.3:
            cluster.admin.elect_preferred()
            return
        key = TopicPartition("orders", random.randrange(cluster.options.partitions))
        replicas = random.sample(list(cluster.nodes), 3)
        cluster.admin.move(key, replicas if random.random() < 0.8 else None)

    def _records(self) -> None:
        """Some of what was shown is deleted."""
        random, check = self._world.random, self._cluster.check
        topics = check.image.topics_by_name
        name = random.choice([name for name in ("orders", "passing") if name in topics])
        index = random.choice(sorted(topics[name].partitions))
        exposed = check.exposed.get((topics[name].topic_id, index))
        if exposed is not None and exposed.end:
            before = self._world.between(0, exposed.end)
            self._cluster.admin.delete_records(TopicPartition(name, index), before)

    def _step(self) -> None:
        """Somebody sets a machine's wall clock. Not further back than a producer's timestamps may
        be ahead of it."""
        node = self._one()
        node.clock.skew_ms = self._world.between(-3_000_000, 20_000_000)
        self._world.tell(f"{node.node_id} has its clock set to {node.clock.skew_ms} ms ahead")

    def _fill(self) -> None:
        """A log directory is full; there is room again after a while."""
        disks, directory = self._cluster.disks, self._directory()
        if directory not in disks.full:
            self._world.tell(f"{directory.name} is full")
            disks.fill(directory)
            self._world.after(self._world.between(200, 3_000), lambda: disks.make_room(directory))

    def _hang(self) -> None:
        directory = self._directory()
        hang_ms = self._world.between(300, 5_000)
        self._world.tell(f"{directory.name} hangs for {hang_ms} ms")
        self._cluster.disks.hang(directory, hang_ms)

    def _run_short(self) -> None:
        """A process has no file descriptor left for what it wants to open in one directory."""
        directory = self._directory()
        short_ms = self._world.between(1, 400)
        self._world.tell(f"descriptors for {directory.name} run out for {short_ms} ms")
        self._cluster.disks.run_short(directory, short_ms)

    def _come_late(self) -> None:
        """What one broker asks another about transactions lies about for a while, as in the buffers
        of a connection; who asked gives it up and asks again, or is replaced."""
        kind = self._world.random.choice((WriteTxnMarkersRequest, AddPartitionsToTxnRequest))
        source, target = self._world.random.sample(list(self._cluster.nodes), 2)
        self._world.tell(f"{kind.__name__} of {source} come late to {target}")
        self._network.hold(kind, source, target)
        link = kind, source, target
        self._world.after(self._world.between(50, 4_000), lambda: self._network.release(link))

    def _rot(self) -> None:
        """A process dies, and what says which transactions were aborted is nonsense when the next
        one reads it."""
        node = self._one()
        if not node.is_up or self._cluster.is_recovering():
            return
        node.crash("is killed, and its transaction indexes rot")
        for directory in node.directories:
            for path in sorted(directory.glob("*/*.txnindex")):
                path.write_bytes(self._world.random.randbytes(path.stat().st_size))

    def _directory(self) -> Path:
        """One that is not the metadata log's: without that, a node is none."""
        return self._world.random.choice(list(self._one().directories)[1:])

    def _topic(self) -> None:
        """A topic that comes and goes, with a name that comes again."""
        cluster = self._cluster
        if "passing" in cluster.check.image.topics_by_name:
            for producer in cluster.producers:
                if producer.topic == "passing" and not producer.is_over:
                    producer.is_over = True
                    producer.pending.clear()
                    producer.acked.clear()
                    producer.given_up.clear()
            cluster.admin.delete("passing")
        else:
            self._topics += 1
            cluster.admin.create("passing", 2, 3)
            cluster.producers.append(Producer(cluster, 2_000 + self._topics, "passing", 60))
