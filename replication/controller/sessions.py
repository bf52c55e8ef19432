"""Who is alive: the last contact of each broker, and how far it has read the metadata. PURE.

Soft state of the active controller, on the monotonic clock; it is not in the metadata log. A new
active controller starts every session afresh, so nobody is fenced because the controller changed
(Kafka: BrokerHeartbeatManager, BrokerHeartbeatTracker). One exception keeps the time without a
leader near one session when a node dies that was broker and active controller: see `silent_since`.

Two things must not look like a dead broker (B-2): heartbeats that wait in the queue of a busy
controller count from when they arrived (`heard`), and time the controller itself stood still
counts for nobody (`excuse`).

The controller's own broker (`local_broker_id`) runs in the same process and holds the lock of the
same directories. So its session lasts as long as the process, and a new incarnation of it may
register at once, from this process only: the old one is dead. (Apache Kafka keeps a killed combined
node waiting for its 9 s session.) Its session is over when this process becomes active, whose own
broker may have logs to recover for minutes before it registers: others lead meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from replication.metadata.image import BrokerRegistration, MetadataImage
from wire.messages.quorum import BrokerHeartbeatRequest


@dataclass(slots=True)
class BrokerSession:
    """What the controller knows of one broker beyond its registration. Times are monotonic ms."""

    last_contact_ms: int
    metadata_offset: int = -1
    registration_offset: int = -1
    shutdown_offset: int = -1
    """Where the metadata log stood when the broker entered controlled shutdown; -1 = it did not."""


class BrokerSessions:
    """Owner: the controller's thread."""

    def __init__(
        self, session_timeout_ms: int, local_broker_id: int, incarnation_id: bytes | None = None
    ) -> None:
        """`incarnation_id`: this process's; None: its broker has always been the one it is now."""
        self._timeout_ms = session_timeout_ms
        self._local = local_broker_id
        self._incarnation_id = incarnation_id
        self._sessions: dict[int, BrokerSession] = {}

    def restart(self, image: MetadataImage, now_ms: int) -> None:
        """This controller becomes active: everybody who is not fenced has a fresh session, but for
        what its own process was before. Who is fenced had none to lose; its next incarnation need
        not wait.
        """
        over_ms = now_ms - self._timeout_ms
        self._sessions = {
            broker_id: BrokerSession(over_ms if self._is_former_self(broker) else now_ms)
            for broker_id, broker in image.brokers.items()
            if not broker.fenced
        }

    def _is_former_self(self, broker: BrokerRegistration) -> bool:
        """Was this the broker of a process that ran before this one, with its id."""
        return broker.broker_id == self._local and (
            self._incarnation_id not in (None, broker.incarnation_id)
        )

    def silent_since(self, broker_id: int, since_ms: int, now_ms: int) -> None:
        """The quorum gave this node up as leader, so its broker is probably gone too: its session
        began when it was last heard there, but half of it is left at least.
        """
        session = self._sessions.get(broker_id)
        if session is not None:
            earliest_ms = now_ms - self._timeout_ms // 2
            session.last_contact_ms = min(now_ms, max(since_ms, earliest_ms))

    def register(self, broker_id: int, registration_offset: int, now_ms: int) -> None:
        self._sessions[broker_id] = BrokerSession(now_ms, registration_offset=registration_offset)

    def remove(self, broker_id: int) -> None:
        self._sessions.pop(broker_id, None)

    def get(self, broker_id: int, now_ms: int) -> BrokerSession:
        session = self._sessions.get(broker_id)
        if session is None:
            session = self._sessions[broker_id] = BrokerSession(now_ms)
        return session

    def heard(self, image: MetadataImage, heartbeat: BrokerHeartbeatRequest, at_ms: int) -> None:
        """A heartbeat came in at that time, and waits to be served."""
        session = self._sessions.get(heartbeat.broker_id)
        broker = image.brokers.get(heartbeat.broker_id)
        if session and broker and broker.broker_epoch == heartbeat.broker_epoch:
            session.last_contact_ms = max(session.last_contact_ms, at_ms)

    def excuse(self, late_ms: int) -> None:
        """The controller stood still for this long: it could hear nobody."""
        for session in self._sessions.values():
            session.last_contact_ms += late_ms

    def is_valid(self, broker_id: int, now_ms: int, *, in_process: bool) -> bool:
        """Does another incarnation live; `in_process`: the new one asks from this very process."""
        session = self._sessions.get(broker_id)
        if session is None:
            return False
        if broker_id == self._local:
            return not in_process
        return now_ms - session.last_contact_ms < self._timeout_ms

    def next_expiry_ms(self, image: MetadataImage) -> int | None:
        """When the first session of an unfenced broker ends if nothing is heard; None for none."""
        contact = self._longest_silent(image)
        return None if contact is None else contact[0] + self._timeout_ms

    def stale_broker(self, image: MetadataImage, now_ms: int) -> int | None:
        """The unfenced broker silent for longest, if its session is over."""
        contact = self._longest_silent(image)
        if contact is None or now_ms - contact[0] < self._timeout_ms:
            return None
        return contact[1]

    def _longest_silent(self, image: MetadataImage) -> tuple[int, int] | None:
        """(last contact, broker id) among the unfenced brokers of other processes."""
        brokers = image.brokers
        return min(
            (
                (session.last_contact_ms, broker_id)
                for broker_id, session in self._sessions.items()
                if broker_id in brokers
                and not brokers[broker_id].fenced
                and (broker_id != self._local or self._is_former_self(brokers[broker_id]))
            ),
            default=None,
        )

    def lowest_metadata_offset(self, image: MetadataImage) -> int | None:
        """What every active broker has read of the metadata log; None when none is active."""
        offsets = [
            session.metadata_offset
            for broker_id, session in self._sessions.items()
            if image.is_active(broker_id)
        ]
        return min(offsets, default=None)
