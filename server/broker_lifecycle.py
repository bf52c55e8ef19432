"""This broker in the eyes of the controller: registers, is unfenced, lives by heartbeats.

Kafka's BrokerLifecycleManager. Transitions:

    not running -> starting     `register`: the controller gives this incarnation a broker epoch
    starting -> running         a heartbeat after this node has read its registration: unfenced
    running -> controlled stop  `controlled_shutdown`: leadership moves to other brokers first

With no other broker alive there is nobody to move leadership to, so a single node stops without
telling the controller; the next incarnation's registration says what happened.

Requests go to the controller of this process, or (with more nodes) to the active one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from replication.metadata import MetadataImage
from server.listeners import PLAINTEXT, Listener
from wire.errors import ErrorCode, KafkaError
from wire.messages.quorum import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)

logger = logging.getLogger(__name__)

_ANSWER_TIMEOUT_S = 60.0


class _Controller(Protocol):
    def submit(self, request: Any, on_complete: Callable[[Any], None]) -> None: ...


class BrokerLifecycle:
    """One per broker; `register` and `controlled_shutdown` wait for the controller's answer."""

    def __init__(
        self,
        broker_id: int,
        cluster_id: str,
        incarnation_id: bytes,
        controller: _Controller,
        metadata: Callable[[], MetadataImage],
    ) -> None:
        self.broker_epoch = -1
        self._broker_id = broker_id
        self._cluster_id = cluster_id
        self._incarnation_id = incarnation_id
        self._controller = controller
        self._metadata = metadata
        self._offline_log_dirs: list[bytes] = []

    def register(
        self,
        listeners: Sequence[Listener],
        features: Mapping[str, tuple[int, int]],
        rack: str | None,
        log_dirs: Sequence[bytes],
        previous_broker_epoch: int,
    ) -> None:
        """Register and be unfenced. Raises KafkaError as the controller does."""
        request = BrokerRegistrationRequest(
            broker_id=self._broker_id,
            cluster_id=self._cluster_id,
            incarnation_id=self._incarnation_id,
            listeners=[
                BrokerRegistrationRequest.Listener(
                    name=listener.name,
                    host=listener.host,
                    port=listener.port,
                    security_protocol=PLAINTEXT,
                )
                for listener in listeners
            ],
            features=[
                BrokerRegistrationRequest.Feature(
                    name=name, min_supported_version=low, max_supported_version=high
                )
                for name, (low, high) in features.items()
            ],
            rack=rack,
            log_dirs=list(log_dirs),
            previous_broker_epoch=previous_broker_epoch,
        )
        response: BrokerRegistrationResponse = self._ask(request)
        self.broker_epoch = response.broker_epoch
        logger.info("registered broker_id=%s broker_epoch=%s", self._broker_id, self.broker_epoch)
        self.heartbeat()

    def heartbeat(self) -> None:
        """Tell the controller that this broker lives; unfences it when it has caught up."""
        self._ask(self._heartbeat())

    def log_dir_failed(self, directory_id: bytes) -> None:
        """Report a failed directory with the next heartbeat, which goes out at once (B-7)."""
        self._offline_log_dirs.append(directory_id)
        if self.broker_epoch >= 0:
            self._controller.submit(self._heartbeat(), _log_refusal)

    def controlled_shutdown(self, timeout_s: float) -> None:
        """Move leadership to the other brokers before this one stops (B-4)."""
        others = [b for b in self._metadata().alive_brokers() if b.broker_id != self._broker_id]
        if self.broker_epoch < 0 or not others:
            return
        pause = threading.Event()
        for _attempt in range(int(timeout_s * 10)):
            request = self._heartbeat()
            request.want_shut_down = True
            response: BrokerHeartbeatResponse = self._ask(request)
            if response.should_shut_down:
                return
            pause.wait(0.1)
        logger.warning("controlled shutdown timed out broker_id=%s", self._broker_id)

    def _heartbeat(self) -> BrokerHeartbeatRequest:
        return BrokerHeartbeatRequest(
            broker_id=self._broker_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self._metadata().offset,
            want_fence=False,
            want_shut_down=False,
            offline_log_dirs=list(self._offline_log_dirs),
        )

    def _ask(self, request: Any) -> Any:
        answered = threading.Event()
        answers: list[Any] = []

        def answer(response: Any) -> None:
            answers.append(response)
            answered.set()

        self._controller.submit(request, answer)
        if not answered.wait(_ANSWER_TIMEOUT_S):
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the controller does not answer")
        response = answers[0]
        if isinstance(response, KafkaError):
            raise response
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code), "refused by the controller")
        return response


def _log_refusal(response: object) -> None:
    if isinstance(response, KafkaError):
        logger.warning("heartbeat refused error=%s", response)
