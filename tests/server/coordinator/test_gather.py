"""Many answers as one."""

from __future__ import annotations

import gc
import weakref

from server.coordinator.gather import Gather
from wire.errors import ErrorCode, KafkaError


class Something:
    pass


def test_answers_come_in_the_order_asked_when_the_last_is_there() -> None:
    told: list[list[str]] = []
    gather = Gather(2, told.append)
    gather.put(1, "second")
    assert told == []
    gather.put(0, "first")
    assert told == [["first", "second"]]


def test_nothing_asked_is_answered_at_once() -> None:
    told: list[list[str]] = []
    Gather(0, told.append)
    assert told == [[]]


def test_an_error_does_not_keep_alive_what_raised_it() -> None:
    def ask(gather: Gather[object]) -> weakref.ref[Something]:
        held = Something()
        try:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        except KafkaError as error:
            gather.put(0, error)
        return weakref.ref(held)

    gc.disable()
    try:
        assert ask(Gather(1, lambda _answers: None))() is None
    finally:
        gc.enable()
