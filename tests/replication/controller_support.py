"""A controller's decisions in a loop without threads: decide, replay, encode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from replication.controller import (
    alter_partition,
    bootstrap,
    cluster,
    configs,
    directories,
    elections,
    features,
    producer_ids,
    reassignments,
    topics,
)
from replication.controller.context import (
    ControllerConfig,
    ControllerContext,
    ControllerResult,
    EffectiveConfig,
    UpgradeKRaftVersion,
)
from replication.metadata.image import (
    EMPTY_IMAGE,
    METADATA_VERSION,
    MetadataDelta,
    MetadataImage,
    PartitionRegistration,
    TransactionBuffer,
)
from replication.metadata.record_serde import MetadataRecordSerde
from replication.raft.voter_set import VoterSet
from wire.errors import ErrorCode, KafkaError
from wire.messages.admin import (
    AlterConfigsRequest,
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    ListPartitionReassignmentsRequest,
    UpdateFeaturesRequest,
)
from wire.messages.quorum import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    AssignReplicasToDirsRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
)

CLUSTER_ID = "5L6g3nShT-eMCtK--X86sw"


class Schema:
    """Knows five keys; `retention.ms` must be a number, `broker.id` may not be altered."""

    known = frozenset(
        ("retention.ms", "cleanup.policy", "min.insync.replicas", "unclean.leader.election.enable")
    )

    def validate(self, resource_type: int, resource_name: str, values: Mapping[str, str]) -> None:
        if "broker.id" in values:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Cannot update these configs dynamically")
        for name in values:
            if name not in self.known:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown config name: {name}")
        if not values.get("retention.ms", "0").lstrip("-").isdecimal():
            raise KafkaError(ErrorCode.INVALID_CONFIG, "retention.ms: not a number")

    def is_list(self, resource_type: int, name: str) -> bool:
        return name == "cleanup.policy"

    def default_value(self, resource_type: int, name: str) -> str | None:
        return "delete" if name == "cleanup.policy" else None

    def topic_configs(
        self,
        overrides: Mapping[str, str],
        dynamic_broker: Mapping[str, str],
        dynamic_default: Mapping[str, str],
    ) -> Sequence[EffectiveConfig]:
        value = overrides.get("retention.ms")
        return [
            EffectiveConfig("retention.ms", value or "604800000", False, 1 if value else 5, False)
        ]


class Cluster:
    """A controller, its image, and the bytes of its records."""

    def __init__(self, **config: Any) -> None:
        self.config = ControllerConfig(node_id=1, cluster_id=CLUSTER_ID, **config)
        self.schema = Schema()
        self.image: MetadataImage = EMPTY_IMAGE
        self.sessions = cluster.BrokerSessions(self.config.broker_session_timeout_ms, 1)
        self.now_ms = 0
        self.log: list[bytes] = []
        self.serde = MetadataRecordSerde()
        self._ids = count(1)
        self.apply(bootstrap.activation_records(self.image, False, self.config, None))

    @property
    def next_offset(self) -> int:
        return self.image.offset + 1

    def apply(self, records: Sequence[Any]) -> list[Any]:
        """Replay and append, as the controller does: the log gets what the metadata.version of that
        moment can say. Returns the records as they come back from bytes.
        """
        delta = MetadataDelta(self.image)
        delta.replay_all(TransactionBuffer().filter(records))
        self.image = delta.apply(self.image.offset + len(records), 1, 1)
        self.serde.metadata_version = self.image.feature(METADATA_VERSION)
        values = [self.serde.encode(record) for record in records]
        self.log += values
        return [self.serde.decode(value) for value in values]

    def run(self, result: ControllerResult) -> Any:
        if result.records:
            self.apply(result.records)
        return result.response

    # --- brokers --------------------------------------------------------------------------------

    def register(
        self,
        broker_id: int = 1,
        incarnation: int = 1,
        *,
        clean: bool = False,
        rack: str | None = None,
        in_process: bool | None = None,
        **changes: Any,
    ) -> int:
        """Register a broker; returns its epoch. Broker 1 runs in the controller's process."""
        existing = self.image.brokers.get(broker_id)
        fields: dict[str, Any] = {
            "broker_id": broker_id, "cluster_id": CLUSTER_ID,
            "incarnation_id": bytes([incarnation]) * 16,
            "listeners": [
                BrokerRegistrationRequest.Listener(
                    name="PLAINTEXT", host="h", port=9092, security_protocol=0
                )
            ],
            "features": [
                BrokerRegistrationRequest.Feature(
                    name=name, min_supported_version=levels.minimum,
                    max_supported_version=levels.maximum,
                )
                for name, levels in bootstrap.SUPPORTED_FEATURES.items()
            ],
            "rack": rack, "log_dirs": [bytes([200, broker_id]) * 8],
            "previous_broker_epoch": existing.broker_epoch if clean and existing else -1,
        }  # fmt: skip
        request = BrokerRegistrationRequest(**{**fields, **changes})
        result = cluster.register_broker(
            self.image, self.sessions, self.config, request, self.next_offset, self.now_ms,
            in_process=broker_id == 1 if in_process is None else in_process,
        )  # fmt: skip
        return int(self.run(result).broker_epoch)

    def heartbeat(self, broker_id: int = 1, **changes: Any) -> Any:
        fields: dict[str, Any] = {
            "broker_id": broker_id, "broker_epoch": self.image.brokers[broker_id].broker_epoch,
            "current_metadata_offset": self.image.offset, "want_fence": False,
            "want_shut_down": False,
        }  # fmt: skip
        request = BrokerHeartbeatRequest(**{**fields, **changes})
        return self.run(
            cluster.broker_heartbeat(
                self.image, self.sessions, self.config, request, self.next_offset, self.now_ms
            )
        )

    def start_broker(self, broker_id: int = 1, incarnation: int = 1, **options: Any) -> None:
        """Register and unfence."""
        self.register(broker_id, incarnation, **options)
        assert not self.heartbeat(broker_id).is_fenced

    def stop_broker(self, broker_id: int = 1) -> None:
        """A controlled shutdown, until the broker may go."""
        for _ in range(3):
            if self.heartbeat(broker_id, want_shut_down=True).should_shut_down:
                return
        raise AssertionError("the broker may not shut down")

    # --- requests -------------------------------------------------------------------------------

    def new_id(self) -> bytes:
        return next(self._ids).to_bytes(8, "big") * 2

    def create_topics(self, *wanted: Any, validate_only: bool = False, version: int = 7) -> Any:
        request = CreateTopicsRequest(topics=list(wanted), validate_only=validate_only)
        return self.run(
            topics.create_topics(
                self.image, request, self.config, self.schema,
                ControllerContext(api_version=version), self.new_id,
            )
        )  # fmt: skip

    def create(self, name: str, partitions: int = 1, factor: int = 1, **configs: str) -> None:
        values = {key.replace("_", "."): value for key, value in configs.items()}
        response = self.create_topics(new_topic(name, partitions, factor, values))
        assert response.topics[0].error_code == 0, response

    def delete_topics(self, request: DeleteTopicsRequest, version: int = 6, **asks: Any) -> Any:
        context = ControllerContext(api_version=version, **asks)
        return self.run(topics.delete_topics(self.image, request, self.config, context))

    def create_partitions(self, *wanted: Any, validate_only: bool = False) -> Any:
        request = CreatePartitionsRequest(
            topics=list(wanted), timeout_ms=1000, validate_only=validate_only
        )
        return self.run(topics.create_partitions(self.image, request))

    def incremental_alter(self, *resources: Any, validate_only: bool = False) -> Any:
        request = IncrementalAlterConfigsRequest(
            resources=list(resources), validate_only=validate_only
        )
        return self.run(configs.incremental_alter_configs(self.image, request, self.schema))

    def alter(self, *resources: Any, validate_only: bool = False) -> Any:
        request = AlterConfigsRequest(resources=list(resources), validate_only=validate_only)
        return self.run(configs.alter_configs(self.image, request, self.schema))

    def elect(self, election_type: int, wanted: dict[str, list[int]] | None) -> Any:
        listed = None
        if wanted is not None:
            listed = [
                ElectLeadersRequest.Topic(topic=name, partitions=indexes)
                for name, indexes in wanted.items()
            ]
        request = ElectLeadersRequest(election_type=election_type, topic_partitions=listed)
        return self.run(elections.elect_leaders(self.image, self.config, request))

    def reassign(
        self, wanted: dict[tuple[str, int], list[int] | None], *, keep_factor: bool = False
    ) -> dict[tuple[str, int], tuple[int, str | None]]:
        """(error code, message) by partition."""
        topic = AlterPartitionReassignmentsRequest.Topic
        request = AlterPartitionReassignmentsRequest(
            topics=[
                topic(
                    name=name,
                    partitions=[topic.Partition(partition_index=index, replicas=replicas)],
                )
                for (name, index), replicas in wanted.items()
            ],
            allow_replication_factor_change=not keep_factor,
        )
        response = self.run(
            reassignments.alter_partition_reassignments(self.image, self.config, request)
        )
        assert response.error_code == 0
        return {
            (topic.name, entry.partition_index): (entry.error_code, entry.error_message)
            for topic in response.responses
            for entry in topic.partitions
        }

    def reassigning(
        self, wanted: dict[str, list[int]] | None = None
    ) -> dict[tuple[str, int], tuple[list[int], list[int], list[int]]]:
        """(replicas, adding, removing) by partition, as ListPartitionReassignments tells."""
        listed = None
        if wanted is not None:
            listed = [
                ListPartitionReassignmentsRequest.Topic(name=name, partition_indexes=indexes)
                for name, indexes in wanted.items()
            ]
        request = ListPartitionReassignmentsRequest(topics=listed)
        response = reassignments.list_partition_reassignments(self.image, request)
        assert response.error_code == 0
        return {
            (topic.name, entry.partition_index): (
                entry.replicas,
                entry.adding_replicas,
                entry.removing_replicas,
            )
            for topic in response.topics
            for entry in topic.partitions
        }

    def alter_partition(
        self,
        name: str,
        isr: Sequence[int],
        *,
        index: int = 0,
        sender: int | None = None,
        epochs: Mapping[int, int] | None = None,
        **changes: Any,
    ) -> Any:
        """The answer for one partition, asked by its leader as it is now unless told otherwise."""
        current = self.partition(name, index)
        asker = current.leader if sender is None else sender
        brokers = self.image.brokers
        known = {b: brokers[b].broker_epoch if b in brokers else 0 for b in isr} | dict(
            epochs or {}
        )
        wanted = AlterPartitionRequest.Topic.Partition
        fields: dict[str, Any] = {
            "partition_index": index, "leader_epoch": current.leader_epoch,
            "partition_epoch": current.partition_epoch,
            "leader_recovery_state": current.leader_recovery_state,
            "new_isr_with_epochs": [
                wanted.BrokerState(broker_id=b, broker_epoch=known[b]) for b in isr
            ],
        }  # fmt: skip
        request = AlterPartitionRequest(
            broker_id=asker,
            broker_epoch=brokers[asker].broker_epoch,
            topics=[
                AlterPartitionRequest.Topic(
                    topic_id=self.image.topics_by_name[name].topic_id,
                    partitions=[wanted(**{**fields, **changes})],
                )
            ],
        )
        return self.ask_alter_partition(request).topics[0].partitions[0]

    def ask_alter_partition(self, request: AlterPartitionRequest) -> Any:
        return self.run(alter_partition.alter_partition(self.image, self.config, request))

    def assign_directories(
        self, broker_id: int, wanted: Mapping[bytes, Sequence[tuple[bytes, int]]], **changes: Any
    ) -> list[tuple[bytes, int, int]]:
        """(directory, partition, error code) of each; `wanted`: (topic id, index) by directory."""
        directory = AssignReplicasToDirsRequest.Directory
        request = AssignReplicasToDirsRequest(
            broker_id=broker_id,
            broker_epoch=changes.get("broker_epoch", self.image.brokers[broker_id].broker_epoch),
            directories=[
                directory(
                    id=directory_id,
                    topics=[
                        directory.Topic(
                            topic_id=topic_id,
                            partitions=[directory.Topic.Partition(partition_index=index)],
                        )
                        for topic_id, index in replicas
                    ],
                )
                for directory_id, replicas in wanted.items()
            ],
        )
        response = self.run(directories.assign_replicas_to_dirs(self.image, self.config, request))
        return [
            (entry.id, partition.partition_index, partition.error_code)
            for entry in response.directories
            for topic in entry.topics
            for partition in topic.partitions
        ]

    def update_features(
        self,
        *updates: tuple[str, int, int],
        validate_only: bool = False,
        version: int = 2,
        kraft_version: int = 1,
        voters: Sequence[int] = (1,),
        upgrade_kraft_version: UpgradeKRaftVersion = lambda level, validate_only: None,
    ) -> Any:
        """`updates`: (feature, level, upgrade type)."""
        request = UpdateFeaturesRequest(
            feature_updates=[
                UpdateFeaturesRequest.FeatureUpdate(
                    feature=name, max_version_level=level, upgrade_type=kind
                )
                for name, level, kind in updates
            ],
            validate_only=validate_only,
        )
        context = ControllerContext(api_version=version)
        return self.run(
            features.update_features(
                self.image,
                self.config,
                request,
                context,
                VoterSet.of_ids(*voters).with_kraft_version(kraft_version),
                upgrade_kraft_version,
            )
        )

    def balance(self) -> int:
        """Elect preferred leaders as from time to time; returns how many changed."""
        return len(self.apply(elections.balance_leaders(self.image, self.config)))

    def elect_unclean(self) -> int:
        return len(self.apply(elections.elect_unclean_leaders(self.image, self.config)))

    def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> Any:
        request = AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=broker_epoch)
        return self.run(producer_ids.allocate_producer_ids(self.image, request))

    def partition(self, name: str, index: int = 0) -> PartitionRegistration:
        found = self.image.partition(name, index)
        assert found is not None
        return found


def replayed(base: MetadataImage, values: Sequence[bytes]) -> MetadataImage:
    """The image after the records in `values`."""
    serde = MetadataRecordSerde()
    delta = MetadataDelta(base)
    delta.replay_all(TransactionBuffer().filter(serde.decode(value) for value in values))
    return delta.apply(base.offset + len(values), 1, 1)


def new_topic(
    name: str,
    partitions: int = -1,
    factor: int = -1,
    configs: Mapping[str, str | None] | None = None,
    assignments: dict[int, list[int]] | None = None,
) -> CreateTopicsRequest.Topic:
    return CreateTopicsRequest.Topic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            CreateTopicsRequest.Topic.Assignment(partition_index=index, broker_ids=brokers)
            for index, brokers in (assignments or {}).items()
        ],
        configs=[
            CreateTopicsRequest.Topic.Config(name=key, value=value)
            for key, value in (configs or {}).items()
        ],
    )


def errors_of(response: Any) -> list[tuple[str, int]]:
    """(name, error code) of each topic, in the order of the answer."""
    listed = getattr(response, "topics", None) or getattr(response, "responses", None)
    return [(entry.name, entry.error_code) for entry in listed or response.results]
