"""Apache Kafka 4.3.1 reads what we write, and we read what it wrote."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from replication.controller import context
from replication.controller.bootstrap import SUPPORTED_FEATURES
from replication.controller.context import ControllerConfig
from replication.controller.controller import Controller
from replication.metadata.image import MetadataImage
from replication.metadata.loader import MetadataLoader, SnapshotConfig
from replication.metadata.record_serde import MetadataRecordSerde
from replication.raft.driver import RaftDriver
from replication.raft.log import RaftLog
from storage.checkpoint import read_meta_properties
from storage.config import SystemClock
from testkit import jars
from testkit.brokers.nodes import ApacheKafka
from testkit.quick_jvm import QUICK_JVM
from testkit.require import require
from testkit.wait import eventually
from tests.replication.controller.test_controller import Answer
from tests.replication.controller_support import Schema, new_topic
from wire.errors import ErrorCode
from wire.messages.admin import (
    AlterPartitionReassignmentsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
    UnregisterBrokerRequest,
)
from wire.messages.quorum import (
    AlterPartitionRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    ControllerRegistrationRequest,
)
from wire.primitives import uuid_from_text

pytestmark = [
    pytest.mark.java,
    pytest.mark.slow,
    # kafka-python 3.0.12 reads its schemas in a deprecated way.
    pytest.mark.filterwarnings("ignore:.*Use files.. instead:DeprecationWarning"),
]
CLUSTER_ID = "5L6g3nShT-eMCtK--X86sw"


@pytest.fixture(scope="module")
def class_path() -> str:
    try:
        return jars.class_path()
    except jars.JarsUnavailable as missing:
        require(False, f"Apache Kafka: {missing}")
        raise AssertionError from missing


class Barnabas:
    """Our quorum and controller on a directory; `broker` registers and unfences node 1."""

    def __init__(self, path: Path, cluster_id: str = CLUSTER_ID) -> None:
        clock, serde = SystemClock(), MetadataRecordSerde()
        self.cluster_id = cluster_id
        self.driver = RaftDriver(1, RaftLog.open(path, clock), clock, serde)
        self.loader = MetadataLoader(self.driver, clock, snapshot_config=SnapshotConfig())
        self.driver.add_listener(self.loader)
        self.published = threading.Event()
        self.controller = Controller(
            ControllerConfig(node_id=1, cluster_id=cluster_id),
            self.driver, self.loader, serde, clock, Schema(), new_id=lambda: os.urandom(16),
        )  # fmt: skip

    @property
    def image(self) -> MetadataImage:
        return self.loader.image

    def call(self, request: object) -> object:
        answer = Answer()
        self.controller.submit(request, answer)
        return answer.wait()

    def broker(self, directory_id: bytes, port: int = 9092, broker_id: int = 1) -> None:
        registered = self.call(
            BrokerRegistrationRequest(
                broker_id=broker_id, cluster_id=self.cluster_id, incarnation_id=os.urandom(16),
                listeners=[
                    BrokerRegistrationRequest.Listener(
                        name="PLAINTEXT", host="127.0.0.1", port=port, security_protocol=0
                    )
                ],
                features=[
                    BrokerRegistrationRequest.Feature(
                        name=name, min_supported_version=r.minimum,
                        max_supported_version=r.maximum,
                    )
                    for name, r in SUPPORTED_FEATURES.items()
                ],
                rack=None, log_dirs=[directory_id],
            )
        )  # fmt: skip
        epoch: int = registered.broker_epoch  # type: ignore[attr-defined]
        self.heartbeat(epoch, False, broker_id)

    def heartbeat(
        self, epoch: int, stop: bool, broker_id: int = 1, *, fence: bool = False
    ) -> object:
        return self.call(
            BrokerHeartbeatRequest(
                broker_id=broker_id, broker_epoch=epoch,
                current_metadata_offset=self.image.offset, want_fence=fence, want_shut_down=stop,
            )
        )  # fmt: skip

    def fence(self, broker_id: int) -> None:
        epoch = self.image.brokers[broker_id].broker_epoch
        self.heartbeat(epoch, False, broker_id, fence=True)

    def alter_isr(self, name: str, isr: list[int]) -> None:
        """As the leader of partition 0 asks."""
        topic, current = self.image.topics_by_name[name], self.image.partition(name, 0)
        assert current is not None
        wanted = AlterPartitionRequest.Topic.Partition
        answer = self.call(
            AlterPartitionRequest(
                broker_id=current.leader,
                broker_epoch=self.image.brokers[current.leader].broker_epoch,
                topics=[
                    AlterPartitionRequest.Topic(
                        topic_id=topic.topic_id,
                        partitions=[
                            wanted(
                                partition_index=0, leader_epoch=current.leader_epoch,
                                partition_epoch=current.partition_epoch, leader_recovery_state=0,
                                new_isr_with_epochs=[
                                    wanted.BrokerState(broker_id=b, broker_epoch=-1) for b in isr
                                ],
                            )
                        ],
                    )
                ],
            )
        )  # fmt: skip
        (partition,) = answer.topics[0].partitions  # type: ignore[attr-defined]
        assert partition.error_code in (0, ErrorCode.NEW_LEADER_ELECTED)

    def reassign(self, name: str, replicas: list[int] | None) -> None:
        topic = AlterPartitionReassignmentsRequest.Topic
        answer = self.call(
            AlterPartitionReassignmentsRequest(
                topics=[
                    topic(
                        name=name,
                        partitions=[topic.Partition(partition_index=0, replicas=replicas)],
                    )
                ]
            )
        )
        assert answer.responses[0].partitions[0].error_code == 0  # type: ignore[attr-defined]

    def configure(self, kind: int, name: str, key: str, value: str) -> None:
        resource = IncrementalAlterConfigsRequest.Resource
        entry = resource.Config(name=key, config_operation=0, value=value)
        answer = self.call(
            IncrementalAlterConfigsRequest(
                resources=[resource(resource_type=kind, resource_name=name, configs=[entry])],
                validate_only=False,
            )
        )
        assert answer.responses[0].error_code == 0  # type: ignore[attr-defined]

    def create(self, *names: str, partitions: int = 1, factor: int = 1) -> None:
        configs = {"retention.ms": "86400000"}
        topics = [new_topic(name, partitions, factor, configs) for name in names]
        response = self.call(CreateTopicsRequest(topics=topics, validate_only=False))
        assert {t.error_code for t in response.topics} == {0}, response  # type: ignore[attr-defined]


@contextmanager
def barnabas(path: Path, cluster_id: str = CLUSTER_ID) -> Iterator[Barnabas]:
    made = Barnabas(path, cluster_id)
    made.driver.start()
    made.loader.start([lambda _delta, _image: made.published.set()])
    made.controller.start()
    try:
        yield made
    finally:
        made.controller.shutdown()
        made.driver.shutdown()
        made.loader.shutdown()


def dump(class_path: str, *arguments: str) -> str:
    done = subprocess.run(
        [jars.java(), "-Xmx256M", *QUICK_JVM, "-cp", class_path,
         "org.apache.kafka.tools.DumpLogSegments", *arguments],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_kafkas_dump_tool_reads_our_log_snapshots_and_indexes(
    tmp_path: Path, class_path: str
) -> None:
    with barnabas(tmp_path) as made:
        made.broker(b"\x61" * 16)
        made.create(*(f"t{n}" for n in range(200)), partitions=3)
        made.loader.write_snapshot(made.image)
        made.call(DeleteTopicsRequest(topic_names=["t7"], timeout_ms=1000))
    with barnabas(tmp_path) as made:
        made.broker(b"\x61" * 16)
    folder = tmp_path / "__cluster_metadata-0"
    (snapshot,) = folder.glob("*.checkpoint")
    text = dump(class_path, "--cluster-metadata-decoder", "--files", str(snapshot))
    assert text.count('"TOPIC_RECORD"') == 200
    assert text.count('"PARTITION_RECORD"') == 600
    assert "SnapshotHeader" in text
    assert "SnapshotFooter" in text
    assert "isvalid: false" not in text
    logs = sorted(folder.glob("*.log"))
    text = dump(class_path, "--cluster-metadata-decoder", "--files", ",".join(map(str, logs)))
    assert '"REMOVE_TOPIC_RECORD"' in text
    assert '"PARTITION_CHANGE_RECORD"' in text
    assert "LeaderChange" in text
    assert "isvalid: false" not in text
    indexes = [*folder.glob("*.index"), *folder.glob("*.timeindex")]
    text = dump(class_path, "--index-sanity-check", "--files", ",".join(map(str, indexes)))
    assert "Mismatches" not in text
    assert "failed" not in text


def test_apache_kafka_starts_on_a_directory_we_wrote(tmp_path: Path, class_path: str) -> None:
    """Formatted by kafka-storage, run by us, then by Apache Kafka: it serves our topics."""
    from kafka.admin import KafkaAdminClient

    kafka = ApacheKafka(tmp_path)
    kafka._format(class_path, _write_properties(kafka))
    identity = read_meta_properties(kafka.data_dir / "meta.properties")
    assert identity is not None
    assert identity.cluster_id is not None
    with barnabas(kafka.data_dir, identity.cluster_id) as made:
        made.broker(uuid_from_text(_directory_id(kafka.data_dir)), kafka.port)
        made.create("ours", partitions=4)
        made.loader.write_snapshot(made.image)
        made.create("later")
        topic_id = made.image.topics_by_name["ours"].topic_id
    kafka._formatted = True
    with kafka:
        admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
        described = {topic["name"]: topic for topic in admin.describe_topics(["ours", "later"])}
        admin.close()
    assert len(described["ours"]["partitions"]) == 4
    with barnabas(kafka.data_dir, identity.cluster_id) as made:
        assert made.image.topics_by_name["ours"].topic_id == topic_id
        assert set(made.image.topics_by_name) == {"ours", "later"}


def test_apache_kafka_reads_the_log_of_a_cluster(
    tmp_path: Path, class_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead brokers, ISR changes, eligible leaders, moves, features, transactions: Apache Kafka's
    dump tool names every record, and its controller replays them and goes on from there.
    """
    from kafka.admin import KafkaAdminClient

    kafka = ApacheKafka(tmp_path)
    kafka._format(class_path, _write_properties(kafka))
    identity = read_meta_properties(kafka.data_dir / "meta.properties")
    assert identity is not None
    with barnabas(kafka.data_dir, str(identity.cluster_id)) as made:
        made.broker(uuid_from_text(_directory_id(kafka.data_dir)), kafka.port)
        for broker_id in (2, 3, 4):
            made.broker(bytes([broker_id]) * 16, 9000 + broker_id, broker_id)
        _live_through_much(made, monkeypatch)
        expected = made.image
    text = dump(
        class_path, "--cluster-metadata-decoder", "--files",
        ",".join(map(str, sorted((kafka.data_dir / "__cluster_metadata-0").glob("*.log")))),
    )  # fmt: skip
    for kind in (
        "BEGIN_TRANSACTION_RECORD", "END_TRANSACTION_RECORD", "CLEAR_ELR_RECORD",
        "REGISTER_CONTROLLER_RECORD", "UNREGISTER_BROKER_RECORD", "PARTITION_CHANGE_RECORD",
        "BROKER_REGISTRATION_CHANGE_RECORD", "NO_OP_RECORD",
    ):  # fmt: skip
        assert f'"{kind}"' in text, kind
    assert "isvalid: false" not in text
    kafka._formatted = True
    with kafka:
        admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
        described = {t["name"]: t["partitions"] for t in admin.describe_topics(["moved", "many"])}
        admin.close()
    moved = expected.partition("moved", 0)
    assert moved is not None
    assert described["moved"][0]["replica_nodes"] == list(moved.replicas) == [1, 3, 4]
    assert len(described["many"]) == 60
    with barnabas(kafka.data_dir, str(identity.cluster_id)) as made:
        assert made.image.partition("waiting", 0) is not None
        assert set(made.image.topics_by_name) == set(expected.topics_by_name)


def _live_through_much(made: Barnabas, monkeypatch: pytest.MonkeyPatch) -> None:
    made.create("moved", "waiting", "cleared", factor=3)
    made.create("many", partitions=60, factor=2)
    monkeypatch.setattr(context, "RECORDS_PER_BATCH_MAX", 10)
    made.call(
        ControllerRegistrationRequest(
            controller_id=9, incarnation_id=b"\x09" * 16, zk_migration_ready=False,
            listeners=[
                ControllerRegistrationRequest.Listener(
                    name="CONTROLLER", host="127.0.0.1", port=9093, security_protocol=0
                )
            ],
            features=[
                ControllerRegistrationRequest.Feature(
                    name="metadata.version", min_supported_version=7, max_supported_version=30
                )
            ],
        )
    )  # fmt: skip
    made.reassign("moved", [2, 3, 4])
    made.reassign("moved", None)
    made.reassign("moved", [1, 3, 4])
    made.alter_isr("moved", sorted({*_isr(made, "moved"), 1, 3, 4}))
    # Wherever it was placed: with 2 and 3 gone its ISR is too small, and one of them is eligible.
    made.reassign("cleared", [1, 2, 3])
    made.alter_isr("cleared", sorted({*_isr(made, "cleared"), 1, 2, 3}))
    made.configure(4, "", "min.insync.replicas", "2")
    made.fence(2)
    made.fence(3)
    made.configure(2, "cleared", "min.insync.replicas", "1")
    made.call(UnregisterBrokerRequest(broker_id=2))
    offset = made.image.offset
    while made.image.offset == offset:  # four brokers: an idle log is written to
        assert made.published.wait(60)
        made.published.clear()


def _isr(made: Barnabas, name: str) -> tuple[int, ...]:
    found = made.image.partition(name, 0)
    assert found is not None
    return found.isr


def _write_properties(kafka: ApacheKafka) -> Path:
    path = kafka.directory / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in kafka._properties.items()))
    return path


def _directory_id(data_dir: Path) -> str:
    lines = (data_dir / "meta.properties").read_text().splitlines()
    return next(line for line in lines if line.startswith("directory.id=")).partition("=")[2]


def test_we_open_what_apache_kafka_wrote(tmp_path: Path, class_path: str) -> None:
    from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

    with ApacheKafka(tmp_path) as kafka:
        with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)) as admin:
            topics = {
                "alpha": {
                    "num_partitions": 3, "replication_factor": 1,
                    "configs": {"cleanup.policy": "compact"},
                },
                "beta": {"num_partitions": 1, "replication_factor": 1},
                "gone": {"num_partitions": 1, "replication_factor": 1},
            }  # fmt: skip
            eventually(lambda: admin.create_topics(topics))  # its broker may still be fenced
            change = ConfigResource(ConfigResourceType.TOPIC, "beta", {"retention.bytes": "999"})
            # The client asks first which keys there are, maybe before the broker has the topic.
            eventually(lambda: admin.alter_configs([change]))
            admin.delete_topics(["gone"])
        kafka.stop()
    identity = read_meta_properties(kafka.data_dir / "meta.properties")
    assert identity is not None
    with barnabas(kafka.data_dir, str(identity.cluster_id)) as made:
        assert sorted(made.image.topics_by_name) == ["alpha", "beta"]
        assert len(made.image.topics_by_name["alpha"].partitions) == 3
        assert made.image.config(2, "alpha") == {"cleanup.policy": "compact"}
        assert made.image.config(2, "beta") == {"retention.bytes": "999"}
        assert made.image.features["metadata.version"] == 30
        assert made.image.partition("alpha", 0).leader == -1  # type: ignore[union-attr]
        made.broker(uuid_from_text(_directory_id(kafka.data_dir)))
        assert made.image.partition("alpha", 0).leader == 1  # type: ignore[union-attr]
        response = made.call(
            CreateTopicsRequest(topics=[new_topic("alpha", 1, 1)], validate_only=False)
        )
        (topic,) = response.topics  # type: ignore[attr-defined]
        assert topic.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
