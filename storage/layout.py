"""Names and entries of the small files of a log directory, as text: what brokers and Spark's
executors both go by.

Imports nothing, so that it can be loaded where no package is called `storage`
(pipeline.segments.layout). What they mean: storage.checkpoint, storage.segments,
storage.log.producer_snapshot.
"""

from __future__ import annotations

HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"

# For `struct`:
ABORTED_TXN = ">hqqqq"
PRODUCER_SNAPSHOT_HEAD = ">hIi"
PRODUCER_SNAPSHOT_ENTRY = ">qhiqiqiq"
