"""The dispatch table: every API this broker serves, its versions, and where its handler is.

What ApiVersions advertises is derived from this table, so nothing is listed that is not served
(with Kafka's one exception: Produce is listed from version 0). One rule finds a handler: the file
of wire/messages that declares a request names the file here, and the function is the API's name in
snake_case.

    def produce(ctx: RequestContext, request: ProduceRequest) -> ProduceResponse | None

A handler returns the response, or None when it answers later through `ctx`; it may raise KafkaError
to answer everything it was asked with one code. `inline` says that it cannot block, nor take more
than about a millisecond: it may run on a network thread.

Areas are imported at first use: a broker that nobody asks for its log directories never loads that
code, and starts sooner.

Gaps: the rest of Kafka's keys (transactions, ACLs, quotas, SCRAM, delegation tokens, reassignments,
KIP-848, share and streams groups) is neither served nor advertised; see README's ledger.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wire.frame import request_header_version, response_header_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from wire.schema import Request, Response

_NEVER = 1 << 15

# (api_key, name, area, lowest version, highest version, inline); ranges are Kafka 4.3's.
_TABLE: tuple[tuple[int, str, str, int, int, bool], ...] = (
    (0, "Produce", "data", 3, 13, True),
    (1, "Fetch", "data", 4, 18, True),
    (2, "ListOffsets", "data", 1, 11, True),
    (3, "Metadata", "cluster", 0, 13, True),
    (8, "OffsetCommit", "groups", 2, 10, True),
    (9, "OffsetFetch", "groups", 1, 10, True),
    (10, "FindCoordinator", "groups", 0, 6, True),
    (11, "JoinGroup", "groups", 0, 9, True),
    (12, "Heartbeat", "groups", 0, 4, True),
    (13, "LeaveGroup", "groups", 0, 5, True),
    (14, "SyncGroup", "groups", 0, 5, True),
    (15, "DescribeGroups", "groups", 0, 6, False),
    (16, "ListGroups", "groups", 0, 5, False),
    (18, "ApiVersions", "cluster", 0, 4, True),
    (19, "CreateTopics", "admin", 2, 7, False),
    (20, "DeleteTopics", "admin", 1, 6, False),
    (21, "DeleteRecords", "data", 0, 2, False),
    (22, "InitProducerId", "transactions", 0, 5, True),
    (23, "OffsetForLeaderEpoch", "data", 2, 4, True),
    (32, "DescribeConfigs", "admin", 1, 4, False),
    (33, "AlterConfigs", "admin", 0, 2, False),
    (35, "DescribeLogDirs", "admin", 1, 5, False),
    (37, "CreatePartitions", "admin", 0, 3, False),
    (42, "DeleteGroups", "groups", 0, 2, False),
    (43, "ElectLeaders", "admin", 0, 2, False),
    (44, "IncrementalAlterConfigs", "admin", 0, 1, False),
    (47, "OffsetDelete", "groups", 0, 0, False),
    (55, "DescribeQuorum", "quorum", 0, 2, False),
    (60, "DescribeCluster", "cluster", 0, 2, True),
    (61, "DescribeProducers", "transactions", 0, 0, False),
    (74, "ListConfigResources", "admin", 0, 1, False),
    (75, "DescribeTopicPartitions", "cluster", 0, 0, False),
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
        """Import the area's messages and handlers."""
        messages = import_module(f"wire.messages.{self.area}")
        self.request_class = getattr(messages, f"{self.name}Request")
        handlers = import_module(f"{__name__}.{self.area}")
        handle: Callable[[Any, Any], Response | None] = getattr(handlers, self.function_name)
        self.handle = handle  # last: another thread that sees it set sees the rest set
        return handle

    def unsupported_version(self) -> Response:
        """ApiVersions' answer to a version newer than ours (KIP-511)."""
        from server.handlers.cluster import unsupported_api_versions

        return unsupported_api_versions(self)

    def __repr__(self) -> str:
        return f"ApiHandler({self.name} {self.min_version}-{self.max_version})"


APIS: dict[int, ApiHandler] = {row[0]: ApiHandler(*row) for row in _TABLE}
