"""The rules against a model that does what the words say, on random sets of rules."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from server.security.acls import (
    ALL,
    ALLOW,
    ALTER_CONFIGS,
    DELETE,
    DENY,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    LITERAL,
    PREFIXED,
    READ,
    WRITE,
    AclTable,
    canonical_host,
)  # fmt: skip

TOPIC, GROUP = 2, 3
OPERATIONS = (ALL, READ, WRITE, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS)
NAMES = ("a", "ab", "abc", "b", "*", "ba", "")
PRINCIPALS = ("User:a", "User:b", "User:*", "Group:a")
HOSTS = ("*", "10.0.0.1", "10.0.0.2")


def rule(name="t", operation=READ, permission=ALLOW, principal="User:a", host="*",
         pattern=LITERAL, kind=TOPIC):  # fmt: skip
    return SimpleNamespace(
        resource_type=kind, resource_name=name, pattern_type=pattern, principal=principal,
        host=host, operation=operation, permission_type=permission,
    )  # fmt: skip


def random_rule(choose):
    return rule(
        choose.choice(NAMES[:-1]), choose.choice(OPERATIONS), choose.choice((DENY, ALLOW)),
        choose.choice(PRINCIPALS), choose.choice(HOSTS), choose.choice((LITERAL, PREFIXED)),
        choose.choice((TOPIC, GROUP)),
    )  # fmt: skip


def is_about(one, kind, name):
    if one.resource_type != kind:
        return False
    if one.pattern_type == PREFIXED:
        return name.startswith(one.resource_name)
    return one.resource_name in (name, "*")


def counts(one, principal, host, operation):
    if one.principal not in (principal, "User:*") or one.host not in (host, "*"):
        return False
    implied = {DESCRIBE: (DESCRIBE, READ, WRITE, DELETE, 7), DESCRIBE_CONFIGS: (10, 11)}
    enough = (operation,)
    if one.permission_type == ALLOW:
        enough = implied.get(operation, enough)
    return one.operation == ALL or one.operation in enough


def model(rules, principal, host, operation, kind, name, if_no_acl):
    about = [one for one in rules if is_about(one, kind, name)]
    permissions = {one.permission_type for one in about if counts(one, principal, host, operation)}
    if DENY in permissions:
        return False
    return ALLOW in permissions or (not about and if_no_acl)


def questions(choose, count):
    for _ in range(count):
        yield (
            choose.choice(("User:a", "User:b", "User:c", "Group:a")),
            choose.choice(("10.0.0.1", "10.0.0.2", "10.0.0.3")), choose.choice(OPERATIONS[1:]),
            choose.choice((TOPIC, GROUP)), choose.choice(NAMES),
        )  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_what_the_rules_say(seed):
    choose = random.Random(seed)
    rules = [random_rule(choose) for _ in range(choose.randrange(12))]
    table = AclTable(rules)
    for asked in questions(choose, 100):
        for if_no_acl in (False, True):
            expected = model(rules, *asked, if_no_acl)
            assert table.allows(*asked, if_no_acl=if_no_acl) is expected, (asked, rules)


@pytest.mark.parametrize("seed", range(40))
def test_a_table_that_was_changed_says_what_a_new_one_would(seed):
    choose = random.Random(seed)
    rules = [random_rule(choose) for _ in range(10)]
    table = AclTable(rules)
    for _ in range(10):
        gone = [rules.pop(choose.randrange(len(rules))) for _ in range(min(len(rules), 2))]
        new = [random_rule(choose) for _ in range(choose.randrange(4))]
        rules += new
        before, fresh = table, AclTable(rules)
        answers = [before.allows(*asked) for asked in questions(random.Random(seed), 20)]
        table = table.updated(gone, new)
        for asked in questions(choose, 40):
            assert table.allows(*asked) is fresh.allows(*asked)
            assert table.allows_some(*asked[:4]) is fresh.allows_some(*asked[:4])
        assert answers == [before.allows(*asked) for asked in questions(random.Random(seed), 20)]


def some(*rules, operation=WRITE, if_no_acl=False):
    return AclTable(rules).allows_some("User:a", "h", operation, TOPIC, if_no_acl=if_no_acl)


def test_on_some_resource():
    """Authorizer.authorizeByResourceType."""
    allow, deny = rule("abc", WRITE), rule("abc", WRITE, DENY)
    assert not some()
    assert some(if_no_acl=True)
    assert some(allow)
    assert not some(allow, deny)
    assert not some(allow, rule("a", WRITE, DENY, pattern=PREFIXED))
    assert some(allow, rule("abcd", WRITE, DENY, pattern=PREFIXED))
    assert not some(rule("ab", WRITE, pattern=PREFIXED), rule("a", ALL, DENY, pattern=PREFIXED))
    assert some(rule("ab", WRITE, pattern=PREFIXED), rule("ab", WRITE, DENY))
    assert not some(rule("*", WRITE), rule("*", WRITE, DENY))
    assert some(rule("*", WRITE), rule("abc", WRITE, DENY))
    assert not some(rule("abc", READ), operation=DESCRIBE), "what is implied does not count"
    assert not some(rule("abc", WRITE, kind=GROUP))


@pytest.mark.parametrize(
    ("host", "one"),
    [
        ("::1", "::1"), ("0:0:0:0:0:0:0:1", "::1"), ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::1"), ("10.0.0.1", "10.0.0.1"), ("*", "*"), ("name", "name"),
    ],
)  # fmt: skip
def test_an_address_is_the_same_however_it_is_written(host, one):
    assert canonical_host(host) == one
    table = AclTable([rule(host=host)])
    assert table.allows("User:a", one, READ, TOPIC, "t")


def test_ten_thousand_rules_change_one_by_one():
    rules = [rule(f"topic-{i}", principal=f"User:{i}") for i in range(10_000)]
    table = AclTable(rules).updated(rules[:1], [rule("other")])
    assert not table.allows("User:0", "h", READ, TOPIC, "topic-0")
    assert table.allows("User:9999", "h", READ, TOPIC, "topic-9999")
    assert table.allows("User:a", "h", READ, TOPIC, "other")


class Counting(str):
    """A host that counts how often it is compared."""

    __slots__ = ()
    __hash__ = str.__hash__
    compared = 0

    def __eq__(self, other):
        Counting.compared += 1
        return str.__eq__(self, other)


def test_many_rules_of_one_principal_on_one_resource_are_changed_in_proportion(monkeypatch):
    monkeypatch.setattr(Counting, "compared", 0)
    monkeypatch.setattr("server.security.acls.canonical_host", Counting)
    rules = [rule(host=f"host-{i}") for i in range(1_000)]
    table = AclTable(rules).updated(rules[:0:-1], [rule(host="other")])
    assert table.allows("User:a", "host-0", READ, TOPIC, "t")
    assert not table.allows("User:a", "host-1", READ, TOPIC, "t")
    assert table.allows("User:a", "other", READ, TOPIC, "t")
    assert Counting.compared < 20 * len(rules)
