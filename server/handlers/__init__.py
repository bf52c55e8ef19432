"""The registry of APIs: every API served, on which listeners, and where its handler is.

`BROKER_APIS` are for clients and other brokers, `CONTROLLER_APIS` for the listeners of
controller.listener.names: brokers, other voters, and tools with --bootstrap-controller (KIP-919).
What ApiVersions advertises is derived from the table of the listener it came in on, so nothing is
listed that is not served (with Kafka's one exception: Produce is listed from version 0). One rule
finds a handler: the area names the file here (`auth.acls` is auth/acls.py), and the function is the
API's name in snake_case. Most areas are also files of wire/messages that declare their requests.

    def produce(ctx: RequestContext[Any], request: ProduceRequest) -> ProduceResponse | None

A handler returns the response, or None when it answers later through `ctx`; it may raise KafkaError
to answer everything it was asked with one code. Where the cost of a request lies in what it holds
and not in its size (records that must be opened), `<function>_is_costly(ctx, request)` beside the
handler says so, and it runs on a handler thread. Where most requests are of one simple form,
`<function>_ordinary(ctx, frame, pos)` serves that form without decoding the rest of the protocol;
it says no to all else before it has done anything, and the handler is asked. Several requests that
wait in line on a connection are first offered to `<function>_together(ctx, frames, pos)`, which
says how many of them it has served as one.

Areas are imported at first use: a broker that nobody asks for its log directories never loads that
code, and starts sooner.
"""

from __future__ import annotations

from server.network.api import Api, Cost, Operation, Resource

_SMALL, _BLOCKS = Cost.SMALL, Cost.BLOCKS

# (api_key, name, area, lowest version, highest version, cost, listeners, operation and resource).
# Versions and listeners are Kafka 4.3's: "b" brokers', "c" controllers', "f" a broker may pass it
# on to the controller; "o" what it names twice is answered once, for each thing is much to tell, or
# to do. Two rows where the two have different handlers.
_TABLE: tuple[tuple[int, str, str, int, int, Cost, str, str], ...] = (
    (0, "Produce", "produce", 3, 13, _SMALL, "b", "WRITE TOPIC"),
    (1, "Fetch", "fetch", 4, 18, _SMALL, "b", "READ TOPIC"),
    (1, "Fetch", "quorum", 4, 18, _SMALL, "c", "CLUSTER_ACTION CLUSTER"),
    (2, "ListOffsets", "offsets", 1, 11, _SMALL, "b", "DESCRIBE TOPIC"),
    (3, "Metadata", "metadata", 0, 13, _SMALL, "b", "DESCRIBE TOPIC"),
    (8, "OffsetCommit", "group_offsets", 2, 10, _SMALL, "b", "READ GROUP"),
    (9, "OffsetFetch", "group_offsets", 1, 10, _SMALL, "bo", "DESCRIBE GROUP"),
    (10, "FindCoordinator", "groups", 0, 6, _SMALL, "b", "DESCRIBE GROUP"),
    (11, "JoinGroup", "groups", 0, 9, _SMALL, "b", "READ GROUP"),
    (12, "Heartbeat", "groups", 0, 4, _SMALL, "b", "READ GROUP"),
    (13, "LeaveGroup", "groups", 0, 5, _SMALL, "b", "READ GROUP"),
    (14, "SyncGroup", "groups", 0, 5, _SMALL, "b", "READ GROUP"),
    (15, "DescribeGroups", "groups", 0, 6, _BLOCKS, "bo", "DESCRIBE GROUP"),
    (16, "ListGroups", "groups", 0, 5, _BLOCKS, "b", "DESCRIBE CLUSTER"),
    (17, "SaslHandshake", "auth.sasl", 0, 1, _SMALL, "bc", ""),
    (18, "ApiVersions", "cluster", 0, 4, _SMALL, "bc", ""),
    (19, "CreateTopics", "admin", 2, 7, _BLOCKS, "bcf", "CREATE CLUSTER"),
    (20, "DeleteTopics", "admin", 1, 6, _BLOCKS, "bcf", "DELETE TOPIC"),
    (21, "DeleteRecords", "offsets", 0, 2, _BLOCKS, "b", "DELETE TOPIC"),
    (22, "InitProducerId", "transactions", 0, 5, _SMALL, "b", "IDEMPOTENT_WRITE CLUSTER"),
    (23, "OffsetForLeaderEpoch", "offsets", 2, 4, _SMALL, "b", "DESCRIBE TOPIC"),
    (24, "AddPartitionsToTxn", "transactions", 0, 5, _SMALL, "b", "WRITE TRANSACTIONAL_ID"),
    (25, "AddOffsetsToTxn", "transactions", 0, 4, _SMALL, "b", "WRITE TRANSACTIONAL_ID"),
    (26, "EndTxn", "transactions", 0, 5, _SMALL, "b", "WRITE TRANSACTIONAL_ID"),
    (27, "WriteTxnMarkers", "transaction_markers", 1, 2, _SMALL, "b", "CLUSTER_ACTION CLUSTER"),
    (28, "TxnOffsetCommit", "group_offsets", 0, 5, _SMALL, "b", "WRITE TRANSACTIONAL_ID"),
    (29, "DescribeAcls", "auth.acls", 1, 3, _BLOCKS, "bc", "DESCRIBE CLUSTER"),
    (30, "CreateAcls", "auth.acls", 1, 3, _BLOCKS, "bcf", "ALTER CLUSTER"),
    (31, "DeleteAcls", "auth.acls", 1, 3, _BLOCKS, "bcf", "ALTER CLUSTER"),
    (32, "DescribeConfigs", "admin", 1, 4, _BLOCKS, "bco", "DESCRIBE_CONFIGS CLUSTER"),
    (33, "AlterConfigs", "admin", 0, 2, _BLOCKS, "bcf", "ALTER_CONFIGS CLUSTER"),
    (34, "AlterReplicaLogDirs", "admin", 1, 2, _BLOCKS, "b", "ALTER CLUSTER"),
    (35, "DescribeLogDirs", "admin", 1, 5, _BLOCKS, "b", "DESCRIBE CLUSTER"),
    (36, "SaslAuthenticate", "auth.sasl", 0, 2, _SMALL, "bc", ""),
    (37, "CreatePartitions", "admin", 0, 3, _BLOCKS, "bcf", "ALTER TOPIC"),
    (38, "CreateDelegationToken", "auth.tokens", 1, 3, _BLOCKS, "bcf", "CREATE_TOKENS USER"),
    (39, "RenewDelegationToken", "auth.tokens", 1, 2, _BLOCKS, "bcf", ""),
    (40, "ExpireDelegationToken", "auth.tokens", 1, 2, _BLOCKS, "bcf", ""),
    (41, "DescribeDelegationToken", "auth.tokens", 1, 3, _BLOCKS, "b", "DESCRIBE DELEGATION_TOKEN"),
    (42, "DeleteGroups", "groups", 0, 2, _BLOCKS, "b", "DELETE GROUP"),
    (43, "ElectLeaders", "admin", 0, 2, _BLOCKS, "bcfo", "ALTER CLUSTER"),
    (44, "IncrementalAlterConfigs", "admin", 0, 1, _BLOCKS, "bcf", "ALTER_CONFIGS CLUSTER"),
    (45, "AlterPartitionReassignments", "admin", 0, 1, _BLOCKS, "bcf", "ALTER CLUSTER"),
    (46, "ListPartitionReassignments", "admin", 0, 0, _BLOCKS, "bcf", "DESCRIBE CLUSTER"),
    (47, "OffsetDelete", "group_offsets", 0, 0, _BLOCKS, "b", "DELETE GROUP"),
    (48, "DescribeClientQuotas", "quotas", 0, 1, _BLOCKS, "b", "DESCRIBE_CONFIGS CLUSTER"),
    (49, "AlterClientQuotas", "quotas", 0, 1, _BLOCKS, "bcf", "ALTER_CONFIGS CLUSTER"),
    (50, "DescribeUserScramCredentials", "auth.scram", 0, 0, _BLOCKS, "bc", "DESCRIBE CLUSTER"),
    (51, "AlterUserScramCredentials", "auth.scram", 0, 0, _BLOCKS, "bcf", "ALTER CLUSTER"),
    (52, "Vote", "quorum", 0, 2, _SMALL, "c", "CLUSTER_ACTION CLUSTER"),
    (53, "BeginQuorumEpoch", "quorum", 0, 1, _SMALL, "c", "CLUSTER_ACTION CLUSTER"),
    (54, "EndQuorumEpoch", "quorum", 0, 1, _SMALL, "c", "CLUSTER_ACTION CLUSTER"),
    (55, "DescribeQuorum", "quorum", 0, 2, _BLOCKS, "bcf", "DESCRIBE CLUSTER"),
    (56, "AlterPartition", "controller", 2, 3, _SMALL, "c", "CLUSTER_ACTION CLUSTER"),
    (57, "UpdateFeatures", "admin", 0, 2, _BLOCKS, "bcf", "ALTER CLUSTER"),
    (58, "Envelope", "envelope", 0, 0, _BLOCKS, "c", "CLUSTER_ACTION CLUSTER"),
    (59, "FetchSnapshot", "quorum", 0, 1, _SMALL, "c", "CLUSTER_ACTION CLUSTER"),
    (60, "DescribeCluster", "cluster", 0, 2, _SMALL, "bc", "DESCRIBE CLUSTER"),
    (61, "DescribeProducers", "transactions", 0, 0, _BLOCKS, "bo", "READ TOPIC"),
    (62, "BrokerRegistration", "controller", 0, 4, _SMALL, "c", "CLUSTER_ACTION CLUSTER"),
    (63, "BrokerHeartbeat", "controller", 0, 2, _SMALL, "c", "CLUSTER_ACTION CLUSTER"),
    (64, "UnregisterBroker", "admin", 0, 0, _BLOCKS, "bcf", "ALTER CLUSTER"),
    (65, "DescribeTransactions", "transactions", 0, 0, _BLOCKS, "bo", "DESCRIBE TRANSACTIONAL_ID"),
    (66, "ListTransactions", "transactions", 0, 2, _BLOCKS, "b", "DESCRIBE TRANSACTIONAL_ID"),
    (67, "AllocateProducerIds", "controller", 0, 0, _SMALL, "cf", "CLUSTER_ACTION CLUSTER"),
    (68, "ConsumerGroupHeartbeat", "consumer_groups", 0, 1, _SMALL, "b", "READ GROUP"),
    (69, "ConsumerGroupDescribe", "consumer_groups", 0, 1, _BLOCKS, "bo", "DESCRIBE GROUP"),
    (70, "ControllerRegistration", "controller", 0, 0, _SMALL, "c", "CLUSTER_ACTION CLUSTER"),
    (71, "GetTelemetrySubscriptions", "telemetry", 0, 0, _SMALL, "b", ""),
    (72, "PushTelemetry", "telemetry", 0, 0, _SMALL, "b", ""),
    (73, "AssignReplicasToDirs", "controller", 0, 0, _SMALL, "c", "CLUSTER_ACTION CLUSTER"),
    (74, "ListConfigResources", "admin", 0, 1, _BLOCKS, "b", "DESCRIBE_CONFIGS CLUSTER"),
    (75, "DescribeTopicPartitions", "metadata", 0, 0, _BLOCKS, "b", "DESCRIBE TOPIC"),
    (76, "ShareGroupHeartbeat", "share_groups", 1, 1, _SMALL, "b", "READ GROUP"),
    (77, "ShareGroupDescribe", "share_groups", 1, 1, _BLOCKS, "bo", "DESCRIBE GROUP"),
    (78, "ShareFetch", "share", 1, 2, _SMALL, "b", "READ GROUP"),
    (79, "ShareAcknowledge", "share", 1, 2, _SMALL, "b", "READ GROUP"),
    (80, "AddRaftVoter", "quorum", 0, 1, _SMALL, "bcf", "ALTER CLUSTER"),
    (81, "RemoveRaftVoter", "quorum", 0, 0, _SMALL, "bcf", "ALTER CLUSTER"),
    (82, "UpdateRaftVoter", "quorum", 0, 0, _SMALL, "c", "CLUSTER_ACTION CLUSTER"),
    (83, "InitializeShareGroupState", "share", 0, 0, _SMALL, "b", "CLUSTER_ACTION CLUSTER"),
    (84, "ReadShareGroupState", "share", 0, 0, _SMALL, "b", "CLUSTER_ACTION CLUSTER"),
    (85, "WriteShareGroupState", "share", 0, 1, _SMALL, "b", "CLUSTER_ACTION CLUSTER"),
    (86, "DeleteShareGroupState", "share", 0, 0, _SMALL, "b", "CLUSTER_ACTION CLUSTER"),
    (87, "ReadShareGroupStateSummary", "share", 0, 1, _SMALL, "b", "CLUSTER_ACTION CLUSTER"),
    (88, "StreamsGroupHeartbeat", "streams_groups", 0, 0, _BLOCKS, "b", "READ GROUP"),
    (89, "StreamsGroupDescribe", "streams_groups", 0, 0, _BLOCKS, "bo", "DESCRIBE GROUP"),
    (90, "DescribeShareGroupOffsets", "share_groups", 0, 1, _BLOCKS, "bo", "DESCRIBE GROUP"),
    (91, "AlterShareGroupOffsets", "share_groups", 0, 0, _BLOCKS, "b", "READ GROUP"),
    (92, "DeleteShareGroupOffsets", "share_groups", 0, 0, _BLOCKS, "b", "DELETE GROUP"),
)

# KAFKA-18659: some librdkafka releases take a broker without Produce v0 to lack compression.
_ADVERTISED_FROM = {0: 0}


def _api(
    key: int, name: str, area: str, low: int, high: int, cost: Cost, listeners: str, may: str
) -> Api:
    operation, _, resource = may.partition(" ")
    return Api(
        key,
        name,
        f"{__name__}.{area}",
        (low, high),
        listeners,
        cost,
        (Operation[operation], Resource[resource]) if may else None,
        is_forwardable="f" in listeners,
        names_once="o" in listeners,
        advertised_from=_ADVERTISED_FROM.get(key),
    )


APIS = tuple(_api(*row) for row in _TABLE)
BROKER_APIS = {api.api_key: api for api in APIS if "b" in api.listeners}
CONTROLLER_APIS = {api.api_key: api for api in APIS if "c" in api.listeners}


def apis_of(role: str) -> dict[int, Api]:
    """The table of the listeners of a role (`ctx.broker.role`): "broker" or "controller"."""
    return CONTROLLER_APIS if role == "controller" else BROKER_APIS
