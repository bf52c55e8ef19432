"""W12: members of consumer groups (KIP-848) over bare sockets: until all is settled, and rolling.

Each member has a connection of its own and does what a Java consumer does: it says everything when
it joins, once what it has taken or given back, at once, and nothing else in the heartbeat of every
interval that the broker names. Settled: the members
of each group are in one epoch and own something, and every partition has one owner among them.

What is settled when is mostly the protocol's doing: another target is made a second after the last
one at the soonest, and members hear of it in their next heartbeats. As many groups under other
names settle once before the clock starts: a JVM compiles meanwhile.
"""

from __future__ import annotations

import heapq
import selectors
import time
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any

from benchmarks.loads import frames
from benchmarks.loads.base import Figures, LoadFailed, Place, commands, create_topic
from benchmarks.loads.lifetime import start
from benchmarks.loads.members import NOT_YET, await_coordinator
from benchmarks.measure import usage
from benchmarks.targets import make
from testkit.clients.raw import read_frame
from wire.frame import decode_response_header
from wire.messages.groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

_VERSION = 1
_REBALANCE_MS = 60_000
_TIMEOUT_S = 120.0
_LOOK_S = 0.02
_RETRY_S = 0.1
_HEARTBEAT = ("group.consumer.heartbeat.interval.ms", "group.consumer.min.heartbeat.interval.ms")
_JOIN, _LEAVE = 0, -1

Request = ConsumerGroupHeartbeatRequest
Owned = dict[bytes, list[int]]


class _Member:
    """One consumer; it joins with its first heartbeat."""

    def __init__(self, address: str, group: str, name: str, topic: str) -> None:
        self.group, self.name = group, name
        self.sock = frames.connect(address)
        self.epoch = _JOIN
        self.owned: Owned = {}
        self.has_left = False
        self._topic = topic
        self._is_waiting = False
        self._says_owned = True

    def beat(self) -> None:
        request = Request(group_id=self.group, member_id=self.name, member_epoch=self.epoch)
        if self.epoch == _JOIN:
            request.rebalance_timeout_ms = _REBALANCE_MS
            request.subscribed_topic_names = [self._topic]
        if self._says_owned:
            request.topic_partitions = [
                Request.Topic(topic_id=id_, partitions=held) for id_, held in self.owned.items()
            ]
        self.sock.sendall(frames.frame(request, _VERSION))
        self._is_waiting = True

    def answered(self) -> float:
        """Take the answer; seconds until the next heartbeat."""
        frame = read_frame(self.sock)
        self._is_waiting = False
        _, position = decode_response_header(Request.api_key, _VERSION, frame)
        answer = ConsumerGroupHeartbeatResponse.decode(frame, _VERSION, position)
        if answer.error_code in NOT_YET:
            return _RETRY_S
        if answer.error_code:
            raise LoadFailed(f"{self.name}: error {answer.error_code} {answer.error_message}")
        self.epoch = answer.member_epoch
        told: Any = answer.assignment
        owned = self.owned
        if told is not None:
            owned = {topic.topic_id: list(topic.partitions) for topic in told.topic_partitions}
        self._says_owned = owned != self.owned
        self.owned = owned
        return 0.0 if self._says_owned else answer.heartbeat_interval_ms / 1000

    def leave(self) -> None:
        """As a consumer that is closed: it waits for what it has asked, and says goodbye."""
        self.has_left = True
        if self._is_waiting:
            self.answered()
        request = Request(group_id=self.group, member_id=self.name, member_epoch=_LEAVE)
        frames.ask(self.sock, request, _VERSION)
        self.sock.close()


class _Teams:
    """The groups of one topic, all driven by one thread."""

    def __init__(self, address: str, topic: str, partitions: int) -> None:
        self._address, self._topic, self._partitions = address, topic, partitions
        self._groups: defaultdict[str, list[_Member]] = defaultdict(list)
        self._selector = selectors.DefaultSelector()
        self._due: list[tuple[float, int, _Member]] = []
        self._count = 0

    def join(self, group: str) -> None:
        self._count += 1
        member = _Member(self._address, group, f"{group}-{self._count}", self._topic)
        self._groups[group].append(member)
        self._selector.register(member.sock, selectors.EVENT_READ, member)
        member.beat()

    def leave(self, group: str) -> None:
        """The oldest member of the group, as a consumer that is closed."""
        member = self._groups[group].pop(0)
        self._selector.unregister(member.sock)
        member.leave()

    def settle(self) -> float:
        """Seconds until all groups are."""
        began = look = time.perf_counter()
        while (now := time.perf_counter()) < began + _TIMEOUT_S:
            while self._due and self._due[0][0] <= now:
                member = heapq.heappop(self._due)[2]
                if not member.has_left:
                    member.beat()
            for key, _ in self._selector.select(_LOOK_S):
                self._count += 1
                next_s = now + key.data.answered()
                heapq.heappush(self._due, (next_s, self._count, key.data))
            if now >= look:
                if all(map(self._is_settled, self._groups.values())):
                    return now - began
                look = now + _LOOK_S
        raise LoadFailed(f"not settled in {_TIMEOUT_S:.0f} s")

    def _is_settled(self, members: list[_Member]) -> bool:
        owned = [(id_, index) for m in members for id_, held in m.owned.items() for index in held]
        return (
            len({member.epoch for member in members}) == 1
            and all(any(member.owned.values()) for member in members)
            and len(owned) == len(set(owned)) == self._partitions
        )


def settle(
    place: Place, groups: int, members: int, partitions: int, rolled: int, heartbeat_ms: int
) -> Figures:
    """All members of all groups join at once; then `rolled` times one member of each group leaves
    and another one comes."""
    config = dict.fromkeys(_HEARTBEAT, heartbeat_ms)
    broker = make(place.kind, Path(place.scratch, "node"), config)
    start(broker)
    try:
        address = broker.bootstrap_servers
        create_topic(address, place.topic, partitions)
        with frames.connect(address) as sock:
            await_coordinator(sock)
        warm, names = _Teams(address, place.topic, partitions), [f"warm-{n}" for n in range(groups)]
        _joined(warm, names, members)
        for group in names * members:
            warm.leave(group)
        commands.append(f"{groups} x {members} members over sockets, {rolled} of each group roll")
        teams, names = (
            _Teams(address, place.topic, partitions),
            [f"team-{n}" for n in range(groups)],
        )
        before = usage(broker.pid).cpu_s
        figures: Figures = {"stable_s": _joined(teams, names, members)}
        joined = usage(broker.pid).cpu_s
        figures["broker_cpu_s"] = joined - before
        for _ in range(rolled):
            for group in names:
                teams.leave(group)
                teams.join(group)
            figures["roll_s"] = figures.get("roll_s", 0.0) + teams.settle()
        if rolled:
            figures["roll_cpu_s"] = usage(broker.pid).cpu_s - joined
    finally:
        broker.kill()
    return figures


def _joined(teams: _Teams, names: Collection[str], members: int) -> float:
    """Seconds until all of them are settled who come now, group by group."""
    began = time.perf_counter()
    for _ in range(members):
        for group in names:
            teams.join(group)
    teams.settle()
    return time.perf_counter() - began
