"""Every API that is served, in every version: all allowed, all denied, one thing allowed of two.

A row says what an API needs and what somebody without it is told (security.md 4.3, from KafkaApis
and ControllerApis). Handlers are stood in for: what reaches them is what the sender may have done,
and they answer it with success. So a row shows what the caller sees, whatever the handler does.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from server.handlers import BROKER_APIS, CONTROLLER_APIS
from server.handlers.access.guard import GuardedApi
from server.handlers.access.rules import rule_of
from server.network.api import Operation as Op
from server.network.api import Resource as Re
from server.network.error_responses import error_response
from server.network.request_channel import RequestChannel
from tests.server.handler_support import (
    CLOSED,
    FakeBroker,
    FakeChannel,
    FakeProcessor,
    broker_registration,
    image_of,
    topic_image,
)
from tests.server.wire_client import request_bytes
from wire.errors import ErrorCode
from wire.frame import decode_response_header
from wire.primitives import ZERO_UUID
from wire.schema import RESPONSES

ALICE = "User:alice"
CLUSTER = "kafka-cluster"
T, G, C, X = Re.TOPIC, Re.GROUP, Re.CLUSTER, Re.TRANSACTIONAL_ID
IDS = {f"t-{i}": bytes([i + 1]) * 16 for i in range(2)}


class Policy:
    """Allows what it lists: (operation, resource type, name); a name of None is any."""

    keeps_acls = True

    def __init__(self, allowed=(), *, everything=False):
        self.allowed = set(allowed)
        self.everything = everything
        self.asked = []

    def authorize(self, principal, host, operation, resource_type, name):
        assert (principal, host) == (ALICE, "127.0.0.1")
        self.asked.append((operation, resource_type, name))
        return self.everything or bool(
            {(operation, resource_type, name), (operation, resource_type, None)} & self.allowed
        )

    def authorize_some(self, principal, host, operation, resource_type):
        return self.everything or any(a[:2] == (operation, resource_type) for a in self.allowed)


class Row(SimpleNamespace):
    """`needs`: what a lone user must be allowed for everything asked. `denied`: the codes that an
    answer to a user without any right is made of. `partly`: the right that is kept to the first
    of two names, and the code of the other. `shown`: served to all, but with things left out.
    """


def row(*needs, denied, partly=None, shown=False):
    return Row(needs=needs, denied=frozenset(denied), partly=partly, shown=shown)


def cluster(operation):
    return row((operation, C), denied={31})


ACTION = cluster(Op.CLUSTER_ACTION)
ALTER = cluster(Op.ALTER)
DESCRIBE = cluster(Op.DESCRIBE)
READ_GROUP = row((Op.READ, G), denied={30})
FREE = row(denied={0})

BROKER = {
    "Produce": row((Op.WRITE, T), denied={29}, partly=((Op.WRITE, T), 29)),
    "Fetch": row((Op.CLUSTER_ACTION, C), denied={29, 0}),
    "ListOffsets": row((Op.DESCRIBE, T), denied={29}, partly=((Op.DESCRIBE, T), 29)),
    "Metadata": row((Op.DESCRIBE, T), denied={29, 0}, partly=((Op.DESCRIBE, T), 29)),
    "OffsetCommit": row((Op.READ, G), (Op.READ, T), denied={30}, partly=((Op.READ, T), 29)),
    "OffsetFetch": row(
        (Op.DESCRIBE, G), (Op.DESCRIBE, T), denied={30}, partly=((Op.DESCRIBE, T), 29)
    ),
    "FindCoordinator": row((Op.DESCRIBE, X), denied={53}, partly=((Op.DESCRIBE, X), 53)),
    "JoinGroup": READ_GROUP,
    "Heartbeat": READ_GROUP,
    "LeaveGroup": READ_GROUP,
    "SyncGroup": READ_GROUP,
    "DescribeGroups": row((Op.DESCRIBE, G), denied={30}, partly=((Op.DESCRIBE, G), 30)),
    "ListGroups": row((Op.DESCRIBE, C), denied={0}, shown=True),
    "ApiVersions": FREE,
    "SaslHandshake": FREE,
    "SaslAuthenticate": FREE,
    "GetTelemetrySubscriptions": FREE,
    "PushTelemetry": FREE,
    "DescribeUserScramCredentials": DESCRIBE,
    "AlterUserScramCredentials": ALTER,
    "CreateTopics": row((Op.CREATE, T), denied={29}, partly=((Op.CREATE, T), 29)),
    "DeleteTopics": row((Op.DELETE, T), (Op.DESCRIBE, T), denied={29}, partly=((Op.DELETE, T), 29)),
    "DeleteRecords": row((Op.DELETE, T), denied={29}, partly=((Op.DELETE, T), 29)),
    "InitProducerId": row((Op.WRITE, X), denied={53}),
    "OffsetForLeaderEpoch": row((Op.DESCRIBE, T), denied={29}, partly=((Op.DESCRIBE, T), 29)),
    "AddPartitionsToTxn": row((Op.WRITE, X), (Op.WRITE, T), denied={53}),
    "AddOffsetsToTxn": row((Op.WRITE, X), (Op.READ, G), denied={53}),
    "EndTxn": row((Op.WRITE, X), denied={53}),
    "WriteTxnMarkers": row((Op.CLUSTER_ACTION, C), denied={31}),
    "TxnOffsetCommit": row(
        (Op.WRITE, X), (Op.READ, G), (Op.READ, T), denied={53}, partly=((Op.READ, T), 29)
    ),
    "DescribeAcls": DESCRIBE,
    "CreateAcls": ALTER,
    "DeleteAcls": ALTER,
    "DescribeConfigs": row(
        (Op.DESCRIBE_CONFIGS, T), denied={29}, partly=((Op.DESCRIBE_CONFIGS, T), 29)
    ),
    "AlterConfigs": row((Op.ALTER_CONFIGS, T), denied={29}, partly=((Op.ALTER_CONFIGS, T), 29)),
    "IncrementalAlterConfigs": row(
        (Op.ALTER_CONFIGS, T), denied={29}, partly=((Op.ALTER_CONFIGS, T), 29)
    ),
    "AlterReplicaLogDirs": ALTER,
    "DescribeLogDirs": DESCRIBE,
    "CreatePartitions": row((Op.ALTER, T), denied={29}, partly=((Op.ALTER, T), 29)),
    "CreateDelegationToken": row((Op.CREATE_TOKENS, Re.USER), denied={65}),
    "RenewDelegationToken": FREE,
    "ExpireDelegationToken": FREE,
    "DescribeDelegationToken": row(denied={0}, shown=True),
    "DeleteGroups": row((Op.DELETE, G), denied={30}, partly=((Op.DELETE, G), 30)),
    "ElectLeaders": ALTER,
    "AlterPartitionReassignments": ALTER,
    "ListPartitionReassignments": DESCRIBE,
    "ConsumerGroupHeartbeat": row((Op.READ, G), (Op.DESCRIBE, T), denied={30}),
    "ConsumerGroupDescribe": row((Op.DESCRIBE, G), denied={30}, partly=((Op.DESCRIBE, G), 30)),
    "OffsetDelete": row((Op.DELETE, G), (Op.READ, T), denied={30}, partly=((Op.READ, T), 29)),
    "DescribeClientQuotas": cluster(Op.DESCRIBE_CONFIGS),
    "AlterClientQuotas": cluster(Op.ALTER_CONFIGS),
    "DescribeQuorum": DESCRIBE,
    "UpdateFeatures": ALTER,
    "DescribeCluster": row(denied={0}, shown=True),
    "DescribeProducers": row((Op.READ, T), denied={29}, partly=((Op.READ, T), 29)),
    "UnregisterBroker": ALTER,
    "DescribeTransactions": row((Op.DESCRIBE, X), denied={53}, partly=((Op.DESCRIBE, X), 53)),
    "ListTransactions": row(denied={0}, shown=True),
    "ListConfigResources": cluster(Op.DESCRIBE_CONFIGS),
    "DescribeTopicPartitions": row((Op.DESCRIBE, T), denied={29}, partly=((Op.DESCRIBE, T), 29)),
    "AddRaftVoter": ALTER,
    "RemoveRaftVoter": ALTER,
    "ShareGroupHeartbeat": row((Op.READ, G), (Op.DESCRIBE, T), denied={30}),
    "ShareGroupDescribe": row((Op.DESCRIBE, G), denied={30}, partly=((Op.DESCRIBE, G), 30)),
    "StreamsGroupHeartbeat": row((Op.READ, G), (Op.DESCRIBE, T), denied={30}),
    "StreamsGroupDescribe": row((Op.DESCRIBE, G), denied={30}, partly=((Op.DESCRIBE, G), 30)),
    "ShareFetch": READ_GROUP,
    "ShareAcknowledge": READ_GROUP,
    **dict.fromkeys(
        (
            "InitializeShareGroupState",
            "ReadShareGroupState",
            "WriteShareGroupState",
            "DeleteShareGroupState",
            "ReadShareGroupStateSummary",
        ),
        ACTION,
    ),
    "DescribeShareGroupOffsets": row(
        (Op.DESCRIBE, G), (Op.DESCRIBE, T), denied={30}, partly=((Op.DESCRIBE, G), 30)
    ),
    "AlterShareGroupOffsets": row(
        (Op.READ, G), (Op.READ, T), denied={30}, partly=((Op.READ, T), 29)
    ),
    "DeleteShareGroupOffsets": row(
        (Op.DELETE, G), (Op.READ, T), denied={30}, partly=((Op.READ, T), 29)
    ),
}
CONTROLLER = {
    **dict.fromkeys((
        "Fetch", "FetchSnapshot", "Vote", "BeginQuorumEpoch", "EndQuorumEpoch", "AlterPartition",
        "Envelope", "BrokerRegistration", "BrokerHeartbeat", "AllocateProducerIds",
        "ControllerRegistration", "AssignReplicasToDirs", "UpdateRaftVoter",
    ), ACTION),
    **{name: BROKER[name] for name in (
        "SaslHandshake", "SaslAuthenticate", "DescribeUserScramCredentials",
        "AlterUserScramCredentials",
        "ApiVersions", "CreateTopics", "DeleteTopics", "DescribeAcls", "CreateAcls", "DeleteAcls",
        "DescribeConfigs", "AlterConfigs", "IncrementalAlterConfigs", "CreatePartitions",
        "ElectLeaders", "AlterPartitionReassignments", "ListPartitionReassignments",
        "AlterClientQuotas", "CreateDelegationToken", "RenewDelegationToken",
        "ExpireDelegationToken",
        "DescribeQuorum", "UpdateFeatures", "UnregisterBroker", "AddRaftVoter", "RemoveRaftVoter",
    )},
    "DescribeCluster": ALTER,
}  # fmt: skip
ROWS = {"broker": BROKER, "controller": CONTROLLER}
APIS = {"broker": BROKER_APIS, "controller": CONTROLLER_APIS}
CASES = [
    pytest.param(role, api, version, id=f"{role}-{api.name}-v{version}")
    for role, apis in APIS.items()
    for api in apis.values()
    for version in range(api.min_version, api.max_version + 1)
]

_NUMBERS = {
    "acks": -1, "key_type": 1, "resource_type": 2, "session_epoch": -1, "session_id": 0,
    "replica_id": 5, "endpoint_type": 1, "cluster_authorized_operations": 0,
}  # fmt: skip


def filled(struct, version, at=0):
    """A request with two of everything: topics t-0 and t-1, groups g-0 and g-1 ..."""
    values = {}
    for field in struct.schema:
        if field.kind == "[]struct":
            values[field.name] = [filled(field.struct, version, i) for i in range(2)]
        elif field.kind.startswith("[]"):
            elements = {"[]string": ["t-0", "t-1"], "[]uuid": list(IDS.values())}
            values[field.name] = elements.get(field.kind, [3, 4])
        elif field.kind == "struct":
            values[field.name] = None if field.name == "cursor" else filled(field.struct, version)
        elif field.kind == "string":
            values[field.name] = f"t-{at}"
        elif field.kind == "uuid":
            values[field.name] = IDS[f"t-{at}"]
        else:
            values[field.name] = _NUMBERS.get(
                field.name, {"bytes": b"x", "records": b"", "bool": False}.get(field.kind, at + 1)
            )
    return struct(**values)


def request_of(api, version):
    api.load()
    request = filled(api.request_class, version)
    if api.name == "DeleteTopics":
        for topic in request.topics:
            topic.topic_id = ZERO_UUID
    if api.name == "Metadata":
        for topic in request.topics:
            topic.topic_id = ZERO_UUID
    if api.name == "DescribeTopicPartitions":
        request.cursor = None
    return request


class Served:
    """One API, guarded, with a handler that does all it is asked to."""

    def __init__(self, role, api, policy):
        self.broker = FakeBroker(
            image_of(
                *(topic_image(n, 3, i) for n, i in IDS.items()), brokers=[broker_registration()]
            )
        )
        self.broker.role = role
        self.api = GuardedApi(api, rule_of(api), policy)
        self.api.load()
        self.api.handle = self.api.prepared(self.handle)
        self.api.ordinary = self.api.is_costly = None
        self.reached = []
        self.processor = FakeProcessor()
        self.channel = FakeChannel(self.processor)
        self.channel.principal = ALICE
        self.channel.security_protocol = "SASL_SSL"
        self.requests = RequestChannel({api.api_key: self.api}, self.broker, 1, 500)

    def handle(self, ctx, request, *_):
        self.reached.append(request)
        return error_response(request, ctx.api_version, ErrorCode.NONE)

    def ask(self, request, version):
        self.api.inline = True
        assert self.requests.receive(self.channel, request_bytes(request, version, 7))
        if not self.processor.done:
            return CLOSED
        frame = self.processor.done.popleft()
        if frame is CLOSED:
            return CLOSED
        _, pos = decode_response_header(request.api_key, version, frame[4:])
        return RESPONSES[request.api_key].decode(frame[4:], version, pos)


def codes_in(value, version):
    """The error code of each place in a response that has one in this version."""
    found = []
    for field in type(value).schema:
        if not field.present(version):
            continue
        item = getattr(value, field.name)
        if field.name in ("error_code", "partition_error_code"):
            found.append(item)
        elif field.kind == "[]struct":
            for element in item or ():
                found += codes_in(element, version)
    return found


def grant(needs):
    return Policy([(*need, CLUSTER if need[1] is C else None) for need in needs])


HAVE_NO_PLACE = {("DescribeLogDirs", 1), ("DescribeLogDirs", 2)}
"""As in Kafka: nothing is shown, and nothing said."""


def test_no_api_without_a_row():
    for role, apis in APIS.items():
        assert {api.name for api in apis.values()} == set(ROWS[role])


@pytest.mark.parametrize(("role", "api", "version"), CASES)
def test_who_may_do_all_is_served_as_if_nobody_had_asked(role, api, version):
    served = Served(role, api, Policy(everything=True))
    request = request_of(api, version)
    plain = error_response(request, version, ErrorCode.NONE)
    answer = served.ask(request, version)
    assert len(served.reached) == 1
    wire = b"".join(bytes(part) for part in plain.encode(version))
    assert codes_in(answer, version) == codes_in(
        RESPONSES[api.api_key].decode(wire, version), version
    )


@pytest.mark.parametrize(("role", "api", "version"), CASES)
def test_a_user_with_just_what_the_row_says_is_served(role, api, version):
    row_ = ROWS[role][api.name]
    needs = row_.needs
    if api.name == "AddPartitionsToTxn" and version >= 4:
        needs = ((Op.CLUSTER_ACTION, C),)
    if api.name == "FindCoordinator" and version == 0:
        needs = ((Op.DESCRIBE, G),)
    if api.name == "CreateDelegationToken" and version < 3:
        needs = ()  # for oneself
    served = Served(role, api, grant(needs))
    answer = served.ask(request_of(api, version), version)
    assert len(served.reached) == 1, answer
    assert set(codes_in(answer, version)) <= {0}
    for missing in needs:
        served = Served(role, api, grant([need for need in needs if need != missing]))
        answer = served.ask(request_of(api, version), version)
        reached_without = [r for r in served.reached if not row_.shown]
        assert not reached_without or set(codes_in(answer, version)) - {0}, missing


@pytest.mark.parametrize(("role", "api", "version"), CASES)
def test_a_user_without_any_right_is_told_so_in_every_place(role, api, version):
    row_ = ROWS[role][api.name]
    denied = row_.denied
    if api.name == "AddPartitionsToTxn" and version >= 4:
        denied = {31}
    if api.name == "FindCoordinator" and version == 0:
        denied = {30}  # it has no key type: groups
    if api.name == "OffsetFetch" and version >= 8:
        denied = {30}
    if api.name == "CreateDelegationToken" and version < 3:
        denied = {0}
    served = Served(role, api, Policy())
    answer = served.ask(request_of(api, version), version)
    codes = set(codes_in(answer, version))
    if (api.name, version) in HAVE_NO_PLACE:
        assert not codes
    else:
        assert codes <= denied
        assert denied - codes <= {0}
    if 0 not in denied:
        assert not served.reached
    for text in error_texts(answer):
        assert text is None or not any(c.isdigit() for c in text), "LK-1"


def error_texts(value):
    found = []
    for field in type(value).schema:
        item = getattr(value, field.name)
        if field.name == "error_message":
            found.append(item)
        elif field.kind == "[]struct":
            for element in item or ():
                found += error_texts(element)
    return found


@pytest.mark.parametrize(
    ("role", "api", "version"),
    [case for case in CASES if ROWS[case.values[0]][case.values[1].name].partly],
)
def test_one_of_two_is_refused_in_its_place_and_never_reaches_the_handler(role, api, version):
    row_ = ROWS[role][api.name]
    (operation, resource), code = row_.partly
    if api.name == "FindCoordinator" and version < 4:
        return  # one key
    others = [need for need in row_.needs if need != (operation, resource)]
    allowed = [(*need, CLUSTER if need[1] is C else None) for need in others]
    for allowed_name, denied_name in (("t-0", "t-1"), ("t-1", "t-0")):
        policy = Policy([*allowed, (operation, resource, allowed_name)])
        served = Served(role, api, policy)
        answer = served.ask(request_of(api, version), version)
        assert len(served.reached) == 1
        array = next(
            getattr(answer, field.name)
            for field in answer.schema
            if field.kind == "[]struct"
            and field.name not in ("brokers", "node_endpoints")
            and getattr(answer, field.name)
        )
        if api.name == "OffsetFetch" and version >= 8:
            for group in array:
                by_topic = {t.name or t.topic_id: set(codes_in(t, version)) for t in group.topics}
                check(by_topic, allowed_name, denied_name, code)
            continue
        by_name = {name_in(item): set(codes_in(item, version)) for item in array}
        check(by_name, allowed_name, denied_name, code)
        if api.name not in ("Metadata", "OffsetFetch", "DescribeTopicPartitions"):
            assert [name_in(item) for item in array] in (
                ["t-0", "t-1"], list(IDS.values())
            )  # fmt: skip


def check(by_name, allowed_name, denied_name, code):
    names = set(by_name)
    keys = {n: n if n in names else IDS[n] for n in (allowed_name, denied_name)}
    assert by_name[keys[allowed_name]] == {0}
    assert by_name[keys[denied_name]] == {code}
    assert len(by_name) == 2


def name_in(item):
    for field in (
        "name",
        "topic",
        "topic_name",
        "group_id",
        "key",
        "transactional_id",
        "resource_name",
    ):
        if getattr(item, field, None):
            return getattr(item, field)
    return item.topic_id
