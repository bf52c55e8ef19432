"""Which access rules are meant: the filters of DescribeAcls and DeleteAcls. PURE.

Kafka: AclBindingFilter. A null name, principal or host means any, and so does ANY; everything else
must be equal, and no operation implies another here. The type of pattern says how names are meant:
LITERAL and PREFIXED rules of that very name, ANY both, MATCH all rules that count for a resource of
that name: its own, those of `*`, and those of its beginnings.
"""

from __future__ import annotations

from typing import Any, NamedTuple

CLUSTER_NAME = "kafka-cluster"
"""What the cluster is called where rules are about it."""
WILDCARD = "*"
"""Of a LITERAL rule: about every name; of a host: every host."""

ANY = 1
_MATCH, _LITERAL, _PREFIXED = 2, 3, 4
_KNOWN = (range(1, 8), range(1, 5), range(1, 16), range(1, 4))


class AclFilter(NamedTuple):
    """Numbers are Kafka's; see the module."""

    resource_type: int
    name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission_type: int

    @classmethod
    def of(cls, request: Any) -> AclFilter:
        """That of a DescribeAclsRequest, or one of a DeleteAclsRequest."""
        return cls(
            request.resource_type_filter,
            request.resource_name_filter,
            request.pattern_type_filter,
            request.principal_filter,
            request.host_filter,
            request.operation,
            request.permission_type,
        )

    @property
    def is_unknown(self) -> bool:
        """Does it say something that this release has no word for."""
        values = (self.resource_type, self.pattern_type, self.operation, self.permission_type)
        return any(value not in known for value, known in zip(values, _KNOWN, strict=True))

    @property
    def exact_name(self) -> str | None:
        """What all that it means is called; None: that may differ."""
        return None if self.pattern_type == _MATCH else self.name

    def matches(self, record: Any) -> bool:
        """Is this AccessControlEntryRecord meant."""
        return (
            self.resource_type in (ANY, record.resource_type)
            and self.operation in (ANY, record.operation)
            and self.permission_type in (ANY, record.permission_type)
            and self.principal in (None, record.principal)
            and self.host in (None, record.host)
            and self._matches_pattern(record.pattern_type, record.resource_name)
        )

    def _matches_pattern(self, pattern_type: int, name: str) -> bool:
        if self.pattern_type not in (ANY, _MATCH, pattern_type):
            return False
        if self.name is None or self.name == name:
            return True
        if self.pattern_type != _MATCH:
            return False
        if pattern_type == _LITERAL:
            return name == WILDCARD
        return self.name.startswith(name)
