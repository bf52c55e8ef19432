"""The dispatch tables: every API served on each kind of listener, and where its handler is.

`BROKER_APIS` are for clients and other brokers, `CONTROLLER_APIS` for the listeners of
controller.listener.names: brokers, other voters, and tools with --bootstrap-controller (KIP-919).
What ApiVersions advertises is derived from the table of the listener it came in on, so nothing is
listed that is not served (with Kafka's one exception: Produce is listed from version 0). One rule
finds a handler: the area names the file here, and the function is the API's name in snake_case.
Nearly always the area is also the file of wire/messages that declares the request.

    def produce(ctx: RequestContext, request: ProduceRequest) -> ProduceResponse | None

A handler returns the response, or None when it answers later through `ctx`; it may raise KafkaError
to answer everything it was asked with one code. `inline` says that it cannot block, nor take more
than about a millisecond: it may run on a network thread.

Areas are imported at first use: a broker that nobody asks for its log directories never loads that
code, and starts sooner.

Gaps: the rest of Kafka's keys (transactions, ACLs, quotas, SCRAM, delegation tokens, KIP-848, share
and streams groups) is neither served nor advertised; see README's ledger.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wire.frame import request_header_version, response_header_version
from wire.messages import request_class

if TYPE_CHECKING:
    from collections.abc import Callable

    from wire.schema import Request, Response

_NEVER = 1 << 15

# (api_key, name, area, lowest version, highest version, inline, listeners); ranges and listeners
# ("b" broker, "c" controller) are Kafka 4.3's. Two rows where the two have different handlers.
_TABLE: tuple[tuple[int, str, str, int, int, bool, str], ...] = (
    (0, "Produce", "data", 3, 13, True, "b"),
    (1, "Fetch", "data", 4, 18, True, "b"),
    (1, "Fetch", "quorum", 4, 18, True, "c"),
    (2, "ListOffsets", "data", 1, 11, True, "b"),
    (3, "Metadata", "cluster", 0, 13, True, "b"),
    (8, "OffsetCommit", "groups", 2, 10, True, "b"),
    (9, "OffsetFetch", "groups", 1, 10, True, "b"),
    (10, "FindCoordinator", "groups", 0, 6, True, "b"),
    (11, "JoinGroup", "groups", 0, 9, True, "b"),
    (12, "Heartbeat", "groups", 0, 4, True, "b"),
    (13, "LeaveGroup", "groups", 0, 5, True, "b"),
    (14, "SyncGroup", "groups", 0, 5, True, "b"),
    (15, "DescribeGroups", "groups", 0, 6, False, "b"),
    (16, "ListGroups", "groups", 0, 5, False, "b"),
    (18, "ApiVersions", "cluster", 0, 4, True, "bc"),
    (19, "CreateTopics", "admin", 2, 7, False, "bc"),
    (20, "DeleteTopics", "admin", 1, 6, False, "bc"),
    (21, "DeleteRecords", "data", 0, 2, False, "b"),
    (22, "InitProducerId", "transactions", 0, 5, True, "b"),
    (23, "OffsetForLeaderEpoch", "data", 2, 4, True, "b"),
    (32, "DescribeConfigs", "admin", 1, 4, False, "bc"),
    (33, "AlterConfigs", "admin", 0, 2, False, "bc"),
    (34, "AlterReplicaLogDirs", "admin", 1, 2, False, "b"),
    (35, "DescribeLogDirs", "admin", 1, 5, False, "b"),
    (37, "CreatePartitions", "admin", 0, 3, False, "bc"),
    (42, "DeleteGroups", "groups", 0, 2, False, "b"),
    (43, "ElectLeaders", "admin", 0, 2, False, "bc"),
    (44, "IncrementalAlterConfigs", "admin", 0, 1, False, "bc"),
    (45, "AlterPartitionReassignments", "admin", 0, 1, False, "bc"),
    (46, "ListPartitionReassignments", "admin", 0, 0, False, "bc"),
    (47, "OffsetDelete", "groups", 0, 0, False, "b"),
    (52, "Vote", "quorum", 0, 2, True, "c"),
    (53, "BeginQuorumEpoch", "quorum", 0, 1, True, "c"),
    (54, "EndQuorumEpoch", "quorum", 0, 1, True, "c"),
    (55, "DescribeQuorum", "quorum", 0, 2, False, "bc"),
    (56, "AlterPartition", "controller", 2, 3, True, "c"),
    (57, "UpdateFeatures", "admin", 0, 2, False, "bc"),
    (58, "Envelope", "envelope", 0, 0, False, "c"),
    (59, "FetchSnapshot", "quorum", 0, 1, True, "c"),
    (60, "DescribeCluster", "cluster", 0, 2, True, "bc"),
    (61, "DescribeProducers", "transactions", 0, 0, False, "b"),
    (62, "BrokerRegistration", "controller", 0, 4, True, "c"),
    (63, "BrokerHeartbeat", "controller", 0, 2, True, "c"),
    (64, "UnregisterBroker", "admin", 0, 0, False, "bc"),
    (67, "AllocateProducerIds", "controller", 0, 0, True, "c"),
    (70, "ControllerRegistration", "controller", 0, 0, True, "c"),
    (73, "AssignReplicasToDirs", "controller", 0, 0, True, "c"),
    (74, "ListConfigResources", "admin", 0, 1, False, "b"),
    (75, "DescribeTopicPartitions", "cluster", 0, 0, False, "b"),
    (80, "AddRaftVoter", "quorum", 0, 1, True, "bc"),
    (81, "RemoveRaftVoter", "quorum", 0, 0, True, "bc"),
    (82, "UpdateRaftVoter", "quorum", 0, 0, True, "c"),
)

# KAFKA-18659: some librdkafka releases take a broker without Produce v0 to lack compression.
ADVERTISED_MIN_VERSION = {0: 0}


class ApiHandler:
    """One served API. `handle` is None until `load` imported its area."""

    __slots__ = (
        "api_key",
        "area",
        "handle",
        "inline",
        "is_costly",
        "max_version",
        "min_version",
        "name",
        "request_class",
        "request_flexible",
        "response_flexible",
    )

    request_class: type[Request]

    def __init__(
        self, api_key: int, name: str, area: str, min_version: int, max_version: int, inline: bool
    ) -> None:
        self.api_key = api_key
        self.name = name
        self.area = area
        self.min_version = min_version
        self.max_version = max_version
        self.inline = inline
        self.handle: Callable[[Any, Any], Response | None] | None = None
        self.is_costly: Callable[[Any, Any], bool] | None = None
        versions = range(min_version, max_version + 1)
        self.request_flexible = next(
            (v for v in versions if request_header_version(api_key, v) == 2), _NEVER
        )
        """First version with tagged fields in the request header."""
        self.response_flexible = next(
            (v for v in versions if response_header_version(api_key, v) == 1), _NEVER
        )
        """First version with tagged fields in the response header."""

    @property
    def function_name(self) -> str:
        """The handler's name: the API's in snake_case."""
        return "".join(f"_{c.lower()}" if c.isupper() else c for c in self.name).lstrip("_")

    def load(self) -> Callable[[Any, Any], Response | None]:
        """Import the API's messages and handlers."""
        self.request_class = request_class(self.api_key)
        handlers = import_module(f"{__name__}.{self.area}")
        handle: Callable[[Any, Any], Response | None] = getattr(handlers, self.function_name)
        self.is_costly = getattr(handlers, f"{self.function_name}_is_costly", None)
        self.handle = handle  # last: another thread that sees it set sees the rest set
        return handle

    def unsupported_version(self) -> Response:
        """ApiVersions' answer to a version newer than ours (KIP-511)."""
        from server.handlers.cluster import unsupported_api_versions

        return unsupported_api_versions(self)

    def __repr__(self) -> str:
        return f"ApiHandler({self.name} {self.min_version}-{self.max_version})"


_SERVED = [(row[-1], ApiHandler(*row[:-1])) for row in _TABLE]
BROKER_APIS = {api.api_key: api for listeners, api in _SERVED if "b" in listeners}
CONTROLLER_APIS = {api.api_key: api for listeners, api in _SERVED if "c" in listeners}


def apis_of(role: str) -> dict[int, ApiHandler]:
    """The table of the listeners of a role (`ctx.broker.role`): "broker" or "controller"."""
    return CONTROLLER_APIS if role == "controller" else BROKER_APIS
