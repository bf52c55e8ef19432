"""CreateAcls and DeleteAcls at the controller (AclControlManager)."""

from __future__ import annotations

from itertools import count

import pytest

from replication.controller.acls import create_acls, delete_acls
from replication.metadata.image import EMPTY_IMAGE, MetadataDelta, image_records, replayed
from wire.errors import ErrorCode, KafkaError
from wire.messages.security import CreateAclsRequest, DeleteAclsRequest

INVALID = int(ErrorCode.INVALID_REQUEST)


def creation(**values):
    fields = {
        "resource_type": 2, "resource_name": "orders", "resource_pattern_type": 3,
        "principal": "User:alice", "host": "*", "operation": 3, "permission_type": 3,
    }  # fmt: skip
    return CreateAclsRequest.Creation(**{**fields, **values})


def wanted(**values):
    fields = {
        "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
        "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
    }  # fmt: skip
    return DeleteAclsRequest.Filter(**{**fields, **values})


IDS = count(1)


def new_id():
    return next(IDS).to_bytes(16, "big")


def created(image, *creations):
    result = create_acls(image, CreateAclsRequest(creations=list(creations)), new_id)
    return replayed(image, result.records), result


def test_rules_are_created_once():
    image, result = created(EMPTY_IMAGE, creation(), creation(), creation(host="h"))
    assert [one.error_code for one in result.response.results] == [0, 0, 0]
    assert len(result.records) == len(image.acls) == 2
    _, result = created(image, creation(host="h"))
    assert result.records == []
    assert [one.error_code for one in result.response.results] == [0]


@pytest.mark.parametrize(
    "values",
    [
        {"resource_type": 1}, {"resource_type": 0}, {"resource_type": 8},
        {"resource_pattern_type": 1}, {"resource_pattern_type": 2}, {"operation": 1},
        {"operation": 0}, {"operation": 16}, {"permission_type": 1}, {"resource_name": ""},
        {"resource_type": 4}, {"principal": "alice"},
    ],
)  # fmt: skip
def test_what_is_no_rule_fails_alone_and_says_why(values):
    image, result = created(EMPTY_IMAGE, creation(**values), creation())
    refused, fine = result.response.results
    assert (refused.error_code, fine.error_code) == (INVALID, 0)
    assert refused.error_message
    assert len(image.acls) == 1


@pytest.mark.parametrize(
    "values",
    [
        {"resource_type": 4, "resource_name": "kafka-cluster"},
        {"resource_type": 7, "resource_name": "User:bob", "operation": 13},
        {"resource_name": "no topic!"}, {"host": "nowhere"}, {"operation": 15},
        {"resource_pattern_type": 4, "resource_name": "*"},
    ],
)  # fmt: skip
def test_what_kafka_takes_is_taken(values):
    assert created(EMPTY_IMAGE, creation(**values))[1].response.results[0].error_code == 0


def test_overlapping_filters_tell_twice_and_delete_once():
    image, _ = created(EMPTY_IMAGE, creation(), creation(host="h"), creation(resource_name="b"))
    request = DeleteAclsRequest(
        filters=[
            wanted(host_filter="h"),
            wanted(resource_name_filter="orders"),
            wanted(operation=0),
        ]
    )
    result = delete_acls(image, request)
    told = [len(one.matching_acls) for one in result.response.filter_results]
    assert told == [1, 2, 0]
    assert [one.error_code for one in result.response.filter_results] == [0, 0, INVALID]
    assert len(result.records) == 2
    assert [r.resource_name for r in replayed(image, result.records).acls.values()] == ["b"]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"pattern_type_filter": 3, "resource_name_filter": "ab"}, {"literal ab"}),
        ({"pattern_type_filter": 4, "resource_name_filter": "ab"}, set()),
        ({"pattern_type_filter": 1, "resource_name_filter": "ab"}, {"literal ab"}),
        ({"pattern_type_filter": 2, "resource_name_filter": "ab"},
         {"literal ab", "literal *", "prefixed a"}),
        ({"pattern_type_filter": 2, "resource_name_filter": None},
         {"literal ab", "literal *", "prefixed a", "prefixed abc"}),
        ({"operation": 8}, set()),
    ],
)  # fmt: skip
def test_how_names_are_meant(values, names):
    image, _ = created(
        EMPTY_IMAGE,
        creation(resource_name="ab"),
        creation(resource_name="*"),
        creation(resource_name="a", resource_pattern_type=4),
        creation(resource_name="abc", resource_pattern_type=4),
    )
    result = delete_acls(image, DeleteAclsRequest(filters=[wanted(**values)]))
    told = {
        ("literal " if one.pattern_type == 3 else "prefixed ") + one.resource_name
        for one in result.response.filter_results[0].matching_acls
    }
    assert told == names


def test_too_many_at_once_are_refused_whole():
    creations = [creation(resource_name=f"t{i}") for i in range(10_001)]
    with pytest.raises(KafkaError) as refused:
        created(EMPTY_IMAGE, *creations)
    assert refused.value.code == INVALID
    image, _ = created(EMPTY_IMAGE, *creations[:10_000])
    image, _ = created(image, creations[-1])
    with pytest.raises(KafkaError):
        delete_acls(image, DeleteAclsRequest(filters=[wanted()]))


def test_many_filters_that_mean_much_are_refused_whole():
    """Each tells all that it means: 10 KB took 116 MiB, and the controller's thread for seconds."""
    image, _ = created(EMPTY_IMAGE, *(creation(resource_name=f"t{i}") for i in range(1_001)))
    for values in ({}, {"host_filter": "nowhere"}, {"pattern_type_filter": 2}):
        with pytest.raises(KafkaError) as refused:
            delete_acls(image, DeleteAclsRequest(filters=[wanted(**values)] * 1_000))
        assert refused.value.code == INVALID


@pytest.mark.parametrize("named", ["resource_name", "principal"])
def test_as_many_filters_as_there_are_rules_are_looked_up(named):
    """As tools delete them, each by all that it says."""
    rules = [creation(**{named: f"User:{i}"}) for i in range(5_000)]
    image, _ = created(EMPTY_IMAGE, *rules)
    filters = [wanted(**{f"{named}_filter": getattr(one, named)}) for one in rules]
    result = delete_acls(image, DeleteAclsRequest(filters=filters))
    assert {len(one.matching_acls) for one in result.response.filter_results} == {1}
    assert len(result.records) == len(rules)


def test_a_snapshot_has_every_rule_under_its_id():
    image, _ = created(EMPTY_IMAGE, creation(), creation(host="h"))
    delta = MetadataDelta(EMPTY_IMAGE)
    delta.replay_all(image_records(image))
    assert delta.apply(1, 1, 1).acls == image.acls
