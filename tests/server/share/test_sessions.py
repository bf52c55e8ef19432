"""Share sessions hold so many partitions together, and whoever wants more is refused."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from server.share import sessions
from server.share.sessions import Member, SharedPartition, ShareSessions
from wire.errors import ErrorCode as E
from wire.errors import KafkaError

ONE, OTHER = Member("g", "m1"), Member("g", "m2")


def partitions(first: int, last: int) -> list[SharedPartition]:
    return [SharedPartition(b"t" * 16, index) for index in range(first, last + 1)]


class Bench:
    """Sessions of one connection."""

    def __init__(self) -> None:
        self.sessions = ShareSessions(10)

    def fetch(self, member: Member, epoch: int, first: int, last: int, forget: int = 0) -> int:
        """How many partitions are to be read; `forget` of the first are forgotten."""
        read = self.sessions.fetch(
            member, epoch, partitions(first, last), partitions(0, forget - 1), self,
            acknowledges=False,
        )  # fmt: skip
        return len(read)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(sessions, "SHARED_PARTITIONS_MAX", 10)
    return Bench()


def test_partitions_have_a_bound_for_all_sessions_together(bench: Bench) -> None:
    assert bench.fetch(ONE, 0, 0, 5) == 6
    with pytest.raises(KafkaError) as refused:
        bench.fetch(OTHER, 0, 0, 5)
    assert refused.value.code == E.SHARE_SESSION_LIMIT_REACHED
    assert bench.fetch(OTHER, 0, 0, 3) == 4
    with pytest.raises(KafkaError) as refused:
        bench.fetch(ONE, 1, 0, 6)
    assert refused.value.code == E.SHARE_SESSION_LIMIT_REACHED
    assert bench.fetch(ONE, 1, 0, 5) == 6  # it is as it was


def test_a_session_goes_on_if_there_is_no_room_for_one_in_its_place(bench: Bench) -> None:
    """Else its end would be nobody's: what its member has is released when it ends."""
    assert bench.fetch(ONE, 0, 0, 5) == 6
    with pytest.raises(KafkaError) as refused:
        bench.fetch(ONE, 0, 0, 10)
    assert refused.value.code == E.SHARE_SESSION_LIMIT_REACHED
    assert bench.sessions.is_used("g")
    assert bench.fetch(ONE, 1, 0, 5) == 6
    assert bench.fetch(ONE, 0, 0, 9) == 10  # what it takes the place of has no room any more


def test_a_session_that_takes_the_place_of_another_is_never_missing(bench: Bench) -> None:
    """Who asks meanwhile, on another thread, would release what the member has, and forget the
    share partitions of its group."""
    bench.fetch(ONE, 0, 0, 5)
    missed = []

    def look(_frame: FrameType, _event: str, _arg: object) -> Any:
        if ONE not in bench.sessions or not bench.sessions.is_used("g"):
            missed.append(_frame.f_lineno)
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        bench.fetch(ONE, 0, 0, 5)
    finally:
        sys.settrace(before)
    assert not missed
    bench.fetch(OTHER, 0, 6, 7)
    for member in (ONE, OTHER):
        assert bench.sessions.is_used("g")
        bench.fetch(member, -1, 0, 0)
        bench.sessions.close(member)
    assert not bench.sessions.is_used("g")


@pytest.mark.parametrize("how", ["forget", "close", "leave", "open", "clear"])
def test_what_is_held_no_more_has_room_for_others(bench: Bench, how: str) -> None:
    bench.fetch(ONE, 0, 0, 9)
    if how == "forget":
        assert bench.fetch(ONE, 1, 0, 9, forget=6) == 4
    elif how == "close":
        assert bench.fetch(ONE, -1, 0, 0) == 0
        assert len(bench.sessions.close(ONE)) == 10
        bench.sessions.close(ONE)
    elif how == "leave":
        assert [len(of) for _, of in bench.sessions.connection_closed(bench)] == [10]
    elif how == "open":
        assert bench.fetch(ONE, 0, 0, 3) == 4
    else:
        bench.sessions.clear()
    assert bench.fetch(OTHER, 0, 0, 5) == 6
    with pytest.raises(KafkaError):
        bench.fetch(OTHER, 1, 0, 10)
