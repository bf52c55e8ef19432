"""What the active controller does because time passes, not because somebody asks. PURE.

    fence a silent broker      when its session ends; one at a time, so that the next one is judged
                               on what the first changed (B-2)
    preferred leaders          each leader.imbalance.check.interval.seconds, if
                               auto.leader.rebalance.enable
    unclean leaders            each unclean.leader.election.interval.ms, and at once when
                               unclean.leader.election.enable was changed (E-11)
    delegation tokens          that have ended are taken out of the log, each
                               delegation.token.expiry.check.interval.ms, while there are any
    NoOpRecord                 when nothing was written for metadata.max.idle.interval.ms: whoever
                               follows the metadata learns that it still has all there is (KIP-835)
    a look at the clock        eight times in a session, while one can end: who comes late to what
                               is due finds out how long it stood still (`sessions`)

A node that is alone in its cluster does none of it but for tokens; it sleeps until a request comes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from replication.controller import cluster, delegation_tokens, elections
from replication.controller.requests import ActiveState
from replication.metadata.image import MetadataImage
from wire.messages.metadata_records import ConfigRecord, NoOpRecord

_LOOKS_PER_SESSION = 8


class DueWork(NamedTuple):
    """Records that are due, and what they are for."""

    name: str
    records: list[Any]


class PeriodicTasks:
    """When which task is due, in monotonic ms. Owner: the controller's thread."""

    def __init__(self, state: ActiveState) -> None:
        self._state = state
        self._preferred_ms = 0
        self._unclean_ms = 0
        self._tokens_ms = 0
        self._last_append_ms = 0
        self._look_ms = 0
        self._alone = True
        self._judged: tuple[Any, Any] = (None, None)
        self._unclean_now = False

    def restart(self, now_ms: int) -> None:
        """This controller becomes active."""
        config = self._state.config
        self._preferred_ms = now_ms + config.leader_imbalance_check_interval_seconds * 1000
        # A leader that died with the previous controller may be waited for already.
        self._unclean_ms = now_ms + config.unclean_leader_election_interval_ms
        self._unclean_now = True
        self._tokens_ms = now_ms + config.delegation_token_expiry_check_interval_ms
        self._last_append_ms = now_ms

    def appended(self, records: list[Any], now_ms: int) -> None:
        """Something was written: the log is not idle; a config may call for an election."""
        self._last_append_ms = now_ms
        if any(
            type(record) is ConfigRecord and record.name == elections.UNCLEAN_LEADER_ELECTION
            for record in records
        ):
            self._unclean_now = True

    def next_due_ms(self) -> int | None:
        """When `run` has something to do; None: not before something else happens."""
        if self._unclean_now:
            return 0
        times = [self._tokens_ms] if self._state.image.delegation_tokens else []
        if self._is_alone(self._state.image):
            return min(times, default=None)
        config = self._state.config
        times.append(self._unclean_ms)
        if config.auto_leader_rebalance_enable:
            times.append(self._preferred_ms)
        if config.metadata_max_idle_interval_ms > 0:
            times.append(self._last_append_ms + config.metadata_max_idle_interval_ms)
        expiry_ms = self._state.sessions.next_expiry_ms(self._state.image)
        if expiry_ms is not None:
            times += (expiry_ms, self._look_ms)
        return min(times)

    def run(self, now_ms: int) -> DueWork | None:
        """The records of one task that is due; None when none is. Call again after appending."""
        state = self._state
        config = state.config
        self._look_ms = now_ms + config.broker_session_timeout_ms // _LOOKS_PER_SESSION
        alone = self._is_alone(state.image)
        if not alone:
            fenced = cluster.fence_stale_broker(state.image, state.sessions, config, now_ms)
            if fenced:
                return DueWork(f"fenced a silent broker broker_id={fenced[-1].broker_id}", fenced)
        if self._unclean_now or (not alone and now_ms >= self._unclean_ms):
            return self._elect_unclean(now_ms)
        if state.image.delegation_tokens and now_ms >= self._tokens_ms:
            return self._expire_tokens(now_ms)
        if alone:
            return None
        if config.auto_leader_rebalance_enable and now_ms >= self._preferred_ms:
            return self._balance(now_ms)
        idle_ms = config.metadata_max_idle_interval_ms
        if idle_ms > 0 and now_ms - self._last_append_ms >= idle_ms:
            return DueWork("no-op", [NoOpRecord()])
        return None

    def _elect_unclean(self, now_ms: int) -> DueWork:
        records = elections.elect_unclean_leaders(self._state.image, self._state.config)
        self._unclean_now = len(records) == elections.ELECTIONS_PER_PASS_MAX
        self._unclean_ms = now_ms + self._state.config.unclean_leader_election_interval_ms
        return DueWork("elected unclean leaders", records)

    def _expire_tokens(self, now_ms: int) -> DueWork:
        records = delegation_tokens.expired(self._state.image, self._state.wall_ms)
        if len(records) < delegation_tokens.REMOVED_PER_PASS_MAX:
            interval_ms = self._state.config.delegation_token_expiry_check_interval_ms
            self._tokens_ms = now_ms + interval_ms
        return DueWork("removed delegation tokens that have ended", records)

    def _balance(self, now_ms: int) -> DueWork:
        records = elections.balance_leaders(self._state.image, self._state.config)
        if len(records) < elections.ELECTIONS_PER_PASS_MAX:
            interval_ms = self._state.config.leader_imbalance_check_interval_seconds * 1000
            self._preferred_ms = now_ms + interval_ms
        return DueWork("elected preferred leaders", records)

    def _is_alone(self, image: MetadataImage) -> bool:
        """Is no other broker or controller registered. Looked up when either table changed."""
        if self._judged[0] is not image.brokers or self._judged[1] is not image.controllers:
            own = self._state.config.node_id
            self._judged = (image.brokers, image.controllers)
            self._alone = {*image.brokers, *image.controllers} <= {own}
        return self._alone
