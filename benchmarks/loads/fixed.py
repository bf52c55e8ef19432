"""Fixed batches: every broker gets the same requests, so its log has the same bytes.

What a client library sends depends on the broker: the sooner it answers, the smaller the next
batch. Here all is decided beforehand (`benchmarks.loads.frames`); this also fills the topics that
readers read, instead of a copy of one broker's files in the other's directory: nothing of either
broker's own (topic ids, checkpoints, indexes, snapshots) has to be forged, each writes its files as
ever, and that the segments are equal byte for byte is checked by the runner, not assumed.
"""

from __future__ import annotations

import math
import time

from benchmarks.loads import frames
from benchmarks.loads.base import Figures, Place, commands, create_topic, expect_records


def produce(
    place: Place, size: int, count: int, partitions: int = 1, batch_bytes: int = 65_536,
    window: int = 5, acks: int = 1, timestamp_ms: int | None = None,
) -> Figures:  # fmt: skip
    """At least `count` records of `size` bytes in batches of `batch_bytes`, one a request, to the
    partitions in turn; `window` requests in flight (Java's default is 5). All are of one time.
    """
    timestamp_ms = timestamp_ms or int(time.time() * 1000)
    create_topic(place.bootstrap, place.topic, partitions)
    batch, held = frames.batch_of(size, batch_bytes, timestamp_ms)
    requests = [frames.produce_frame(place.topic, n, batch, acks) for n in range(partitions)]
    sent = max(2, math.ceil(count / held))
    commands.append(
        f"{sent} Produce requests of {len(requests[0])} B ({held} records), {window} in flight"
    )
    with frames.connect(place.bootstrap) as sock:
        seconds = frames.pipelined(sock, requests, sent, window)
    expect_records(place.bootstrap, place.topic, partitions, sent * held)
    timed = (sent - 1) * held
    return {
        "seconds": seconds,
        "records_s": timed / seconds,
        "mb_s": timed * size / seconds / 1e6,
        "requests_s": (sent - 1) / seconds,
    }
