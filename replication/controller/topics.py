"""Creating, deleting and extending topics. PURE: image and request in, records and response out.

Each topic of a request succeeds or fails alone; the records of all that succeed are one atomic
batch. Order of checks and codes as Apache Kafka's controller: duplicate names in one request
(INVALID_REQUEST), illegal names (INVALID_TOPIC_EXCEPTION), existing names, names that differ from
an existing one only in '.' and '_' (INVALID_TOPIC_EXCEPTION, because metrics turn one into the
other; two of one request are not compared), configs, then counts or assignments. The records of a
topic are TopicRecord, its ConfigRecords, its PartitionRecords.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from replication.controller import placement
from replication.controller.context import (
    RECORDS_PER_OPERATION_MAX,
    ConfigSchema,
    ControllerConfig,
    ControllerContext,
    ControllerResult,
    repeated,
)
from replication.controller.mutation_quotas import Charge, unbounded
from replication.metadata.image import (
    RESOURCE_BROKER,
    RESOURCE_TOPIC,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from replication.metadata.topic_names import check_topic_name
from wire.errors import ErrorCode, KafkaError
from wire.messages.admin import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from wire.messages.metadata_records import ConfigRecord, RemoveTopicRecord, TopicRecord
from wire.primitives import METADATA_TOPIC, ZERO_UUID, uuid_to_text

PARTITIONS_PER_REQUEST_MAX = 10_000
"""A request may not ask for more new partitions, made or not: it takes milliseconds to place a
thousand, and everybody's requests wait meanwhile (Kafka: MAX_PARTITIONS_PER_BATCH)."""

_VERSION_WITH_CONFIGS = 5
_NOTHING = (None, ZERO_UUID)


def create_topics(
    image: MetadataImage,
    request: CreateTopicsRequest,
    config: ControllerConfig,
    schema: ConfigSchema,
    context: ControllerContext,
    new_id: Callable[[], bytes],
    charge: Charge = unbounded,
) -> ControllerResult:
    """Serve CreateTopics. `new_id` gives a fresh topic id (rule 13: ids are never used twice).

    Raises KafkaError POLICY_VIOLATION when all topics together would have too many partitions.
    """
    creation = _TopicCreation(image, config, schema, context, new_id, charge)
    names = [topic.name for topic in request.topics]
    twice = repeated(names)
    wanted = [topic for topic in request.topics if topic.name not in twice]
    if sum(_partition_count(topic, config) for topic in wanted) > PARTITIONS_PER_REQUEST_MAX:
        raise _too_many_partitions()
    for topic in wanted:
        creation.create(topic)
    for name in dict.fromkeys(names):
        if name in twice:
            creation.fail(name, KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
    response = CreateTopicsResponse(topics=creation.results)
    return ControllerResult([] if request.validate_only else creation.records, response)


def _partition_count(topic: CreateTopicsRequest.Topic, config: ControllerConfig) -> int:
    """How many partitions the topic is to have, by what is said of it; 0 if that is no number."""
    if topic.assignments:
        return len(topic.assignments)
    return config.num_partitions if topic.num_partitions == -1 else max(0, topic.num_partitions)


class _TopicCreation:
    """The topics of one CreateTopics request, one after the other."""

    def __init__(
        self,
        image: MetadataImage,
        config: ControllerConfig,
        schema: ConfigSchema,
        context: ControllerContext,
        new_id: Callable[[], bytes],
        charge: Charge,
    ) -> None:
        self.records: list[Any] = []
        self.results: list[CreateTopicsResponse.Topic] = []
        self._image = image
        self._config = config
        self._schema = schema
        self._new_id = new_id
        self._charge = charge
        self._with_configs = context.api_version < 0 or context.api_version >= _VERSION_WITH_CONFIGS
        self._colliding: dict[str, str] | None = None
        self._effective: dict[tuple[tuple[str, str], ...], list[Any]] = {}

    def create(self, topic: CreateTopicsRequest.Topic) -> None:
        try:
            self._check_name(topic.name)
            values = self._checked_configs(topic)
            partitions = self._partitions(topic)
            records = self._records(topic.name, values, partitions)
            if len(self.records) + len(records) > RECORDS_PER_OPERATION_MAX:
                raise _too_many_records()
            self._charge(len(partitions))
        except KafkaError as error:
            self.fail(topic.name, error)
            return
        self.records += records
        self.results.append(self._success(records[0], values, partitions))

    def fail(self, name: str, error: KafkaError) -> None:
        self.results.append(
            CreateTopicsResponse.Topic(
                name=name, error_code=error.code, error_message=error.detail or None
            )
        )

    def _check_name(self, name: str) -> None:
        if name == METADATA_TOPIC:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited."
            )
        check_topic_name(name)
        if name in self._image.topics_by_name:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        if "." in name or "_" in name:
            other = self._collisions().get(name.replace(".", "_"))
            if other is not None:
                raise KafkaError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION,
                    f"Topic '{name}' collides with existing topic: {other}",
                )

    def _collisions(self) -> dict[str, str]:
        """Existing names by their form with '_' for '.'; made once a request needs it."""
        if self._colliding is None:
            self._colliding = {
                name.replace(".", "_"): name
                for name in self._image.topics_by_name
                if "." in name or "_" in name
            }
        return self._colliding

    def _checked_configs(self, topic: CreateTopicsRequest.Topic) -> dict[str, str]:
        nulls = [entry.name for entry in topic.configs if entry.value is None]
        if nulls:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"Null value not supported for topic configs: {','.join(nulls)}",
            )
        values = {entry.name: entry.value for entry in topic.configs if entry.value is not None}
        if values:
            self._schema.validate(RESOURCE_TOPIC, topic.name, values)
        return values

    def _partitions(self, topic: CreateTopicsRequest.Topic) -> Sequence[PartitionRegistration]:
        if topic.assignments:
            return self._assigned(topic)
        if topic.replication_factor < -1 or topic.replication_factor == 0:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        if topic.num_partitions < -1 or topic.num_partitions == 0:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                "Number of partitions was set to an invalid non-positive value.",
            )
        count = _partition_count(topic, self._config)
        factor = topic.replication_factor
        if factor < 0:
            factor = self._config.default_replication_factor
        topic_number = len(self._image.topics_by_id) + len(self.results)
        return placement.place(self._image, 0, count, factor, topic_number)

    def _assigned(self, topic: CreateTopicsRequest.Topic) -> list[PartitionRegistration]:
        for what, count in (
            ("replication factor", topic.replication_factor),
            ("numPartitions", topic.num_partitions),
        ):
            if count != -1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"A manual partition assignment was specified, but {what} was not set to -1.",
                )
        partitions: dict[int, PartitionRegistration] = {}
        factor: int | None = None
        for assignment in topic.assignments:
            index = assignment.partition_index
            if index in partitions:
                raise KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"Found multiple manual partition assignments for partition {index}",
                )
            partitions[index] = placement.manual(self._image, assignment.broker_ids, factor, index)
            factor = len(assignment.broker_ids)
        if set(partitions) != set(range(len(partitions))):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "partitions should be a consecutive 0-based integer sequence",
            )
        return [partitions[index] for index in range(len(partitions))]

    def _records(
        self, name: str, values: Mapping[str, str], partitions: Sequence[PartitionRegistration]
    ) -> list[Any]:
        topic_id = self._new_id()
        records: list[Any] = [TopicRecord(name=name, topic_id=topic_id)]
        records += [
            ConfigRecord(resource_type=RESOURCE_TOPIC, resource_name=name, name=key, value=value)
            for key, value in values.items()
        ]
        records += [p.to_record(topic_id, index) for index, p in enumerate(partitions)]
        return records

    def _success(
        self,
        record: TopicRecord,
        values: Mapping[str, str],
        partitions: Sequence[PartitionRegistration],
    ) -> CreateTopicsResponse.Topic:
        result = CreateTopicsResponse.Topic(
            name=record.name,
            topic_id=record.topic_id,
            error_code=0,
            error_message=None,
            num_partitions=len(partitions),
            replication_factor=len(partitions[0].replicas),
        )
        if self._with_configs:
            result.configs = self._effective_configs(values)
        return result

    def _effective_configs(self, values: Mapping[str, str]) -> list[Any]:
        """What a topic with these overrides is told. Found once for all topics that have the same:
        it takes a millisecond."""
        key = tuple(sorted(values.items()))
        if key not in self._effective:
            image = self._image
            self._effective[key] = [
                CreateTopicsResponse.Topic.Config(
                    name=entry.name,
                    value=None if entry.is_sensitive else entry.value,
                    read_only=entry.read_only,
                    config_source=entry.source,
                    is_sensitive=entry.is_sensitive,
                )
                for entry in self._schema.topic_configs(
                    values,
                    image.config(RESOURCE_BROKER, str(self._config.node_id)),
                    image.config(RESOURCE_BROKER, ""),
                )
            ]
        return self._effective[key]


def _too_many_partitions() -> KafkaError:
    return KafkaError(
        ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request."
    )


def _too_many_records() -> KafkaError:
    return KafkaError(
        ErrorCode.POLICY_VIOLATION,
        f"Excessively large number of records per request: more than {RECORDS_PER_OPERATION_MAX}.",
    )


# --- delete -------------------------------------------------------------------------------------


def delete_topics(
    image: MetadataImage,
    request: DeleteTopicsRequest,
    config: ControllerConfig,
    context: ControllerContext,
    charge: Charge = unbounded,
) -> ControllerResult:
    """Serve DeleteTopics, by name (every version) and by id (version 6 on).

    Who is named twice, by name, by id, or by both, is not deleted.
    """
    if not config.delete_topic_enable:
        if 0 <= context.api_version < 3:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Topic deletion is disabled.")
        raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
    wanted = [(topic.name, topic.topic_id) for topic in request.topics]
    wanted += [(name, ZERO_UUID) for name in request.topic_names]
    twice = repeated(wanted) - {_NOTHING}
    found: dict[tuple[str | None, bytes], TopicImage | KafkaError] = {}
    for name, topic_id in wanted:
        try:
            if (name, topic_id) in twice:
                what = "id" if name is None else "name"
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Duplicate topic {what}.")
            named = _topic_to_delete(image, name, topic_id)
            if context.may_delete is not None and not context.may_delete(named.name):
                raise KafkaError(
                    ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed."
                )
            found[name, topic_id] = named
        except KafkaError as error:
            found[name, topic_id] = error
    topics = [topic for topic in found.values() if isinstance(topic, TopicImage)]
    by_both = repeated(topic.topic_id for topic in topics) | {topic_id for _, topic_id in twice}
    results: dict[tuple[str | None, bytes], DeleteTopicsResponse.Topic] = {}
    records: list[Any] = []
    for key, topic in found.items():
        if isinstance(topic, KafkaError):
            results[key] = _not_deleted(*key, topic)
        elif topic.topic_id in by_both:
            results[topic.name, topic.topic_id] = _not_deleted(
                topic.name, topic.topic_id, _already_supplied()
            )
        else:
            results[key] = _deleted(topic, records, charge)
    return ControllerResult(records, DeleteTopicsResponse(responses=list(results.values())))


def _deleted(topic: TopicImage, records: list[Any], charge: Charge) -> DeleteTopicsResponse.Topic:
    try:
        if len(records) == RECORDS_PER_OPERATION_MAX:
            raise _too_many_records()
        charge(len(topic.partitions))
    except KafkaError as error:
        return _not_deleted(topic.name, topic.topic_id, error)
    records.append(RemoveTopicRecord(topic_id=topic.topic_id))
    return DeleteTopicsResponse.Topic(name=topic.name, topic_id=topic.topic_id, error_code=0)


def _not_deleted(
    name: str | None, topic_id: bytes, error: KafkaError
) -> DeleteTopicsResponse.Topic:
    return DeleteTopicsResponse.Topic(
        name=name, topic_id=topic_id, error_code=error.code, error_message=error.detail or None
    )


def _already_supplied() -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REQUEST,
        "The provided topic name maps to an ID that was already supplied.",
    )


def _topic_to_delete(image: MetadataImage, name: str | None, topic_id: bytes) -> TopicImage:
    if (name, topic_id) == _NOTHING:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if name is not None and topic_id != ZERO_UUID:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id."
        )
    if name is None:
        topic = image.topics_by_id.get(topic_id)
        if topic is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_ID, f"No topic has the id {uuid_to_text(topic_id)}."
            )
        return topic
    topic = image.topics_by_name.get(name)
    if topic is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
        )
    return topic


# --- create partitions --------------------------------------------------------------------------


def create_partitions(
    image: MetadataImage, request: CreatePartitionsRequest, charge: Charge = unbounded
) -> ControllerResult:
    """Serve CreatePartitions; every topic of the request is named in the answer (rule 21)."""
    twice = repeated(topic.name for topic in request.topics)
    left = PARTITIONS_PER_REQUEST_MAX
    records: list[Any] = []
    results: list[CreatePartitionsResponse.Topic] = []
    for topic in {t.name: t for t in request.topics}.values():
        error = KafkaError(ErrorCode.NONE, "")
        try:
            if topic.name in twice:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            added = _number_to_add(image, topic)
            if added > left:
                raise _too_many_partitions()
            left -= added
            charge(added)
            records += _additional_partitions(image, topic, added)
        except KafkaError as refused:
            error = refused
        results.append(
            CreatePartitionsResponse.Topic(
                name=topic.name, error_code=error.code, error_message=error.detail or None
            )
        )
    response = CreatePartitionsResponse(results=results)
    return ControllerResult([] if request.validate_only else records, response)


def _number_to_add(image: MetadataImage, wanted: CreatePartitionsRequest.Topic) -> int:
    topic = image.topics_by_name.get(wanted.name)
    if topic is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
        )
    existing = len(topic.partitions)
    if wanted.count == existing:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS, f"Topic already has {existing} partition(s)."
        )
    if wanted.count < existing:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {wanted.name} currently has {existing} partition(s); {wanted.count} would "
            "not be an increase.",
        )
    added = wanted.count - existing
    if wanted.assignments is not None and len(wanted.assignments) != added:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {added} additional partition(s), but only "
            f"{len(wanted.assignments)} assignment(s) were specified.",
        )
    return added


def _additional_partitions(
    image: MetadataImage, wanted: CreatePartitionsRequest.Topic, added: int
) -> list[Any]:
    topic = image.topics_by_name[wanted.name]
    existing = len(topic.partitions)
    factor = len(topic.partitions[0].replicas)
    if wanted.assignments is None:
        registrations = placement.place(image, existing, added, factor)
    else:
        registrations = [
            placement.manual(image, assignment.broker_ids, factor, existing + index)
            for index, assignment in enumerate(wanted.assignments)
        ]
    return [
        registration.to_record(topic.topic_id, existing + index)
        for index, registration in enumerate(registrations)
    ]
