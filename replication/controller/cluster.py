"""Brokers come, live and go: registration, heartbeats, fencing, shutdown. PURE.

What: serves BrokerRegistration, BrokerHeartbeat, UnregisterBroker and ControllerRegistration, and
fences brokers whose session ran out; the sessions themselves are in `sessions`.

States of a broker (Kafka: BrokerHeartbeatManager):
    FENCED -> UNFENCED               wants no fence, its metadata reached its registration (B-2)
    UNFENCED -> FENCED               asked for it, or its session timed out (one broker per pass)
    UNFENCED -> CONTROLLED_SHUTDOWN  wants to stop and leads partitions: they move, it leaves the
                                     ISRs (B-4)
    any -> SHUTDOWN_NOW              wants to stop, leads nothing, every active broker has read that

A registration starts fenced; its epoch is the offset where its batch of records starts, so no two
incarnations share one. A new incarnation leaves all ISRs first; one that cannot show the epoch of
its clean shutdown leaves the ELRs too, since unsynced records may be gone (B-3).

What happens to a single node that restarts, and why: like Apache Kafka 4.3, its partitions lose
their leader when it stops (or when its new incarnation registers, after a crash) and get it back
at the unfencing: two leader changes, two leader epochs. The new epoch is what lets consumers find
out, by their last fetched epoch, that a crash took back records they had read (KIP-320); keeping
the old epoch would hide it.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from replication.controller.context import ControllerConfig, ControllerResult, last_offset
from replication.controller.elections import BrokerChange, leader_and_isr_updates, partitions
from replication.controller.producer_ids import check_broker_epoch
from replication.controller.sessions import BrokerSession, BrokerSessions
from replication.metadata.image import (
    CONTROLLER_REGISTRATION_SINCE,
    DIRECTORIES_RESERVED,
    METADATA_VERSION,
    BrokerRegistration,
    ControllerRegistration,
    MetadataImage,
    replayed,
)
from replication.metadata.registrations import endpoints_of, features_of
from replication.raft.own_events import NO_LEADER
from wire.errors import ErrorCode, KafkaError
from wire.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    UnregisterBrokerRecord,
)
from wire.messages.quorum import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)


class BrokerState(Enum):
    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN_NOW = "shutdown now"


# --- registration -------------------------------------------------------------------------------


def register_broker(
    image: MetadataImage,
    sessions: BrokerSessions,
    config: ControllerConfig,
    request: BrokerRegistrationRequest,
    next_offset: int,
    now_ms: int,
    *,
    in_process: bool = False,
) -> ControllerResult:
    """Serve BrokerRegistration. `next_offset`: where the records of the answer will start.
    `in_process`: it came from the broker of the controller's own process, not over the network.

    Raises KafkaError INCONSISTENT_CLUSTER_ID, DUPLICATE_BROKER_REGISTRATION, INVALID_REGISTRATION,
    UNSUPPORTED_VERSION (a finalised feature the broker lacks).
    """
    existing = image.brokers.get(request.broker_id)
    _check_registration(image, config, request)
    if (
        existing is not None
        and existing.incarnation_id != request.incarnation_id
        and sessions.is_valid(request.broker_id, now_ms, in_process=in_process)
    ):
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            "Another broker is registered with that broker id. If the broker was recently "
            "restarted this should self-resolve once the heartbeat manager expires the broker's "
            "session.",
        )
    records: list[Any] = []
    same = existing is not None and existing.incarnation_id == request.incarnation_id
    if not same:
        # Who was unregistered meanwhile cannot show that it lost nothing either.
        clean = existing is not None and request.previous_broker_epoch == existing.broker_epoch
        records = _new_incarnation(image, config, request.broker_id, clean)
    registration = BrokerRegistration(
        broker_id=request.broker_id,
        broker_epoch=existing.broker_epoch if same and existing else next_offset,
        incarnation_id=request.incarnation_id,
        endpoints=endpoints_of(request.listeners),
        features=features_of(request.features),
        rack=request.rack,
        fenced=existing.fenced if same and existing else True,
        in_controlled_shutdown=bool(same and existing and existing.in_controlled_shutdown),
        directories=tuple(request.log_dirs) if image.knows_directories else (),
    )
    records.append(registration.to_record())
    end = last_offset(image.feature(METADATA_VERSION), next_offset, len(records))
    sessions.register(request.broker_id, end, now_ms)
    response = BrokerRegistrationResponse(error_code=0, broker_epoch=registration.broker_epoch)
    return ControllerResult(records, response)


def _check_registration(
    image: MetadataImage, config: ControllerConfig, request: BrokerRegistrationRequest
) -> None:
    if request.cluster_id != config.cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Expected cluster ID {config.cluster_id}, but got cluster ID {request.cluster_id}",
        )
    if request.is_migrating_zk_broker:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            "Controller does not support registering ZK brokers.",
        )
    if image.knows_directories:
        _check_directories(image, request)
    _check_features(image, request)


def _check_directories(image: MetadataImage, request: BrokerRegistrationRequest) -> None:
    directories = request.log_dirs
    if not directories:
        raise _invalid_registration("No directories specified in request")
    if any(int.from_bytes(directory, "big") < DIRECTORIES_RESERVED for directory in directories):
        raise _invalid_registration("Reserved directory ID in request")
    if len(set(directories)) < len(directories):
        raise _invalid_registration("Duplicate directory ID in request")
    for broker in image.brokers.values():
        if broker.broker_id != request.broker_id and set(directories) & set(broker.directories):
            raise _invalid_registration(
                f"Broker {broker.broker_id} is already registered with a directory of the request"
            )


def _invalid_registration(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REGISTRATION, detail)


def _check_features(image: MetadataImage, request: BrokerRegistrationRequest) -> None:
    """Of a feature that is off, or that nobody here knows, the broker must support 0."""
    ranges = {
        feature.name: (feature.min_supported_version, feature.max_supported_version)
        for feature in request.features
    }
    for name in {**image.features, **ranges}:
        level = image.feature(name)
        low, high = ranges.get(name, (0, 0))
        if not low <= level <= high:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Unable to register because the broker does not support finalized version {level} "
                f"of {name}. The broker wants a version between {low} and {high}, inclusive.",
            )


def _new_incarnation(
    image: MetadataImage, config: ControllerConfig, broker_id: int, clean: bool
) -> list[Any]:
    """The old incarnation is over: what it led and where it was in sync."""
    if clean:
        return _leave_isrs(image, config, broker_id)
    change = BrokerChange(unclean_shutdown=broker_id)
    return leader_and_isr_updates(
        image, config, change, lambda p: broker_id in p.isr or broker_id in p.elr
    )


def _leave_isrs(image: MetadataImage, config: ControllerConfig, broker_id: int) -> list[Any]:
    change = BrokerChange(removed=broker_id)
    return leader_and_isr_updates(image, config, change, lambda p: broker_id in p.isr)


# --- heartbeat ----------------------------------------------------------------------------------


def broker_heartbeat(
    image: MetadataImage,
    sessions: BrokerSessions,
    config: ControllerConfig,
    request: BrokerHeartbeatRequest,
    next_offset: int,
    now_ms: int,
) -> ControllerResult:
    """Serve BrokerHeartbeat. Raises KafkaError STALE_BROKER_EPOCH for another incarnation."""
    check_broker_epoch(image, request.broker_id, request.broker_epoch)
    broker = image.brokers[request.broker_id]
    session = sessions.get(broker.broker_id, now_ms)
    session.last_contact_ms = max(session.last_contact_ms, now_ms)
    session.metadata_offset = request.current_metadata_offset
    if broker.in_controlled_shutdown and session.shutdown_offset < 0:
        # Another controller began it: whatever that one wrote, everybody must have read it.
        session.shutdown_offset = image.offset
    registered_at = max(session.registration_offset, broker.broker_epoch)
    caught_up = request.current_metadata_offset >= registered_at
    state = _next_state(image, sessions, broker, request, session, caught_up)
    records = _records_for(image, config, broker, state)
    records += _directory_changes(replayed(image, records), config, broker, request)
    if state is BrokerState.CONTROLLED_SHUTDOWN and session.shutdown_offset < 0:
        level = image.feature(METADATA_VERSION)
        session.shutdown_offset = last_offset(level, next_offset, len(records))
    if state is BrokerState.SHUTDOWN_NOW:
        sessions.remove(broker.broker_id)  # it is gone: its next incarnation need not wait
    response = BrokerHeartbeatResponse(
        error_code=0,
        is_caught_up=caught_up,
        is_fenced=state in (BrokerState.FENCED, BrokerState.SHUTDOWN_NOW),
        should_shut_down=state is BrokerState.SHUTDOWN_NOW,
    )
    return ControllerResult(records, response)


def _next_state(
    image: MetadataImage,
    sessions: BrokerSessions,
    broker: BrokerRegistration,
    request: BrokerHeartbeatRequest,
    session: BrokerSession,
    caught_up: bool,
) -> BrokerState:
    if broker.fenced:
        if request.want_shut_down:
            return BrokerState.SHUTDOWN_NOW
        # Who is on the way out comes back as a new incarnation only: nothing ends that state.
        unfence = caught_up and not request.want_fence and not broker.in_controlled_shutdown
        return BrokerState.UNFENCED if unfence else BrokerState.FENCED
    if request.want_fence:
        return BrokerState.SHUTDOWN_NOW if request.want_shut_down else BrokerState.FENCED
    if not broker.in_controlled_shutdown:
        if not request.want_shut_down:
            return BrokerState.UNFENCED
        leads = _leads_any(image, broker.broker_id)
        return BrokerState.CONTROLLED_SHUTDOWN if leads else BrokerState.SHUTDOWN_NOW
    lowest = sessions.lowest_metadata_offset(image)
    seen_by_all = lowest is None or lowest >= session.shutdown_offset
    if _leads_any(image, broker.broker_id) or not seen_by_all:
        return BrokerState.CONTROLLED_SHUTDOWN
    return BrokerState.SHUTDOWN_NOW


def _leads_any(image: MetadataImage, broker_id: int) -> bool:
    return any(partition.registration.leader == broker_id for partition in partitions(image))


def _records_for(
    image: MetadataImage, config: ControllerConfig, broker: BrokerRegistration, state: BrokerState
) -> list[Any]:
    if state is BrokerState.UNFENCED:
        return unfence_records(image, config, broker) if broker.fenced else []
    if state is BrokerState.CONTROLLED_SHUTDOWN:
        return [] if broker.in_controlled_shutdown else _shutdown_records(image, config, broker)
    return [] if broker.fenced else fence_records(image, config, broker)


def unfence_records(
    image: MetadataImage, config: ControllerConfig, broker: BrokerRegistration
) -> list[Any]:
    """The broker may lead: partitions without a leader get one if it is eligible."""
    record = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, fenced=-1
    )
    change = BrokerChange(added=broker.broker_id)
    elected = leader_and_isr_updates(image, config, change, lambda p: p.leader == NO_LEADER)
    return [record, *elected]


def fence_records(
    image: MetadataImage, config: ControllerConfig, broker: BrokerRegistration
) -> list[Any]:
    """The broker leaves ISRs and leaderships, then it is fenced."""
    record = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, fenced=1
    )
    return [*_leave_isrs(image, config, broker.broker_id), record]


def _shutdown_records(
    image: MetadataImage, config: ControllerConfig, broker: BrokerRegistration
) -> list[Any]:
    record = BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, in_controlled_shutdown=1
    )
    return [record, *_leave_isrs(image, config, broker.broker_id)]


def _directory_changes(
    image: MetadataImage,
    config: ControllerConfig,
    broker: BrokerRegistration,
    request: BrokerHeartbeatRequest,
) -> list[Any]:
    """Directories that failed since the last heartbeat (B-7), and cordoned ones (KIP-1066)."""
    records: list[Any] = []
    offline = set(request.offline_log_dirs) & set(broker.directories)
    if offline:
        from replication.controller.directories import replicas_lost

        records += replicas_lost(image, config, broker.broker_id, offline)
        online = [directory for directory in broker.directories if directory not in offline]
        records.append(_change(broker, log_dirs=online))
    cordoned = request.cordoned_log_dirs
    if (
        cordoned is not None
        and tuple(cordoned) != broker.cordoned_directories
        and image.knows_cordoned_directories
    ):
        records.append(_change(broker, cordoned_log_dirs=list(cordoned)))
    return records


def _change(broker: BrokerRegistration, **what: Any) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, **what
    )


# --- fencing and unregistering ------------------------------------------------------------------


def fence_stale_broker(
    image: MetadataImage, sessions: BrokerSessions, config: ControllerConfig, now_ms: int
) -> list[Any]:
    """Records that fence the broker silent for longest; only one, so that the next sees it."""
    broker_id = sessions.stale_broker(image, now_ms)
    return [] if broker_id is None else fence_records(image, config, image.brokers[broker_id])


def unregister_broker(image: MetadataImage, config: ControllerConfig, broker_id: int) -> list[Any]:
    """Records that remove a broker for good: it leaves every ISR. Where it is eligible it stays so
    until it registers again, as on Apache Kafka; then it leaves the ELRs as after a crash.

    Raises KafkaError BROKER_ID_NOT_REGISTERED.
    """
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered"
        )
    change = BrokerChange(removed=broker_id)
    updates = leader_and_isr_updates(
        image, config, change, lambda p: broker_id in p.isr or broker_id in p.elr
    )
    record = UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.broker_epoch)
    return [*updates, record]


# --- controllers --------------------------------------------------------------------------------


def register_controller(
    image: MetadataImage, request: ControllerRegistrationRequest
) -> ControllerResult:
    """Serve ControllerRegistration (KIP-919): where a controller is reached, what it supports.

    Raises KafkaError UNSUPPORTED_VERSION (metadata.version below 3.7-IV0).
    """
    if image.feature(METADATA_VERSION) < CONTROLLER_REGISTRATION_SINCE:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "The current MetadataVersion is too old to support controller registrations.",
        )
    registration = ControllerRegistration(
        request.controller_id,
        request.incarnation_id,
        endpoints_of(request.listeners),
        features_of(request.features),
    )
    response = ControllerRegistrationResponse(error_code=0, error_message=None)
    return ControllerResult([registration.to_record()], response)
