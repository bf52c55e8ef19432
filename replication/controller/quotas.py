"""Client quotas: set and remove them. PURE.

Kafka: ClientQuotaControlManager. Entities fail alone. Stricter than Kafka: an address is an address
(no name is resolved).
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping
from typing import Any

from replication.controller.context import RECORDS_PER_OPERATION_MAX, ControllerResult, repeated
from replication.metadata.image import MetadataImage
from replication.metadata.quota_entities import CLIENT_ID, IP, USER, Entity, entity_of
from wire.errors import ErrorCode, KafkaError
from wire.messages.admin import AlterClientQuotasRequest, AlterClientQuotasResponse
from wire.messages.metadata_records import ClientQuotaRecord

_CLIENTS: Mapping[str, float] = {
    "producer_byte_rate": 2.0**63,
    "consumer_byte_rate": 2.0**63,
    "request_percentage": math.inf,
    "controller_mutation_rate": math.inf,
}
_ADDRESSES: Mapping[str, float] = {"connection_creation_rate": 2.0**31}
"""The quotas of users and clients, and those of addresses; below what they must be. Those without
such a bound may have fractions."""


def alter_client_quotas(
    image: MetadataImage, request: AlterClientQuotasRequest
) -> ControllerResult:
    """A value that is so already, and the removal of what is not there, write no record.

    An answer names an entity's parts sorted, as Kafka's map does, whatever the request's order.
    """
    twice = repeated(entity_of(entry.entity) for entry in request.entries)
    records: list[ClientQuotaRecord] = []
    answers = []
    for entry in request.entries:
        entity = entity_of(entry.entity)
        why = "Ignoring duplicate entity" if entity in twice else _objection(entity)
        if why is None:
            why = _objection_to_values(entry.ops, is_ip=entity[0][0] == IP)
        if why is None:
            records += _records(image, entity, entry)
        answers.append(
            AlterClientQuotasResponse.Entry(
                error_code=int(ErrorCode.INVALID_REQUEST) if why else 0,
                error_message=why,
                entity=[
                    AlterClientQuotasResponse.Entry.Entity(
                        entity_type=kind, entity_name=None if is_default else name
                    )
                    for kind, name, is_default in entity
                ],
            )
        )
    if len(records) > RECORDS_PER_OPERATION_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "too many quotas in one request")
    response = AlterClientQuotasResponse(entries=answers)
    return ControllerResult([] if request.validate_only else records, response)


def _records(image: MetadataImage, entity: Entity, entry: Any) -> list[ClientQuotaRecord]:
    records = []
    for op in entry.ops:
        known = image.client_quotas.get((entity, op.key))
        if op.remove and known is not None:
            records.append(_record(entry, op.key, 0.0, remove=True))
        elif not op.remove and (known is None or known.value != op.value):
            records.append(_record(entry, op.key, op.value, remove=False))
    return records


def _record(entry: Any, key: str, value: float, *, remove: bool) -> ClientQuotaRecord:
    return ClientQuotaRecord(
        entity=[
            ClientQuotaRecord.Entity(entity_type=part.entity_type, entity_name=part.entity_name)
            for part in entry.entity
        ],
        key=key,
        value=value,
        remove=remove,
    )


def _objection(entity: Entity) -> str | None:
    """Why nothing of this entity is changed."""
    kinds = [kind for kind, _, _ in entity]
    if not entity:
        return "Invalid empty client quota entity"
    for kind, name, is_default in entity:
        if kind not in (USER, CLIENT_ID, IP):
            return f"Unhandled client quota entity type: {kind}"
        if not name and not is_default:
            return f"Empty {kind} not supported"
    if repeated(kinds):
        return "Invalid client quota entity, duplicate entity entry"
    if IP in kinds and len(kinds) > 1:
        return "IP entity should not be combined with User or ClientId"
    if IP in kinds and not _is_address(entity[0]):
        return f"{entity[0][1]} is not a valid IP"
    return None


def _objection_to_values(ops: Any, is_ip: bool) -> str | None:
    """Why they cannot be quotas of the entity."""
    if repeated(op.key for op in ops):
        return "Duplicate quota key"
    for op in ops:
        why = _objection_to_value(op.key, op.value, op.remove, is_ip)
        if why is not None:
            return why
    return None


def _is_address(part: tuple[str, str, bool]) -> bool:
    _, name, is_default = part
    try:
        return is_default or bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _objection_to_value(key: str, value: float, remove: bool, is_ip: bool) -> str | None:
    if remove:
        return None
    below = (_ADDRESSES if is_ip else _CLIENTS).get(key)
    if below is None:
        return f"Invalid configuration key {key}"
    if not value > 0 or not math.isfinite(value):
        return f"Quota {key} must be greater than 0"
    if value >= below:
        return f"Proposed value for {key} is too large"
    if below < math.inf and value % 1 > 1e-6:
        return f"{key} cannot be a fractional value"
    return None
