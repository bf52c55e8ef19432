"""Log compaction: one record per key."""
