"""This controller makes itself known to the active one (KIP-919).

Kafka: ControllerRegistrationManager.

What: a publisher of the metadata image. As long as the image does not show this incarnation of this
controller, a ControllerRegistration is under way: one at a time, sent again after a refusal, with
growing pauses. Why: kafka-features must know what every controller supports before a level is
raised, and --bootstrap-controller must learn where the others are.

Threads: `publish` runs on the metadata loader's, answers and retries on others; none of them waits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

from replication.metadata.image import (
    CONTROLLER_REGISTRATION_SINCE,
    METADATA_VERSION,
    ControllerRegistration,
    MetadataDelta,
    MetadataImage,
)
from wire.errors import ErrorCode, KafkaError
from wire.messages.quorum import ControllerRegistrationRequest

logger = logging.getLogger(__name__)

_BACKOFF_MS = 100
_BACKOFF_MAX_MS = 10_000


class _Controller(Protocol):
    def submit(self, request: Any, on_complete: Callable[[Any], None]) -> None: ...


class _Timer(Protocol):
    def add(self, delay_ms: int, fn: Callable[[], Any]) -> Any: ...


class ControllerRegistrationManager:
    """One per controller of a cluster; give `publish` to the metadata loader."""

    def __init__(
        self, registration: ControllerRegistration, controller: _Controller, timer: _Timer
    ) -> None:
        """`controller` takes requests for the active controller, wherever that is."""
        self._registration = registration
        self._controller = controller
        self._timer = timer
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._is_wanted = False
        self._is_under_way = False
        self._failures = 0

    def publish(self, _delta: MetadataDelta, image: MetadataImage) -> None:
        """Register if the image calls for it."""
        own = self._registration
        known = image.controllers.get(own.controller_id)
        with self._lock:
            self._is_wanted = known != own and (
                image.feature(METADATA_VERSION) >= CONTROLLER_REGISTRATION_SINCE
            )
        self._send()

    def _send(self) -> None:
        with self._lock:
            if not self._is_wanted or self._is_under_way:
                return
            self._is_under_way = True
        self._controller.submit(self._request(), self._answered)

    def _request(self) -> ControllerRegistrationRequest:
        own = self._registration
        return ControllerRegistrationRequest(
            controller_id=own.controller_id,
            incarnation_id=own.incarnation_id,
            zk_migration_ready=False,
            listeners=[
                ControllerRegistrationRequest.Listener(
                    name=name, host=e.host, port=e.port, security_protocol=e.security_protocol
                )
                for name, e in own.endpoints.items()
            ],
            features=[
                ControllerRegistrationRequest.Feature(
                    name=name, min_supported_version=r.minimum, max_supported_version=r.maximum
                )
                for name, r in sorted(own.features.items())
            ],
        )

    def _answered(self, response: Any) -> None:
        """Success shows in the image; until then, and after a failure, ask again in a while."""
        code = response.code if isinstance(response, KafkaError) else response.error_code
        with self._lock:
            self._failures = self._failures + 1 if code else 0
            pause_ms = min(_BACKOFF_MS << min(self._failures, 10), _BACKOFF_MAX_MS)
        if code:
            logger.info(
                "controller registration refused error=%s retry_ms=%s", ErrorCode(code), pause_ms
            )
        self._timer.add(pause_ms, self._again)

    def _again(self) -> None:
        with self._lock:
            self._is_under_way = False
        self._send()
