"""What the controller's decisions are given and what they answer. PURE.

`ControllerConfig` is the controller's part of the configuration, `ConfigSchema` what it must know
about other people's configuration keys (the server's catalogue implements it), `ControllerResult`
the answer of the one pattern.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

RECORDS_PER_OPERATION_MAX = 10_000
"""A user's request may not write more records (Kafka: MAX_RECORDS_PER_USER_OP, rule B-10)."""

RECORDS_PER_BATCH_MAX = 10_000
"""More records of one decision (the death of a broker with many partitions) are several batches in
one metadata transaction."""

TRANSACTIONS_SINCE = 14
"""metadata.version 3.6-IV2, the first whose readers know metadata transactions (KIP-868)."""


def is_transaction(metadata_version: int, count: int) -> bool:
    """Are so many records of one decision written as a metadata transaction."""
    return count > RECORDS_PER_BATCH_MAX and metadata_version >= TRANSACTIONS_SINCE


def last_offset(metadata_version: int, first_offset: int, count: int) -> int:
    """Where the last of `count` records ends up, its transaction's marks included."""
    marks = 2 if is_transaction(metadata_version, count) else 0
    return first_offset + count + marks - 1


_Key = TypeVar("_Key", bound=Hashable)


def repeated(keys: Iterable[_Key]) -> set[_Key]:
    """Those that one request names more than once. Work in proportion to what it names: a client
    chooses how many those are, and everybody's requests wait meanwhile."""
    return {key for key, count in Counter(keys).items() if count > 1}


class ControllerResult(NamedTuple):
    """Records to append (all or none) and the response to give once they are committed."""

    records: list[Any]
    response: Any


UpgradeKRaftVersion = Callable[[int, bool], None]
"""(level, validate only): have the quorum write its kraft.version and voters; what is appended next
lies behind them. Raises KafkaError INVALID_UPDATE_VERSION, NOT_CONTROLLER."""


class ControllerContext(NamedTuple):
    """Who asks, from where, and in which version of the API (-1: a broker for itself)."""

    principal: str = "User:ANONYMOUS"
    api_version: int = -1
    client_id: str = ""
    client_host: str = ""
    may_delete: Callable[[str], bool] | None = None
    """Which topics it may delete, asked by name; None: all. The node that it came to has asked, but
    knows topics only when they are committed and published, later than the controller. Inside an
    Envelope that node is the controller's own, so it does not travel."""


class EffectiveConfig(NamedTuple):
    """One config of a topic as CreateTopics v5+ reports it (`source`: DescribeConfigs' numbers)."""

    name: str
    value: str | None
    read_only: bool
    source: int
    is_sensitive: bool


class ConfigSchema(Protocol):
    """What the controller asks about configuration keys."""

    def validate(self, resource_type: int, resource_name: str, values: Mapping[str, str]) -> None:
        """Check all dynamic values of a resource as they would be.

        Raises KafkaError: INVALID_CONFIG for a bad value or unknown key, INVALID_REQUEST for what
        a broker cannot be given, or a resource that is none.
        """

    def is_list(self, resource_type: int, name: str) -> bool:
        """May APPEND and SUBTRACT be used on this key."""

    def default_value(self, resource_type: int, name: str) -> str | None:
        """The value of a list without any dynamic config of the resource itself."""

    def topic_configs(
        self,
        overrides: Mapping[str, str],
        dynamic_broker: Mapping[str, str],
        dynamic_default: Mapping[str, str],
    ) -> Sequence[EffectiveConfig]:
        """Every config a topic with these overrides would have."""


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """The controller's configuration, by Kafka's names."""

    node_id: int
    cluster_id: str
    num_partitions: int = 1
    default_replication_factor: int = 1
    delete_topic_enable: bool = True
    min_insync_replicas: int = 1
    unclean_leader_election_enable: bool = False
    broker_session_timeout_ms: int = 9000
    controller_quorum_fetch_timeout_ms: int = 2000
    metadata_max_idle_interval_ms: int = 500
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_seconds: int = 300
    unclean_leader_election_interval_ms: int = 300_000
    controller_quota_window_num: int = 11
    controller_quota_window_size_seconds: int = 1
    delegation_token_secret_key: str | None = field(default=None, repr=False)
    """None or empty: there are no delegation tokens."""
    delegation_token_max_lifetime_ms: int = 604_800_000
    delegation_token_expiry_time_ms: int = 86_400_000
    delegation_token_expiry_check_interval_ms: int = 3_600_000
    features: Mapping[str, int] = field(
        default_factory=lambda: {
            "metadata.version": 30,
            "eligible.leader.replicas.version": 1,
            "group.version": 1,
            "transaction.version": 2,
            "share.version": 1,
            "streams.version": 1,
        }
    )
    """Feature levels an empty cluster starts with: those of Kafka 4.3."""
