"""DescribeAcls from the image; Create- and DeleteAcls on their way to the controller."""

from __future__ import annotations

import pytest

from server.security.authorizer import StandardAuthorizer
from tests.server.handler_support import Asked, FakeBroker, image_of
from wire.messages.metadata_records import AccessControlEntryRecord
from wire.messages.security import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DescribeAclsRequest,
)

CREATION = CreateAclsRequest.Creation(
    resource_type=2, resource_name="a", resource_pattern_type=3, principal="User:a",
    host="*", operation=3, permission_type=3,
)  # fmt: skip


def rule(number, name, principal="User:a"):
    return AccessControlEntryRecord(
        id=bytes([number]) * 16, resource_type=2, resource_name=name, pattern_type=3,
        principal=principal, host="*", operation=3, permission_type=3,
    )  # fmt: skip


def asked_of(*rules, authorizer):
    image = image_of()
    image.acls = {one.id: one for one in rules}
    return Asked(FakeBroker(image), authorizer)


def secured(*rules):
    return asked_of(*rules, authorizer=StandardAuthorizer(["User:ANONYMOUS"]))


def describe(**values):
    fields = {
        "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
        "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
    }  # fmt: skip
    return DescribeAclsRequest(**{**fields, **values})


@pytest.mark.parametrize("version", [1, 2, 3])
def test_rules_are_told_by_what_they_are_about(version):
    asked = secured(rule(1, "a"), rule(2, "b"), rule(3, "a", "User:b"))
    answer = asked.ask(describe(), version)
    assert answer.error_code == 0
    told = {one.resource_name: [acl.principal for acl in one.acls] for one in answer.resources}
    assert told == {"a": ["User:a", "User:b"], "b": ["User:a"]}
    [one] = asked.ask(describe(principal_filter="User:b"), version).resources
    assert (one.resource_type, one.resource_name, one.pattern_type) == (2, "a", 3)
    assert secured(rule(1, "a")).ask(describe(operation=0), version).error_code == 42


def test_changes_are_the_controllers():
    asked = secured()
    request = CreateAclsRequest(creations=[CREATION])
    asked.send(request, 3)
    passed_on, answer, context = asked.broker.controller.submitted.popleft()
    assert passed_on.creations[0].resource_name == "a"
    assert (context.principal, context.api_version) == ("User:ANONYMOUS", 3)
    answer(CreateAclsResponse(results=[]))
    assert asked.received(request, 3).results == []


class Own:
    """An authorizer that keeps rules of its own somewhere else."""

    keeps_acls = False

    def authorize(self, *_):
        return True


@pytest.mark.parametrize("authorizer", [None, Own()])
def test_where_no_rules_are_kept_there_are_none_to_speak_of(authorizer):
    asked = asked_of(authorizer=authorizer)
    assert asked.ask(describe(), 3).error_code == 54
    [result] = asked.ask(CreateAclsRequest(creations=[CREATION]), 3).results
    assert result.error_code == 54
    matching = DeleteAclsRequest.Filter(
        resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1,
        principal_filter=None, host_filter=None, operation=1, permission_type=1,
    )  # fmt: skip
    [result] = asked.ask(DeleteAclsRequest(filters=[matching]), 3).filter_results
    assert result.error_code == 54
    assert not asked.broker.controller.submitted
