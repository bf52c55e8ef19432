"""controller_mutation_rate: how many partitions a user's clients may create and delete (KIP-599).
PURE.

What: at the active controller each quota is a bucket of partitions that fills at the rate and holds
as much as `controller.quota.window.num` windows bring. A topic whose turn comes while the bucket
owes nothing is let through whole, whatever its size, and may leave the bucket owing; those after it
are refused (THROTTLING_QUOTA_EXCEEDED) in the versions of the APIs that clients retry in, and in
older ones done all the same. What is owed is told as throttle time: the broker that the client is
connected to mutes it for so long. A request that only validates counts too, as in Kafka.

Which quota: as for `server.network.metering`, by user and client id. The buckets are this
controller's own: a new one starts with full ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from replication.metadata.quota_entities import levels, shared_by
from replication.metadata.token_bucket import TokenBucket, TokenBuckets, owed_ms
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from replication.controller.context import ControllerContext
    from replication.metadata.image import MetadataImage

Charge = Callable[[int], None]
"""Count the partitions of one topic. Raises KafkaError THROTTLING_QUOTA_EXCEEDED."""


def unbounded(_partitions: int) -> None:
    """The Charge of who has no quota."""


KEY = "controller_mutation_rate"
_BUCKETS_MAX = 10_000


class MutationQuota:
    """What one request may still change; `charge` each topic when it is found to be right."""

    def __init__(self, bucket: TokenBucket | None, is_strict: bool, now_ms: int) -> None:
        self._bucket = bucket
        self._is_strict = is_strict
        self._now_ms = now_ms
        self.throttle_ms = 0

    def charge(self, partitions: int) -> None:
        """Count; raises KafkaError THROTTLING_QUOTA_EXCEEDED."""
        bucket = self._bucket
        if bucket is None:
            return
        left = bucket.left(self._now_ms)
        if self._is_strict and left < 0:
            self._owes(bucket, left)
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded."
            )
        bucket.take(partitions)
        if not self._is_strict:
            self._owes(bucket, left - partitions)

    def _owes(self, bucket: TokenBucket, left: float) -> None:
        self.throttle_ms = max(0, round(owed_ms(-left, bucket.rate)))


class MutationQuotas:
    """The buckets of an active controller; on its thread."""

    def __init__(self, burst_s: int) -> None:
        self._buckets = TokenBuckets(burst_s, _BUCKETS_MAX)

    def of(
        self, image: MetadataImage, context: ControllerContext, strict_since: int, now_ms: int
    ) -> MutationQuota:
        """For one request. What a broker asks for itself (version -1) is not bounded."""
        bucket = None
        if image.client_quotas and context.api_version >= 0:
            bucket = self._bucket(image, context)
        return MutationQuota(bucket, context.api_version >= strict_since, now_ms)

    def _bucket(self, image: MetadataImage, context: ControllerContext) -> TokenBucket | None:
        user, client = context.principal.partition(":")[2], context.client_id
        for level in levels(user, client):
            record = image.client_quotas.get((level, KEY))
            if record is not None:
                return self._buckets.of(shared_by(level, user, client), record.value)
        return None
