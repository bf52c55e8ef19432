"""What handlers ask of the node they work for, area by area: `ctx.broker`.

The handlers of groups take a `RequestContext[GroupsBroker]` and can ask nothing else of the node.
A BrokerServer is all of these, a ControllerServer is a QuorumNode; both modules say so to the type
checker. What a controllers' listener serves of other areas asks for no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from replication.controller.controller import Controller
    from replication.metadata.image import MetadataImage
    from replication.metadata.registrations import BrokerRegistration
    from replication.raft.driver import RaftDriver
    from replication.replicas.replica_manager import ReplicaManager
    from replication.replicas.transaction_verification import TransactionVerification
    from server.config.client_metrics import ClientMetrics
    from server.config.kafka_config import KafkaConfig
    from server.coordinator.group_coordinator import GroupCoordinator
    from server.coordinator.runtime import Clock
    from server.coordinator.share.coordinator import ShareCoordinator
    from server.coordinator.transactions.coordinator import TransactionCoordinator
    from server.handlers.fetch_session import FetchSessionCache
    from server.network.api import Api
    from server.network.request_context import RequestContext
    from server.peers.controller_channel import ControllerChannel
    from server.security.authorizer import Authorizer
    from server.share.manager import ShareManager


class AnyNode(Protocol):
    """What every node has, whatever its roles."""

    @property
    def role(self) -> str: ...
    @property
    def node_id(self) -> int: ...
    @property
    def metadata(self) -> MetadataImage: ...
    @property
    def config(self) -> KafkaConfig: ...
    @property
    def controller(self) -> ControllerChannel | Controller: ...
    @property
    def authorizer(self) -> Authorizer | None: ...
    @property
    def apis(self) -> Mapping[int, Api]:
        """What its listeners serve, with the authorizer before it."""


class QuorumNode(AnyNode, Protocol):
    """For votes and the metadata log."""

    @property
    def raft(self) -> RaftDriver: ...
    @property
    def is_alone(self) -> bool: ...


class _Reachable(AnyNode, Protocol):
    def endpoint_for(
        self, ctx: RequestContext[Any], registration: BrokerRegistration
    ) -> tuple[str, int] | None:
        """Where the client of `ctx` reaches a broker; None if not on this listener."""


class ClusterNode(QuorumNode, _Reachable, Protocol):
    """For who and what is in the cluster."""

    @property
    def cluster_id(self) -> str: ...
    @property
    def unlisted_apis(self) -> frozenset[int]: ...
    @property
    def timer(self) -> Any: ...


class GroupsBroker(_Reachable, Protocol):
    """For consumer groups, and for finding coordinators."""

    @property
    def group_coordinator(self) -> GroupCoordinator: ...
    @property
    def transaction_coordinator(self) -> TransactionCoordinator: ...
    @property
    def transaction_verification(self) -> TransactionVerification: ...
    @property
    def share_coordinator(self) -> ShareCoordinator: ...


class ReplicasBroker(AnyNode, Protocol):
    """For topics' partitions and where they lie."""

    @property
    def replica_manager(self) -> ReplicaManager: ...


class DataBroker(ReplicasBroker, _Reachable, Protocol):
    """For records."""

    @property
    def fetch_sessions(self) -> FetchSessionCache: ...
    @property
    def opens_compressed_records(self) -> frozenset[str]: ...
    @property
    def transaction_verification(self) -> TransactionVerification: ...


class ShareBroker(_Reachable, Protocol):
    """For share groups."""

    @property
    def group_coordinator(self) -> GroupCoordinator: ...
    @property
    def share_manager(self) -> ShareManager: ...
    @property
    def share_coordinator(self) -> ShareCoordinator: ...
    @property
    def timer(self) -> Any: ...


class TelemetryBroker(AnyNode, Protocol):
    """For the metrics of clients."""

    @property
    def client_metrics(self) -> ClientMetrics: ...


class MarkersBroker(ReplicasBroker, Protocol):
    """For the ends of transactions."""

    @property
    def group_coordinator(self) -> GroupCoordinator: ...
    @property
    def clock(self) -> Clock: ...


class TransactionsBroker(ReplicasBroker, Protocol):
    """For producers and their transactions."""

    @property
    def group_coordinator(self) -> GroupCoordinator: ...
    @property
    def transaction_coordinator(self) -> TransactionCoordinator: ...


if TYPE_CHECKING:
    DataContext = RequestContext[DataBroker]
