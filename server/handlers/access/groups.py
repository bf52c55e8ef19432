"""Rules of groups, their offsets, transactions and producers."""

from __future__ import annotations

from typing import Any

from replication.metadata.topic_names import INTERNAL_TOPICS
from server.handlers.access.guard import DENIED, Access, Finish, Verdict, With
from server.handlers.access.shapes import (
    at_top,
    finished,
    items,
    itself,
    merged,
    name_of,
    others,
    without,
)
from server.handlers.access.topics import asking, refused_topics
from server.network.api import Operation, Resource
from server.network.error_responses import error_response
from wire.errors import ErrorCode
from wire.messages.groups import (
    BATCHED_KEYS_VERSION,
    FETCH_GROUPS_VERSION,
    FETCH_TOP_LEVEL_ERROR_VERSION,
    NULLABLE_PROTOCOL_VERSION,
    OFFSETS_TOPIC_ID_VERSION,
    OffsetFetchResponse,
)
from wire.messages.transactions import BATCHED_ADD_VERSION, AddPartitionsToTxnResponse

TOPIC, GROUP, CLUSTER = Resource.TOPIC, Resource.GROUP, Resource.CLUSTER
TRANSACTION = Resource.TRANSACTIONAL_ID
_GROUP_KEY, _TRANSACTION_KEY, _SHARE_KEY = 0, 1, 2
_REFUSED = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


# ---- groups


def find_coordinator(access: Access, request: Any) -> Verdict:
    """Each key as what it is the name of; share coordinators are for brokers."""
    if request.key_type == _SHARE_KEY:
        access.must(Operation.CLUSTER_ACTION, CLUSTER)
        return None
    resource = {_GROUP_KEY: GROUP, _TRANSACTION_KEY: TRANSACTION}.get(request.key_type)
    if resource is None:
        return None  # no coordinator has such keys
    if access.ctx.api_version < BATCHED_KEYS_VERSION:
        if access.may(Operation.DESCRIBE, resource, request.key):
            return None
        code, text = DENIED[resource]
        return _nowhere(error_response(request, access.ctx.api_version, code, text))
    denied = [
        key for key in request.coordinator_keys if not access.may(Operation.DESCRIBE, resource, key)
    ]
    if not denied:
        return None
    verdict: Any = without(access, request, "coordinator_keys", "coordinators", denied, resource)
    return _with_ports(verdict)


def _with_ports(verdict: Any) -> Verdict:
    """A node that is not known has port -1."""
    finish: Finish = verdict if callable(verdict) else lambda response: response

    def with_ports(response: Any) -> Any:
        for one in finish(response).coordinators:
            if one.error_code:
                _nowhere(one)
                one.error_message = one.error_message or ""
        return response

    return with_ports if callable(verdict) else with_ports(verdict)


def _nowhere(answer: Any) -> Any:
    answer.node_id = answer.port = -1
    answer.host = ""
    return answer


def join_group(access: Access, request: Any) -> Verdict:
    """Read on the group. A look at a group's regular expressions may follow."""
    if access.may(Operation.READ, GROUP, request.group_id):
        return _with_topics(access)
    refused: Any = at_top(access, request, GROUP)
    if access.ctx.api_version >= NULLABLE_PROTOCOL_VERSION:
        refused.protocol_name = None
    return refused


def list_groups(access: Access, request: Any) -> Verdict:
    """Describe on the cluster shows all, else on each group."""
    if access.sees(Operation.DESCRIBE, CLUSTER):
        return None
    return _seen(access, GROUP, "groups", "group_id")


def _seen(access: Access, resource: Resource, answers: str, key: str) -> Finish:
    """Of a list in an answer, those that may be described."""

    def finish(response: Any) -> Any:
        found = [
            one
            for one in getattr(response, answers)
            if access.sees(Operation.DESCRIBE, resource, getattr(one, key))
        ]
        setattr(response, answers, found)
        return response

    return finish


def describe_groups(access: Access, request: Any) -> Verdict:
    """Each group, and what may be done to it."""
    verdict = _described_groups(access, request)
    if not request.include_authorized_operations:
        return verdict
    return finished(verdict, lambda response: with_operations(access, response))


_described_groups = items(Operation.DESCRIBE, GROUP, "groups", "groups", itself)


def with_operations(access: Access, response: Any) -> Any:
    for group in response.groups:
        if not group.error_code:
            group.authorized_operations = access.operations(GROUP, group.group_id)
    return response


def consumer_group_heartbeat(access: Access, request: Any) -> Verdict:
    """As for a share group. A regular expression names those topics only that the member may
    describe."""
    refusal = share_group_heartbeat(access, request)
    return _with_topics(access) if refusal is None else refusal


def share_group_heartbeat(access: Access, request: Any) -> Verdict:
    """Read on the group, Describe on each topic subscribed to by name."""
    refused = None
    if not access.may(Operation.READ, GROUP, request.group_id):
        refused = GROUP
    elif not all(
        access.may(Operation.DESCRIBE, TOPIC, name) for name in request.subscribed_topic_names or ()
    ):
        refused = TOPIC
    if refused is None:
        return None
    return error_response(request, access.ctx.api_version, DENIED[refused][0])


def _with_topics(access: Access) -> Verdict:
    return With(lambda name: access.sees(Operation.DESCRIBE, TOPIC, name))


def modern_group_describe(access: Access, request: Any) -> Verdict:
    """Of consumer or share groups: each group; one with a topic among its assignments that may not
    be described is not shown."""
    verdict = items(Operation.DESCRIBE, GROUP, "group_ids", "groups", itself)(access, request)
    include = request.include_authorized_operations

    def finish(response: Any) -> Any:
        response.groups = [_shown_group(access, group) for group in response.groups]
        return with_operations(access, response) if include else response

    return finished(verdict, finish)


def _shown_group(access: Access, group: Any) -> Any:
    for member in group.members:
        for name in ("assignment", "target_assignment"):
            assignment = getattr(member, name, None)
            for topic in () if assignment is None else assignment.topic_partitions:
                if not access.sees(Operation.DESCRIBE, TOPIC, topic.topic_name):
                    hidden = type(group).blank()
                    hidden.group_id, hidden.error_code = group.group_id, _REFUSED
                    hidden.error_message = (
                        "The group has described topic(s) that the client is not authorized to"
                        " describe."
                    )
                    return hidden
    return group


# ---- offsets of groups


def offset_commit(access: Access, request: Any) -> Verdict:
    """Read on the group, then on each topic; ids that nobody has go on, and the handler asks about
    one that came to be known meanwhile."""
    access.must(Operation.READ, GROUP, request.group_id)
    by_id = access.ctx.api_version >= OFFSETS_TOPIC_ID_VERSION
    denied, is_settled = refused_topics(access, Operation.READ, request.topics, by_id)
    finish: Any = None
    if denied:
        finish = without(access, request, "topics", "topics", denied, TOPIC)
    return finish if is_settled else asking(access, Operation.READ, finish)


def offset_fetch(access: Access, request: Any) -> Verdict:
    """Describe on each group, then on each of its topics, asked for or found."""
    version = access.ctx.api_version
    if version < FETCH_GROUPS_VERSION:
        return _offset_fetch_of_one(access, request)
    refused_groups = []
    refused_topics: dict[str, list[Any]] = {}
    order = [group.group_id for group in request.groups]
    kept = []
    for group in request.groups:
        if not access.may(Operation.DESCRIBE, GROUP, group.group_id):
            refused_groups.append(_refused_group(group.group_id))
            continue
        kept.append(group)
        if group.topics is not None:
            refused = refused_topics.setdefault(group.group_id, [])
            refused += _take_refused(access, group, version >= OFFSETS_TOPIC_ID_VERSION)
    request.groups = kept
    if not kept:
        return OffsetFetchResponse(groups=refused_groups)

    in_order = merged("groups", refused_groups, order)

    def finish(response: Any) -> Any:
        for group in response.groups:
            if not group.error_code:
                shown = _shown_topics(access, group.topics)
                group.topics = [*shown, *refused_topics.get(group.group_id, ())]
        return in_order(response)

    return finish


def _refused_group(group_id: str) -> OffsetFetchResponse.Group:
    code = int(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    return OffsetFetchResponse.Group(group_id=group_id, topics=[], error_code=code)


def _take_refused(access: Access, group: Any, by_id: bool) -> list[Any]:
    """Take topics that may not be described out of a group, and answer them."""
    denied, _ = refused_topics(access, Operation.DESCRIBE, group.topics, by_id)
    group.topics = others(group.topics, denied)
    return [_refused_topic(OffsetFetchResponse.Group.Topic, topic) for topic in denied]


def _refused_topic(make: Any, topic: Any) -> Any:
    answer = make(
        name=topic.name,
        partitions=[
            make.Partition(
                partition_index=index,
                committed_offset=-1,
                committed_leader_epoch=-1,
                metadata="",
                error_code=_REFUSED,
            )
            for index in topic.partition_indexes
        ],
    )
    if hasattr(topic, "topic_id"):
        answer.topic_id = topic.topic_id
    return answer


def _shown_topics(access: Access, topics: Any) -> list[Any]:
    """Ids that nobody has, which have no name, are told."""
    return [t for t in topics if not t.name or access.sees(Operation.DESCRIBE, TOPIC, t.name)]


def _offset_fetch_of_one(access: Access, request: Any) -> Verdict:
    if not access.may(Operation.DESCRIBE, GROUP, request.group_id):
        code = int(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if access.ctx.api_version < FETCH_TOP_LEVEL_ERROR_VERSION:
            return error_response(request, access.ctx.api_version, code)
        return OffsetFetchResponse(topics=[], error_code=code)
    refused: list[Any] = []
    if request.topics is not None:
        kept = []
        for topic in request.topics:
            if access.may(Operation.DESCRIBE, TOPIC, topic.name):
                kept.append(topic)
            else:
                refused.append(_refused_topic(OffsetFetchResponse.Topic, topic))
        request.topics = kept

    def finish(response: Any) -> Any:
        if response.error_code and access.ctx.api_version >= FETCH_TOP_LEVEL_ERROR_VERSION:
            return response  # of a group that could not be read nothing else is said
        response.topics = [*_shown_topics(access, response.topics), *refused]
        return response

    return finish


def offset_delete(access: Access, request: Any) -> Verdict:
    """Delete on the group, Read on each topic."""
    if not access.may(Operation.DELETE, GROUP, request.group_id):
        return at_top(access, request, GROUP)
    verdict: Any = _read_topics(access, request)
    if not callable(verdict):
        return verdict
    # Of a group that is not there nothing else is said.
    return lambda response: response if response.error_code else verdict(response)


_read_topics = items(Operation.READ, TOPIC, "topics", "topics", name_of)


# ---- producers and transactions


def init_producer_id(access: Access, request: Any) -> Verdict:
    """Write on the transactional id; without one IdempotentWrite, or Write on any topic."""
    if request.transactional_id is not None:
        access.must(Operation.WRITE, TRANSACTION, request.transactional_id)
        if getattr(request, "enable2_pc", False):
            access.must(Operation.TWO_PHASE_COMMIT, TRANSACTION, request.transactional_id)
    elif not access.sees(Operation.IDEMPOTENT_WRITE, CLUSTER) and not access.may_on_some(
        Operation.WRITE, TOPIC
    ):
        access.must(Operation.IDEMPOTENT_WRITE, CLUSTER)
    return None


def add_partitions_to_txn(access: Access, request: Any) -> Verdict:
    """Brokers for anybody; clients with Write on the id, then on each topic, or none is added."""
    if access.ctx.api_version >= BATCHED_ADD_VERSION:
        access.must(Operation.CLUSTER_ACTION, CLUSTER)
        return None
    access.must(Operation.WRITE, TRANSACTION, request.v3_and_below_transactional_id)
    topics = request.v3_and_below_topics
    denied = {t.name for t in topics if not access.may(Operation.WRITE, TOPIC, t.name)}
    if not denied:
        return None
    image = access.ctx.broker.metadata

    def code(name: str, index: int) -> int:
        if name in denied or name in INTERNAL_TOPICS:
            return _REFUSED
        if image.partition(name, index) is None:
            return int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return int(ErrorCode.OPERATION_NOT_ATTEMPTED)

    make: Any = AddPartitionsToTxnResponse.Transaction.Topic
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            make(
                name=topic.name,
                results_by_partition=[
                    make.Partition(
                        partition_index=index, partition_error_code=code(topic.name, index)
                    )
                    for index in topic.partitions
                ],
            )
            for topic in topics
        ]
    )


def add_offsets_to_txn(access: Access, request: Any) -> Verdict:
    """Write on the transactional id, Read on the group."""
    access.must(Operation.WRITE, TRANSACTION, request.transactional_id)
    access.must(Operation.READ, GROUP, request.group_id)
    return None


def txn_offset_commit(access: Access, request: Any) -> Verdict:
    """Write on the transactional id, Read on the group, then on each topic."""
    add_offsets_to_txn(access, request)
    return _read_topics(access, request)


def write_txn_markers(access: Access, request: Any) -> Verdict:
    """Alter, for people who end a hanging transaction, or ClusterAction, for coordinators."""
    if not access.sees(Operation.ALTER, CLUSTER):
        access.must(Operation.CLUSTER_ACTION, CLUSTER)
    return None


def describe_transactions(access: Access, request: Any) -> Verdict:
    """Each id; of its topics those that may be described."""
    verdict = _described_transactions(access, request)

    def finish(response: Any) -> Any:
        for transaction in response.transaction_states:
            transaction.topics = [
                topic
                for topic in transaction.topics
                if access.sees(Operation.DESCRIBE, TOPIC, topic.topic)
            ]
        return response

    return finished(verdict, finish)


_described_transactions = items(
    Operation.DESCRIBE, TRANSACTION, "transactional_ids", "transaction_states", itself
)


def list_transactions(access: Access, request: Any) -> Verdict:
    """Those that may be described."""

    return _seen(access, TRANSACTION, "transaction_states", "transactional_id")
