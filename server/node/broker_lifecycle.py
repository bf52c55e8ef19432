"""This broker in the eyes of the controller: registers, is unfenced, lives by heartbeats.

Kafka's BrokerLifecycleManager. Transitions:

    NOT_RUNNING -> STARTING              `start`: BrokerRegistration, until the controller gives
                                         this incarnation a broker epoch
    STARTING -> RUNNING                  a heartbeat after this node has read its registration is
                                         answered "not fenced"
    RUNNING -> PENDING_CONTROLLED_SHUTDOWN   `begin_controlled_shutdown`: leadership moves to other
                                         brokers, until the controller says that none is left
    any -> SHUTTING_DOWN                 it does; or `shutdown`; or registration failed for good

One request is under way at a time. A heartbeat goes out each broker.heartbeat.interval.ms, at once
when there is something to say (a failed directory, the wish to stop), each 10 ms until this node
has read its registration, less and less often if it is kept fenced all the same, and after 100 ms
to 1 s when one failed. A broker that was fenced at run time (it was paused, or cut off) goes on:
its next heartbeat unfences it.

Registration is tried until initial.broker.registration.timeout.ms, for a broker that was killed is
DUPLICATE_BROKER_REGISTRATION until its old session runs out; what no time will heal (another
cluster's id, directories of another broker, a feature too new) fails at once.

A running broker registers once more when metadata.version reaches the first that knows directories
(KIP-858): what it said of them before, no record could hold. Kafka: BrokerRegistrationTracker.

Controlled shutdown is not waited for when no other broker is alive, and given up when no controller
answered for broker.session.timeout.ms: by then the others have fenced this broker anyway.

On a node alone nobody watches for heartbeats, so none is sent after the first.

No thread: requests are answered on the controller's, heartbeats are due on the timer's. Only the
`await_` methods block; the simulator does without them. Lock: `_lock` guards the state; it is never
held while the controller is asked.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from replication.metadata.image import MetadataDelta, MetadataImage
from server.network.listeners import Listener
from wire.errors import ErrorCode, KafkaError
from wire.messages.quorum import BrokerHeartbeatRequest, BrokerRegistrationRequest

logger = logging.getLogger(__name__)

_BACKOFF_MS = 100
_BACKOFF_MAX_MS = 1_000
_FENCED_MS = 10
_STOPPING_MS = 50
_LOOK_S = 0.1

_HOPELESS = frozenset(
    {
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        ErrorCode.INVALID_REGISTRATION,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)


@dataclass(frozen=True, slots=True)
class LifecycleConfig:
    """Names are Kafka's keys with _ for a dot; times in ms."""

    broker_heartbeat_interval_ms: int = 2_000
    broker_session_timeout_ms: int = 9_000
    controlled_shutdown_enable: bool = True
    """Whether leadership is given away before a stop; else the others notice by the session."""
    initial_broker_registration_timeout_ms: int = 60_000
    log_dir_failure_timeout_ms: int = 30_000


class BrokerState(Enum):
    NOT_RUNNING = "not running"
    STARTING = "starting"
    RUNNING = "running"
    PENDING_CONTROLLED_SHUTDOWN = "pending controlled shutdown"
    SHUTTING_DOWN = "shutting down"


class _Clock(Protocol):
    def now_ms(self) -> int: ...


class _Timer(Protocol):
    def add(self, delay_ms: int, fn: Callable[[], object]) -> Any: ...


_Submit = Callable[[Any, Callable[[Any], None]], None]


class BrokerLifecycle:
    """One per broker. `start`, `await_running`; `await_controlled_shutdown`, `shutdown`."""

    def __init__(
        self,
        broker_id: int,
        cluster_id: str,
        incarnation_id: bytes,
        submit: _Submit,
        metadata: Callable[[], MetadataImage],
        timer: _Timer,
        clock: _Clock,
        config: LifecycleConfig,
        *,
        is_alone: bool,
        on_fatal: Callable[[BaseException], None],
        cordoned_log_dirs: Callable[[], list[bytes] | None] = lambda: None,
    ) -> None:
        """`submit` asks the active controller, and should give up after half a session, for what
        is asked changes. `on_fatal` ends the process. `cordoned_log_dirs`: which directories take
        no new replicas, None until this node knows.
        """
        self.broker_epoch = -1
        self.state = BrokerState.NOT_RUNNING
        self.is_fenced = True
        self._broker_id = broker_id
        self._cluster_id = cluster_id
        self._incarnation_id = incarnation_id
        self._submit = submit
        self._metadata = metadata
        self._timer = timer
        self._clock = clock
        self._config = config
        self._is_alone = is_alone
        self._on_fatal = on_fatal
        self._cordoned_log_dirs = cordoned_log_dirs
        self._lock = threading.Lock()
        # Guarded by _lock, like the three above:
        self._registration: BrokerRegistrationRequest | None = None
        self._registration_deadline_ms = 0
        self._is_asking = False
        self._must_ask_again = False
        self._must_register = True
        self._task: Any = None
        self._failures = 0
        self._fenced_answers = 0
        self._answered_ms = 0
        self._offline_log_dirs: dict[bytes, bool] = {}
        """Failed directories, and whether the controller knows."""
        self._failure: KafkaError | None = None
        self._settled = threading.Event()
        """Running, or never to be."""
        self._stopped = threading.Event()

    # -- what happens to the broker

    def start(
        self,
        listeners: Sequence[Listener],
        features: Mapping[str, tuple[int, int]],
        rack: str | None,
        log_dirs: Sequence[bytes],
        previous_broker_epoch: int,
    ) -> None:
        """Begin to register; `previous_broker_epoch` is that of the last clean shutdown, or -1."""
        request = BrokerRegistrationRequest(
            broker_id=self._broker_id,
            cluster_id=self._cluster_id,
            incarnation_id=self._incarnation_id,
            listeners=[
                BrokerRegistrationRequest.Listener(
                    name=listener.name,
                    host=listener.host,
                    port=listener.port,
                    security_protocol=listener.protocol_id,
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
        now_ms = self._clock.now_ms()
        with self._lock:
            self.state = BrokerState.STARTING
            self._registration = request
            self._registration_deadline_ms = (
                now_ms + self._config.initial_broker_registration_timeout_ms
            )
            self._answered_ms = now_ms
        self._ask()

    def log_dir_failed(self, directory_id: bytes) -> None:
        """Report a failed directory at once; if nobody hears it in time, end the process (B-7)."""
        with self._lock:
            self._offline_log_dirs.setdefault(directory_id, False)
            is_registered = self.broker_epoch >= 0
        timeout_ms = self._config.log_dir_failure_timeout_ms
        self._timer.add(timeout_ms, lambda: self._check_reported(directory_id))
        if is_registered:
            self._ask()

    def cordoned_log_dirs_changed(self) -> None:
        """Say it at once: the controller must place nothing more there (KIP-1066)."""
        if self.broker_epoch >= 0:
            self._ask()

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """A MetadataPublisher: does the metadata lack this broker's directories?"""
        if not delta.features_changed and self._broker_id not in delta.changed_brokers:
            return
        own = image.brokers.get(self._broker_id)
        is_ours = own is not None and own.incarnation_id == self._incarnation_id
        if own is None or not is_ours or own.directories or not image.knows_directories:
            return
        with self._lock:
            self._must_register = True
        self._ask()

    def begin_controlled_shutdown(self) -> None:
        """Ask to stop: the controller moves leadership away first (B-4)."""
        with self._lock:
            if self.state is not BrokerState.RUNNING:
                return
            self.state = BrokerState.PENDING_CONTROLLED_SHUTDOWN
            self._answered_ms = self._clock.now_ms()
        logger.info("controlled shutdown begins broker_id=%s", self._broker_id)
        self._ask()

    def shutdown(self) -> None:
        """Say nothing more."""
        with self._lock:
            self._end()

    # -- waiting, for a node's main thread

    def await_running(self, is_stopping: Callable[[], bool] = lambda: False) -> bool:
        """Wait until this broker is registered and unfenced; False if `is_stopping` came first.

        Raises KafkaError when the controller refused for good, or none answered in time.
        """
        while not self._settled.wait(_LOOK_S):
            if is_stopping():
                return False
        if self._failure is not None:
            raise self._failure
        return True

    def await_controlled_shutdown(
        self, timeout_s: float, is_hopeless: Callable[[], bool] = lambda: False
    ) -> None:
        """Give leadership away, unless there is nobody to take it, and wait until that is done.

        `is_hopeless`: no controller will answer soon, so it is not waited for. Nothing is asked
        and nothing waited for where `controlled.shutdown.enable` is off.
        """
        if not self._config.controlled_shutdown_enable:
            return
        alive = self._metadata().alive_brokers()
        if all(broker.broker_id == self._broker_id for broker in alive):
            return
        self.begin_controlled_shutdown()
        if self.state is not BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            return
        deadline_ms = self._clock.now_ms() + int(timeout_s * 1000)
        while not self._stopped.wait(_LOOK_S):
            now_ms = self._clock.now_ms()
            silent_ms = now_ms - self._answered_ms
            is_over = now_ms > deadline_ms or silent_ms > self._config.broker_session_timeout_ms
            if is_over or is_hopeless():
                logger.warning(
                    "controlled shutdown given up broker_id=%s silent_ms=%s",
                    self._broker_id,
                    silent_ms,
                )
                return

    # -- requests

    def _ask(self) -> None:
        """Send the registration or a heartbeat; if one is under way, another follows it."""
        with self._lock:
            if self.state in (BrokerState.NOT_RUNNING, BrokerState.SHUTTING_DOWN):
                return
            if self._is_asking:
                self._must_ask_again = True
                return
            self._is_asking = True
            self._forget_task()
            request: Any
            if self._must_register:
                self._must_register = False
                request, on_answer = self._registration, self._registered
            else:
                request = self._heartbeat()
                dirs = request.offline_log_dirs

                def on_answer(answer: Any) -> None:
                    self._heard(answer, dirs)

        self._submit(request, on_answer)

    def _heartbeat(self) -> BrokerHeartbeatRequest:
        return BrokerHeartbeatRequest(
            broker_id=self._broker_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self._metadata().offset,
            want_fence=False,
            want_shut_down=self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN,
            offline_log_dirs=list(self._offline_log_dirs),
            cordoned_log_dirs=self._cordoned_log_dirs(),
        )

    def _registered(self, answer: Any) -> None:
        code = _code(answer)
        with self._lock:
            self._is_asking = False
            if self.state is BrokerState.SHUTTING_DOWN:
                return
            if code:
                pause_ms = self._registration_refused(code, answer)
            else:
                self.broker_epoch = answer.broker_epoch
                self._failures = 0
                self._answered_ms = self._clock.now_ms()
                pause_ms = 0
        if not code:
            epoch = answer.broker_epoch
            logger.info("registered broker_id=%s broker_epoch=%s", self._broker_id, epoch)
        self._ask_in(pause_ms)

    def _registration_refused(self, code: int, answer: Any) -> int:
        """How long to wait before asking again; -1 for never."""
        reason = answer.detail if isinstance(answer, KafkaError) else ""
        name = ErrorCode(code).name
        left_ms = self._registration_deadline_ms - self._clock.now_ms()
        self._must_ask_again = False
        self._must_register |= self.broker_epoch < 0 or code not in _HOPELESS
        if self.broker_epoch >= 0:
            logger.warning(
                "registering once more failed broker_id=%s error=%s reason=%s",
                self._broker_id, name, reason,
            )  # fmt: skip
            return self._backoff()
        if code in _HOPELESS:
            detail = f"the controller refuses this broker: {name} {reason}".rstrip()
            self._fail(KafkaError(ErrorCode(code), detail))
            return -1
        if left_ms <= 0:
            limit = self._config.initial_broker_registration_timeout_ms
            self._fail(
                KafkaError(
                    ErrorCode(code),
                    f"this broker was not registered within {limit} ms"
                    f" (initial.broker.registration.timeout.ms): {name} {reason}".rstrip(),
                )
            )
            return -1
        logger.info(
            "registration refused broker_id=%s error=%s reason=%s", self._broker_id, name, reason
        )
        return min(self._backoff(), left_ms)

    def _heard(self, answer: Any, dirs: Sequence[bytes]) -> None:
        """A heartbeat was answered."""
        code = _code(answer)
        with self._lock:
            self._is_asking = False
            if self.state is BrokerState.SHUTTING_DOWN:
                return
            if code:
                self._must_ask_again = False
                pause_ms = self._backoff()
            else:
                self._failures = 0
                self._answered_ms = self._clock.now_ms()
                self._offline_log_dirs.update(dict.fromkeys(dirs, True))
                pause_ms = self._after_heartbeat(answer)
        if code:
            logger.warning(
                "heartbeat failed broker_id=%s error=%s retry_ms=%s",
                self._broker_id,
                ErrorCode(code).name,
                pause_ms,
            )
        self._ask_in(pause_ms)

    def _after_heartbeat(self, answer: Any) -> int:
        """What the answer means for the state, and when to speak again; -1 for not by itself."""
        if answer.is_fenced and not self.is_fenced and self.state is BrokerState.RUNNING:
            logger.warning("fenced by the controller broker_id=%s", self._broker_id)
        self.is_fenced = answer.is_fenced
        interval_ms = self._config.broker_heartbeat_interval_ms
        if self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            if answer.should_shut_down:
                logger.info("controlled shutdown is done broker_id=%s", self._broker_id)
                self._end()
                return -1
            return min(_STOPPING_MS, interval_ms)
        if answer.is_fenced:
            if answer.is_caught_up or self.state is not BrokerState.STARTING:
                self._fenced_answers += 1
            return min(_FENCED_MS << min(max(self._fenced_answers - 1, 0), 16), interval_ms)
        self._fenced_answers = 0
        if self.state is BrokerState.STARTING:
            self.state = BrokerState.RUNNING
            self._settled.set()
        return -1 if self._is_alone else interval_ms

    def _ask_in(self, pause_ms: int) -> None:
        """Ask after a pause, or at once if somebody wanted to meanwhile; -1: only then."""
        with self._lock:
            if self._must_ask_again:
                self._must_ask_again = False
                pause_ms = 0
            if self.state is BrokerState.SHUTTING_DOWN:
                return
            if pause_ms > 0 and not self._is_asking:
                self._forget_task()
                self._task = self._timer.add(pause_ms, self._ask)
        if pause_ms == 0:
            self._ask()

    def _backoff(self) -> int:
        pause_ms = min(_BACKOFF_MS << min(self._failures, 8), _BACKOFF_MAX_MS)
        self._failures += 1
        return pause_ms

    def _forget_task(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _fail(self, error: KafkaError) -> None:
        self._failure = error
        self._end()

    def _end(self) -> None:
        self.state = BrokerState.SHUTTING_DOWN
        self._forget_task()
        self._settled.set()
        self._stopped.set()

    def _check_reported(self, directory_id: bytes) -> None:
        with self._lock:
            is_reported = self._offline_log_dirs[directory_id]
            if self.state is BrokerState.SHUTTING_DOWN:
                return
        if not is_reported:
            limit = self._config.log_dir_failure_timeout_ms
            self._on_fatal(
                RuntimeError(
                    f"no controller heard of the failed directory {directory_id.hex()} within"
                    f" {limit} ms (log.dir.failure.timeout.ms)"
                )
            )


def _code(answer: Any) -> int:
    return int(answer.code if isinstance(answer, KafkaError) else answer.error_code)
