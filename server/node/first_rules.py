"""Access rules that a new cluster starts with: `barnabas format --add-acl JSON`.

    {"principal": "User:alice", "operation": "READ", "resource_type": "TOPIC",
     "resource_name": "orders"}

and, unless they are these, `"host": "*"`, `"pattern_type": "LITERAL"` and
`"permission_type": "ALLOW"`. Names are AclOperation's, ResourceType's and so on. Rules are there
before anybody can connect: there is no moment at which nobody, or anybody, may do something.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from replication.controller.acls import create_acls
from replication.metadata.acl_filter import CLUSTER_NAME
from replication.metadata.image import MetadataImage
from server.network.api import Operation, Resource
from wire.messages.metadata_records import AccessControlEntryRecord
from wire.messages.security import CreateAclsRequest

_NUMBERS: Mapping[str, Mapping[str, int]] = {
    "operation": {"ALL": 2, **{one.name: int(one) for one in Operation}},
    "resource_type": {one.name: int(one) for one in Resource},
    "pattern_type": {"LITERAL": 3, "PREFIXED": 4},
    "permission_type": {"DENY": 2, "ALLOW": 3},
}
_DEFAULTS = {"host": "*", "pattern_type": "LITERAL", "permission_type": "ALLOW"}
_TEXTS = ("principal", "host", "resource_name")


class RuleError(ValueError):
    """What is wrong with a rule."""


def acl_records(
    arguments: Iterable[str], new_uuid: Callable[[], bytes]
) -> list[AccessControlEntryRecord]:
    """The records of the rules. Raises RuleError."""
    request = CreateAclsRequest(creations=[_creation(text) for text in arguments])
    made = create_acls(MetadataImage(), request, new_uuid)
    response: Any = made.response
    for result in response.results:
        if result.error_code:
            raise RuleError(result.error_message)
    return list(made.records)


def _creation(text: str) -> CreateAclsRequest.Creation:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        raise RuleError("expected JSON") from None
    known = {*_TEXTS, *_NUMBERS}
    if not isinstance(given, dict) or not given.keys() <= known:
        raise RuleError(f"expected an object with some of {', '.join(sorted(known))}")
    fields = {**_DEFAULTS, **given}
    if fields.get("resource_type") == Resource.CLUSTER.name:
        fields.setdefault("resource_name", CLUSTER_NAME)
    for name in sorted(known):
        value = fields.get(name)
        if not isinstance(value, str) or not value:
            raise RuleError(f"expected a text as {name}")
    numbers = {}
    for name, values in _NUMBERS.items():
        if fields[name] not in values:
            raise RuleError(f"{name} {fields[name]!r}: expected one of {', '.join(values)}")
        numbers[name] = values[fields[name]]
    kind = Resource(numbers["resource_type"])
    if numbers["operation"] != _NUMBERS["operation"]["ALL"] and (
        numbers["operation"] not in kind.operations
    ):
        told = ", ".join(one.name for one in kind.operations)
        raise RuleError(f"{fields['operation']} means nothing on {kind.name}: expected {told}")
    return CreateAclsRequest.Creation(
        resource_type=kind,
        resource_name=fields["resource_name"],
        resource_pattern_type=numbers["pattern_type"],
        principal=fields["principal"],
        host=fields["host"],
        operation=numbers["operation"],
        permission_type=numbers["permission_type"],
    )
