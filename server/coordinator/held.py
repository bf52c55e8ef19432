"""What waits for the high watermark: answers that may time out, and effects that may not (PURE).

Everything a client is told rests on records up to some offset, and may be told once they are
committed. Answers that wait too long are given up with REQUEST_TIMED_OUT, in the coordinator's
words: their records are in the log and may be committed yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from server.coordinator.machine import Answer, Effect
from wire.errors import ErrorCode, KafkaError

_MAPPED_ERRORS = {
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def coordinator_error(code: int) -> KafkaError:
    """What a client is told when the coordinator's log answered `code`, or whoever verifies a
    transaction for it (CoordinatorOperationExceptionHelper).
    """
    known = ErrorCode(code)
    return KafkaError(_MAPPED_ERRORS.get(known, known))


class Held:
    """Answers and effects of one decision that rest on all records below `required_offset`."""

    __slots__ = ("answers", "deadline_ms", "effects", "required_offset")

    def __init__(
        self, required_offset: int, deadline_ms: int, answers: list[Answer], effects: list[Effect]
    ) -> None:
        self.required_offset = required_offset
        self.deadline_ms = deadline_ms
        self.answers = answers
        self.effects = effects


class HeldAnswers:
    """All that waits in one shard, in the order of the log. Owner: the shard; takes no lock.

    `deliveries` is where what may be told goes. What waits is looked at after every event: only the
    first of it, since who came later rests on no less, and gives up no sooner.
    """

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._waiting: deque[Held] = deque()
        self._late: deque[Held] = deque()
        """Before all that waits: their answers were given up, their effects wait on."""
        self.deliveries: list[Answer] = []
        self.required_offset = 0
        """What is decided now rests on the records below it."""
        self.committed_offset = 0

    @property
    def is_waiting(self) -> bool:
        """Whether the high watermark is of interest."""
        return bool(self._waiting or self._late)

    def deliver(self, answers: list[Answer], effects: list[Effect], now_ms: int) -> Held | None:
        """Tell it now if all it rests on is committed, else hold it."""
        if self.committed_offset >= self.required_offset:
            self.deliveries += answers
            if effects:
                self._run(effects)
            return None
        return self.hold(answers, effects, now_ms) if answers or effects else None

    def take_deliveries(self) -> list[Answer]:
        """What may be told now, for who asks to tell it. A list of its own even when it is empty:
        what the next owner of the shard adds is not theirs."""
        deliveries, self.deliveries = self.deliveries, []
        return deliveries

    def hold(self, answers: list[Answer], effects: list[Effect], now_ms: int) -> Held:
        """Keep it until `commit_to` reaches what it rests on."""
        held = Held(self.required_offset, now_ms + self._timeout_ms, answers, effects)
        self._waiting.append(held)
        return held

    def fail(self, held: Held, code: int) -> None:
        """The log gave up waiting for the replicas: so do the answers, not the effects."""
        self._refuse(held, coordinator_error(code))

    def commit_to(self, offset: int, now_ms: int) -> None:
        """The high watermark is at `offset` or behind it: tell what it covers, and give up on
        what waited too long.
        """
        self.committed_offset = max(self.committed_offset, offset)
        for held in (*self._taken(self._late), *self._taken(self._waiting)):
            self.deliveries += held.answers
            held.answers = []  # told once, though the log may give the append up just now
            self._run(held.effects)
        while self._waiting and self._waiting[0].deadline_ms <= now_ms:
            held = self._waiting.popleft()
            self.fail(held, ErrorCode.REQUEST_TIMED_OUT)
            if held.effects:
                self._late.append(held)

    def close(self, error: KafkaError) -> None:
        """Nothing of it is known to be committed ever: answers are told so, effects are dropped."""
        for held in self._waiting:
            self._refuse(held, error)
        self._waiting.clear()
        self._late.clear()

    def next_deadline_ms(self) -> int | None:
        """When the first has waited too long."""
        return self._waiting[0].deadline_ms if self._waiting else None

    def _taken(self, queue: deque[Held]) -> Iterator[Held]:
        """The first ones of it, as far as they are committed; they are there no more."""
        while queue and queue[0].required_offset <= self.committed_offset:
            yield queue.popleft()

    def _run(self, effects: list[Effect]) -> None:
        self.deliveries += [(_run, effect) for effect in effects]

    def _refuse(self, held: Held, error: KafkaError) -> None:
        self.deliveries += [(reply, error) for reply, _ in held.answers]
        held.answers = []


def _run(effect: object) -> None:
    effect()  # type: ignore[operator]
