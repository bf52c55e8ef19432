"""What was asked last, in words, at times made up (over real sockets: test_socket_server)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from server.network import last_requests
from testkit.clock import WALL_MS

PRODUCE = ("Produce", 9, "shop", "PLAINTEXT", 4)
FETCH = ("Fetch", 12, "till", "PLAINTEXT", 5)


@pytest.fixture(autouse=True)
def utc(in_time_zone: Callable[[str], None]) -> None:
    in_time_zone("UTC")


def test_requests_stand_in_the_order_of_their_arrival_and_repeated_ones_share_a_line() -> None:
    of_two_threads = [(30, 2, *FETCH), (10, 1, *PRODUCE), (20, 7, *PRODUCE), (40, 0, *PRODUCE)]
    assert last_requests.told(of_two_threads, [], 1_000, WALL_MS + 1_000) == [
        "22:13:20,020 Produce v9 client='shop' PLAINTEXT-4 7 ms  the last of 2",
        "22:13:20,030 Fetch v12 client='till' PLAINTEXT-5 2 ms",
        "22:13:20,040 Produce v9 client='shop' PLAINTEXT-4 0 ms",
    ]
