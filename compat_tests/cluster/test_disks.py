"""D4, D5: a disk that fails to sync, and one that is full, under one node of three."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testkit.brokers.clusters import ClusterOfNodes
from testkit.faults.disk_faults import DiskFaults
from testkit.faults.rounds import TIMEOUT_S
from testkit.require import require
from testkit.wait import eventually
from testkit.workloads.workload import Workload, wait

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S)]

MIB = 1 << 20
DISK_BYTES = 64 * MIB


def faults_for(directory: Path, nodes: int = 3) -> dict[int, DiskFaults]:
    found = {}
    for node in range(1, nodes + 1):
        home = directory / f"faults-{node}"
        home.mkdir()
        found[node] = DiskFaults(home)
    return found


def test_d4_a_failed_fsync_is_never_acknowledged_and_never_tried_again(
    make_cluster: Callable[..., ClusterOfNodes],
    tmp_path: Path,
    topic_name: str,
    rounds: Callable[[int], int],
) -> None:
    """The n-th fsync of a data log fails on the leader: the directory goes offline, here its last.

    The topic syncs each write (flush.messages=1), so that an acknowledgement relies on it.
    """
    faults = faults_for(tmp_path)
    cluster = make_cluster(environments={node: f.environment for node, f in faults.items()})
    with Workload(cluster, tmp_path, topic_name, rate=150, flush_messages="1") as load:
        load.await_each_producing()
        for number in range(rounds(1)):
            victim = cluster.leader(topic_name)
            others = sorted(set(cluster.nodes) - {victim})
            faults[victim].fail_fsync(f"/{topic_name}-", skip=number % 50)
            await_hit(faults[victim])
            load.await_each_producing(timeout_s=90)
            cluster.leader(topic_name, among=others)
            start_again(cluster, victim, faults[victim])
            load.await_each_producing()
        load.prove()


def test_d4_a_controller_that_cannot_sync_the_metadata_log_is_replaced(
    make_cluster: Callable[..., ClusterOfNodes], tmp_path: Path, topic_name: str
) -> None:
    faults = faults_for(tmp_path)
    cluster = make_cluster(environments={node: f.environment for node, f in faults.items()})
    with Workload(cluster, tmp_path, topic_name, rate=150) as load:
        load.await_each_producing()
        victim = cluster.controller()
        others = sorted(set(cluster.nodes) - {victim})
        faults[victim].fail_fsync("/__cluster_metadata-0/")
        await_hit(faults[victim])
        eventually(
            lambda: cluster.controller(among=others) != victim, timeout_s=60, what="a successor"
        )
        load.await_each_producing(timeout_s=90)
        start_again(cluster, victim, faults[victim])
        load.prove()


def test_d4_one_of_two_disks_fails_and_the_node_goes_on_with_the_other(
    make_cluster: Callable[..., ClusterOfNodes], tmp_path: Path, topic_name: str
) -> None:
    """What it led on the failed disk is led elsewhere; what lies on the other stays in sync."""
    faults = faults_for(tmp_path)
    cluster = make_cluster(
        disks=["disk-a", "disk-b"],
        environments={node: f.environment for node, f in faults.items()},
    )
    with Workload(cluster, tmp_path, topic_name, rate=100, flush_messages="1") as load:
        load.await_each_producing()

        def is_on_b(node: int, index: int) -> bool:
            """The metadata log is on the other."""
            return cluster.partition_dir(node, topic_name, index).parent.name == "disk-b"

        leaders = [cluster.leader(topic_name, index) for index in range(load.partitions)]
        victim = next(node for index, node in enumerate(leaders) if is_on_b(node, index))
        gone = {index for index in range(load.partitions) if is_on_b(victim, index)}
        assert 0 < len(gone) < load.partitions
        faults[victim].fail_fsync(f"/disk-b/{topic_name}-")
        await_hit(faults[victim])

        def others_lead() -> bool:
            for part in cluster.view(victim, topic_name).topics[topic_name]:
                is_gone = part.partition in gone
                assert is_gone == (victim not in part.isr), part
                assert part.leader > 0, part
                assert not is_gone or part.leader != victim, part
            return True

        eventually(others_lead, timeout_s=30, what="the failed disk's replicas are out")
        load.await_each_producing(timeout_s=90)
        assert cluster.nodes[victim].runs
        start_again(cluster, victim, faults[victim])
        load.prove()


def await_hit(fault: DiskFaults) -> None:
    eventually(lambda: fault.was_met, what="the fault is met")


def start_again(cluster: ClusterOfNodes, node: int, fault: DiskFaults) -> None:
    """A node whose only disk failed has ended, or serves nothing: start it on a mended disk."""
    fault.end()
    if cluster.nodes[node].runs:
        cluster.kill(node)
    cluster.restart(node)
    cluster.await_full_isr()


@pytest.fixture
def small_disk(tmp_path: Path, rounds: Callable[[int], int]) -> Iterator[Path]:
    """A file system of 64 MiB, more in the long form; mounting it takes root and the right to."""
    disk = tmp_path / "disk"
    disk.mkdir()
    without = "test_d5_no_space does without"
    require(os.geteuid() == 0 and shutil.which("mount"), f"mounting needs root; {without}")
    size = DISK_BYTES * (1 + rounds(2) // 10)  # records of a round: some 2 MiB
    options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
    mounted = subprocess.run(["mount", *options], check=False).returncode == 0
    require(mounted, f"mounting is not allowed here; {without}")
    yield disk
    # Lazily: the nodes are killed by a fixture that is torn down after this one.
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_d5_a_full_disk_stops_one_replica_and_nothing_else(
    make_cluster: Callable[..., ClusterOfNodes],
    tmp_path: Path,
    topic_name: str,
    small_disk: Path,
    rounds: Callable[[int], int],
) -> None:
    # No index is preallocated to its usual ten megabytes: the disk is for the ballast.
    cluster = make_cluster({"log.index.size.max.bytes": 65536}, data_dirs={2: small_disk / "data"})
    ballast = small_disk / "ballast"
    with Workload(cluster, tmp_path, topic_name) as load:
        load.await_each_producing()
        for _ in range(rounds(2)):
            fill(small_disk, ballast)
            wait(2)
            load.await_each_producing(more=100, timeout_s=90)
            ballast.unlink()
            if not cluster.nodes[2].runs:
                cluster.restart(2)
            cluster.await_full_isr(timeout_s=60)
            load.await_each_producing()
        load.prove()


def test_d5_no_space_for_one_write_stops_one_replica_and_nothing_else(
    make_cluster: Callable[..., ClusterOfNodes], tmp_path: Path, topic_name: str
) -> None:
    """ENOSPC from a write of the leader's data log: the same without a disk of its own."""
    faults = faults_for(tmp_path)
    cluster = make_cluster(environments={node: f.environment for node, f in faults.items()})
    with Workload(cluster, tmp_path, topic_name) as load:
        load.await_each_producing()
        victim = cluster.leader(topic_name)
        faults[victim].fail_writes(f"/{topic_name}-")
        await_hit(faults[victim])
        load.await_each_producing(more=100, timeout_s=90)
        faults[victim].end()
        if not cluster.nodes[victim].runs:
            cluster.restart(victim)
        cluster.await_full_isr(timeout_s=60)
        load.prove()


def fill(disk: Path, ballast: Path) -> None:
    """Leave not a byte."""
    with open(ballast, "ab", buffering=0) as file:
        for piece in (MIB, 4096, 1):
            try:
                while file.write(bytes(piece)) == piece:
                    pass
            except OSError:
                continue
