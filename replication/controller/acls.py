"""Access rules: create and delete them. PURE.

Kafka: AclApis (names of resources) and AclControlManager. Creations and filters fail alone. What is
no operation, pattern or permission of a rule fails alone too, with a text (Kafka answers the whole
request with UNKNOWN_SERVER_ERROR).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from replication.controller.context import RECORDS_PER_OPERATION_MAX, ControllerResult
from replication.metadata.acl_filter import CLUSTER_NAME, AclFilter
from replication.metadata.image import MetadataImage
from wire.errors import ErrorCode, KafkaError
from wire.messages.metadata_records import (
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
)
from wire.messages.security import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
)

_LOOKS_MAX = 1_000_000
_LOOKS_TO_TELL = 10
"""A request's filters may not be held against more rules in all, and to tell one costs as much as
ten looks: that takes half a second, and everybody waits meanwhile (Kafka has no bound)."""

_CLUSTER = 4
_RESOURCE_TYPES = range(2, 8)
_PATTERN_TYPES = range(3, 5)
_OPERATIONS = range(2, 16)
_PERMISSIONS = range(2, 4)

_of_creation = attrgetter(
    "resource_type", "resource_name", "resource_pattern_type", "principal", "host", "operation",
    "permission_type",
)  # fmt: skip
_of_record = attrgetter(
    "resource_type", "resource_name", "pattern_type", "principal", "host", "operation",
    "permission_type",
)  # fmt: skip


def create_acls(
    image: MetadataImage, request: CreateAclsRequest, new_id: Callable[[], bytes]
) -> ControllerResult:
    """A rule that is there already is created with success and no record."""
    wanted = {_of_creation(creation) for creation in request.creations}
    known = {rule for rule in map(_of_record, image.acls.values()) if rule in wanted}
    results, records = [], []
    for creation in request.creations:
        why = _objection(creation)
        results.append(
            CreateAclsResponse.Result(
                error_code=int(ErrorCode.INVALID_REQUEST) if why else 0, error_message=why
            )
        )
        rule = _of_creation(creation)
        if why is None and rule not in known:
            known.add(rule)
            records.append(_record(rule, new_id()))
    if len(records) > RECORDS_PER_OPERATION_MAX:
        raise _too_many("create")
    return ControllerResult(records, CreateAclsResponse(results=results))


def _record(rule: tuple[Any, ...], record_id: bytes) -> AccessControlEntryRecord:
    resource_type, resource_name, pattern_type, principal, host, operation, permission = rule
    return AccessControlEntryRecord(
        id=record_id,
        resource_type=resource_type,
        resource_name=resource_name,
        pattern_type=pattern_type,
        principal=principal,
        host=host,
        operation=operation,
        permission_type=permission,
    )


def _objection(creation: CreateAclsRequest.Creation) -> str | None:
    """Why this can be no rule."""
    for what, value, known in (
        ("resource type", creation.resource_type, _RESOURCE_TYPES),
        ("pattern type", creation.resource_pattern_type, _PATTERN_TYPES),
        ("operation", creation.operation, _OPERATIONS),
        ("permission type", creation.permission_type, _PERMISSIONS),
    ):
        if value not in known:
            return f"Invalid {what} {value}"
    if creation.resource_type == _CLUSTER and creation.resource_name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not creation.resource_name:
        return "Invalid empty resource name"
    if ":" not in creation.principal:
        return (
            f"Could not parse principal from `{creation.principal}` (no colon is present"
            " separating the principal type from the principal name)"
        )
    return None


def delete_acls(image: MetadataImage, request: DeleteAclsRequest) -> ControllerResult:
    """What two filters match is told twice and deleted once. Raises KafkaError INVALID_REQUEST when
    they ask for too much together."""
    rules = _Rules(image.acls.values())
    gone: dict[bytes, None] = {}
    results = []
    for asked in request.filters:
        wanted = AclFilter.of(asked)
        if wanted.is_unknown:
            results.append(
                DeleteAclsResponse.FilterResult(
                    error_code=int(ErrorCode.INVALID_REQUEST),
                    error_message="Unknown patternFilter or entryFilter.",
                    matching_acls=[],
                )
            )
            continue
        matching = rules.matching(wanted)
        gone.update((record.id, None) for record in matching)
        results.append(
            DeleteAclsResponse.FilterResult(
                error_code=0,
                error_message=None,
                matching_acls=[_deleted(record) for record in matching],
            )
        )
    if len(gone) > RECORDS_PER_OPERATION_MAX:
        raise _too_many("remove")
    records = [RemoveAccessControlEntryRecord(id=record_id) for record_id in gone]
    return ControllerResult(records, DeleteAclsResponse(filter_results=results))


class _Rules:
    """The rules by what filters mostly name, for tools delete hundreds one by one."""

    def __init__(self, records: Iterable[AccessControlEntryRecord]) -> None:
        self._all = list(records)
        self._by_name: dict[str, list[AccessControlEntryRecord]] = defaultdict(list)
        self._by_principal: dict[str, list[AccessControlEntryRecord]] = defaultdict(list)
        for record in self._all:
            self._by_name[record.resource_name].append(record)
            self._by_principal[record.principal].append(record)
        self._looks = 0

    def matching(self, wanted: AclFilter) -> list[AccessControlEntryRecord]:
        """Raises KafkaError."""
        found: Sequence[AccessControlEntryRecord] = self._all
        for known, name in (
            (self._by_name, wanted.exact_name),
            (self._by_principal, wanted.principal),
        ):
            if name is not None:
                found = min(found, known.get(name, ()), key=len)
        matching = []
        self._looks += len(found)
        if self._looks <= _LOOKS_MAX:
            matching = [record for record in found if wanted.matches(record)]
            self._looks += _LOOKS_TO_TELL * len(matching)
        if self._looks > _LOOKS_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "The filters mean too many acls in a single operation."
            )
        return matching


def _deleted(record: AccessControlEntryRecord) -> DeleteAclsResponse.FilterResult.MatchingAcl:
    return DeleteAclsResponse.FilterResult.MatchingAcl(
        error_code=0,
        error_message=None,
        resource_type=record.resource_type,
        resource_name=record.resource_name,
        pattern_type=record.pattern_type,
        principal=record.principal,
        host=record.host,
        operation=record.operation,
        permission_type=record.permission_type,
    )


def _too_many(what: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"Cannot {what} more than {RECORDS_PER_OPERATION_MAX} acls in a single operation.",
    )
