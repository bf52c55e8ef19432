"""Without an authorizer the ACL APIs say so, for everything that was asked."""

from __future__ import annotations

import pytest

from tests.server.handler_support import Asked, FakeBroker, image_of, topic_image
from wire.errors import ErrorCode
from wire.messages.security import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest

SAID = (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")


@pytest.fixture
def asked():
    return Asked(FakeBroker(image_of(topic_image("t"))))


def creation(name):
    return CreateAclsRequest.Creation(
        resource_type=2, resource_name=name, principal="User:ann", host="*", operation=3,
        permission_type=3,
    )  # fmt: skip


def name_filter(name):
    return DeleteAclsRequest.Filter(
        resource_type_filter=2, resource_name_filter=name, principal_filter=None,
        host_filter=None, operation=1, permission_type=1,
    )  # fmt: skip


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acls_cannot_be_described_without_an_authorizer(asked, version):
    request = DescribeAclsRequest(
        resource_type_filter=1, resource_name_filter=None, principal_filter=None,
        host_filter=None, operation=1, permission_type=1,
    )  # fmt: skip
    answer = asked.ask(request, version)
    assert (answer.error_code, answer.error_message) == SAID
    assert answer.resources == []


@pytest.mark.parametrize("version", [1, 2, 3])
def test_each_acl_to_create_is_refused(asked, version):
    answer = asked.ask(CreateAclsRequest(creations=[creation("a"), creation("b")]), version)
    assert [(r.error_code, r.error_message) for r in answer.results] == [SAID, SAID]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_each_filter_of_acls_to_delete_is_refused(asked, version):
    answer = asked.ask(DeleteAclsRequest(filters=[name_filter("a"), name_filter("b")]), version)
    assert [(r.error_code, r.error_message) for r in answer.filter_results] == [SAID, SAID]
    assert [r.matching_acls for r in answer.filter_results] == [[], []]
