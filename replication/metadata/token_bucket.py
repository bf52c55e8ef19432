"""A quota that fills up while it is not used (Kafka: TokenBucket). PURE."""

from __future__ import annotations

from collections.abc import Hashable

BURST_S = 0.2
"""What of a quota may come at once, in seconds of it: ten seconds have two per cent too much, and
one request. (Kafka's rate over eleven samples lets ten seconds' worth through at once, and again
eleven seconds later; so quota.window.num and .size.seconds mean nothing where this counts.)"""
_THROTTLE_MS_MAX = (1 << 31) - 1


def owed_ms(owed: float, rate: float) -> float:
    """How long it takes to pay; no more than a throttle time can say, an int32."""
    return min(owed / rate * 1_000, _THROTTLE_MS_MAX)


class TokenBucket:
    """Fills at `rate` a second and holds at most `burst_s` seconds of it; full at first.

    What is taken may be more than is left: the rest is owed. The caller keeps threads apart.
    """

    __slots__ = ("_at_ms", "_burst_s", "_left", "rate")

    def __init__(self, rate: float, burst_s: float) -> None:
        self.rate = rate
        self._burst_s = burst_s
        self._left = rate * burst_s
        self._at_ms = 0

    def left(self, now_ms: int) -> float:
        """How much may be taken; below 0 is what is owed."""
        if now_ms > self._at_ms:
            gained = (now_ms - self._at_ms) * self.rate / 1_000
            self._left = min(self._left + gained, self.rate * self._burst_s)
            self._at_ms = now_ms
        return self._left

    def take(self, amount: float) -> None:
        self._left -= amount


class TokenBuckets:
    """A bucket for each of those who share a quota; full ones for those who were not seen lately.

    Names may be invented, so only the last `known_max` are known, and to know one more costs the
    same however many there are.
    """

    def __init__(self, burst_s: float, known_max: int) -> None:
        self._burst_s = burst_s
        self._known_max = known_max
        self._buckets: dict[Hashable, TokenBucket] = {}

    def of(self, who: Hashable, rate: float) -> TokenBucket:
        """Whose bucket fills at `rate` from now on."""
        buckets = self._buckets
        bucket = buckets.pop(who, None)
        if bucket is None:
            bucket = TokenBucket(rate, self._burst_s)
            if len(buckets) >= self._known_max:
                del buckets[next(iter(buckets))]
        buckets[who] = bucket  # the last of them, again
        bucket.rate = rate
        return bucket

    def __len__(self) -> int:
        return len(self._buckets)
