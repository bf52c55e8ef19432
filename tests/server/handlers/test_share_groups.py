"""Share groups as requests: shapes, errors, and what is told where they are not served."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from server.coordinator.share_groups.describe import not_described
from server.handlers import share_groups
from tests.server.handlers.groups_support import Context
from wire.errors import ErrorCode as E
from wire.errors import KafkaError
from wire.messages.share import (
    AlterShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
)


class Service:
    """Answers everything with one error."""

    error = KafkaError(E.NOT_COORDINATOR)

    def heartbeat(self, _request, _client, answer):
        answer(self.error)

    def alter_offsets(self, _request, answer):
        answer(self.error)

    delete_offsets = alter_offsets

    def describe(self, group_ids, answer):
        answer([not_described(group_id, self.error) for group_id in group_ids])

    def describe_offsets(self, asked, answer):
        make = DescribeShareGroupOffsetsResponse.Group
        answer(make(group_id=asked.group_id, topics=[], error_code=int(self.error.code)))


def ask(handler, request, version, *, is_served=True):
    groups = SimpleNamespace(serves=lambda kind: is_served and kind == "share", share=Service())
    ctx = Context(SimpleNamespace(group_coordinator=groups), version)
    handler(ctx, request)
    (answer,) = ctx.answers
    return answer


def heartbeat(member_id="m"):
    return ShareGroupHeartbeatRequest(group_id="g", member_id=member_id, member_epoch=1)


_OFFSETS = DescribeShareGroupOffsetsRequest
_CASES = [
    (share_groups.share_group_heartbeat, heartbeat(), 1),
    (
        share_groups.share_group_describe,
        ShareGroupDescribeRequest(group_ids=["g"], include_authorized_operations=True),
        1,
    ),
    (
        share_groups.describe_share_group_offsets,
        _OFFSETS(groups=[_OFFSETS.Group(group_id="g", topics=None)]),
        1,
    ),
    (
        share_groups.alter_share_group_offsets,
        AlterShareGroupOffsetsRequest(group_id="g", topics=[]),
        0,
    ),
    (
        share_groups.delete_share_group_offsets,
        DeleteShareGroupOffsetsRequest(group_id="g", topics=[]),
        0,
    ),
]


@pytest.mark.parametrize(("handler", "request_", "version"), _CASES)
@pytest.mark.parametrize(
    ("is_served", "code"), [(False, E.UNSUPPORTED_VERSION), (True, E.NOT_COORDINATOR)]
)
def test_errors_are_told_in_the_apis_own_shape(handler, request_, version, is_served, code):
    answer = ask(handler, request_, version, is_served=is_served)
    told = answer.groups[0] if hasattr(answer, "groups") else answer
    assert told.error_code == code


@pytest.mark.parametrize("member_id", ["", "m" * 37])
def test_a_member_needs_an_id_that_is_not_too_long(member_id):
    answer = ask(share_groups.share_group_heartbeat, heartbeat(member_id), 1)
    assert (answer.error_code, answer.error_message) == (42, "Invalid member id in the request.")
