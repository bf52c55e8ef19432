"""What a set of access rules says (Kafka: StandardAuthorizerData, Authorizer). PURE.

What: `AclTable` holds rules by the pattern of what they are about, and answers whether a principal
may do an operation on a named resource from a host. How a question is decided:

    rules that count     those of the name itself (LITERAL), of `*` (LITERAL), of each of the name's
                         beginnings (PREFIXED), that are of this principal or of User:*, of this
                         host or of `*`, and of this operation or of ALL
    implied              who is ALLOWed Read, Write, Delete or Alter may Describe, who may
                         AlterConfigs may DescribeConfigs; a DENY implies nothing
    DENY                 before any ALLOW
    nothing counts       refused; or, if no rule of anybody is about this name,
                         `allow.everyone.if.no.acl.found`

Why tables: ten thousand rules are looked at by name, by the lengths that prefixes have, and by
principal, so a question costs a few dictionary look-ups. Immutable: `updated` copies what changes.

Hosts are addresses in one form: `::1` and `0:0:0:0:0:0:0:1` are one here, in Kafka they are two
texts. An IPv4 address in IPv6 clothes is the IPv4 address.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from replication.metadata.acl_filter import WILDCARD
from server.network.addresses import canonical_address

ALL = 2
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION = 3, 4, 5, 6, 7, 8, 9
DESCRIBE_CONFIGS, ALTER_CONFIGS = 10, 11
LITERAL, PREFIXED = 3, 4
DENY, ALLOW = 2, 3
ANYONE = "User:*"

_IMPLYING: Mapping[int, frozenset[int]] = {
    DESCRIBE: frozenset({ALL, DESCRIBE, READ, WRITE, DELETE, ALTER}),
    DESCRIBE_CONFIGS: frozenset({ALL, DESCRIBE_CONFIGS, ALTER_CONFIGS}),
}
"""Operation -> those of an ALLOW that allow it."""


class Acl(Protocol):
    """A rule as the metadata log has it (AccessControlEntryRecord)."""

    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...
    @property
    def pattern_type(self) -> int: ...
    @property
    def principal(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def operation(self) -> int: ...
    @property
    def permission_type(self) -> int: ...


class _Rule(NamedTuple):
    host: str
    operation: int
    permission: int


_Pattern = tuple[int, int, str]
"""Resource type, pattern type, name."""
_Rules = Mapping[str, Mapping[_Rule, int]]
"""Of one pattern, by principal; how often each stands there, for hosts may be written in several
ways."""
_Lengths = Mapping[int, tuple[int, ...]]
"""Resource type -> the lengths that its PREFIXED names have."""


def canonical_host(host: str) -> str:
    """An address in one form; a name, or `*`, as it is."""
    try:
        return canonical_address(host)
    except ValueError:
        return host


class AclTable:
    """An immutable set of rules. `AclTable()` is the empty one."""

    __slots__ = ("_lengths", "_patterns")

    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        self._patterns = _changed({}, (), acls)
        self._lengths = _prefix_lengths(self._patterns)

    def updated(self, removed: Iterable[Acl], added: Iterable[Acl]) -> AclTable:
        """The table without the one, which are in it, and with the other. What is not changed is
        shared."""
        table = AclTable()
        table._patterns = _changed(self._patterns, removed, added)
        table._lengths = _prefix_lengths(table._patterns)
        return table

    def allows(
        self,
        principal: str,
        host: str,
        operation: int,
        resource_type: int,
        name: str,
        *,
        if_no_acl: bool = False,
    ) -> bool:
        """May `principal` at `host` (canonical) do `operation`. `if_no_acl`: the answer where no
        rule at all is about the resource."""
        implying = _IMPLYING.get(operation, (operation, ALL))
        is_allowed, is_known = False, False
        for rules in self._about(resource_type, name):
            is_known = True
            for who in (principal, ANYONE) if principal != ANYONE else (ANYONE,):
                for rule in rules.get(who, ()):
                    if rule.host not in (WILDCARD, host):
                        continue
                    if rule.permission == ALLOW:
                        is_allowed = is_allowed or rule.operation in implying
                    elif rule.operation in (operation, ALL):
                        return False
        return is_allowed if is_known else if_no_acl

    def _about(self, resource_type: int, name: str) -> Iterator[_Rules]:
        """The rules of each pattern that the name matches."""
        patterns = self._patterns
        for literal in (name, WILDCARD) if name != WILDCARD else (name,):
            rules = patterns.get((resource_type, LITERAL, literal))
            if rules is not None:
                yield rules
        for length in self._lengths.get(resource_type, ()):
            if length > len(name):
                return
            rules = patterns.get((resource_type, PREFIXED, name[:length]))
            if rules is not None:
                yield rules

    def allows_some(
        self,
        principal: str,
        host: str,
        operation: int,
        resource_type: int,
        *,
        if_no_acl: bool = False,
    ) -> bool:
        """May `principal` do it on at least one resource of the type, whichever there are
        (Authorizer.authorizeByResourceType). Implied operations do not count.
        """
        if self.allows(principal, host, operation, resource_type, "hardcode", if_no_acl=if_no_acl):
            return True
        allowed: set[tuple[int, str]] = set()
        denied: set[tuple[int, str]] = set()
        for (kind, pattern, name), rules in self._patterns.items():
            if kind != resource_type:
                continue
            for who in {principal, ANYONE}:
                for rule in rules.get(who, ()):
                    if rule.host in (WILDCARD, host) and rule.operation in (operation, ALL):
                        (allowed if rule.permission == ALLOW else denied).add((pattern, name))
        if (LITERAL, WILDCARD) in denied:
            return False
        return any(not _is_dominated(*pattern, denied) for pattern in allowed)


def _changed(
    patterns: Mapping[_Pattern, _Rules], removed: Iterable[Acl], added: Iterable[Acl]
) -> dict[_Pattern, _Rules]:
    """In proportion to what is there, however many rules are of one principal on one pattern: the
    loader's thread waits."""
    counted: dict[tuple[_Pattern, str], Counter[_Rule]] = {}
    for acls, step in ((removed, -1), (added, 1)):
        for acl in acls:
            key = pattern, principal = _pattern(acl), acl.principal
            if key not in counted:
                counted[key] = Counter(patterns.get(pattern, {}).get(principal, {}))
            counted[key][_rule(acl)] += step
    own: dict[_Pattern, dict[str, Mapping[_Rule, int]]] = {}
    for (pattern, principal), rules in counted.items():
        if pattern not in own:
            own[pattern] = dict(patterns.get(pattern, {}))
        own[pattern].pop(principal, None)
        if left := +rules:
            own[pattern][principal] = left
    return {pattern: rules for pattern, rules in {**patterns, **own}.items() if rules}


def _is_dominated(pattern: int, name: str, denied: set[tuple[int, str]]) -> bool:
    """Does a DENY take away everything that an ALLOW of this pattern gives."""
    if (pattern, name) == (LITERAL, WILDCARD):
        return False
    if pattern == LITERAL and (LITERAL, name) in denied:
        return True
    return any((PREFIXED, name[:length]) in denied for length in range(1, len(name) + 1))


def _pattern(acl: Acl) -> _Pattern:
    return acl.resource_type, acl.pattern_type, acl.resource_name


def _rule(acl: Acl) -> _Rule:
    return _Rule(canonical_host(acl.host), acl.operation, acl.permission_type)


def _prefix_lengths(patterns: Iterable[_Pattern]) -> _Lengths:
    lengths: dict[int, set[int]] = {}
    for resource_type, pattern_type, name in patterns:
        if pattern_type == PREFIXED:
            lengths.setdefault(resource_type, set()).add(len(name))
    return {kind: tuple(sorted(known)) for kind, known in lengths.items()}
