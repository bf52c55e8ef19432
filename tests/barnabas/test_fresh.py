"""Ports and ids that nobody else has."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator

import pytest

from barnabas import fresh


@pytest.fixture
def listening() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server((fresh.HOST, 0)) as server:
        yield server.getsockname()[1]


def offer(monkeypatch: pytest.MonkeyPatch, *offers: list[int]) -> list[int]:
    """Let these be the ports that come up by chance, the last for ever; how many were wanted."""
    left, wanted = list(offers), []

    def sample(_ports: range, count: int) -> list[int]:
        wanted.append(count)
        return left.pop(0) if len(left) > 1 else left[0]

    monkeypatch.setattr(fresh._random, "sample", sample)
    return wanted


def test_ports_are_different_and_free() -> None:
    ports = fresh.free_ports(3)
    assert len(set(ports)) == 3
    assert fresh.are_free(ports)


def test_ports_in_use_and_those_that_were_excluded_are_passed_over(
    monkeypatch: pytest.MonkeyPatch, listening: int
) -> None:
    wanted = offer(monkeypatch, [10_001, listening], [10_001, 10_002], [10_003, 10_004])
    monkeypatch.setattr(fresh, "are_free", lambda ports: listening not in ports)
    assert fresh.free_ports(2, not_these=[10_002]) == [10_003, 10_004]
    assert wanted == [2, 2, 2]


def test_where_no_port_is_free_that_is_told(
    monkeypatch: pytest.MonkeyPatch, listening: int
) -> None:
    wanted = offer(monkeypatch, [listening])
    with pytest.raises(OSError, match="no 1 free ports found"):
        fresh.free_ports(1)
    assert len(wanted) > 1


def test_a_port_that_somebody_listens_on_is_taken(listening: int) -> None:
    (free,) = fresh.free_ports(1)
    assert fresh.are_free([free])
    assert not fresh.are_free([free, listening])
    assert fresh.taken([free, listening]) == listening
    assert fresh.taken([free]) is None


def test_a_port_whose_connection_was_closed_a_moment_ago_is_free_to_a_broker() -> None:
    with socket.create_server((fresh.HOST, 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection((fresh.HOST, port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # the first to close waits for what may be under way
            assert client.recv(1) == b""
    assert fresh.taken([port]) is None


def test_a_port_that_may_not_be_bound_is_not_taken_by_somebody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fresh, "HOST", "192.0.2.1")
    assert fresh.taken([10_000]) is None


def test_an_id_never_looks_like_a_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [uuid.UUID(bytes=b"\xf8" + bytes(15)), uuid.UUID(bytes=bytes(16))]
    monkeypatch.setattr(fresh.uuid, "uuid4", lambda: ids.pop(0))
    assert fresh.random_uuid() == "A" * 22
