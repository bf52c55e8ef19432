"""What a leader keeps of a follower's fetch session, so that a fetch costs what has changed.

Why: a follower asks for each of its partitions all the time, and in nearly all of them nothing
happens. Reading, parking and comparing a thousand of them for every record of one took twenty times
what the record took.

How: a `FollowerSession` watches each partition of the session in the fetch purgatory for as long
as the session lives, and notes which were touched: by an append, a moved high watermark, a new role
(`ReplicaManager._partition_changed`) or a change that the follower sent. A fetch looks at those
only:

    watched --event, or named in a request--> touched --take--> looked at
    looked at --quiet, and its offsets were told--> watched
    looked at --anything else--> touched: there is more to say, or more to be learned

"Quiet" is `Leading.quiet_answer`. What it depends on and no event tells (a log start that
retention moved, the time at which the follower was last seen) is seen because it is asked of every
partition once in a sixth of replica.lag.time.max.ms: by so much the ISR may count a follower's
silence too early.

A parked fetch is `parked` here, and what is touched meanwhile lets it look at that.
A session whose follower has gone without closing it stops watching after `MISSED_MAX` events, and
starts anew should it come back.

Lock: `_lock` guards the sets and what is watched; the purgatory's is taken under it, and never held
when something happens. Order in which partitions are looked at: those that waited longest first,
those that just gave records last (KIP-74).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from replication.partition.requests import FetchPartition, FetchResult, QuietAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from replication.replicas.purgatory import Purgatory

MISSED_MAX = 10_000


class SessionPartition(Protocol):
    """One partition of a session: how it is fetched, and what was last told."""

    request: FetchPartition
    told: FetchResult | None


class ParkedFetch(Protocol):
    """A fetch of the session that waits."""

    @property
    def is_completed(self) -> bool: ...

    def try_complete_of(self, request: FetchPartition) -> bool:
        """Something happened to the partition of this request."""


def _never(partition: SessionPartition) -> bool:
    return False


class _Watch:
    """One partition's entry in the purgatory; it is never completed, only told."""

    __slots__ = ("key", "partition", "session")

    is_completed = False

    def __init__(self, session: FollowerSession, partition: SessionPartition) -> None:
        self.session = session
        self.partition = partition
        self.key: Hashable = None
        """The key it is watched under; None if it is not."""

    def try_complete_at(self, position: int) -> bool:
        return self.session.touched(self.partition)


class FollowerSession:
    """See the module."""

    __slots__ = (
        "_follower",
        "_lock",
        "_look_due_ms",
        "_look_ms",
        "_purgatory",
        "_touched",
        "_watches",
        "missed",
        "parked",
    )

    def __init__(self, purgatory: Purgatory, look_ms: int) -> None:
        """`look_ms`: how often every partition is asked whether it is quiet."""
        self._purgatory = purgatory
        self._look_ms = look_ms
        self._lock = threading.Lock()
        self._watches: dict[SessionPartition, _Watch] = {}
        self._touched: dict[SessionPartition, None] = {}
        self.parked: ParkedFetch | None = None
        """The last fetch that waited; it may be completed by now."""
        self._follower = (-1, -1)
        self._look_due_ms: int | None = None
        self.missed = 0
        """How many events there were since somebody looked."""

    # ------------------------------------------------------------------ what the session holds

    @property
    def partition_count(self) -> int:
        return len(self._watches)

    def changed(self, partition: SessionPartition) -> None:
        """It is new in the session, or its request is another one."""
        with self._lock:
            if partition not in self._watches:
                self._watches[partition] = _Watch(self, partition)
            self._touched[partition] = None

    def forget(self, partition: SessionPartition) -> None:
        """It is not fetched any more."""
        with self._lock:
            watch = self._watches.pop(partition, None)
            self._touched.pop(partition, None)
            if watch is not None:
                self._leave(watch)

    def close(self) -> None:
        """Watch nothing; a fetch that comes all the same looks at everything."""
        with self._lock:
            self._look_due_ms = None
            for watch in self._watches.values():
                self._leave(watch)

    def _leave(self, watch: _Watch) -> None:
        """The lock is held: a fetch must find all of them watched, or none."""
        key, watch.key = watch.key, None
        if key is not None:
            self._purgatory.stop_watching(watch, key)

    # ------------------------------------------------------------------ what happens

    def touched(self, partition: SessionPartition) -> bool:
        """Something happened to it; on any thread, with no lock held. True if that answered the
        parked fetch."""
        with self._lock:
            if partition not in self._watches:
                return False
            self._touched[partition] = None
            self.missed += 1
            parked = self.parked
        if parked is not None and not parked.is_completed:
            return parked.try_complete_of(partition.request)
        if self.missed > MISSED_MAX:
            self.close()
        return False

    def take(
        self,
        follower: tuple[int, int],
        now_ms: int | None = None,
        is_quiet: Callable[[SessionPartition], bool] = _never,
    ) -> list[SessionPartition]:
        """What must be looked at, and is not touched any more; what happens from now on, is again.

        `follower` is its broker's id and epoch. At `now_ms`, if that is due, also all others but
        those in which nothing happens and everything is told, as `is_quiet` says.
        """
        with self._lock:
            taken, self._touched = self._touched, {}
            self.missed = 0
            if now_ms is not None and (
                self._look_due_ms is None
                or now_ms >= self._look_due_ms
                or follower != self._follower
            ):
                self._look_due_ms = now_ms + self._look_ms
                self._follower = follower
                for one, watch in self._watches.items():
                    if watch.key is None or not is_quiet(one):
                        taken[one] = None
            looked = list(taken)
            watches = self._watches
            for one in looked:
                watch, key = watches[one], one.request.key
                if watch.key != key:
                    self._leave(watch)
                    watch.key = key
                    self._purgatory.watch(watch, key)
        return looked

    def put_back(
        self, partitions: Sequence[SessionPartition], results: Sequence[FetchResult]
    ) -> None:
        """Look at these again, but for those in which nothing happens and everything is told."""
        back = [
            partition
            for partition, result in zip(partitions, results, strict=True)
            if type(result) is not QuietAnswer or result is not partition.told
        ]
        if not back:
            return
        if len(back) > 1:
            gave = {p for p, result in zip(partitions, results, strict=True) if result.records}
            back.sort(key=gave.__contains__)
        with self._lock:
            touched, watches = self._touched, self._watches
            for partition in back:
                if partition in watches:
                    touched[partition] = None

    def requests(self) -> list[FetchPartition]:
        """How what is touched now is fetched (a parked fetch asks whether it may be answered)."""
        with self._lock:
            return [partition.request for partition in self._touched]
