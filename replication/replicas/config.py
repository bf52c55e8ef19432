"""What a replica manager is given: the broker's configs that concern it, and its ties to others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from replication.following.fetcher_manager import RunFetcher
    from storage.config import Scheduler


@dataclass(frozen=True, slots=True)
class ReplicaManagerConfig:
    """Broker configs this package obeys, with Kafka's names and defaults."""

    replica_lag_time_max_ms: int = 30_000
    """A follower that was not caught up for so long leaves the ISR."""
    fetch_max_bytes: int = 57_671_680
    """Most bytes of records in one Fetch response (`fetch.max.bytes`)."""
    replica_fetch_max_bytes: int = 1_048_576
    replica_fetch_response_max_bytes: int = 10_485_760
    replica_fetch_min_bytes: int = 1
    replica_fetch_wait_max_ms: int = 500
    replica_fetch_backoff_ms: int = 1_000
    num_replica_fetchers: int = 1
    """Threads that fetch from each leader."""
    replica_selector_class: str | None = None
    """Which replica serves a consumer: the leader, or by rack (Kafka's class of that name)."""
    replication_quota_window_num: int = 11


class ClusterLinks(NamedTuple):
    """What a replica manager needs of the rest of a cluster."""

    submit: Callable[[Any, Callable[[Any], None]], object]
    """A request to the controller; the response or a KafkaError comes back, on any thread."""
    broker_epoch: Callable[[], int]
    """This broker's, as registered; -1 before."""
    run_fetcher: RunFetcher
    """Make a fetcher fetch from its leader: with a thread and a socket, or in a simulator."""
    listener_name: str
    """`inter.broker.listener.name`: where other brokers are reached."""
    scheduler: Scheduler
    """For what waits for no disk (ISR expiry)."""
    mover: Scheduler | None = None
    """Copies replicas between the directories of this node; `scheduler` if there is none."""
