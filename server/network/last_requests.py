"""The last requests of a server, in words: what a test that failed has just asked its broker.

A processor keeps a `Served` of each of its last RECENT requests, for the price of a tuple and
without a reference to what they held. Nothing is put into words before somebody asks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from server.network.request_context import RequestContext

RECENT = 200

# Received (in the processor's milliseconds), how long it took; name of the API, version, client id,
# listener, the connection's number.
Served = tuple[int, int, str, int, str, str, int]
_received = itemgetter(0)


def told(
    done: Iterable[Served],
    under_way: Iterable[RequestContext[Any]],
    now_ms: int,
    wall_ms: int,
) -> list[str]:
    """A line for each request, the oldest first; such as repeat the one before share its line.

    What is under way stands at the end, with how long it has waited. `now_ms` and `wall_ms` are
    the same moment on both clocks.
    """
    lines = []
    for (api, version, client, listener, number), group in groupby(
        sorted(done, key=_received), itemgetter(slice(2, None))
    ):
        same = list(group)
        received_ms, took_ms = same[-1][:2]
        at_ms = wall_ms - now_ms + received_ms
        clock = time.strftime("%H:%M:%S", time.localtime(at_ms // 1000))
        count = f"  the last of {len(same)}" if len(same) > 1 else ""
        lines.append(
            f"{clock},{at_ms % 1000:03} {api} v{version} client={client!r}"
            f" {listener}-{number} {took_ms} ms{count}"
        )
    waiting = sorted((_waiting(request, now_ms) for request in under_way), key=_received)
    for _, waits_ms, api, version, client, listener, number in waiting:
        lines.append(
            f"not answered yet: {api} v{version} client={client!r}"
            f" {listener}-{number} {waits_ms} ms"
        )
    return lines


def _waiting(request: RequestContext[Any], now_ms: int) -> Served:
    channel = request.connection
    return (
        request.received_ms, now_ms - request.received_ms, request.api.name, request.api_version,
        request.client_id, channel.listener_name, channel.connection_id,
    )  # fmt: skip
